"""OpenVINO on the decoder that kokoro's own exporter gives, in float32 or bfloat16.

What it is: a model compiled for the CPU plug-in. What it is not: the export (``bench.prepare``), or a way around the operators
of the whole model that OpenVINO refuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import openvino

from kokoro_tvm.bench.peers import DecoderInputs, Files, Window
from kokoro_tvm.errors import ToolchainError

if TYPE_CHECKING:
    from openvino import CompiledModel


class OpenVino:
    """See ``bench.peers.Peer``; ``precision`` is ``f32`` or ``bf16``, without which OpenVINO takes what the CPU does best."""

    def __init__(self, files: Files, threads: int, precision: str) -> None:
        self.files = files
        self.precision = precision
        self.settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "LATENCY"}
        self.models: dict[str, CompiledModel] = {}

    def load(self, subject: str) -> None:
        """See ``Peer``.

        Raises:
            ToolchainError: OpenVINO computes in another precision than was asked for.
        """
        if subject in self.models:
            return
        model = openvino.Core().compile_model(str(self.files.onnx / f"{subject}.onnx"), "CPU", self.settings)
        got = model.get_property("INFERENCE_PRECISION_HINT").to_string()
        if got != self.precision:
            wanted = self.precision
            raise ToolchainError(f"OpenVINO was asked for {wanted} and computes in {got}: this CPU has no {wanted}")
        self.models[subject] = model

    def versions(self) -> dict[str, str]:
        """See ``Peer``."""
        return {"openvino": openvino.__version__}

    def render(self, window: Window) -> tuple[np.ndarray, np.ndarray]:
        """See ``Peer``."""
        inputs = {"input_ids": window.input_ids, "style": window.style, "speed": np.ones(1, np.float32)}
        result = self.models["whole"](inputs)
        return result["waveform"], np.atleast_1d(result["duration"])

    def decode(self, inputs: DecoderInputs) -> np.ndarray:
        """See ``Peer``."""
        return self.models["decoder"](vars(inputs))["audio"].ravel()


def make(name: str, files: Files, threads: int) -> OpenVino:
    """See ``bench.peers.make``."""
    return OpenVino(files, threads, "bf16" if name == "openvino-bf16" else "f32")
