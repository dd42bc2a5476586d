"""Phonemes that last as long as was asked for."""

from __future__ import annotations

import numpy as np
import pytest

from kokoro_tvm.bench.utterance import FRAMES_PER_SECOND, utterance
from kokoro_tvm.errors import InputError
from kokoro_tvm.reference.model import published_config
from kokoro_tvm.runtime.text.windows import MAX_PHONEMES

VOICE = np.broadcast_to(np.arange(510, dtype=np.float32)[:, None], (510, 256)).copy()


@pytest.fixture(scope="module")
def vocabulary():
    return published_config().vocab


def spoken(window):
    """Two frames a phoneme and ten at each end, as markers have."""
    frames = np.full(window.input_ids.shape[1], 2)
    frames[[0, -1]] = 10
    return frames


@pytest.mark.parametrize("seconds", [1.0, 1.5, 3.0, 10.0])
def test_length(seconds, vocabulary):
    said = utterance(seconds, VOICE, vocabulary, spoken)
    assert len(said.windows) == 1
    assert said.seconds == pytest.approx(seconds, rel=0.05)
    assert said.samples == 600 * said.durations[0].sum()


def test_jumps_are_searched_around(vocabulary):
    """Durations that fall back with every tenth phoneme: proportional steps alone end in between."""

    def jumping(window):
        count = window.input_ids.shape[1]
        return np.full(count, 2 + (count % 10 > 5))

    assert utterance(1.5, VOICE, vocabulary, jumping).seconds == pytest.approx(1.5, rel=0.05)


def test_several_windows(vocabulary):
    longest = (2 * MAX_PHONEMES + 20) / FRAMES_PER_SECOND
    said = utterance(2.5 * longest, VOICE, vocabulary, spoken)
    assert len(said.windows) == len(said.durations) == 3
    assert said.seconds == pytest.approx(2.5 * longest, rel=0.05)
    assert len({w.phonemes for w in said.windows}) == 3


def test_windows_are_what_the_model_takes(vocabulary):
    window = utterance(2.0, VOICE, vocabulary, spoken).windows[0]
    assert window.input_ids.dtype == np.int64
    assert window.input_ids[0, [0, -1]].tolist() == [0, 0]
    assert window.input_ids.shape == (1, len(window.phonemes) + 2)
    assert (window.style == len(window.phonemes) - 1).all()


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_length(seconds, vocabulary):
    with pytest.raises(InputError, match="positive"):
        utterance(seconds, VOICE, vocabulary, spoken)
