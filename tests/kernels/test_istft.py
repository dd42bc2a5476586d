"""Inverse STFT: the twin against torch.istft in float64, the kernel against the twin."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import tvm

from kokoro_tvm.kernels import istft
from kokoro_tvm.kernels.tile import AVX2, SSE

N_FFT, HOP, BINS = 20, 5, 11


@pytest.fixture(scope="module")
def kernel(harness) -> Callable[..., None]:
    return harness.build(istft.kernel(harness.tile))


def _use_threads(count: int) -> None:
    tvm.get_global_func("runtime.config_threadpool")(1, count)


def _channels(rng: np.random.Generator, frames: int) -> np.ndarray:
    """Log-magnitudes and sine arguments [frames, 22] in the range the model makes."""
    x = rng.standard_normal((frames, 2 * BINS))
    x[:, :BINS] = 1.5 * x[:, :BINS] - 4 - 0.3 * np.arange(BINS)
    x[:, BINS:] *= 3
    return x.astype(np.float32)


def _run(kernel: Callable[..., None], channels: list[np.ndarray], capacity: int) -> np.ndarray:
    """The kernel on a batch that is NaN beyond each length."""
    x = np.full((len(channels), capacity, 2 * BINS), np.nan, np.float32)
    for b, rows in enumerate(channels):
        x[b, : len(rows)] = rows
    y = tvm.runtime.tensor(np.full((len(channels), (capacity - 1) * HOP), np.nan, np.float32))
    kernel(tvm.runtime.tensor(x), tvm.runtime.tensor(np.array([len(c) for c in channels], np.int64)), y)
    return y.numpy()


def _twin(channels: np.ndarray) -> np.ndarray:
    return istft.reference(channels[None], np.array([len(channels)]))[0]


def _torch(channels: np.ndarray) -> np.ndarray:
    x = torch.from_numpy(channels).double().T
    window = torch.hann_window(N_FFT, periodic=True, dtype=torch.float64)
    return torch.istft(x[:BINS].exp() * torch.exp(1j * x[BINS:].sin()), N_FFT, HOP, N_FFT, window).numpy()


def _assert_close(y: np.ndarray, truth: np.ndarray) -> None:
    assert np.abs(y - truth).max() <= istft.TOLERANCE * np.abs(truth).max()


@pytest.mark.parametrize("frames", [2, 3, 4, 61, 2401])
def test_twin_equals_torch_in_float64(frames: int) -> None:
    channels = _channels(np.random.default_rng(frames), frames)
    twin = _twin(channels)
    assert len(twin) == (frames - 1) * HOP
    np.testing.assert_allclose(twin, _torch(channels), rtol=0, atol=1e-15)


def _check_ragged_batch(kernel: Callable[..., None]) -> None:
    rng = np.random.default_rng(1)
    channels = [_channels(rng, n) for n in (2, 61, 3, 1000, 97, 98)]
    y = _run(kernel, channels, 1000)
    for b, rows in enumerate(channels):
        valid = (len(rows) - 1) * HOP
        _assert_close(y[b, :valid], _twin(rows))
        np.testing.assert_array_equal(y[b, valid:], 0)


def test_kernel_equals_twin_in_a_ragged_batch(kernel) -> None:
    _check_ragged_batch(kernel)


def test_vectors_of_four(host_harness) -> None:
    _check_ragged_batch(host_harness.build(istft.kernel(SSE)))


def test_signal_to_noise(kernel) -> None:
    channels = _channels(np.random.default_rng(2), 4801)
    truth = _torch(channels)
    error = _run(kernel, [channels], 4801)[0] - truth
    assert 10 * np.log10(np.sum(truth**2) / np.sum(error**2)) > 145


def test_sample_of_one_frame_or_none_is_silent(kernel) -> None:
    channels = _channels(np.random.default_rng(3), 10)
    y = _run(kernel, [channels[:0], channels[:1], channels], 10)
    np.testing.assert_array_equal(y[:2], 0)
    _assert_close(y[2], _twin(channels))


@pytest.mark.parametrize("peak", [-60.0, 80.0, 88.0])
def test_extreme_magnitudes(kernel, peak: float) -> None:
    channels = _channels(np.random.default_rng(4), 61)
    channels[:, :BINS] += peak - channels[:, :BINS].max()
    _assert_close(_run(kernel, [channels], 61)[0], _twin(channels))


def test_large_sine_arguments(kernel) -> None:
    channels = _channels(np.random.default_rng(5), 61)
    channels[:, BINS:] *= 1e4
    _assert_close(_run(kernel, [channels], 61)[0], _twin(channels))


def test_bits_depend_on_neither_capacity_nor_neighbours_nor_threads(kernel) -> None:
    rng = np.random.default_rng(6)
    channels = [_channels(rng, n) for n in (841, 300)]
    alone = _run(kernel, channels[:1], 841)[0]
    for factor in (2, 16):
        np.testing.assert_array_equal(_run(kernel, channels[:1], 841 * factor)[0, : len(alone)], alone)
    np.testing.assert_array_equal(_run(kernel, channels, 841)[0], alone)
    try:
        for threads in (1, 2):
            _use_threads(threads)
            np.testing.assert_array_equal(_run(kernel, channels[:1], 841)[0], alone)
    finally:
        _use_threads(2)


def test_hop_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="hop 4"):
        istft.kernel(AVX2, n_fft=20, hop=4)
