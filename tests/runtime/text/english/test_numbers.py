"""Numbers to words, against a table and against each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokoro_tvm.runtime.text.english import numbers


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"), (7, "seven"), (13, "thirteen"), (20, "twenty"), (21, "twenty one"), (100, "one hundred"),
        (105, "one hundred five"), (1000, "one thousand"), (1_000_001, "one million one"), (-3, "minus three"),
        (12_345_678, "twelve million three hundred forty five thousand six hundred seventy eight"),
        (10**33, "one decillion"),
    ],
)  # fmt: skip
def test_cardinals(number, words):
    assert " ".join(numbers.cardinal(number)) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [(1, "first"), (2, "second"), (12, "twelfth"), (20, "twentieth"), (33, "thirty third"), (100, "one hundredth")],
)
def test_ordinals(number, words):
    assert " ".join(numbers.ordinal(number)) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (1984, "nineteen eighty four"), (1900, "nineteen hundred"), (1905, "nineteen oh five"), (2000, "two thousand"),
        (2005, "two thousand five"), (2010, "twenty ten"), (1066, "ten sixty six"), (1000, "one thousand"),
    ],
)  # fmt: skip
def test_years(number, words):
    assert " ".join(numbers.year(number)) == words


@given(st.integers(0, 10**36 - 1))
def test_cardinals_mean_their_number(number):
    """Read back by addition and multiplication."""
    small = {w: i for i, w in enumerate(numbers._SMALL)} | {w: 10 * i for i, w in enumerate(numbers._TENS)}
    total = group = 0
    for word in numbers.cardinal(number):
        if word == "hundred":
            group *= 100
        elif word in numbers._SCALES:
            total, group = total + group * 1000 ** numbers._SCALES.index(word), 0
        else:
            group += small[word]
    assert total + group == number


@given(st.integers(1, 3999))
def test_roman_numerals(number):
    table = (
        (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"), (10, "X"), (9, "IX"),
        (5, "V"), (4, "IV"), (1, "I"),
    )  # fmt: skip
    rest, text = number, ""
    for value, sign in table:
        text += sign * (rest // value)
        rest %= value
    assert numbers.roman(text) == number


@pytest.mark.parametrize("text", ["", "IIII", "IC", "VX", "MIX X", "x", "ABC"])
def test_no_roman_numeral(text):
    assert numbers.roman(text) is None


def test_numbers_too_long_to_name_are_read_digit_by_digit():
    assert numbers.whole("9" * 100) == ["nine"] * 100
    assert numbers.whole("0" * 50 + "5") == ["five"]
