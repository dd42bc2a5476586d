"""From a checkpoint, or from components in Relax, to an artifact.

What it is: the library entry point behind ``port_encoder``, ``port_decoder``, ``kokoro-tvm compile`` and
``scripts/compile_onnx.py``. PyTorch is only imported where a checkpoint is compiled. What it is not: argument parsing or
printing (``cli``); ``listener`` hears what goes on.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tvm

from kokoro_tvm import macos, native
from kokoro_tvm.artifact import (
    MANIFEST,
    CheckpointRecord,
    ComponentRecord,
    FileRecord,
    Manifest,
    TargetRecord,
    component_interface,
    copy_file,
    file_record,
    read_manifest,
    write_manifest,
    write_npz,
    write_weights,
)
from kokoro_tvm.config import DEFAULT_SEQ_LEN, ModelConfig
from kokoro_tvm.errors import ArtifactError, InputError, OutputError
from kokoro_tvm.kernels import bf16
from kokoro_tvm.kernels.packing import pack
from kokoro_tvm.kernels.selection import Tile
from kokoro_tvm.passes.lower_operators import PACKING, Dtype, LowerOperators
from kokoro_tvm.passes.pipeline import build, pipeline
from kokoro_tvm.relax_component import RelaxComponent
from kokoro_tvm.stages import COMPONENTS
from kokoro_tvm.targets import METAL_SYSTEMS, MetalTarget, Target, metal_target, named_target

if TYPE_CHECKING:
    from tvm import relax

    from kokoro_tvm.reference.checkpoint import Checkpoint

LSTM_METHODS = ("extern", "tir")
DTYPES = ("float32", "bf16", "fp16")

BUNDLE = "kokoro"
"""Stem of the files of an artifact whose components share one library and one file of weights."""

Listener = Callable[[str, str], None]
"""Told the component and the phase that begins."""


@dataclass(frozen=True)
class Origin:
    """What is compiled, as the manifest records it: where the weights came from, and the model's configuration."""

    checkpoint: CheckpointRecord
    config: ModelConfig

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Origin:
        """For a checkpoint."""
        record = CheckpointRecord(checkpoint.sha256, Path(checkpoint.source).name, checkpoint.synthetic, checkpoint.precision)
        return cls(record, checkpoint.config)


