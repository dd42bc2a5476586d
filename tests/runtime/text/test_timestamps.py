"""Word timestamps from durations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokoro_tvm.errors import InputError
from kokoro_tvm.runtime.text.timestamps import WordTimestamp, word_timestamps
from kokoro_tvm.runtime.text.windows import Token, join_phonemes

KNOWN = frozenset("abc. ")
TOKENS = [Token("Ab", "ab", " "), Token("c", "c"), Token(".", ".")]


def test_half_of_a_space_belongs_to_each_neighbour():
    #                                       bos a  b  _  c  .  eos
    words = word_timestamps(TOKENS, np.array([5, 2, 3, 4, 6, 1, 9]), KNOWN)
    # The first word begins 3 frames before the boundary ends, as in the reference; 40 frames a second.
    assert words == [
        WordTimestamp("Ab", 2 / 40, (2 + 5 + 2) / 40),
        WordTimestamp("c", (2 + 5 + 2) / 40, (2 + 9 + 6) / 40),
        WordTimestamp(".", 17 / 40, 18 / 40),
    ]


def test_offset_moves_everything():
    durations = np.array([1, 2, 3, 4, 6, 1, 9])
    here, later = (word_timestamps(TOKENS, durations, KNOWN, offset) for offset in (0.0, 10.0))
    assert [w.start + 10 for w in here] == pytest.approx([w.start for w in later])


def test_unknown_symbols_take_no_time():
    tokens = [Token("Ab", "a?b", " "), Token("x", "??", " "), Token("c", "c")]
    words = word_timestamps(tokens, np.array([3, 2, 2, 2, 2, 8, 1]), KNOWN)
    assert [w.text for w in words] == ["Ab", "c"]
    assert words[1].end - words[1].start == pytest.approx((1 + 8) / 40)


@pytest.mark.parametrize(
    "tokens",
    [
        [Token("😀", "", " "), Token("a", "a")],
        [Token("a", "a", " "), Token("😀", "", " ")],
        [Token("a", "a", " ")],
        [Token("😀", ""), Token("a", "a")],
    ],
)
def test_spaces_at_the_ends_are_not_spoken(tokens):
    assert word_timestamps(tokens, np.array([3, 4, 3]), KNOWN) == [WordTimestamp("a", 0.0, 0.1)]


def test_a_silent_token_uses_one_space():
    tokens = [Token("a", "a", " "), Token("😀", "", " "), Token("b", "b")]
    words = word_timestamps(tokens, np.array([3, 1, 2, 2, 1, 3]), KNOWN)
    assert words[1] == WordTimestamp("b", (1 + 2 + 1) / 40, 6 / 40)


def test_a_continuation_extends_its_word():
    words = word_timestamps([Token("ab", "a"), Token("", "b", " "), Token("c", "c")], np.ones(6, int), KNOWN)
    assert [w.text for w in words] == ["ab", "c"] and words[0].end == words[1].start


def test_nothing_to_place():
    assert word_timestamps([], np.array([3, 3]), KNOWN) == []


@pytest.mark.parametrize("count", [0, 1, 6, 8])
def test_a_wrong_number_of_durations_is_refused(count):
    with pytest.raises(InputError, match=f"{count} entries, the tokens need 7"):
        word_timestamps(TOKENS, np.ones(count, int), KNOWN)


token = st.builds(Token, st.sampled_from(["w", "x"]), st.text("abc.? ", max_size=5), st.sampled_from(["", " "]))


@given(st.lists(token, max_size=12), st.data())
def test_monotonic_and_within_the_audio(tokens, data):
    known = sum(p in KNOWN for p in join_phonemes(tokens))
    counts = st.lists(st.integers(1, 50), min_size=known + 2, max_size=known + 2)
    durations = np.array(data.draw(counts))
    words = word_timestamps(tokens, durations, KNOWN)
    edges = [edge for w in words for edge in (w.start, w.end)]
    assert edges == sorted(edges)
    assert all(0 <= edge <= durations.sum() / 40 for edge in edges)
    assert all(w.end > w.start for w in words)
