"""Length-aware layer normalisation over the channels of [time, channel] rows.

What it is: mean and biased variance of each row in two passes, weight and bias, and an optional leaky ReLU. What it is not: the
normalisation over time of AdaIN.

Shapes: x and y [B, T, C], lengths [B] int64. Rows beyond the valid length are neither read nor written. A row is summed in a
fixed order that depends on the channels and the tile only.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels import vector_math
from kokoro_tvm.kernels.script import macro
from kokoro_tvm.kernels.tile import Tile
from kokoro_tvm.kernels.vector_math import Expr

TOLERANCE = 3e-7
"""Largest error relative to the largest output: one rounding of a float64 result, or of its sum with a bias."""


def vector_step(channels: int, tile: Tile) -> int:
    """Channels per vector operation: up to four registers, so that partial sums do not wait for each other."""
    return next((n * tile.lanes for n in (4, 2) if channels % (n * tile.lanes) == 0), tile.lanes)


def _total(partial: list[Expr]) -> Expr:
    """Pairwise sum, a balanced tree."""
    while len(partial) > 1:
        partial = [a + b for a, b in zip(partial[::2], partial[1::2], strict=True)]
    return partial[0]


def row_moments(channels: int, step: int, eps: float) -> Callable:
    """A macro ``moments(X, b, t, partial, stats)``: ``stats`` becomes mean and 1 / sqrt(variance + eps) of the row ``X[b, t]``.

    In float64: ``partial`` is scratch of ``step`` values, ``stats`` holds two.
    """
    body, tail = channels // step, channels % step

    @macro
    def moments(X, b, t, partial, stats):
        for j in T.vectorized(step):
            partial[j] = T.float64(0)
        for c in range(body):
            for j in T.vectorized(step):
                partial[j] = partial[j] + T.cast(X[b, t, c * step + j], "float64")
        stats[0] = _total([partial[j] for j in range(step)])
        for j in range(tail):
            stats[0] = stats[0] + T.cast(X[b, t, body * step + j], "float64")
        stats[0] = stats[0] * T.float64(1 / channels)
        for j in T.vectorized(step):
            partial[j] = T.float64(0)
        for c in range(body):
            for j in T.vectorized(step):
                partial[j] = T.fma(
                    T.cast(X[b, t, c * step + j], "float64") - stats[0],
                    T.cast(X[b, t, c * step + j], "float64") - stats[0],
                    partial[j],
                )
        stats[1] = _total([partial[j] for j in range(step)])
        for j in range(tail):
            stats[1] = T.fma(
                T.cast(X[b, t, body * step + j], "float64") - stats[0],
                T.cast(X[b, t, body * step + j], "float64") - stats[0],
                stats[1],
            )
        stats[1] = T.float64(1) / T.sqrt(T.fma(stats[1], T.float64(1 / channels), T.float64(eps)))

    return moments


def _finish(x: Expr, mean: Expr, inverse: Expr, weight: Expr, bias: Expr, slope: float | None) -> Expr:
    y = T.cast(T.fma((T.cast(x, "float64") - mean) * inverse, T.cast(weight, "float64"), T.cast(bias, "float64")), "float32")
    return y if slope is None else vector_math.leaky_relu(y, slope)


def kernel(channels: int, eps: float, slope: float | None, tile: Tile) -> PrimFunc:
    """Builds the PrimFunc; a leaky ReLU of ``slope`` follows unless it is None.

    Returns:
        ``f(x, lengths, weight, bias, y)`` with weight and bias [C].
    """
    step = vector_step(channels, tile)
    body, tail = channels // step, channels % step
    moments = row_moments(channels, step, eps)

    @T.prim_func
    def layer_norm(x_h: T.handle, lengths_h: T.handle, weight_h: T.handle, bias_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        B = T.int64()
        N = T.int64()
        X = T.match_buffer(x_h, (B, N, channels), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        weight = T.match_buffer(weight_h, (channels,), "float32")
        bias = T.match_buffer(bias_h, (channels,), "float32")
        Y = T.match_buffer(y_h, (B, N, channels), "float32")
        for b in range(B):
            n: T.int64 = L[b]
            for t in T.parallel(n):
                partial = T.alloc_buffer((step,), "float64", scope="local")
                stats = T.alloc_buffer((2,), "float64", scope="local")
                moments(X, b, t, partial, stats)
                for c in range(body):
                    for j in T.vectorized(step):
                        Y[b, t, c * step + j] = _finish(
                            X[b, t, c * step + j], stats[0], stats[1], weight[c * step + j], bias[c * step + j], slope
                        )
                for j in range(tail):
                    Y[b, t, body * step + j] = _finish(
                        X[b, t, body * step + j], stats[0], stats[1], weight[body * step + j], bias[body * step + j], slope
                    )

    return layer_norm


def reference(
    x: np.ndarray, lengths: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float, slope: float | None = None
) -> list[np.ndarray]:
    """The kernel in NumPy float64, one array [valid rows, C] per sample."""
    outputs = []
    for b, n in enumerate(lengths):
        v = x[b, :n].astype(np.float64)
        y = (v - v.mean(-1, keepdims=True)) / np.sqrt(v.var(-1, keepdims=True) + eps) * weight + bias
        outputs.append(y if slope is None else np.where(y > 0, y, slope * y))
    return outputs
