"""``kokoro-tvm export``, ``--backend onnxruntime`` and ``scripts/compile_onnx.py``: results, and one line for every mistake."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import soundfile

from kokoro_tvm.artifact import MANIFEST
from kokoro_tvm.cli import compile_onnx, validate_e2e
from kokoro_tvm.onnx.files import read_component

if TYPE_CHECKING:
    from tests.cli.conftest import CommandLine

    from kokoro_tvm.reference.checkpoint import Checkpoint


def test_export_of_one_component(command_line: CommandLine, tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = tmp_path / "onnx"
    arguments = ("--format", "onnx", "--component", "text_encoder", "--checkpoint", tiny_checkpoint.source, "-o", folder)
    result = command_line("export", *arguments, "--validate")
    assert result.code == 0, result
    assert [p.name for p in folder.iterdir()] == ["text_encoder.onnx"]
    assert read_component(folder, "text_encoder").source.checkpoint.sha256 == tiny_checkpoint.sha256
    assert "t_en" in result.out
    assert "not speech" in result.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--format", "coreml"), "unknown format 'coreml'; expected onnx"),
        (("--component", "vocoder"), "unknown component 'vocoder'"),
        (("--checkpoint", "nowhere"), "no weight file"),
    ],
)
def test_export_mistakes(command_line: CommandLine, arguments: tuple[str, ...], message: str) -> None:
    command_line.refused(message, "export", *arguments)


def test_synth_with_onnx_runtime(command_line: CommandLine, tiny_onnx: Path, voices_dir: Path) -> None:
    arguments = ("--phonemes", "həlˈO", "--voices-dir", voices_dir, "-v", "one", "-o", command_line.output)
    result = command_line("synth", "--backend", "onnxruntime", "--onnx-dir", tiny_onnx, "--threads", 1, *arguments)
    assert result.code == 0, result
    assert "1 threads" in result.out
    assert soundfile.info(command_line.output).frames % 600 == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--backend", "coreml"), "unknown backend 'coreml'; expected one of: tvm, onnxruntime"),
        (("--backend", "onnxruntime", "--onnx-dir", "nowhere"), "nowhere is no folder"),
        (("--backend", "onnxruntime", "--threads", "0"), "threads must be a positive"),
    ],
)
def test_synth_mistakes(command_line: CommandLine, voices_dir: Path, arguments: tuple[str, ...], message: str) -> None:
    common = ("--voices-dir", voices_dir, "-v", "one", "-o", command_line.output)
    command_line.refused(message, "synth", "Hello", *common, *arguments)


def test_validator_with_onnx_runtime(
    command_line: CommandLine, tiny_onnx: Path, tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    arguments = ("--checkpoint", tiny_checkpoint.source, "--backend", "onnxruntime", "--onnx-dir", tiny_onnx, "--threads", 2)
    files = ("--save-dir", tmp_path / "out", "--json", tmp_path / "out.json", "--phonemes", "hˈO")
    result = command_line(*arguments, *files, program=validate_e2e.main)
    assert result.code == 0, result
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["passed"] is True
    assert "ONNX Runtime" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


# --- scripts/compile_onnx.py -------------------------------------------------------------------------------------------------


def _compiled(command_line: CommandLine, *arguments: object) -> tuple[int, str]:
    result = command_line(*arguments, program=compile_onnx.main)
    return result.code, result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--onnx-dir", "nowhere"), "nowhere is no folder; make the files with"),
        (("--target", "cuda"), "unknown target 'cuda'"),
        (("--target", "metal-macos"), "metal-macos"),
        (("--seq-len", "100000"), "--seq-len must lie within"),
        (("--lstm-method", "magic"), "--lstm-method must be one of"),
    ],
)
def test_compile_mistakes(
    command_line: CommandLine, tiny_onnx: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    code, error = _compiled(command_line, "--onnx-dir", tiny_onnx, "-o", tmp_path / "build", *arguments)
    assert code == 2
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "build").exists()


def test_damaged_files_build_nothing(command_line: CommandLine, tiny_onnx: Path, tmp_path: Path) -> None:
    folder, build = tmp_path / "onnx", tmp_path / "build"
    shutil.copytree(tiny_onnx, folder, symlinks=True, ignore=shutil.ignore_patterns("decoder*"))
    (folder / "bert.onnx").write_bytes((folder / "bert.onnx").read_bytes()[:1000])
    shutil.copy(tiny_onnx / "decoder.onnx", folder)
    build.mkdir()
    (build / "kokoro.so").write_bytes(b"what was there before")
    code, error = _compiled(command_line, "--onnx-dir", folder, "-o", build)
    assert code == 2
    assert "bert.onnx is damaged" in error
    assert "decoder.onnx.data with the weights is missing" in error
    assert [(p.name, p.read_bytes()) for p in build.iterdir()] == [("kokoro.so", b"what was there before")]


def test_an_artifact_of_another_layout_stays(command_line: CommandLine, tiny_onnx: Path, artifact_copy: Path) -> None:
    before = {p.name: p.stat().st_mtime_ns for p in artifact_copy.iterdir()}
    code, error = _compiled(command_line, "--onnx-dir", tiny_onnx, "-o", artifact_copy)
    assert code == 2
    assert "another layout" in error
    assert {p.name: p.stat().st_mtime_ns for p in artifact_copy.iterdir()} == before
    (artifact_copy / MANIFEST).write_text("{}", encoding="utf-8")
    assert _compiled(command_line, "--onnx-dir", tiny_onnx, "-o", artifact_copy)[0] == 2


def test_script_is_the_command() -> None:
    script = Path(__file__).resolve().parents[2] / "scripts" / "compile_onnx.py"
    done = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    for option in ("--onnx-dir", "--target", "--output-dir"):
        assert option in done.stdout


@pytest.mark.parametrize("module", ["onnx", "onnxruntime"])
def test_says_what_is_missing(module: str, tiny_onnx: Path) -> None:
    code = (
        f"import sys; sys.modules['{module}'] = None\n"
        "from kokoro_tvm.cli.__main__ import main\n"
        f"sys.exit(main(['synth', 'Hello', '--backend', 'onnxruntime', '--onnx-dir', '{tiny_onnx}']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "pip install 'kokoro-tvm[onnx]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
