"""The style vector behind every row: [B, N, C] to [B, N, C + D].

What it is: the input of the first prosody LSTM (kokoro ``modules.py``: ``DurationEncoder.forward``).
What it is not: a broadcast of batches or channels (see ``concat``).
"""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

TOLERANCE = 0.0
"""A copy."""


def kernel(channels: int, style_dim: int) -> PrimFunc:
    """Builds ``f(x [B, N, C], lengths [B], style [B, D], y [B, N, C + D])``; rows beyond the lengths are not written."""

    @T.prim_func
    def append_style(x_h: T.handle, lengths_h: T.handle, style_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        B = T.int64()
        N = T.int64()
        X = T.match_buffer(x_h, (B, N, channels), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        style = T.match_buffer(style_h, (B, style_dim), "float32")
        Y = T.match_buffer(y_h, (B, N, channels + style_dim), "float32")
        for b in range(B):
            for i in range(L[b]):
                for c in range(channels):
                    Y[b, i, c] = X[b, i, c]
                for c in range(style_dim):
                    Y[b, i, channels + c] = style[b, c]

    return append_style


def reference(x: np.ndarray, lengths: np.ndarray, style: np.ndarray) -> list[np.ndarray]:
    """The kernel in NumPy, one array [valid rows, C + D] per sample."""
    return [np.concatenate([x[b, :n], np.tile(style[b], (n, 1))], axis=1) for b, n in enumerate(lengths)]
