"""Voices: style tables, read from the formats they are published in, without torch.

What it is: ``Voice`` (a checked float32 [510, 256] table), readers for ``.pt``, ``.bin``, ``.npz``, ``.npy`` and
``.safetensors``, the look-up of names and the blending of voices. What it is not: a general reader of PyTorch files. A
``.pt`` file is a pickle, and unpickling runs what the file says; here it may only build one tensor.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import threading
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kokoro_tvm.config import STYLE_ROWS
from kokoro_tvm.errors import ToolchainError, VoiceError

REPOSITORY = "hexgrad/Kokoro-82M"
"""Where published voices are downloaded from: ``voices/<name>.pt``."""
SHIPPED = Path(__file__).resolve().parents[1] / "voices"
"""Published voices that come with the package, found by name without a download; NOTICE has their origin and licence."""
STYLE_SIZE = 256
DECODER_SIZE = 128
"""The first 128 values of a style row go to the decoder, the rest to the predictors."""
SUFFIXES = (".pt", ".bin", ".npy", ".npz", ".safetensors")

_MAX_BYTES = 64 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, eq=False)
class Voice:
    """A speaker's style for each phoneme count.

    Attributes:
        name: What it was asked for by; a blend carries its whole specification.
        table: f32 [510, 256], read-only; row ``n - 1`` is for ``n`` phonemes.
    """

    name: str
    table: np.ndarray

    @classmethod
    def from_array(cls, array: Any, name: str = "array") -> Voice:
        """Checks a table: float [510, 1, 256] or [510, 256], finite.

        Raises:
            VoiceError: Naming everything that is wrong at once.
        """
        array = np.asarray(array)
        problems = []
        if array.shape not in ((STYLE_ROWS, 1, STYLE_SIZE), (STYLE_ROWS, STYLE_SIZE)):
            problems.append(
                f"shape is {list(array.shape)}, expected [{STYLE_ROWS}, 1, {STYLE_SIZE}] or [{STYLE_ROWS}, {STYLE_SIZE}]"
            )
        if not np.issubdtype(array.dtype, np.floating):
            problems.append(f"dtype is {array.dtype}, expected float32")
        else:
            with np.errstate(over="ignore"):
                array = array.astype(np.float32)
            bad = array.size - int(np.isfinite(array).sum())
            if bad:
                problems.append(f"{bad} of {array.size} values are not finite")
        if problems:
            raise VoiceError(f"voice {name}: " + "; ".join(problems))
        table = np.ascontiguousarray(array.reshape(STYLE_ROWS, STYLE_SIZE))
        table.setflags(write=False)
        return cls(name, table)

    def row(self, phonemes: int) -> np.ndarray:
        """f32 [256], the style for a window of ``phonemes`` characters, spaces and unknown symbols included.

        Row ``phonemes - 1`` as in the reference; 0 takes the first row and more than 510 the last.
        """
        return self.table[min(max(phonemes, 1), STYLE_ROWS) - 1]

    def style(self, phonemes: int) -> tuple[np.ndarray, np.ndarray]:
        """The row's halves, f32 [128] each: for the decoder, for the predictors."""
        row = self.row(phonemes)
        return row[:DECODER_SIZE], row[DECODER_SIZE:]


