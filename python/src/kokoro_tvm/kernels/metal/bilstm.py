"""``kernels.bilstm`` for Metal: the whole recurrence of one sample and direction in one thread group, one thread per hidden unit.

The step's hidden state lies in thread-group memory, twice, so that one barrier a step is enough; the cell stays in a register.
There is no trip to the host between steps, and the two directions and all samples run at the same time. Every step reads the
recurrent weights once (1 MB for 256 units): they come from the cache that all cores share.
"""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels.metal import vector_math
from kokoro_tvm.kernels.metal.tile import THREADS, Tile

_UNROLL = 8
"""Hidden units whose weights are requested together."""


def pack_recurrent(w_hh: np.ndarray) -> np.ndarray:
    """[2, 4 * H, H], forward and backward ``weight_hh``, to [2, H (from), H (to), 4]: a thread's four gates are one load."""
    directions, _, hidden = w_hh.shape
    return np.ascontiguousarray(w_hh.reshape(directions, 4, hidden, hidden).transpose(0, 3, 2, 1))


def kernel(hidden: int, tile: Tile) -> PrimFunc:
    """Builds the PrimFunc.

    Returns:
        ``f(gates, lengths, w_hh, y)``, see the CPU's; ``w_hh`` from ``pack_recurrent``.

    Raises:
        ValueError: There are more hidden units than threads, or their number is no multiple of ``_UNROLL``.
    """
    if hidden > THREADS or hidden % _UNROLL:
        raise ValueError(f"hidden size {hidden} exceeds {THREADS} threads or is no multiple of {_UNROLL}")

    @T.prim_func
    def bilstm(gates_h: T.handle, lengths_h: T.handle, w_hh_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        B = T.int32()
        N = T.int32()
        X = T.match_buffer(gates_h, (B, N, 8 * hidden), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        W = T.match_buffer(w_hh_h, (2, hidden, hidden, 4), "float32")
        Y = T.match_buffer(y_h, (B, N, 2 * hidden), "float32")
        d = T.launch_thread("blockIdx.x", 2)
        b = T.launch_thread("blockIdx.y", B)
        u = T.launch_thread("threadIdx.x", hidden)
        h = T.alloc_buffer((2 * hidden,), "float32", scope="shared")
        cell = T.alloc_buffer((1,), "float32", scope="local")
        gate = T.alloc_buffer((4,), "float32", scope="local")
        n: T.int32 = T.cast(L[b], "int32")
        h[u] = T.float32(0)
        cell[0] = T.float32(0)
        T.tvm_storage_sync("shared")
        for step in range(n):
            t: T.int32 = T.if_then_else(d == 0, step, n - 1 - step)
            for g in T.unroll(4):
                gate[g] = X[b, t, d * (4 * hidden) + g * hidden + u]
            for k in range(hidden // _UNROLL):
                for j in T.unroll(_UNROLL):
                    for g in T.vectorized(4):
                        gate[g] = gate[g] + W[d, k * _UNROLL + j, u, g] * h[step % 2 * hidden + k * _UNROLL + j]
            vector_math.sigmoid(gate, 0, gate[0])
            vector_math.sigmoid(gate, 1, gate[1])
            vector_math.tanh(gate, 2, gate[2])
            vector_math.sigmoid(gate, 3, gate[3])
            cell[0] = T.fma(gate[1], cell[0], gate[0] * gate[2])
            vector_math.tanh(gate, 0, cell[0])
            gate[0] = gate[3] * gate[0]
            h[(step + 1) % 2 * hidden + u] = gate[0]
            Y[b, t, d * hidden + u] = gate[0]
            T.tvm_storage_sync("shared")
        for t in range(N - n):
            Y[b, n + t, d * hidden + u] = T.float32(0)

    return bilstm
