"""``kernels.ada_layer_norm`` for Metal: one SIMD group per row."""

from __future__ import annotations

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels.metal import layer_norm
from kokoro_tvm.kernels.metal.tile import GROUPS, SIMD, Tile


def kernel(channels: int, style_dim: int, affine_size: int, offset: int, eps: float, tile: Tile) -> PrimFunc:
    """Builds the PrimFunc.

    Returns:
        ``f(x, lengths, affine, style, y)``, see the CPU's.

    Raises:
        ValueError: The affine is too narrow for the offset.
    """
    if offset < 0 or offset + 2 * channels > affine_size:
        raise ValueError(f"columns {offset} to {offset + 2 * channels} are not in an affine of {affine_size}")
    moments = layer_norm.row_moments(channels, eps)
    shift = offset + channels

    @T.prim_func
    def ada_layer_norm(x_h: T.handle, lengths_h: T.handle, affine_h: T.handle, style_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        B = T.int32()
        N = T.int32()
        X = T.match_buffer(x_h, (B, N, channels), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        affine = T.match_buffer(affine_h, (B, affine_size), "float32")
        style = T.match_buffer(style_h, (B, style_dim), "float32")
        Y = T.match_buffer(y_h, (B, N, channels + style_dim), "float32")
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
                    Y[b, t, i * SIMD + lane] = T.fma(
                        (X[b, t, i * SIMD + lane] - stats[0]) * stats[1],
                        affine[b, offset + i * SIMD + lane] + T.float32(1),
                        affine[b, shift + i * SIMD + lane],
                    )
            for i in range((style_dim + SIMD - 1) // SIMD):
                if i * SIMD + lane < style_dim:
                    Y[b, t, channels + i * SIMD + lane] = style[b, i * SIMD + lane]

    return ada_layer_norm
