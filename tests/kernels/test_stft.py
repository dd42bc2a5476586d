"""STFT: the twin against torch.stft in float64, the kernel against the twin."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import tvm

from kokoro_tvm.kernels import stft
from kokoro_tvm.kernels.tile import AVX2, SSE

N_FFT, HOP, BINS = 20, 5, 11
UNTOUCHED = np.float32(777)


@pytest.fixture(scope="module")
def kernel(harness) -> Callable[..., None]:
    return harness.build(stft.kernel(harness.tile))


def _use_threads(count: int) -> None:
    tvm.get_global_func("runtime.config_threadpool")(1, count)


def _signal(rng: np.random.Generator, samples: int) -> np.ndarray:
    """Harmonics and noise as the source makes them, [samples, 2] float32: a sample is the sum of two."""
    t = np.arange(samples)
    voiced = sum(rng.standard_normal() * np.sin(2 * np.pi * (h * 190 * t / 24000 + 0.1)) for h in range(1, 10))
    exact = 0.05 * voiced * (t // 700 % 2) + 0.01 * rng.standard_normal(samples) - 0.03
    rounded = exact.astype(np.float32)
    return np.stack([rounded, (exact - rounded).astype(np.float32)], axis=1)


def _run(kernel: Callable[..., None], signals: list[np.ndarray], capacity: int) -> np.ndarray:
    """The kernel on a batch that is NaN beyond each length."""
    x = np.full((len(signals), capacity, 2), np.nan, np.float32)
    for b, signal in enumerate(signals):
        x[b, : len(signal)] = signal
    y = tvm.runtime.tensor(np.full((len(signals), capacity // HOP + 1, 2 * BINS), UNTOUCHED))
    kernel(tvm.runtime.tensor(x), tvm.runtime.tensor(np.array([len(s) for s in signals], np.int64)), y)
    return y.numpy()


def _twin(signal: np.ndarray) -> np.ndarray:
    return stft.reference(signal[None], np.array([len(signal)]))[0]


def _assert_close(y: np.ndarray, truth: np.ndarray) -> None:
    magnitude = truth[:, :BINS]
    assert np.abs(y[:, :BINS] - magnitude).max() <= stft.TOLERANCE * magnitude.max()
    # Rounding to float32 moves an angle within half a step of float32(pi); nothing jumps by a turn.
    assert np.abs(y[:, BINS:] - truth[:, BINS:]).max() <= stft.TOLERANCE


def test_window_is_torch_hann_window() -> None:
    truth = torch.hann_window(N_FFT, periodic=True, dtype=torch.float64).numpy()
    np.testing.assert_allclose(stft.hann_window(N_FFT), truth, rtol=0, atol=1e-16)


def test_twin_equals_torch_in_float64() -> None:
    signal = _signal(np.random.default_rng(1), 24000)
    window = torch.hann_window(N_FFT, periodic=True, dtype=torch.float64)
    truth = torch.stft(torch.from_numpy(signal).double().sum(dim=1), N_FFT, HOP, N_FFT, window, return_complex=True).T
    twin = _twin(signal)
    np.testing.assert_allclose(twin[:, :BINS], truth.abs().numpy(), rtol=0, atol=1e-15)
    difference = twin[:, BINS:] - truth.angle().numpy()
    # Frame 0 is its own mirror image: the sign of torch's π is an accident there.
    difference[0] -= 2 * np.pi * np.round(difference[0] / (2 * np.pi))
    assert np.abs(difference).max() < 1e-10


def _check_ragged_batch(kernel: Callable[..., None]) -> None:
    rng = np.random.default_rng(2)
    # The shortest that can be reflected, lengths that hop does and does not divide, the whole capacity.
    signals = [_signal(rng, n) for n in (11, 600, 2403, 5000, 479, 480)]
    y = _run(kernel, signals, 5000)
    for b, signal in enumerate(signals):
        frames = len(signal) // HOP + 1
        _assert_close(y[b, :frames], _twin(signal))
        assert np.all(y[b, frames:] == UNTOUCHED)


def test_kernel_equals_twin_in_a_ragged_batch(kernel) -> None:
    _check_ragged_batch(kernel)


def test_vectors_of_four(host_harness) -> None:
    _check_ragged_batch(host_harness.build(stft.kernel(SSE)))


def test_edge_bins_have_no_imaginary_part(kernel) -> None:
    y = _run(kernel, [_signal(np.random.default_rng(3), 6000)], 6000)[0]
    edges = y[:, [BINS, 2 * BINS - 1]]
    assert set(np.unique(edges)) <= {np.float32(0), np.float32(np.pi)}
    assert not np.signbit(edges).any()
    assert (edges > 0).any() and (edges == 0).any()


@pytest.mark.parametrize("samples", [600, 601])
def test_frame_that_is_its_own_mirror_image_has_a_real_spectrum(kernel, samples: int) -> None:
    rng = np.random.default_rng(6)
    y = _run(kernel, [_signal(rng, samples)], samples)[0]
    # 601 samples: the last frame is centred on the last sample, where the signal is reflected too.
    for frame in (0, -1) if samples % HOP == 1 else (0,):
        assert set(np.unique(y[frame, BINS:])) == {np.float32(0), np.float32(np.pi)}
    assert len(np.unique(y[1, BINS:])) > 2


def test_silence_has_phase_zero(kernel) -> None:
    np.testing.assert_array_equal(_run(kernel, [np.zeros((600, 2), np.float32)], 600)[0], 0)


def test_too_short_sample_is_left_alone(kernel) -> None:
    signal = _signal(np.random.default_rng(4), 600)
    y = _run(kernel, [signal[:0], signal[:10], signal], 600)
    assert np.all(y[:2] == UNTOUCHED)
    _assert_close(y[2], _twin(signal))


def test_bits_depend_on_neither_capacity_nor_neighbours_nor_threads(kernel) -> None:
    rng = np.random.default_rng(5)
    signals = [_signal(rng, n) for n in (4200, 1300)]
    alone = _run(kernel, signals[:1], 4200)[0]
    for factor in (2, 16):
        np.testing.assert_array_equal(_run(kernel, signals[:1], 4200 * factor)[0, : len(alone)], alone)
    np.testing.assert_array_equal(_run(kernel, signals, 4200)[0], alone)
    try:
        for threads in (1, 2):
            _use_threads(threads)
            np.testing.assert_array_equal(_run(kernel, signals[:1], 4200)[0], alone)
    finally:
        _use_threads(2)


def test_hop_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="hop 4"):
        stft.kernel(AVX2, n_fft=20, hop=4)
