"""Graphemes to phonemes: text in one of Kokoro's nine languages to tokens in Kokoro's symbols.

What it is: one interface over three backends. ``lexicon`` is our own front end for English, with the lexicons that the model was
trained with (``text.english``). ``misaki`` is the reference's, for Japanese and Chinese, and for English where it is completely
installed and asked for. ``espeak`` is espeak-ng for the other languages, as in the reference, its IPA rewritten into Kokoro's
symbols. What it is not: a splitter (``windows``), or a downloader: nothing here touches the network.

Words in brackets followed by phonemes, ``[Kokoro](/kˈOkəɹO/)``, are pronounced as given, with every backend.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import threading
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

from kokoro_tvm.errors import InputError, ToolchainError
from kokoro_tvm.runtime.text.windows import Token, normalize

if TYPE_CHECKING:
    from kokoro_tvm.runtime.text.english import Spoken

LANGUAGES = {
    "a": "American English",
    "b": "British English",
    "e": "Spanish",
    "f": "French",
    "h": "Hindi",
    "i": "Italian",
    "j": "Japanese",
    "p": "Brazilian Portuguese",
    "z": "Mandarin Chinese",
}
ALIASES = {
    "en-us": "a",
    "en-gb": "b",
    "es": "e",
    "fr-fr": "f",
    "hi": "h",
    "it": "i",
    "ja": "j",
    "pt-br": "p",
    "zh": "z",
}
SYMBOLS = frozenset(
    ';:,.!?—…"()“” \u0303ʣʥʦʨᵝꭧAIOQSTWYᵊabcdefhijklmnopqrstuvwxyzɑɐɒæβɔɕçɖðʤəɚɛɜɟɡɥɨɪʝɯɰŋɳɲɴøɸθœɹɾɻʁɽʂʃʈʧʊʋʌɣɤχʎʒʔˈˌːʰʲ↓→↗↘ᵻ'
)
"""The symbols of the published model (``vocab`` in its ``config.json``); espeak's output is kept within them."""

_log = logging.getLogger(__name__)
_ESPEAK_VOICES = {
    "a": "en-us",
    "b": "en-gb",
    "e": "es",
    "f": "fr-fr",
    "h": "hi",
    "i": "it",
    "j": "ja",
    "p": "pt-br",
    "z": "cmn",
}
_LANGUAGES_OF = {"lexicon": "ab", "misaki": "abjz", "espeak": "abefhijpz"}
"""Backends, the first that speaks a language being the one it gets unless another is asked for."""
_MISAKI_EXTRAS = {"a": "en", "b": "en", "j": "ja", "z": "zh"}
_MISAKI_PACKAGES = {
    "en": ("misaki", "num2words", "spacy", "en_core_web_sm"),
    "ja": ("misaki", "pyopenjtalk", "fugashi", "jaconv", "mojimoji", "unidic"),
    "zh": ("misaki", "jieba", "pypinyin", "cn2an"),
}


