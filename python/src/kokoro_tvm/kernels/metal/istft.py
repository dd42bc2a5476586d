"""``kernels.istft`` for Metal: a thread group makes ``_ROWS`` groups of ``hop`` samples.

It first turns the channels of the frames that overlap them into real and imaginary parts, and makes the windowed inverse DFT's
table, both in thread-group memory; then each thread adds up samples. float32 throughout.
"""

from __future__ import annotations

import math

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels.metal import vector_math
from kokoro_tvm.kernels.metal.tile import THREADS, Tile
from kokoro_tvm.kernels.script import macro

_ROWS = 64


@macro
def _matrix_entry(table, index, scratch, n_fft):
    """``table[index]`` becomes that entry of ``kernels.istft.inverse_dft_matrix``; angles are reduced in integers."""
    m: T.int32 = index // (n_fft + 2)
    channel: T.int32 = index % (n_fft + 2)
    k: T.int32 = channel % (n_fft // 2 + 1)
    step: T.int32 = (m * k + n_fft // 2) % n_fft - n_fft // 2
    vector_math.sin_cos_turns(scratch, 0, scratch, 1, T.cast(step, "float32") * T.float32(1 / n_fft))
    vector_math.sin_half_turn(scratch, 2, T.cast((m + n_fft // 2) % n_fft - n_fft // 2, "float32") * T.float32(1 / n_fft))
    # The first and the last bin occur once, the others twice: as themselves and as their conjugates.
    factor: T.float32 = T.float32(2 / n_fft)
    if k == 0 or k == n_fft // 2:
        factor = T.float32(1 / n_fft)
        scratch[0] = T.float32(0)
    if channel < n_fft // 2 + 1:
        scratch[0] = -scratch[1]
    table[index] = -scratch[0] * factor * scratch[2] * scratch[2]


def kernel(tile: Tile, n_fft: int = 20, hop: int = 5) -> PrimFunc:
    """Builds the PrimFunc; arguments as for the CPU's.

    Returns:
        ``f(x, lengths, y)``. Magnitudes saturate at exp(87).

    Raises:
        ValueError: ``hop`` does not divide ``n_fft // 2``, or ``n_fft`` is odd.
    """
    if n_fft % (2 * hop):
        raise ValueError(f"hop {hop} does not divide half of n_fft {n_fft}")
    bins = n_fft // 2 + 1
    overlap = n_fft // hop
    # The first sample that is not trimmed belongs to row overlap / 2; this many frames begin before it.
    lead = overlap // 2 - 1
    staged = _ROWS + overlap - 1
    channels = 2 * bins
    per_turn = T.float32(1 / (2 * math.pi))

    @T.prim_func
    def istft(x_h: T.handle, lengths_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        B = T.int32()
        F = T.int32()
        N = T.int32()
        X = T.match_buffer(x_h, (B, F, channels), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        Y = T.match_buffer(y_h, (B, N), "float32")
        block = T.launch_thread("blockIdx.x", (N + _ROWS * hop - 1) // (_ROWS * hop))
        b = T.launch_thread("blockIdx.y", B)
        position = T.launch_thread("threadIdx.x", THREADS)
        # Real and imaginary parts of a frame side by side, zero where there is none.
        S = T.alloc_buffer((staged * channels,), "float32", scope="shared")
        table = T.alloc_buffer((n_fft * channels,), "float32", scope="shared")
        value = T.alloc_buffer((3,), "float32", scope="local")
        n: T.int32 = T.cast(L[b], "int32")
        rows: T.int32 = T.max(n - 1, 0)
        for i in range((n_fft * channels + THREADS - 1) // THREADS):
            if i * THREADS + position < n_fft * channels:
                _matrix_entry(table, i * THREADS + position, value, n_fft)
        for i in range((staged * bins + THREADS - 1) // THREADS):
            r: T.int32 = (i * THREADS + position) // bins
            k: T.int32 = (i * THREADS + position) % bins
            frame: T.int32 = block * _ROWS + r - lead
            if r < staged:
                value[0] = T.float32(0)
                value[1] = T.float32(0)
                if frame >= 0 and frame < n:
                    vector_math.exp(value, 0, X[b, frame, k])
                    vector_math.turns(value, 1, X[b, frame, bins + k])
                    vector_math.sin_cos_turns(value, 1, value, 2, value[1])
                vector_math.sin_cos_turns(value, 1, value, 2, value[1] * per_turn)
                S[r * channels + k] = value[0] * value[2]
                S[r * channels + bins + k] = value[0] * value[1]
        T.tvm_storage_sync("shared")
        for i in range((_ROWS * hop + THREADS - 1) // THREADS):
            r: T.int32 = (i * THREADS + position) // hop
            p: T.int32 = (i * THREADS + position) % hop
            t: T.int32 = (block * _ROWS + r) * hop + p
            if r < _ROWS and t < N:
                value[0] = T.float32(0)
                if block * _ROWS + r < rows:
                    value[1] = T.float32(0)
                    for j in range(overlap):
                        # Of the overlapping frames, frame j from the end sees this sample at p + j * hop.
                        frame: T.int32 = block * _ROWS + r + (overlap - 1 - j) - lead
                        if frame >= 0 and frame < n:
                            value[2] = T.float32(0)
                            for k in range(channels):
                                value[2] = T.fma(
                                    S[(r + overlap - 1 - j) * channels + k], table[(p + j * hop) * channels + k], value[2]
                                )
                            value[0] = value[0] + value[2]
                            # The window itself is the table' first column.
                            value[2] = table[(p + j * hop) * channels] * T.float32(n_fft)
                            value[1] = T.fma(value[2], value[2], value[1])
                    value[0] = value[0] / value[1]
                Y[b, t] = value[0]

    return istft
