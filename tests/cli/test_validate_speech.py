"""``validate_speech`` as a program: refusals in one line; a model whose speech is none fails, with a report."""

from __future__ import annotations

import json

import pytest

from kokoro_tvm.cli import validate_speech


@pytest.fixture
def options(tiny_artifact, tiny_checkpoint, tmp_path):
    return [
        "--checkpoint", tiny_checkpoint.source, "--lib-dir", str(tiny_artifact), "--save-dir", str(tmp_path / "out"),
        "--json", str(tmp_path / "out.json"),
    ]  # fmt: skip


def test_what_cannot_be_understood_fails(options, tmp_path):
    said = ["--text", "Hello", "--text", "Good evening", "--voice", "synthetic:3", "--also", "fp16"]
    assert validate_speech.main([*options, *said]) == 1
    content = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert content["passed"] is False
    assert [line["voice"] for line in content["lines"]] == ["synthetic:3"] * 2
    failed = {g["name"] for g in content["gates"] if not g["passed"]}
    assert "word errors of float64, %" in failed
    assert failed.isdisjoint({"samples", "tokens of other duration", "peak"})
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert page.count("<audio") == 4
    assert (tmp_path / "out" / "02" / "compiled.wav").is_file()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--device", "cuda"], "--device must be cpu"),
        (["--sentences", "0"], "--sentences must be 1 to 40, got 0"),
        (["--sentences", "41"], "--sentences must be 1 to 40, got 41"),
        (["--sentences", "2", "--text", "Hello"], "give either --text or --sentences"),
        (["--also", "bf16"], "--also must be one of another-seed, fp16, got 'bf16'"),
        (["--text", "…"], "has no English word"),
        (["--speed", "0", "--text", "Hello"], "speed is 0"),
        (["--voice", "synthetic:x", "--text", "Hello"], "expected synthetic: and a seed"),
        (["--lib-dir", "nowhere"], "is no artifact"),
    ],
)
def test_mistakes_are_one_line(options, more, message, capsys):
    assert validate_speech.main([*options, *more]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
