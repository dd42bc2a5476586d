"""Graphemes to phonemes: Kokoro's symbols, tokens that keep the text, and clear words about what is missing."""

from __future__ import annotations

import importlib.util
import random
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import pytest

from kokoro_tvm.errors import InputError, ToolchainError
from kokoro_tvm.runtime.text import g2p as module
from kokoro_tvm.runtime.text.g2p import ALIASES, G2P, LANGUAGES, SYMBOLS, align_words, language_of, resolve_language, to_kokoro
from kokoro_tvm.runtime.text.windows import Token, join_phonemes

pytest.importorskip("espeakng_loader")
pytest.importorskip("phonemizer")

SENTENCES = {
    "a": 'The quick brown fox — "born" in 1999 — jumps over 23 lazy dogs; isn\'t it (nearly) $3.50? Hello 😀…',
    "b": "The poor bird near the car goes home, doesn't it? It's a little button: 10:30 at St. Paul's!",
    "e": "La cigüeña tocaba el saxofón: «¿Qué hora es?» (preguntó Ana); nadie respondió… ¡Vámonos!",
    "f": "Les enfants sont arrivés à l'heure, n'est-ce pas ? Où est-ce que tu vas avec un bon pain ?",
    "h": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतंत्रता प्राप्त है।",
    "i": "C'è un'amica, gli gnocchi della zia (molto buoni); perché no? Alleluja!",
    "j": "こんにちは、ありがとう ございます。",
    "p": "Não são três pães; os irmãos vão à escola? Luís argüia que zângão é palavra. Bom dia!",
    "z": "你好，世界！我们一起去吃饭吧。",
}


@pytest.fixture(scope="module")
def speakers():
    return {language: G2P(language, "espeak") for language in LANGUAGES}


@pytest.fixture(scope="module")
def english(speakers):
    return speakers["a"]


def say(g2p: G2P, text: str) -> str:
    return join_phonemes(g2p(text))


# --- symbols ---


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_symbol_is_known_and_the_text_is_kept(speakers, language):
    tokens = speakers[language](SENTENCES[language])
    assert set(join_phonemes(tokens)) <= SYMBOLS
    written = "".join(t.text + t.whitespace for t in tokens)
    assert "".join(written.split()) == "".join(SENTENCES[language].split())
    assert sum(bool(t.phonemes) for t in tokens) >= 5


def test_symbols_are_those_of_the_published_model():
    assert len(SYMBOLS) == 114


# Text and phonemes as misaki writes them for the model.
SHORT = "The quick brown fox jumps over the dog."
SHORT_MISAKI = "ðə kwˈɪk bɹˈWn fˈɑks ʤˈʌmps ˈOvəɹ ðə dˈɔɡ."
LONG = (
    "The ancient lighthouse stood alone on the rocky cliff, its beam sweeping across dark waters with the patience of "
    "centuries. Ships had come and gone, storms had battered its walls, yet still it turned, guiding sailors home."
)
LONG_MISAKI = (
    "ði ˈAnʧənt lˈIthˌWs stˈʊd əlˈOn ˌɔn ðə ɹˈɑki klˈɪf, ɪts bˈim swˈipɪŋ əkɹˈɔs dˈɑɹk wˈɔTəɹz wɪð ðə pˈAʃəns ʌv "
    "sˈɛnʧəɹiz. ʃˈɪps hæd kˈʌm ænd ɡˈɔn, stˈɔɹmz hæd bˈæTəɹd ɪts wˈɔlz, jˈɛt stˈɪl ɪt tˈɜɹnd, ɡˈIdɪŋ sˈAləɹz hˈOm."
)


@pytest.mark.parametrize(("text", "misaki"), [(SHORT, SHORT_MISAKI), (LONG, LONG_MISAKI)])
def test_english_is_close_to_misaki(english, text, misaki):
    words, expected = say(english, text).split(), misaki.split()
    assert len(words) == len(expected)
    assert sum(w == e for w, e in zip(words, expected, strict=True)) >= 0.75 * len(words)
    assert {*"".join(words)} <= {*misaki, *"ˌ"}


@pytest.mark.parametrize(
    ("word", "phonemes"),
    [
        ("water", "wˈɔTəɹ"),
        ("button", "bˈʌtn"),
        ("little", "lˈɪTᵊl"),
        ("bird", "bˈɜɹd"),
        ("church", "ʧˈɜɹʧ"),
        ("boy", "bˈY"),
        ("door", "dˈɔɹ"),
        ("compulsory", "kəmpˈʌlsəɹi"),
        ("boxes", "bˈɑksᵻz"),
    ],
)
def test_american_symbols(english, word, phonemes):
    assert say(english, word) == phonemes


