"""Limits that a module's kernels keep, read from what is stored of them, without running them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import tvm_ffi

from metal_emulator import serialised
from metal_emulator.serialised import Signature

MAX_BUFFERS = 31
MAX_KERNEL_BYTES = 64 * 1024
MAX_THREADGROUP_BYTES = 32 * 1024

_SIZES = {"bool": 1, "char": 1, "uchar": 1, "short": 2, "ushort": 2, "half": 2, "int": 4, "uint": 4, "float": 4}
_SIZES |= {"long": 8, "ulong": 8}
_THREADGROUP_ARRAY = re.compile(r"^\s*threadgroup\s+([a-z]+)([234]?)\s+\w+\[(\d+)\];", re.MULTILINE)


@dataclass(frozen=True)
class KernelText:
    """A kernel as it is stored in a module.

    Attributes:
        name: Of the kernel.
        msl: The source.
        signature: Its arguments.
    """

    name: str
    msl: str
    signature: Signature

    @property
    def buffers(self) -> int:
        """Entries of the argument table: the buffers, and one for all scalars."""
        return self.signature.buffers + bool(self.signature.scalars)

    @property
    def threadgroup_bytes(self) -> int:
        """Memory that the threads of a group share, without padding."""
        return sum(
            _SIZES[kind] * (4 if lanes == "3" else int(lanes or 1)) * int(count)
            for kind, lanes, count in _THREADGROUP_ARRAY.findall(self.msl)
        )


def kernel_texts(module: object) -> list[KernelText]:
    """The kernels of a module as built, before it is exported or after, without any edits of the emulator.

    Args:
        module: An executable or a runtime module.

    Raises:
        ValueError: There is no Metal module in it.
    """
    pack = tvm_ffi.get_global_func("runtime.ModulePackImportsToTensor")
    blob = pack(getattr(module, "mod", module)).numpy().tobytes()
    kernels = []
    for data in serialised.metal_modules(blob):
        signatures, sources = serialised.load(data)
        kernels += [KernelText(name, msl, signatures[name]) for name, msl in sources.items()]
    if not kernels:
        raise ValueError("no Metal kernels in this module")
    return kernels


def check_kernels(kernels: Iterable[KernelText], *, max_total_bytes: int | None = None) -> list[str]:
    """What is wrong with the kernels: all of it, one line each; empty if nothing is.

    Args:
        kernels: From ``kernel_texts``.
        max_total_bytes: Bound on the sources together.
    """
    kernels = list(kernels)
    problems = []
    for kernel in kernels:
        size = len(kernel.msl.encode())
        for what, value, most in (
            ("bytes of source", size, MAX_KERNEL_BYTES),
            ("buffers", kernel.buffers, MAX_BUFFERS),
            ("bytes of threadgroup memory", kernel.threadgroup_bytes, MAX_THREADGROUP_BYTES),
        ):
            if value > most:
                problems.append(f"kernel {kernel.name}: {value} {what}, at most {most}")
    total = sum(len(kernel.msl.encode()) for kernel in kernels)
    if max_total_bytes is not None and total > max_total_bytes:
        problems.append(f"{len(kernels)} kernels: {total} bytes of source together, at most {max_total_bytes}")
    return problems
