"""``kernels.embed`` for Metal: one SIMD group per row."""

from __future__ import annotations

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels.metal.tile import GROUPS, SIMD, Tile
from kokoro_tvm.kernels.prune import keep_parameters
from kokoro_tvm.kernels.vector_math import Expr


def _sum(value: Expr, position: Expr, positions: bool) -> Expr:
    return value + position if positions else value


def kernel(channels: int, vocabulary: int, positions: bool, tile: Tile) -> PrimFunc:
    """Builds the PrimFunc.

    Returns:
        ``f(ids, lengths, table, [positions], y)``.
    """

    @T.prim_func
    def embed(ids_h: T.handle, lengths_h: T.handle, table_h: T.handle, positions_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        B = T.int32()
        N = T.int32()
        P = T.int32()
        ids = T.match_buffer(ids_h, (B, N), "int64")
        L = T.match_buffer(lengths_h, (B,), "int64")
        table = T.match_buffer(table_h, (vocabulary, channels), "float32")
        place = T.match_buffer(positions_h, (P, channels), "float32")
        Y = T.match_buffer(y_h, (B, N, channels), "float32")
        block = T.launch_thread("blockIdx.x", (N + GROUPS - 1) // GROUPS)
        b = T.launch_thread("blockIdx.y", B)
        lane = T.launch_thread("threadIdx.x", SIMD)
        group = T.launch_thread("threadIdx.y", GROUPS)
        t: T.int32 = block * GROUPS + group
        if t < T.cast(L[b], "int32"):
            token: T.int32 = T.cast(ids[b, t], "int32")
            for i in range((channels + SIMD - 1) // SIMD):
                if i * SIMD + lane < channels:
                    Y[b, t, i * SIMD + lane] = _sum(table[token, i * SIMD + lane], place[t, i * SIMD + lane], positions)

    return keep_parameters(embed, lambda name: positions or name != "place")
