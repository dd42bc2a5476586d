"""What the engines say: phonemes whose audio lasts about as long as was asked for.

What it is: real sentences, repeated and cut to length, as token ids; the same for every engine. What it is not: text, or a
choice of durations: those are each engine's own prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kokoro_tvm.bench.peers import Window
from kokoro_tvm.config import SAMPLE_RATE, SAMPLES_PER_FRAME
from kokoro_tvm.errors import InputError
from kokoro_tvm.reference.cases import CASES
from kokoro_tvm.runtime.text.vocabulary import Vocabulary
from kokoro_tvm.runtime.text.windows import MAX_PHONEMES
from kokoro_tvm.runtime.voices import Voice

FRAMES_PER_SECOND = SAMPLE_RATE / SAMPLES_PER_FRAME
SENTENCES = ("twelve seconds", "four seconds", "seven seconds", "digits", "question", "plosives")
"""Names of ``reference.cases``, spoken one after the other."""
_STEPS = 6
_AROUND = 16
_CLOSE = 0.02
"""Relative: what counts as the length that was asked for."""

Durations = Callable[[Window], np.ndarray]
"""Frames per token that an engine predicts for a window."""


@dataclass(frozen=True)
class Utterance:
    """What is said in one measurement.

    Attributes:
        wanted: Seconds that were asked for.
        windows: One call of the model each; the first one's audio is the first that is heard.
        durations: Frames per token of every window, as our engine predicts them.
    """

    wanted: float
    windows: tuple[Window, ...]
    durations: tuple[np.ndarray, ...]

    @property
    def samples(self) -> int:
        """Of all windows."""
        return SAMPLES_PER_FRAME * int(sum(d.sum() for d in self.durations))

    @property
    def seconds(self) -> float:
        """Length of the audio."""
        return self.samples / SAMPLE_RATE


def window(phonemes: str, voice: np.ndarray, vocabulary: dict[str, int]) -> Window:
    """A window of phonemes in a voice (float32 [510, 1, 256])."""
    ids = np.asarray(Vocabulary(vocabulary).encode(phonemes).ids, np.int64)[None]
    return Window(phonemes, np.ascontiguousarray(ids), Voice.from_array(voice).row(len(phonemes)).copy()[None])


def utterance(seconds: float, voice: np.ndarray, vocabulary: dict[str, int], durations: Durations) -> Utterance:
    """Finds phonemes that last about ``seconds``; several windows where one cannot.

    Args:
        seconds: Wanted length of the audio.
        voice: float32 [510, 1, 256].
        vocabulary: Phoneme to token id.
        durations: Asks an engine.

    Raises:
        InputError: ``seconds`` is not a positive number.
    """
    if not (math.isfinite(seconds) and seconds > 0):
        raise InputError(f"seconds must be positive, got {seconds}")
    words = " ".join(c.phonemes for name in SENTENCES for c in CASES if c.name == name).split(" ")

    def said(count: int, skip: int) -> tuple[Window, np.ndarray]:
        text = " ".join(words[(skip + i) % len(words)] for i in range(count + 1))
        # The last word may be cut short: short utterances would otherwise be far from what was asked for.
        made = window(text[:count], voice, vocabulary)
        return made, durations(made)

    longest = int(said(MAX_PHONEMES, 0)[1].sum())
    count = max(1, math.ceil(seconds * FRAMES_PER_SECOND / longest))
    found = [_fitted(seconds * FRAMES_PER_SECOND / count, lambda n, i=i: said(n, 7 * i)) for i in range(count)]
    return Utterance(seconds, tuple(w for w, _ in found), tuple(d for _, d in found))


def _fitted(frames: float, said: Callable[[int], tuple[Window, np.ndarray]]) -> tuple[Window, np.ndarray]:
    """The closest to ``frames`` that a few steps find; predictions depend on what follows, so there is no exact way."""
    best = None
    size = min(MAX_PHONEMES, max(1, round(frames / 2.5)))
    for _ in range(_STEPS):
        made = said(size)
        got = int(made[1].sum())
        if best is None or abs(got - frames) < abs(int(best[1].sum()) - frames):
            best = made
        if abs(got - frames) <= _CLOSE * frames:
            break
        size = min(MAX_PHONEMES, max(1, round(size * frames / got)))
    assert best is not None
    # Short ones jump from size to size: look around.
    size = len(best[0].phonemes)
    for near in sorted(range(max(1, size - _AROUND), min(MAX_PHONEMES, size + _AROUND) + 1), key=lambda n: abs(n - size)):
        if abs(int(best[1].sum()) - frames) <= _CLOSE * frames:
            break
        made = said(near)
        best = min(best, made, key=lambda m: abs(int(m[1].sum()) - frames))
    return best