class VoiceStore:
    """Finds voices by specification, and keeps those it has read. Safe to share between threads.

    A specification is a path, a name, or a blend: ``"af_heart"``, ``"voices/mine.pt"``, ``"af_heart,af_bella"`` (the mean),
    ``"af_heart:0.7,af_bella:0.3"`` (weights are scaled to sum 1). A file that holds several voices is asked for one of them
    with ``file.npz#name``.

    Args:
        directories: Where names are looked up, in order, with any of ``SUFFIXES``; the voices of the package come last.
        allow_paths: False refuses paths, for callers that pass on what strangers ask for.
        allow_download: False never asks the model hub.
    """

    def __init__(
        self, directories: Iterable[str | Path] = (), *, allow_paths: bool = True, allow_download: bool = True
    ) -> None:
        self.directories = (*(Path(d) for d in directories), SHIPPED)
        self.allow_paths = allow_paths
        self.allow_download = allow_download
        self._voices: dict[str, Voice] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """The names that can be asked for without a download, sorted."""
        return voice_names(self.directories)

    def load(self, voice: str | Voice | np.ndarray) -> Voice:
        """The voice for a specification; a ``Voice`` or an array is checked and passed through.

        Raises:
            VoiceError: Not found, damaged, of the wrong shape, not finite, or a bad blend.
            ToolchainError: A package that this format or a download needs is missing.
        """
        if isinstance(voice, Voice):
            return voice
        if not isinstance(voice, str):
            return Voice.from_array(voice)
        with self._lock:
            if voice not in self._voices:
                self._voices[voice] = self._blend(voice)
            return self._voices[voice]

    def _blend(self, spec: str) -> Voice:
        if self.allow_paths and Path(spec).is_file():
            return read_voice(spec)
        parts = parse_blend(spec)
        voices = [self._single(name) for name, _ in parts]
        if len(voices) == 1:
            return voices[0]
        table = sum(v.table.astype(np.float64) * weight for v, (_, weight) in zip(voices, parts, strict=True))
        return Voice.from_array(table, spec)

    def _single(self, name: str) -> Voice:
        path = name.partition("#")[0]
        if self.allow_paths and Path(path).is_file():
            return read_voice(name)
        if not _NAME.fullmatch(name):
            hint = "no such file" if self.allow_paths else "paths are not allowed here"
            raise VoiceError(f"voice {name!r}: {hint}, and it is not a voice name such as 'af_heart'")
        for directory in self.directories:
            for suffix in SUFFIXES:
                if (directory / (name + suffix)).is_file():
                    return Voice(name, read_voice(directory / (name + suffix)).table)
        return Voice(name, read_voice(self._download(name)).table)

    def _download(self, name: str) -> Path:
        own = ", ".join(map(str, self.directories[:-1]))
        looked = f" in {own}{' or ' if own else ''}the package ({', '.join(voice_names([SHIPPED]))})"
        remedy = f"pass a file instead (any of {', '.join(SUFFIXES)}), or put {name}.pt in a voice directory"
        if not self.allow_download:
            raise VoiceError(f"voice {name!r} was not found{looked}: {remedy}")
        try:
            from huggingface_hub import hf_hub_download
        except ImportError as error:
            raise ToolchainError(
                f"voice {name!r} was not found{looked}: {remedy}, or pip install huggingface_hub"
            ) from error
        try:
            return Path(hf_hub_download(repo_id=REPOSITORY, filename=f"voices/{name}.pt"))
        except Exception as error:  # the hub's errors have no common base: its own, httpx's, OSError, ValueError
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise VoiceError(
                f"voice {name!r} was not found{looked}, and could not be downloaded from {REPOSITORY} ({reason}): {remedy}"
            ) from error


def voice_names(directories: Iterable[Path]) -> list[str]:
    """The names of the voices in folders, sorted; a folder that does not exist has none."""
    return sorted({f.stem for d in directories if d.is_dir() for f in d.iterdir() if f.suffix in SUFFIXES})


def parse_blend(spec: str) -> list[tuple[str, float]]:
    """Splits a specification into names and weights that sum to 1.

    Raises:
        VoiceError: Empty, a weight that is not a finite number above 0, or weights for some of the names only.
    """
    parts = [part.strip() for part in spec.split(",")]
    if not all(parts):
        raise VoiceError(f"voice {spec!r} has an empty name, expected 'name' or 'name,name' or 'name:0.7,name:0.3'")
    if len(parts) == 1 and ":" not in spec:
        return [(parts[0], 1.0)]
    pairs = [part.rpartition(":") if _has_weight(part) else (part, "", "") for part in parts]
    if len({bool(colon) for _, colon, _ in pairs}) > 1:
        raise VoiceError(f"voice {spec!r} gives a weight to some names only: give one to each, or to none")
    weights = [_weight(weight, spec) if colon else 1.0 for _, colon, weight in pairs]
    return [(name.strip(), weight / math.fsum(weights)) for (name, _, _), weight in zip(pairs, weights, strict=True)]


