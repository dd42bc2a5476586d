"""Every unit is in one block, blocks differ by one unit at most, and none has more than it may."""

from __future__ import annotations

import itertools

import pytest
from tvm.script import tirx as T

from kokoro_tvm.kernels.shares import block_begin, block_count, block_step

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
