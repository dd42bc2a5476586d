"""From text to windows: cleaning, paragraphs, and the split into pieces the model can take at once.

What it is: pure functions on strings and tokens. A window holds at most ``limit`` phonemes (510 for the model, fewer when
an artifact has a smaller capacity); nothing is dropped or truncated. What it is not: grapheme-to-phoneme conversion
(``g2p``) or the mapping to ids (``vocabulary``).

Where the whole text fits, window boundaries are those of the reference pipeline: fill up, then go back to the last
sentence end, else the last colon, else the last comma or dash. Where the reference truncates, this splits.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from kokoro_tvm.config import STYLE_ROWS
from kokoro_tvm.errors import InputError

MAX_PHONEMES = STYLE_ROWS
"""The most phonemes of one window."""

_BREAKS = (frozenset("!.?…"), frozenset(":;"), frozenset(",—"))
_CLOSING = frozenset(")”")
_STICKS_TO_PREVIOUS = frozenset("ːʰʲᵝ\u0303")
_STICKS_TO_NEXT = frozenset("ˈˌ")
_PUNCTUATION = ';:,.!?—…"()“”'
_PHONEME_PIECE = re.compile(rf"(([{re.escape(_PUNCTUATION)}])\2*|[^\s{re.escape(_PUNCTUATION)}]+)(\s*)")
_PARAGRAPH = re.compile(r"[\r\n\v\f\x85\u2028\u2029]+")


@dataclass(frozen=True)
class Token:
    """A word or punctuation mark with its pronunciation.

    Attributes:
        text: As written; empty for the continuation of a token that was cut because it does not fit one window.
        phonemes: Kokoro symbols; may hold inner spaces (numbers), empty when the token is silent.
        whitespace: What follows the token in the text: ``" "`` or ``""``.
    """

    text: str
    phonemes: str
    whitespace: str = ""


@dataclass(frozen=True)
class Window:
    """A run of tokens that is synthesized at once.

    Attributes:
        phonemes: 1 to ``limit`` symbols, without leading or trailing spaces.
        tokens: The tokens the phonemes come from, in order; ``phonemes == join_phonemes(tokens)``.
    """

    phonemes: str
    tokens: tuple[Token, ...]

    @property
    def text(self) -> str:
        """The tokens as written."""
        return "".join(t.text + t.whitespace for t in self.tokens).strip()


def normalize(text: str) -> str:
    """Cleans one paragraph: composed characters, plain single spaces, nothing invisible.

    Combining sequences are composed (NFC) because dictionaries hold composed letters. Spaces of any kind, such as the
    no-break space, become one space; control and zero-width characters go, except the joiners that Indic scripts spell with.
    """
    text = "".join(c for c in unicodedata.normalize("NFC", text) if c.isspace() or not _is_invisible(c))
    return " ".join(text.split())


def _is_invisible(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cf", "Cs") and char not in "\u200c\u200d"


def paragraphs(text: str) -> list[str]:
    """The cleaned, non-empty paragraphs of a text; any run of line breaks separates two.

    Raises:
        InputError: ``text`` is not a string.
    """
    if not isinstance(text, str):
        raise InputError(f"text is {type(text).__name__}, expected str")
    return [p for p in map(normalize, _PARAGRAPH.split(text)) if p]


def join_phonemes(tokens: Sequence[Token]) -> str:
    """The phoneme string of a run of tokens, without spaces at its ends."""
    return "".join(t.phonemes + (" " if t.whitespace else "") for t in tokens).strip()


def phoneme_tokens(phonemes: str) -> list[Token]:
    """Tokens for phonemes that were given directly: words and punctuation marks, each its own text."""
    return [Token(m[1], m[1], " " if m[3] else "") for m in _PHONEME_PIECE.finditer(phonemes)]


def split(tokens: Sequence[Token], limit: int = MAX_PHONEMES) -> list[Window]:
    """Splits a paragraph's tokens into windows, each filled as far as its best break allows.

    The break is the last sentence end in a full window, else the last of ``: ;``, else of ``, —``, else the last space,
    else the last token boundary. Only a token longer than ``limit`` is cut inside: at its spaces and punctuation, else hard.

    Args:
        tokens: One paragraph, in order.
        limit: The most phonemes (characters) of one window, 1 to 510.

    Returns:
        Windows in order, none empty; no tokens, or none with phonemes, give none.

    Raises:
        InputError: ``limit`` is outside 1..510.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_PHONEMES:
        raise InputError(f"window limit is {limit!r}, expected an integer from 1 to {MAX_PHONEMES}")
    pieces = [piece for token in tokens for piece in _fit(token, limit)]
    ends = [0, *accumulate(len(p.phonemes) + bool(p.whitespace) for p in pieces)]
    windows, start = [], 0
    while start < len(pieces):
        stop = _fill(pieces, ends, start, limit)
        if stop < len(pieces):
            stop = _best_break(pieces, ends, start, stop, limit)
        phonemes = join_phonemes(pieces[start:stop])
        if phonemes:
            windows.append(Window(phonemes, tuple(pieces[start:stop])))
        start = stop
    return windows


