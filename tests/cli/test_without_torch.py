"""Speaking where PyTorch has never been installed: the wheel with its plain dependencies, outside the checkout."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from kokoro_tvm.runtime.synthesis import load

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "test-cache"


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
    shutil.rmtree(folder, ignore_errors=True)
    _run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-C",
        "build-dir=build/test-wheel",
        "-w",
        folder,
        ROOT,
    )
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
        _run(sys.executable, "-m", "venv", folder)
    pip = (python, "-m", "pip", "install", "-q", "--disable-pip-version-check")
    _run(*pip, *([] if fresh else ["--no-deps", "--force-reinstall"]), _wheel(CACHE / "wheel"))
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
