"""Alignment and word error rate by hand-counted examples; the recogniser by what it must not do."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kokoro_tvm.validate.recogniser import Pair, Recogniser, Transcript, align, word_error_rate, words
from kokoro_tvm.validate.speech import sentences


@pytest.fixture(scope="module")
def recogniser():
    return Recogniser()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don’t worry, we can!", ("don't", "worry", "we", "can")),
        ("the(2) 'quoted' words", ("the", "quoted", "words")),
        ("… 42 –", ()),
    ],
)
def test_words(text, expected):
    assert words(text) == expected


@pytest.mark.parametrize(
    ("said", "heard", "errors"),
    [
        ("a b c", "a b c", 0),
        ("a b c", "a x c", 1),
        ("a b c", "a c", 1),
        ("a b c", "a b b c", 1),
        ("a b c", "", 3),
        ("", "a b", 2),
        ("a b c d", "b c d e", 2),  # one said and not heard, one heard and not said: cheaper than four others in place
        ("kitten sits", "sitting", 2),
    ],
)
def test_fewest_errors(said, heard, errors):
    transcript = Transcript(align(said.split(), heard.split()))
    assert transcript.errors == errors
    assert [p.said for p in transcript.pairs if p.said is not None] == said.split()
    assert [p.heard for p in transcript.pairs if p.heard is not None] == heard.split()


def test_edits_are_where_they_belong():
    pairs = align("the old man walked down".split(), "the man walk down town".split())
    expected = (("the", "the"), ("old", None), ("man", "man"), ("walked", "walk"), ("down", "down"), (None, "town"))
    assert pairs == tuple(Pair(*p) for p in expected)


def test_the_alignment_is_as_short_as_any():
    """Against the recurrence written down directly."""

    def least(a, b):
        if not a or not b:
            return len(a) + len(b)
        return min(least(a[1:], b[1:]) + (a[0] != b[0]), least(a[1:], b) + 1, least(a, b[1:]) + 1)

    rng = np.random.default_rng(0)
    for _ in range(50):
        a, b = (["abc"[i] for i in rng.integers(0, 3, rng.integers(0, 7))] for _ in range(2))
        assert Transcript(align(a, b)).errors == least(a, b)


def test_the_rate_is_of_all_words():
    long, short = Transcript(align("a b c".split(), "a b x".split())), Transcript(align(["a"], []))
    assert word_error_rate([long, short]) == 2 / 4
    assert math.isnan(word_error_rate([]))
    assert math.isnan(word_error_rate([Transcript(align([], ["a"]))]))


def test_last_word():
    assert Transcript(align(["a", "b"], ["x", "b", "c"])).last_heard
    assert not Transcript(align(["a", "b"], ["a"])).last_heard
    assert not Transcript(align([], ["a"])).last_heard


def test_every_word_of_the_sentences_can_be_heard(recogniser):
    assert not recogniser.knows("kokoro")
    unknown = [w for s in sentences() for w in words(s) if not recogniser.knows(w)]
    assert not unknown


def test_the_sentences_are_varied():
    spoken = [words(s) for s in sentences()]
    assert len(spoken) == 40
    assert len({s[0] for s in spoken}) == 40, "no two begin alike"
    assert all(4 <= len(s) <= 20 for s in spoken)
    assert not any(c.isdigit() for s in sentences() for c in s)


def test_nothing_is_heard_in_silence_or_garbage(recogniser):
    assert recogniser.hear(np.zeros(24000)) == ()
    assert recogniser.hear(np.full(24000, np.nan)) == ()
    assert recogniser.hear(np.zeros(0)) == ()


def test_what_came_before_does_not_matter(recogniser):
    rng = np.random.default_rng(0)
    first, second = (np.cumsum(rng.normal(0, 0.003, 24000)) * np.hanning(24000) for _ in range(2))
    alone = Recogniser().hear(second)
    recogniser.hear(first)
    assert recogniser.hear(second) == alone
