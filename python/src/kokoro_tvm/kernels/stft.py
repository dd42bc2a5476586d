"""Short-time Fourier transform to magnitude and phase, in float64 inside.

What it is: ``TorchSTFT.transform`` of kokoro's ``istftnet.py`` (``torch.stft`` centred, reflect padding, periodic Hann window,
onesided, then ``abs`` and ``angle``). What it is not: an FFT; with 20 points the sums themselves are cheaper than their
bookkeeping.

Shapes: x [B, L, 2], each sample the sum of two, lengths [B] int64 = valid samples, y [B, F, 2 * bins] with
``F > lengths // hop``; y[..., :bins] is the magnitude, y[..., bins:] the phase in [-π, π]. The reflection happens at the valid
end; samples beyond it are never read (they may hold NaN), frames beyond ``lengths // hop`` are not written.

The phase of a bin near ±π decides the sign of π, and everything downstream sees the difference: hence float64, and hence samples
in two parts (``harmonic_source``). Where the
spectrum is real there is no sign to find, and the imaginary part has to be exactly zero: in the first and the last bin, and in
a frame that is its own mirror image, which the reflection makes of frame 0. There an FFT's imaginary parts are rounding noise,
so PyTorch's phase of a negative bin is π or -π by accident; here it is π. The sums therefore run over ``x[c + d] + x[c - d]``
(real part) and ``x[c + d] - x[c - d]`` (imaginary part) around the centre c of the frame, which also halves them.

One task unfolds its samples into ``hop`` phases, ``S[p, r]`` = sample ``r * hop + p``. Sample m of consecutive frames is then
a contiguous row, so the vector runs over frames and the DFT matrix consists of constants.
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
    """Windowed onesided DFT of a folded frame, [2, bins, n_fft // 2] float64.

    Entry [0, k, d] belongs to ``x[c + d] + x[c - d]`` (d = 0: to ``x[c]``) in the real part of bin k, [1, k, d] to
    ``x[c + d] - x[c - d]`` in the imaginary part. The sample at distance n_fft // 2 has weight 0 in a periodic Hann window.
    """
    centre = n_fft // 2
    k = np.arange(centre + 1)[:, None]
    # The angle is reduced in integers, so that equal angles give equal entries.
    angle = 2 * np.pi * (k * np.arange(centre) % n_fft) / n_fft
    window = hann_window(n_fft)[centre:] * np.where(k % 2 == 0, 1, -1)
    matrix = np.stack([window * np.cos(angle), -window * np.sin(angle)])
    matrix[1, [0, -1]] = 0
    return matrix


def _store_folded(folded: T.Buffer, samples: T.Buffer, row: Expr, lanes: int) -> None:
    """Emits ``folded[part, d, :] = x[c + d] ± x[c - d]`` for the frames ``row`` to ``row + lanes``.

    Args:
        folded: [2, n_fft // 2, lanes].
        samples: [hop, rows], unfolded.
        row: First frame.
        lanes: Frames.
    """
    hop, centre = int(samples.shape[0]), int(folded.shape[1])

    def sample(m: int, j: Expr) -> Expr:
        return samples[m % hop, row + m // hop + j]

    with T.vectorized(lanes) as j:
        T.buffer_store(folded, sample(centre, j), [0, 0, j])
    for d in range(1, centre):
        with T.vectorized(lanes) as j:
            T.buffer_store(folded, sample(centre + d, j) + sample(centre - d, j), [0, d, j])
        with T.vectorized(lanes) as j:
            T.buffer_store(folded, sample(centre + d, j) - sample(centre - d, j), [1, d, j])


def _store_spectrum(spectrum: T.Buffer, folded: T.Buffer, matrix: np.ndarray, lanes: int) -> None:
    """Emits ``spectrum[part, k, :] = sum over d of matrix[part, k, d] * folded[part, d, :]``.

    The sums start at +0, so a sum of zeros of either sign is +0 and its angle π rather than -π.
    """
    for part, k in np.ndindex(matrix.shape[:2]):
        with T.vectorized(lanes) as j:
            value = T.float64(0)
            for d in np.flatnonzero(matrix[part, k]):
                value = T.fma(folded[part, int(d), j], T.float64(float(matrix[part, k, d])), value)
            T.buffer_store(spectrum, value, [part, k, j])


def kernel(tile: Tile, n_fft: int = 20, hop: int = 5) -> PrimFunc:
    """Builds the PrimFunc.

    Args:
        tile: Gives the vector width.
        n_fft: Length of the window and of the transform.
        hop: Samples between two frames; divides ``n_fft // 2``.

    Returns:
        ``f(x, lengths, y)``. A sample of ``n_fft // 2`` values or fewer, which cannot be reflected, has no frames.

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
        X = T.match_buffer(x_h, (B, N, 2), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        Y = T.match_buffer(y_h, (B, F, 2 * bins), "float32")
        for b in range(B):
            n: T.int64 = L[b]
            # Too few samples to reflect: nothing to write.
            frames: T.int64 = T.Select(n > centre, n // hop + 1, T.int64(0))
            for task in T.parallel((frames + block - 1) // block):
                S = T.alloc_buffer((hop, unfolded), "float64")
                folded = T.alloc_buffer((2, centre, lanes), "float64")
                spectrum = T.alloc_buffer((2, bins, lanes), "float64")
                for r in range(unfolded):
                    for p in range(hop):
                        t: T.int64 = (task * block + r) * hop + p - centre
                        mirrored: T.int64 = T.Select(t < 0, -t, T.Select(t < n, t, 2 * (n - 1) - t))
                        if mirrored >= 0:
                            S[p, r] = T.cast(X[b, mirrored, 0], "float64") + T.cast(X[b, mirrored, 1], "float64")
                        else:
                            # Only frames beyond the last one see this.
                            S[p, r] = T.float64(0)
                for group in range(block // lanes):
                    first: T.int64 = task * block + group * lanes
                    if first < frames:
                        _store_folded(folded, S, group * lanes, lanes)
                        _store_spectrum(spectrum, folded, matrix, lanes)
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
        padded = np.pad(x[b, :n].astype(np.float64).sum(axis=-1), n_fft // 2, mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(padded, n_fft)[::hop]
        spectrum = np.fft.rfft(frames * hann_window(n_fft))
        # A frame that is its own mirror image has a real spectrum; what the FFT leaves there is rounding noise.
        spectrum.imag[np.all(frames[:, 1:] == frames[:, :0:-1], axis=1)] = 0
        outputs.append(np.concatenate([np.abs(spectrum), np.angle(spectrum)], axis=1))
    return outputs