class G2P:
    """Converts text of one language. Safe to share between threads.

    Args:
        lang: A language code or alias, any case: a b e f h i j p z, or en-us en-gb es fr-fr hi it ja pt-br zh.
        backend: ``"auto"`` takes ``"lexicon"`` for English, ``"misaki"`` for Japanese and Chinese, and ``"espeak"`` for the
            others. For Japanese and Chinese espeak-ng, which reads no kanji and loses tones, has to be asked for explicitly.

    Attributes:
        language: The one-letter code.
        backend: The backend in use.

    Raises:
        InputError: Unknown language or backend, or a backend that does not speak the language.
        ToolchainError: The backend cannot be used; says what to install.
    """

    def __init__(self, lang: str = "a", backend: Literal["auto", "lexicon", "misaki", "espeak"] = "auto") -> None:
        self.language = resolve_language(lang)
        if backend not in ("auto", *_LANGUAGES_OF):
            raise InputError(f"G2P backend is {backend!r}, expected 'auto', {', '.join(map(repr, _LANGUAGES_OF))}")
        if backend == "auto":
            backend = next(name for name, languages in _LANGUAGES_OF.items() if self.language in languages)
        if self.language not in _LANGUAGES_OF[backend]:
            raise InputError(f"{backend} does not speak {LANGUAGES[self.language]}: use backend 'espeak', or 'auto'")
        self.backend = backend
        self._lock = threading.Lock()
        self._convert: Callable[[str], list[Token]]
        if backend == "lexicon":
            self._english = _english(self.language)
            self._convert = lambda text: _absorb_silent([_token(s) for s in self._english(text)])
        elif backend == "misaki":
            self._convert = _misaki_converter(self.language, _MISAKI_EXTRAS[self.language])
        else:
            self._convert = _Espeak(self.language).tokens

    def __call__(self, text: str) -> list[Token]:
        """Converts one paragraph; line breaks count as spaces.

        Returns:
            Tokens in order, none of them losing text. Punctuation marks are tokens of their own. A token is a word, or a few
            words where the backend speaks them as one; its phonemes may be empty.

        Raises:
            InputError: ``text`` is not a string, or holds kanji while espeak-ng speaks Japanese.
        """
        text = _clean(text)
        with self._lock:
            return self._convert(text) if text else []

    def explain(self, text: str) -> list[tuple[Token, str, str]]:
        """The same with each token's part of speech and where its phonemes come from, as far as the backend tells.

        Returns:
            Tokens with a Penn Treebank tag (empty but for ``lexicon``) and a source, see ``english.frontend.Spoken``.
        """
        if self.backend != "lexicon":
            return [(token, "", self.backend) for token in self(text)]
        return [(_token(s), s.tag, s.source) for s in self._english(_clean(text))]


def _clean(text: str) -> str:
    if not isinstance(text, str):
        raise InputError(f"text is {type(text).__name__}, expected str")
    return normalize(text)


def language_of(voice: str) -> str | None:
    """The language a published voice speaks, by the first letter of its name, or of the first name in a blend.

    Args:
        voice: A specification such as ``"ef_dora"``, ``"voices/bm_george.bin"`` or ``"af_heart:0.7,af_bella:0.3"``.

    Returns:
        A one-letter code; None for a name of another form.
    """
    match = re.match(r"(?:.*[/\\#])?([a-z])[fm]_", voice.split(",")[0].strip())
    return match[1] if match and match[1] in LANGUAGES else None


def resolve_language(lang: str) -> str:
    """The one-letter code of a language code or alias.

    Raises:
        InputError: Unknown language.
    """
    code = lang.lower().replace("_", "-") if isinstance(lang, str) else lang
    code = ALIASES.get(code, code) if isinstance(code, str) else code
    if not isinstance(code, str) or code not in LANGUAGES:
        known = ", ".join(f"{c} ({alias})" for alias, c in ALIASES.items())
        raise InputError(f"language {lang!r} is unknown, expected one of {known}")
    return code


# --- our English ---

_GIVEN = re.compile(r"\[([^\[\]]+)\]\(/([^()/]+)/\)")


def _english(language: str) -> Callable[[str], list[Spoken]]:
    from kokoro_tvm.runtime.text.english import English

    speak = English(language == "b")

    def convert(text: str) -> list[Spoken]:
        """Takes words out of their brackets and tells the front end how they are said."""
        plain, given, at = "", {}, 0
        for match in _GIVEN.finditer(text):
            plain += text[at : match.start()]
            given[len(plain), len(plain) + len(match[1])] = match[2]
            plain, at = plain + match[1], match.end()
        return speak(plain + text[at:], given)

    return convert


def _token(spoken: Spoken) -> Token:
    return Token(spoken.text, spoken.phonemes, " " if spoken.space else "")


# --- misaki ---


def _misaki_converter(language: str, extra: str) -> Callable[[str], list[Token]]:
    """Builds misaki's converter without letting it download anything.

    Raises:
        ToolchainError: A package is missing or does not work.
    """
    missing = [p for p in _MISAKI_PACKAGES[extra] if importlib.util.find_spec(p) is None]
    install = f"pip install 'misaki[{extra}]'"
    if extra == "en":
        install += " and python -m spacy download en_core_web_sm"
    if extra == "ja":
        install += " and python -m unidic download"
    if extra != "en":
        install += "; backend 'espeak' is a rough stand-in"
    if missing:
        raise ToolchainError(f"misaki for {LANGUAGES[language]} lacks {', '.join(missing)}: {install}")
    try:
        build = {"en": _misaki_english, "ja": _misaki_japanese, "zh": _misaki_chinese}[extra]
        return build(language)
    except Exception as error:  # incompatible versions and missing dictionaries surface as many classes
        raise ToolchainError(
            f"misaki for {LANGUAGES[language]} does not work here ({type(error).__name__}: {error}): {install}"
        ) from error


