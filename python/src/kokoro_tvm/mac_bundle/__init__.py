"""The bundle for the Mac: an artifact, TVM's runtime, and a program that checks and times every kernel there.

What it is: the maker of the folder, the expected values in it included; those come from the CPU kernels, run here on the same
inputs. What it is not: a claim about any Mac. ``check.cc`` is what runs there, ``verify.command`` what starts it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from kokoro_tvm import environment, macos
from kokoro_tvm.artifact import WEIGHT_TYPES, Manifest, check_files, read_manifest
from kokoro_tvm.config import SAMPLE_RATE, SAMPLES_PER_FRAME
from kokoro_tvm.errors import ArtifactError, OutputError
from kokoro_tvm.stages import COMPONENTS

if TYPE_CHECKING:
    from kokoro_tvm.reference.checkpoint import Checkpoint

SOURCES = Path(__file__).parent

TOKENS, FRAMES = 13, 8
"""Lengths of the comparison: "Hello world", and 0.2 s of audio."""
TIMED_TOKENS, TIMED_FRAMES = 64, 160
"""Lengths for timing: 4 s of speech."""

_METAL = 8
"""DLPack's device type."""


@dataclass
class Plan:
    """What ``check.cc`` does with one component; the lines of its file.

    Attributes:
        lines: See ``check.cc``.
        values: Where tensors go.
    """

    values: BinaryIO
    lines: list[str] = field(default_factory=list)

    def add(self, kind: str, array: np.ndarray) -> None:
        """Stores a tensor and the line ``kind`` that refers to it."""
        self.lines.append(f"{kind} {_tensor(str(array.dtype), self.values.tell(), array.shape)}")
        self.values.write(np.ascontiguousarray(array).tobytes())


def _tensor(dtype: str, offset: int, shape: Sequence[int]) -> str:
    return " ".join(map(str, (dtype, offset, len(shape), *shape)))


def make_bundle(
    artifact: Path, checkpoint: Checkpoint, directory: Path, listener: Callable[[str, str], None] | None = None
) -> None:
    """Makes the folder.

    Args:
        artifact: Compiled for ``metal-macos`` from ``checkpoint``.
        checkpoint: For the expected values.
        directory: The folder; must not exist.
        listener: Told the component and what is being done for it.

    Raises:
        ArtifactError: The artifact is damaged, for another target, or from another checkpoint.
        OutputError: ``directory`` exists or cannot be written.
        ToolchainError: zig or the macOS runtime is missing.
    """
    manifest = read_manifest(artifact)
    if manifest.target.name != "metal-macos":
        raise ArtifactError(f"{artifact} is for {manifest.target.name}; a Mac bundle takes one for metal-macos")
    if manifest.checkpoint.sha256 != checkpoint.sha256:
        raise ArtifactError(f"{artifact} was compiled from another checkpoint than {checkpoint.source}")
    files = [f for c in manifest.components.values() for f in (c.library, c.weights)]
    check_files(artifact, files)
    if directory.exists():
        raise OutputError(f"{directory} exists; choose another folder for the bundle")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{directory.name}.") as scratch:
            folder = Path(scratch) / "bundle"
            (folder / "check").mkdir(parents=True)
            shutil.copytree(macos.runtime_libraries(), folder / "lib")
            for name in ("manifest.json", *(f.name for f in files)):
                shutil.copyfile(artifact / name, folder / name)
            write_plans(folder, manifest, checkpoint, _METAL, listener)
            for name in ("verify.command", "README.txt"):
                shutil.copy(SOURCES / name, folder / name)
            _compile_check(folder / "kokoro-check")
            folder.rename(directory)
    except OSError as error:
        raise OutputError(f"cannot write {directory}: {error.strerror or error}") from error


def _compile_check(program: Path) -> None:
    import tvm_ffi

    include = Path(tvm_ffi.__file__).parent / "include"
    libraries = macos.runtime_libraries()
    macos.zig(
        [
            "c++", "-target", f"aarch64-macos.{macos.MINIMUM}", "-std=c++17", "-O2", "-isystem", str(include),
            str(SOURCES / "check.cc"), str(libraries / "libtvm_ffi.dylib"), "-Wl,-rpath,@executable_path/lib", "-o", str(program),
        ]
    )  # fmt: skip


def write_plans(
    folder: Path,
    manifest: Manifest,
    checkpoint: Checkpoint,
    device: int,
    listener: Callable[[str, str], None] | None = None,
) -> None:
    """Writes ``check/`` of a folder that holds an artifact.

    Args:
        folder: The folder.
        manifest: Of the artifact in it.
        checkpoint: Its weights.
        device: DLPack's device type that ``check.cc`` shall use.
        listener: See ``make_bundle``.
    """
    from kokoro_tvm.reference.checkpoint import build_model
    from kokoro_tvm.validate.lock_step import bound, kernel_recorder

    (folder / "check").mkdir(exist_ok=True)
    environment.prepare_thread_pool()
    model = build_model(checkpoint)
    for name, record in manifest.components.items():
        if listener:
            listener(name, "expected values")
        with (folder / "check" / f"{name}.bin").open("wb") as values:
            plan = Plan(values)
            plan.lines += [f"library {record.library.name}", f"weights {record.weights.name}", f"values check/{name}.bin"]
            plan.lines += [f"device {device}", f"seconds {TIMED_FRAMES * SAMPLES_PER_FRAME / SAMPLE_RATE}"]
            plan.lines += _weights(folder / record.weights.name, record.parameters)
            inputs = sample_inputs(name, TOKENS, FRAMES)
            for array in inputs:
                plan.add("input", array)
            for kernel, array in kernel_recorder(name, model)(inputs):
                plan.add(f"kernel {kernel} {bound(name, kernel, manifest.dtype)}", array)
            for array in sample_inputs(name, TIMED_TOKENS, TIMED_FRAMES):
                plan.add("timed", array)
        (folder / "check" / f"{name}.txt").write_text("\n".join(plan.lines) + "\n", encoding="utf-8")
    (folder / "check" / "components.txt").write_text("\n".join(manifest.components) + "\n", encoding="utf-8")


def _weights(path: Path, parameters: Sequence[str]) -> list[str]:
    """Lines for the tensors of a safetensors file."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    tensors = [header[n] for n in parameters]
    return [f"weight {_tensor(str(WEIGHT_TYPES[t['dtype']]), 8 + size + t['data_offsets'][0], t['shape'])}" for t in tensors]


def sample_inputs(name: str, tokens: int, frames: int) -> list[np.ndarray]:
    """Inputs of a component of realistic scale, as long as their buffers, so that every value of a result counts."""
    rng = np.random.default_rng(0)
    scales = {"f0": (150.0, 80.0), "n": (0.0, 4.0), "style": (0.0, 0.15), "noise": (0.0, 1.0)}
    inputs = []
    for spec in COMPONENTS[name].inputs:
        shape = spec.resolve(B=1, N=tokens, M=frames)
        if spec.name == "input_ids":
            inputs.append(rng.integers(1, 150, shape))
        elif spec.dtype == "int64":
            inputs.append(np.full(shape, tokens if COMPONENTS[name].capacity == "N" else frames))
        else:
            mean, deviation = scales.get(spec.name, (0.0, 0.5))
            inputs.append(rng.normal(mean, deviation, shape).astype(np.float32))
    return inputs
