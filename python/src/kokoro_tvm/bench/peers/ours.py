"""This package's own engine, as a user runs it: an artifact and no PyTorch.

What it is: ``runtime.synthesis`` behind the interface of ``bench.peers``. What it is not: a fast path made for measuring.
"""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import numpy as np

from kokoro_tvm.bench.peers import DECODER, OURS_BF16, DecoderInputs, Files, Window
from kokoro_tvm.config import SAMPLES_PER_FRAME

# tvm_ffi imports torch where it finds it, which takes more than a second that no user without PyTorch spends.
sys.modules["torch"] = None  # type: ignore[assignment]


class Ours:
    """See ``bench.peers.Peer``."""

    def __init__(self, artifact: Path, threads: int) -> None:
        self.artifact = artifact
        self.threads = threads

    def load(self, subject: str) -> None:
        """One engine serves both subjects; the decoder alone is loaded alone if it comes first."""
        from kokoro_tvm.runtime.engine import Engine
        from kokoro_tvm.runtime.synthesis import Synthesizer, load

        if subject == DECODER and not hasattr(self, "engine"):
            self.engine = Engine(self.artifact, self.threads, components=[DECODER])
        elif not hasattr(self, "synthesizer"):
            self.synthesizer: Synthesizer = load(self.artifact, self.threads)
            self.engine = self.synthesizer.engine

    def versions(self) -> dict[str, str]:
        """See ``Peer``."""
        return {p: importlib.metadata.version(p) for p in ("kokoro-tvm", "apache-tvm")}

    def render(self, window: Window) -> tuple[np.ndarray, np.ndarray]:
        """See ``Peer``; the noise is drawn from seed 0."""
        utterance = self.synthesizer.render(window.input_ids[0], window.style[0, :128], window.style[0, 128:])
        return utterance.samples, utterance.durations

    def decode(self, inputs: DecoderInputs) -> np.ndarray:
        """See ``Peer``; drawing the noise is part of it, as it is in the other decoders."""
        from kokoro_tvm.runtime.noise import source_noise

        frames = inputs.asr.shape[2]
        noise = source_noise(0, frames)[None]
        lengths = np.array([frames])
        (audio,) = self.engine.run(DECODER, inputs.asr, inputs.f0, inputs.n, inputs.style, lengths, noise)
        return audio[0, : frames * SAMPLES_PER_FRAME]

    def durations(self, window: Window) -> np.ndarray:
        """Frames per token, int64 [N], without rendering."""
        from kokoro_tvm.runtime.alignment import frame_counts

        lengths = np.array([window.input_ids.shape[1]])
        style = np.ascontiguousarray(window.style[:, 128:])
        (d_en,) = self.engine.run("bert", window.input_ids, lengths)
        _, duration = self.engine.run("duration", d_en, style, lengths)
        return frame_counts(duration[0], 1.0)

    def decoder_inputs(self, window: Window) -> DecoderInputs:
        """What the stages before the decoder make of a window: every engine's decoder is timed on this."""
        style = np.ascontiguousarray(window.style[:, :128])
        stages = self.synthesizer.render(window.input_ids[0], style[0], window.style[0, 128:]).stages
        return DecoderInputs(stages["asr"], stages["f0"], stages["n"], style)


def make(name: str, files: Files, threads: int) -> Ours:
    """See ``bench.peers.make``."""
    return Ours(files.artifact_bf16 if name == OURS_BF16 else files.artifact, threads)
