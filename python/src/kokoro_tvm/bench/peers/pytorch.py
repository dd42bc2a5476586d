"""Eager kokoro in PyTorch, and the same through ``torch.compile``.

What it is: kokoro's own class and loader on the published file format, in float32. What it is not: our rewrite of the model, or
the float64 reference.
"""

from __future__ import annotations

import importlib.metadata
import warnings

import numpy as np
import torch

from kokoro_tvm.bench.peers import DecoderInputs, Files, Window
from kokoro_tvm.reference.model import REPOSITORY


class PyTorch:
    """See ``bench.peers.Peer``.

    Args:
        files: See there.
        threads: Of PyTorch's operators.
        compiled: Through ``torch.compile`` with symbolic lengths; without them every new length would compile again.
    """

    def __init__(self, files: Files, threads: int, compiled: bool) -> None:
        self.files = files
        self.compiled = compiled
        torch.set_num_threads(threads)

    def load(self, _subject: str) -> None:
        """Loads the model once, for both subjects."""
        if hasattr(self, "model"):
            return
        self.model = load_kmodel(self.files)
        self.forward, self.decoder = self.model.forward_with_tokens, self.model.decoder
        if self.compiled:
            self.forward, self.decoder = (torch.compile(f, dynamic=True) for f in (self.forward, self.decoder))

    def versions(self) -> dict[str, str]:
        """See ``Peer``."""
        return {p: importlib.metadata.version(p) for p in ("torch", "kokoro")}

    def render(self, window: Window) -> tuple[np.ndarray, np.ndarray]:
        """See ``Peer``."""
        with torch.no_grad():
            audio, durations = self.forward(torch.from_numpy(window.input_ids), torch.from_numpy(window.style))
        return audio.numpy(), np.atleast_1d(durations.numpy())

    def decode(self, inputs: DecoderInputs) -> np.ndarray:
        """See ``Peer``."""
        tensors = (torch.from_numpy(a.copy()) for a in (inputs.asr, inputs.f0, inputs.n, inputs.style))
        with torch.no_grad():
            return self.decoder(*tensors).flatten().numpy()


def load_kmodel(files: Files, disable_complex: bool = False) -> torch.nn.Module:
    """Kokoro's model by kokoro's loader; ``disable_complex`` as its ONNX export asks for."""
    from kokoro.model import KModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the old weight_norm, and a dropout for one-layer LSTMs
        model = KModel(REPOSITORY, str(files.config), str(files.weights), disable_complex=disable_complex)
    return model.eval()


def make(name: str, files: Files, threads: int) -> PyTorch:
    """See ``bench.peers.make``."""
    return PyTorch(files, threads, compiled=name == "torch-compile")
