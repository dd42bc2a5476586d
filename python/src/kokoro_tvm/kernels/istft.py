"""Inverse short-time Fourier transform of the vocoder's last convolution, in float64 inside.

What it is: the end of ``Generator.forward`` and ``TorchSTFT.inverse`` of kokoro's ``istftnet.py``: exp and sine of the
convolution's channels, ``magnitude * exp(1j * phase)``, ``torch.istft`` (centred, periodic Hann window, normalised by the
overlapping squares of the window). What it is not: kokoro's ``CustomSTFT``, which computes something else.

Shapes: x [B, F, 2 * bins], log-magnitudes then the arguments of the sine; lengths [B] int64 = valid frames; y [B, N] with ``N
>= (lengths - 1) * hop``. Frames beyond the valid length are never read (they may hold NaN). This being the model's last
kernel, samples beyond ``(lengths - 1) * hop`` are written, as zeros.

``irfft`` takes no notice of the imaginary parts of the first and the last bin, and neither does this.

One task transposes the spectra of its frames, so that the vector runs over frames and the inverse DFT consists of constants.
Four frames overlap on each sample. A row that is 1 where a frame exists goes through the same overlap with the squared window:
that is the normalisation, in the middle and at both ends.
"""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels import vector_math_f64
from kokoro_tvm.kernels.stft import hann_window
from kokoro_tvm.kernels.tile import Tile
from kokoro_tvm.kernels.vector_math_f64 import Expr

TOLERANCE = 1e-7
"""Largest error relative to the largest sample: the rounding to float32."""

_ROWS = 96
"""Groups of ``hop`` samples per task: 20 ms of audio."""


def inverse_dft_matrix(n_fft: int) -> np.ndarray:
    """Windowed inverse of the onesided DFT, [n_fft, 2 * bins] (real parts, imaginary parts), float64."""
    bins = n_fft // 2 + 1
    # The angle is reduced in integers, so that equal angles give equal entries.
    angles = 2 * np.pi * (np.outer(np.arange(n_fft), np.arange(bins)) % n_fft) / n_fft
    matrix = np.stack([np.cos(angles), -np.sin(angles)], axis=1)
    matrix[:, :, 1:-1] *= 2
    matrix[:, 1, [0, -1]] = 0
    return (hann_window(n_fft)[:, None, None] * matrix / n_fft).reshape(n_fft, 2 * bins)


