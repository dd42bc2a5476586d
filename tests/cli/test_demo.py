"""The demonstration, from an artifact on: it speaks, draws, says where the time went, and is understood."""

from __future__ import annotations

from pathlib import Path

import pytest
import soundfile

from kokoro_tvm.cli import demo
from kokoro_tvm.validate.recogniser import Recogniser

pytestmark = pytest.mark.full


def test_what_is_in_place_is_not_made_again(
    full_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    build = tmp_path / "build"
    (build / "demo").mkdir(parents=True)
    (build / "demo" / demo._fingerprint()).symlink_to(full_artifact)
    monkeypatch.setattr(demo, "_compile", lambda _: pytest.fail("compiled again"))
    demo.demo(build=build)
    samples, rate = soundfile.read(build / "hello.wav", dtype="float32")
    assert rate == 24_000
    assert Recogniser().hear(samples)[:2] == ("hello", "world")
    assert (build / "hello.png").read_bytes().startswith(b"\x89PNG")
    said = " ".join(capfd.readouterr().out.split())
    for part in ("8-bit, dequantised", "hello.wav", "hello.png", "decoder", "loading the model", demo.TEXT):
        assert part in said


def test_the_artifact_depends_on_what_it_is_compiled_by(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("kernels/conv1d.py", "runtime/text/english/words.py", "compile.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("old")
    monkeypatch.setattr(demo, "PACKAGE", tmp_path)
    before = demo._fingerprint()
    (tmp_path / "runtime/text/english/words.py").write_text("new")
    assert demo._fingerprint() == before
    (tmp_path / "kernels/conv1d.py").write_text("new")
    assert demo._fingerprint() != before
