"""The pronunciation of words that no lexicon has.

What it is: a convolutional network of letters in NumPy, trained with CTC on misaki's gold lexicon (``scripts/train_unknown``),
int8 in ``unknown_us.npz`` and ``unknown_gb.npz``. What it is not: a judge of whether a word should be spelled out.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from kokoro_tvm.runtime.text.english.lexicon import PRIMARY, VOWELS

LETTERS = "abcdefghijklmnopqrstuvwxyz'"
SLOTS = 3
"""Places for a symbol, or none, that each letter has."""
LONGEST = 64
"""Letters of a word at most; what is longer is none."""
_ROWS = 8
"""Letters in one matrix product: libraries leave products this small to one thread, and take longer to wake a second."""
_STRESSES_NOTHING = re.compile(f"[ˈˌ](?=[^{''.join(sorted(VOWELS))}ˈˌ]*(?:[ˈˌ]|$))")


class Unknown:
    """A network; safe to share between threads.

    Args:
        path: An ``.npz`` file: the letters' embedding [letters + 1, C], blocks of convolutions [K * C, C], the output
            [C, SLOTS * (symbols + 1)], matrices in 8 bits with a scale for each column.
    """

    def __init__(self, path: Path | Any) -> None:
        with path.open("rb") as file, np.load(file) as data:
            self.symbols = str(data["symbols"])
            self._embedding = data["embedding"].astype(np.float32)
            channels = self._embedding.shape[1]
            count = sum(name.endswith(".weight") for name in data) - 1
            blocks = [_matrix(data, f"c{i}") for i in range(count)]
            self._blocks = [(weight.reshape(-1, 1, channels, channels), bias) for weight, bias in blocks]
            self._out = _matrix(data, "out")
        self._read = lru_cache(maxsize=4096)(self._read_anew)

    def __call__(self, word: str) -> str:
        """Phonemes of a word of at most ``LONGEST`` letters, what is not a letter from a to z ignored; empty if it has none."""
        return self._read("".join(c for c in word.lower() if c in LETTERS)[:LONGEST])

    def _read_anew(self, letters: str) -> str:
        if not letters:
            return ""
        length, channels = len(letters), self._embedding.shape[1]
        tiles = -(-length // _ROWS)
        x = np.zeros((tiles * _ROWS, channels), np.float32)
        x[:length] = self._embedding[[LETTERS.index(c) + 1 for c in letters]]  # [L, C]
        for weight, bias in self._blocks:
            reach = len(weight) // 2
            padded = np.zeros((len(x) + 2 * reach, channels), np.float32)
            padded[reach : reach + len(x)] = x
            row, item = padded.strides
            taps = np.lib.stride_tricks.as_strided(
                padded, (len(weight), tiles, _ROWS, channels), (row, _ROWS * row, row, item), writeable=False
            )
            sums = np.matmul(taps, weight).sum(0).reshape(x.shape)
            x[:length] += np.maximum(sums[:length] + bias, 0)
        weight, bias = self._out
        scores = np.matmul(x.reshape(tiles, _ROWS, channels), weight).reshape(len(x), -1)[:length] + bias
        return self._best(scores.reshape(SLOTS * length, -1))

    def _best(self, scores: np.ndarray) -> str:
        """The best path through scores [SLOTS * L, symbols + 1] with one primary stress; repeated symbols are one."""
        primary = self.symbols.index(PRIMARY) + 1
        others = scores.copy()
        others[:, primary] = -np.inf
        path = others.argmax(1)
        path[(scores[:, primary] - others.max(1)).argmax()] = primary
        kept = path[(path > 0) & (np.diff(path, prepend=0) != 0)]
        return one_stress("".join(self.symbols[i - 1] for i in kept))


def _matrix(data: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    return data[f"{name}.weight"].astype(np.float32) * data[f"{name}.scale"], data[f"{name}.bias"]


def one_stress(phonemes: str) -> str:
    """A word with one primary stress.

    A mark with no vowel before the next mark stresses nothing, and goes. Of several primary stresses the first stays; where
    there is none, the first secondary stress becomes it, else the first full vowel gets it.
    """
    phonemes = _STRESSES_NOTHING.sub("", phonemes)
    first = phonemes.find("ˈ")
    if first >= 0:
        return phonemes[: first + 1] + phonemes[first + 1 :].replace("ˈ", "ˌ")
    if "ˌ" in phonemes:
        return phonemes.replace("ˌ", "ˈ", 1)
    at = next((i for i, c in enumerate(phonemes) if c in VOWELS and c not in "əᵻ"), None)
    at = next((i for i, c in enumerate(phonemes) if c in VOWELS), None) if at is None else at
    return phonemes if at is None else f"{phonemes[:at]}ˈ{phonemes[at:]}"


@lru_cache(maxsize=2)
def load(british: bool) -> Unknown:
    """The network that is shipped."""
    return Unknown(resources.files(__package__).joinpath(f"unknown_{'gb' if british else 'us'}.npz"))