@dataclass(frozen=True)
class CompileOptions:
    """Everything that decides what is built, resolved.

    Attributes:
        target: The CPU or GPU.
        target_name: The name it was asked for by.
        seq_len: Most tokens of an utterance, begin and end markers included.
        aligned_len: Most duration frames of an utterance.
        lstm_method: ``extern`` or ``tir``.
        dump_directory: Where to leave readable IR of every phase, if anywhere.
        dtype: What the decoder's convolutions multiply: ``float32``, ``bf16`` or ``fp16``; sums are float32 with all.
    """

    target: Target
    target_name: str
    seq_len: int
    aligned_len: int
    lstm_method: str
    dump_directory: Path | None = None
    dtype: Dtype = "float32"

    @classmethod
    def resolve(
        cls,
        checkpoint: Checkpoint | Origin,
        target: str = "llvm",
        mcpu: str | None = None,
        seq_len: int = DEFAULT_SEQ_LEN,
        aligned_len: int | None = None,
        lstm_method: str | None = None,
        dump_directory: Path | None = None,
        dtype: str = "float32",
    ) -> CompileOptions:
        """Checks the options against the model and each other.

        Args:
            checkpoint: For the model's own limits.
            target: See ``targets``.
            mcpu: See ``targets``.
            seq_len: Capacity in tokens, at most the model's positions.
            aligned_len: Capacity in frames; by default what ``seq_len`` tokens of the longest duration can need.
            lstm_method: ``extern`` or ``tir``; the target's default if None.
            dump_directory: See the class.
            dtype: ``float32``, ``bf16``, for which the CPU needs ``kernels.bf16.FEATURE``, or ``fp16``, for GPUs.

        Raises:
            InputError: Naming everything that is wrong.
        """
        config = checkpoint.config
        most = config.plbert.max_position_embeddings
        problems = []
        if not 3 <= seq_len <= most:
            problems.append(f"--seq-len must lie within 3..{most} (the model's positions), got {seq_len}")
        if aligned_len is None:
            aligned_len = seq_len * config.max_dur
        if aligned_len < 3:
            problems.append(f"--aligned-len must be at least 3 frames, got {aligned_len}")
        if lstm_method not in (None, *LSTM_METHODS):
            problems.append(f"--lstm-method must be one of {', '.join(LSTM_METHODS)}, got {lstm_method!r}")
        if dtype not in DTYPES:
            problems.append(f"--dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
        if lstm_method == "extern" and target in METAL_SYSTEMS:
            problems.append(f"--lstm-method extern runs on a CPU; --target {target} takes tir")
        if dtype == "fp16" and target not in METAL_SYSTEMS:
            problems.append(f"--dtype fp16 is for {' and '.join(METAL_SYSTEMS)}, not --target {target}; CPUs have bf16")
        if problems:
            raise InputError("; ".join(problems))
        machine = named_target(target, mcpu)
        if dtype == "bf16" and bf16.FEATURE not in machine.features:
            raise InputError(f"--dtype bf16 needs a CPU with {bf16.FEATURE}, which {machine.mcpu} lacks; use --dtype float32")
        return cls(machine, target, seq_len, aligned_len, lstm_method or machine.lstm_method, dump_directory, dtype)

    def emulated(self) -> CompileOptions:
        """The same kernels, launched from this machine: what an emulator of the GPU runs."""
        return replace(self, target=metal_target("linux"), target_name="metal-emulated")

    def rows(self) -> list[tuple[str, str]]:
        """Name and value of each, for display before work begins."""
        return [
            ("target", f"{self.target_name} ({self.target.system} {self.target.machine})"),
            ("cpu", self.target.mcpu),
            ("features", " ".join(self.target.features) or "baseline"),
            ("tile", f"{self.target.tile.rows} x {self.target.tile.width}"),
            ("tuning", f"{len(self.target.tile.tuned)} layers" if self.target.tile.tuned else "none, default tiles"),
            ("capacity", f"{self.seq_len} tokens, {self.aligned_len} frames"),
            ("lstm", self.lstm_method),
            ("dtype", self.dtype),
        ]


def compile_artifact(
    names: Sequence[str],
    checkpoint: Checkpoint,
    options: CompileOptions,
    directory: Path | str,
    force: bool = False,
    listener: Listener | None = None,
) -> Manifest:
    """Compiles components into an artifact folder.

    A folder that already is an artifact of the same build gains or replaces these components. Everything is built beside it
    first: a failure leaves it as it was.

    Args:
        names: Component names.
        checkpoint: The weights.
        options: What to build.
        directory: The artifact folder.
        force: Start over if the folder holds an artifact of another build.
        listener: Told of each phase.

    Raises:
        InputError: An unknown component.
        ArtifactError: The folder holds something else, or another build and ``force`` is off.
        OutputError: The folder cannot be written.
    """
    unknown = [n for n in names if n not in COMPONENTS]
    if unknown:
        raise InputError(f"unknown component {', '.join(unknown)}; expected some of: {', '.join(COMPONENTS)}")
    directory = Path(directory).resolve()
    manifest = _blank_manifest(Origin.of(checkpoint), options)
    before = _existing(directory, manifest, force)
    staging = _staging(directory)
    try:
        from kokoro_tvm.export.program import export_program, to_relax
        from kokoro_tvm.reference.checkpoint import build_model

        model = build_model(checkpoint)
        extern = _ship_extern(staging, options)
        records = dict(before.components) if before else {}
        for name in names:
            announce = (lambda phase, name=name: listener(name, phase)) if listener else None
            if announce:
                announce("export")
            component = to_relax(name, export_program(name, model))
            records[name] = _compile_one(component, options, staging, announce)
        ordered = {n: records[n] for n in COMPONENTS if n in records}
        manifest = replace(manifest, extern=extern, components=ordered)
        _install(staging, directory, manifest)
        return manifest
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def compile_bundle(
    components: Sequence[RelaxComponent],
    origin: Origin,
    options: CompileOptions,
    directory: Path | str,
    listener: Callable[[str], None] | None = None,
) -> Manifest:
    """Compiles components into ``kokoro.so``, ``kokoro_params.npz`` and their manifest, wherever they come from.

    The folder may hold other files; these and the extern are put beside them, the manifest last. A failure leaves them as they
    were.

    Args:
        components: In pipeline order.
        origin: What they were made from.
        options: What to build.
        directory: The folder.
        listener: Told of each phase.

    Raises:
        ArtifactError: The folder is an artifact of another layout.
        OutputError: The folder cannot be written.
    """
    directory = Path(directory).resolve()
    manifest = _blank_manifest(origin, options)
    _check_bundle(directory)
    staging = _staging(directory)
    target = options.target
    try:
        extern = _ship_extern(staging, options)
        module = tvm.IRModule({c.name: c.module[c.name] for c in components})
        library = staging / f"{BUNDLE}{'.so' if target.native else '.tar'}"
        passes = pipeline(target.tile, options.lstm_method, options.dump_directory, listener, options.dtype)
        build(module, target.tvm_target(), passes, target.tile).export_library(str(library))
        if listener:
            listener("weights")
        pack_all = lambda c: packed_weights(c, target.tile, options.lstm_method, options.dtype)  # noqa: E731
        weights = {c.name: _prefixed(c.name, pack_all(c)) for c in components}
        shared = {name: array for arrays in weights.values() for name, array in arrays.items()}
        files = file_record(library), write_npz(staging / f"{BUNDLE}_params.npz", shared)
        records = {n: ComponentRecord(*files, tuple(w), **component_interface(n)) for n, w in weights.items()}
        manifest = replace(manifest, extern=extern, components=records)
        _place(staging, directory, manifest)
        return manifest
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _prefixed(component: str, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"{component}.{name}": array for name, array in weights.items()}


def _check_bundle(directory: Path) -> None:
    """Refuses a folder whose manifest speaks of other files."""
    if not (directory / MANIFEST).exists():
        return
    try:
        files = {f.name for c in read_manifest(directory).components.values() for f in (c.library, c.weights)}
    except ArtifactError:
        files = {MANIFEST}
    if any(Path(f).name.partition(".")[0] not in (BUNDLE, f"{BUNDLE}_params") for f in files):
        raise ArtifactError(f"{directory} holds an artifact of another layout ({MANIFEST}); choose another output directory")


def _place(staging: Path, directory: Path, manifest: Manifest) -> None:
    """Moves what was built beside what is there, the manifest last."""
    try:
        directory.mkdir(exist_ok=True)
        for path in sorted(staging.iterdir()):
            path.replace(directory / path.name)
        write_manifest(directory, manifest)
    except OSError as error:
        raise OutputError(f"cannot write {directory}: {error.strerror or error}") from error


def _blank_manifest(origin: Origin, options: CompileOptions) -> Manifest:
    target = options.target
    return Manifest(
        kokoro_tvm=importlib.metadata.version("kokoro-tvm"),
        tvm=importlib.metadata.version("apache-tvm"),
        tvm_ffi=importlib.metadata.version("apache-tvm-ffi"),
        target=TargetRecord(options.target_name, target.mcpu, target.machine, target.system, target.features),
        lstm_method=options.lstm_method,
        seq_len=options.seq_len,
        aligned_len=options.aligned_len,
        checkpoint=origin.checkpoint,
        config=origin.config.to_dict(),
        tuning=target.tile.tuning,
        dtype=options.dtype,
    )


def _existing(directory: Path, manifest: Manifest, force: bool) -> Manifest | None:
    """The manifest of the folder if its components can stay; None if the folder starts out empty."""
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return None
    if not (directory / MANIFEST).is_file():
        raise ArtifactError(f"{directory} exists and is no artifact; choose another output directory")
    try:
        before = read_manifest(directory)
        different = before.same_build(manifest)
    except ArtifactError as error:
        different = [str(error)]
    if not different:
        return before
    if not force:
        raise ArtifactError(
            f"{directory} holds another build (different: {', '.join(different)}); use --force to start over, or another folder"
        )
    return None


def _staging(directory: Path) -> Path:
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(dir=directory.parent, prefix=f".{directory.name}."))
    except OSError as error:
        raise OutputError(f"cannot write {directory}: {error.strerror or error}") from error


