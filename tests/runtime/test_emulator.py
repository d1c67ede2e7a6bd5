from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import rdna_jit
from rdna_jit import ContractError, MemoryFault, Template, config
from rdna_jit.runtime.emulator import view_nbytes
from tests.runtime.kernels import add

N = 300


@pytest.fixture(autouse=True)
def emulator():
    with config.scope(backend="emulator"):
        yield


def test_a_launch_computes_what_the_source_says():
    x, bias, y = torch.randn(N), torch.randn(N), torch.full((N,), torch.nan)
    kernel = add(step=3)
    kernel.launch(3, 128, x, bias, y, 2.0, N)
    assert torch.equal(y, x * 2 + 3 + bias)
    kernel.launch((3, 1, 1), (128,), x, None, y, 2.0, N)
    assert torch.equal(y, x * 2 + 3)


@pytest.mark.parametrize("name", ["x", "bias", "y"])
def test_a_fault_names_the_parameter_and_the_views_size(name):
    tensors = {t: torch.zeros(2 * N) for t in ("x", "bias", "y")}
    tensors[name] = tensors[name][:N]
    with pytest.raises(MemoryFault) as error:
        add().launch(3, 128, *tensors.values(), 2.0, N + 1)
    fault = error.value
    assert (fault.buffer, fault.buffer_nbytes) == (name, 4 * N)
    assert fault.address == tensors[name].data_ptr() + 4 * N
    assert fault.kernel == "add" and "add.hip" in fault.source_line


def test_a_view_starts_where_it_starts():
    whole = torch.zeros(64)
    kernel = Template(
        'extern "C" __global__ __launch_bounds__(32) void at(float* x, int i) { x[i] = 1; }'
    ).specialise()
    kernel.launch(1, 1, whole[16:32], 0)
    assert whole.nonzero().tolist() == [[16]]
    for index in (-1, 16):
        with pytest.raises(MemoryFault):
            kernel.launch(1, 1, whole[16:32], index)


@pytest.mark.parametrize(
    ("view", "nbytes"),
    [
        (torch.zeros(3, 4), 48),
        (torch.zeros(3, 4)[:, 1:3], 4 * (2 * 4 + 2)),
        (torch.zeros(3, 4).t(), 48),
        (torch.zeros(3, 4)[::2, ::3], 4 * (2 * 4 + 3 + 1)),
        (torch.zeros(1).expand(1000), 4),
        (torch.zeros(0, 4), 0),
        (torch.tensor(1.0), 4),
        (torch.zeros(5, dtype=torch.int8)[1:], 4),
    ],
)
def test_byte_span_of_views(view, nbytes):
    assert view_nbytes(view) == nbytes


def test_an_empty_tensor_may_be_passed_but_not_read():
    y = torch.zeros(N)
    with pytest.raises(MemoryFault):
        add().launch(1, 128, torch.empty(0), None, y, 2.0, 1)
    add().launch(1, 128, torch.empty(0), None, y, 2.0, 0)


def test_a_raw_address_needs_a_registration():
    x, y = torch.ones(N), torch.zeros(N)
    kernel = add()
    with pytest.raises(MemoryFault):
        kernel.launch(3, 128, x.data_ptr(), None, y, 2.0, N)
    with rdna_jit.emulator.register(x.data_ptr(), 4 * N):
        kernel.launch(3, 128, x.data_ptr(), None, y, 2.0, N)
    assert torch.equal(y, x * 2 + 1)


def test_tensors_elsewhere_are_refused():
    x, y = torch.ones(N, device="meta"), torch.zeros(N)
    with pytest.raises(ContractError, match=r"x must be a CPU tensor.*backend is the emulator"):
        add().launch(3, 128, x, None, y, 2.0, N)


def test_the_emulated_arch_follows_the_setting():
    with config.scope(arch="gfx1010"):
        assert rdna_jit.device().arch == "gfx1010"
    with config.scope(arch=None):
        assert rdna_jit.device().arch == "gfx1030"
    with pytest.raises(ContractError, match="no device 1"):
        rdna_jit.device(1)


def test_warm_translates_nothing_but_compiles():
    kernel = add(step=9)
    assert rdna_jit.warm(kernel) is kernel
    assert kernel._programs and kernel._loaded


def test_bad_geometry_is_refused_here_too():
    x, y = torch.ones(N), torch.zeros(N)
    for grid, block, lds in ((0, 128, 0), (3, 256, 0), (3, 128, 65536), (1 << 31, 1, 0)):
        with pytest.raises(ContractError):
            add().launch(grid, block, x, None, y, 2.0, N, dynamic_lds=lds)


WITHOUT_LLVMLITE = """
import sys
sys.modules["llvmlite"] = None
import torch, rdna_jit
rdna_jit.config.backend = "emulator"
kernel = rdna_jit.Template(
    'extern "C" __global__ __launch_bounds__(32) void k(float* x) { x[0] = ' + sys.argv[1] + '; }'
).specialise()
try:
    kernel.launch(1, 1, torch.zeros(1))
except rdna_jit.ToolchainError as error:
    print(error.library, "|", error.install)
"""


def test_without_llvmlite_the_error_says_what_to_install(tmp_path):
    command = [sys.executable, "-c", WITHOUT_LLVMLITE, "0.25f"]
    environment = {"RDNA_JIT_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert done.stdout.startswith("llvmlite | ") and "rdna_jit[emulator]" in done.stdout


@pytest.mark.parametrize(
    "value", [np.ones(N, np.float32), np.array([1, 2]), torch.ones(N).to_sparse()]
)
def test_a_pointer_is_a_dense_tensor(value):
    with pytest.raises(ContractError, match="x"):
        add().launch(3, 128, value, None, torch.zeros(N), 2.0, N)