@pytest.mark.parametrize(
    ("word", "phonemes"), [("goes", "ɡˈQz"), ("hair", "hˈɛː"), ("idea", "Idˈɪə"), ("car", "kˈɑː"), ("nation", "nˈAʃᵊn")]
)
def test_british_symbols(speakers, word, phonemes):
    assert say(speakers["b"], word) == phonemes


@pytest.mark.parametrize("language", "efhip")
def test_other_languages_are_exactly_the_reference(speakers, language):
    pytest.importorskip("misaki")
    from misaki.espeak import EspeakG2P

    reference = EspeakG2P(module._ESPEAK_VOICES[language])(SENTENCES[language].replace("।", "."))[0]
    assert say(speakers[language], SENTENCES[language]) == "".join(c for c in reference if c in SYMBOLS)


def test_nasal_vowels_are_decomposed_and_unknown_letters_have_a_neighbour():
    assert to_kokoro("ũ ɫɑ ç hä", "f") == "u\u0303 lɑ ç ha"
    assert to_kokoro("mˈɑɜ mˈɑ5", "z") == "mˈɑ↗ mˈɑ→"


# --- words and clauses ---


def test_joined_function_words_come_apart_in_english(english):
    tokens = english("one of the best of a kind in the world")
    assert [t.text for t in tokens] == ["one", "of", "the", "best", "of", "a", "kind", "in", "the", "world"]
    assert join_phonemes(tokens) == "wˈʌn ʌv ðə bˈɛst əv ɐ kˈInd ɪn ðə wˈɜɹld"


def test_joined_words_stay_joined_elsewhere(speakers):
    tokens = speakers["f"]("Qu'est-ce que c'est ?")
    assert tokens == [Token("Qu'est-ce que", "kɛskˌə", " "), Token("c'est", "sˈɛ", " "), Token("?", "?")]


def test_numbers_are_one_token_also_next_to_joined_words(english):
    # "of the" loses a word and "23" gains one: equal counts must not fool the alignment.
    assert [(t.text, t.phonemes) for t in english("of the 23 men")] == [
        ("of", "ʌv"),
        ("the", "ðə"),
        ("23", "twˈɛnti θɹˈi"),
        ("men", "mˈɛn"),
    ]


@pytest.mark.parametrize(
    "text", ["3.14", "10:30", "1,000,000.50", "the U.S.A. is", "example.com", "well-known", "3–4", "e.g. this"]
)
def test_marks_inside_a_word_are_no_pauses(english, text):
    assert not set(".,:—") & set(say(english, text))


def test_abbreviations_end_no_sentence(english):
    assert say(english, "Dr. Who met Mr. Smith.") == say(english, "Doctor Who met Mister Smith.")
    assert english("I am a dr.")[-1] == Token(".", ".")


def test_punctuation_is_kept(english):
    text = 'Oh; so: yes, no. Hey! Why? A — b… "c" (d) “e”'
    marks = [t.phonemes for t in english(text) if not any(c.isalpha() for c in t.text)]
    assert marks == [";", ":", ",", ".", "!", "?", "—", "…", "“", "”", "(", ")", "“", "”"]
    assert say(english, 'no - well -- ("so") it\'s ...') == "nˈO — wˈɛl — (“sˈO”) ɪts ..."
    assert say(english, "[Oh] {no}") == "ˈO nˈO"


def test_full_width_marks_bring_their_space(speakers):
    assert [t.phonemes + t.whitespace for t in speakers["j"]("は、「は」。")][1:] == [", ", "“", "hˈa", "” ", ". "]


def test_given_phonemes_are_used(english):
    tokens = english("Say [Kokoro](/kˈOkəɹO/), please")
    assert tokens[1] == Token("Kokoro", "kˈOkəɹO") and tokens[2] == Token(",", ",", " ")


@pytest.mark.parametrize("text", ["", " \n", "\u00a0", "\u200b"])
def test_nothing_gives_no_tokens(english, text):
    assert english(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "¡¿",
        "\u0301",
        "' - '",
        "()",
        "...!?",
        "\ud800",
        "\x00a\x00",
        "日本語 مرحبا привет",
        "👨‍👩‍👧",
        "[a](/b",
        "]( [",
        "-",
    ],
)
def test_odd_text_neither_fails_nor_leaves_the_symbols(english, text):
    assert set(join_phonemes(english(text))) <= SYMBOLS


