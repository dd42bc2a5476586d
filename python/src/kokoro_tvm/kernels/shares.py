"""Shares of a kernel's rows for its parallel tasks.

What it is: how many blocks, and where each begins, so that threads which take as many tasks each have as much to do. TVM gives
every thread a run of consecutive tasks. What it is not: aware of the number of threads.

Counted in units, the rows of a register tile, of which a task has whole ones. No result depends on the split.
"""

from __future__ import annotations

from tvm.script import tirx as T

from kokoro_tvm.kernels.vector_math import Expr


def block_count(units: Expr, most: int, others: int) -> Expr:
    """Blocks of ``units``, at most ``most`` in each.

    An even number where there is an odd one of ``others``, the tasks that each block is made of: one task more than half of a few
    is a large share.
    """
    blocks = (units + most - 1) // most
    return blocks if others % 2 == 0 else T.min(blocks + blocks % 2, units)


def block_begin(block: Expr, blocks: Expr, units: Expr, turn: Expr) -> Expr:
    """First unit of a block; blocks differ by one at most, and in odd turns others than in even ones are the longer."""
    return (block * units + turn % 2 * (blocks - 1)) // blocks
