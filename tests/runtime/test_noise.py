"""Source noise: a pure function of seed, window and frame."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kokoro_tvm.errors import InputError
from kokoro_tvm.runtime.noise import source_noise


def test_shape_and_dtype():
    noise = source_noise(0, 3)
    assert noise.shape == (1800, 9) and noise.dtype == np.float32 and noise.flags.c_contiguous
    assert source_noise(0, 0).shape == (0, 9)


def test_a_longer_draw_begins_with_the_shorter_one():
    long = source_noise(7, 40)
    for frames in (1, 2, 13, 39):
        np.testing.assert_array_equal(source_noise(7, frames), long[: 600 * frames])


def test_any_frame_can_be_reached_directly():
    whole = source_noise(7, 20, window=3)
    np.testing.assert_array_equal(source_noise(7, 6, window=3, first_frame=14), whole[14 * 600 :])


def test_same_in_any_number_of_threads():
    expected = [source_noise(1, 8, window=w) for w in range(6)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda w: source_noise(1, 8, window=w), range(6)))
    np.testing.assert_array_equal(found, expected)


def test_seeds_and_windows_are_independent():
    draws = [source_noise(s, 50, window=w).ravel() for s, w in ((0, 0), (0, 1), (1, 0), (1, 1), (2**63 - 1, 0))]
    correlation = np.corrcoef(draws) - np.eye(len(draws))
    assert np.abs(correlation).max() < 0.01


def test_is_standard_normal_in_every_harmonic_and_over_time():
    noise = source_noise(3, 200)
    assert np.isfinite(noise).all() and 4.5 < np.abs(noise).max() < 6.8
    np.testing.assert_allclose(noise.mean(axis=0), 0, atol=0.015)
    np.testing.assert_allclose(noise.std(axis=0), 1, atol=0.01)
    correlation = np.corrcoef(noise.T) - np.eye(9)
    assert np.abs(correlation).max() < 0.015
    flat = noise.ravel()
    for lag in (1, 9, 600, 2700, 5400):
        assert abs(np.mean(flat[lag:] * flat[:-lag])) < 0.005
    # Tails: 0.27 % beyond three standard deviations.
    assert abs((np.abs(flat) > 3).mean() - 0.0027) < 0.0003


def test_the_stream_is_the_documented_one():
    # Rounded, because the last bits of log, sin and cos are the machine's.
    rounded = np.round(source_noise(42, 2, window=1), 3) + 0.0
    assert rounded[0, :3].tolist() == pytest.approx([0.248, -1.191, -0.782], abs=2e-3)


@pytest.mark.parametrize("seed", [-1, 2**63, 1.0, "1", None, True, float("nan")])
def test_bad_seed(seed):
    with pytest.raises(InputError, match="seed"):
        source_noise(seed, 1)


@pytest.mark.parametrize("arguments", [{"frames": -1}, {"frames": 1.5}, {"frames": 1, "window": -1}])
def test_bad_counts(arguments):
    with pytest.raises(InputError, match="expected an integer"):
        source_noise(0, **arguments)


def test_numpy_integers_are_integers():
    digest = hashlib.sha256(source_noise(np.int64(5), np.int32(2))).hexdigest()
    assert digest == hashlib.sha256(source_noise(5, 2)).hexdigest()
