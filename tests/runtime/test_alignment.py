"""Durations to frames: the reference's rounding, and a gather that equals its one-hot product."""

from __future__ import annotations

import numpy as np
import pytest

from kokoro_tvm.errors import InputError
from kokoro_tvm.runtime.alignment import MAX_FRAMES, check_speed, expand, frame_counts, frame_index

torch = pytest.importorskip("torch")


def test_rounds_half_to_even_and_clamps():
    counts = frame_counts(np.array([0.0, 0.4, 0.5, 1.5, 2.5, 3.5, 49.9], dtype=np.float32))
    assert counts.tolist() == [1, 1, 1, 2, 2, 4, 50] and counts.dtype == np.int64


@pytest.mark.parametrize("speed", [1, 0.5, 0.7, 0.9, 1.1, 1.25, 1 / 3, 2, 5.0, np.float32(1.3)])
def test_equals_the_reference(speed):
    duration = torch.rand(2_000, generator=torch.Generator().manual_seed(1)) * 50
    # Halves after division are where float32 and float64 would part.
    duration[:400] = (torch.arange(400) + 0.5) * float(speed)
    expected = torch.round(duration / float(speed)).clamp(min=1).long()
    np.testing.assert_array_equal(frame_counts(duration.numpy(), speed), expected.numpy())


@pytest.mark.parametrize("speed", [0, -1, -0.0, float("nan"), float("inf"), "1", None, True, [1.0]])
def test_bad_speed(speed):
    with pytest.raises(InputError, match="speed is"):
        check_speed(speed)
    with pytest.raises(InputError, match="speed is"):
        frame_counts(np.ones(3, dtype=np.float32), speed)


@pytest.mark.parametrize("speed", [1e-6, 1e-30, 5e-324])
def test_a_tiny_speed_is_refused_before_it_overflows(speed):
    with pytest.raises(InputError, match=f"more than {MAX_FRAMES} frames"):
        frame_counts(np.ones(3, dtype=np.float32), speed)


def test_a_huge_speed_gives_one_frame_a_token():
    assert frame_counts(np.full(3, 50, dtype=np.float32), 1e300).tolist() == [1, 1, 1]


@pytest.mark.parametrize("duration", [np.zeros((1, 3)), np.zeros(0), np.array([1, np.nan]), np.array([np.inf])])
def test_bad_durations(duration):
    with pytest.raises(InputError, match="duration"):
        frame_counts(duration)


def test_index_repeats_each_token():
    assert frame_index(np.array([2, 1, 3])).tolist() == [0, 0, 1, 2, 2, 2]


@pytest.mark.parametrize("pred_dur", [np.array([1.0]), np.array([[1]]), np.array([1, 0]), np.array([-1])])
def test_bad_pred_dur(pred_dur):
    with pytest.raises(InputError, match="pred_dur"):
        frame_index(pred_dur)


def test_expand_equals_the_one_hot_product():
    rng = np.random.default_rng(0)
    pred_dur = rng.integers(1, 9, 30)
    features = rng.standard_normal((64, 30)).astype(np.float32)
    one_hot = np.zeros((30, pred_dur.sum()), dtype=np.float32)
    one_hot[frame_index(pred_dur), np.arange(pred_dur.sum())] = 1
    np.testing.assert_array_equal(expand(features, pred_dur), features @ one_hot)
    np.testing.assert_array_equal(expand(features.T, pred_dur, axis=0), (features @ one_hot).T)
    batched = expand(features[None], pred_dur)
    assert batched.shape == (1, 64, pred_dur.sum()) and batched.flags.c_contiguous and batched.dtype == np.float32


@pytest.mark.parametrize("axis", [0, -1, 5])
def test_expand_checks_the_token_axis(axis):
    with pytest.raises(InputError, match="pred_dur has 4"):
        expand(np.zeros((2, 3), dtype=np.float32), np.ones(4, dtype=np.int64), axis=axis)