def _has_weight(part: str) -> bool:
    # A colon also follows the drive letter of a Windows path.
    _, colon, tail = part.rpartition(":")
    return bool(colon) and not set(tail) & set("/\\")


def _weight(text: str, spec: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not (math.isfinite(weight) and weight > 0):
        raise VoiceError(f"voice {spec!r} has the weight {text!r}, expected a finite number above 0")
    return weight


def read_voice(source: str | Path) -> Voice:
    """Reads one voice from a file; ``file#name`` picks one of several.

    Raises:
        VoiceError: Unreadable, damaged, an unknown format, several voices and none picked, or a bad table.
        ToolchainError: ``.safetensors`` without the ``safetensors`` package.
    """
    file, _, key = (str(source), "", "") if Path(source).is_file() else str(source).partition("#")
    path = Path(file)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise VoiceError(f"voice {path}: unknown file type {path.suffix!r}, expected one of {', '.join(SUFFIXES)}")
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise VoiceError(f"voice {path} is larger than {_MAX_BYTES >> 20} MiB; a voice has 0.5 MiB")
        return Voice.from_array(reader(path.read_bytes(), key), key or path.stem)
    except (VoiceError, ToolchainError) as error:
        raise type(error)(str(error) if str(path) in str(error) else f"{path}: {error}") from error
    except Exception as error:  # damaged files surface as any of a dozen classes in the parsers below
        raise VoiceError(f"voice {path} cannot be read: {type(error).__name__}: {error}") from error


def _pick(arrays: dict[str, np.ndarray], key: str) -> np.ndarray:
    if key or len(arrays) != 1:
        if key not in arrays:
            names = ", ".join(sorted(arrays)[:60]) or "nothing"
            raise VoiceError(f"file holds {names}; pick one with 'file#name'" + (f", not {key!r}" if key else ""))
        return arrays[key]
    return next(iter(arrays.values()))


def _read_bin(data: bytes, key: str) -> np.ndarray:
    if data[:2] == b"PK":  # kokoro-onnx publishes its .npz of all voices under this suffix
        return _read_npz(data, key)
    expected = STYLE_ROWS * STYLE_SIZE * 4
    if len(data) != expected:
        raise VoiceError(
            f"{len(data)} bytes, expected {expected}: raw little-endian float32 [{STYLE_ROWS}, 1, {STYLE_SIZE}]"
        )
    return np.frombuffer(data, dtype="<f4").reshape(STYLE_ROWS, STYLE_SIZE)


def _read_npy(data: bytes, key: str) -> np.ndarray:
    return np.load(io.BytesIO(data), allow_pickle=False)


def _read_npz(data: bytes, key: str) -> np.ndarray:
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        names = archive.files
        # Read the one that is needed: a pack of voices has dozens.
        return _pick({n: archive[n] if n == key or len(names) == 1 else np.empty(0) for n in names}, key)


def _read_safetensors(data: bytes, key: str) -> np.ndarray:
    try:
        from safetensors.numpy import load
    except ImportError as error:
        raise ToolchainError("reading .safetensors needs the safetensors package: pip install safetensors") from error
    return _pick(load(data), key)


def _read_pt(data: bytes, key: str) -> np.ndarray:
    """Reads what ``torch.save(tensor)`` wrote: a zip archive of a pickle and the tensor's storage."""
    if not zipfile.is_zipfile(io.BytesIO(data)):
        raise VoiceError(
            "not a zip archive: damaged, or the legacy format; save it again with torch.save(tensor, path) of torch 1.6 or later"
        )
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        pickles = [n for n in archive.namelist() if n.rpartition("/")[2] == "data.pkl"]
        if len(pickles) != 1:
            raise VoiceError(f"archive holds {len(pickles)} data.pkl, expected 1: not written by torch.save")
        root = pickles[0][: -len("data.pkl")]
        order = _member(archive, root + "byteorder") if root + "byteorder" in archive.namelist() else b"little"
        storages = _Storages(archive, root + "data/", ">" if order.strip() == b"big" else "<")
        tensor = _TensorUnpickler(io.BytesIO(_member(archive, pickles[0])), storages).load()
    if not isinstance(tensor, np.ndarray):
        raise VoiceError(f"file holds {type(tensor).__name__}, expected one tensor")
    return tensor


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    if archive.getinfo(name).file_size > _MAX_BYTES:
        raise VoiceError(f"{name} unpacks to more than {_MAX_BYTES >> 20} MiB; a voice has 0.5 MiB")
    return archive.read(name)


# NumPy type codes for torch's storage classes. Strings, because a pickle can set attributes on anything that has them.
_STORAGES = {"FloatStorage": "f4", "DoubleStorage": "f8", "HalfStorage": "f2", "BFloat16Storage": "u2"}


@dataclass(frozen=True)
class _Storages:
    """The archive's storages; ``read`` answers a pickle's persistent ids."""

    archive: zipfile.ZipFile
    prefix: str
    byteorder: str

    def read(self, persistent_id: Any) -> np.ndarray:
        kind, code, key, _, count = persistent_id
        if kind != "storage" or code not in _STORAGES.values():
            raise VoiceError(f"pickle refers to {kind!r}, expected a storage of floats")
        raw = np.frombuffer(_member(self.archive, f"{self.prefix}{key}"), dtype=self.byteorder + code)
        if raw.size != count:
            raise VoiceError(f"storage {key} has {raw.size} values, the pickle says {count}")
        # A bfloat16 is the upper half of a float32.
        return (raw.astype(np.uint32) << 16).view(np.float32) if code == "u2" else raw


def _rebuild_tensor(storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> np.ndarray:
    """torch's ``_rebuild_tensor_v2``: a strided view into a storage, copied; gradients and hooks in ``rest`` do not matter."""
    numbers = (offset, *size, *stride)
    if not isinstance(storage, np.ndarray) or len(size) != len(stride):
        raise VoiceError("pickle describes a tensor without a storage, or with as many strides as it has no axes")
    if not all(type(n) is int and 0 <= n <= _MAX_BYTES for n in numbers) or math.prod(size) > _MAX_BYTES:
        raise VoiceError(f"pickle describes a tensor of offset {offset}, size {size}, stride {stride}")
    last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if math.prod(size) and last >= storage.size:
        raise VoiceError(f"tensor reaches value {last} of a storage of {storage.size}")
    strides = [s * storage.itemsize for s in stride]
    return np.lib.stride_tricks.as_strided(storage[offset:], shape=size, strides=strides, writeable=False).copy()


class _TensorUnpickler(pickle.Unpickler):
    """Builds one tensor and refuses every other class or function a pickle may name; nothing in the file is run."""

    def __init__(self, file: io.BytesIO, storages: _Storages) -> None:
        super().__init__(file)
        self._storages = storages

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda *arguments: _rebuild_tensor(*arguments)  # a fresh function: attributes set on it are lost
        if (module, name) == ("collections", "OrderedDict"):
            return dict  # holds the (empty) backward hooks
        raise VoiceError(f"pickle asks for {module}.{name}, which a voice does not need; it was not run")

    def persistent_load(self, pid: Any) -> np.ndarray:
        return self._storages.read(pid)


_READERS: dict[str, Callable[[bytes, str], np.ndarray]] = {
    ".pt": _read_pt,
    ".bin": _read_bin,
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".safetensors": _read_safetensors,
}
