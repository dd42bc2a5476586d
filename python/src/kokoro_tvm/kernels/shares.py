"""Shares of a kernel's rows for its parallel tasks, and of the tasks for the threads.

What it is: how many blocks, and where each begins, so that threads which take as many tasks each have as much to do; and a loop
over tasks in which a thread that is done takes over what another, slower one has not begun. What it is not: aware of the number
of threads.

Counted in units, the rows of a register tile, of which a task has whole ones. No result depends on the split, or on the thread.
"""

from __future__ import annotations

from collections.abc import Callable

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


RUNS = 64
"""Runs of consecutive tasks: as many threads find work. TVM gives every thread a share of the runs to begin with."""

LLVM = """
define linkonce_odr i64 @kokoro_tvm_next(ptr %counter) alwaysinline nounwind {
  %n = atomicrmw add ptr %counter, i64 1 monotonic
  ret i64 %n
}
"""
"""What a kernel has to import (``pragma_import_llvm``) that calls ``parallel_tasks``."""


def parallel_tasks(count: Expr, taken: T.Buffer, work: Callable[[Expr], None]) -> None:
    """Calls ``work(task)`` for ``count`` tasks, in parallel.

    Args:
        count: Tasks.
        taken: int64 [RUNS + 1], for the number of tasks taken from each run, and whether all are.
        work: Does one.
    """
    with T.serial(0, RUNS + 1) as run:
        T.buffer_store(taken, T.int64(0), [run])
    with T.parallel(0, RUNS) as own:
        task = T.alloc_buffer((1,), "int64")
        with T.If(taken[RUNS] == 0):
            with T.Then():
                with T.serial(0, RUNS) as step:
                    run = (own + step) % RUNS
                    begin, end = (T.cast(r, "int64") * count // RUNS for r in (run, run + 1))

                    def take(run: Expr = run, begin: Expr = begin) -> None:
                        following = T.call_extern("int64", "kokoro_tvm_next", T.address_of(taken[run]))
                        T.buffer_store(task, begin + following, [0])

                    with T.If(taken[run] < end - begin):
                        with T.Then():
                            take()
                            with T.While(task[0] < end):
                                work(task[0])
                                take()
                T.buffer_store(taken, T.int64(1), [RUNS])
