"""Words that no lexicon has: regular ones are right, every one gets one main stress, and the answer is the same each time."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokoro_tvm.runtime.text.english import unknown
from kokoro_tvm.runtime.text.english.lexicon import read_lexicon
from kokoro_tvm.runtime.text.g2p import SYMBOLS


@pytest.mark.parametrize(
    ("word", "phonemes"), [("blick", "blˈɪk"), ("glorped", "ɡlˈɔɹpt"), ("snaking", "snˈAkɪŋ"), ("flimber", "flˈɪmbəɹ")]
)
def test_regular_words(word, phonemes):
    assert unknown.load(False)(word) == phonemes


@pytest.mark.parametrize(("british", "region"), [(False, "us"), (True, "gb")])
def test_held_out_words(british, region):
    """A sample of the words that did not train it; ``scripts/train_unknown`` judges all of them, and found less than 8 %."""
    model = unknown.load(british)
    words = [
        (w, p) for w, p in sorted(read_lexicon(f"{region}_gold").items())
        if isinstance(p, str) and w.isalpha() and w.islower() and int(hashlib.sha256(w.encode()).hexdigest(), 16) % 20 == 0
    ][::10]  # fmt: skip
    assert len(words) > 300
    errors = sum(_distance(model(w), p) for w, p in words)
    assert errors / sum(len(p) for _, p in words) < 0.10


@given(st.text("abcdefghijklmnopqrstuvwxyz'", min_size=1, max_size=80))
def test_one_main_stress(word):
    said = unknown.load(False)(word)
    assert said.count("ˈ") == (1 if any(c in unknown.VOWELS for c in said) else 0)
    assert set(said) <= SYMBOLS | {"ɾ", "ʔ"}


@pytest.mark.parametrize(
    ("phonemes", "expected"),
    [
        ("kˈætˈɑɡ", "kˈætˌɑɡ"), ("bˈb", "bb"), ("ʃˌiˌm", "ʃˈim"), ("kˌætəɡ", "kˈætəɡ"), ("kətæɡ", "kətˈæɡ"), ("kətə", "kˈətə"),
        ("kt", "kt"), ("", ""),
    ],
)
def test_one_stress(phonemes, expected):
    assert unknown.one_stress(phonemes) == expected


@pytest.mark.parametrize("word", ["blick", "glorping", "inglethorpington", "x" * 64])
def test_as_a_plain_convolution(word):
    """The same network written out letter by letter, in float64."""
    model = unknown.load(False)
    x = model._embedding[[unknown.LETTERS.index(c) + 1 for c in word]].astype(np.float64)
    for weight, bias in model._blocks:
        taps = weight[:, 0].astype(np.float64)
        reach = len(taps) // 2
        sums = np.array(
            [
                sum(x[i + k - reach] @ taps[k] for k in range(len(taps)) if 0 <= i + k - reach < len(x)) + bias
                for i in range(len(x))
            ]
        )
        x = x + np.maximum(sums, 0)
    weight, bias = model._out
    assert model(word) == model._best((x @ weight + bias).reshape(unknown.SLOTS * len(x), -1))


def test_the_best_path_has_one_primary_stress():
    """Of two primary stresses the likelier stays, and the other gives way to what is next best there."""
    model = unknown.load(False)
    place = {symbol: i + 1 for i, symbol in enumerate(model.symbols)}
    scores = np.full((6, len(model.symbols) + 1), -9.0)
    for slot, (first, second) in enumerate([("ˈ", "ˌ"), ("æ", "ɑ"), ("t", "d"), ("ˈ", "ˌ"), ("i", "ɪ"), ("n", "m")]):
        scores[slot, [place[first], place[second]]] = -0.5, -2.0
    scores[3, place["ˈ"]] = -0.4
    assert model._best(scores) == "ˌætˈin"
    scores[0, place["ˈ"]] = -0.3
    assert model._best(scores) == "ˈætˌin"


@pytest.mark.parametrize("word", ["", "123", "日本"])
def test_nothing_to_read(word):
    assert unknown.load(False)(word) == ""


def _distance(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(diagonal + (x != y), row[j] + 1, row[j - 1] + 1)
    return row[-1]
