"""All the linear layers of one style vector as a single matrix product.

What it is: the scales and shifts of every adaptive normalisation of a component at once, up to tens of thousands of outputs. Each
weight is read once and used once per sample, so memory bandwidth is the limit, and summing in float64 costs nothing. What it is
not: a linear layer over time, which is a convolution of one tap.

Shapes: style [B, D], y [B, S]. Every output is summed in the order of D whatever the thread count or batch.
"""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels import conv1d
from kokoro_tvm.kernels.tile import Tile

TOLERANCE = 6e-8
"""Largest error relative to the largest output: one rounding to float32 (2^-24 = 5.96e-8)."""


def pack_weight(weight: np.ndarray, width: int) -> np.ndarray:
    """[S, D] to panels [ceil(S / width), D, width], zero beyond S."""
    return conv1d.pack_weight(weight[:, :, None], width)[:, 0]


def kernel(c_in: int, c_out: int, tile: Tile) -> PrimFunc:
    """Builds the PrimFunc for D = ``c_in`` and S = ``c_out``.

    Returns:
        ``f(style, weight, bias, y)``; weight packed by ``pack_weight``, bias by ``conv1d.pack_bias``, for ``tile.width``.
    """
    width = tile.width
    lanes = tile.lanes // 2  # of float64
    vectors = width // lanes
    panels = -(-c_out // width)
    whole = c_out % width == 0

    @T.prim_func
    def style_linear(style_h: T.handle, weight_h: T.handle, bias_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        B = T.int64()
        X = T.match_buffer(style_h, (B, c_in), "float32")
        W = T.match_buffer(weight_h, (panels, c_in, width), "float32")
        bias = T.match_buffer(bias_h, (panels * width,), "float32")
        Y = T.match_buffer(y_h, (B, c_out), "float32")
        for panel in T.parallel(panels):
            for b in range(B):
                acc = T.alloc_buffer((width,), "float64", scope="local")
                for v in T.unroll(vectors):
                    for j in T.vectorized(lanes):
                        acc[v * lanes + j] = T.cast(bias[panel * width + v * lanes + j], "float64")
                for c in range(c_in):
                    for v in T.unroll(vectors):
                        for j in T.vectorized(lanes):
                            acc[v * lanes + j] = T.fma(
                                T.cast(X[b, c], "float64"),
                                T.cast(W[panel, c, v * lanes + j], "float64"),
                                acc[v * lanes + j],
                            )
                if whole:
                    for v in T.unroll(vectors):
                        for j in T.vectorized(lanes):
                            Y[b, panel * width + v * lanes + j] = T.cast(acc[v * lanes + j], "float32")
                else:
                    for j in range(T.min(c_out - panel * width, width)):
                        Y[b, panel * width + j] = T.cast(acc[j], "float32")

    return style_linear


def reference(style: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """The kernel in NumPy float64; ``weight`` [S, D] unpacked."""
    return style.astype(np.float64) @ weight.astype(np.float64).T + bias
