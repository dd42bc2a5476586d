"""From text to windows: cleaning, paragraphs, and the split into pieces the model can take at once.

What it is: pure functions on strings and tokens. A window holds at most 400 phonemes (fewer when an artifact has a smaller
capacity) and mostly 100 to 250: the model rushes through longer ones and is weak on a few. Nothing is dropped or truncated. What
it is not: grapheme-to-phoneme conversion (``g2p``) or the mapping to ids (``vocabulary``).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import inf

from kokoro_tvm.config import STYLE_ROWS
from kokoro_tvm.errors import InputError

MAX_PHONEMES = STYLE_ROWS
"""The most phonemes that the model takes at once."""
LONGEST = 400
"""The most phonemes of a window that is planned: beyond, the model rushes."""
COMFORTABLE = 250
"""A stretch up to this long need not be cut."""
TARGET, SPREAD = 175.0, 75.0
"""The length of window that costs nothing, and the distance from it that costs 1: 100 to 250 phonemes."""
_BREAK_COSTS = (0.0, 0.75, 1.0, 4.0, 9.0)
"""What a cut costs after a sentence, after ``: ;``, after ``, —``, between words, and within one."""
_WITHIN_WORDS = len(_BREAK_COSTS) - 1

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


def split(tokens: Sequence[Token], limit: int = LONGEST) -> list[Window]:
    """Splits a paragraph's tokens into windows of like length, at the ends of sentences where that can be had.

    Each window costs the square of its distance from the length that the model speaks best, each cut what it breaks: nothing at
    the end of a sentence, most inside a word; the cheapest plan is taken. So a short sentence joins its neighbours, and a long
    one is cut at a clause near its middle. Only a token longer than ``limit`` is cut inside: at its spaces and punctuation, else
    hard. Time is linear in the text.

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
    plan = _cheapest(pieces, ends, _candidates(pieces, ends, limit), limit)
    windows = []
    for start, stop in pairwise(plan):
        phonemes = join_phonemes(pieces[start:stop])
        if phonemes:
            windows.append(Window(phonemes, tuple(pieces[start:stop])))
    return windows


def _candidates(pieces: Sequence[Token], ends: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """Where windows may end: indices after a piece with the rank of the break there, in order, the end included.

    Weaker breaks are offered only inside a stretch that is too long without them.
    """
    ranks = _ranks(pieces)
    chosen = [(len(pieces), 0)]
    comfortable = min(COMFORTABLE, limit)
    for rank in range(len(_BREAK_COSTS)):
        enough = comfortable if rank < _WITHIN_WORDS else limit
        found: list[tuple[int, int]] = []
        start = 0
        for stop, stop_rank in chosen:
            if ends[stop] - ends[start] > enough:
                found += _thinned(ranks, ends, rank, start, stop, limit)
            found.append((stop, stop_rank))
            start = stop
        chosen = found
    return chosen


def _thinned(
    ranks: Sequence[int], ends: Sequence[int], rank: int, start: int, stop: int, limit: int
) -> Iterator[tuple[int, int]]:
    """Breaks of a rank between two others, not closer together than their number would matter, nor farther than a window."""
    step = max(1, limit // 40) if rank < _WITHIN_WORDS else 1
    last = start
    for i in range(start + 1, stop):
        if ranks[i] == rank and ends[i] - ends[last] >= step and ends[stop] - ends[i] >= step:
            yield i, rank
            last = i


def _cheapest(pieces: Sequence[Token], ends: Sequence[int], candidates: Sequence[tuple[int, int]], limit: int) -> list[int]:
    """The plan with the lowest cost: indices from 0 to the number of pieces."""
    target = min(TARGET, 0.7 * limit)
    spread = SPREAD * target / TARGET
    places = [0, *(i for i, _ in candidates)]
    costs = [0.0]
    back = [0]
    first = 0
    for j, (stop, rank) in enumerate(candidates, 1):
        trailing = bool(pieces[stop - 1].whitespace) if stop else False
        end = ends[stop] - trailing
        while end - ends[places[first]] > limit and first < j - 1:
            first += 1
        best, origin = inf, first
        for i in range(first, j):
            cost = costs[i] + ((end - ends[places[i]] - target) / spread) ** 2
            if cost < best:
                best, origin = cost, i
        costs.append(best + _BREAK_COSTS[rank])
        back.append(origin)
    plan = [len(places) - 1]
    while plan[-1]:
        plan.append(back[plan[-1]])
    return [places[i] for i in reversed(plan)]


def _ranks(pieces: Sequence[Token]) -> list[int]:
    """For each index, how good it is to end a window before it: 0 after a sentence, up to ``_WITHIN_WORDS``."""
    ranks = [0]
    for i, piece in enumerate(pieces):
        rank = _WITHIN_WORDS - 1 if piece.whitespace else _WITHIN_WORDS
        if _is_closing(pieces, i):
            rank = min(rank, ranks[-1])
        elif piece.whitespace or _is_closing(pieces, i + 1):
            rank = next((r for r, marks in enumerate(_BREAKS) if _is_mark(piece, marks)), rank)
        if _is_closing(pieces, i + 1):
            # What closes a quotation or a bracket stays with it; the break comes after, with the rank of the mark before.
            ranks.append(rank if rank < len(_BREAKS) else _WITHIN_WORDS)
        else:
            ranks.append(rank)
    for i in range(1, len(pieces)):
        if _is_closing(pieces, i):
            ranks[i] = _WITHIN_WORDS
    return ranks


def _is_closing(pieces: Sequence[Token], i: int) -> bool:
    return 0 < i < len(pieces) and pieces[i].phonemes in _CLOSING


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
