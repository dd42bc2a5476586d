"""Shares of a kernel's rows for its parallel tasks.

What it is: how many blocks, and where each begins, so that threads which take as many tasks each have as much to do. TVM gives
every thread a run of consecutive tasks. What it is not: aware of the number of threads.

Counted in units, the rows of a register tile, of which a task has whole ones. No result depends on the split.
"""

from __future__ import annotations

from tvm.script import tirx as T

from kokoro_tvm.kernels.vector_math import Expr

_ONE = 1 << 32
"""A unit, in a block's fraction of all units: where a task divides by a variable, LLVM takes three times as long."""


def block_count(units: Expr, most: int, others: int) -> Expr:
    """Blocks of ``units``, at most ``most`` in each.

    An even number where there is an odd one of ``others``, the tasks that each block is made of: one task more than half of a few
    is a large share.
    """
    blocks = (units + most - 1) // most
    return blocks if others % 2 == 0 else T.min(blocks + blocks % 2, units)


def block_step(units: Expr, blocks: Expr) -> Expr:
    """Units of a block, not rounded; for ``block_begin``."""
    return units * _ONE // T.max(blocks, 1)


def block_begin(block: Expr, blocks: Expr, step: Expr, turn: Expr) -> Expr:
    """First unit of a block; blocks differ by one at most, and in odd turns others than in even ones are the longer.

    ``blocks`` steps are up to ``blocks`` short of all units.
    """
    return (block * step + T.if_then_else(turn % 2 == 0, blocks, T.int64(_ONE - 1))) >> 32
