"""Short-time Fourier transform to magnitude and phase, in float64 inside.

What it is: ``TorchSTFT.transform`` of kokoro's ``istftnet.py`` (``torch.stft`` centred, reflect padding, periodic Hann window,
onesided, then ``abs`` and ``angle``). What it is not: an FFT; with 20 points the sums themselves are cheaper than their bookkeeping.

Shapes: x [B, L], lengths [B] int64 = valid samples, y [B, F, 2 * bins] with ``F >= lengths // hop + 1``; y[..., :bins] is the
magnitude, y[..., bins:] the phase in (-π, π]. The reflection happens at the valid end; samples beyond it are never read (they may
hold NaN), frames beyond ``lengths // hop`` are not written.

The phase of a bin near ±π decides the sign of π, and everything downstream sees the difference: hence float64, and the imaginary
parts of the first and the last bin are left out of the sums instead of being summed to nearly zero.

One task unfolds its samples into ``hop`` phases, ``S[p, r]`` = sample ``r * hop + p``. Sample m of consecutive frames is then a
contiguous row, so the vector runs over frames and the DFT matrix consists of constants.
"""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels import vector_math_f64
from kokoro_tvm.kernels.tile import Tile
from kokoro_tvm.kernels.vector_math_f64 import Expr

TOLERANCE = 2e-7
"""Largest error of a magnitude relative to the largest one, and of a phase in radians: the rounding to float32."""

_FRAMES = 96
"""Frames per task: 20 ms of audio."""


def hann_window(n_fft: int) -> np.ndarray:
    """Periodic Hann window [n_fft], float64."""
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n_fft) / n_fft)


def dft_matrix(n_fft: int) -> np.ndarray:
    """Windowed onesided DFT [2, bins, n_fft] (real, imaginary), float64; exactly zero where the transform of a real signal is."""
    window = hann_window(n_fft)
    # The angle is reduced in integers, so that equal angles give equal entries.
    turns = np.outer(np.arange(n_fft // 2 + 1), np.arange(n_fft)) % n_fft / n_fft
    matrix = np.stack([window * np.cos(2 * np.pi * turns), -window * np.sin(2 * np.pi * turns)])
    matrix[1, 0] = matrix[1, -1] = 0
    return matrix


def _store_spectrum(spectrum: T.Buffer, samples: T.Buffer, matrix: np.ndarray, row: Expr, lanes: int) -> None:
    """Emits ``spectrum[part, bin, :] = sum of matrix * samples`` for the frames ``row`` to ``row + lanes``."""
    hop = int(samples.shape[0])
    for part, of_part in enumerate(matrix):
        for k, of_bin in enumerate(of_part):
            with T.vectorized(lanes) as j:
                value = T.float64(0)
                for m in np.flatnonzero(of_bin):
                    value = T.fma(samples[m % hop, row + m // hop + j], T.float64(float(of_bin[m])), value)
                T.buffer_store(spectrum, value, [part, k, j])


def kernel(tile: Tile, n_fft: int = 20, hop: int = 5) -> PrimFunc:
    """Builds the PrimFunc.

    Args:
        tile: Gives the vector width.
        n_fft: Length of the window and of the transform.
        hop: Samples between two frames; divides ``n_fft // 2``.

    Returns:
        ``f(x, lengths, y)``; each length at least ``n_fft // 2 + 1``.

    Raises:
        ValueError: ``hop`` does not divide ``n_fft // 2``, or ``n_fft`` is odd.
    """
    if n_fft % (2 * hop):
        raise ValueError(f"hop {hop} does not divide half of n_fft {n_fft}")
    lanes = tile.lanes
    bins, centre = n_fft // 2 + 1, n_fft // 2
    block = -(-_FRAMES // lanes) * lanes
    unfolded = block + n_fft // hop - 1
    matrix = dft_matrix(n_fft)

    @T.prim_func
    def stft(x_h: T.handle, lengths_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        B = T.int64()
        N = T.int64()
        F = T.int64()
        X = T.match_buffer(x_h, (B, N), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        Y = T.match_buffer(y_h, (B, F, 2 * bins), "float32")
        for b in range(B):
            n: T.int64 = L[b]
            frames: T.int64 = n // hop + 1
            for task in T.parallel((frames + block - 1) // block):
                S = T.alloc_buffer((hop, unfolded), "float64")
                spectrum = T.alloc_buffer((2, bins, lanes), "float64")
                for r in range(unfolded):
                    for p in range(hop):
                        t: T.int64 = (task * block + r) * hop + p - centre
                        mirrored: T.int64 = T.Select(t < 0, -t, T.Select(t < n, t, 2 * (n - 1) - t))
                        if mirrored >= 0:
                            S[p, r] = T.cast(X[b, mirrored], "float64")
                        else:
                            # Only frames beyond the last one see this.
                            S[p, r] = T.float64(0)
                for group in range(block // lanes):
                    first: T.int64 = task * block + group * lanes
                    if first < frames:
                        _store_spectrum(spectrum, S, matrix, group * lanes, lanes)
                        for k in range(bins):
                            magnitude = T.alloc_buffer((lanes,), "float32", scope="local")
                            phase = T.alloc_buffer((lanes,), "float32", scope="local")
                            for j in T.vectorized(lanes):
                                magnitude[j] = T.cast(
                                    T.sqrt(T.fma(spectrum[0, k, j], spectrum[0, k, j], spectrum[1, k, j] * spectrum[1, k, j])),
                                    "float32",
                                )
                            for j in T.vectorized(lanes):
                                phase[j] = T.cast(vector_math_f64.atan2(spectrum[1, k, j], spectrum[0, k, j]), "float32")
                            for j in T.unroll(lanes):
                                if first + j < frames:
                                    Y[b, first + j, k] = magnitude[j]
                                    Y[b, first + j, bins + k] = phase[j]

    return stft


def reference(x: np.ndarray, lengths: np.ndarray, n_fft: int = 20, hop: int = 5) -> list[np.ndarray]:
    """The kernel in NumPy float64, one array [frames, 2 * bins] per sample."""
    outputs = []
    for b, n in enumerate(lengths):
        padded = np.pad(x[b, :n].astype(np.float64), n_fft // 2, mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(padded, n_fft)[::hop]
        spectrum = np.fft.rfft(frames * hann_window(n_fft))
        outputs.append(np.concatenate([np.abs(spectrum), np.angle(spectrum)], axis=1))
    return outputs
