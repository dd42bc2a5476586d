"""The artifact: a folder of compiled components that describes itself.

    manifest.json                what is in the folder, for which machine, from which checkpoint
    <component>.so               machine code and virtual-machine code; .dylib for macOS
    <component>.safetensors      its weights, in the layout its kernels read, stored once
    libkokoro_tvm_extern.so      the LSTM extern, if the code calls it

or, with one library and one file for all components: ``kokoro.so`` and ``kokoro_params.npz``.

What it is: the manifest's schema, atomic writing, and every check that does not need the target machine. It imports neither TVM
nor PyTorch. What it is not: a loader of code (``runtime.engine``).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from kokoro_tvm.config import ModelConfig
from kokoro_tvm.errors import ArtifactError, KokoroTvmError, OutputError
from kokoro_tvm.stages import COMPONENTS

SCHEMA = 1
MANIFEST = "manifest.json"
CHECKSUM = "sha256"
"""The manifest's entry with the hash of all others."""
ALIGNMENT = 64
"""Bytes; compiled code reads weights with aligned vector loads."""


@dataclass(frozen=True)
class TargetRecord:
    """The machine the code is for; ``features`` are the CPU features it needs (LLVM's names)."""

    name: str
    mcpu: str
    machine: str
    system: str
    features: tuple[str, ...]


@dataclass(frozen=True)
class CheckpointRecord:
    """Where the weights came from, and what they have gone through: ``float32``, or words such as ``8-bit, dequantised``."""

    sha256: str
    source: str
    synthetic: bool
    precision: str = "float32"


@dataclass(frozen=True)
class FileRecord:
    """A file of the folder."""

    name: str
    sha256: str
    size: int


@dataclass(frozen=True)
class ComponentRecord:
    """One compiled component.

    Attributes:
        library: Machine code; a ``.tar`` of object files if it was compiled for a system that cannot be linked for here.
        weights: A safetensors file of its own, or an ``.npz`` file for all components.
        parameters: Names of the weights in call order, behind the inputs of ``stages.COMPONENTS``.
        validation: SNR in dB against eager PyTorch per output, if it was measured when compiling.
    """

    library: FileRecord
    weights: FileRecord
    parameters: tuple[str, ...]
    inputs: tuple[dict[str, Any], ...]
    outputs: tuple[dict[str, Any], ...]
    validation: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest:
    """``manifest.json``; ``dtype`` is what the decoder's convolutions multiply: float32, bf16 or fp16."""

    kokoro_tvm: str
    tvm: str
    tvm_ffi: str
    target: TargetRecord
    lstm_method: str
    seq_len: int
    aligned_len: int
    checkpoint: CheckpointRecord
    config: dict[str, Any]
    extern: FileRecord | None = None
    components: dict[str, ComponentRecord] = field(default_factory=dict)
    tuning: str = ""
    dtype: str = "float32"
    schema: int = SCHEMA

    @property
    def model(self) -> ModelConfig:
        """The model's configuration, vocabulary included."""
        return ModelConfig.from_dict(self.config)

    def same_build(self, other: Manifest) -> list[str]:
        """Names of the settings in which two manifests differ, so that their components cannot share a folder."""
        ignored = {"components", "extern"}
        return [f.name for f in fields(self) if f.name not in ignored and getattr(self, f.name) != getattr(other, f.name)]


def component_interface(name: str) -> dict[str, tuple[dict[str, Any], ...]]:
    """Inputs and outputs of a component as the manifest records them."""
    component = COMPONENTS[name]
    as_json = lambda specs: tuple({"name": s.name, "dtype": s.dtype, "shape": list(s.shape)} for s in specs)  # noqa: E731
    return {"inputs": as_json(component.inputs), "outputs": as_json(component.outputs)}


# --- writing -----------------------------------------------------------------------------------------------------------------


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path`` that takes its place when the block succeeds; ``path`` is untouched otherwise.

    Raises:
        OutputError: The place cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=path.suffix)
        os.close(handle)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def file_record(path: Path) -> FileRecord:
    """Name, hash and size of a file."""
    with path.open("rb") as file:
        return FileRecord(path.name, hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest")
                          else hashlib.sha256(file.read()).hexdigest(), path.stat().st_size)  # fmt: skip


