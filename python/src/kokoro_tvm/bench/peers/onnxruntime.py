"""ONNX Runtime on the graph that kokoro's own exporter gives.

What it is: two sessions on the CPU provider with its default optimizations. What it is not: the export (``bench.prepare``).
"""

from __future__ import annotations

import numpy as np
import onnxruntime

from kokoro_tvm.bench.peers import DecoderInputs, Files, Window


class OnnxRuntime:
    """See ``bench.peers.Peer``."""

    def __init__(self, files: Files, threads: int) -> None:
        self.files = files
        self.options = onnxruntime.SessionOptions()
        self.options.intra_op_num_threads = threads
        self.options.log_severity_level = 3
        self.sessions: dict[str, onnxruntime.InferenceSession] = {}

    def load(self, subject: str) -> None:
        """See ``Peer``."""
        if subject not in self.sessions:
            path = str(self.files.onnx / f"{subject}.onnx")
            self.sessions[subject] = onnxruntime.InferenceSession(path, self.options, providers=["CPUExecutionProvider"])

    def versions(self) -> dict[str, str]:
        """See ``Peer``."""
        return {"onnxruntime": onnxruntime.__version__}

    def render(self, window: Window) -> tuple[np.ndarray, np.ndarray]:
        """See ``Peer``."""
        inputs = {"input_ids": window.input_ids, "style": window.style, "speed": np.ones(1, np.float32)}
        audio, durations = self.sessions["whole"].run(None, inputs)
        return audio, np.atleast_1d(durations)

    def decode(self, inputs: DecoderInputs) -> np.ndarray:
        """See ``Peer``."""
        (audio,) = self.sessions["decoder"].run(None, vars(inputs))
        return audio.ravel()


def make(_name: str, files: Files, threads: int) -> OnnxRuntime:
    """See ``bench.peers.make``."""
    return OnnxRuntime(files, threads)
