# %% [markdown]
# # A kernel of your own
#
# `softmax.hip` is a HIP template: its first lines bind `${N}`, `${THREADS}` and `${T}` to names
# that the rest uses as ordinary code. This script specialises it, looks at what the compiler made,
# runs it and checks the result. It needs no GPU: without one, the same machine code runs on the
# emulator.

# %%
from pathlib import Path

import torch

import rdna_jit

FOLDER = Path(__file__).parent if "__file__" in globals() else Path("examples")

template = rdna_jit.Template.from_file(
    FOLDER / "softmax.hip",
    values={"N": range(1, 16385), "THREADS": (32, 64, 128, 256), "T": ("_Float16", "float")},
)
print(template)
print(rdna_jit.device())

# %% [markdown]
# ## Specialise and compile
#
# `specialise` only renders text. The kernel compiles when something needs its code, once, and lands
# in the cache.

# %%
N, THREADS = 1000, 128
kernel = template.specialise(N=N, THREADS=THREADS, T="_Float16").compile()
print(kernel.signature)
print(kernel.resources)
print("\n".join(kernel.isa().splitlines()[:12]))

# %% [markdown]
# ## Run and check

# %%
ROWS, SCALE = 64, 0.125
DEVICE = "cuda" if rdna_jit.device().backend == "hip" else "cpu"
x = torch.randn(ROWS, N, dtype=torch.float16, device=DEVICE) * 20
y = torch.empty_like(x)
kernel.launch(ROWS, THREADS, x, y, SCALE)

expected = torch.softmax(x.float() * SCALE, dim=-1)
error = (y.float() - expected).norm() / expected.norm()
print(f"relative L2 error against torch in fp32: {error:.1e}")
assert error < 5e-4

# %% [markdown]
# ## What does not fit is refused before it runs

# %%
for attempt in (
    lambda: template.specialise(N=0, THREADS=128, T="float"),
    lambda: kernel.launch(ROWS, THREADS, x, y),
    lambda: kernel.launch(ROWS, 256, x, y, SCALE),
):
    try:
        attempt()
    except rdna_jit.ContractError as problem:
        print(f"{type(problem).__name__}: {problem}")

# %% [markdown]
# A wrong bound in the kernel is found by the emulator: here y is one row short.

# %%
if DEVICE == "cpu":
    try:
        kernel.launch(ROWS, THREADS, x, y[:-1], SCALE)
    except rdna_jit.MemoryFault as fault:
        print(fault)

# %% [markdown]
# ## Profile
#
# The emulator counts what the waves execute and estimates the time on a card. In a notebook, the
# profile shows itself as a table, and `.plot()` draws a roofline.

# %%
for threads in (32, 128, 256):
    variant = template.specialise(N=N, THREADS=threads, T="_Float16")
    profile = variant.profile(ROWS, threads, x.cpu(), y.cpu(), SCALE, card="V620")
    print(f"{threads} threads: {profile.time_us:.1f} us, bound by {profile.bound_by}")
print(profile)

# %% [markdown]
# On a card, `kernel.time(...)` measures instead: warm clocks, operands rotating past the cache.

# %%
if DEVICE == "cuda":
    print(kernel.time(ROWS, THREADS, x, y, SCALE))