def _fill(pieces: Sequence[Token], ends: Sequence[int], start: int, limit: int) -> int:
    """The largest ``stop`` for which ``pieces[start:stop]`` has at most ``limit`` phonemes."""
    stop = bisect_right(ends, ends[start] + limit) - 1
    # A space after the last token does not count; what follows it may be silent tokens, which do not count either.
    if stop < len(pieces) and ends[stop + 1] == ends[start] + limit + 1 and pieces[stop].whitespace:
        stop += 1
    return stop


def _best_break(pieces: Sequence[Token], ends: Sequence[int], start: int, stop: int, limit: int) -> int:
    """Where to end a window that is full at ``stop``; the rest with the next token must fit one window again."""
    for marks in _BREAKS:
        last = next((i for i in range(stop - 1, start - 1, -1) if _is_mark(pieces[i], marks)), None)
        if last is None:
            continue
        cut = last + 1
        if cut < stop and pieces[cut].phonemes in _CLOSING:
            cut += 1
        if ends[stop + 1] - bool(pieces[stop].whitespace) - ends[cut] <= limit:
            return cut
    return next((i + 1 for i in range(stop - 1, start - 1, -1) if pieces[i].whitespace), stop)


def _is_mark(token: Token, marks: frozenset[str]) -> bool:
    return bool(token.phonemes) and all(c in marks for c in token.phonemes)


def _fit(token: Token, limit: int) -> Iterator[Token]:
    """The token with its phonemes trimmed, or, when it is longer than a window, the pieces it has to be cut into."""
    phonemes = token.phonemes.strip()
    if len(phonemes) <= limit:
        yield token if phonemes == token.phonemes else replace(token, phonemes=phonemes)
        return
    pieces = [piece for word in phoneme_tokens(phonemes) for piece in _cut(word, limit)]
    for i, piece in enumerate(pieces):
        whitespace = token.whitespace if i == len(pieces) - 1 else piece.whitespace
        yield Token("" if i else token.text, piece.phonemes, whitespace)


def _cut(word: Token, limit: int) -> Iterator[Token]:
    """Cuts a word hard, but not between a stress mark and its vowel, nor before a length mark, while it can be avoided."""
    rest = word.phonemes
    while len(rest) > limit:
        at = limit
        while at > 1 and (rest[at] in _STICKS_TO_PREVIOUS or rest[at - 1] in _STICKS_TO_NEXT):
            at -= 1
        if rest[at] in _STICKS_TO_PREVIOUS or rest[at - 1] in _STICKS_TO_NEXT:
            at = limit
        yield Token("", rest[:at])
        rest = rest[at:]
    yield Token("", rest, word.whitespace)
