"""Runs command lines in this process, and holds failures to what every failure promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from kokoro_tvm.artifact import MANIFEST
from kokoro_tvm.cli import port_decoder, port_encoder
from kokoro_tvm.cli.__main__ import main

PRECIOUS = b"what was there before"


@dataclass(frozen=True)
class Result:
    """Exit code and what was printed."""

    code: int
    out: str
    err: str


class CommandLine:
    """``kokoro-tvm`` and its siblings, called with arguments."""

    def __init__(self, capfd: pytest.CaptureFixture[str], folder: Path) -> None:
        self._capfd = capfd
        self.output = folder / "out.wav"

    def __call__(self, *arguments: object, program: Callable[[list[str]], int] = main) -> Result:
        self._capfd.readouterr()
        code = program([str(a) for a in arguments])
        captured = self._capfd.readouterr()
        return Result(code, captured.out, captured.err)

    def port_encoder(self, *arguments: object) -> Result:
        return self(*arguments, program=port_encoder.main)

    def port_decoder(self, *arguments: object) -> Result:
        return self(*arguments, program=port_decoder.main)

    def refused(self, expected: str | Sequence[str], *arguments: object) -> Result:
        """A caller's mistake: exit 2, one line on stderr that says what, and the existing output untouched."""
        self.output.write_bytes(PRECIOUS)
        result = self(*arguments)
        assert result.code == 2, result
        lines = result.err.splitlines()
        assert len(lines) == 1, result.err
        for part in [expected] if isinstance(expected, str) else expected:
            assert part in lines[0]
        assert self.output.read_bytes() == PRECIOUS
        assert not [p for p in self.output.parent.iterdir() if p.name.startswith(".")], "temporary files are left"
        return result


@pytest.fixture
def command_line(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> CommandLine:
    return CommandLine(capfd, tmp_path)


@pytest.fixture
def artifact_copy(tiny_artifact: Path, tmp_path: Path) -> Path:
    """An artifact whose files are links, to be replaced one by one; the manifest is a copy."""
    folder = tmp_path / "artifact"
    folder.mkdir()
    for file in tiny_artifact.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / MANIFEST).unlink()
    (folder / MANIFEST).write_bytes((tiny_artifact / MANIFEST).read_bytes())
    return folder
