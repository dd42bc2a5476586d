"""Speaking, and compiling from ONNX, where PyTorch has never been installed: the wheel outside the checkout, with ``[onnx]``."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import soundfile

from kokoro_tvm.artifact import MANIFEST, read_manifest
from kokoro_tvm.cli import validate_steps
from kokoro_tvm.runtime.engine import Engine
from kokoro_tvm.runtime.synthesis import load
from kokoro_tvm.stages import COMPONENTS

if TYPE_CHECKING:
    from kokoro_tvm.reference.checkpoint import Checkpoint

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "test-cache"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def _run(*command: object, cwd: Path | None = None) -> str:
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def _hash(*paths: Path) -> str:
    digest = hashlib.sha256()
    for path in paths:
        for file in [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix in (".py", ".json", ".cc", ".h")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _wheel(folder: Path) -> Path:
    """Of these sources; what is in C++ was compiled when they were installed."""
    shutil.rmtree(folder, ignore_errors=True)
    _run(*PIP, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT)
    (wheel,) = folder.glob("kokoro_tvm-*.whl")
    return wheel


@pytest.fixture(scope="module")
def speaker() -> Path:
    """The interpreter of a virtual environment with the wheel of these sources; kept from one run to the next."""
    folder = CACHE / f"speaking-venv-{_hash(ROOT / 'pyproject.toml')[:12]}"
    python = folder / "bin" / "python"
    stamp = folder / "sources"
    sources = _hash(ROOT / "python", ROOT / "cpp", ROOT / "CMakeLists.txt")
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == sources:
        return python
    fresh = not stamp.is_file()
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
        _run(sys.executable, "-m", "venv", "--without-pip", folder)
    wheel = _wheel(CACHE / "wheel")
    _run(*PIP, "--python", python, "install", "-q", *([f"{wheel}[onnx]"] if fresh else ["--no-deps", "--force-reinstall", wheel]))
    stamp.write_text(sources, encoding="utf-8")
    return python


def test_nothing_of_pytorch_is_there(speaker: Path, tmp_path: Path) -> None:
    code = "import importlib.util as u; print([n for n in ('torch', 'kokoro', 'transformers') if u.find_spec(n)])"
    assert _run(speaker, "-c", code, cwd=tmp_path).strip() == "[]"
    where = _run(speaker, "-c", "import kokoro_tvm; print(kokoro_tvm.__file__)", cwd=tmp_path)
    assert not Path(where.strip()).is_relative_to(ROOT / "python")


def test_synth(speaker: Path, tiny_artifact: Path, voices_dir: Path, tmp_path: Path) -> None:
    program = speaker.with_name("kokoro-tvm")
    arguments = ("-a", tiny_artifact, "--voices-dir", voices_dir, "-v", "one", "--seed", 3, "-o", "hello.wav")
    printed = _run(program, "synth", "Hello world", *arguments, cwd=tmp_path)
    assert "not speech" in printed
    samples, rate = soundfile.read(tmp_path / "hello.wav", dtype="float32", always_2d=True)
    here = load(tiny_artifact, voices=[voices_dir]).synthesize("Hello world", voice="one", seed=3)
    assert rate == 24_000
    assert samples.shape == (600 * here.durations.sum(), 1)
    assert np.isfinite(samples).all()
    assert np.sqrt((samples**2).mean()) > 1e-3
    assert samples[:, 0].tobytes() == here.samples.tobytes()


def test_flac_and_info(speaker: Path, tiny_artifact: Path, voices_dir: Path, tmp_path: Path) -> None:
    program = speaker.with_name("kokoro-tvm")
    arguments = ("-a", tiny_artifact, "--voices-dir", voices_dir, "-v", "two", "-o", "hello.flac")
    _run(program, "synth", "--phonemes", "həlˈO", *arguments, cwd=tmp_path)
    assert soundfile.info(tmp_path / "hello.flac").samplerate == 24_000
    assert "decoder" in _run(program, "info", tiny_artifact, cwd=tmp_path)


def test_compiling_says_what_is_missing(speaker: Path, tmp_path: Path) -> None:
    done = subprocess.run([speaker.with_name("port_decoder")], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "kokoro-tvm[compile]" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# --- from ONNX ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle(speaker: Path, tiny_onnx: Path) -> Path:
    """What ``scripts/compile_onnx.py`` makes of ``tiny_onnx`` there; kept for these sources."""
    version = hashlib.sha256(f"{_hash(ROOT / 'python', ROOT / 'cpp')} {tiny_onnx.name}".encode()).hexdigest()[:12]
    folder = CACHE / f"tiny-bundle-{version}"
    if not (folder / MANIFEST).is_file():
        for old in CACHE.glob("tiny-bundle-*"):
            shutil.rmtree(old, ignore_errors=True)
        script = ROOT / "scripts" / "compile_onnx.py"
        _run(speaker, script, "--onnx-dir", tiny_onnx, "--target", "llvm", "-o", folder, cwd=CACHE)
    return folder


def test_compiling_from_onnx(bundle: Path, tiny_artifact: Path) -> None:
    manifest, other = read_manifest(bundle), read_manifest(tiny_artifact)
    assert {"kokoro.so", "kokoro_params.npz", MANIFEST} <= {p.name for p in bundle.iterdir()}
    assert not [p for p in bundle.iterdir() if p.name.startswith(".")]
    assert list(manifest.components) == list(COMPONENTS)
    assert manifest.same_build(other) == []
    for name, record in manifest.components.items():
        assert (record.library.name, record.weights.name) == ("kokoro.so", "kokoro_params.npz")
        assert record.parameters == tuple(f"{name}.{p}" for p in other.components[name].parameters)


def test_it_speaks_as_the_other_does(speaker: Path, bundle: Path, tiny_artifact: Path, voices_dir: Path, tmp_path: Path) -> None:
    """The same bits: equal modules become equal kernels."""
    arguments = ("--voices-dir", voices_dir, "-v", "one", "--seed", 3, "-o", "hello.wav")
    _run(speaker.with_name("kokoro-tvm"), "synth", "Hello world", "-a", bundle, *arguments, cwd=tmp_path)
    samples, _ = soundfile.read(tmp_path / "hello.wav", dtype="float32")
    expected = load(tiny_artifact, voices=[voices_dir]).synthesize("Hello world", voice="one", seed=3)
    actual = load(bundle, voices=[voices_dir]).synthesize("Hello world", voice="one", seed=3)
    assert np.array_equal(actual.durations, expected.durations)
    assert np.abs(actual.samples - expected.samples).max() <= 1e-5 * np.abs(expected.samples).max()
    assert samples.tobytes() == actual.samples.tobytes()


def test_one_component_of_a_bundle(bundle: Path) -> None:
    (d_en,) = Engine(bundle, components=["bert"]).run("bert", np.array([[1, 2, 3]]), np.array([3]))
    assert np.isfinite(d_en).all()


def test_validator_passes_on_it(bundle: Path, tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    arguments = ("--checkpoint", tiny_checkpoint.source, "--lib-dir", bundle, "--save-dir", tmp_path, "--phonemes", "hˈO")
    assert validate_steps.main([str(a) for a in arguments]) == 0


def test_speaking_with_onnx_runtime(speaker: Path, tiny_onnx: Path, voices_dir: Path, tmp_path: Path) -> None:
    arguments = ("--voices-dir", voices_dir, "-v", "two", "-o", "hello.wav", "--threads", 1)
    backend = ("--backend", "onnxruntime", "--onnx-dir", tiny_onnx)
    _run(speaker.with_name("kokoro-tvm"), "synth", "--phonemes", "həlˈO", *backend, *arguments, cwd=tmp_path)
    assert soundfile.info(tmp_path / "hello.wav").samplerate == 24_000
