"""Linear layers whose weights stay quantised, and how their kernels are chosen."""

from rdna_jit.layers.crossover import clear_crossovers, crossovers, set_crossover
from rdna_jit.layers.kernels import KERNELS, LinearKernel
from rdna_jit.layers.linear import QuantizedLinear
from rdna_jit.layers.selector import NoKernelError

__all__ = [
    "KERNELS",
    "LinearKernel",
    "NoKernelError",
    "QuantizedLinear",
    "clear_crossovers",
    "crossovers",
    "set_crossover",
]
