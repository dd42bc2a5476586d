"""Sum of sigmoids over the channels: a token's duration from its logits.

What it is: ``y[b, t] = sum over c of sigmoid(x[b, t, c])``, zero beyond the valid length. What it is not: the division by the
speed, nor the rounding.

Shapes: x [B, N, C], lengths [B] int64, y [B, N]. Rows of x beyond the valid length are never read; y is written up to its
capacity. A row is summed in a fixed order that depends on the channels and the tile only.
"""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels import vector_math
from kokoro_tvm.kernels.tile import Tile

TOLERANCE = 1e-6
"""Largest error relative to the largest output: 3 ulp per sigmoid, and a float32 sum of positive terms."""


def kernel(channels: int, tile: Tile) -> PrimFunc:
    """Builds the PrimFunc.

    Returns:
        ``f(x, lengths, y)``.
    """
    lanes = tile.lanes
    body, tail = channels // lanes, channels % lanes

    @T.prim_func
    def sigmoid_sum(x_h: T.handle, lengths_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        B = T.int64()
        N = T.int64()
        X = T.match_buffer(x_h, (B, N, channels), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        Y = T.match_buffer(y_h, (B, N), "float32")
        for b in range(B):
            n: T.int64 = L[b]
            for t in T.parallel(n):
                partial = T.alloc_buffer((lanes,), "float32", scope="local")
                total = T.alloc_buffer((1,), "float32", scope="local")
                for j in T.vectorized(lanes):
                    partial[j] = T.float32(0)
                for c in range(body):
                    for j in T.vectorized(lanes):
                        partial[j] = partial[j] + vector_math.sigmoid(X[b, t, c * lanes + j])
                total[0] = T.float32(0)
                for j in T.unroll(lanes):
                    total[0] = total[0] + partial[j]
                for j in range(tail):
                    total[0] = total[0] + vector_math.sigmoid(X[b, t, body * lanes + j])
                Y[b, t] = total[0]
            for t in range(N - n):
                Y[b, n + t] = T.float32(0)

    return sigmoid_sum


def reference(x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The kernel in NumPy float64: [B, N]."""
    y = np.zeros(x.shape[:2])
    for b, n in enumerate(lengths):
        y[b, :n] = (1 / (1 + np.exp(-x[b, :n].astype(np.float64)))).sum(-1)
    return y
