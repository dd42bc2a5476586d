"""Vector registers in TIR.

What it is: accumulators as TVM has to be given them for LLVM to take them into registers, and loops over them that are unrolled
while the kernel is built. What it is not: aware of what is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.script import tirx as T

from kokoro_tvm.kernels.vector_math import Expr


def registers(count: int, lanes: int, dtype: str = "float32") -> list[Any]:
    """Vectors of zeros.

    A buffer each, without a scope: TVM has small buffers of the scope "global" on the stack, from where LLVM takes them into
    registers; others, and those of the scope "local", are allocated on the heap by every task.
    """
    found = [T.alloc_buffer((lanes,), dtype) for _ in range(count)]
    each(found, lanes, lambda _, j: T.Cast(dtype, 0))
    return found


def each(found: list[Any], lanes: int, value: Callable[[int, Expr], Expr]) -> None:
    """Sets lane j of each register i to ``value(i, j)``."""
    for i, register in enumerate(found):
        with T.vectorized(lanes) as j:
            T.buffer_store(register, value(i, j), [j])


def save(found: list[Any], lanes: int, store: Callable[[int, Expr, Expr], None]) -> None:
    """Calls ``store(i, j, value)`` for lane j of each register i."""
    for i, register in enumerate(found):
        with T.vectorized(lanes) as j:
            store(i, j, register[j])
