"""Words to phonemes by misaki's lexicons: entries, inflections, initialisms and stress.

What it is: the rules by which the model's training texts were turned into phonemes, over the ``gold`` and ``silver`` lexicons of
the package ``misaki``. Its module ``misaki.en``, which needs spaCy, is not imported. What it is not: weak forms that depend on
the next word (``frontend``), numbers (``numbers``) or a guess at words that are in no lexicon (``unknown``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from kokoro_tvm.errors import ToolchainError

Entry = str | dict[str, str | None]

PRIMARY, SECONDARY = "ˈ", "ˌ"
VOWELS = frozenset("AIOQWYaiuæɑɒɔəɛɜɪʊʌᵻ")
CONSONANTS = frozenset("bdfhjklmnpstvwzðŋɡɹɾʃʒʤʧθ")
_FLAPPED_AFTER = frozenset("AIOWYiuæɑəɛɪɹʊʌ")
"""American t between one of these and an ending's vowel becomes a flap."""
_VOICELESS_S, _SIBILANT = frozenset("ptkfθ"), frozenset("szʃʒʧʤ")
_VOICELESS_ED = frozenset("pkfθʃsʧ")
_DOUBLED = frozenset("bcdgklmnprstvxz")

NONE, FAINT, DEMOTED, CAPITALISED, SHOUTED = -2.0, -1.0, -0.5, 0.5, 2.0
"""How strongly a word is said: without stress; secondary for primary; the same where there is a primary; at least some stress, as
a capitalised word; a primary stress, as a word in capitals."""


@dataclass(frozen=True)
class Sound:
    """A pronunciation and where it comes from: ``gold``, ``silver``, ``letters``, ``rule``, ``number`` or ``model``."""

    phonemes: str
    source: str


@dataclass(frozen=True)
class After:
    """What follows a word, as far as it matters.

    Attributes:
        vowel: Whether the next sound is a vowel; None before a pause.
        to: Whether the next word is "to".
    """

    vowel: bool | None = None
    to: bool = False


def read_lexicon(name: str) -> dict[str, Entry]:
    """One of misaki's lexicons: ``us_gold``, ``us_silver``, ``gb_gold``, ``gb_silver``.

    Raises:
        ToolchainError: The package is not installed, or lacks it.
    """
    try:
        with resources.files("misaki.data").joinpath(f"{name}.json").open("rb") as file:
            return json.load(file)
    except (ImportError, OSError, ValueError) as error:
        raise ToolchainError(f"misaki's lexicon {name} cannot be read ({error}): pip install misaki==0.9.4") from error


def emphasis(word: str) -> float | None:
    """How strongly a word is said for the way it is written."""
    if word == word.lower():
        return None
    return SHOUTED if word == word.upper() else CAPITALISED


def stressed(phonemes: str, strength: float | None) -> str:
    """Phonemes said more strongly or more weakly than they stand in the lexicon."""
    if strength is None:
        return phonemes
    has_primary, has_secondary = PRIMARY in phonemes, SECONDARY in phonemes
    if strength <= NONE:
        return phonemes.replace(PRIMARY, "").replace(SECONDARY, "")
    if strength == FAINT or (has_primary and strength in (0, DEMOTED)):
        return phonemes.replace(SECONDARY, "").replace(PRIMARY, SECONDARY)
    if not has_primary and not has_secondary and strength >= 0:
        return _mark_first_vowel(phonemes, PRIMARY if strength > 1 else SECONDARY)
    if strength >= 1 and has_secondary and not has_primary:
        return phonemes.replace(SECONDARY, PRIMARY)
    return phonemes


def _mark_first_vowel(phonemes: str, mark: str) -> str:
    at = next((i for i, c in enumerate(phonemes) if c in VOWELS), None)
    return phonemes if at is None else phonemes[:at] + mark + phonemes[at:]


def word_class(tag: str | None) -> str | None:
    """The class that lexicon entries distinguish, for a Penn Treebank tag."""
    for start, name in (("VB", "VERB"), ("NN", "NOUN"), ("RB", "ADV"), ("JJ", "ADJ")):
        if tag and tag.startswith(start):
            return name
    return tag


