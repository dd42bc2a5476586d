"""What a speech recogniser writes down, and how many of its words are wrong.

What it is: PocketSphinx with the English model of its own wheel, the alignment of what it heard with what was said, and the
word error rate. What it is not: a good recogniser. It mistakes words of the clearest speech; only the difference between two
renderings of the same text says anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kokoro_tvm.errors import ToolchainError
from kokoro_tvm.validate.perceptual import WIDEBAND, resampled


def words(text: str) -> tuple[str, ...]:
    """The words of a text: lower case, letters and apostrophes only. Numbers have to be written out."""
    return tuple(re.findall(r"[a-z]+(?:'[a-z]+)*", text.lower().replace("’", "'")))


@dataclass(frozen=True)
class Pair:
    """A word that was said and what was heard in its place; one of the two is None where nothing was."""

    said: str | None
    heard: str | None

    @property
    def correct(self) -> bool:
        """Whether they are one word."""
        return self.said == self.heard


def align(said: Sequence[str], heard: Sequence[str]) -> tuple[Pair, ...]:
    """The alignment with the fewest substitutions, insertions and deletions (Levenshtein); of several, one that substitutes."""
    rows, columns = len(said), len(heard)
    cost = np.zeros((rows + 1, columns + 1), int)
    cost[:, 0], cost[0] = np.arange(rows + 1), np.arange(columns + 1)
    for i, word in enumerate(said, 1):
        for j, other in enumerate(heard, 1):
            cost[i, j] = min(cost[i - 1, j - 1] + (word != other), cost[i - 1, j] + 1, cost[i, j - 1] + 1)
    pairs: list[Pair] = []
    i, j = rows, columns
    while i or j:
        if i and j and cost[i, j] == cost[i - 1, j - 1] + (said[i - 1] != heard[j - 1]):
            i, j = i - 1, j - 1
            pairs.append(Pair(said[i], heard[j]))
        elif i and cost[i, j] == cost[i - 1, j] + 1:
            i -= 1
            pairs.append(Pair(said[i], None))
        else:
            j -= 1
            pairs.append(Pair(None, heard[j]))
    return tuple(reversed(pairs))


@dataclass(frozen=True)
class Transcript:
    """What was heard of a text.

    Attributes:
        pairs: The alignment.
    """

    pairs: tuple[Pair, ...]

    @property
    def said(self) -> int:
        """Number of words in the text."""
        return sum(p.said is not None for p in self.pairs)

    @property
    def errors(self) -> int:
        """Substitutions, insertions and deletions."""
        return sum(not p.correct for p in self.pairs)

    @property
    def last_heard(self) -> bool:
        """Whether the last word of the text was heard."""
        last = [p for p in self.pairs if p.said is not None][-1:]
        return bool(last) and last[0].correct


def word_error_rate(transcripts: Iterable[Transcript]) -> float:
    """Errors per word over all of them; NaN if there is no word."""
    known = list(transcripts)
    said = sum(t.said for t in known)
    return sum(t.errors for t in known) / said if said else float("nan")


class Recogniser:
    """PocketSphinx, US English; every recording is heard as if it were the first."""

    def __init__(self) -> None:
        try:
            import pocketsphinx
        except ImportError as error:
            raise ToolchainError(f"this needs pocketsphinx ({error}): pip install 'kokoro-tvm[validate]'") from error
        # Cepstra are normalised by their own recording ("batch"), not by those before it.
        self._decoder = pocketsphinx.Decoder(samprate=WIDEBAND, cmn="batch", loglevel="FATAL")

    def knows(self, word: str) -> bool:
        """Whether it can hear this word at all."""
        return self._decoder.lookup_word(word) is not None

    def hear(self, samples: np.ndarray) -> tuple[str, ...]:
        """The words in samples of 24 kHz, full scale ±1; none in silence, or where a sample is not finite."""
        if not (np.any(samples) and np.isfinite(samples).all()):
            return ()
        pcm = np.clip(np.rint(resampled(samples) * 32767), -32768, 32767).astype("<i2").tobytes()
        self._decoder.start_utt()
        self._decoder.process_raw(pcm, full_utt=True)
        self._decoder.end_utt()
        hypothesis = self._decoder.hyp()
        return words(hypothesis.hypstr) if hypothesis else ()

    def transcribe(self, samples: np.ndarray, text: str) -> Transcript:
        """What it hears of a text."""
        return Transcript(align(words(text), self.hear(samples)))
