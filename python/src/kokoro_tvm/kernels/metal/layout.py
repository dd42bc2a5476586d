"""``kernels.layout`` for Metal: transposition and masking.

A transposition goes through tiles in thread-group memory, so that both sides move whole lines. Every value is a copy.
"""

from __future__ import annotations

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels.metal.tile import GROUPS, SIMD, Tile

_PITCH = SIMD + 1
"""Floats of a tile's row: one more than it holds, so that a column touches every memory bank."""


def to_rows(channels: int, tile: Tile) -> PrimFunc:
    """Builds ``f(x [B, C, T], lengths, y [B, T, C])``: transposition, nothing beyond the valid length."""

    @T.prim_func
    def to_rows(x_h: T.handle, lengths_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        B = T.int32()
        N = T.int32()
        X = T.match_buffer(x_h, (B, channels, N), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        Y = T.match_buffer(y_h, (B, N, channels), "float32")
        row_tile = T.launch_thread("blockIdx.x", (N + SIMD - 1) // SIMD)
        column_tile = T.launch_thread("blockIdx.y", (channels + SIMD - 1) // SIMD)
        b = T.launch_thread("blockIdx.z", B)
        lane = T.launch_thread("threadIdx.x", SIMD)
        group = T.launch_thread("threadIdx.y", GROUPS)
        S = T.alloc_buffer((SIMD * _PITCH,), "float32", scope="shared")
        n: T.int32 = T.cast(L[b], "int32")
        t0: T.int32 = row_tile * SIMD
        c0: T.int32 = column_tile * SIMD
        if t0 < n:
            for i in range(SIMD // GROUPS):
                if t0 + lane < n and c0 + i * GROUPS + group < channels:
                    S[(i * GROUPS + group) * _PITCH + lane] = X[b, c0 + i * GROUPS + group, t0 + lane]
            T.tvm_storage_sync("shared")
            for i in range(SIMD // GROUPS):
                if t0 + i * GROUPS + group < n and c0 + lane < channels:
                    Y[b, t0 + i * GROUPS + group, c0 + lane] = S[lane * _PITCH + i * GROUPS + group]

    return to_rows


def to_columns(channels: int, tile: Tile) -> PrimFunc:
    """Builds ``f(x [B, T, C], lengths, y [B, C, T])``: transposition, zero beyond the valid length."""

    @T.prim_func
    def to_columns(x_h: T.handle, lengths_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        B = T.int32()
        N = T.int32()
        X = T.match_buffer(x_h, (B, N, channels), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        Y = T.match_buffer(y_h, (B, channels, N), "float32")
        row_tile = T.launch_thread("blockIdx.x", (N + SIMD - 1) // SIMD)
        column_tile = T.launch_thread("blockIdx.y", (channels + SIMD - 1) // SIMD)
        b = T.launch_thread("blockIdx.z", B)
        lane = T.launch_thread("threadIdx.x", SIMD)
        group = T.launch_thread("threadIdx.y", GROUPS)
        S = T.alloc_buffer((SIMD * _PITCH,), "float32", scope="shared")
        n: T.int32 = T.cast(L[b], "int32")
        t0: T.int32 = row_tile * SIMD
        c0: T.int32 = column_tile * SIMD
        for i in range(SIMD // GROUPS):
            if t0 + i * GROUPS + group < n and c0 + lane < channels:
                S[(i * GROUPS + group) * _PITCH + lane] = X[b, t0 + i * GROUPS + group, c0 + lane]
            else:
                S[(i * GROUPS + group) * _PITCH + lane] = T.float32(0)
        T.tvm_storage_sync("shared")
        for i in range(SIMD // GROUPS):
            if t0 + lane < N and c0 + i * GROUPS + group < channels:
                Y[b, c0 + i * GROUPS + group, t0 + lane] = S[lane * _PITCH + i * GROUPS + group]

    return to_columns


def mask_rows(channels: int, tile: Tile) -> PrimFunc:
    """Builds ``f(x [B, T, C], lengths, y [B, T, C])``: a copy, zero beyond the valid length."""

    @T.prim_func
    def mask_rows(x_h: T.handle, lengths_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        B = T.int32()
        N = T.int32()
        X = T.match_buffer(x_h, (B, N, channels), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        Y = T.match_buffer(y_h, (B, N, channels), "float32")
        block = T.launch_thread("blockIdx.x", (N + GROUPS - 1) // GROUPS)
        b = T.launch_thread("blockIdx.y", B)
        lane = T.launch_thread("threadIdx.x", SIMD)
        group = T.launch_thread("threadIdx.y", GROUPS)
        n: T.int32 = T.cast(L[b], "int32")
        t: T.int32 = block * GROUPS + group
        if t < N:
            for i in range((channels + SIMD - 1) // SIMD):
                if i * SIMD + lane < channels:
                    if t < n:
                        Y[b, t, i * SIMD + lane] = X[b, t, i * SIMD + lane]
                    else:
                        Y[b, t, i * SIMD + lane] = T.float32(0)

    return mask_rows