def _ship_extern(staging: Path, options: CompileOptions) -> FileRecord | None:
    """Puts the LSTM extern beside the code; other systems bring their own with the package."""
    if options.lstm_method != "extern" or not options.target.native:
        return None
    return copy_file(native.load_externs(), staging)


def _compile_one(
    component: RelaxComponent, options: CompileOptions, staging: Path, listener: Callable[[str], None] | None
) -> ComponentRecord:
    target = options.target
    library = _export(_build(component, target, options, listener), component.name, target, staging)
    if library.suffix == ".dylib":
        if listener:
            listener("linking")
        _check_against_emulated(library, component, options)
    if listener:
        listener("weights")
    weights = packed_weights(component, target.tile, options.lstm_method, options.dtype)
    record = write_weights(staging / f"{component.name}.safetensors", weights)
    return ComponentRecord(file_record(library), record, tuple(weights), **component_interface(component.name))


def _build(
    component: RelaxComponent, target: Target, options: CompileOptions, listener: Callable[[str], None] | None = None
) -> relax.VMExecutable:
    dump = options.dump_directory / component.name if options.dump_directory else None
    passes = pipeline(target.tile, options.lstm_method, dump, listener, options.dtype)
    return build(component.module, target.tvm_target(), passes, target.tile)


def _export(executable: relax.VMExecutable, name: str, target: Target, folder: Path) -> Path:
    """Writes the library: shared where this system can link it or zig can, else object files to be linked elsewhere."""
    metal_macos = isinstance(target, MetalTarget) and target.system == "macos"
    library = folder / f"{name}{'.so' if target.native else '.dylib' if metal_macos else '.tar'}"
    executable.export_library(str(library), **({"fcompile": macos.linker()} if metal_macos else {}))
    return library


