"""Checkpoints, artifacts and voices that the tests share.

They are made once for each version of the sources they depend on and kept in ``build/test-cache``, so that later runs start
at once. Nothing here imports torch or tvm before a fixture has to be made.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import hashlib
import importlib.metadata
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("TVM_NUM_THREADS", "2")  # before the thread pool starts: tests compare one thread with two
# Test processes share the processors: threads that wait for work must not keep others from theirs.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
os.environ.setdefault("TVM_BIND_THREADS", "0")
os.environ["KOKORO_TVM_TUNING"] = "/nonexistent"  # this user's tuning records would change what is compiled
os.environ["HF_HUB_OFFLINE"] = "1"  # a voice or checkpoint that is not found is not worth a wait for the network

import numpy as np
import pytest

import kokoro_tvm

if TYPE_CHECKING:
    from kokoro_tvm.reference.checkpoint import Checkpoint
    from kokoro_tvm.reference.model import ReferenceModel

CACHE = Path(__file__).resolve().parents[1] / "build" / "test-cache"
PACKAGE = Path(kokoro_tvm.__file__).parent

_CHECKPOINT_SOURCES = ("reference", "config.py", "onnx/published.py", "onnx/untrusted.py")
_ARTIFACT_SOURCES = (
    *_CHECKPOINT_SOURCES, "export", "passes", "kernels", "compile.py", "artifact.py", "targets.py", "native.py", "ops.py",
    "stages.py", "relax_component.py",
)  # fmt: skip
_ONNX_SOURCES = (*_CHECKPOINT_SOURCES, "export", "onnx", "artifact.py", "ops.py", "stages.py")
_KEPT = 3
"""Versions of one thing that stay in the cache: other checkouts of the sources may be at work."""


def _version(sources: tuple[str, ...], extra: bytes = b"") -> str:
    """A hash of these files and folders of the package, and of what else the result depends on."""
    digest = hashlib.sha256(extra)
    for source in sources:
        path = PACKAGE / source
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _machine() -> bytes:
    """What an artifact depends on besides the sources."""
    from kokoro_tvm import native

    packages = [importlib.metadata.version(p) for p in ("apache-tvm", "apache-tvm-ffi", "kokoro-tvm")]
    extern = hashlib.sha256(native.load_externs().read_bytes()).hexdigest()
    flags = [line for line in _cpuinfo() if line.startswith(("flags", "Features", "model name"))][:2]
    packages += [p.read_text(encoding="utf-8") for p in sorted((PACKAGE / "tuning").glob("*.json"))]
    return "\n".join([*packages, extern, platform.machine(), *flags]).encode()


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def _cached(name: str, version: str, make: Callable[[Path], object]) -> Path:
    """The folder ``name-version`` of the cache, made by ``make`` if it is not there; concurrent test runs wait for each other."""
    final = CACHE / f"{name}-{version}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not final.is_dir():
            with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
                make(Path(scratch) / "new")
                (Path(scratch) / "new").rename(final)
            versions = sorted(CACHE.glob(f"{name}-{'?' * len(version)}"), key=lambda p: p.stat().st_mtime)
            for old in versions[:-_KEPT]:
                shutil.rmtree(old, ignore_errors=True)
    return final


def _synthetic_folder(size: str) -> Path:
    def make(folder: Path) -> None:
        from kokoro_tvm.reference import synthetic

        synthetic.write_synthetic_checkpoint(folder, config=synthetic.tiny_config() if size == "tiny" else None)

    return _cached(f"{size}-checkpoint", _version(_CHECKPOINT_SOURCES), make)


def _checkpoint(size: str) -> Checkpoint:
    """The smallest configuration's synthetic weights, or the published ones from the installed packages."""
    from kokoro_tvm.onnx import packaged
    from kokoro_tvm.reference.checkpoint import load_checkpoint

    return load_checkpoint(_synthetic_folder(size)) if size == "tiny" else load_checkpoint(sha256=packaged.SHA256)


def _artifact_folder(size: str, lstm_method: str = "extern", components: tuple[str, ...] = ()) -> Path:
    def make(folder: Path) -> None:
        from kokoro_tvm.compile import CompileOptions, compile_artifact
        from kokoro_tvm.stages import COMPONENTS

        checkpoint = _checkpoint(size)
        options = CompileOptions.resolve(checkpoint, lstm_method=lstm_method)
        compile_artifact(components or list(COMPONENTS), checkpoint, options, folder)

    name = f"{size}-artifact" if lstm_method == "extern" else f"{size}-artifact-{lstm_method}"
    return _cached(name, _version(_ARTIFACT_SOURCES, _machine()), make)


def _metal_folder(size: str, dtype: str = "float32") -> Path:
    def make(folder: Path) -> None:
        from kokoro_tvm.compile import CompileOptions, compile_artifact
        from kokoro_tvm.stages import COMPONENTS

        checkpoint = _checkpoint(size)
        options = CompileOptions.resolve(checkpoint, "metal-macos", dtype=dtype).emulated()
        # What does not round is the same code in every build.
        names = list(COMPONENTS) if dtype == "float32" else [n for n, c in COMPONENTS.items() if c.rounds]
        compile_artifact(names, checkpoint, options, folder)

    name = f"{size}-artifact-metal" if dtype == "float32" else f"{size}-artifact-metal-{dtype}"
    return _cached(name, _version(_ARTIFACT_SOURCES, _machine()), make)


