"""The engines that are compared, one module each, and how a process finds the one it is to run.

What it is: the table of engines, what they need, and the interface they share. What it is not: an import of any of them; a
process loads one, so that none pays for or disturbs another.

Shape legend: B batch, N tokens, M duration frames, T samples.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from kokoro_tvm.errors import InputError

OURS, OURS_BF16 = "kokoro-tvm", "kokoro-tvm-bf16"
WHOLE, DECODER = "whole", "decoder"
SUBJECTS = (WHOLE, DECODER)
"""What is timed: token ids to samples, and the decoder alone. The source's noise is drawn within both, by every engine."""


@dataclass(frozen=True)
class Files:
    """What the engines load, all made from one checkpoint.

    Attributes:
        checkpoint: The weight file or its folder, as ``reference.checkpoint`` reads it; None for published weights.
        sha256: Of the weights.
        weights: The same without our marker, as kokoro's own loader reads it.
        config: ``config.json``.
        artifact: What ``kokoro-tvm compile`` made of it.
        artifact_bf16: The same with ``--dtype bf16``.
        onnx: Folder of ``whole.onnx`` and ``decoder.onnx``.
        voice: A style table that suits the weights, or None: published ones have published voices.
    """

    checkpoint: Path | None
    sha256: str
    weights: Path
    config: Path
    artifact: Path
    artifact_bf16: Path
    onnx: Path
    voice: Path | None


@dataclass(frozen=True)
class Window:
    """One call of the model: ``input_ids`` int64 [1, N] with markers, ``style`` float32 [1, 256]."""

    phonemes: str
    input_ids: np.ndarray
    style: np.ndarray


@dataclass(frozen=True)
class DecoderInputs:
    """``asr`` float32 [1, 512, M], ``f0`` and ``n`` float32 [1, 2M], ``style`` float32 [1, 128]."""

    asr: np.ndarray
    f0: np.ndarray
    n: np.ndarray
    style: np.ndarray


class Peer(Protocol):
    """An engine in a process of its own.

    The constructor takes ``Files`` and the number of threads, and loads nothing but its library.
    """

    def load(self, subject: str) -> None:
        """Loads what ``subject`` needs."""

    def versions(self) -> dict[str, str]:
        """Packages that do the work and their versions."""

    def render(self, window: Window) -> tuple[np.ndarray, np.ndarray]:
        """Samples float32 [T] and durations int64 [N] of one window."""

    def decode(self, inputs: DecoderInputs) -> np.ndarray:
        """Samples float32 [T]."""


@dataclass(frozen=True)
class PeerKind:
    """How to get an engine.

    Attributes:
        module: Of this package.
        packages: Import names of what has to be installed.
        install: How to install them.
        unsupported: Subject to the reason why the engine cannot do it; said in the report, and no failure.
    """

    module: str
    packages: tuple[str, ...]
    install: str
    unsupported: dict[str, str]


_COMPILE, _BENCH = "pip install 'kokoro-tvm[compile]'", "pip install 'kokoro-tvm[bench]'"
_SEQUENCES = "its ONNX front end refuses the whole model's sequence operators (SplitToSequence, SequenceAt)"

KINDS: dict[str, PeerKind] = {
    OURS: PeerKind("ours", (), "", {}),
    "torch": PeerKind("pytorch", ("torch", "kokoro"), _COMPILE, {}),
    "torch-compile": PeerKind("pytorch", ("torch", "kokoro"), _COMPILE, {}),
    "onnxruntime": PeerKind("onnxruntime", ("onnxruntime", "onnx", "torch", "kokoro"), _BENCH, {}),
    "openvino": PeerKind("openvino", ("openvino", "onnx", "torch", "kokoro"), _BENCH, {WHOLE: _SEQUENCES}),
    "openvino-bf16": PeerKind("openvino", ("openvino", "onnx", "torch", "kokoro"), _BENCH, {WHOLE: _SEQUENCES}),
    OURS_BF16: PeerKind("ours", (), "", {}),
}
"""Names ending in ``bf16`` ask for bfloat16 arithmetic and need a CPU that has it."""

DEFAULT_PEERS = ("torch", "torch-compile", "onnxruntime", "openvino")


def checked_peers(names: str | None) -> tuple[str, ...]:
    """Peer names from a comma-separated list; the default ones if None, none if it is empty.

    Raises:
        InputError: Naming every unknown one.
    """
    if names is None:
        return DEFAULT_PEERS
    wanted = tuple(dict.fromkeys(n.strip() for n in names.split(",") if n.strip()))
    known = [n for n in KINDS if n != OURS]
    unknown = [n for n in wanted if n not in known]
    if unknown:
        raise InputError(f"unknown peer {', '.join(unknown)}; expected some of: {', '.join(known)}")
    return wanted


def missing_packages(name: str) -> tuple[str, ...]:
    """Packages that an engine needs and that are not installed, without importing them."""
    return tuple(p for p in KINDS[name].packages if importlib.util.find_spec(p) is None)


def make(name: str, files: Files, threads: int) -> Peer:
    """The engine itself, in this process."""
    return importlib.import_module(f"{__name__}.{KINDS[name].module}").make(name, files, threads)