def test_random_text_in_every_language(speakers):
    rng = random.Random(0)
    letters = "abcxyzéñçãõüß ŵžłøåअआकख्िी मあいカン你好  1234567890.,:;!?-–—'\"()[]«»…/\\@#%&*+=<>|~^`$€£😀\u0301\u00a0\u200d\r\n"
    for language, g2p in speakers.items():
        for _ in range(15):
            text = "".join(rng.choices(letters, k=80))
            if language == "j":
                text = text.replace("你", "").replace("好", "")
            tokens = g2p(text)
            assert set(join_phonemes(tokens)) <= SYMBOLS, (language, text)
            assert all(t.phonemes == t.phonemes.strip() and t.whitespace in ("", " ") for t in tokens)


def test_a_very_long_word_and_a_very_long_clause_are_spoken_whole(english):
    assert say(english, "ab" * 2000).count("b") == 2000
    assert say(english, "7" * 3000).count("sˈɛv") == 3000
    tokens = english("hello world " * 500)
    assert len(tokens) == 1000 and len({t.phonemes for t in tokens}) == 2


def test_composed_and_decomposed_letters_sound_the_same(speakers):
    assert say(speakers["f"], "e\u0301cole") == say(speakers["f"], "école")
    assert say(speakers["a"], "don’t") == say(speakers["a"], "don't")


def test_threads_get_what_one_thread_gets(speakers):
    jobs = [(language, SENTENCES[language]) for language in "abefip"] * 4
    expected = [say(speakers[language], text) for language, text in jobs]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda job: say(speakers[job[0]], job[1]), jobs)) == expected


# --- alignment ---


@pytest.mark.parametrize(
    ("isolated", "spoken", "parts"),
    [
        (["ʌv", "ðə"], "ʌvðə", ["ʌv", "ðə"]),
        (["ʌv", "ðə", "bˈɛst"], "ʌvðə bˈɛst", ["ʌv", "ðə", "bˈɛst"]),
        (["ʌv", "ðˈiː", "twˈɛnti θɹˈiː"], "ʌvðə twˈɛnti θɹˈiː", ["ʌv", "ðə", "twˈɛnti θɹˈiː"]),
        (["a", "", "b"], "a b", ["a", "", "b"]),
        (["a", "b"], "", ["", ""]),
        (["abc"], "xyz", ["xyz"]),
    ],
)
def test_align_words(isolated, spoken, parts):
    cuts = align_words(isolated, spoken)
    assert [spoken[a:b].strip() for a, b in zip([0, *cuts], [*cuts, len(spoken)], strict=True)] == parts


# --- choosing a language and a backend ---


def test_codes_and_aliases():
    assert [resolve_language(c) for c in LANGUAGES] == list(LANGUAGES)
    assert {resolve_language(a.upper()) for a in ALIASES} == set(LANGUAGES)
    assert resolve_language("pt_BR") == "p"


@pytest.mark.parametrize("language", ["", "x", "english", None, 3, "aa"])
def test_unknown_language(language):
    with pytest.raises(InputError, match=r"expected one of a \(en-us\), b \(en-gb\)"):
        G2P(language)


def test_unknown_backend():
    with pytest.raises(InputError, match="'auto', 'lexicon', 'misaki', 'espeak'"):
        G2P("a", "festival")


@pytest.mark.parametrize("backend", ["misaki", "lexicon"])
def test_a_backend_is_only_for_its_languages(backend):
    with pytest.raises(InputError, match=f"{backend} does not speak French: use backend 'espeak'"):
        G2P("f", backend)
    assert G2P("f").backend == "espeak"


@pytest.mark.parametrize("language", ["a", "en-gb"])
def test_english_is_ours_unless_another_is_asked_for(language):
    assert G2P(language).backend == "lexicon"
    assert G2P(language, "espeak").backend == "espeak"


@pytest.mark.parametrize(
    ("voice", "language"),
    [
        ("ef_dora", "e"), ("af_heart:0.7,bm_george:0.3", "a"), ("voices/bm_george.bin", "b"), ("/v/all.npz#jf_alpha", "j"),
        ("array", None), ("af", None), ("", None), ("xf_none", None), ("half_full", None), ("hm_omega.pt", "h"),
    ],
)  # fmt: skip
def test_the_language_of_a_voice(voice, language):
    assert language_of(voice) == language


