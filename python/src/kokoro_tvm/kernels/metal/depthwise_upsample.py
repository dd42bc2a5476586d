"""``kernels.depthwise_upsample`` for Metal: one SIMD group per input row."""

from __future__ import annotations

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels import vector_math
from kokoro_tvm.kernels.metal.tile import GROUPS, SIMD, Tile
from kokoro_tvm.kernels.vector_math import Expr


def _activate(x: Expr, scale: Expr, shift: Expr, slope: float) -> Expr:
    return vector_math.leaky_relu(T.fma(x, scale, shift), slope)


def kernel(channels: int, slope: float, tile: Tile) -> PrimFunc:
    """Builds ``f(x [B, T, C], lengths [B], coef [B, 2, C], weight [3, C], bias [C], y [B, 2T, C])``, see the CPU's."""

    @T.prim_func
    def depthwise_upsample(
        x_h: T.handle, lengths_h: T.handle, coef_h: T.handle, weight_h: T.handle, bias_h: T.handle, y_h: T.handle
    ):
        T.func_attr({"tirx.noalias": True})
        B = T.int32()
        T_in = T.int32()
        T_out = T.int32()
        X = T.match_buffer(x_h, (B, T_in, channels), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        coef = T.match_buffer(coef_h, (B, 2, channels), "float32")
        W = T.match_buffer(weight_h, (3, channels), "float32")
        bias = T.match_buffer(bias_h, (channels,), "float32")
        Y = T.match_buffer(y_h, (B, T_out, channels), "float32")
        block = T.launch_thread("blockIdx.x", (T_in + GROUPS - 1) // GROUPS)
        b = T.launch_thread("blockIdx.y", B)
        lane = T.launch_thread("threadIdx.x", SIMD)
        group = T.launch_thread("threadIdx.y", GROUPS)
        n: T.int32 = T.cast(L[b], "int32")
        t: T.int32 = block * GROUPS + group
        value = T.alloc_buffer((2,), "float32", scope="local")
        if t < n:
            for i in range((channels + SIMD - 1) // SIMD):
                c: T.int32 = i * SIMD + lane
                if c < channels:
                    value[0] = _activate(X[b, t, c], coef[b, 0, c], coef[b, 1, c], slope)
                    value[1] = T.float32(0)
                    if t + 1 < n:
                        value[1] = _activate(X[b, t + 1, c], coef[b, 0, c], coef[b, 1, c], slope)
                    Y[b, 2 * t, c] = T.fma(value[0], W[1, c], bias[c])
                    Y[b, 2 * t + 1, c] = T.fma(value[1], W[0, c], T.fma(value[0], W[2, c], bias[c]))

    return depthwise_upsample
