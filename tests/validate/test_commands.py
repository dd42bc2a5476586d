"""The two programs: exit code 0 within tolerance, 1 below, 2 for a caller's mistake in one line."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from kokoro_tvm.cli import validate_e2e, validate_steps
from kokoro_tvm.validate import e2e

PROGRAMS = (validate_steps, validate_e2e)


@pytest.fixture
def options(tiny_artifact, tiny_checkpoint, tmp_path):
    return [
        "--checkpoint", tiny_checkpoint.source, "--lib-dir", str(tiny_artifact), "--save-dir", str(tmp_path / "out"),
        "--json", str(tmp_path / "out.json"), "--phonemes", "hˈO",
    ]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_healthy_artifact_passes(program, options, tmp_path):
    assert program.main(options) == 0
    content = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert content["passed"] is True
    assert (tmp_path / "out" / "report.html").stat().st_size > 100_000
    assert list((tmp_path / "out").rglob("compiled.wav"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--device", "cuda"], "--device must be cpu"),
        (["--speed", "0"], "speed is 0"),
        (["--voice", "synthetic:x"], "expected synthetic: and a seed"),
        (["--text", "Hello"], "give one of --text and --phonemes"),
        (["--bisect", "vocoder"], "unknown component 'vocoder'"),
        (["--lib-dir", "nowhere"], "is no artifact"),
    ],
)
def test_mistakes_are_one_line(options, more, message, capsys):
    assert validate_steps.main([*options, *more]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("program", PROGRAMS)
def test_another_checkpoint_is_refused(program, options, tiny_checkpoint, tmp_path, capsys):
    """The same architecture with one byte of difference is another model."""
    folder = tmp_path / "other"
    shutil.copytree(Path(tiny_checkpoint.source).parent, folder)
    with Path(folder, Path(tiny_checkpoint.source).name).open("ab") as file:
        file.write(b"\0")
    assert program.main([*options, "--checkpoint", str(folder)]) == 2
    assert "was compiled from" in capsys.readouterr().err


def _results(*figures):
    """Results of as many texts: what compiled and PyTorch kept, in dB."""
    near = e2e.Distance(0.0, log_mel_db=0.0, f0_cents=0.0, voicing=1.0, samples=0, loudness_db=0.0)
    kept = lambda snr: dataclasses.replace(near, snr_db=snr)  # noqa: E731
    return [e2e.Result([], {}, {e2e.COMPILED: kept(ours), e2e.SINGLE: kept(theirs)}, []) for ours, theirs in figures]


def test_medians_of_a_few_texts_say_nothing():
    assert e2e.median_gates(_results(*[(20.0, 10.0)] * (e2e.ENOUGH - 1))) == []


@pytest.mark.parametrize(
    ("figures", "passes"),
    [
        ((60.0, 40.0), [True, True]),
        ((60.0, 50.0), [True, False]),
        ((40.0, 20.0), [False, True]),
        ((np.nan, 40.0), [False, False]),
    ],
)
def test_medians_of_many(figures, passes):
    assert [g.passed for g in e2e.median_gates(_results(*[figures] * e2e.ENOUGH))] == passes


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--sentences", "2"], "give one of --text, --sentences and --phonemes, got --sentences and --phonemes"),
        (["--sentences", "0"], "give one of"),
    ],
)
def test_one_source_of_texts(options, more, message, capsys):
    assert validate_e2e.main([*options, *more]) == 2
    assert message in capsys.readouterr().err
