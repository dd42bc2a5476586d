"""Adaptive instance normalisation, reduced to one scale and one shift per channel.

What it is: the statistics over valid time rows, folded with the norm's own affine and with the style's (gamma, beta), so that a
convolution can apply all of it in its prologue: ``AdaIN(x) = scale * x + shift`` (kokoro ``istftnet.py``: ``AdaIN1d``).
What it is not: a pass that writes the normalised signal.

Statistics are taken in chunks of ``CHUNK`` rows, in one pass each over the deviations from the mean of the chunk's first rows,
and combined in float64: ``E[x^2] - E[x]^2`` would cancel. The chunks start at row 0 whatever the capacity or thread count, so
the result is bit-identical.
"""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels.script import macro
from kokoro_tvm.kernels.tile import Tile

TOLERANCE = 1e-6
"""Relative error of scale and shift (against the largest): a chunk's float32 sum of 256 values, the rest is float64."""

CHUNK = 256
FIRST = 16
"""Rows whose mean stands in for that of a chunk: far enough from no value to cost digits."""
EPSILON = 1e-5


def kernel(channels: int, tile: Tile) -> PrimFunc:
    """Builds the PrimFunc.

    Args:
        channels: C.
        tile: For the vector width.

    Returns:
        ``f(x [B, T, C], lengths [B], affine [B, S], weight [C], bias [C], offset, coef [B, 2, C])``. ``affine`` holds the
        style's projections for every norm of a component; this norm's gamma starts at column ``offset`` (an int64 scalar,
        so that all norms of one width share a kernel), its beta C columns later. ``coef[:, 0]`` is the scale.
    """
    lanes = tile.lanes
    # As much of a row as fits 1024 bytes, the most that TVM has on the stack: memory is read twice as fast in one piece, and the
    # vectors that find no register cost less.
    vectors = next(v for v in range(256 // lanes, 0, -1) if channels // lanes % v == 0)
    width = lanes * vectors
    body, tail = channels // width, channels % width
    float64 = "float64"
    together = lanes if channels % lanes == 0 else 1

    @macro
    def moments(count, size, b, chunk, first, rows, c0, X, mean, spread):
        """Mean and sum of squared deviations of ``count * size`` channels from ``c0`` on, over the rows of a chunk."""
        centre = T.alloc_buffer((count * size,), "float32")
        total = T.alloc_buffer((count * size,), "float32")
        squares = T.alloc_buffer((count * size,), "float32")
        few: T.let[T.int64] = T.min(rows, FIRST)
        for v in T.unroll(count):
            for j in T.vectorized(size):
                centre[v * size + j] = T.float32(0)
            for j in T.vectorized(size):
                total[v * size + j] = T.float32(0)
            for j in T.vectorized(size):
                squares[v * size + j] = T.float32(0)
        for r in range(few):
            for v in T.unroll(count):
                for j in T.vectorized(size):
                    centre[v * size + j] += X[b, first + r, c0 + v * size + j]
        for v in T.unroll(count):
            for j in T.vectorized(size):
                centre[v * size + j] = centre[v * size + j] / T.cast(few, "float32")
        for r in range(rows):
            for v in T.unroll(count):
                off = T.alloc_buffer((size,), "float32")
                for j in T.vectorized(size):
                    off[j] = X[b, first + r, c0 + v * size + j] - centre[v * size + j]
                for j in T.vectorized(size):
                    total[v * size + j] += off[j]
                for j in T.vectorized(size):
                    squares[v * size + j] = T.fma(off[j], off[j], squares[v * size + j])
        for v in T.unroll(count):
            for j in T.vectorized(size):
                mean[chunk, c0 + v * size + j] = centre[v * size + j] + total[v * size + j] / T.cast(rows, "float32")
            for j in T.vectorized(size):
                spread[chunk, c0 + v * size + j] = T.fma(
                    total[v * size + j], -total[v * size + j] / T.cast(rows, "float32"), squares[v * size + j]
                )

    @T.prim_func
    def adain(
        x_h: T.handle, lengths_h: T.handle, affine_h: T.handle, weight_h: T.handle, bias_h: T.handle, offset: T.int64,
        coef_h: T.handle,
    ):
        T.func_attr({"tirx.noalias": True})
        B = T.int64()
        T_in = T.int64()
        S = T.int64()
        X = T.match_buffer(x_h, (B, T_in, channels), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        affine = T.match_buffer(affine_h, (B, S), "float32")
        weight = T.match_buffer(weight_h, (channels,), "float32")
        bias = T.match_buffer(bias_h, (channels,), "float32")
        coef = T.match_buffer(coef_h, (B, 2, channels), "float32")
        mean = T.alloc_buffer(((T_in + CHUNK - 1) // CHUNK, channels), "float32")
        spread = T.alloc_buffer(((T_in + CHUNK - 1) // CHUNK, channels), "float32")
        for b in range(B):
            n: T.let[T.int64] = L[b]
            chunks: T.let[T.int64] = (n + CHUNK - 1) // CHUNK
            half: T.let[T.int64] = (chunks + 1) // 2
            for task in T.parallel(chunks):
                # Each thread of two goes backwards: what the layer before wrote last is still in its cache, and what the next
                # layer reads first will be.
                chunk: T.let[T.int64] = T.if_then_else(task < half, half - 1 - task, chunks - 1 - (task - half))
                first: T.let[T.int64] = chunk * CHUNK
                rows: T.let[T.int64] = T.min(n - first, CHUNK)
                for c in range(body):
                    moments(vectors, lanes, b, chunk, first, rows, c * width, X, mean, spread)
                for c in range(tail):
                    moments(1, 1, b, chunk, first, rows, body * width + c, X, mean, spread)
            for block in range(channels // together):
                whole = T.alloc_buffer((2, together), "float64")
                for j in T.vectorized(together):
                    whole[0, j] = T.float64(0)
                for j in T.vectorized(together):
                    whole[1, j] = T.float64(0)
                for chunk in range(chunks):
                    weight_of: T.let[T.float64] = T.cast(T.min(n - chunk * CHUNK, CHUNK), float64)
                    for j in T.vectorized(together):
                        whole[0, j] += T.cast(mean[chunk, block * together + j], float64) * weight_of
                for j in T.vectorized(together):
                    whole[0, j] = whole[0, j] / T.cast(n, float64)
                for chunk in range(chunks):
                    weight_of: T.let[T.float64] = T.cast(T.min(n - chunk * CHUNK, CHUNK), float64)
                    for j in T.vectorized(together):
                        whole[1, j] += T.cast(spread[chunk, block * together + j], float64) + weight_of * (
                            T.cast(mean[chunk, block * together + j], float64) - whole[0, j]
                        ) * (T.cast(mean[chunk, block * together + j], float64) - whole[0, j])
                for j in range(together):
                    c: T.let[T.int64] = T.int64(block * together + j)
                    gain: T.let[T.float64] = T.float64(1) + T.cast(affine[b, offset + c], float64)
                    scale: T.let[T.float64] = (
                        gain * T.cast(weight[c], float64) / T.sqrt(whole[1, j] / T.cast(n, float64) + T.float64(EPSILON))
                    )
                    coef[b, 0, c] = T.cast(scale, "float32")
                    coef[b, 1, c] = T.cast(
                        gain * T.cast(bias[c], float64) + T.cast(affine[b, offset + channels + c], float64) - scale * whole[0, j],
                        "float32",
                    )

    return adain


def reference(
    x: np.ndarray, lengths: np.ndarray, affine: np.ndarray, offset: int, weight: np.ndarray, bias: np.ndarray
) -> np.ndarray:
    """The kernel in NumPy float64: coef [B, 2, C]."""
    channels = x.shape[-1]
    coef = np.empty((len(x), 2, channels))
    for b, n in enumerate(lengths):
        v = x[b, :n].astype(np.float64)
        gain = 1 + affine[b, offset : offset + channels].astype(np.float64)
        coef[b, 0] = gain * weight / np.sqrt(v.var(axis=0) + EPSILON)
        coef[b, 1] = gain * bias + affine[b, offset + channels : offset + 2 * channels] - coef[b, 0] * v.mean(axis=0)
    return coef