def _misaki_english(language: str) -> Callable[[str], list[Token]]:
    from misaki import en, espeak

    british = language == "b"
    try:
        fallback = espeak.EspeakFallback(british)
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        _log.warning("words that misaki does not know will be silent: espeak-ng is not usable (%s)", error)
        fallback = None
    convert = en.G2P(trf=False, british=british, fallback=fallback, unk="")
    return lambda text: [Token(t.text, t.phonemes or "", t.whitespace) for t in convert(text)[1]]


def _misaki_japanese(language: str) -> Callable[[str], list[Token]]:
    from misaki import ja

    convert = ja.JAG2P()
    return lambda text: _by_clause(text, lambda clause: [Token(clause, convert(clause)[0].strip())])


def _misaki_chinese(language: str) -> Callable[[str], list[Token]]:
    import jieba
    from misaki import zh

    convert = zh.ZHG2P(version=None)

    def clause_tokens(clause: str) -> list[Token]:
        phonemes = convert(clause)[0].strip()
        words, spoken = jieba.lcut(clause), phonemes.split(" ")
        # misaki rewrites digits before it separates words, so words only correspond when there are none.
        if len(words) != len(spoken) or not all("\u4e00" <= c <= "\u9fff" for c in clause):
            return [Token(clause, phonemes)]
        tokens = [Token(word, sound, " ") for word, sound in zip(words, spoken, strict=True)]
        return [*tokens[:-1], replace(tokens[-1], whitespace="")]

    return lambda text: _by_clause(text, clause_tokens)


# --- clauses and punctuation ---

_MARKS = dict.fromkeys("[]{}¡¿", "") | dict(
    zip(
        ';:,.!?—…"()“”«»„‟「」『』《》【】（）。．！？、，；：।॥–',
        ';:,.!?—…"()“”“”“”“”“”“”“”()..!?,,;:..—',
        strict=True,
    )
)
"""Punctuation as written to punctuation as spoken; some marks are silent."""
_WIDE_CLOSING = frozenset("」』》】）。．！？、，；：")
_WIDE_OPENING = frozenset("「『《【（")
"""Full-width marks, whose glyph holds the space that others are written with."""

_ALWAYS_MARKS = "".join(m for m in _MARKS if m not in ".,:–")
_PIECE = re.compile(
    rf"""\[(?P<word>[^\[\]]+)\]\(/(?P<phonemes>[^()/]+)/\)
    |(?P<mark>[{re.escape(_ALWAYS_MARKS)}]
        |[.,:–](?!(?<=\w.)\w)              # 3.14, 10:30 and 1,000 are numbers, not clauses
        |--+|(?<!\S)-(?!\S))
    """,
    re.VERBOSE,
)
_ABBREVIATION = re.compile(r"(?<![\w.])(?:mr|mrs|ms|dr|prof|st|vs|\w(?:\.\w)+)$", re.IGNORECASE)


def _by_clause(text: str, convert: Callable[[str], list[Token]]) -> list[Token]:
    """Converts the stretches between punctuation marks, and makes each mark (or run of one mark) a token."""
    tokens: list[Token] = []
    for piece in _pieces(text):
        body = piece.rstrip()
        space = " " if len(body) < len(piece) else ""
        match = _PIECE.fullmatch(body)
        if match and match["word"]:
            added = [Token(match["word"], match["phonemes"])]
        elif match or (len(set(body)) == 1 and body[0] in _MARKS):
            opens = not tokens or bool(tokens[-1].whitespace) or tokens[-1].phonemes in ("(", "“")
            added = [Token(body, _spoken_mark(body, opens))]
        else:
            added = convert(body)
        if body in _WIDE_CLOSING:
            space = " "
        elif body in _WIDE_OPENING and tokens:
            tokens[-1] = replace(tokens[-1], whitespace=" ")
        tokens += added[:-1] + [replace(t, whitespace=space) for t in added[-1:]]
    return tokens