def _onnx_folder(size: str) -> Path:
    def make(folder: Path) -> None:
        from kokoro_tvm.export.onnx_graph import to_onnx
        from kokoro_tvm.export.program import export_program
        from kokoro_tvm.onnx.files import Source, write_component
        from kokoro_tvm.reference.checkpoint import build_model
        from kokoro_tvm.stages import COMPONENTS

        checkpoint = _checkpoint(size)
        model = build_model(checkpoint)
        source = Source.of(checkpoint.sha256, Path(checkpoint.source).name, checkpoint.synthetic, checkpoint.config)
        for name in COMPONENTS:
            write_component(folder, name, to_onnx(name, export_program(name, model)), source)

    packages = [importlib.metadata.version(p) for p in ("kokoro-tvm", "onnx", "torch")]
    return _cached(f"{size}-onnx", _version(_ONNX_SOURCES, " ".join(packages).encode()), make)


@pytest.fixture(scope="session")
def tiny_checkpoint() -> Checkpoint:
    """The smallest configuration's synthetic weights; ``.source`` is the file's path."""
    return _checkpoint("tiny")


@pytest.fixture(scope="session")
def tiny32(tiny_checkpoint: Checkpoint) -> ReferenceModel:
    """Eager kokoro with ``tiny_checkpoint``'s weights."""
    from kokoro_tvm.reference.checkpoint import build_model

    return build_model(tiny_checkpoint)


@pytest.fixture(scope="session")
def tiny64(tiny_checkpoint: Checkpoint) -> ReferenceModel:
    """The same in float64."""
    import torch

    from kokoro_tvm.reference.checkpoint import build_model

    return build_model(tiny_checkpoint, torch.float64)


@pytest.fixture(scope="session")
def full_checkpoint() -> Checkpoint:
    """The published weights, in 8 bits, from the installed packages."""
    return _checkpoint("full")


@pytest.fixture(scope="session")
def full_synthetic_checkpoint() -> Checkpoint:
    """Synthetic weights of the published architecture."""
    from kokoro_tvm.reference.checkpoint import load_checkpoint

    return load_checkpoint(_synthetic_folder("full"))


@pytest.fixture(scope="session")
def tiny_checkpoint_dir() -> Path:
    """The folder of ``tiny_checkpoint``, without reading it."""
    return _synthetic_folder("tiny")


@pytest.fixture(scope="session")
def tiny_artifact() -> Path:
    """All five components of ``tiny_checkpoint`` compiled for this CPU. Shared: copy it before changing anything."""
    return _artifact_folder("tiny")


@pytest.fixture(scope="session")
def tiny_onnx() -> Path:
    """All five components of ``tiny_checkpoint`` as ONNX files. Shared: copy them before changing anything."""
    return _onnx_folder("tiny")


@pytest.fixture(scope="session")
def full_artifact() -> Path:
    """All five components of ``full_checkpoint`` compiled for this CPU; minutes the first time. Shared: copy before changing."""
    return _artifact_folder("full")


@pytest.fixture(scope="session")
def full_artifact_tir() -> Path:
    """The components of ``full_checkpoint`` that have LSTMs, compiled with ``--lstm-method tir``."""
    return _artifact_folder("full", "tir", ("duration", "text_encoder", "f0n"))


@pytest.fixture(scope="session")
def metal_artifact() -> Callable[[str, str], Path]:
    """Artifacts for the Metal emulator by size (``tiny`` or ``full``) and ``--dtype``. Shared: copy before changing."""
    return _metal_folder


@pytest.fixture(scope="session")
def voices_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the voices ``one``, ``two`` and ``three``, spread like published ones (no torch involved)."""
    folder = tmp_path_factory.mktemp("voices")
    for seed, name in enumerate(("one", "two", "three")):
        rng = np.random.default_rng(seed)
        table = rng.normal(0, 0.16, (1, 1, 256)) + rng.normal(0, 0.004, (510, 1, 256)).cumsum(axis=0) * 0.3
        table.astype("<f4").tofile(folder / f"{name}.bin")
    return folder


def pytest_addoption(parser: pytest.Parser) -> None:
    """Registers this suite's options."""
    parser.addoption("--metal-thorough", action="store_true", help="Metal kernels in every mode of the emulator")


_GROWTH = 512 << 20
"""Bytes a test process may grow by before what it no longer uses goes back to the system."""

_held = 0
"""Resident bytes when it last did."""


def _resident() -> int:
    """Bytes of memory this process holds; 0 where that is not known."""
    path = Path("/proc/self/statm")
    return int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if path.is_file() else 0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Gives memory back: what compiling frees stays in the allocator, gigabytes of it after some hundred tests."""
    global _held
    yield
    if _resident() > _held + _GROWTH:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        _held = _resident()
