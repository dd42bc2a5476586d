"""Length-aware multi-head self-attention.

What it is: softmax(q kᵀ / sqrt(head_dim)) v of every head, over the valid keys only. What it is not: the projections around it
(``conv1d`` with one tap), nor a memory-saving attention: a tile holds the scores of all keys, which 512 tokens allow.

Shapes: qkv [B, N, 3 * E] with E = heads * head_dim and the columns q, k, v, each head by head; lengths [B] int64, at most
``max_tokens``; y [B, N, E]. Rows beyond the valid length are neither read nor written.

Keys and values of a sample are first packed into panels as wide as the register tile (keys transposed, zero beyond the last), so
both products are the micro-kernel of ``conv1d``. Then each task takes one block of rows of one head. Every score is summed in the
order of the head's channels, every output in the order of the keys; all in float64, as the exponential turns the rounding of a
score into a relative error of its weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels import vector_math_f64
from kokoro_tvm.kernels.registers import each, registers, save
from kokoro_tvm.kernels.tile import Tile
from kokoro_tvm.kernels.vector_math import Expr

TOLERANCE = 1e-7
"""Largest error relative to the largest output: one rounding to float32."""

MASKED = -1e30
"""Score of a key beyond the last: finite, so that it never makes a NaN, and far below any sum of products."""


def _store(
    found: list[Any], lanes: int, vectors: int, left: Expr, store: Callable[[int, Expr, Expr], None]
) -> None:
    """Calls ``store(row, column, value)`` for what a tile's registers hold, in the ``left`` rows there are."""
    for r in range(len(found) // vectors):
        with T.If(r < left):
            with T.Then():
                save(found[r * vectors : (r + 1) * vectors], lanes, lambda v, j, value, r=r: store(r, v * lanes + j, value))


def kernel(heads: int, head_dim: int, tile: Tile, max_tokens: int = 512) -> PrimFunc:
    """Builds the PrimFunc.

    Returns:
        ``f(qkv, lengths, y)``.

    Raises:
        ValueError: The head dimension is no multiple of the values of a tile's row.
    """
    rows, vectors, block = tile.rows, tile.vectors, tile.block // 2 // tile.rows * tile.rows
    lanes = tile.lanes // 2  # of float64
    width = lanes * vectors
    if head_dim % width:
        raise ValueError(f"head dimension {head_dim} is no multiple of {width}, the float64 values of a tile row")
    embedding = heads * head_dim
    panels = head_dim // width
    key_panels = -(-max_tokens // width)
    scale = T.float64(1 / math.sqrt(head_dim))

    @T.prim_func
    def attention(qkv_h: T.handle, lengths_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        B = T.int64()
        N = T.int64()
        X = T.match_buffer(qkv_h, (B, N, 3 * embedding), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        Y = T.match_buffer(y_h, (B, N, embedding), "float32")
        K = T.alloc_buffer((heads, key_panels, head_dim, width), "float64")
        V = T.alloc_buffer((heads, panels, key_panels * width, width), "float64")
        for b in range(B):
            n: T.let[T.int64] = L[b]
            used: T.let[T.int64] = (n + width - 1) // width
            for task in T.parallel(heads * used):
                head: T.let[T.int64] = task // used
                panel: T.let[T.int64] = task % used
                for j in range(width):
                    key: T.let[T.int64] = panel * width + j
                    if key < n:
                        for c in range(head_dim):
                            K[head, panel, c, j] = T.cast(X[b, key, embedding + head * head_dim + c], "float64")
                        for p in T.unroll(panels):
                            for i in T.vectorized(width):
                                V[head, p, key, i] = T.cast(
                                    X[b, key, 2 * embedding + head * head_dim + p * width + i], "float64"
                                )
                    else:
                        for c in range(head_dim):
                            K[head, panel, c, j] = T.float64(0)
            for task in T.parallel((n + block - 1) // block * heads):
                head: T.let[T.int64] = task % heads
                q0: T.let[T.int64] = task // heads * block
                Q = T.alloc_buffer((rows, head_dim), "float64")
                S = T.alloc_buffer((rows, key_panels * width), "float64")
                for tile_row in range(block // rows):
                    q: T.let[T.int64] = q0 + tile_row * rows
                    if q < n:
                        for r in range(rows):
                            for c in range(head_dim // lanes):
                                for j in T.vectorized(lanes):
                                    Q[r, c * lanes + j] = T.cast(
                                        X[b, T.min(q + r, n - 1), head * head_dim + c * lanes + j], "float64"
                                    )
                        inverse = T.alloc_buffer((rows,), "float64")
                        for panel in range(used):
                            score = registers(rows * vectors, lanes, "float64")
                            for c in range(head_dim):
                                each(score, lanes, lambda i, j: T.fma(
                                    Q[i // vectors, c], K[head, panel, c, i % vectors * lanes + j], score[i][j]
                                ))
                            save(score, lanes, lambda i, j, value: T.buffer_store(
                                S,
                                T.Select(panel * width + i % vectors * lanes + j < n, value, T.float64(MASKED)),
                                [i // vectors, panel * width + i % vectors * lanes + j],
                            ))
                        for r in range(rows):
                            partial = T.alloc_buffer((width,), "float64")
                            most = T.alloc_buffer((1,), "float64")
                            for j in T.vectorized(width):
                                partial[j] = T.float64(MASKED)
                            for panel in range(used):
                                for j in T.vectorized(width):
                                    partial[j] = T.max(partial[j], S[r, panel * width + j])
                            most[0] = T.float64(MASKED)
                            for j in T.unroll(width):
                                most[0] = T.max(most[0], partial[j])
                            for j in T.vectorized(width):
                                partial[j] = T.float64(0)
                            for panel in range(used):
                                for j in T.vectorized(width):
                                    S[r, panel * width + j] = vector_math_f64.exp((S[r, panel * width + j] - most[0]) * scale)
                                for j in T.vectorized(width):
                                    partial[j] = partial[j] + S[r, panel * width + j]
                            inverse[r] = T.float64(0)
                            for j in T.unroll(width):
                                inverse[r] = inverse[r] + partial[j]
                            inverse[r] = T.float64(1) / inverse[r]
                        for p in range(panels):
                            acc = registers(rows * vectors, lanes, "float64")
                            for key in range(n):
                                each(acc, lanes, lambda i, j: T.fma(
                                    S[i // vectors, key], V[head, p, key, i % vectors * lanes + j], acc[i][j]
                                ))
                            _store(acc, lanes, vectors, n - q, lambda r, c, value: T.buffer_store(
                                Y, T.cast(value * inverse[r], "float32"), [b, q + r, head * head_dim + p * width + c]
                            ))

    return attention


def reference(qkv: np.ndarray, lengths: np.ndarray, heads: int) -> list[np.ndarray]:
    """The kernel in NumPy float64, one array [valid rows, E] per sample."""
    outputs = []
    for b, n in enumerate(lengths):
        q, k, v = qkv[b, :n].astype(np.float64).reshape(n, 3, heads, -1).transpose(1, 2, 0, 3)
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        y = weights / weights.sum(-1, keepdims=True) @ v
        outputs.append(y.transpose(1, 0, 2).reshape(n, -1))
    return outputs
