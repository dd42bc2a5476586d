"""The other end of ``bench.worker``: a process with one engine, and requests to it.

What it is: starting, asking, timing the start, ending. What it is not: knowledge of what the answers mean.
"""

from __future__ import annotations

import subprocess
import sys
import time
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from kokoro_tvm.bench.peers import Files

PATIENCE = 1800.0
"""Seconds after which a request counts as failed: exports and ``torch.compile`` take minutes on a small machine."""


class EngineError(RuntimeError):
    """An engine said no, or died; the message says why."""


class Client:
    """A worker process.

    Args:
        name: For messages, and the name of its log.
        logs: Folder for what it prints.
    """

    def __init__(self, name: str, logs: Path) -> None:
        self.name = name
        logs.mkdir(parents=True, exist_ok=True)
        self.log = logs / f"{name}.log"
        self.started = time.perf_counter()
        self._connection, other = Pipe()
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kokoro_tvm.bench.worker", str(other.fileno())],
                pass_fds=[other.fileno()], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        other.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, verb: str, *arguments: Any) -> Any:
        """Sends a request and waits for its answer.

        Raises:
            EngineError: The engine failed, died or did not answer in time.
        """
        try:
            self._connection.send((verb, arguments))
            if not self._connection.poll(PATIENCE):
                raise EngineError(f"{self.name}: no answer to {verb} within {PATIENCE:.0f} s")
            status, result = self._connection.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            raise EngineError(f"{self.name}: its process ended (exit code {self._process.wait()}); see {self.log}") from error
        if status == "error":
            raise EngineError(f"{self.name}: {' '.join(result.split())[:500]} (log: {self.log})")
        return result

    def open(self, engine: str, files: Files, threads: int, subject: str) -> dict[str, str]:
        """Loads an engine; see ``Worker.open``. ``age`` afterwards is its time from nothing to ready."""
        return self.ask("open", engine, files, threads, subject)

    @property
    def age(self) -> float:
        """Seconds since the process was asked for."""
        return time.perf_counter() - self.started

    def close(self) -> None:
        """Ends the process; one that does not end by itself is killed."""
        self._connection.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
