"""Macros that are expanded without a search for source lines."""

import inspect

import numpy as np
import pytest
from tvm.script import tirx as T

from kokoro_tvm.kernels.script import macro


def _kernel(offset: float):
    @macro
    def add(Y, i, value):
        Y[i] = Y[i] + value * T.float32(offset)

    @T.prim_func
    def kernel(x_h: T.handle, y_h: T.handle):
        X = T.match_buffer(x_h, (4,), "float32")
        Y = T.match_buffer(y_h, (4,), "float32")
        for i in range(4):
            offset: T.let[T.float32] = X[i]  # the macro's name means what it means where the macro is defined
            Y[i] = offset
            add(Y, i, offset)

    return kernel


def test_names_are_those_of_the_definition(host_harness):
    x = host_harness.normal(4)
    for offset in (2.0, 3.0):
        y = host_harness.run(host_harness.build(_kernel(offset)), x, np.zeros(4, np.float32))
        assert np.allclose(y, x * (1 + offset))


def test_no_source_lines_are_fetched(monkeypatch):
    """The decorator of the function still does, once; a macro's use must not."""
    calls = []
    original = inspect.getouterframes
    monkeypatch.setattr(inspect, "getouterframes", lambda *a, **k: calls.append(a) or original(*a, **k))
    _kernel(2.0)
    assert len(calls) <= 1


def test_outside_of_a_kernel():
    @macro
    def nothing():
        T.evaluate(0)

    with pytest.raises(RuntimeError, match="not available"):
        nothing()
