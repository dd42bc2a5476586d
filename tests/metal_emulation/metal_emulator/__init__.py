"""A Metal device on Linux, for tests: runs the kernels that TVM emits, unmodified, and finds what Metal leaves undefined.

See README.md beside this package for what it is and what it is not.
"""

from metal_emulator.checks import KernelText, check_kernels, kernel_texts
from metal_emulator.edits import replace_once
from metal_emulator.emulator import KernelFault, MetalEmulator
from metal_emulator.toolchain import CompileError

__all__ = [
    "CompileError", "KernelFault", "KernelText", "MetalEmulator", "check_kernels", "kernel_texts", "replace_once",
]  # fmt: skip
