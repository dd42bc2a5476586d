"""Length-aware adaptive layer normalisation, followed by the style that the next recurrent layer reads beside it.

What it is: layer normalisation over the channels with scale and shift from the style, and the concatenation with the style. What
it is not: the linear layer that makes scale and shift (``style_linear``).

Shapes: x [B, N, C], affine [B, S], style [B, D], y [B, N, C + D], lengths [B] int64. Rows beyond the valid length are neither
read nor written. A row is summed in a fixed order that depends on the channels and the tile only.
"""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels import layer_norm
from kokoro_tvm.kernels.tile import Tile
from kokoro_tvm.kernels.vector_math import Expr

TOLERANCE = 3e-7
"""Largest error relative to the largest output, as ``layer_norm.TOLERANCE``; the style is copied."""


def _finish(x: Expr, mean: Expr, inverse: Expr, gamma: Expr, beta: Expr) -> Expr:
    normed = (T.cast(x, "float64") - mean) * inverse
    return T.cast(T.fma(normed, T.cast(gamma, "float64") + T.float64(1), T.cast(beta, "float64")), "float32")


def kernel(channels: int, style_dim: int, affine_size: int, offset: int, eps: float, tile: Tile) -> PrimFunc:
    """Builds the PrimFunc.

    Returns:
        ``f(x, lengths, affine, style, y)``: ``y[..., :C] = (1 + gamma) * norm(x) + beta`` with gamma in the columns ``offset`` to
        ``offset + C`` of affine and beta in the next C; ``y[..., C:]`` is the style.

    Raises:
        ValueError: The affine is too narrow for the offset.
    """
    if offset < 0 or offset + 2 * channels > affine_size:
        raise ValueError(f"columns {offset} to {offset + 2 * channels} are not in an affine of {affine_size}")
    step = layer_norm.vector_step(channels, tile)
    body, tail = channels // step, channels % step
    moments = layer_norm.row_moments(channels, step, eps)
    shift = offset + channels

    @T.prim_func
    def ada_layer_norm(x_h: T.handle, lengths_h: T.handle, affine_h: T.handle, style_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        B = T.int64()
        N = T.int64()
        X = T.match_buffer(x_h, (B, N, channels), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        affine = T.match_buffer(affine_h, (B, affine_size), "float32")
        style = T.match_buffer(style_h, (B, style_dim), "float32")
        Y = T.match_buffer(y_h, (B, N, channels + style_dim), "float32")
        for b in range(B):
            n: T.int64 = L[b]
            for t in T.parallel(n):
                partial = T.alloc_buffer((step,), "float64", scope="local")
                stats = T.alloc_buffer((2,), "float64", scope="local")
                moments(X, b, t, partial, stats)
                for c in range(body):
                    for j in T.vectorized(step):
                        Y[b, t, c * step + j] = _finish(
                            X[b, t, c * step + j], stats[0], stats[1],
                            affine[b, offset + c * step + j], affine[b, shift + c * step + j],
                        )
                for j in range(tail):
                    Y[b, t, body * step + j] = _finish(
                        X[b, t, body * step + j], stats[0], stats[1],
                        affine[b, offset + body * step + j], affine[b, shift + body * step + j],
                    )
                for j in range(style_dim):
                    Y[b, t, channels + j] = style[b, j]

    return ada_layer_norm


def reference(
    x: np.ndarray, lengths: np.ndarray, affine: np.ndarray, style: np.ndarray, offset: int, eps: float
) -> list[np.ndarray]:
    """The kernel in NumPy float64, one array [valid rows, C + D] per sample."""
    channels = x.shape[-1]
    outputs = []
    for b, n in enumerate(lengths):
        gamma, beta = affine[b, offset : offset + 2 * channels].astype(np.float64).reshape(2, channels)
        v = x[b, :n].astype(np.float64)
        y = (1 + gamma) * (v - v.mean(-1, keepdims=True)) / np.sqrt(v.var(-1, keepdims=True) + eps) + beta
        outputs.append(np.concatenate([y, np.broadcast_to(style[b], (n, style.shape[1]))], axis=-1))
    return outputs