def _store_samples(samples: T.Buffer, spectrum: T.Buffer, matrix: np.ndarray, row: Expr, lanes: int) -> None:
    """Emits ``samples[p, :] = overlap-added frames / overlap-added squares of the window`` for rows ``row`` to ``row + lanes``.

    Args:
        samples: [hop, lanes].
        spectrum: [2 * bins + 1, frames], the last row 1 where a frame exists; column ``row`` is the first frame of four.
        matrix: [n_fft, 2 * bins].
        row: First row.
        lanes: Rows.
    """
    hop = int(samples.shape[0])
    n_fft, channels = matrix.shape
    overlap = n_fft // hop
    window_square = hann_window(n_fft) ** 2
    for p in range(hop):
        with T.vectorized(lanes) as j:
            total, envelope = T.float64(0), T.float64(0)
            for m in range(p, n_fft, hop):
                frame = row + (overlap - 1 - m // hop) + j
                # One chain of additions per frame: a single one would wait for itself.
                value = T.float64(0)
                for k in np.flatnonzero(matrix[m]):
                    value = T.fma(spectrum[int(k), frame], T.float64(float(matrix[m, k])), value)
                total = total + value
                envelope = T.fma(spectrum[channels, frame], T.float64(float(window_square[m])), envelope)
            T.buffer_store(samples, total / envelope, [p, j])


def kernel(tile: Tile, n_fft: int = 20, hop: int = 5) -> PrimFunc:
    """Builds the PrimFunc.

    Args:
        tile: Gives the vector width.
        n_fft: Length of the window and of the transform.
        hop: Samples between two frames; divides ``n_fft // 2``.

    Returns:
        ``f(x, lengths, y)``. A magnitude beyond float32, exp(88.7), is not infinite: the sums are float64, only the sample is
        rounded to float32 (exp saturates at exp(700)).

    Raises:
        ValueError: ``hop`` does not divide ``n_fft // 2``, or ``n_fft`` is odd.
    """
    if n_fft % (2 * hop):
        raise ValueError(f"hop {hop} does not divide half of n_fft {n_fft}")
    lanes = tile.lanes
    bins = n_fft // 2 + 1
    overlap = n_fft // hop
    # The first sample that is not trimmed belongs to row overlap / 2; this many frames begin before it.
    lead = overlap // 2 - 1
    block = -(-_ROWS // lanes) * lanes
    columns = -(-(block + overlap - 1) // lanes) * lanes
    matrix = inverse_dft_matrix(n_fft)
    per_radian = 0.5 / np.pi

    @T.prim_func
    def istft(x_h: T.handle, lengths_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        B = T.int64()
        F = T.int64()
        N = T.int64()
        X = T.match_buffer(x_h, (B, F, 2 * bins), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        Y = T.match_buffer(y_h, (B, N), "float32")
        for b in range(B):
            n: T.int64 = L[b]
            rows: T.int64 = T.max(n - 1, T.int64(0))
            for task in T.parallel((rows + block - 1) // block):
                S = T.alloc_buffer((2 * bins + 1, columns), "float64")
                samples = T.alloc_buffer((hop, lanes), "float64", scope="local")
                for r in range(columns):
                    frame: T.int64 = task * block + r - lead
                    if frame >= 0 and frame < n:
                        for k in range(2 * bins):
                            S[k, r] = T.cast(X[b, frame, k], "float64")
                        S[2 * bins, r] = T.float64(1)
                    else:
                        for k in range(2 * bins + 1):
                            S[k, r] = T.float64(0)
                for k in range(bins):
                    for v in range(columns // lanes):
                        magnitude = T.alloc_buffer((lanes,), "float64", scope="local")
                        phase = T.alloc_buffer((lanes,), "float64", scope="local")
                        for j in T.vectorized(lanes):
                            # A frame that does not exist has magnitude 0.
                            magnitude[j] = vector_math_f64.exp(S[k, v * lanes + j]) * S[2 * bins, v * lanes + j]
                        for j in T.vectorized(lanes):
                            phase[j] = vector_math_f64.turns(S[bins + k, v * lanes + j] * T.float64(per_radian))
                        for j in T.vectorized(lanes):
                            phase[j] = vector_math_f64.sin_turns(phase[j]) * T.float64(per_radian)
                        for j in T.vectorized(lanes):
                            S[k, v * lanes + j] = magnitude[j] * vector_math_f64.cos_turns(phase[j])
                        for j in T.vectorized(lanes):
                            S[bins + k, v * lanes + j] = magnitude[j] * vector_math_f64.sin_turns(phase[j])
                for group in range(block // lanes):
                    first: T.int64 = task * block + group * lanes
                    if first < rows:
                        _store_samples(samples, S, matrix, group * lanes, lanes)
                        for j in T.unroll(lanes):
                            if first + j < rows:
                                for p in T.unroll(hop):
                                    Y[b, (first + j) * hop + p] = T.cast(samples[p, j], "float32")
            for t in range(N - rows * hop):
                Y[b, rows * hop + t] = T.float32(0)

    return istft


def reference(x: np.ndarray, lengths: np.ndarray, n_fft: int = 20, hop: int = 5) -> list[np.ndarray]:
    """The kernel in NumPy float64, one array [(length - 1) * hop] per sample, without the zeros beyond."""
    bins = n_fft // 2 + 1
    window = hann_window(n_fft)
    outputs = []
    for b, n in enumerate(lengths):
        v = x[b, :n].astype(np.float64)
        frames = np.fft.irfft(np.exp(v[:, :bins]) * np.exp(1j * np.sin(v[:, bins:])), n_fft) * window
        total = np.zeros((n - 1) * hop + n_fft)
        envelope = np.zeros_like(total)
        for i, frame in enumerate(frames):
            total[i * hop : i * hop + n_fft] += frame
            envelope[i * hop : i * hop + n_fft] += window**2
        inside = slice(n_fft // 2, len(total) - n_fft // 2)
        outputs.append(total[inside] / envelope[inside])
    return outputs
