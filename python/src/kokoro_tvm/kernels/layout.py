"""Between the model's [channel, time] tensors and the [time, channel] rows of the kernels.

What it is: transposition and masking, the two ends of every compiled component. What it is not: arithmetic; every value is a
copy.

Rows beyond the valid length are never read (they may hold NaN). ``to_rows`` leaves them unwritten, as every kernel does;
``to_columns`` and ``mask_rows`` make component outputs and write zeros up to the capacity.
"""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels.tile import Tile

TOLERANCE = 0.0
"""Copies are exact."""

LINE = 16
"""Time steps that one task transposes: one cache line of float32, read or written whole."""


def to_rows(channels: int, tile: Tile) -> PrimFunc:
    """Builds ``f(x [B, C, T], lengths, y [B, T, C])``: transposition, nothing beyond the valid length."""

    @T.prim_func
    def to_rows(x_h: T.handle, lengths_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        B = T.int64()
        N = T.int64()
        X = T.match_buffer(x_h, (B, channels, N), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        Y = T.match_buffer(y_h, (B, N, channels), "float32")
        for b in range(B):
            n: T.int64 = L[b]
            for task in T.parallel((n + LINE - 1) // LINE):
                for c in range(channels):
                    for j in range(T.min(n - task * LINE, LINE)):
                        Y[b, task * LINE + j, c] = X[b, c, task * LINE + j]

    return to_rows


def to_columns(channels: int, tile: Tile) -> PrimFunc:
    """Builds ``f(x [B, T, C], lengths, y [B, C, T])``: transposition, zero beyond the valid length."""

    @T.prim_func
    def to_columns(x_h: T.handle, lengths_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        B = T.int64()
        N = T.int64()
        X = T.match_buffer(x_h, (B, N, channels), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        Y = T.match_buffer(y_h, (B, channels, N), "float32")
        for b in range(B):
            n: T.int64 = L[b]
            for task in T.parallel((n + LINE - 1) // LINE):
                for c in range(channels):
                    for j in range(T.min(n - task * LINE, LINE)):
                        Y[b, c, task * LINE + j] = X[b, task * LINE + j, c]
            for c in range(channels):
                for t in range(N - n):
                    Y[b, c, n + t] = T.float32(0)

    return to_columns


def mask_rows(channels: int, tile: Tile) -> PrimFunc:
    """Builds ``f(x [B, T, C], lengths, y [B, T, C])``: a copy, zero beyond the valid length."""

    @T.prim_func
    def mask_rows(x_h: T.handle, lengths_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        B = T.int64()
        N = T.int64()
        X = T.match_buffer(x_h, (B, N, channels), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        Y = T.match_buffer(y_h, (B, N, channels), "float32")
        for b in range(B):
            n: T.int64 = L[b]
            for t in T.parallel(n):
                for c in range(channels):
                    Y[b, t, c] = X[b, t, c]
            for t in range(N - n):
                for c in range(channels):
                    Y[b, n + t, c] = T.float32(0)

    return mask_rows


def reference(x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """``x`` [B, T, C] with zeros beyond the valid length: ``mask_rows``, and the others up to the order of the axes."""
    y = np.zeros_like(x)
    for b, n in enumerate(lengths):
        y[b, :n] = x[b, :n]
    return y
