"""The commands of `python -m rdna_jit` that look at kernels: isa, run, profile, probe."""
