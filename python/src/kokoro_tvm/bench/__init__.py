"""Measuring: this package's engine against others (``compare``), its kernels against the CPU (``profile``)."""