def _pieces(text: str) -> Iterator[str]:
    """Cuts text into clauses, marks and bracketed words; each keeps the space that follows it."""
    at = 0
    for match in _PIECE.finditer(text):
        start, end = match.span()
        # The full stop of "Dr. Who" ends no sentence; at the end of the text it does.
        if match["mark"] == "." and end < len(text) and _ABBREVIATION.search(text[max(at, start - 16) : start]):
            continue
        if start < at:
            continue
        if start > at:
            yield text[at:start]
        while match["mark"] and end < len(text) and text[end] == match["mark"]:
            end += 1
        at = end + (text[end : end + 1] == " ")
        yield text[start:at]
    if at < len(text):
        yield text[at:]


def _spoken_mark(mark: str, opens: bool) -> str:
    if mark[0] == "-":
        return "—"
    if mark == '"':
        return "“" if opens else "”"
    return "".join(_MARKS[m] for m in mark)


# --- espeak-ng ---

_LOADING = threading.Lock()
_LETTERS_PER_CALL = 200
"""Espeak breaks longer texts by itself, but then anywhere."""
_TOO_LONG = re.compile(r"\d{25}|.{65}")
_WORD_PART = re.compile(r"\d{1,24}|\D{1,64}")
"""Espeak silently leaves out what follows the 27th digit of a number or some 80 letters of a word."""

# Longer keys first; each was checked against misaki's dictionaries.
_ENGLISH = (
    ("ʔˌn\u0329", "tn"),
    ("ʔn\u0329", "tn"),
    ("a͡ɪ", "I"),
    ("a͡ʊ", "W"),
    ("d͡ʒ", "ʤ"),
    ("e͡ɪ", "A"),
    ("t͡ʃ", "ʧ"),
    ("ɔ͡ɪ", "Y"),
    ("ə͡l", "ᵊl"),
    ("r", "ɹ"),
    ("x", "k"),
    ("ç", "k"),
    ("ɬ", "l"),
    ("ɐ", "ə"),
    ("ɾ", "T"),
    ("ʔ", "t"),
    ("ʲ", ""),
    ("\u0303", ""),
)
_AMERICAN = (
    ("ɚɹ", "əɹ"),
    ("ɚ", "əɹ"),
    ("o͡ʊ", "O"),
    ("ɜːɹ", "ɜɹ"),
    ("ɜː", "ɜɹ"),
    ("ɪ͡ə", "iə"),
    ("ɪə", "iə"),
    ("ː", ""),
    ("e", "A"),
    ("o", "ɔ"),
)
_ENGLISH_WORDS = {("a", "ə"): "ɐ", ("the", "ðɪ"): "ði"}
"""Words that misaki writes in a way of their own, by how espeak-ng sounds in context."""
_BRITISH = (("ɚ", "ə"), ("e͡ə", "ɛː"), ("i͡ə", "ɪə"), ("iə", "ɪə"), ("ə͡ʊ", "Q"), ("e", "ɛ"), ("o", "ɔ"), ("ᵻ", "ɪ"))
_OTHER = (
    ("a͡ɪ", "I"),
    ("a͡ʊ", "W"),
    ("d͡z", "ʣ"),
    ("d͡ʒ", "ʤ"),
    ("d͡ʑ", "ʥ"),
    ("e͡ɪ", "A"),
    ("o͡ʊ", "O"),
    ("ə͡ʊ", "Q"),
    ("s͡s", "S"),
    ("t͡s", "ʦ"),
    ("t͡ʃ", "ʧ"),
    ("t͡ɕ͡h", "ʨʰ"),
    ("t͡ɕ", "ʨ"),
    ("ɔ͡ɪ", "Y"),
)
# espeak-ng's IPA writes tones 1 and 4 alike; a digit or ɜ after a syllable is its tone.
_CHINESE_TONES = (("ɜ", "↗"), ("5", "→"), ("2", "↓"), ("1", ""), (".", ""))
_NEAREST = str.maketrans("gɫɭʍɱɵɘʉʏɦħʑʐɶɝɺʙʀɓɗɠ", "ɡllwməəuyhhʒʒœɜɾbʁbdɡ")
"""IPA letters without a symbol of their own, to the nearest that has one."""
_FLAG = re.compile(r"\([^()]*\)")


