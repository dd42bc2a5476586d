"""Phonemes to ids."""

from __future__ import annotations

import numpy as np
import pytest

from kokoro_tvm.errors import CheckpointError, InputError
from kokoro_tvm.runtime.text.vocabulary import Vocabulary

VOCABULARY = Vocabulary({".": 4, " ": 16, "a": 43, "ˈ": 156, "\u0303": 17})


def test_wraps_ids_in_boundaries():
    encoded = VOCABULARY.encode("ˈa a.")
    assert encoded.ids.tolist() == [0, 156, 43, 16, 43, 4, 0]
    assert encoded.ids.dtype == np.int64 and encoded.dropped == ""


def test_drops_unknown_symbols_and_says_which():
    encoded = VOCABULARY.encode("a😀b a😀")
    assert encoded.ids.tolist() == [0, 43, 16, 43, 0]
    assert encoded.dropped == "😀b😀"


@pytest.mark.parametrize("phonemes", ["", "❓😀", "\x00"])
def test_nothing_known_is_just_the_boundaries(phonemes):
    assert VOCABULARY.encode(phonemes).ids.tolist() == [0, 0]


def test_a_combining_mark_is_a_symbol_of_its_own():
    assert VOCABULARY.encode("a\u0303").ids.tolist() == [0, 43, 17, 0]


def test_510_symbols_fit_and_511_do_not():
    assert len(VOCABULARY.encode("a" * 510).ids) == 512
    assert len(VOCABULARY.encode("a" * 510 + "?").ids) == 512
    with pytest.raises(InputError, match="511 phonemes"):
        VOCABULARY.encode("a" * 511)


@pytest.mark.parametrize("phonemes", [None, 3, ["a"], b"a"])
def test_not_a_string(phonemes):
    with pytest.raises(InputError, match="expected str"):
        VOCABULARY.encode(phonemes)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({}, "no symbols"),
        ({"ab": 1}, "not one character"),
        ({"a": 0}, "not a positive integer"),
        ({"a": True}, "not a positive integer"),
        ({"a": 1, "b": 1}, "share an id"),
    ],
)
def test_a_bad_mapping_is_refused(mapping, message):
    with pytest.raises(CheckpointError, match=message):
        Vocabulary(mapping)


def test_is_a_container():
    assert "a" in VOCABULARY and "b" not in VOCABULARY and len(VOCABULARY) == 5
