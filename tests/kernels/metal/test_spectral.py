"""Harmonic source, STFT and inverse STFT: where digits are won and lost."""

from __future__ import annotations

import numpy as np
import pytest

from kokoro_tvm.kernels import harmonic_source as cpu_harmonic_source
from kokoro_tvm.kernels import istft as cpu_istft
from kokoro_tvm.kernels import stft as cpu_stft
from kokoro_tvm.kernels.harmonic_source import Source
from kokoro_tvm.kernels.metal import harmonic_source, istft, stft

UPSAMPLE, HARMONICS, RATE = 300, 9, 24000
N_FFT, HOP, BINS = 20, 5, 11
PHASE_BOUND = 1e-4
"""Radians."""


def _f0(rng, frames):
    """A curve [frames]: voiced stretches between 80 and 400 Hz, else around and below zero."""
    voiced = np.repeat(rng.random(-(-frames // 7)) < 0.6, 7)[:frames]
    glide = 240 + 150 * np.sin(np.arange(frames) / 9 + rng.random()) + rng.standard_normal(frames)
    return np.where(voiced, glide, 4 * rng.standard_normal(frames) - 1).astype(np.float32)


def _linear(rng):
    return (0.4 * rng.standard_normal(HARMONICS)).astype(np.float32), np.array([-0.03], np.float32)


def _source_twin(f0, noise, weight, bias):
    return cpu_harmonic_source.reference(f0[None], [len(f0)], noise[None], weight, bias)[0]


def test_harmonic_source(harness):
    lengths = [1, 2, 40, 9]
    f0 = harness.Ragged([_f0(harness.rng, n) for n in lengths])
    noise = harness.ragged(lengths, HARMONICS, rows=lambda n: n * UPSAMPLE)
    weight, bias = _linear(harness.rng)
    sources = [_source_twin(f, z, weight, bias) for f, z in zip(f0.samples, noise.samples, strict=True)]
    harness.check(
        harmonic_source.kernel(Source(), harness.tile),
        [f0, harness.LENGTHS, noise, weight, bias],
        lengths,
        harness.Output(lambda n: (n * UPSAMPLE, 2), rows=lambda n: n * UPSAMPLE),
        [np.stack([s, 0 * s], axis=1) for s in sources],
        harness.bound,
    )


def _sines(harness, f0):
    """Sines of all harmonics as the kernel makes them [harmonics, samples], and their phases in float64.

    One weight at a time and no noise, so small that tanh is the identity: what comes out is the sine.
    """
    small = 2.0**-12
    kernel = harness.build(harmonic_source.kernel(Source(sine_amplitude=small, voiced_threshold=-1e9), harness.tile))
    noise = np.zeros((1, len(f0) * UPSAMPLE, HARMONICS), np.float32)
    sines = []
    for h in range(HARMONICS):
        y = np.zeros((1, len(f0) * UPSAMPLE, 2), np.float32)
        weight = np.eye(HARMONICS, dtype=np.float32)[h]
        y = harness.run(kernel, f0[None], np.array([len(f0)]), noise, weight, np.zeros(1, np.float32), y)[0]
        sines.append(np.arctanh(y[:, 0].astype(np.float64)) / small)
    return np.array(sines)


def _phases(f0):
    """The reference's phases in turns [harmonics, samples], in extended precision."""
    rad = f0.astype(np.longdouble)[:, None] * np.arange(1, HARMONICS + 1) / RATE % 1
    phase = np.cumsum(rad, axis=0) * UPSAMPLE
    position = np.maximum((np.arange(len(f0) * UPSAMPLE) + np.longdouble(0.5)) / UPSAMPLE - np.longdouble(0.5), 0)
    i = position.astype(np.int64)
    w = (position - i)[:, None]
    return ((1 - w) * phase[i] + w * phase[np.minimum(i + 1, len(f0) - 1)]).T % 1


@pytest.mark.parametrize("case", ["speech", "negative", "constant", "above Nyquist"])
def test_phase_of_every_harmonic(harness, case):
    """The sine's error, where it is steep, is the phase's: below 1e-4 rad after a second of audio."""
    f0 = {
        "speech": _f0(np.random.default_rng(1), 80),
        "negative": np.where(np.arange(20) % 5 < 3, 200.0, -7.5),
        "constant": np.full(20, 2666.7),
        "above Nyquist": np.linspace(2000, 16000, 20),
    }[case].astype(np.float32)
    turns = _phases(f0)
    truth = np.sin(2 * np.pi * turns.astype(np.float64))
    slope = np.abs(np.cos(2 * np.pi * turns.astype(np.float64)))
    error = np.abs(_sines(harness, f0) - truth)
    assert error.max() <= PHASE_BOUND
    steep = slope > 0.5
    assert (error[steep] / slope[steep]).max() <= PHASE_BOUND


def _signal(rng, samples):
    """Harmonics and noise as the source makes them, [samples, 2]: a sample is the sum of two."""
    t = np.arange(samples)
    voiced = sum(rng.standard_normal() * np.sin(2 * np.pi * (h * 190 * t / 24000 + 0.1)) for h in range(1, 10))
    exact = 0.05 * voiced * (t // 700 % 2) + 0.01 * rng.standard_normal(samples) - 0.03
    rounded = exact.astype(np.float32)
    return np.stack([rounded, (exact - rounded).astype(np.float32)], axis=1)


def _run_stft(harness, signals, capacity):
    x = np.full((len(signals), capacity, 2), np.nan, np.float32)
    for b, signal in enumerate(signals):
        x[b, : len(signal)] = signal
    y = np.full((len(signals), capacity // HOP + 1, 2 * BINS), 777, np.float32)
    return harness.run(harness.build(stft.kernel(harness.tile)), x, np.array([len(s) for s in signals]), y)


def _assert_spectrum(y, signal):
    truth = cpu_stft.reference(signal[None], [len(signal)])[0]
    magnitude = truth[:, :BINS]
    assert np.abs(y[:, :BINS] - magnitude).max() <= 5e-7 * magnitude.max()
    # No angle jumps by a turn, and none loses digits because its bin is small.
    assert np.abs(y[:, BINS:] - truth[:, BINS:]).max() <= 1e-6


def test_stft_in_a_ragged_batch(harness):
    signals = [_signal(harness.rng, n) for n in (600, 11, 1285, 40)]
    y = _run_stft(harness, signals, 1290)
    for b, signal in enumerate(signals):
        frames = len(signal) // HOP + 1
        _assert_spectrum(y[b, :frames], signal)
        assert np.all(y[b, frames:] == 777)
    for again in (_run_stft(harness, signals, 4000), *harness.one_thread(lambda: [_run_stft(harness, signals, 1290)])):
        for b, signal in enumerate(signals):
            frames = len(signal) // HOP + 1
            assert again[b, :frames].tobytes() == y[b, :frames].tobytes()


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-10, 1e4])
def test_stft_of_any_loudness(harness, scale):
    signal = _signal(harness.rng, 300) * np.float32(scale)
    y = _run_stft(harness, [signal], 300)[0]
    if scale > 1e-20:
        _assert_spectrum(y, signal)
    else:
        assert np.isfinite(y).all()
        assert np.abs(y[:, :BINS]).max() <= 1e-28


def test_stft_of_too_few_samples_is_left_alone(harness):
    assert np.all(_run_stft(harness, [_signal(harness.rng, 10)], 20) == 777)


@pytest.mark.parametrize("n_fft", [19, 40])
def test_transform_that_does_not_fit_is_refused(harness, n_fft):
    with pytest.raises(ValueError, match=f"n_fft {n_fft}"):
        stft.kernel(harness.tile, n_fft=n_fft)


def _channels(rng, frames):
    magnitude = rng.normal(-4, 2, (frames, BINS))
    return np.concatenate([magnitude, rng.normal(0, 2, (frames, BINS))], axis=1).astype(np.float32)


def _run_istft(harness, channels, capacity):
    x = np.full((len(channels), capacity, 2 * BINS), np.nan, np.float32)
    for b, rows in enumerate(channels):
        x[b, : len(rows)] = rows
    y = np.full((len(channels), (capacity - 1) * HOP), np.nan, np.float32)
    return harness.run(harness.build(istft.kernel(harness.tile)), x, np.array([len(c) for c in channels]), y)


def _assert_samples(harness, y, channels):
    truth = cpu_istft.reference(channels[None], [len(channels)])[0]
    assert np.abs(y[: len(truth)] - truth).max() <= harness.bound * np.abs(truth).max()
    np.testing.assert_array_equal(y[len(truth) :], 0)


def test_istft_in_a_ragged_batch(harness):
    channels = [_channels(harness.rng, n) for n in (2, 62, 3, 150, 63, 66, 1)]
    y = _run_istft(harness, channels, 150)
    for b, rows in enumerate(channels[:-1]):
        _assert_samples(harness, y[b], rows)
    np.testing.assert_array_equal(y[-1], 0)
    for again in (_run_istft(harness, channels, 400), *harness.one_thread(lambda: [_run_istft(harness, channels, 150)])):
        assert again[:, : y.shape[1]].tobytes() == y.tobytes()


@pytest.mark.parametrize("peak", [-60.0, 80.0])
def test_extreme_magnitudes(harness, peak):
    channels = _channels(harness.rng, 61)
    channels[:, :BINS] += peak - channels[:, :BINS].max()
    _assert_samples(harness, _run_istft(harness, [channels], 61)[0], channels)


def test_large_sine_arguments(harness):
    channels = _channels(harness.rng, 61)
    channels[:, BINS:] *= 1e3
    _assert_samples(harness, _run_istft(harness, [channels], 61)[0], channels)


def test_hop_that_does_not_divide_is_refused(harness):
    with pytest.raises(ValueError, match="hop 4"):
        istft.kernel(harness.tile, n_fft=20, hop=4)
