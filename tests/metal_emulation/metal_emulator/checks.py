"""Limits that a module's kernels keep, read from its sources alone, without running them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

MAX_BUFFERS = 31
MAX_KERNEL_BYTES = 64 * 1024
MAX_THREADGROUP_BYTES = 32 * 1024

_SIZES = {"bool": 1, "char": 1, "uchar": 1, "short": 2, "ushort": 2, "half": 2, "int": 4, "uint": 4, "float": 4}
_SIZES |= {"long": 8, "ulong": 8}
_THREADGROUP_ARRAY = re.compile(r"^\s*threadgroup\s+([a-z]+)([234]?)\s+\w+\[(\d+)\];", re.MULTILINE)


@dataclass(frozen=True)
class KernelText:
    """A kernel's source and what it says about the kernel.

    Attributes:
        name: Of the kernel.
        msl: The source.
        buffers: Entries of the argument table, the one of the scalars included.
        threadgroup_bytes: Memory that the threads of a group share, without padding.
    """

    name: str
    msl: str
    buffers: int
    threadgroup_bytes: int


def kernel_texts(module: object) -> list[KernelText]:
    """The kernels of a module as built: an executable, a runtime module, or anything with modules imported into it.

    Raises:
        ValueError: There is no Metal module in it.
    """
    found: dict[str, KernelText] = {}
    for metal in _metal_modules(getattr(module, "mod", module)):
        for part in re.split(r"(?=^#include <metal_stdlib>)", metal.inspect_source(), flags=re.MULTILINE):
            part = re.sub(r"^// Function: .*\n+\Z", "", part, flags=re.MULTILINE).strip() + "\n"
            match = re.search(r"\bkernel void (\w+)\s*\(", part)
            if match:
                found[match[1]] = _text(match[1], part)
    if not found:
        raise ValueError("no Metal kernels in this module")
    return list(found.values())


def _metal_modules(module: object) -> Iterable[object]:
    if getattr(module, "kind", "") == "metal":
        yield module
    for imported in getattr(module, "imports", ()):
        yield from _metal_modules(imported)


def _text(name: str, msl: str) -> KernelText:
    shared = sum(
        _SIZES[kind] * (4 if lanes == "3" else int(lanes or 1)) * int(count)
        for kind, lanes, count in _THREADGROUP_ARRAY.findall(msl)
    )
    return KernelText(name, msl, len(re.findall(r"\[\[\s*buffer\(\d+\)\s*\]\]", msl)), shared)


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