class _Espeak:
    """espeak-ng for one language; one call at a time."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._espeak = _espeak_wrapper(_ESPEAK_VOICES[language])
        self._isolated = lru_cache(maxsize=8192)(self._speak)

    def tokens(self, text: str) -> list[Token]:
        """Tokens of a paragraph."""
        if self.language == "j" and re.search("[\u3400-\u9fff]", text):
            raise InputError("espeak-ng cannot read kanji: pip install 'misaki[ja]' for Japanese, or write kana")
        tokens = _by_clause(text.replace("’", "'"), self._clause)
        if self.language in "ab":
            return tokens
        # Only English curls straight quotes, as misaki does there.
        return [replace(t, phonemes=t.text) if t.text.strip('"') == "" else t for t in tokens]

    def _clause(self, clause: str) -> list[Token]:
        """Tokens of a stretch without punctuation, some words of context at a time."""
        tokens: list[Token] = []
        batch: list[str] = []
        for word in clause.split():
            too_long = _TOO_LONG.search(word)
            if batch and (too_long or len(" ".join([*batch, word])) > _LETTERS_PER_CALL):
                tokens += self._words(batch)
                batch = []
            if too_long:
                tokens.append(Token(word, " ".join(map(self._speak, _WORD_PART.findall(word))), " "))
            else:
                batch.append(word)
        return tokens + self._words(batch) if batch else tokens

    def _words(self, words: list[str]) -> list[Token]:
        """Speaks words together, for their stress and liaison, and finds each again in what came out."""
        spoken = self._speak(" ".join(words))
        parts = spoken.split(" ")
        # Espeak joins function words and spells numbers out; with neither, words correspond one to one.
        if len(parts) != len(words) or not all(w.replace("'", "").replace("-", "").isalpha() for w in words):
            cuts = align_words([self._isolated(w) for w in words], spoken)
            if self.language not in "ab":
                words, cuts = _keep_joined(words, cuts, spoken)
            parts = [spoken[a:b].strip() for a, b in zip([0, *cuts], [*cuts, len(spoken)], strict=True)]
        if self.language in "ab":
            parts = [_ENGLISH_WORDS.get((w.lower(), p), p) for w, p in zip(words, parts, strict=True)]
        return _absorb_silent([Token(w, p, " ") for w, p in zip(words, parts, strict=True)])

    def _speak(self, text: str) -> str:
        """Kokoro symbols, words separated by single spaces."""
        ipa = self._espeak.text_to_phonemes(text, tie=True)
        # A word in another language's alphabet is spoken in that language, between flags such as "(en)".
        ipa = " ".join(_FLAG.sub("", ipa.replace("_", "")).split())
        return to_kokoro(ipa, self.language)


def _espeak_wrapper(voice: str) -> Any:
    try:
        import espeakng_loader
        from phonemizer.backend.espeak.wrapper import EspeakWrapper
    except ImportError as error:
        raise ToolchainError(
            f"espeak-ng needs {error.name or error}: pip install 'kokoro-tvm[espeak]'"
        ) from error
    try:
        with _LOADING:
            EspeakWrapper.set_library(espeakng_loader.get_library_path())
            EspeakWrapper.set_data_path(espeakng_loader.get_data_path())
            wrapper = EspeakWrapper()
            wrapper.set_voice(voice)
            return wrapper
    except Exception as error:  # phonemizer raises RuntimeError, ctypes OSError, a plain phonemizer AttributeError
        raise ToolchainError(
            f"espeak-ng cannot be loaded for {voice} ({error}): pip install --force-reinstall phonemizer-fork espeakng-loader"
        ) from error


def to_kokoro(ipa: str, language: str) -> str:
    """Rewrites espeak-ng's IPA (with tie bars) into Kokoro's symbols; what has no counterpart is left out.

    Args:
        ipa: Words separated by spaces.
        language: One-letter code.
    """
    ipa = unicodedata.normalize("NFD", ipa).replace("c\u0327", "ç")
    for old, new in {"a": _ENGLISH + _AMERICAN, "b": _ENGLISH + _BRITISH}.get(language, _OTHER):
        ipa = ipa.replace(old, new)
    if language in "ab":
        ipa = _english_details(ipa, language)
    if language == "z":
        for old, new in _CHINESE_TONES:
            ipa = ipa.replace(old, new)
    ipa = ipa.translate(_NEAREST)
    return " ".join("".join(c for c in ipa if c in SYMBOLS).split())


def _english_details(ipa: str, language: str) -> str:
    """Weak syllables as misaki writes them."""
    ipa = re.sub("(\\S)\u0329", r"ᵊ\1", ipa)
    if language == "a":
        # misaki has ᵻ only in the endings -ed and -es.
        return re.sub(r"ᵻ(?![dz](?!\S))", "ə", ipa).replace("ɹɹ", "ɹ")
    return re.sub(r"(?<=[tdʃʒsz])ən(?!\S)", "ᵊn", ipa)


def align_words(isolated: list[str], spoken: str) -> list[int]:
    """Finds words, known by how each sounds alone, in how they sound together.

    The cheapest edit between the two strings, where spaces pair with spaces, tells where each gap between words went.

    Args:
        isolated: n pronunciations.
        spoken: The pronunciation of the n words together; words may be joined, reduced or take several parts.

    Returns:
        n - 1 positions in ``spoken``, non-decreasing, where words 2 to n begin (or the space before them).
    """
    # The gap between two words is a tab, to tell it from the spaces inside a spelled-out number.
    source = "\t".join(isolated)
    skips = [_skip_cost(c) for c in spoken]
    pairs = {c: [_pair_cost(c, s) for s in spoken] for c in set(source)}
    rows = [[0.0, *accumulate(skips)]]
    for c in source:
        above, skip = rows[-1], _skip_cost(c)
        cost = above[0] + skip
        row = [cost]
        for j, pair in enumerate(pairs[c]):
            cost = min(above[j] + pair, above[j + 1] + skip, cost + skips[j])
            row.append(cost)
        rows.append(row)
    cuts, i, j = [], len(source), len(spoken)
    while i:
        if j and rows[i][j] == rows[i - 1][j - 1] + pairs[source[i - 1]][j - 1]:
            i, j = i - 1, j - 1
        elif rows[i][j] == rows[i - 1][j] + _skip_cost(source[i - 1]):
            i -= 1
        else:
            j -= 1
            continue
        if source[i] == "\t":
            cuts.append(j)
    return cuts[::-1]


def _skip_cost(char: str) -> float:
    return 0.25 if char in "ˈˌː" else 0.75 if char in "\t " else 1.0


def _pair_cost(source: str, spoken: str) -> float:
    if source == spoken:
        return 0.0
    if source == "\t" and spoken == " ":
        return 0.0
    # A gap never pairs with a sound; two sounds do at less than leaving both out.
    return 4.0 if source in "\t " or spoken == " " else 1.25


def _keep_joined(words: list[str], cuts: list[int], spoken: str) -> tuple[list[str], list[int]]:
    """Puts words that are spoken as one into one token: outside English the model was trained with them joined."""
    kept_words, kept_cuts = words[:1], []
    for word, cut in zip(words[1:], cuts, strict=True):
        if spoken[cut : cut + 1] == " ":
            kept_words.append(word)
            kept_cuts.append(cut)
        else:
            kept_words[-1] += " " + word
    return kept_words, kept_cuts


def _absorb_silent(tokens: list[Token]) -> list[Token]:
    """Gives the text of tokens without a sound to a neighbour, so that no doubled space stands for them, and none is lost."""
    kept: list[Token] = []
    silent = ""
    for token in tokens:
        token = replace(token, text=silent + token.text)
        silent = ""
        if token.phonemes:
            kept.append(token)
        elif token.whitespace and kept:
            last = kept.pop()
            kept.append(Token(last.text + last.whitespace + token.text, last.phonemes, " "))
        else:
            silent = token.text + token.whitespace
    if silent and kept:
        last = kept.pop()
        kept.append(Token(last.text + last.whitespace + silent.rstrip(), last.phonemes, ""))
    elif silent:
        kept.append(Token(silent.rstrip(), ""))
    return kept
