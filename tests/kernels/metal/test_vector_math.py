"""Elementary functions as statements: errors over the whole argument range."""

from __future__ import annotations

import numpy as np
import pytest
from tvm.script import tirx as T

from kokoro_tvm.kernels.metal import vector_math
from kokoro_tvm.kernels.script import macro

COUNT = 1 << 14


def _unary(function):
    @T.prim_func
    def kernel(x_h: T.handle, y_h: T.handle):
        N = T.int32()
        X = T.match_buffer(x_h, (N,), "float32")
        Y = T.match_buffer(y_h, (N,), "float32")
        block = T.launch_thread("blockIdx.x", N // 256)
        lane = T.launch_thread("threadIdx.x", 256)
        function(Y, block * 256 + lane, X[block * 256 + lane])

    return kernel


@macro
def _sin_turns(out, i, x):
    scratch = T.alloc_buffer((1,), "float32", scope="local")
    vector_math.sin_cos_turns(out, i, scratch, 0, x)


@macro
def _cos_turns(out, i, x):
    scratch = T.alloc_buffer((1,), "float32", scope="local")
    vector_math.sin_cos_turns(scratch, 0, out, i, x)


def _gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


CASES = {
    "sin_squared": (vector_math.sin_squared, lambda x: np.sin(x) ** 2, (-300, 300), 3e-7, 1),
    "sin_half_turn": (vector_math.sin_half_turn, lambda x: np.sin(np.pi * x), (-0.5, 0.5), 2e-7, 1),
    "sin_turns": (_sin_turns, lambda x: np.sin(2 * np.pi * x), (-0.5, 0.5), 8e-7, 1),
    "cos_turns": (_cos_turns, lambda x: np.cos(2 * np.pi * x), (-0.5, 0.5), 8e-7, 1),
    "turns": (vector_math.turns, lambda x: x / (2 * np.pi) - np.round(x / (2 * np.pi)), (-1e3, 1e3), 8e-8, 1),
    "exp": (vector_math.exp, np.exp, (-87, 87), 3e-7, None),
    "sigmoid": (vector_math.sigmoid, lambda x: 1 / (1 + np.exp(-x)), (-80, 80), 5e-7, None),
    "tanh": (vector_math.tanh, np.tanh, (-12, 12), 5e-7, None),
    "gelu": (vector_math.gelu, _gelu, (-12, 12), 3e-7, 12),
}
"""Macro, truth, range, error and what it is relative to (None: the value)."""


@pytest.mark.parametrize("name", CASES)
def test_error(harness, name):
    function, truth, (low, high), bound, scale = CASES[name]
    x = np.concatenate([np.linspace(low, high, COUNT // 2), harness.rng.uniform(-1, 1, COUNT // 2) ** 5 * high])
    x = np.clip(x, low, high).astype(np.float32)
    y = harness.run(harness.build(_unary(function)), x, np.zeros_like(x)).astype(np.float64)
    expected = truth(x.astype(np.float64))
    relative = np.maximum(np.abs(expected), 1e-37) if scale is None else scale
    assert (np.abs(y - expected) / relative).max() <= bound


def test_atan2(harness):
    @T.prim_func
    def kernel(y_h: T.handle, x_h: T.handle, z_h: T.handle):
        N = T.int32()
        Y = T.match_buffer(y_h, (N,), "float32")
        X = T.match_buffer(x_h, (N,), "float32")
        Z = T.match_buffer(z_h, (N,), "float32")
        block = T.launch_thread("blockIdx.x", N // 256)
        lane = T.launch_thread("threadIdx.x", 256)
        vector_math.atan2(Z, block * 256 + lane, Y[block * 256 + lane], X[block * 256 + lane])

    angle = np.linspace(-np.pi, np.pi, COUNT)
    radius = 10 ** harness.rng.uniform(-15, 15, COUNT)
    y, x = (radius * np.sin(angle)).astype(np.float32), (radius * np.cos(angle)).astype(np.float32)
    y[:4], x[:4] = (0, 0, 1, -1), (-1, 0, 0, 0)
    z = harness.run(harness.build(kernel), y, x, np.zeros_like(y)).astype(np.float64)
    expected = np.arctan2(y.astype(np.float64), x.astype(np.float64))
    assert np.abs(z - expected).max() <= 4e-7
    assert (np.abs(z - expected) / np.maximum(np.abs(expected), 1e-30)).max() <= 3e-7
    np.testing.assert_array_equal(z[:4], np.float32([np.pi, 0, np.pi / 2, -np.pi / 2]))


def test_saturation(harness):
    x = np.full(256, 1e30, np.float32)
    x[::2] = -1e30
    for function, (low, high) in {
        vector_math.exp: (np.exp(-87), np.exp(87)), vector_math.tanh: (-1, 1), vector_math.sigmoid: (np.exp(-87), 1)
    }.items():  # fmt: skip
        y = harness.run(harness.build(_unary(function)), x, np.zeros_like(x))
        np.testing.assert_allclose(y[:2], [low, high], rtol=1e-6)
