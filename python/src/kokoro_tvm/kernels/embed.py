"""Length-aware embedding look-up.

What it is: one table row per token, plus the row of its position if the model has position embeddings. What it is not: a check of
the ids: they must lie in the vocabulary, which the caller who makes them ensures.

Shapes: ids int64 [B, N], lengths int64 [B], table [V, C], positions [P, C] with P >= every length, y [B, N, C]. Ids beyond the
valid length are never read, rows beyond it never written.
"""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels.prune import keep_parameters
from kokoro_tvm.kernels.tile import Tile
from kokoro_tvm.kernels.vector_math import Expr

TOLERANCE = 6e-8
"""Largest error relative to the largest output: the one rounding of the sum; exact without positions."""


def _sum(value: Expr, position: Expr, positions: bool) -> Expr:
    return value + position if positions else value


def kernel(channels: int, vocabulary: int, positions: bool, tile: Tile) -> PrimFunc:
    """Builds the PrimFunc.

    Returns:
        ``f(ids, lengths, table, [positions], y)``.
    """
    body, tail = channels // tile.width, channels % tile.width
    width = tile.width

    @T.prim_func
    def embed(ids_h: T.handle, lengths_h: T.handle, table_h: T.handle, positions_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        B = T.int64()
        N = T.int64()
        P = T.int64()
        ids = T.match_buffer(ids_h, (B, N), "int64")
        L = T.match_buffer(lengths_h, (B,), "int64")
        table = T.match_buffer(table_h, (vocabulary, channels), "float32")
        place = T.match_buffer(positions_h, (P, channels), "float32")
        Y = T.match_buffer(y_h, (B, N, channels), "float32")
        for b in range(B):
            n: T.int64 = L[b]
            for t in T.parallel(n):
                token: T.int64 = ids[b, t]
                for c in range(body):
                    for j in T.vectorized(width):
                        Y[b, t, c * width + j] = _sum(table[token, c * width + j], place[t, c * width + j], positions)
                for j in range(tail):
                    Y[b, t, body * width + j] = _sum(
                        table[token, body * width + j], place[t, body * width + j], positions
                    )

    return keep_parameters(embed, lambda name: positions or name != "place")


def reference(
    ids: np.ndarray, lengths: np.ndarray, table: np.ndarray, positions: np.ndarray | None = None
) -> list[np.ndarray]:
    """The kernel in NumPy float64, one array [valid rows, C] per sample."""
    rows = [table[ids[b, :n]].astype(np.float64) for b, n in enumerate(lengths)]
    return rows if positions is None else [row + positions[: len(row)] for row in rows]
