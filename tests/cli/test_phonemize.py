"""``kokoro-tvm phonemize``: tables and JSON of how a text is said, and refusals in one line."""

from __future__ import annotations

import json

import pytest


def test_tables(command_line):
    result = command_line("phonemize", "Dr. Smith paid $3.50. [Zog](/zˈɔɡ/) [sic] didn't.")
    assert result.code == 0, result.err
    for part in ("dˈɑktəɹ", "θɹˈi dˈɑləɹz", "zˈɔɡ", "given", "VBD", "number", "gold"):
        assert part in result.out


def test_json(command_line):
    result = command_line("phonemize", "--json", "--lang", "en-gb", "Hello car.\n\nIt is 10:30.")
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert (report["language"], report["g2p"]) == ("b", "lexicon")
    first, second = report["paragraphs"]
    assert [w["phonemes"] for w in first["words"]] == ["həlˈQ", "kˈɑː", "."]
    assert second["words"][2] == {"text": "10:30", "tag": "CD", "phonemes": "tˈɛn θˈɜːti", "from": "reading"}
    assert [w["text"] for w in second["windows"]] == ["It is 10:30."]
    assert 0.3 < second["windows"][0]["seconds"] < 3


def test_the_windows_are_those_that_would_be_spoken(command_line):
    text = "The quick brown fox jumps over the lazy dog, and then it sleeps. " * 12
    windows = json.loads(command_line("phonemize", "--json", text).out)["paragraphs"][0]["windows"]
    assert len(windows) > 2
    assert " ".join(w["text"] for w in windows) == text.strip()
    assert all(100 <= len(w["phonemes"]) <= 250 for w in windows)


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("the text is empty", ["  "]),
        ("give one of TEXT", []),
        ("klingon", ["--lang", "klingon", "x"]),
        ("lexicon does not speak French", ["--lang", "f", "--g2p", "lexicon", "x"]),
        ("cannot read the text", ["--text-file", "/nonexistent"]),
    ],
)
def test_refusals(message, arguments, command_line):
    command_line.refused(message, "phonemize", *arguments)
