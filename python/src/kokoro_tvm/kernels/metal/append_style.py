"""``kernels.append_style`` for Metal: one SIMD group per row."""

from __future__ import annotations

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels.metal.tile import GROUPS, SIMD


def kernel(channels: int, style_dim: int) -> PrimFunc:
    """Builds ``f(x [B, N, C], lengths [B], style [B, D], y [B, N, C + D])``; rows beyond the lengths are not written."""

    @T.prim_func
    def append_style(x_h: T.handle, lengths_h: T.handle, style_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        B = T.int32()
        N = T.int32()
        X = T.match_buffer(x_h, (B, N, channels), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        style = T.match_buffer(style_h, (B, style_dim), "float32")
        Y = T.match_buffer(y_h, (B, N, channels + style_dim), "float32")
        block = T.launch_thread("blockIdx.x", (N + GROUPS - 1) // GROUPS)
        b = T.launch_thread("blockIdx.y", B)
        lane = T.launch_thread("threadIdx.x", SIMD)
        group = T.launch_thread("threadIdx.y", GROUPS)
        t: T.int32 = block * GROUPS + group
        if t < T.cast(L[b], "int32"):
            for i in range((channels + SIMD - 1) // SIMD):
                if i * SIMD + lane < channels:
                    Y[b, t, i * SIMD + lane] = X[b, t, i * SIMD + lane]
            for i in range((style_dim + SIMD - 1) // SIMD):
                if i * SIMD + lane < style_dim:
                    Y[b, t, channels + i * SIMD + lane] = style[b, i * SIMD + lane]

    return append_style
