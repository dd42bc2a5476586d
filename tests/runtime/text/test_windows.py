"""Cleaning and splitting: every window fits, and nothing is lost."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokoro_tvm.errors import InputError
from kokoro_tvm.runtime.text.windows import LONGEST, Token, join_phonemes, normalize, paragraphs, phoneme_tokens, split


def windows(text: str, limit: int) -> list[str]:
    return [w.phonemes for w in split(phoneme_tokens(text), limit)]


def squeezed(text: str) -> str:
    return "".join(text.split())


# --- cleaning ---


def test_paragraphs_are_separated_by_any_line_break():
    assert paragraphs("one\r\ntwo\n\n  \nthree\u2028four\x0bfive\rsix") == [
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
    ]


@pytest.mark.parametrize("text", ["", " ", "\n\r\n", "\u00a0", "\u200b\ufeff"])
def test_nothing_to_say(text):
    assert paragraphs(text) == []


@pytest.mark.parametrize("text", [None, 3, b"text", ["text"]])
def test_not_a_string(text):
    with pytest.raises(InputError, match="expected str"):
        paragraphs(text)


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("a\u00a0b\u2003c\td", "a b c d"),
        ("e\u0301cole", "école"),
        ("co\u00adoperate \u200bnow\x00", "cooperate now"),
        ("lone \ud800 surrogate", "lone surrogate"),
        ("क्\u200dष", "क्\u200dष"),
        ("hi 😀", "hi 😀"),
    ],
)
def test_normalize(raw, clean):
    assert normalize(raw) == clean


# --- tokens of phonemes ---


def test_phoneme_tokens_keep_the_string():
    phonemes = "ðə “kwˈɪk” fˈɑks… (ˈOvəɹ)?"
    tokens = phoneme_tokens(phonemes)
    assert join_phonemes(tokens) == phonemes
    assert [t.text for t in tokens] == ["ðə", "“", "kwˈɪk", "”", "fˈɑks", "…", "(", "ˈOvəɹ", ")", "?"]


# --- windows ---


def test_what_fits_is_one_window():
    assert windows("One. Two: three, four", 400) == ["One. Two: three, four"]
    assert windows("a" * 510, 510) == ["a" * 510]
    assert windows("aaaa bbbb", 9) == ["aaaa bbbb"]


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        ("aa. bb: cc, dd ee", 16, ["aa.", "bb: cc, dd ee"]),
        ("aa. bb. cc dd ee", 14, ["aa. bb.", "cc dd ee"]),
        ("aa, bb: cc, dd ee", 16, ["aa, bb:", "cc, dd ee"]),
        ("aa, bb — cc dd ee", 16, ["aa, bb —", "cc dd ee"]),
        ("aa bb cc", 5, ["aa", "bb cc"]),
        ("aaaaaaa", 3, ["aaa", "aaa", "a"]),
        ("aa bbbbbbb c", 3, ["aa", "bbb", "bbb", "b c"]),
        ("(aa.) bb cc", 9, ["(aa.)", "bb cc"]),
        ("aa! bb? cc… dd ee", 14, ["aa! bb?", "cc… dd ee"]),
        ("a. b.” c.", 5, ["a.", "b.”", "c."]),
        ("a.b.c d", 5, ["a.b.c", "d"]),
    ],
)
def test_breaks_at_the_strongest_mark(text, limit, expected):
    assert windows(text, limit) == expected


def sentence(length: int, mark: str = ".") -> str:
    """A sentence of so many phonemes, in words of five."""
    return ("aaaa " * length)[: length - 1].rstrip().ljust(length - 1, "a") + mark


def lengths(text: str, limit: int = LONGEST) -> list[int]:
    return [len(w) for w in windows(text, limit)]


def test_windows_are_of_like_length():
    """Filling up would give 399 and 1, or 200 and 100."""
    assert lengths(" ".join([sentence(100)] * 4)) == [201, 201]
    assert lengths(" ".join([sentence(80)] * 5)) == [161, 242] or lengths(" ".join([sentence(80)] * 5)) == [242, 161]
    assert lengths(f"{sentence(150, ',')} {sentence(150)}") == [150, 150]


def test_a_short_sentence_joins_its_neighbour():
    assert lengths(f"{sentence(180)} {sentence(8, '!')} {sentence(170)}") in ([189, 170], [180, 179])
    assert lengths(f"{sentence(240)} {sentence(5)}") == [246]


@pytest.mark.parametrize("mark", ["", ",", ";"])
def test_a_long_sentence_is_cut_within_the_comfortable_length(mark):
    text = " ".join([sentence(60, mark)] * 20) + "."
    assert all(100 <= n <= 250 for n in lengths(text))


@given(st.lists(st.builds(sentence, st.integers(20, 160)), min_size=4, max_size=40))
def test_most_windows_are_comfortable(sentences):
    found = lengths(" ".join(sentences))
    assert max(found) <= LONGEST
    assert sum(60 <= n <= 250 for n in found) >= 0.95 * len(found) - 1


def test_a_sentence_end_is_worth_more_than_an_even_cut():
    text = f"{sentence(120)} {sentence(130, ',')} {sentence(60)}"
    assert windows(text, LONGEST)[0] == sentence(120)


def test_a_mark_stays_with_its_word():
    assert windows("aa bbb.", 6) == ["aa", "bbb."]


def test_a_hard_cut_keeps_modifiers_with_their_sound():
    assert windows("aaˈbcd", 3) == ["aa", "ˈbc", "d"]
    assert windows("aaaːcd", 3) == ["aa", "aːc", "d"]
    assert windows("ːːːːː", 2) == ["ːː", "ːː", "ː"]
    assert windows("ˈˈˈ", 1) == ["ˈ", "ˈ", "ˈ"]


def test_a_number_longer_than_a_window_is_cut_at_its_spaces():
    found = split([Token("123", "wˈʌn tˈu θɹˈi", " "), Token("x", "x")], 8)
    assert [w.phonemes for w in found] == ["wˈʌn tˈu", "θɹˈi x"]
    assert [t.text for w in found for t in w.tokens] == ["123", "", "", "x"]


def test_window_text_is_the_text():
    found = split([Token("Hello", "həlˈO"), Token(",", ",", " "), Token("you", "ju"), Token("!", "!", " ")], 510)
    assert [w.text for w in found] == ["Hello, you!"]


@pytest.mark.parametrize("tokens", [[], [Token("😀", "", " ")], [Token(" ", " ", " "), Token("", "")]])
def test_silence_gives_no_window(tokens):
    assert split(tokens) == []


@pytest.mark.parametrize("limit", [0, -1, 511, 5.0, True, None])
def test_bad_limit(limit):
    with pytest.raises(InputError, match="from 1 to 510"):
        split([], limit)


phoneme = st.sampled_from("abˈːAʤ\u0303.,:;!?…—()“” \u00a0")
token = st.builds(Token, st.text("xy", max_size=3), st.text(phoneme, max_size=25), st.sampled_from(["", " "]))
limits = st.one_of(st.integers(1, 30), st.just(510))


@given(st.lists(token, max_size=60), limits)
def test_windows_fit_and_together_hold_every_phoneme(tokens, limit):
    found = split(tokens, limit)
    assert all(0 < len(w.phonemes) <= limit for w in found)
    assert all(w.phonemes == w.phonemes.strip() == join_phonemes(w.tokens) for w in found)
    assert squeezed("".join(w.phonemes for w in found)) == squeezed(join_phonemes(tokens))


@given(st.lists(token, max_size=60), limits)
def test_inside_a_window_spaces_are_those_of_the_text(tokens, limit):
    tokens = [Token(t.text, squeezed(t.phonemes), t.whitespace) for t in tokens]
    at, whole = 0, join_phonemes(tokens)
    for window in split(tokens, limit):
        at = whole.index(window.phonemes, at) + len(window.phonemes)


@given(st.text(max_size=300), limits)
def test_any_string_can_be_given_as_phonemes(text, limit):
    found = split(phoneme_tokens(text), limit)
    assert squeezed("".join(w.phonemes for w in found)) == squeezed(text)


@given(st.text(max_size=200))
def test_normalize_is_idempotent(text):
    assert normalize(normalize(text)) == normalize(text)


@pytest.mark.parametrize(
    "text",
    ["a" * 100_000, "a " * 50_000, ". " * 50_000, "aaa, " * 20_000, "ˈ" * 100_000, "a" * 500 + ". " + "b " * 50_000],
)
def test_a_hundred_thousand_characters_take_seconds(text):
    began = time.perf_counter()
    found = split(phoneme_tokens(text))
    assert time.perf_counter() - began < 3
    assert sum(len(squeezed(w.phonemes)) for w in found) == len(squeezed(text))


def test_many_silent_tokens_do_not_make_it_quadratic():
    tokens = [Token(".", "."), *[Token("😀", "")] * 50_000] * 2 + [Token("a", "a", " ")] * 1000
    began = time.perf_counter()
    split(tokens)
    assert time.perf_counter() - began < 3