WEIGHT_TYPES = {"F32": np.dtype(np.float32), "BF16": np.dtype(np.uint16), "F16": np.dtype(np.float16)}
"""Names in safetensors of what weights are made of; NumPy has no bfloat16, whose bits are in a uint16 here."""


def _code(dtype: np.dtype) -> str:
    for code, known in WEIGHT_TYPES.items():
        if known == dtype:
            return code
    raise TypeError(f"weights are float32, float16, or uint16 for bfloat16; got {dtype}")


def write_weights(path: Path, weights: dict[str, np.ndarray]) -> FileRecord:
    """Writes a safetensors file whose tensors start at multiples of ``ALIGNMENT`` where that is possible.

    The library's own writer sorts by name; one odd-sized bias early on would then misalign everything behind it, and misaligned
    tensors have to be copied instead of mapped. Here those whose size is no multiple come last.
    """
    order = sorted(weights, key=lambda name: weights[name].nbytes % ALIGNMENT != 0)
    header: dict[str, Any] = {}
    offset = 0
    for name in order:
        array = weights[name]
        header[name] = {"dtype": _code(array.dtype), "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    with staged(path) as temporary, temporary.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in order:
            file.write(np.ascontiguousarray(weights[name]).data)
    return file_record(path)


def write_npz(path: Path, weights: dict[str, np.ndarray]) -> FileRecord:
    """Writes an uncompressed NumPy archive; same weights, same bytes."""
    with staged(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **weights)
    return file_record(path)


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Writes ``manifest.json``; the last step of every build."""
    raw = asdict(manifest)
    raw[CHECKSUM] = _checksum(raw)
    with staged(directory / MANIFEST) as temporary:
        temporary.write_text(json.dumps(raw, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _checksum(raw: dict[str, Any]) -> str:
    """Hash of a manifest's content: a flipped bit in the vocabulary or a length would otherwise go unnoticed."""
    return hashlib.sha256(json.dumps(raw, sort_keys=True).encode()).hexdigest()


def copy_file(source: Path, directory: Path) -> FileRecord:
    """Copies a file into the artifact."""
    with staged(directory / source.name) as temporary:
        shutil.copyfile(source, temporary)
    return file_record(directory / source.name)


# --- reading -----------------------------------------------------------------------------------------------------------------


def read_manifest(directory: Path) -> Manifest:
    """Reads and checks ``manifest.json``.

    Raises:
        ArtifactError: It is missing, is not a manifest, or has another schema version.
    """
    path = Path(directory) / MANIFEST
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ArtifactError(f"{directory} is no artifact: it has no {MANIFEST}; make one with `kokoro-tvm compile`") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ArtifactError(f"cannot read {path}: {error}; compile again") from error
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        found = raw.get("schema") if isinstance(raw, dict) else type(raw).__name__
        raise ArtifactError(f"{path} has schema {found}, this version reads schema {SCHEMA}; compile again")
    checksum = raw.pop(CHECKSUM, None)
    if checksum is not None and checksum != _checksum(raw):
        raise ArtifactError(f"{path} is damaged: it does not match its checksum; compile again")
    try:
        return _manifest(raw)
    except (TypeError, KeyError, AttributeError, KokoroTvmError) as error:
        raise ArtifactError(f"{path} is damaged: {error}; compile again") from error


def _manifest(raw: dict[str, Any]) -> Manifest:
    raw = dict(raw)
    target = dict(raw["target"])
    target["features"] = tuple(target["features"])
    raw["target"] = TargetRecord(**target)
    raw["checkpoint"] = CheckpointRecord(**raw["checkpoint"])
    raw["extern"] = None if raw.get("extern") is None else _file(raw["extern"])
    raw["components"] = {name: _component(name, record) for name, record in raw["components"].items()}
    manifest = Manifest(**raw)
    _ = manifest.model
    return manifest


def _file(raw: dict[str, Any]) -> FileRecord:
    record = FileRecord(**raw)
    if Path(record.name).name != record.name:
        raise ArtifactError(f"file name {record.name!r} leaves the folder")
    return record


def _component(name: str, raw: dict[str, Any]) -> ComponentRecord:
    record = ComponentRecord(
        _file(raw["library"]), _file(raw["weights"]), tuple(raw["parameters"]), tuple(raw["inputs"]), tuple(raw["outputs"]),
        dict(raw["validation"]),
    )  # fmt: skip
    if name not in COMPONENTS or {"inputs": record.inputs, "outputs": record.outputs} != component_interface(name):
        raise ArtifactError(f"component {name!r} has another interface than this version")
    return record


def check_files(directory: Path, records: Sequence[FileRecord]) -> None:
    """Compares size and hash of files with their records.

    Raises:
        ArtifactError: Naming every file that is missing or differs.
    """
    problems = []
    for record in records:
        path = Path(directory) / record.name
        if not path.is_file():
            problems.append(f"{record.name} is missing")
        elif path.stat().st_size != record.size:
            problems.append(f"{record.name} has {path.stat().st_size} bytes, expected {record.size}")
        elif file_record(path).sha256 != record.sha256:
            problems.append(f"{record.name} does not match its hash")
    if problems:
        raise ArtifactError(f"{directory} is damaged: {'; '.join(problems)}. Compile again")


def read_weights(path: Path, names: Sequence[str]) -> list[np.ndarray]:
    """Maps the named tensors of a safetensors file into memory, or reads them from an ``.npz`` archive.

    Returns:
        Arrays, float32 or uint16 (bfloat16), in the order of ``names``, aligned to ``ALIGNMENT``. Those of a safetensors file
        are mapped: pages are shared between processes and read on first use. Tensors not aligned in the file are copied.

    Raises:
        ArtifactError: The file cannot be read; names and tensors of a safetensors file differ, or an archive lacks names.
    """
    if path.suffix == ".npz":
        return _read_npz(path, names)
    try:
        # Copy-on-write: DLPack cannot hand out read-only arrays; nothing writes to them.
        data = np.memmap(path, dtype=np.uint8, mode="c")
        size = int.from_bytes(data[:8].tobytes(), "little")
        header = json.loads(data[8 : 8 + size].tobytes())
        header.pop("__metadata__", None)
        if set(header) != set(names):
            raise ArtifactError(f"{path.name}: tensors differ from the manifest's: {sorted(set(header) ^ set(names))[:5]}")
        return [_aligned(data, 8 + size, header[name]) for name in names]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, ArtifactError):
            raise
        raise ArtifactError(f"{path} is no readable safetensors file: {error}. Compile again") from error


def _read_npz(path: Path, names: Sequence[str]) -> list[np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            if missing := [n for n in names if n not in archive.files]:
                raise ArtifactError(f"{path.name} lacks tensors of the manifest: {missing[:5]}")
            return [_aligned_copy(archive[n]) for n in names]
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
        if isinstance(error, ArtifactError):
            raise
        raise ArtifactError(f"{path} is no readable archive of weights: {error}. Compile again") from error


def _aligned_copy(array: np.ndarray) -> np.ndarray:
    _code(array.dtype)
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def _aligned(data: np.ndarray, base: int, entry: dict[str, Any]) -> np.ndarray:
    first, last = entry["data_offsets"]
    array = data[base + first : base + last].view(WEIGHT_TYPES[entry["dtype"]]).reshape(entry["shape"])
    if array.ctypes.data % ALIGNMENT == 0:
        return array
    return _aligned_copy(array)


def aligned_empty(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """An uninitialised array whose data starts at a multiple of ``ALIGNMENT``."""
    dtype = np.dtype(dtype)
    nbytes = int(np.prod(shape)) * dtype.itemsize
    buffer = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % ALIGNMENT
    return buffer[start : start + nbytes].view(dtype).reshape(shape)
