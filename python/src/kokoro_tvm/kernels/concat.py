"""Length-aware concatenation along the channels.

What it is: two to four tensors side by side. What it is not: arithmetic; every value is copied.

Shapes: x_i [B, T, C_i], lengths [B] int64, y [B, T, sum of C_i]. Rows beyond the valid length are neither read nor written.
"""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels.prune import keep_parameters
from kokoro_tvm.kernels.tile import Tile

TOLERANCE = 0.0
"""Copies are exact."""


def widths(channels: tuple[int, ...]) -> tuple[int, int, int, int]:
    """The channels of four inputs, 0 for those that are absent.

    Raises:
        ValueError: Not two to four inputs.
    """
    if not 2 <= len(channels) <= 4:
        raise ValueError(f"{len(channels)} inputs; concat takes two to four")
    return (*channels, 0, 0)[:4]


def kernel(channels: tuple[int, ...], tile: Tile) -> PrimFunc:
    """Builds the PrimFunc.

    Returns:
        ``f(x0, x1, [x2, [x3]], lengths, y)``.

    Raises:
        ValueError: Not two to four inputs.
    """
    count = len(channels)
    c0, c1, c2, c3 = widths(channels)

    @T.prim_func
    def concat(x0_h: T.handle, x1_h: T.handle, x2_h: T.handle, x3_h: T.handle, lengths_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        B = T.int64()
        N = T.int64()
        X0 = T.match_buffer(x0_h, (B, N, c0), "float32")
        X1 = T.match_buffer(x1_h, (B, N, c1), "float32")
        X2 = T.match_buffer(x2_h, (B, N, c2), "float32")
        X3 = T.match_buffer(x3_h, (B, N, c3), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        Y = T.match_buffer(y_h, (B, N, c0 + c1 + c2 + c3), "float32")
        for b in range(B):
            n: T.int64 = L[b]
            for t in T.parallel(n):
                for c in range(c0):
                    Y[b, t, c] = X0[b, t, c]
                for c in range(c1):
                    Y[b, t, c0 + c] = X1[b, t, c]
                if count > 2:
                    for c in range(c2):
                        Y[b, t, c0 + c1 + c] = X2[b, t, c]
                if count > 3:
                    for c in range(c3):
                        Y[b, t, c0 + c1 + c2 + c] = X3[b, t, c]

    return keep_parameters(concat, lambda name: name not in ("X0", "X1", "X2", "X3")[count:])


def reference(inputs: tuple[np.ndarray, ...], lengths: np.ndarray) -> list[np.ndarray]:
    """The kernel in NumPy, one array [valid rows, sum of C_i] per sample."""
    return [np.concatenate([x[b, :n] for x in inputs], axis=-1) for b, n in enumerate(lengths)]
