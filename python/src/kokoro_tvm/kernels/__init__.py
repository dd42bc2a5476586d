"""TIR kernels, one per file."""
