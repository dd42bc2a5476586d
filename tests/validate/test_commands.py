"""The two programs: exit code 0 within tolerance, 1 below, 2 for a caller's mistake in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kokoro_tvm.cli import validate_e2e, validate_steps

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
