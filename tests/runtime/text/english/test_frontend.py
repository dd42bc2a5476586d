"""English as the model was trained: words in their context, readings, and nothing lost on the way."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kokoro_tvm.runtime.text.english import English
from kokoro_tvm.runtime.text.g2p import G2P, SYMBOLS
from kokoro_tvm.runtime.text.windows import join_phonemes, normalize


@pytest.fixture(scope="module")
def american() -> G2P:
    return G2P("a")


@pytest.fixture(scope="module")
def british() -> G2P:
    return G2P("b")


def say(g2p: G2P, text: str) -> str:
    return join_phonemes(g2p(text))


# What misaki 0.9.4 with spaCy's en_core_web_sm says.
MISAKI = {
    "hello world": "həlˈO wˈɜɹld",
    "The ancient lighthouse stood alone on the rocky cliff, its beam sweeping across dark waters with the patience of ages.": (
        "ði ˈAnʧənt lˈIthˌWs stˈʊd əlˈOn ˌɔn ðə ɹˈɑki klˈɪf, ɪts bˈim swˈipɪŋ əkɹˈɔs dˈɑɹk wˈɔTəɹz wɪð ðə pˈAʃəns ʌv ˈAʤᵻz."
    ),
    "I read the book yesterday, and I will read it again.": (
        "ˌI ɹˈɛd ðə bˈʊk jˈɛstəɹdˌA, ænd ˌI wɪl ɹˈid ɪt əɡˈɛn."
    ),
    "We used to use it.": "wˌi jˈust tə jˈuz ɪt.",
    "Go to Italy, to Austria, or to Germany.": "ɡˌO tʊ ˈɪTəli, tʊ ˈɔstɹiə, ɔɹ tə ʤˈɜɹməni.",
    "The project will project a loss.": "ðə pɹˈɑʤˌɛkt wɪl pɹəʤˈɛkt ɐ lˈɔs.",
    "It's a well-known, thought-provoking idea.": "ˌɪts ɐ wˌɛlnˈOn, θˌɔtpɹəvˈOkɪŋ Idˈiə.",
}


@pytest.mark.parametrize("text", MISAKI)
def test_as_the_model_was_trained(american, text):
    assert say(american, text) == MISAKI[text]


@pytest.mark.parametrize(
    ("text", "phonemes"),
    [
        ("the apple", "ði ˈæpᵊl"), ("the pear", "ðə pˈɛɹ"), ("the", "ðə"), ("to eat", "tʊ ˈit"), ("to go", "tə ɡˌO"),
        ("going to", "ɡˈOɪŋ tu"), ("an hour", "ɐn ˈWəɹ"), ("I am", "ˌI æm"), ("I am here", "ˌI ɐm hˈɪɹ"), ("come in", "kˈʌm ˈɪn"),
        ("in it", "ɪn ɪt"), ("to the [island](/ˈIlənd/)", "tə ði ˈIlənd"),
    ],
)  # fmt: skip
def test_words_that_sound_as_the_next_one_wants(american, text, phonemes):
    assert say(american, text) == phonemes


@pytest.mark.parametrize(
    ("word", "phonemes"),
    [
        ("cats", "kˈæts"), ("horses", "hˈɔɹsᵻz"), ("googled", "ɡˈuɡᵊld"), ("emailing", "ˈimˌAlɪŋ"),
        ("the dogs' leashes", "ðə dˈɔɡz lˈiʃᵻz"),
        ("James's", "ʤˈAmzᵻz"), ("NATO", "nˈATO"), ("IBM", "ˌIbˌiˈɛm"), ("FBI", "ˌɛfbˌiˈI"), ("U.S.", "jˌuˈɛs"),
        ("don’t", "dˈOnt"),
        ("café", "kæfˈA"), ("T-shirt", "tˈiʃˌɜɹt"), ("he/she", "hi ʃi"), ("pdf", "pˌidˌiˈɛf"),
    ],
)  # fmt: skip
def test_words(american, word, phonemes):
    assert say(american, word) == phonemes


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("1984", "nineteen eighty four"), ("2005", "two thousand five"), ("1905", "nineteen oh five"),
        ("1,984", "one thousand nine hundred eighty four"),
        ("42", "forty two"), ("3.14", "three point one four"), ("21st", "twenty first"), ("the 1990s", "the nineteen nineties"),
        ("-5", "minus five"), ("$5", "five dollars"), ("$1", "one dollar"), ("$3.50", "three dollars and fifty cents"),
        ("£2.01", "two pounds and one pence"),
        ("$5 million", "five million dollars"), ("$2bn", "two billion dollars"), ("10%", "ten percent"),
        ("5km", "five kilometers"), ("1 kg", "one kilogram"),
        ("20°C", "twenty degrees Celsius"), ("a 6 ft man", "a six feet man"), ("10:30", "ten thirty"),
        ("10:05", "ten oh five"), ("7:00", "seven o'clock"),
        ("May 3", "May third"), ("Aug. 6", "August sixth"), ("2021-03-04", "March fourth twenty twenty one"), ("1/2", "one half"),
        ("2 3/4", "two and three quarters"), ("1939–1945", "nineteen thirty nine to nineteen forty five"),
        ("Henry VIII", "Henry the eighth"),
        ("World War II", "World War two"), ("Chapter IV", "Chapter four"), ("Malcolm X", "Malcolm X"),
        ("James I of England", "James the first of England"), ("No. 5", "number five"),
        ("555-0142", "five five five zero one four two"), ("Smith vs. Jones", "Smith versus Jones"),
        ("Gen. Grant", "General Grant"),
        ("22 Baker St., London", "twenty two Baker Street, London"), ("R&D", "R and D"),
        ("3 + 4 = 7", "three plus four equals seven"),
    ],
)  # fmt: skip
def test_written_forms(american, written, spoken):
    """The same sounds as the words; "point" and the names of letters have a stress of their own."""
    plain = {ord(c): None for c in "ˈˌ"}
    assert say(american, written).translate(plain) == say(american, spoken).translate(plain)


def test_a_pronoun_is_no_numeral(american):
    assert say(american, "Tell James I think so.") == say(american, "Tell James") + " " + say(american, "I think so.")


def test_addresses(american):
    assert say(american, "www.example.com") == say(american, "W W W dot example dot com")
    assert say(american, "Mail info@example.org.") == say(american, "Mail info at example dot org.")


@pytest.mark.parametrize(
    ("word", "phonemes"), [("hair", "hˈɛː"), ("idea", "Idˈɪə"), ("car", "kˈɑː"), ("boxes", "bˈɒksɪz"), ("herb", "hˈɜːb")]
)
def test_british(british, word, phonemes):
    assert say(british, word) == phonemes


def test_where_each_comes_from(american):
    explained = american.explain("The [Zog](/zˈɔɡ/) paid 3 IBM blorptons at 10:30.")
    sources = {token.text: (tag, source) for token, tag, source in explained}
    assert {word: source for word, (_, source) in sources.items()} == {
        "The": "rule", "Zog": "given", "paid": "gold", "3": "number", "IBM": "letters", "blorptons": "model", "at": "gold",
        "10:30": "reading", ".": "mark",
    }  # fmt: skip
    assert sources["paid"][0] == "VBD"


def test_places_are_those_of_the_text():
    text = "“Well,” said Dr. O'Neil at 10:30—“it's $5.25, isn't it?” [so] a.b@c.de…"
    tokens = English(british=False)(text)
    assert all(text[t.start : t.start + len(t.text)] == t.text for t in tokens)
    assert "".join(t.text + " " * t.space for t in tokens) == text


def test_given_phonemes_are_used(american):
    tokens = american("Say [Kokoro](/kˈOkəɹO/), please")
    assert [(t.text, t.phonemes, t.whitespace) for t in tokens][1:3] == [("Kokoro", "kˈOkəɹO", ""), (",", ",", " ")]


def test_marks(american):
    text = 'Oh; so: yes, no. Hey! Why? A — b… "c" (d) “e”'
    marks = [t.phonemes for t in american(text) if not any(c.isalpha() for c in t.text)]
    assert marks == [";", ":", ",", ".", "!", "?", "—", "…", "“", "”", "(", ")", "“", "”"]


@settings(max_examples=150, deadline=None)
@given(st.text(st.characters(codec="utf-8"), max_size=80))
def test_any_text_is_said_within_the_symbols_and_kept(text):
    tokens = G2P_AMERICAN(text)
    assert set(join_phonemes(tokens)) <= SYMBOLS or "](/" in text
    if "](/" not in text:
        assert "".join(t.text + t.whitespace for t in tokens).rstrip() == normalize(text)


G2P_AMERICAN = G2P("a")


FORMS = "the a to $ 5 1,000 10:30 3/4 Henry VIII St. Jan. 6 km % @ www.x.com x@y.org - — ' ’s n't . , \" ( ) / é 日"


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(FORMS.split()), max_size=30), st.sampled_from(["", " "]))
def test_any_mixture_of_forms_is_said(parts, space):
    tokens = G2P_AMERICAN(space.join(parts))
    assert set(join_phonemes(tokens)) <= SYMBOLS
    assert "".join(t.text + t.whitespace for t in tokens).rstrip() == normalize(space.join(parts))


RANDOM = random.Random(0)
HOSTILE = {
    "one letter": "a" * 100_000,
    "one word": "".join(RANDOM.choices("abcdefghijklmnopqrstuvwxyz", k=100_000)),
    "brackets": "[" * 50_000 + "]" * 50_000,
    "given": "[a](/" * 20_000,
    "digits": "7" * 100_000,
    "unicode": "".join(chr(RANDOM.randrange(32, 0x2FFF)) for _ in range(100_000)),
    "apostrophes": "a'" * 50_000,
    "hyphens": "a-" * 50_000,
    "stops": "." * 100_000,
    "numbers": "1." * 50_000,
    "web": "www." * 25_000,
    "mail": "a@" * 50_000,
    "clock": "10:30" * 20_000,
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hundred_thousand_characters_of_anything(american, case):
    """CPU seconds, since the machine may have other work; several times what an idle one takes."""
    began = time.process_time()
    tokens = american(HOSTILE[case])
    assert time.process_time() - began < 6
    assert set(join_phonemes(tokens)) <= SYMBOLS | set("/")
