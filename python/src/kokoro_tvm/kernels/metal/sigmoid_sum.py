"""``kernels.sigmoid_sum`` for Metal: one SIMD group per row."""

from __future__ import annotations

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels.metal import vector_math
from kokoro_tvm.kernels.metal.intrinsics import simd_sum
from kokoro_tvm.kernels.metal.tile import GROUPS, SIMD, Tile


def kernel(channels: int, tile: Tile) -> PrimFunc:
    """Builds the PrimFunc.

    Returns:
        ``f(x, lengths, y)``.
    """

    @T.prim_func
    def sigmoid_sum(x_h: T.handle, lengths_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        B = T.int32()
        N = T.int32()
        X = T.match_buffer(x_h, (B, N, channels), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        Y = T.match_buffer(y_h, (B, N), "float32")
        block = T.launch_thread("blockIdx.x", (N + GROUPS - 1) // GROUPS)
        b = T.launch_thread("blockIdx.y", B)
        lane = T.launch_thread("threadIdx.x", SIMD)
        group = T.launch_thread("threadIdx.y", GROUPS)
        t: T.int32 = block * GROUPS + group
        total = T.alloc_buffer((1,), "float32", scope="local")
        term = T.alloc_buffer((1,), "float32", scope="local")
        if t < N:
            total[0] = T.float32(0)
            if t < T.cast(L[b], "int32"):
                for i in range((channels + SIMD - 1) // SIMD):
                    if i * SIMD + lane < channels:
                        vector_math.sigmoid(term, 0, X[b, t, i * SIMD + lane])
                        total[0] = total[0] + term[0]
            simd_sum(total, 0)
            if lane == 0:
                Y[b, t] = total[0]

    return sigmoid_sum
