"""``kernels.layer_norm`` for Metal: one SIMD group per row, two passes over it."""

from __future__ import annotations

from collections.abc import Callable

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels import vector_math
from kokoro_tvm.kernels.metal.intrinsics import simd_sum
from kokoro_tvm.kernels.metal.tile import GROUPS, SIMD, Tile
from kokoro_tvm.kernels.script import macro
from kokoro_tvm.kernels.vector_math import Expr


def row_moments(channels: int, eps: float) -> Callable:
    """A macro ``moments(X, b, t, lane, stats)``: ``stats`` becomes mean and 1 / sqrt(variance + eps) of the row ``X[b, t]``.

    All threads of a SIMD group work on the same row and get the same two values.
    """
    steps = -(-channels // SIMD)

    @macro
    def moments(X, b, t, lane, stats):
        stats[0] = T.float32(0)
        for i in range(steps):
            if i * SIMD + lane < channels:
                stats[0] = stats[0] + X[b, t, i * SIMD + lane]
        simd_sum(stats, 0)
        stats[0] = stats[0] * T.float32(1 / channels)
        stats[1] = T.float32(0)
        for i in range(steps):
            if i * SIMD + lane < channels:
                stats[1] = T.fma(X[b, t, i * SIMD + lane] - stats[0], X[b, t, i * SIMD + lane] - stats[0], stats[1])
        simd_sum(stats, 1)
        stats[1] = T.float32(1) / T.sqrt(T.fma(stats[1], T.float32(1 / channels), T.float32(eps)))

    return moments


def _finish(x: Expr, mean: Expr, inverse: Expr, weight: Expr, bias: Expr, slope: float | None) -> Expr:
    y = T.fma((x - mean) * inverse, weight, bias)
    return y if slope is None else vector_math.leaky_relu(y, slope)


def kernel(channels: int, eps: float, slope: float | None, tile: Tile) -> PrimFunc:
    """Builds the PrimFunc; a leaky ReLU of ``slope`` follows unless it is None.

    Returns:
        ``f(x, lengths, weight, bias, y)`` with weight and bias [C].
    """
    moments = row_moments(channels, eps)

    @T.prim_func
    def layer_norm(x_h: T.handle, lengths_h: T.handle, weight_h: T.handle, bias_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        B = T.int32()
        N = T.int32()
        X = T.match_buffer(x_h, (B, N, channels), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        weight = T.match_buffer(weight_h, (channels,), "float32")
        bias = T.match_buffer(bias_h, (channels,), "float32")
        Y = T.match_buffer(y_h, (B, N, channels), "float32")
        block = T.launch_thread("blockIdx.x", (N + GROUPS - 1) // GROUPS)
        b = T.launch_thread("blockIdx.y", B)
        lane = T.launch_thread("threadIdx.x", SIMD)
        group = T.launch_thread("threadIdx.y", GROUPS)
        t: T.int32 = block * GROUPS + group
        stats = T.alloc_buffer((2,), "float32", scope="local")
        if t < T.cast(L[b], "int32"):
            moments(X, b, t, lane, stats)
            for i in range((channels + SIMD - 1) // SIMD):
                if i * SIMD + lane < channels:
                    Y[b, t, i * SIMD + lane] = _finish(
                        X[b, t, i * SIMD + lane], stats[0], stats[1], weight[i * SIMD + lane], bias[i * SIMD + lane], slope
                    )

    return layer_norm
