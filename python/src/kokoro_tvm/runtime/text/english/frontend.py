"""English paragraphs to spoken tokens.

What it is: the order of things - readings, tokens, tags, then sounds from the last word to the first, since "the", "to" and a few
others sound as what follows them wants. What it is not: the rules of single words (``lexicon``), of tags (``tagger``), of numbers
(``numbers``) or of written forms (``readings``).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from kokoro_tvm.runtime.text.english import lexicon as words
from kokoro_tvm.runtime.text.english import numbers, readings, tagger, unknown
from kokoro_tvm.runtime.text.english.lexicon import CONSONANTS, PRIMARY, VOWELS, After, Sound, stressed, word_class
from kokoro_tvm.runtime.text.english.tokens import QUOTES, Token, is_currency, pieces, tokenize


@dataclass(frozen=True)
class Spoken:
    """A stretch of a paragraph and how it is said.

    Attributes:
        text: As written.
        start: Index of its first character in the paragraph.
        tag: Part of speech, Penn Treebank's.
        phonemes: misaki's symbols; may hold spaces, may be empty.
        source: ``gold``, ``silver``, ``letters``, ``rule``, ``number``, ``reading``, ``model``, ``given``, ``mark`` or
            ``silent``.
        space: Whether a space follows.
    """

    text: str
    start: int
    tag: str
    phonemes: str
    source: str
    space: bool


@dataclass
class _Part:
    """A piece of a word, said or still to be said."""

    token: Token
    tag: str
    phonemes: str | None = None
    source: str = "silent"
    currency: str = ""
    spaced: bool = False


@dataclass
class _Unit:
    """What becomes one spoken token: parts without a space between them, or a mark."""

    parts: list[_Part] = field(default_factory=list)
    is_word: bool = True


_PAUSES = frozenset(";:,.!?—…")
_SPOKEN_MARKS = frozenset(';:,.!?—…"“”()')
_SILENT_INSIDE = frozenset("',-._‘’/")
_MARK_SOUNDS = {
    "-": "—", "–": "—", "--": "—", "---": "—", "[": "(", "]": ")", "{": "(", "}": ")", "«": "“", "»": "”", "„": "“",
    "‟": "“", "‚": ",",
}  # fmt: skip
_SYMBOLS = {
    "%": "percent", "&": "and", "+": "plus", "@": "at", "=": "equals",
    "°": "degrees", "×": "times", "÷": "divided", "§": "section",
    "©": "copyright", "®": "registered", "™": "trademark",
}  # fmt: skip
_MONEY = {"$": ("dollar", "cent"), "£": ("pound", "pence"), "€": ("euro", "cent")}
_ORDINAL_ENDINGS = ("st", "nd", "rd", "th")
_NUMBER_ENDINGS = ("ing", "'d", "ed", "'s", *_ORDINAL_ENDINGS, "s")
_NUMBER = re.compile(r"(-?)([\d,.]+)(ing|'d|ed|'s|st|nd|rd|th|s)?$")
_LONGEST_MERGE = 8
"""Parts that are looked up as one word at most: a word of more is no entry."""
_LONGEST_CHAIN = 32
"""Parts of a chain at most whose parts are joined at all."""
_HEAVY = frozenset("AIOQWYʤʧ")
_VOWEL_LETTERS = re.compile("[aeiouy]")


class English:
    """The front end of one accent; safe to share between threads.

    Args:
        british: British instead of American English.

    Raises:
        ToolchainError: The lexicons are not installed.
    """

    def __init__(self, british: bool) -> None:
        self.british = british
        self._lexicon = words.load(british)
        self._tagger = tagger.load()
        self._unknown = unknown.load(british)

    def __call__(self, text: str, given: Mapping[tuple[int, int], str] | None = None) -> list[Spoken]:
        """Says a paragraph.

        Args:
            text: Its only whitespace is single spaces, none of them at an end.
            given: Phonemes for stretches ``text[start:end]``, by ``(start, end)``; the stretches do not overlap.

        Returns:
            Tokens that, with the spaces after them, are the paragraph.
        """
        tokens, fixed = _tokens(text, given or {})
        tags = self._tagger([t.text for t in tokens])
        said = {i: (r, "given") if isinstance(r, str) else (self._read(r), "reading") for i, r in fixed.items()}
        units = _units(tokens, tags, said)
        after = After()
        for unit in reversed(units):
            after = self._say(unit, after)
        return [_spoken(unit) for unit in units]

    # --- one unit ---

    def _say(self, unit: _Unit, after: After) -> After:
        """Gives every part of a unit its phonemes; returns what the unit before it is followed by."""
        if not unit.is_word or unit.parts[0].phonemes is not None:
            part = unit.parts[0]
            return _before(after, part.phonemes or "", part.token.text, part.tag)
        parts = unit.parts
        right = len(parts)
        merge = _LONGEST_MERGE if right <= _LONGEST_CHAIN else 1
        while right:
            for left in range(max(0, right - merge), right):
                merged = "".join(p.token.text for p in parts[left:right])
                tag = _heaviest(parts[left:right])
                sound = self._word(merged, tag, after, left == 0, next((p.currency for p in parts[left:right] if p.currency), ""))
                if sound:
                    break
            else:
                left, merged, tag = right - 1, parts[right - 1].token.text, parts[right - 1].tag
                sound = self._last_resort(merged, right == len(parts))
            parts[left].phonemes, parts[left].source = sound.phonemes, sound.source
            for part in parts[left + 1 : right]:
                part.phonemes, part.source = "", sound.source
            after = _before(after, sound.phonemes, merged, tag)
            right = left
        for owner, part in pairwise(parts):
            if part.token.text in ("'", "’") and part.phonemes in ("s", "z") and owner.phonemes:
                part.phonemes = (self._lexicon.with_s(owner.phonemes) or "").removeprefix(owner.phonemes)
        _balance(parts)
        return after

    def _word(self, written: str, tag: str, after: After, head: bool, currency: str) -> Sound | None:
        word = written.replace("‘", "'").replace("’", "'")
        if not word.isascii():
            word = unicodedata.normalize("NFKC", word)
            word = "".join(str(unicodedata.digit(c)) if c.isdigit() and not c.isascii() else c for c in word)
        sound = self._special(word, tag, words.emphasis(word), after)
        if sound is None and not any(c.isdigit() for c in word):
            sound = self._lexicon.word(word, tag, words.emphasis(word), after)
        if sound is not None:
            if currency in _MONEY:
                return Sound(f"{sound.phonemes} {self._one(_MONEY[currency][0] + 's')}", sound.source)
            return sound
        return self._number(word, currency, head)

    def _special(self, word: str, tag: str, strength: float | None, after: After) -> Sound | None:
        """Words that sound as their neighbours or their tag want."""
        look_up, lower = self._lexicon.look_up, word.lower()
        titled = word in (lower, lower.capitalize())
        noun = tag.startswith("NN")
        if word in _SYMBOLS:
            return look_up(_SYMBOLS[word])
        if "." in word.strip(".") and not any(c.isdigit() for c in word):
            letters = word.replace(".", "")
            if letters.isalpha() and max(map(len, word.split("."))) < 3:
                spelled = self._lexicon.spell(letters)
                return Sound(spelled, "letters") if spelled else None
            return None
        if lower == "a":
            return Sound("ɐ" if tag == "DT" else "ˈA", "rule")
        if word in ("am", "Am", "AM"):
            if noun:
                return Sound(self._lexicon.spell(word) or "", "letters")
            strong = after.vowel is None or word != "am" or (strength or 0) > 0
            return Sound(self._one("am") if strong else "ɐm", "rule")
        if word in ("an", "An", "AN"):
            return Sound(self._lexicon.spell(word) or "", "letters") if word == "AN" and noun else Sound("ɐn", "rule")
        if word == "I" and tag == "PRP":
            return Sound("ˌI", "rule")
        if word in ("by", "By", "BY") and word_class(tag) == "ADV":
            return Sound("bˈI", "rule")
        if word in ("to", "To") or (word == "TO" and tag in ("TO", "IN")):
            return Sound(self._one("to") if after.vowel is None else "tʊ" if after.vowel else "tə", "rule")
        if (lower == "in" and titled) or (word == "IN" and tag != "NNP"):
            return Sound("ˈɪn" if after.vowel is None or tag != "IN" else "ɪn", "rule")
        if (lower == "the" and titled) or (word == "THE" and tag == "DT"):
            return Sound("ði" if after.vowel else "ðə", "rule")
        if lower in ("vs", "vs."):
            return look_up("versus")
        if word in ("used", "Used", "USED"):
            entry = self._lexicon.gold("used")
            if isinstance(entry, dict):
                habit = tag in ("VBD", "JJ") and after.to
                return Sound(str(entry["VBD" if habit else "DEFAULT"]), "gold")
        return None

    def _number(self, word: str, currency: str, head: bool) -> Sound | None:
        """A number, with an ending or a currency, or None."""
        match = _NUMBER.match(word)
        if not match or not any(c.isdigit() for c in match[2]) or (match[1] and not head):
            return None
        minus, number, ending = match.groups()
        whole = number.isdigit()
        points = number.count(".")
        if ending in _ORDINAL_ENDINGS and number.replace(",", "").isdigit() and len(number) <= numbers.LONGEST:
            said = numbers.ordinal(int(number.replace(",", "")))
        elif not minus and len(number) == 4 and whole and currency not in _MONEY:
            said = numbers.year(int(number))
        elif not head and not points:
            said = numbers.inside_word(number.strip(",") or "0")
        elif points > 1 or not head:
            said = numbers.dotted(number)
        elif currency in _MONEY and (not points or len(number.split(".")[1]) < 3):
            return self._sum(number, currency, minus)
        elif points:
            said = numbers.decimal(number)
        else:
            said = numbers.whole(number)
        spoken = self._words([*(["minus"] if minus else []), *said])
        if ending in ("s", "'s"):
            spoken = self._lexicon.with_s(spoken) or spoken
        elif ending in ("ed", "'d"):
            spoken = self._lexicon.with_ed(spoken) or spoken
        elif ending == "ing":
            spoken = self._lexicon.with_ing(spoken) or spoken
        return Sound(spoken, "number") if spoken else None

    def _sum(self, number: str, currency: str, minus: str) -> Sound:
        """An amount of money in units and hundredths."""
        unit, hundredth = _MONEY[currency]
        whole, _, rest = number.replace(",", "").partition(".")
        cents = int(rest.ljust(2, "0")) if rest else 0
        said = ["minus"] if minus else []
        if int(whole or 0) or not cents:
            said += [*numbers.whole(whole or "0"), unit if int(whole or 0) == 1 else unit + "s"]
        if cents:
            said += ["and"] * (len(said) > len(minus)) + numbers.cardinal(cents)
            said.append(hundredth if cents == 1 or hundredth == "pence" else hundredth + "s")
        return Sound(self._words(said), "number")

    def _last_resort(self, written: str, last: bool) -> Sound:
        """A part that no rule knows: a mark, initials, or a word for the model."""
        if last and written in _PAUSES:
            return Sound(written, "mark")
        if all(c in _SILENT_INSIDE for c in written):
            return Sound("", "silent")
        letters = unicodedata.normalize("NFKD", written.replace("’", "'"))
        plain = "".join(c for c in letters if c.isascii() and (c.isalpha() or c == "'")).strip("'")
        if not plain:
            return Sound("", "silent")
        if plain != written.replace("’", "'"):
            sound = self._lexicon.word(plain, "NN", words.emphasis(plain), None)
            if sound:
                return sound
        if len(plain) > unknown.LONGEST or (len(plain) <= 6 and not _VOWEL_LETTERS.search(plain.lower())):
            spelled = self._lexicon.spell(plain)
            if spelled:
                return Sound(spelled, "letters")
        return Sound(self._unknown(plain), "model")

    # --- words in a row ---

    def _read(self, said: Sequence[str]) -> str:
        """Words of a reading, each as it stands in a sentence."""
        after = After()
        spoken: list[str] = []
        for word in reversed(said):
            tag = "DT" if word == "a" else "IN" if word == "in" else "NNP" if len(word) == 1 else "NN"
            sound = self._word(word, tag, after, True, "") or self._last_resort(word, False)
            after = _before(after, sound.phonemes, word, tag)
            spoken.append(sound.phonemes)
        return " ".join(s for s in reversed(spoken) if s)

    def _words(self, said: Sequence[str]) -> str:
        return " ".join(stressed(self._one(w), words.NONE if w in ("point", "O") else None) for w in said)

    def _one(self, word: str) -> str:
        sound = self._lexicon.word(word, None, None, None)
        return sound.phonemes if sound else self._unknown(word)


# --- from text to units ---


def _tokens(text: str, given: Mapping[tuple[int, int], str]) -> tuple[list[Token], dict[int, tuple[str, ...] | str]]:
    """The tokens of a paragraph, and which of them are read as other words or have their phonemes given."""
    stretches: dict[tuple[int, int], tuple[str, ...] | str] = dict(given)
    at = 0
    for start, end in [*sorted(given), (len(text), len(text))]:
        stretches |= {(r.start, r.end): r.words for r in readings.find(text, at, start)}
        at = end
    tokens: list[Token] = []
    fixed: dict[int, tuple[str, ...] | str] = {}
    at = 0
    for (start, end), said in sorted(stretches.items()):
        tokens += tokenize(text, at, start)
        fixed[len(tokens)] = said
        tokens.append(Token(text[start:end], start, end, text[end : end + 1] == " "))
        at = end
    return tokens + tokenize(text, at), fixed


def _units(tokens: Sequence[Token], tags: Sequence[str], fixed: Mapping[int, tuple[str, str]]) -> list[_Unit]:
    """Groups pieces that no space divides; marks and readings stand alone."""
    units: list[_Unit] = []
    joins = False
    currency = ""
    for i, (token, tag) in enumerate(zip(tokens, tags, strict=True)):
        if i in fixed:
            units.append(_Unit([_Part(token, "CD", *fixed[i])]))
            joins, currency = False, ""
            continue
        for piece in pieces(token):
            part = _Part(piece, tag)
            if is_currency(piece.text):
                currency = piece.text
                part.phonemes, part.source = "", "mark"
            elif _is_mark(piece, tag, joins, token):
                part.phonemes, part.source = _mark_sound(piece.text, tag, not joins), "mark"
                # A mark inside a sum of money ends it.
                currency = ""
            elif currency:
                if tag != "CD" and not piece.text[0].isdigit():
                    currency = ""
                elif piece.end == token.end and not (i + 1 < len(tokens) and tags[i + 1] == "CD" and token.space):
                    part.currency, currency = currency, ""
            if part.phonemes is not None:
                units.append(_Unit([part], is_word=False))
                joins = False
            elif joins:
                units[-1].parts.append(part)
            else:
                units.append(_Unit([part]))
            joins = part.phonemes is None and not piece.space
    return units


def _is_mark(piece: Token, tag: str, joins: bool, token: Token) -> bool:
    """Whether a piece is punctuation of its own rather than part of a word."""
    text = piece.text
    if text in _SYMBOLS or any(c.isalnum() for c in text):
        return False
    if text in ("'", "’", "‘", "`", "´"):
        # An apostrophe after a word is part of it, unless it closes a quotation.
        return not (joins and tag in ("POS", "VBZ", "NNP", "NNPS", "NNS", "NN")) and len(token.text) == 1
    if text.strip("-–—") == "":
        return text[0] in "–—" or len(text) > 1 or not joins or piece.space or tag == ":"
    if text.strip(".") == "" and len(token.text) > len(text):
        return False
    if text in ("/", "\\", "_"):
        return not joins
    return not (text in (":", ",", ".") and len(token.text) > len(text))


def _mark_sound(text: str, tag: str, opens: bool) -> str:
    if text in _MARK_SOUNDS:
        return _MARK_SOUNDS[text]
    if text in QUOTES and text not in "“”":
        return "“" if opens else "”"
    if len(set(text)) == 1 and text[0] in "—–-":
        return "—"
    return "".join(c for c in text if c in _SPOKEN_MARKS)


# --- context, stress, tokens ---


def _before(after: After, phonemes: str, text: str, tag: str) -> After:
    """What precedes a word with these phonemes is followed by this."""
    vowel = after.vowel
    for c in phonemes:
        if c in _PAUSES:
            vowel = None
            break
        if c in VOWELS or c in CONSONANTS:
            vowel = c in VOWELS
            break
    return After(vowel, text in ("to", "To") or (text == "TO" and tag in ("TO", "IN")))


def _heaviest(parts: Sequence[_Part]) -> str:
    """The tag of the longest part, capitals counting twice."""
    return max(parts, key=lambda p: sum(1 if c == c.lower() else 2 for c in p.token.text)).tag


def _balance(parts: Sequence[_Part]) -> None:
    """Spaces between the parts of unlike kinds; else one main stress for the parts of a compound."""
    text = "".join(p.token.text for p in parts)
    kinds = {0 if c.isalpha() else 1 if c.isdigit() else 2 for c in text if c not in _SILENT_INSIDE}
    if "/" in text or len(kinds) > 1:
        for part in parts[1:]:
            part.spaced = True
        return
    sounds = [(i, p.phonemes) for i, p in enumerate(parts) if p.phonemes]
    said = [(PRIMARY in sound, sum(2 if c in _HEAVY else 1 for c in sound), i) for i, sound in sounds]
    if len(said) == 2 and len(parts[said[0][2]].token.text) == 1:
        weaker = [said[1][2]]
    elif len(said) < 2 or sum(primary for primary, _, _ in said) <= (len(said) + 1) // 2:
        return
    else:
        weaker = [i for _, _, i in sorted(said)[: len(said) // 2]]
    for i in weaker:
        parts[i].phonemes = stressed(parts[i].phonemes or "", words.DEMOTED)


_SOURCES = ("model", "letters", "number", "rule", "silver", "gold", "reading", "given", "mark", "silent")
"""A unit of several parts is named by the least certain."""


def _spoken(unit: _Unit) -> Spoken:
    parts = unit.parts
    phonemes = ""
    for part in parts:
        if part.spaced and phonemes and part.phonemes and not phonemes.endswith(" "):
            phonemes += " "
        phonemes += part.phonemes or ""
    sources = {p.source for p in parts if p.phonemes} or {parts[0].source}
    source = next(s for s in _SOURCES if s in sources)
    text = "".join(p.token.text for p in parts)
    phonemes = phonemes.replace("ɾ", "T").replace("ʔ", "t")
    return Spoken(text, parts[0].token.start, _heaviest(parts), phonemes, source, parts[-1].token.space)
