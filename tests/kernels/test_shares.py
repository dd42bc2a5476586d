"""Every unit is in one block, blocks differ by one unit at most, and none has more than it may; every task is done once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tvm.script import tirx as T

from kokoro_tvm.kernels.script import macro
from kokoro_tvm.kernels.shares import LLVM, RUNS, block_begin, block_count, block_step, parallel_tasks

CASES = [(0, 4, 1), (1, 4, 1), (4, 4, 3), (5, 4, 2), (9, 4, 3), (1000, 7, 1), (10**6, 999, 3)]
"""Units, most of them in a block, tasks that a block is made of."""


def value(expression):
    return int(expression)


@pytest.mark.parametrize("turn", [0, 1])
@pytest.mark.parametrize(("units", "most", "others"), CASES)
def test_blocks(units, most, others, turn):
    blocks = value(block_count(T.int64(units), most, others))
    assert blocks % 2 == 0 or others % 2 == 0 or blocks == units
    step = value(block_step(T.int64(units), T.int64(blocks)))
    begins = [value(block_begin(T.int64(b), T.int64(blocks), T.int64(step), T.int64(turn))) for b in range(blocks + 1)]
    sizes = {end - begin for begin, end in itertools.pairwise(begins)}
    assert begins[0] == 0 and begins[-1] == units
    assert all(0 < size <= most for size in sizes)
    assert not sizes or max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("count", [0, 1, 2, RUNS - 1, RUNS, RUNS + 1, 1000])
def test_every_task_is_done_once(host_harness, count):
    @T.prim_func
    def count_tasks(count_h: T.handle, done_h: T.handle):
        number = T.match_buffer(count_h, (1,), "int64")
        done = T.match_buffer(done_h, (1001,), "int64")
        T.attr(0, "pragma_import_llvm", LLVM)
        taken = T.alloc_buffer((RUNS + 1,), "int64")
        for _ in range(2):
            parallel_tasks(number[0], taken, lambda task: T.buffer_store(done, done[task] + 1, [task]))

    kernel = host_harness.build(count_tasks)
    run = lambda: [host_harness.run(kernel, np.array([count]), np.zeros(1001, np.int64))]  # noqa: E731
    expected = np.repeat([2, 0], [count, 1001 - count])
    np.testing.assert_array_equal(run()[0], expected)
    np.testing.assert_array_equal(host_harness.one_thread(run)[0], expected)


def test_a_thread_takes_over_what_another_has_not_begun(host_harness):
    """The first task waits for all others, half of which were to be its own thread's."""
    count, patience = 16, 20_000_000

    @macro
    def work(task, marks, look, seen):
        if task == 0:
            seen[0] = T.int64(0)
            for other in range(1, count):
                # Looking at a mark adds one to it, as the task that it belongs to does.
                look[0] = T.int64(0)
                look[1] = T.int64(0)
                while look[0] < patience and look[1] == 0:
                    look[1] = T.call_extern("int64", "kokoro_tvm_next", T.address_of(marks[other])) - look[0]
                    look[0] = look[0] + 1
                seen[0] = seen[0] + look[1]
        else:
            T.evaluate(T.call_extern("int64", "kokoro_tvm_next", T.address_of(marks[task])))

    @T.prim_func
    def wait(marks_h: T.handle, seen_h: T.handle):
        marks = T.match_buffer(marks_h, (count,), "int64")
        seen = T.match_buffer(seen_h, (1,), "int64")
        T.attr(0, "pragma_import_llvm", LLVM)
        taken = T.alloc_buffer((RUNS + 1,), "int64")
        look = T.alloc_buffer((2,), "int64")
        parallel_tasks(T.int64(count), taken, lambda task: work(task, marks, look, seen))

    assert host_harness.run(host_harness.build(wait), np.zeros(count, np.int64), np.zeros(1, np.int64)) == [count - 1]
