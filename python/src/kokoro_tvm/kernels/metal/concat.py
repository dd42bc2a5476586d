"""``kernels.concat`` for Metal: one SIMD group per row."""

from __future__ import annotations

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels.concat import widths
from kokoro_tvm.kernels.metal.tile import GROUPS, SIMD, Tile
from kokoro_tvm.kernels.prune import keep_parameters
from kokoro_tvm.kernels.script import macro


def kernel(channels: tuple[int, ...], tile: Tile) -> PrimFunc:
    """Builds the PrimFunc.

    Returns:
        ``f(x0, x1, [x2, [x3]], lengths, y)``.

    Raises:
        ValueError: Not two to four inputs.
    """
    count = len(channels)
    c0, c1, c2, c3 = widths(channels)

    @macro
    def copy(X, Y, b, t, lane, width, first):
        for i in range((width + SIMD - 1) // SIMD):
            if i * SIMD + lane < width:
                Y[b, t, first + i * SIMD + lane] = X[b, t, i * SIMD + lane]

    @T.prim_func
    def concat(x0_h: T.handle, x1_h: T.handle, x2_h: T.handle, x3_h: T.handle, lengths_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        B = T.int32()
        N = T.int32()
        X0 = T.match_buffer(x0_h, (B, N, c0), "float32")
        X1 = T.match_buffer(x1_h, (B, N, c1), "float32")
        X2 = T.match_buffer(x2_h, (B, N, c2), "float32")
        X3 = T.match_buffer(x3_h, (B, N, c3), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        Y = T.match_buffer(y_h, (B, N, c0 + c1 + c2 + c3), "float32")
        block = T.launch_thread("blockIdx.x", (N + GROUPS - 1) // GROUPS)
        b = T.launch_thread("blockIdx.y", B)
        lane = T.launch_thread("threadIdx.x", SIMD)
        group = T.launch_thread("threadIdx.y", GROUPS)
        t: T.int32 = block * GROUPS + group
        if t < T.cast(L[b], "int32"):
            copy(X0, Y, b, t, lane, c0, 0)
            copy(X1, Y, b, t, lane, c1, c0)
            if count > 2:
                copy(X2, Y, b, t, lane, c2, c0 + c1)
            if count > 3:
                copy(X3, Y, b, t, lane, c3, c0 + c1 + c2)

    return keep_parameters(concat, lambda name: name not in ("X0", "X1", "X2", "X3")[count:])
