"""Recurrence of a bidirectional LSTM, the TIR alternative to the C++ kernel.

What it is: PyTorch's pack -> LSTM -> pad. The forward direction stops at the valid length, the backward direction starts there,
and the output is zero beyond. The steps are a loop, so the code does not grow with the sequence. What it is not: the input
projection, which is one convolution of one tap over all time steps and both directions.

Shapes: gates [B, N, 8 * H] = input projection including both biases, the forward direction in the first 4 * H columns and the
backward one in the others, each in PyTorch's order i, f, g, o; lengths [B] int64; w_hh [2, H, 4 * H] from ``pack_recurrent``; y
[B, N, 2 * H], forward then backward. Gates beyond the valid length are never read; y is written up to its capacity.

The parallel tasks are the samples of one direction, then those of the other: a thread that runs several keeps one direction's
weights in its cache. A gate is summed in the order of the hidden units. Its activation is calculated in float64, a few percent
of the time: what a step rounds, every later step carries on.
"""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T
from tvm.tirx import Buffer, PrimFunc

from kokoro_tvm.kernels import vector_math_f64
from kokoro_tvm.kernels.tile import Tile
from kokoro_tvm.kernels.vector_math_f64 import Expr

TOLERANCE = 2e-6
"""Largest absolute error (outputs lie in [-1, 1]): a sum of H products per gate; the forget gate damps what earlier steps
leave."""

UNITS = 4
"""Hidden units whose weights are added in one sweep over the gates: so many streams of weights for one load and store of the
sum."""


def pack_recurrent(w_hh: np.ndarray) -> np.ndarray:
    """[2, 4 * H, H], forward and backward ``weight_hh``, to [2, H, 4 * H]: a hidden unit's weights are consecutive."""
    return np.ascontiguousarray(w_hh.transpose(0, 2, 1))


def _sigmoid(x: Expr) -> Expr:
    return T.float64(1) / (T.float64(1) + vector_math_f64.exp(T.cast(x, "float64") * T.float64(-1)))


def _tanh(x: Expr) -> Expr:
    return vector_math_f64.tanh(T.cast(x, "float64"))


def kernel(hidden: int, tile: Tile) -> PrimFunc:
    """Builds the PrimFunc.

    Returns:
        ``f(gates, lengths, w_hh, y)``.

    Raises:
        ValueError: The hidden size is no multiple of the vector width or of ``UNITS``.
    """
    lanes = tile.lanes
    if hidden % lanes or hidden % UNITS:
        raise ValueError(f"hidden size {hidden} is no multiple of {lanes} lanes and {UNITS} units")

    def added(h: Buffer, w: Buffer, d: Expr, k: Expr, column: Expr, value: Expr) -> Expr:
        for u in range(UNITS):
            value = T.fma(h[k * UNITS + u], w[d, k * UNITS + u, column], value)
        return value

    @T.prim_func
    def bilstm(gates_h: T.handle, lengths_h: T.handle, w_hh_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        B = T.int64()
        N = T.int64()
        X = T.match_buffer(gates_h, (B, N, 8 * hidden), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        W = T.match_buffer(w_hh_h, (2, hidden, 4 * hidden), "float32")
        Y = T.match_buffer(y_h, (B, N, 2 * hidden), "float32")
        for task in T.parallel(2 * B):
            b: T.int64 = task % B
            d: T.int64 = task // B
            n: T.int64 = L[b]
            gate = T.alloc_buffer((4 * hidden,), "float32")
            h = T.alloc_buffer((hidden,), "float32")
            cell = T.alloc_buffer((hidden,), "float32")
            for c in range(hidden // lanes):
                for j in T.vectorized(lanes):
                    h[c * lanes + j] = T.float32(0)
                for j in T.vectorized(lanes):
                    cell[c * lanes + j] = T.float32(0)
            for step in range(n):
                t: T.int64 = T.Select(d == 0, step, n - 1 - step)
                for c in range(4 * hidden // lanes):
                    for j in T.vectorized(lanes):
                        gate[c * lanes + j] = X[b, t, d * (4 * hidden) + c * lanes + j]
                for k in range(hidden // UNITS):
                    for c in range(4 * hidden // lanes):
                        for j in T.vectorized(lanes):
                            gate[c * lanes + j] = added(h, W, d, k, c * lanes + j, gate[c * lanes + j])
                for c in range(hidden // lanes):
                    for j in T.vectorized(lanes):
                        cell[c * lanes + j] = T.cast(
                            T.fma(
                                _sigmoid(gate[hidden + c * lanes + j]), T.cast(cell[c * lanes + j], "float64"),
                                _sigmoid(gate[c * lanes + j]) * _tanh(gate[2 * hidden + c * lanes + j]),
                            ),
                            "float32",
                        )
                    for j in T.vectorized(lanes):
                        h[c * lanes + j] = T.cast(
                            _sigmoid(gate[3 * hidden + c * lanes + j]) * _tanh(cell[c * lanes + j]), "float32"
                        )
                    for j in T.vectorized(lanes):
                        Y[b, t, d * hidden + c * lanes + j] = h[c * lanes + j]
            for t in range(N - n):
                for c in range(hidden // lanes):
                    for j in T.vectorized(lanes):
                        Y[b, n + t, d * hidden + c * lanes + j] = T.float32(0)

    return bilstm


def reference(gates: np.ndarray, lengths: np.ndarray, w_hh: np.ndarray) -> np.ndarray:
    """The kernel in NumPy float64: [B, N, 2 * H], zero beyond the lengths; ``w_hh`` [2, 4 * H, H] unpacked."""

    def sigmoid(x: np.ndarray) -> np.ndarray:
        return 0.5 * (1 + np.tanh(x / 2))

    hidden = w_hh.shape[-1]
    y = np.zeros((*gates.shape[:2], 2 * hidden))
    for b, n in enumerate(lengths):
        for d, steps in enumerate((range(n), range(n - 1, -1, -1))):
            h = cell = np.zeros(hidden)
            for t in steps:
                z = gates[b, t, d * 4 * hidden : (d + 1) * 4 * hidden] + w_hh[d].astype(np.float64) @ h
                i, f, g, o = z.reshape(4, hidden)
                cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
                h = sigmoid(o) * np.tanh(cell)
                y[b, t, d * hidden : (d + 1) * hidden] = h
    return y