def _check_against_emulated(library: Path, component: RelaxComponent, options: CompileOptions) -> None:
    """Holds a library for macOS to the one that the emulator runs in the tests: only the launching code may differ."""
    if not macos.emulates():
        return
    target = metal_target("linux")
    with tempfile.TemporaryDirectory() as scratch:
        emulated = _export(_build(component, target, options), component.name, target, Path(scratch))
        macos.check_same_program(library, emulated)


def packed_weights(
    component: RelaxComponent, tile: Tile, lstm_method: str, dtype: Dtype = "float32"
) -> dict[str, np.ndarray]:
    """The component's weights in the layouts that its lowered function asks for."""
    lowered = LowerOperators(tile, lstm_method, dtype)(component.module)[component.name]
    layouts = json.loads(lowered.attrs[PACKING])
    parameters = [p.name for p in lowered.params][len(COMPONENTS[component.name].inputs) :]
    return {
        name: pack(layouts[parameter], weight, tile) if parameter in layouts else weight
        for parameter, (name, weight) in zip(parameters, component.weights.items(), strict=True)
    }


def _install(staging: Path, directory: Path, manifest: Manifest) -> None:
    """Moves what was built into place, the manifest last."""
    try:
        if not directory.exists():
            write_manifest(staging, manifest)
            staging.chmod(0o755)
            staging.rename(directory)
            return
        for path in sorted(staging.iterdir()):
            path.replace(directory / path.name)
        write_manifest(directory, manifest)
        known = {MANIFEST} | {f.name for c in manifest.components.values() for f in (c.library, c.weights)}
        known |= {manifest.extern.name} if manifest.extern else set()
        for path in directory.iterdir():
            if path.name not in known and path.suffix in (".so", ".dylib", ".tar", ".safetensors"):
                path.unlink()
    except OSError as error:
        raise OutputError(f"cannot write {directory}: {error.strerror or error}") from error


def record_validation(directory: Path | str, figures: dict[str, dict[str, float]]) -> None:
    """Adds measured parity (component to output to SNR in dB) to an artifact's manifest."""
    manifest = read_manifest(Path(directory))
    components = {
        name: replace(record, validation={**record.validation, **figures.get(name, {})})
        for name, record in manifest.components.items()
    }
    write_manifest(Path(directory), replace(manifest, components=components))


