"""The process that runs one engine: ``python -m kokoro_tvm.bench.worker FD``.

What it is: a loop that takes requests from a pipe and answers each; times are taken here, around the engine alone. What it is
not: a judge, or the owner of any schedule (``bench.compare``).

A request is ``(verb, arguments)``; the answer ``("ok", result)`` or ``("error", reason)``. Behind the last one the pipe closes.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from kokoro_tvm.bench import peers, prepare
from kokoro_tvm.bench.peers import WHOLE, DecoderInputs, Files, Window
from kokoro_tvm.errors import KokoroTvmError


class Worker:
    """What a process answers with; every public method is a verb."""

    def __init__(self) -> None:
        self.peer: Any = None
        self.work: dict[str, Sequence[Any]] = {}
        self.g2p: Any = None

    def prepare(self, step: str, *arguments: Any) -> Any:
        """Runs a step of ``bench.prepare``."""
        return getattr(prepare, step)(*arguments)

    def open(self, name: str, files: Files, threads: int, subject: str) -> dict[str, str]:
        """Imports and loads an engine; returns the versions of what does the work."""
        self.peer = peers.make(name, files, threads)
        self.peer.load(subject)
        return self.peer.versions()

    def hold(self, subject: str, work: Sequence[Any]) -> None:
        """Keeps inputs for ``run`` (windows, or inputs of the decoder), and loads what they need."""
        self.peer.load(subject)
        self.work[subject] = work

    def run(self, subject: str) -> dict[str, Any]:
        """Times what is held, window by window.

        Returns:
            ``seconds`` for all, ``first`` until the first window's samples; ``samples`` in all, their ``level`` (root mean
            square), whether they are ``finite``, and the ``durations`` of the whole model's windows.
        """
        audio, durations = [], []
        start = time.perf_counter()
        first = None
        for piece in self.work[subject]:
            if subject == WHOLE:
                samples, frames = self.peer.render(piece)
                durations.append(frames)
            else:
                samples = self.peer.decode(piece)
            audio.append(samples)
            first = first or time.perf_counter() - start
        seconds = time.perf_counter() - start
        joined = np.concatenate(audio).astype(np.float64)
        return {
            "seconds": seconds,
            "first": first,
            "samples": len(joined),
            "level": float(np.sqrt(np.mean(joined**2))),
            "finite": bool(np.isfinite(joined).all()),
            "durations": [d.tolist() for d in durations],
        }

    def speak(self, text: str, style: np.ndarray, vocabulary: dict[str, int]) -> float:
        """Seconds from a text to samples: our G2P, then the engine; ``style`` is float32 [510, 1, 256]."""
        from kokoro_tvm.bench.utterance import window
        from kokoro_tvm.runtime.text.g2p import G2P
        from kokoro_tvm.runtime.text.windows import MAX_PHONEMES, split

        self.g2p = self.g2p or G2P("a")
        start = time.perf_counter()
        for piece in split(self.g2p(text), MAX_PHONEMES):
            self.peer.render(window(piece.phonemes, style, vocabulary))
        return time.perf_counter() - start

    def durations(self, window: Window) -> np.ndarray:
        """See ``peers.ours``."""
        return self.peer.durations(window)

    def decoder_inputs(self, window: Window) -> DecoderInputs:
        """See ``peers.ours``."""
        return self.peer.decoder_inputs(window)

    def peak_mib(self) -> float:
        """Most memory this process has held, in MiB."""
        status = Path("/proc/self/status")
        if status.is_file():
            # ``ru_maxrss`` would include the parent's from before ``exec``.
            lines = status.read_text(encoding="utf-8").splitlines()
            return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def serve(connection: Connection) -> None:
    """Answers until the other end closes the pipe."""
    worker = Worker()
    while True:
        try:
            verb, arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = ("ok", getattr(worker, verb)(*arguments))
        except Exception as error:
            if not isinstance(error, KokoroTvmError):
                traceback.print_exc()
            answer = ("error", f"{type(error).__name__}: {error}")
        connection.send(answer)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
