"""Numbers to English words.

What it is: cardinals, ordinals, years, digits, and how a written number is read for its form and its neighbours. The words leave
out "and" ("one hundred five"), as the model was trained. What it is not: phonemes.
"""

from __future__ import annotations

import re

_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen "
    "nineteen"
).split()
_TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()
_SCALES = (
    "_ thousand million billion trillion quadrillion quintillion sextillion septillion octillion nonillion decillion"
).split()
_IRREGULAR = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth", "twelve": "twelfth",
}  # fmt: skip
LONGEST = 3 * len(_SCALES)
"""Digits that still make one number; more are read one by one."""
_ROMAN = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
_ROMAN_FORM = re.compile(r"M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})$")


def cardinal(number: int) -> list[str]:
    """Words of a number below ``10 ** LONGEST``, without "and"."""
    if number < 0:
        return ["minus", *cardinal(-number)]
    words: list[str] = []
    for power in range((len(str(number)) - 1) // 3, -1, -1):
        group = number // 1000**power % 1000
        if group:
            words += _below_thousand(group) + ([_SCALES[power]] if power else [])
    return words or ["zero"]


def _below_thousand(number: int) -> list[str]:
    words = [_SMALL[number // 100], "hundred"] if number >= 100 else []
    rest = number % 100
    if rest >= 20:
        words.append(_TENS[rest // 10])
        rest %= 10
    return words + ([_SMALL[rest]] if rest else [])


def ordinal(number: int) -> list[str]:
    """Words such as "twenty first"."""
    *head, last = cardinal(number)
    if last in _IRREGULAR:
        return [*head, _IRREGULAR[last]]
    return [*head, last[:-1] + "ieth" if last.endswith("y") else last + "th"]


def year(number: int) -> list[str]:
    """Words such as "nineteen oh five", for a number of four digits."""
    high, low = divmod(number, 100)
    if high % 10 == 0 and low < 10:
        return cardinal(number)
    if low == 0:
        return [*cardinal(high), "hundred"]
    return [*cardinal(high), *(["oh"] if low < 10 else []), *cardinal(low)]


def digits(text: str) -> list[str]:
    """Each digit's name."""
    return [_SMALL[int(c)] for c in text if c.isdigit()]


def whole(text: str) -> list[str]:
    """A run of digits, commas left out, as a cardinal; digit by digit when it is too long for one."""
    plain = text.replace(",", "")
    return cardinal(int(plain)) if len(plain.lstrip("0")) <= LONGEST else digits(plain)


def decimal(text: str) -> list[str]:
    """A number with one point."""
    before, _, after = text.replace(",", "").partition(".")
    return [*(whole(before) if before else []), "point", *digits(after)]


def inside_word(text: str) -> list[str]:
    """A number after the beginning of a word, as in "Boeing-747": three digits as one and two."""
    plain = text.replace(",", "")
    if plain[0] == "0" or len(plain) > 3:
        return digits(plain)
    if len(plain) == 3 and not plain.endswith("00"):
        head, tail = cardinal(int(plain[0])), plain[1:]
        return [*head, "O", *cardinal(int(tail))] if tail[0] == "0" else [*head, *cardinal(int(tail))]
    return cardinal(int(plain))


def dotted(text: str) -> list[str]:
    """Parts between points, as in an address or a version."""
    words: list[str] = []
    for part in text.replace(",", "").split("."):
        if not part:
            continue
        long = len(part) != 2 and any(c != "0" for c in part[1:])
        words += digits(part) if part[0] == "0" or long or len(part) > LONGEST else cardinal(int(part))
    return words


def roman(text: str) -> int | None:
    """The value of a Roman numeral in capitals, or None."""
    if not text or not _ROMAN_FORM.match(text):
        return None
    values = [_ROMAN[c] for c in text]
    return sum(-v if v < n else v for v, n in zip(values, [*values[1:], 0], strict=True))
