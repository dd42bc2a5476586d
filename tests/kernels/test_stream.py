"""Stores past the caches: vectors of several widths in one library, and what other threads see of them."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from kokoro_tvm.kernels.shares import LLVM, RUNS, parallel_tasks
from kokoro_tvm.kernels.stream import llvm, stream

ROW = 64
LANES = (4, 8, 16)


def _copy(lanes: int):
    def row(task, X, Y):
        with T.serial(0, ROW // lanes) as v:
            stream(lanes, Y[task, v * lanes], X[task, T.ramp(v * lanes, 1, lanes)])

    @T.prim_func
    def copy(x_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        rows = T.int64()
        X = T.match_buffer(x_h, (rows, ROW), "float32")
        Y = T.match_buffer(y_h, (rows, ROW), "float32")
        T.attr(0, "pragma_import_llvm", LLVM + llvm(lanes))
        taken = T.alloc_buffer((RUNS + 1,), "int64")
        parallel_tasks(rows, taken, lambda task: row(task, X, Y))

    return copy


@pytest.fixture(scope="module")
def library(harness):
    return harness.library({f"copy{lanes}": _copy(lanes) for lanes in LANES})


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("rows", [1, 63, 5000])
def test_every_value_arrives(library, lanes, rows):
    """The caller reads what several threads wrote as soon as they are done."""
    for seed in range(20):
        x = np.random.default_rng(seed).standard_normal((rows, ROW)).astype(np.float32)
        y = tvm.runtime.tensor(np.zeros_like(x))
        library[f"copy{lanes}"](tvm.runtime.tensor(x), y)
        np.testing.assert_array_equal(y.numpy(), x)