def without(monkeypatch, *packages: str) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name in packages else find(name, *a))


def test_misaki_says_what_it_lacks(monkeypatch):
    without(monkeypatch, "en_core_web_sm")
    with pytest.raises(ToolchainError, match="lacks .*en_core_web_sm.*spacy download en_core_web_sm"):
        G2P("a", "misaki")


@pytest.mark.parametrize(("language", "extra", "package"), [("j", "ja", "fugashi"), ("z", "zh", "jieba")])
def test_japanese_and_chinese_ask_for_misaki(monkeypatch, language, extra, package):
    without(monkeypatch, package)
    with pytest.raises(ToolchainError, match=rf"lacks .*{package}.*misaki\[{extra}\].*backend 'espeak'"):
        G2P(language)


def test_espeak_does_not_pretend_to_read_kanji(speakers):
    with pytest.raises(InputError, match=r"cannot read kanji.*misaki\[ja\]"):
        speakers["j"]("世界")


@pytest.mark.parametrize("package", ["espeakng_loader", "phonemizer.backend.espeak.wrapper"])
def test_without_espeak(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ToolchainError, match=r"pip install .kokoro-tvm\[espeak\]"):
        G2P("e")


def test_a_library_that_does_not_load(monkeypatch):
    import espeakng_loader

    monkeypatch.setattr(espeakng_loader, "get_library_path", lambda: "/nonexistent/libespeak-ng.so")
    with pytest.raises(ToolchainError, match="cannot be loaded"):
        G2P("e")


@pytest.fixture
def fake_misaki(monkeypatch):
    """misaki's English converter as far as the adapter sees it; the real one needs a spaCy model."""
    made = []

    class Converter:
        def __init__(self, **options):
            made.append(options)

        def __call__(self, text):
            token = types.SimpleNamespace
            return "", [token(text=text, phonemes="ˈɔk", whitespace=" "), token(text="…", phonemes=None, whitespace="")]

    parts = {
        "en": types.SimpleNamespace(G2P=Converter),
        "espeak": types.SimpleNamespace(EspeakFallback=lambda british: "fallback"),
    }
    package = types.ModuleType("misaki")
    for name, part in parts.items():
        setattr(package, name, part)
    monkeypatch.setitem(sys.modules, "misaki", package)
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: True)
    return made, parts


def test_misaki_speaks_english_when_asked_to(fake_misaki):
    g2p = G2P("en-gb", "misaki")
    assert g2p.backend == "misaki"
    assert g2p("OK \n there") == [Token("OK there", "ˈɔk", " "), Token("…", "")]
    assert fake_misaki[0] == [{"trf": False, "british": True, "fallback": "fallback", "unk": ""}]


def test_a_broken_misaki_is_reported(fake_misaki):
    def broken(**_):
        raise OSError("[E050] Can't find model")

    fake_misaki[1]["en"].G2P = broken
    with pytest.raises(ToolchainError, match=r"does not work here \(OSError: \[E050\]"):
        G2P("a", "misaki")


def test_importing_loads_nothing_heavy():
    import os
    import subprocess

    code = (
        "import sys, kokoro_tvm.runtime.text.g2p as g\n"
        "assert not {'phonemizer', 'misaki', 'spacy', 'torch', 'numpy'} & set(sys.modules)\n"
        "g.G2P('e')('hola')\n"
        "assert not {'misaki', 'spacy', 'torch', 'transformers', 'tvm'} & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


# --- silence ---


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([("a", "a", " "), ("$", "", ""), ("5", "fˈIv", "")], [("a", "a", " "), ("$5", "fˈIv", "")]),
        ([("a", "a", " "), ("*", "", " "), ("b", "b", "")], [("a *", "a", " "), ("b", "b", "")]),
        ([("a", "a", ""), ("*", "", " "), ("b", "b", "")], [("a*", "a", " "), ("b", "b", "")]),
        ([("*", "", " "), ("b", "b", " ")], [("* b", "b", " ")]),
        ([("b", "b", " "), ("*", "", "")], [("b *", "b", "")]),
        ([("*", "", " "), ("*", "", "")], [("* *", "", "")]),
        ([], []),
    ],
)
def test_silent_tokens_lose_neither_text_nor_spaces(tokens, expected):
    assert module._absorb_silent([Token(*t) for t in tokens]) == [Token(*t) for t in expected]
