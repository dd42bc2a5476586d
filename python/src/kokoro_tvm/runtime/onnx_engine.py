"""Runs the components' ONNX files in ONNX Runtime, with the interface of ``runtime.engine``.

What it is: a second engine under the same conductor, for comparison and for machines without a compiled artifact. What it is
not: fast in the way of the compiled one: its time grows with the capacity, not with the valid length.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kokoro_tvm.artifact import CheckpointRecord
from kokoro_tvm.config import ModelConfig
from kokoro_tvm.errors import OnnxError, ToolchainError
from kokoro_tvm.runtime.inputs import checked_inputs, checked_threads
from kokoro_tvm.stages import COMPONENTS

try:
    import onnxruntime

    from kokoro_tvm.onnx.files import OnnxComponent, Source, read_components
except ModuleNotFoundError as error:
    if error.name not in ("onnx", "onnxruntime"):
        raise
    raise ToolchainError(f"this needs {error.name}: pip install 'kokoro-tvm[onnx]'") from error


@dataclass(frozen=True)
class OnnxManifest:
    """What the files say about themselves, by the names of ``artifact.Manifest``.

    Attributes:
        kokoro_tvm: Version that exported them.
        checkpoint: Where the weights came from.
        model: The model's configuration.
        seq_len: The model's positions.
        aligned_len: As good as no limit.
        dtype: What convolutions multiply.
    """

    kokoro_tvm: str
    checkpoint: CheckpointRecord
    model: ModelConfig
    seq_len: int
    aligned_len: int = sys.maxsize
    dtype: str = "float32"

    @classmethod
    def of(cls, source: Source) -> OnnxManifest:
        """From the files' metadata."""
        model = source.model
        return cls(source.kokoro_tvm, source.checkpoint, model, model.plbert.max_position_embeddings)


class OnnxEngine:
    """The components of one folder of ONNX files; may be called from several threads at once.

    Args:
        directory: Made by ``kokoro-tvm export --format onnx``.
        threads: Threads per call; all CPUs if None. Last bits of results may depend on it.
        components: Which components to load; all five if None.

    Raises:
        OnnxError: Files are missing, damaged or of another layout; nothing has run then.
    """

    def __init__(self, directory: Path | str, threads: int | None = None, components: Sequence[str] | None = None) -> None:
        self.directory = Path(directory)
        self.threads = checked_threads(threads)
        found = read_components(self.directory, components)
        self.manifest = OnnxManifest.of(next(iter(found.values())).source)
        self._sessions = {name: self._session(component) for name, component in found.items()}

    @property
    def description(self) -> str:
        """What runs, for reports."""
        return f"in ONNX Runtime {onnxruntime.__version__}"

    def _session(self, component: OnnxComponent) -> onnxruntime.InferenceSession:
        try:
            return onnxruntime.InferenceSession(
                str(component.path), session_options(self.threads), providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's exceptions have no common base
            raise OnnxError(f"ONNX Runtime {onnxruntime.__version__} cannot load {component.path}: {error}") from error

    def run(self, name: str, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        """Runs one component; see ``runtime.engine.Engine.run``.

        Raises:
            InputError: An input has another dtype, rank or shape, or a length or token id is out of range.
            CapacityError: There are more tokens than the model has positions.
        """
        component = COMPONENTS[name]
        arrays = checked_inputs(component, inputs, self.manifest)
        if name not in self._sessions:
            raise OnnxError(f"component {name!r} was not loaded")
        feeds = {spec.name: array for spec, array in zip(component.inputs, arrays, strict=True)}
        return tuple(self._sessions[name].run([spec.name for spec in component.outputs], feeds))


def session_options(threads: int) -> onnxruntime.SessionOptions:
    """Options of every session: this many threads, and no warnings about what is as it should be."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options
