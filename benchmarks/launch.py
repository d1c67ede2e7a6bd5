"""Host time of launches and first calls: python -m benchmarks.launch [--json]

    kernel_launch_us        Kernel.launch with 8 tensors and 4 ints, on a do-nothing HIP library
    op_call_us              gptq_gemm at M = 1 on that library, output allocated
    moe_call_us             moe_int4_decode at M = 1 on it, two launches, output and workspace given
    import_ms               import rdna_jit on top of torch
    warm_first_call_ms      new process, kernel in the disk cache: template to launch, that library
    emulator_first_call_ms  the same on the emulator, its translation cached too
    cold_compile_ms         new process, empty cache: template to launch, that library
    cold_emulator_ms        the same on the emulator

The library is built from tests/runtime/stub with gcc. Times are the best of several, since this is
host work that only disturbances make longer.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

from benchmarks import harness
from rdna_jit import Template, config
from rdna_jit.runtime import hip
from tests.runtime.stub_library import HostTensors, Stub, build

TARGETS = {
    "kernel_launch_us": 3.0,
    "op_call_us": 10.0,
    "moe_call_us": 16.0,
    "import_ms": 60.0,
    "warm_first_call_ms": 20.0,
    "emulator_first_call_ms": 100.0,
    "cold_compile_ms": 500.0,
}

MANY = """
extern "C" __global__ __launch_bounds__(256) void many(
    float* a, float* b, float* c, float* d, float* e, float* f, float* g, float* h,
    int i, int j, int k, int l) {
  int t = __builtin_amdgcn_workitem_id_x();
  if (t < i) a[t] = b[t] + c[t] + d[t] + e[t] + f[t] + g[t] + h[t] + j + k + l;
}
"""

IMPORT = """
import time, torch
start = time.perf_counter()
import rdna_jit
print((time.perf_counter() - start) * 1e3)
"""

FIRST_CALL = """
import sys, time, torch, rdna_jit
if sys.argv[1] == "hip":
    from pathlib import Path
    from rdna_jit.runtime import hip
    from tests.runtime.stub_library import HostTensors, Stub
    stub = Stub(Path(sys.argv[2]))
    hip.torch_side = HostTensors(stub)
    rdna_jit.config.hip_library = stub.path
rdna_jit.config.backend = sys.argv[1]
x, y = torch.ones(256), torch.zeros(256)
start = time.perf_counter()
kernel = rdna_jit.Template('''
constexpr float A = ${A};
extern "C" __global__ __launch_bounds__(256) void scale(const float* x, float* y, int n) {
  int i = __builtin_amdgcn_workgroup_id_x() * 256 + __builtin_amdgcn_workitem_id_x();
  if (i < n) y[i] = A * x[i];
}
''', name="scale").specialise(A=2.0)
kernel.launch(1, 256, x, y, 256)
print((time.perf_counter() - start) * 1e3)
assert sys.argv[1] == "hip" or y.sum() == 512
"""


def kernel_launch_us() -> float:
    kernel = Template(MANY, name="many").specialise()
    a, b, c, d, e, f, g, h = (torch.zeros(256) for _ in range(8))
    return harness.best_us(
        lambda: kernel.launch((1, 1, 1), 256, a, b, c, d, e, f, g, h, 256, 1, 2, 3)
    )


def op_call_us() -> float:
    from rdna_jit.ops.linear import gptq_gemm

    N, K, G = 4096, 4096, 128
    x, scales = torch.zeros(1, K, dtype=torch.float16), torch.zeros(K // G, N, dtype=torch.float16)
    qweight = torch.zeros(K // 8, N, dtype=torch.int32)
    qzeros = torch.zeros(K // G, N // 8, dtype=torch.int32)
    return harness.best_us(
        lambda: gptq_gemm(x, qweight, qzeros, scales, zero_offset=1, shuffled=True)
    )


def moe_call_us() -> float:
    from rdna_jit.ops.moe import moe_int4_decode

    E, T, H, I, G = 8, 10, 2560, 640, 128  # noqa: E741
    x, out = torch.zeros(2, 1, H, dtype=torch.float16)
    workspace = torch.empty(1, T, I, dtype=torch.float16)
    w1 = torch.zeros(E, 2 * I, H // 2, dtype=torch.uint8)
    w2 = torch.zeros(E, H, I // 2, dtype=torch.uint8)
    w1_scale = torch.zeros(E, 2 * I, H // G, dtype=torch.float16)
    w2_scale = torch.zeros(E, H, I // G, dtype=torch.float16)
    weights, ids = torch.zeros(1, T), torch.zeros(1, T, dtype=torch.int32)
    expert_map = torch.zeros(E, dtype=torch.int32)
    return harness.best_us(
        lambda: moe_int4_decode(
            x, w1, w1_scale, w2, w2_scale, weights, ids, group_size=G, expert_map=expert_map,
            workspace=workspace, out=out,
        )
    )  # fmt: skip


def main(arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        stub = Stub(library)
        stub.library.stub_record(0)
        hip.torch_side = HostTensors(stub)
        config.backend, config.hip_library = "hip", library
        config.cache_dir = Path(folder, "cache")
        cold = [Path(folder, f"cold{n}") for n in range(6)]
        figures = {
            "kernel_launch_us": kernel_launch_us(),
            "op_call_us": op_call_us(),
            "moe_call_us": moe_call_us(),
            "import_ms": harness.best_in_new_process(5, IMPORT),
        }
        variable = "RDNA_JIT_CACHE_DIR"
        for name, backend in (
            ("warm_first_call_ms", "hip"),
            ("emulator_first_call_ms", "emulator"),
        ):
            figures[name] = harness.best_in_new_process(
                5, FIRST_CALL, backend, str(library), **{variable: str(config.cache_dir)}
            )
        for name, backend in (("cold_compile_ms", "hip"), ("cold_emulator_ms", "emulator")):
            figures[name] = min(
                harness.in_new_process(
                    FIRST_CALL, backend, str(library), **{variable: str(cold.pop())}
                )
                for _ in range(3)
            )
    harness.report(__doc__.splitlines()[0], figures, TARGETS, arguments)  # type: ignore[union-attr]


if __name__ == "__main__":
    main(sys.argv[1:])
