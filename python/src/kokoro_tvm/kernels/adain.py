"""Adaptive instance normalisation, reduced to one scale and one shift per channel.

What it is: the statistics over valid time rows, folded with the norm's own affine and with the style's (gamma, beta), so that a
convolution can apply all of it in its prologue: ``AdaIN(x) = scale * x + shift`` (kokoro ``istftnet.py``: ``AdaIN1d``).
What it is not: a pass that writes the normalised signal.

Statistics are taken in chunks of ``CHUNK`` rows, two passes each (mean, then squared deviations), and combined in
float64: ``E[x^2] - E[x]^2`` would cancel. The chunks start at row 0 whatever the capacity or thread count, so the result is
bit-identical.
"""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels.tile import Tile

TOLERANCE = 1e-6
"""Relative error of scale and shift (against the largest): a chunk's float32 sum of 256 values, the rest is float64."""

CHUNK = 256
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
    vectors = 4 if channels % (4 * lanes) == 0 else 1
    width = lanes * vectors
    body, tail = channels // width, channels % width
    float64 = "float64"

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
            n: T.int64 = L[b]
            for chunk in T.parallel((n + CHUNK - 1) // CHUNK):
                first: T.int64 = chunk * CHUNK
                rows: T.int64 = T.min(n - first, CHUNK)
                for c in range(body):
                    total = T.alloc_buffer((width,), "float32", scope="local")
                    centre = T.alloc_buffer((width,), "float32", scope="local")
                    for v in T.unroll(vectors):
                        for j in T.vectorized(lanes):
                            total[v * lanes + j] = T.float32(0)
                    for r in range(rows):
                        for v in T.unroll(vectors):
                            for j in T.vectorized(lanes):
                                total[v * lanes + j] += X[b, first + r, c * width + v * lanes + j]
                    for v in T.unroll(vectors):
                        for j in T.vectorized(lanes):
                            centre[v * lanes + j] = total[v * lanes + j] / T.cast(rows, "float32")
                            total[v * lanes + j] = T.float32(0)
                    for r in range(rows):
                        for v in T.unroll(vectors):
                            for j in T.vectorized(lanes):
                                total[v * lanes + j] = T.fma(
                                    X[b, first + r, c * width + v * lanes + j] - centre[v * lanes + j],
                                    X[b, first + r, c * width + v * lanes + j] - centre[v * lanes + j],
                                    total[v * lanes + j],
                                )
                    for v in T.unroll(vectors):
                        for j in T.vectorized(lanes):
                            mean[chunk, c * width + v * lanes + j] = centre[v * lanes + j]
                            spread[chunk, c * width + v * lanes + j] = total[v * lanes + j]
                for c in range(tail):
                    one = T.alloc_buffer((2,), "float32", scope="local")
                    one[0] = T.float32(0)
                    for r in range(rows):
                        one[0] += X[b, first + r, body * width + c]
                    one[0] = one[0] / T.cast(rows, "float32")
                    one[1] = T.float32(0)
                    for r in range(rows):
                        one[1] = T.fma(
                            X[b, first + r, body * width + c] - one[0], X[b, first + r, body * width + c] - one[0], one[1]
                        )
                    mean[chunk, body * width + c] = one[0]
                    spread[chunk, body * width + c] = one[1]
            for c in range(channels):
                whole = T.alloc_buffer((2,), "float64", scope="local")
                whole[0] = T.float64(0)
                whole[1] = T.float64(0)
                for chunk in range((n + CHUNK - 1) // CHUNK):
                    whole[0] += T.cast(mean[chunk, c], float64) * T.cast(T.min(n - chunk * CHUNK, CHUNK), float64)
                whole[0] = whole[0] / T.cast(n, float64)
                for chunk in range((n + CHUNK - 1) // CHUNK):
                    off: T.float64 = T.cast(mean[chunk, c], float64) - whole[0]
                    whole[1] += T.cast(spread[chunk, c], float64) + off * off * T.cast(T.min(n - chunk * CHUNK, CHUNK), float64)
                gain: T.float64 = T.float64(1) + T.cast(affine[b, offset + c], float64)
                scale: T.float64 = (
                    gain * T.cast(weight[c], float64) / T.sqrt(whole[1] / T.cast(n, float64) + T.float64(EPSILON))
                )
                coef[b, 0, c] = T.cast(scale, "float32")
                coef[b, 1, c] = T.cast(
                    gain * T.cast(bias[c], float64) + T.cast(affine[b, offset + channels + c], float64) - scale * whole[0],
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