class Lexicon:
    """The lexicons of one accent; safe to share between threads.

    Args:
        british: Received Pronunciation instead of General American.
    """

    def __init__(self, british: bool) -> None:
        region = "gb" if british else "us"
        self.british = british
        self._gold = read_lexicon(f"{region}_gold")
        self._silver = read_lexicon(f"{region}_silver")

    def gold(self, word: str) -> Entry | None:
        """The entry of a word, in its case or with its first letter in the other one."""
        return _either_case(self._gold, word)

    def silver(self, word: str) -> str | None:
        """Likewise in the lexicon that was not checked by hand."""
        found = _either_case(self._silver, word)
        return found if isinstance(found, str) else None

    def has(self, word: str) -> bool:
        """Whether an entry exists."""
        return self.gold(word) is not None or self.silver(word) is not None

    def knows(self, word: str) -> bool:
        """Whether ``look_up`` can say something: an entry, a letter, or capitals to spell out."""
        if self.has(word):
            return True
        if not (word.isascii() and word.isalpha()):
            return False
        return len(word) == 1 or word[1:].isupper() or (word.isupper() and self.gold(word.lower()) is not None)

    def look_up(
        self, word: str, tag: str | None = None, strength: float | None = None, after: After | None = None
    ) -> Sound | None:
        """The entry of a word that ``knows`` says yes to, as its tag wants it; capitals without an entry are spelled."""
        name = False
        if word == word.upper() and self.gold(word) is None:
            word, name = word.lower(), tag == "NNP"
        entry: Entry | None = self.gold(word)
        source = "gold"
        if entry is None and not name:
            entry, source = self.silver(word), "silver"
        if isinstance(entry, dict):
            if after and after.vowel is None and "None" in entry:
                tag = "None"
            elif tag not in entry:
                tag = word_class(tag)
            entry = entry.get(tag or "", entry["DEFAULT"])
        if entry is None or (name and PRIMARY not in entry):
            spelled = self.spell(word)
            if spelled:
                return Sound(spelled, "letters")
        return None if entry is None else Sound(stressed(entry, strength), source)

    def spell(self, word: str) -> str | None:
        """The names of a word's letters, the last one stressed; None if one has no name."""
        names = [self.gold(c.upper()) for c in word if c.isalpha()]
        if not names or not all(isinstance(n, str) for n in names):
            return None
        joined = stressed("".join(map(str, names)), 0)
        head, mark, tail = joined.rpartition(SECONDARY)
        return head + PRIMARY + tail if mark else joined

    # --- inflections ---

    def word(self, word: str, tag: str | None, strength: float | None, after: After | None) -> Sound | None:
        """A word by its entry, its stem's entry, or its letters."""
        lower = word.lower()
        if (
            len(word) > 1
            and word != lower
            and word.replace("'", "").isalpha()
            and (tag != "NNP" or len(word) > 7)
            and (word == word.upper() or word[1:] == word[1:].lower())
            and not self.has(word)
            and (self.has(lower) or self._inflected(lower, tag, strength, after))
        ):
            word = lower
        if self.knows(word):
            return self.look_up(word, tag, strength, after)
        if word.endswith("s'") and self.knows(word[:-2] + "'s"):
            return self.look_up(word[:-2] + "'s", tag, strength, after)
        if word.endswith("'") and self.knows(word[:-1]):
            return self.look_up(word[:-1], tag, strength, after)
        return self._inflected(word, tag, strength, after)

    def _inflected(self, word: str, tag: str | None, strength: float | None, after: After | None) -> Sound | None:
        for stems, ending in ((self._stems_s, self.with_s), (self._stems_ed, self.with_ed), (self._stems_ing, self.with_ing)):
            stem = next((s for s in stems(word) if self.knows(s)), None)
            if stem is None:
                continue
            if ending == self.with_ing and strength is None:
                strength = CAPITALISED
            sound = self.look_up(stem, tag, strength, after)
            spoken = ending(sound.phonemes) if sound else None
            if sound and spoken:
                return Sound(spoken, sound.source)
        return None

    @staticmethod
    def _stems_s(word: str) -> list[str]:
        if len(word) < 3 or not word.endswith("s"):
            return []
        stems = [] if word.endswith("ss") else [word[:-1]]
        if word.endswith("'s") or (len(word) > 4 and word.endswith("es") and not word.endswith("ies")):
            stems.append(word[:-2])
        if len(word) > 4 and word.endswith("ies"):
            stems.append(word[:-3] + "y")
        return stems

    @staticmethod
    def _stems_ed(word: str) -> list[str]:
        if len(word) < 4 or not word.endswith("d"):
            return []
        stems = [] if word.endswith("dd") else [word[:-1]]
        if len(word) > 4 and word.endswith("ed") and not word.endswith("eed"):
            stems.append(word[:-2])
        return stems

    @staticmethod
    def _stems_ing(word: str) -> list[str]:
        if len(word) < 5 or not word.endswith("ing"):
            return []
        stems = [word[:-3]] if len(word) > 5 else []
        stems.append(word[:-3] + "e")
        if len(word) > 5 and (word.endswith("cking") or (word[-4] == word[-5] and word[-4] in _DOUBLED)):
            stems.append(word[:-4])
        return stems

    def with_s(self, stem: str) -> str | None:
        """A plural, possessive or third person."""
        if not stem:
            return None
        if stem[-1] in _VOICELESS_S:
            return stem + "s"
        if stem[-1] in _SIBILANT:
            return stem + ("ɪz" if self.british else "ᵻz")
        return stem + "z"

    def with_ed(self, stem: str) -> str | None:
        """A past tense."""
        if not stem:
            return None
        if stem[-1] in _VOICELESS_ED:
            return stem + "t"
        if stem[-1] == "d":
            return stem + ("ɪd" if self.british else "ᵻd")
        if stem[-1] != "t":
            return stem + "d"
        if self.british or len(stem) < 2:
            return stem + "ɪd"
        return stem[:-1] + "ɾᵻd" if stem[-2] in _FLAPPED_AFTER else stem + "ᵻd"

    def with_ing(self, stem: str) -> str | None:
        """A participle."""
        if not stem or (self.british and stem[-1] in "əː"):
            return None
        if not self.british and len(stem) > 1 and stem[-1] == "t" and stem[-2] in _FLAPPED_AFTER:
            return stem[:-1] + "ɾɪŋ"
        return stem + "ɪŋ"


@lru_cache(maxsize=2)
def load(british: bool) -> Lexicon:
    """The lexicon of an accent, read once."""
    return Lexicon(british)


def _either_case(entries: Mapping[str, Entry], word: str) -> Entry | None:
    found = entries.get(word)
    if found is not None or len(word) < 2:
        return found
    lower = word.lower()
    if word == lower:
        return entries.get(word.capitalize())
    return entries.get(lower) if word == lower.capitalize() else None
