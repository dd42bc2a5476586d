"""The bundle for the Mac: an artifact, TVM's runtime, and a program that checks and times every kernel there.

What it is: the maker of the folder, the expected values in it included; those come from the CPU kernels, run here on the same
inputs. What it is not: a claim about any Mac. ``check.cc`` is what runs there, ``verify.command`` what starts it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
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

BOUND = 1e-5
"""Largest error of a kernel relative to the largest value it makes."""
BOUNDS = {"harmonic_source": 1e-4, "to_rows": 0.0, "to_columns": 0.0, "mask_rows": 0.0, "concat": 0.0, "append_style": 0.0}
"""Kernels with another bound: a phase error of 1e-4 rad, and copies."""
_ROUNDED = ("conv1d", "conv_transpose1d")
"""Kernels that ``--dtype fp16`` concerns."""

TOKENS, FRAMES = 13, 8
"""Lengths of the comparison: "Hello world", and 0.2 s of audio."""
TIMED_TOKENS, TIMED_FRAMES = 64, 160
"""Lengths for timing: 4 s of speech."""

_METAL = 8
"""DLPack's device type."""


def bound(component: str, kernel: str, dtype: str) -> float:
    """Largest error of a kernel relative to the largest value it makes, in a build of ``dtype``; the CPU's is float32 always."""
    from kokoro_tvm.kernels.metal.conv1d import TOLERANCE_HALF

    operator = kernel.rstrip("0123456789")
    if dtype == "fp16" and COMPONENTS[component].rounds and operator in _ROUNDED:
        return TOLERANCE_HALF
    return BOUNDS.get(operator, BOUND)


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


def kernel_recorder(name: str, model: object) -> Callable[[Sequence[np.ndarray]], list[tuple[str, np.ndarray]]]:
    """Compiles one component for this CPU; what is returned runs it on inputs.

    Its result are the kernel calls in order, with what the CPU kernels make: the operators are the same on every target. So are
    the kernels' names as long as convolutions are direct, as Metal's are.
    """
    import tvm
    from tvm import relax

    from kokoro_tvm.compile import packed_weights
    from kokoro_tvm.export.program import export_program, to_relax
    from kokoro_tvm.passes.pipeline import build, pipeline
    from kokoro_tvm.targets import cpu_target

    target = cpu_target()
    tile = replace(target.tile, scheme="direct", tuned=())
    component = to_relax(name, export_program(name, model))
    executable = build(component.module, target.tvm_target(), pipeline(tile, "tir"), tile)
    weights = packed_weights(component, tile, "tir")
    results: list[tuple[str, np.ndarray]] = []

    def instrument(_function: object, called: str, before: bool, _result: object, *arguments: object) -> int:
        is_kernel = not called.startswith(("vm.", "shape_func")) and called != name
        if not before and is_kernel and isinstance(arguments[-1], tvm.runtime.Tensor):
            results.append((str(called), arguments[-1].numpy()))
        return 0

    machine = relax.VirtualMachine(executable, tvm.cpu())
    machine.set_instrument(instrument)
    parameters = [tvm.runtime.tensor(w) for w in weights.values()]

    def run(inputs: Sequence[np.ndarray]) -> list[tuple[str, np.ndarray]]:
        results.clear()
        machine[name](*(tvm.runtime.tensor(a) for a in inputs), *parameters)
        return list(results)

    return run
