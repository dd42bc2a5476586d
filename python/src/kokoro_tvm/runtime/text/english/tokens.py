"""English text to tokens with their places: words, parts of contractions, marks.

What it is: the division that part-of-speech tags are given to ("don't" is two tokens), and the finer one into pieces that are
looked up or joined ("well-known" is three). What it is not: sentences, or anything about sound. Time is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Token:
    """``text[start:end]`` of a paragraph.

    Attributes:
        text: As written.
        start: Index of its first character.
        end: Index after its last.
        space: Whether a space follows.
    """

    text: str
    start: int
    end: int
    space: bool


QUOTES = "\"'“”‘’`´«»„‟"
_OUTER = frozenset(",:;!?¿¡()[]{}<>_#*&…—–%=§|\\/~^°$£€¥₹₩" + QUOTES)
_CURRENCY = "$£€¥₹₩"
_PREFIX = re.compile(
    rf"\.\.+|([{re.escape(''.join(sorted(_OUTER - set('°/'))))}])\1*|(?:US|C|A|HK|NZ)(?=\$)|--+|\+(?!\d)|-(?=[^\W\d_]*$)"
)
_SUFFIX_WORD = re.compile(r"['’][sS]$")
_UNIT = re.compile(r"\d(km²?|kg|cm²?|mm²?|m²|ft|lbs?|oz|mg|ml|mph|[kKmMgGtT][bB]|[ap]m|%)$")
_INFIX = re.compile(
    r"\.\.+|…|(?<=\d)[+\-*^](?=[\d-])|(?<=[^\W\d_])\.(?=[^\W\d_]{2})(?<=[a-zà-ÿ]\.)(?=[A-Z])|(?<=[^\W\d_]),(?=[^\W\d_])"
    r"|(?<=[^\W_])(?:--+|[-–—~])(?=[^\W\d_])|(?<=[^\W_])[—–](?=[^\W_“‘\"])|(?<=[^\W_])[:<>=/](?=[^\W\d_])|(?<=[^\W\d_])[“”\"()\[\]](?=\w)|[&@](?=\w)"
)
_CONTRACTION = re.compile(r"(?i)([^\W\d_]+?)(n['’]t)?((?:['’](?:ve|ll|re|d|m|s))*)$")
_ENDING = re.compile(r"(?i)['’](?:ve|ll|re|d|m|s)")
_WHOLE = frozenset(
    "o'clock ma'am 'em 'tis 'twas 'til 'cause 'bout 'n' 'n y'all c'mon and/or w/o a.m. p.m. e.g. i.e. vs. v.s. etc. "
    "co. inc. ph.d. d.c. u.s. u.k. messrs.".split()
)
_SPLIT = {"cannot": 3, "gonna": 3, "gotta": 3, "c'mon": 3}
ABBREVIATIONS = frozenset(
    "mr mrs ms dr st mt prof gen gov sen rep rev col sgt capt lt maj adm hon jr sr esq inc ltd co corp bros dept ave blvd rd "
    "jan feb mar apr jun jul aug sep sept oct nov dec vs etc fig vol no approx est".split()
)
"""Words whose full stop belongs to them."""
_KEEPS_STOP = ABBREVIATIONS - {"no", "mar", "fig", "est", "col"}
_PIECE = re.compile(r"^-?(?:[.,]?\d)+|(?:[.,]?\d)+|[^\W\d_]+(?:['‘’][^\W\d_]+)*|[-_]+|['‘’]+|(.)\1*", re.DOTALL)


def tokenize(text: str, start: int = 0, end: int | None = None) -> list[Token]:
    """The tokens of ``text[start:end]``, a paragraph whose only whitespace is single spaces."""
    end = len(text) if end is None else end
    tokens: list[Token] = []
    for chunk in re.compile(r"[^ ]+").finditer(text, start, end):
        spans = _split_chunk(text, *chunk.span())
        spaced = text[chunk.end() : chunk.end() + 1] == " "
        tokens += [Token(text[a:b], a, b, spaced and b == chunk.end()) for a, b in spans]
    return tokens


def _split_chunk(text: str, start: int, end: int) -> list[tuple[int, int]]:
    head: list[tuple[int, int]] = []
    tail: list[tuple[int, int]] = []
    while start < end and not _is_whole(text, start, end):
        prefix = _PREFIX.match(text, start, end)
        if prefix:
            head.append(prefix.span())
            start = prefix.end()
            continue
        length = _suffix_length(text, start, end)
        if not length:
            break
        tail.append((end - length, end))
        end -= length
    return head + list(_split_word(text, start, end)) + tail[::-1]


def _is_whole(text: str, start: int, end: int) -> bool:
    if end - start > 12:
        return False
    word = text[start:end].lower().replace("’", "'")
    if word in _WHOLE:
        return True
    return word.endswith(".") and (word[:-1] in _KEEPS_STOP or (len(word) == 2 and word[0].isalpha()))


def _suffix_length(text: str, start: int, end: int) -> int:
    last = text[end - 1]
    if last in _OUTER:
        return 1
    if last == ".":
        dots = 1
        while end - dots > start and text[end - dots - 1] == ".":
            dots += 1
        before = text[end - 2] if end - 2 >= start else ""
        # "U.S." keeps its stop, "NATO." and "end." do not.
        initial = before.isupper() and not (end - 3 >= start and text[end - 3].isupper())
        return dots if dots > 1 or not initial else 0
    if last == "+" and end - 2 >= start and text[end - 2].isdigit():
        return 1
    window = text[max(start, end - 6) : end]
    if end - start > 2 and _SUFFIX_WORD.search(window):
        return 2
    unit = _UNIT.search(window)
    return len(unit[1]) if unit else 0


def _split_word(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    if start >= end:
        return
    word = text[start:end] if end - start <= 40 else ""
    cut = _SPLIT.get(word.lower().replace("’", "'"))
    if cut:
        yield from ((start, start + cut), (start + cut, end))
        return
    if _is_whole(text, start, end):
        yield start, end
        return
    contraction = _CONTRACTION.fullmatch(word) if "'" in word or "’" in word else None
    if contraction and (contraction[2] or contraction[3]):
        yield start, start + contraction.end(1)
        if contraction[2]:
            yield start + contraction.start(2), start + contraction.end(2)
        for ending in _ENDING.finditer(word, contraction.start(3)):
            yield start + ending.start(), start + ending.end()
        return
    at = start
    for infix in _INFIX.finditer(text, start, end):
        if infix.start() > at:
            yield at, infix.start()
        yield infix.span()
        at = infix.end()
    if at < end:
        yield at, end


def pieces(token: Token) -> list[Token]:
    """A token's words, numbers and marks; capitals inside a word begin a new one."""
    found: list[tuple[int, int]] = []
    for match in _PIECE.finditer(token.text):
        start, end = match.span()
        run = match[0]
        if len(run) > 1 and run[0].isalpha() and not (run.islower() or run.isupper()):
            found += _capitals(token.text, start, end)
        else:
            found.append((start, end))
    last = len(token.text)
    return [Token(token.text[a:b], token.start + a, token.start + b, token.space and b == last) for a, b in found]


def _capitals(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    at = start
    for i in range(start + 1, end):
        hump = text[i].isupper() and text[i - 1].islower()
        article = i == start + 1 and text[start].isupper() and text[i].isupper() and text[i + 1 : i + 2].islower()
        if hump or article:
            yield at, i
            at = i
    yield at, end


def is_currency(text: str) -> bool:
    """Whether a token is a sign of money."""
    return len(text) == 1 and text in _CURRENCY
