"""When each word is spoken.

What it is: the reference's word timing, computed from ``pred_dur``; half of every space belongs to the word before it and
half to the word after. What it is not: a forced alignment of the audio.

Two things differ from the reference on purpose. Symbols the model does not know take no time (the reference counts them,
and every later word is late), and a silent token uses up exactly the one space that follows it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kokoro_tvm.config import SAMPLE_RATE, SAMPLES_PER_FRAME
from kokoro_tvm.errors import InputError
from kokoro_tvm.runtime.text.windows import Token, join_phonemes

HALF_FRAMES_PER_SECOND = 2 * SAMPLE_RATE // SAMPLES_PER_FRAME
_LEAD_FRAMES = 3
"""The reference lets the first word begin this long before the opening boundary token ends."""


@dataclass(frozen=True)
class WordTimestamp:
    """One token's place in the audio: ``start`` and ``end`` in seconds."""

    text: str
    start: float
    end: float


def word_timestamps(
    tokens: Sequence[Token], pred_dur: np.ndarray, known: Container[str], offset: float = 0.0
) -> list[WordTimestamp]:
    """Places the tokens of one window in its audio.

    Args:
        tokens: The window's tokens, in order.
        pred_dur: Integer [n + 2], frames of the opening boundary, the n known symbols and the closing boundary.
        known: The symbols that have an id (a ``Vocabulary``).
        offset: Seconds of audio before this window.

    Returns:
        One entry for each token with at least one known symbol, punctuation included. Starts and ends never decrease and
        lie within ``offset`` and ``offset + sum(pred_dur) / 40``. A cut token is one entry in each window it reaches.

    Raises:
        InputError: ``pred_dur`` does not have an entry for each known symbol plus two.
    """
    durations = [int(d) for d in pred_dur]
    spans = list(_known_counts(tokens, known))
    expected = sum(symbols + space for _, symbols, space in spans) + 2
    if len(durations) != expected:
        raise InputError(f"pred_dur has {len(durations)} entries, the tokens need {expected}")
    # In half frames, so that a space can be cut in two: ``left`` is its middle, ``right`` its end.
    left = right = 2 * max(0, durations[0] - _LEAD_FRAMES)
    words: list[WordTimestamp] = []
    at = 1
    for text, symbols, space in spans:
        start, space_frames = left, sum(durations[at + symbols : at + symbols + space])
        left = right + 2 * sum(durations[at : at + symbols]) + space_frames
        right = left + space_frames
        at += symbols + space
        if symbols:
            seconds = [offset + t / HALF_FRAMES_PER_SECOND for t in (start, left)]
            _append(words, WordTimestamp(text, *seconds))
    return words


def _append(words: list[WordTimestamp], word: WordTimestamp) -> None:
    """Appends a word, or lets the last one last longer when this is its continuation."""
    if word.text or not words:
        words.append(word)
    else:
        words[-1] = WordTimestamp(words[-1].text, words[-1].start, word.end)


def _known_counts(tokens: Sequence[Token], known: Container[str]) -> Iterator[tuple[str, int, int]]:
    """Text, known symbols and known following spaces (0 or 1) of each token, as they occur in the joined phonemes."""
    rest = len(join_phonemes(tokens))
    begun = False
    for token in tokens:
        phonemes = token.phonemes + (" " if token.whitespace else "")
        if not begun:
            phonemes = phonemes.lstrip()
            begun = bool(phonemes)
        phonemes, rest = phonemes[:rest], rest - len(phonemes[:rest])
        space = len(phonemes) > len(token.phonemes.lstrip() if not begun else token.phonemes)
        body = phonemes[:-1] if space else phonemes
        yield token.text, sum(p in known for p in body), int(space and " " in known)
