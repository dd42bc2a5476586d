"""Harmonic source of the vocoder: F0 to an excitation signal, phase accumulated in float64.

What it is: ``SineGen`` and ``SourceModuleHnNSF`` of kokoro's ``istftnet.py`` behind ``f0_upsamp``, in one pass. What it is
not: a source of randomness; the noise is an input.

Shapes: f0 [B, F] Hz, lengths [B] int64 = valid F0 values, noise [B, F * upsample, harmonics], y [B, F * upsample, 2]. F0 and
noise beyond the valid length are never read (they may hold NaN), output beyond it is not written.

``y[..., 0]`` is a sample in float32, ``y[..., 1]`` what that rounds off. It matters: the phase of a bin of the source's spectrum
near ±π hangs on the sign of an imaginary part that may be smaller (NOTES/007).

Why it is exact where float32 PyTorch loses 60 dB: between the centres of two frames the interpolated phase is linear,
``upsample * c[i] + (j + 1/2) * f[i + 1]`` cycles with ``c`` the running sum of ``f = frac(harmonic * f0 / rate)``. Whole
cycles drop out, so one running sum of F0 serves all harmonics. One trace of ``frac`` remains: the half in ``j + 1/2`` times
the dropped whole number, which is the sign (-1)^floor(harmonic * f0 / rate). It matters for negative F0, where every floor is
-1.

Then harmonic h is ``sin(h θ)`` of one common θ, and the weighted sum over the harmonics is Clenshaw's recurrence: one sine and
one cosine per sample instead of one per harmonic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels import vector_math_f64
from kokoro_tvm.kernels.tile import Tile
from kokoro_tvm.kernels.vector_math_f64 import Expr

TOLERANCE = 1e-10
"""Largest error of a value, both parts together, relative to 1 (the range of tanh), after a minute: the running sum of F0 has
2e4 whole turns by then, which leave 40 bits for the rest."""

_FRAMES = 8
"""F0 values per task: 0.1 s of audio."""


@dataclass(frozen=True)
class Source:
    """Sizes and constants of the source; the defaults are the model's.

    Attributes:
        upsample: Samples per F0 value; even, so that the centre of a frame lies between two samples.
        harmonics: Number of sines, fundamental included.
        sampling_rate: Samples per second.
        sine_amplitude: Amplitude of each sine; a third of it is the noise's standard deviation where unvoiced.
        noise_std: Standard deviation of the noise where voiced.
        voiced_threshold: F0 in Hz above which a frame is voiced.
    """

    upsample: int = 300
    harmonics: int = 9
    sampling_rate: int = 24000
    sine_amplitude: float = 0.1
    noise_std: float = 0.003
    voiced_threshold: float = 10.0

    def __post_init__(self) -> None:
        if self.upsample % 2:
            raise ValueError(f"upsample {self.upsample} is odd")


def _parity_sign(x: Expr) -> Expr:
    """(-1)^floor(x), as a float64."""
    n = T.floor(x)
    return T.float64(1) - T.float64(2) * (n - T.float64(2) * T.floor(n * T.float64(0.5)))


def _weighted_noise_and_bias(noise: T.Buffer, weight: T.Buffer, bias: T.Buffer, spread: Expr, b: Expr, t: Expr) -> Expr:
    """``spread * noise[b, t] · weight + bias``; a Python loop, to stay one expression in a vectorized loop."""
    value = T.float64(0)
    for h in range(int(weight.shape[0])):
        value = T.fma(T.cast(noise[b, t, h], "float64"), T.cast(weight[h], "float64"), value)
    return T.fma(value, spread, T.cast(bias[0], "float64"))


def kernel(source: Source, tile: Tile) -> PrimFunc:
    """Builds the PrimFunc.

    Returns:
        ``f(f0, lengths, noise, weight, bias, y)`` with ``weight`` [harmonics] and ``bias`` [1] of ``l_linear``.

    Raises:
        ValueError: ``upsample`` is shorter than two vectors.
    """
    lanes = tile.lanes
    upsample, harmonics = source.upsample, source.harmonics
    half = upsample // 2
    if half < lanes:
        raise ValueError(f"upsample {upsample} is less than two vectors of {lanes}")
    vectors = -(-half // lanes)
    cycles_per_sum = upsample / source.sampling_rate

    @T.prim_func
    def harmonic_source(
        f0_h: T.handle, lengths_h: T.handle, noise_h: T.handle, weight_h: T.handle, bias_h: T.handle, y_h: T.handle
    ):
        T.func_attr({"tirx.noalias": True})
        B = T.int64()
        F = T.int64()
        f0 = T.match_buffer(f0_h, (B, F), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        noise = T.match_buffer(noise_h, (B, F * upsample, harmonics), "float32")
        weight = T.match_buffer(weight_h, (harmonics,), "float32")
        bias = T.match_buffer(bias_h, (1,), "float32")
        Y = T.match_buffer(y_h, (B, F * upsample, 2), "float32")
        # Running sum of F0. Sized by the capacity, but only the valid part is touched; beside the noise it is nothing.
        C = T.alloc_buffer((F,), "float64")
        for b in range(B):
            n: T.int64 = L[b]
            if n > 0:
                C[0] = T.cast(f0[b, 0], "float64")
            for i in range(n - 1):
                C[i + 1] = C[i] + T.cast(f0[b, i + 1], "float64")
            for task in T.parallel((n + _FRAMES - 1) // _FRAMES):
                for q in range(2 * _FRAMES):
                    # Half a frame: from its start to its centre, or from its centre to its end.
                    i: T.int64 = task * _FRAMES + q // 2
                    if i < n:
                        before: T.int64 = T.max(i - 1 + q % 2, T.int64(0))
                        after: T.int64 = T.min(i + q % 2, n - 1)
                        sine = T.alloc_buffer((harmonics,), "float64", scope="local")
                        frequency: T.float64 = T.cast(f0[b, after], "float64") / T.float64(source.sampling_rate)
                        # Before the first centre and after the last one the phase stands still (clamped interpolation).
                        slope: T.float64 = T.Select(before == after, T.float64(0), frequency)
                        voiced: T.bool = f0[b, i] > T.float32(source.voiced_threshold)
                        start: T.float64 = vector_math_f64.turns(C[before] * T.float64(cycles_per_sum))
                        offset: T.float64 = T.float64(0.5) + T.Select(q % 2 == 0, T.float64(half), T.float64(0))
                        amplitude: T.float64 = T.Select(voiced, T.float64(source.sine_amplitude), T.float64(0))
                        spread: T.float64 = T.Select(voiced, T.float64(source.noise_std), T.float64(source.sine_amplitude / 3))
                        for h in range(harmonics):
                            sign: T.float64 = _parity_sign(T.cast(h + 1, "float64") * slope)
                            sine[h] = T.cast(weight[h], "float64") * amplitude * sign
                        for v in range(vectors):
                            # The last vector overlaps the one before it: no tail loop.
                            j0: T.int64 = T.min(v * lanes, half - lanes)
                            t: T.int64 = i * upsample + q % 2 * half + j0
                            theta = T.alloc_buffer((lanes,), "float64", scope="local")
                            twice_cos = T.alloc_buffer((lanes,), "float64", scope="local")
                            # Clenshaw: sum of sine[h] sin((h + 1) θ) = sin(θ) U[0]
                            # with U[h] = sine[h] + 2 cos(θ) U[h + 1] - U[h + 2].
                            U = T.alloc_buffer((harmonics + 2, lanes), "float64", scope="local")
                            for j in T.vectorized(lanes):
                                theta[j] = vector_math_f64.turns(T.fma(T.cast(j0 + j, "float64") + offset, slope, start))
                            for j in T.vectorized(lanes):
                                twice_cos[j] = T.float64(2) * vector_math_f64.cos_turns(theta[j])
                            for k in T.unroll(2):
                                for j in T.vectorized(lanes):
                                    U[harmonics + k, j] = T.float64(0)
                            for k in T.unroll(harmonics):
                                for j in T.vectorized(lanes):
                                    U[harmonics - 1 - k, j] = T.fma(
                                        twice_cos[j], U[harmonics - k, j], sine[harmonics - 1 - k] - U[harmonics + 1 - k, j]
                                    )
                            for j in T.vectorized(lanes):
                                U[1, j] = T.fma(
                                    vector_math_f64.sin_turns(theta[j]),
                                    U[0, j],
                                    _weighted_noise_and_bias(noise, weight, bias, spread, b, t + j),
                                )
                            for j in T.vectorized(lanes):
                                U[1, j] = vector_math_f64.tanh(U[1, j])
                            for j in T.vectorized(lanes):
                                Y[b, t + j, 0] = T.cast(U[1, j], "float32")
                            for j in T.vectorized(lanes):
                                Y[b, t + j, 1] = T.cast(U[1, j] - T.cast(T.cast(U[1, j], "float32"), "float64"), "float32")

    return harmonic_source


def reference(
    f0: np.ndarray, lengths: np.ndarray, noise: np.ndarray, weight: np.ndarray, bias: np.ndarray, source: Source = Source()
) -> list[np.ndarray]:
    """``SineGen`` and ``SourceModuleHnNSF`` in NumPy, harmonic by harmonic; one float64 array [upsample * length] per sample.

    Phases, 1e6 rad after a minute, are long doubles where there are any.
    """
    upsample = source.upsample
    outputs = []
    for b, n in enumerate(lengths):
        f = f0[b, :n].astype(np.longdouble)
        rad = f[:, None] * np.arange(1, len(weight) + 1) / source.sampling_rate % 1
        turns = np.cumsum(rad, axis=0) * upsample
        position = np.maximum((np.arange(n * upsample) + np.longdouble(0.5)) / upsample - np.longdouble(0.5), 0)
        i = position.astype(np.int64)
        w = (position - i)[:, None]
        phase = ((1 - w) * turns[i] + w * turns[np.minimum(i + 1, n - 1)]) % 1
        sines = np.sin(2 * np.pi * phase.astype(np.float64))
        uv = np.repeat(f > source.voiced_threshold, upsample)[:, None]
        amplitude = np.where(uv, source.noise_std, source.sine_amplitude / 3)
        waves = source.sine_amplitude * sines * uv + amplitude * noise[b, : n * upsample]
        outputs.append(np.tanh(waves @ weight.astype(np.float64) + float(bias[0])))
    return outputs
