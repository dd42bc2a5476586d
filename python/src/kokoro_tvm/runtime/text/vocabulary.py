"""Phonemes to token ids.

What it is: the model's symbol table with the reference's rule that a symbol it does not know is dropped, here told to the
caller instead of silently. What it is not: a tokenizer; every symbol is one character.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kokoro_tvm.config import STYLE_ROWS
from kokoro_tvm.errors import CheckpointError, InputError

BOUNDARY_ID = 0
"""Begins and ends every id sequence."""


@dataclass(frozen=True)
class Encoded:
    """A phoneme string as the model takes it.

    Attributes:
        ids: int64 [n + 2]: ``0``, the ids of the ``n`` known symbols, ``0``.
        dropped: The unknown symbols in the order they were met, repeats included; empty when all were known.
    """

    ids: np.ndarray
    dropped: str


class Vocabulary:
    """The symbols a model knows.

    Args:
        mapping: Symbol (one character) to id (positive, unique), as ``vocab`` in ``config.json``.

    Raises:
        CheckpointError: Naming every bad entry at once.
    """

    def __init__(self, mapping: Mapping[str, int]) -> None:
        problems = [f"symbol {s!r} is not one character" for s in mapping if not isinstance(s, str) or len(s) != 1]
        problems += [f"{s!r} has id {i!r}, not a positive integer" for s, i in mapping.items() if not _is_id(i)]
        if not mapping:
            problems.append("no symbols")
        if not problems and len(set(mapping.values())) < len(mapping):
            problems.append("two symbols share an id")
        if problems:
            raise CheckpointError("vocabulary: " + "; ".join(problems))
        self._ids = dict(mapping)

    def __contains__(self, symbol: object) -> bool:
        return symbol in self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def encode(self, phonemes: str) -> Encoded:
        """Maps phonemes to ids, dropping unknown symbols.

        Args:
            phonemes: Any string; empty gives just the two boundaries.

        Raises:
            InputError: Not a string, or more than 510 known symbols (split the text first).
        """
        if not isinstance(phonemes, str):
            raise InputError(f"phonemes are {type(phonemes).__name__}, expected str")
        ids = [self._ids[p] for p in phonemes if p in self._ids]
        if len(ids) > STYLE_ROWS:
            raise InputError(f"{len(ids)} phonemes, at most {STYLE_ROWS} fit one window: split them with windows.split")
        dropped = "".join(p for p in phonemes if p not in self._ids)
        return Encoded(np.array([BOUNDARY_ID, *ids, BOUNDARY_ID], dtype=np.int64), dropped)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
