"""Depthwise transposed convolution that doubles the rate, behind AdaIN and leaky ReLU.

What it is: the ``pool`` of ``AdainResBlk1d`` (kokoro ``istftnet.py``: ``ConvTranspose1d(C, C, 3, stride=2, groups=C, padding=1,
output_padding=1)``). What it is not: a general transposed convolution (see ``conv1d``).

With v the activated input and zero outside the valid rows: ``y[2i] = v[i] w[1] + b``, ``y[2i+1] = v[i] w[2] + v[i+1] w[0] + b``.
"""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels import vector_math
from kokoro_tvm.kernels.tile import Tile
from kokoro_tvm.kernels.vector_math import Expr

TOLERANCE = 1e-6
"""Largest error relative to the largest output: three float32 products."""


def _activate(x: Expr, scale: Expr, shift: Expr, slope: float) -> Expr:
    return vector_math.leaky_relu(T.fma(x, scale, shift), slope)


def kernel(channels: int, slope: float, tile: Tile) -> PrimFunc:
    """Builds ``f(x [B, T, C], lengths [B], coef [B, 2, C], weight [3, C], bias [C], y [B, 2T, C])``.

    Rows from ``2 * lengths`` on are not written.

    Args:
        channels: C.
        slope: Of the leaky ReLU.
        tile: For the vector width.
    """
    # Channel counts that are no multiple of the vector width (514, 1090) are done one by one.
    lanes = next(n for n in (tile.lanes, 2, 1) if channels % n == 0)

    @T.prim_func
    def depthwise_upsample(
        x_h: T.handle, lengths_h: T.handle, coef_h: T.handle, weight_h: T.handle, bias_h: T.handle, y_h: T.handle
    ):
        T.func_attr({"tirx.noalias": True})
        B = T.int64()
        T_in = T.int64()
        T_out = T.int64()
        X = T.match_buffer(x_h, (B, T_in, channels), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        coef = T.match_buffer(coef_h, (B, 2, channels), "float32")
        W = T.match_buffer(weight_h, (3, channels), "float32")
        bias = T.match_buffer(bias_h, (channels,), "float32")
        Y = T.match_buffer(y_h, (B, T_out, channels), "float32")
        for b in range(B):
            n: T.int64 = L[b]
            for i in T.parallel(n):
                for c in range(channels // lanes):
                    for j in T.vectorized(lanes):
                        Y[b, 2 * i, c * lanes + j] = T.fma(
                            _activate(X[b, i, c * lanes + j], coef[b, 0, c * lanes + j], coef[b, 1, c * lanes + j], slope),
                            W[1, c * lanes + j],
                            bias[c * lanes + j],
                        )
                    for j in T.vectorized(lanes):
                        Y[b, 2 * i + 1, c * lanes + j] = T.fma(
                            _activate(X[b, i, c * lanes + j], coef[b, 0, c * lanes + j], coef[b, 1, c * lanes + j], slope),
                            W[2, c * lanes + j],
                            bias[c * lanes + j],
                        )
                    if i + 1 < n:
                        for j in T.vectorized(lanes):
                            Y[b, 2 * i + 1, c * lanes + j] = T.fma(
                                _activate(
                                    X[b, i + 1, c * lanes + j], coef[b, 0, c * lanes + j], coef[b, 1, c * lanes + j], slope
                                ),
                                W[0, c * lanes + j],
                                Y[b, 2 * i + 1, c * lanes + j],
                            )

    return depthwise_upsample


def reference(
    x: np.ndarray, lengths: np.ndarray, coef: np.ndarray, weight: np.ndarray, bias: np.ndarray, slope: float
) -> list[np.ndarray]:
    """The kernel in NumPy float64, one array [2 * valid rows, C] per sample."""
    outputs = []
    for b, n in enumerate(lengths):
        v = x[b, :n].astype(np.float64) * coef[b, 0] + coef[b, 1]
        v = np.where(v > 0, v, slope * v)
        following = np.concatenate([v[1:], np.zeros_like(v[:1])])
        y = np.empty((2 * n, v.shape[1]))
        y[0::2] = v * weight[1] + bias
        y[1::2] = v * weight[2] + following * weight[0] + bias
        outputs.append(y)
    return outputs
