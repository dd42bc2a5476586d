"""``kernels.stft`` for Metal: the sums are integers, as there is no float64.

The phase of a bin that nearly vanishes hangs on digits that float32 sums do not have. One thread makes one frame: its samples are
scaled by a power of two so that the largest has 34 bits, which loses nothing of the others down to 2^-10 of it; the windowed
DFT's constants have 50 bits, in two halves. The sums are exact, whatever their order. Magnitude and angle then are float32.
"""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels.metal import vector_math
from kokoro_tvm.kernels.metal.tile import THREADS, Tile
from kokoro_tvm.kernels.stft import dft_matrix
from kokoro_tvm.kernels.vector_math import Expr

_SAMPLE_BITS = 34
_HALF_BITS = 25
"""Bits of a half of a constant: 34 + 25 and the sum of the window, below 16, leave the sign bit free."""

_LEAST_EXPONENT = 60
"""Of the scale: below a peak of 2^-67 a frame loses digits instead of overflowing the scale."""


def _sum(folded: T.Buffer, row: np.ndarray, part: int) -> Expr:
    """``sum over d of row[d] * folded[part, d]`` as an int64 with ``_HALF_BITS`` fraction bits."""
    high, low = T.int64(0), T.int64(0)
    for d in np.flatnonzero(row):
        scaled = float(row[d]) * 2**_HALF_BITS
        first = round(scaled)
        high = high + folded[part, int(d)] * T.int64(first)
        low = low + folded[part, int(d)] * T.int64(round((scaled - first) * 2**_HALF_BITS))
    return high + T.shift_right(low, T.int64(_HALF_BITS))


def _store_spectrum(spectrum: T.Buffer, folded: T.Buffer, matrix: np.ndarray) -> None:
    """Emits ``spectrum[part, k] = sum over d of matrix[part, k, d] * folded[part, d]``."""
    for part, k in np.ndindex(matrix.shape[:2]):
        T.buffer_store(spectrum, T.cast(_sum(folded, matrix[part, k], part), "float32"), [part, k])


def kernel(tile: Tile, n_fft: int = 20, hop: int = 5) -> PrimFunc:
    """Builds the PrimFunc; arguments as for the CPU's.

    Returns:
        ``f(x, lengths, y)``. A sample of ``n_fft // 2`` values or fewer, which cannot be reflected, has no frames.

    Raises:
        ValueError: ``n_fft`` is odd or too long for the integers.
    """
    if n_fft % 2 or n_fft > 28:
        raise ValueError(f"n_fft {n_fft} is odd or exceeds 28")
    bins, centre = n_fft // 2 + 1, n_fft // 2
    matrix = dft_matrix(n_fft)

    @T.prim_func
    def stft(x_h: T.handle, lengths_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        B = T.int32()
        N = T.int32()
        F = T.int32()
        X = T.match_buffer(x_h, (B, N, 2), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        Y = T.match_buffer(y_h, (B, F, 2 * bins), "float32")
        block = T.launch_thread("blockIdx.x", (F + THREADS - 1) // THREADS)
        b = T.launch_thread("blockIdx.y", B)
        position = T.launch_thread("threadIdx.x", THREADS)
        sample = T.alloc_buffer((n_fft, 2), "float32", scope="local")
        whole = T.alloc_buffer((n_fft,), "int64", scope="local")
        folded = T.alloc_buffer((2, centre), "int64", scope="local")
        spectrum = T.alloc_buffer((2, bins), "float32", scope="local")
        peak = T.alloc_buffer((1,), "float32", scope="local")
        n: T.int32 = T.cast(L[b], "int32")
        frame: T.int32 = block * THREADS + position
        if n > centre and frame < n // hop + 1:
            peak[0] = T.float32(0)
            for m in T.unroll(n_fft):
                t: T.int32 = frame * hop + m - centre
                mirrored: T.int32 = T.Select(t < 0, -t, T.Select(t < n, t, 2 * (n - 1) - t))
                sample[m, 0] = X[b, mirrored, 0]
                sample[m, 1] = X[b, mirrored, 1]
                peak[0] = T.max(peak[0], T.fabs(sample[m, 0]))
            exponent: T.int32 = T.max(T.shift_right(T.reinterpret("int32", peak[0]), 23), _LEAST_EXPONENT)
            scale: T.float32 = T.reinterpret("float32", T.shift_left(2 * 127 + _SAMPLE_BITS - 1 - exponent, 23))
            inverse: T.float32 = T.reinterpret("float32", T.shift_left(exponent + 1 - _SAMPLE_BITS, 23))
            for m in T.unroll(n_fft):
                whole[m] = T.cast(T.nearbyint(sample[m, 0] * scale), "int64") + T.cast(
                    T.nearbyint(sample[m, 1] * scale), "int64"
                )
            folded[0, 0] = whole[centre]
            for d in T.unroll(centre - 1):
                folded[0, d + 1] = whole[centre + 1 + d] + whole[centre - 1 - d]
                folded[1, d + 1] = whole[centre + 1 + d] - whole[centre - 1 - d]
            _store_spectrum(spectrum, folded, matrix)
            for k in range(bins):
                re: T.float32 = spectrum[0, k]
                im: T.float32 = spectrum[1, k]
                Y[b, frame, k] = T.sqrt(T.fma(re, re, im * im)) * (inverse * T.float32(2**-_HALF_BITS))
                vector_math.atan2(peak, 0, im, re)
                Y[b, frame, bins + k] = peak[0]

    return stft
