"""Harmonic source: the twin against PyTorch in float64, the kernel against the twin."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import tvm
from kokoro.istftnet import SineGen, SourceModuleHnNSF

from kokoro_tvm.kernels import harmonic_source
from kokoro_tvm.kernels.harmonic_source import Source
from kokoro_tvm.kernels.tile import AVX512, SSE

UPSAMPLE, HARMONICS = 300, 9
UNTOUCHED = np.float32(777)


@pytest.fixture(scope="module")
def kernel(harness) -> Callable[..., None]:
    return harness.build(harmonic_source.kernel(Source(), harness.tile))


def _use_threads(count: int) -> None:
    tvm.get_global_func("runtime.config_threadpool")(1, count)


def _f0(rng: np.random.Generator, frames: int) -> np.ndarray:
    """A curve [frames] as the predictor makes it: voiced stretches between 80 and 400 Hz, else around and below zero."""
    voiced = np.repeat(rng.random(-(-frames // 7)) < 0.6, 7)[:frames]
    glide = 240 + 150 * np.sin(np.arange(frames) / 9 + rng.random()) + rng.standard_normal(frames)
    return np.where(voiced, glide, 4 * rng.standard_normal(frames) - 1).astype(np.float32)


def _linear(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return (0.4 * rng.standard_normal(HARMONICS)).astype(np.float32), np.array([-0.03], np.float32)


def _run(
    kernel: Callable[..., None],
    f0: list[np.ndarray],
    noise: list[np.ndarray],
    weight: np.ndarray,
    bias: np.ndarray,
    capacity: int,
) -> np.ndarray:
    """The kernel on a batch whose inputs are NaN beyond each length."""
    batch = len(f0)
    f0_in = np.full((batch, capacity), np.nan, np.float32)
    noise_in = np.full((batch, capacity * UPSAMPLE, HARMONICS), np.nan, np.float32)
    for b in range(batch):
        f0_in[b, : len(f0[b])] = f0[b]
        noise_in[b, : len(noise[b])] = noise[b]
    y = tvm.runtime.tensor(np.full((batch, capacity * UPSAMPLE, 2), UNTOUCHED))
    lengths = np.array([len(f) for f in f0], np.int64)
    kernel(*(tvm.runtime.tensor(a) for a in (f0_in, lengths, noise_in, weight, bias)), y)
    return y.numpy()


def _sums(y: np.ndarray) -> np.ndarray:
    return y.astype(np.float64).sum(axis=-1)


def _sample(rng: np.random.Generator, frames: int) -> tuple[np.ndarray, np.ndarray]:
    return _f0(rng, frames), rng.standard_normal((frames * UPSAMPLE, HARMONICS)).astype(np.float32)


def _twin(f0: np.ndarray, noise: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    return harmonic_source.reference(f0[None], np.array([len(f0)]), noise[None], weight, bias)[0]


def _snr(truth: np.ndarray, value: np.ndarray) -> float:
    return float(10 * np.log10(np.sum(truth**2) / np.sum((value - truth) ** 2)))


@pytest.mark.parametrize("case", ["speech", "negative", "zero", "one frame", "above Nyquist", "alternating"])
def test_twin_equals_pytorch_in_float64(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    f0 = {
        "speech": _f0(rng, 160),
        "negative": np.where(np.arange(40) % 5 < 3, 200.0, -7.5),
        "zero": np.zeros(12),
        "one frame": np.array([183.3]),
        "above Nyquist": np.linspace(2000, 30000, 40),
        "alternating": np.where(np.arange(30) % 2 == 0, 150.0, 0.0),
    }[case].astype(np.float32)
    noise = rng.standard_normal((len(f0) * UPSAMPLE, HARMONICS))
    weight, bias = _linear(rng)
    source = SourceModuleHnNSF(24000, UPSAMPLE, harmonic_num=HARMONICS - 1, voiced_threshod=10).double()
    with torch.no_grad():
        source.l_linear.weight.copy_(torch.from_numpy(weight)[None])
        source.l_linear.bias.copy_(torch.from_numpy(bias))
    injected = torch.from_numpy(noise)[None]
    monkeypatch.setattr(torch, "randn_like", lambda x: injected if x.shape == injected.shape else torch.zeros_like(x))
    # Upstream casts the voiced flags, and with them the noise amplitudes, to float32.
    monkeypatch.setattr(SineGen, "_f02uv", lambda self, f: (f > self.voiced_threshold).to(f.dtype))
    upsampled = torch.from_numpy(f0).double().repeat_interleave(UPSAMPLE)[None, :, None]
    truth = source(upsampled)[0][0, :, 0].detach().numpy()
    np.testing.assert_allclose(_twin(f0, noise, weight, bias), truth, rtol=0, atol=2e-9)


def _check_ragged_batch(kernel: Callable[..., None]) -> None:
    rng = np.random.default_rng(2)
    frames = [2, 77, 1, 40, 8]
    samples = [_sample(rng, n) for n in frames]
    weight, bias = _linear(rng)
    y = _run(kernel, [s[0] for s in samples], [s[1] for s in samples], weight, bias, 80)
    for b, n in enumerate(frames):
        spoken = _sums(y[b, : n * UPSAMPLE])
        np.testing.assert_allclose(spoken, _twin(*samples[b], weight, bias), rtol=0, atol=harmonic_source.TOLERANCE)
        assert np.all(y[b, n * UPSAMPLE :] == UNTOUCHED)


def test_kernel_equals_twin_in_a_ragged_batch(kernel) -> None:
    _check_ragged_batch(kernel)


def test_vectors_of_four(host_harness) -> None:
    _check_ragged_batch(host_harness.build(harmonic_source.kernel(Source(), SSE)))


@pytest.mark.parametrize("value", [0.0, 10.0, 10.001, -3.0, 2666.7, 9000.0])
def test_kernel_at_constant_f0(kernel, value: float) -> None:
    rng = np.random.default_rng(3)
    f0, noise = _sample(rng, 11)
    f0[:] = value
    f0[5] = 220
    weight, bias = _linear(rng)
    y = _run(kernel, [f0], [noise], weight, bias, 11)[0]
    np.testing.assert_allclose(_sums(y), _twin(f0, noise, weight, bias), rtol=0, atol=harmonic_source.TOLERANCE)


def test_empty_sample_is_left_alone(kernel) -> None:
    rng = np.random.default_rng(4)
    weight, bias = _linear(rng)
    empty = (np.zeros(0, np.float32), np.zeros((0, HARMONICS), np.float32))
    full = _sample(rng, 3)
    y = _run(kernel, [empty[0], full[0]], [empty[1], full[1]], weight, bias, 3)
    assert np.all(y[0] == UNTOUCHED)
    np.testing.assert_allclose(_sums(y[1]), _twin(*full, weight, bias), rtol=0, atol=harmonic_source.TOLERANCE)


def test_bits_depend_on_neither_capacity_nor_neighbours_nor_threads(kernel) -> None:
    rng = np.random.default_rng(5)
    samples = [_sample(rng, n) for n in (37, 20)]
    weight, bias = _linear(rng)
    f0, noise = zip(*samples, strict=True)
    alone = _run(kernel, [f0[0]], [noise[0]], weight, bias, 37)[0]
    for factor in (2, 16):
        np.testing.assert_array_equal(_run(kernel, [f0[0]], [noise[0]], weight, bias, 37 * factor)[0, : 37 * UPSAMPLE], alone)
    np.testing.assert_array_equal(_run(kernel, list(f0), list(noise), weight, bias, 37)[0], alone)
    try:
        for threads in (1, 2):
            _use_threads(threads)
            np.testing.assert_array_equal(_run(kernel, [f0[0]], [noise[0]], weight, bias, 37)[0], alone)
    finally:
        _use_threads(2)


def test_error_does_not_grow_over_a_minute(kernel) -> None:
    rng = np.random.default_rng(6)
    f0, noise = _sample(rng, 4800)
    weight, bias = _linear(rng)
    y, truth = _sums(_run(kernel, [f0], [noise], weight, bias, 4800)[0]), _twin(f0, noise, weight, bias)
    first, last = slice(0, 24000), slice(-24000, None)
    assert _snr(truth[first], y[first]) > 230
    assert _snr(truth[last], y[last]) > 200
    assert np.abs(y - truth).max() < harmonic_source.TOLERANCE


def test_odd_upsampling_is_refused() -> None:
    with pytest.raises(ValueError, match="upsample 301"):
        Source(upsample=301)


def test_half_a_frame_must_hold_a_vector() -> None:
    with pytest.raises(ValueError, match="two vectors of 16"):
        harmonic_source.kernel(Source(upsample=30), AVX512)
