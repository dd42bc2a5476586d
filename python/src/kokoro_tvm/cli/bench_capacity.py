"""``kokoro-tvm bench-capacity``: what does a large buffer cost a short utterance?

What it is: time and peak memory of every component for one utterance in a buffer of its own length and in a much larger one,
alternating in one process. What it is not: a comparison of engines.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from kokoro_tvm.artifact import aligned_empty
from kokoro_tvm.runtime.engine import Engine
from kokoro_tvm.stages import COMPONENTS

TOKENS = (40, 512)
"""Valid tokens, and the capacity they are put into."""
FRAMES = (80, 1200)
"""2 s of audio, and a capacity of 30 s."""


def _inputs(name: str, valid: int, capacity: int) -> list[np.ndarray]:
    """Plausible inputs whose padding is left as the allocator hands it out: no page of it is touched."""
    rng = np.random.default_rng(0)
    inputs = []
    for spec in COMPONENTS[name].inputs:
        if spec.name == COMPONENTS[name].lengths:
            inputs.append(np.array([valid]))
            continue
        buffer = aligned_empty(spec.resolve(B=1, N=capacity, M=capacity), spec.dtype)
        shape = spec.resolve(B=1, N=valid, M=valid)
        value = rng.integers(1, 170, shape) if spec.dtype == "int64" else rng.normal(100 if spec.name == "f0" else 0, 0.5, shape)
        buffer[tuple(slice(0, n) for n in shape)] = value
        inputs.append(buffer)
    return inputs


def _medians(engine: Engine, name: str, runs: int) -> tuple[float, float]:
    valid, capacity = _sizes(name)
    pair = [_inputs(name, valid, valid), _inputs(name, valid, capacity)]
    times: list[list[float]] = [[], []]
    for _ in range(runs + 2):
        for which, inputs in enumerate(pair):
            start = time.perf_counter()
            engine.run(name, *inputs)
            times[which].append(time.perf_counter() - start)
    return statistics.median(times[0][2:]), statistics.median(times[1][2:])


def _sizes(name: str) -> tuple[int, int]:
    return TOKENS if COMPONENTS[name].capacity == "N" else FRAMES


def _peak(artifact: Path, name: str, valid: int, capacity: int, threads: int, result: multiprocessing.Queue) -> None:
    engine = Engine(artifact, threads, components=[name], verify=False)
    before = _high_water()
    engine.run(name, *_inputs(name, valid, capacity))
    result.put((_high_water() - before) / 1024)


def _high_water() -> int:
    """Peak resident memory of this process in KiB (``ru_maxrss`` would include the parent's, from before ``exec``)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def _peak_memory(artifact: Path, name: str, valid: int, capacity: int, threads: int) -> float:
    """MiB that one run adds to a fresh process, weights included."""
    context = multiprocessing.get_context("spawn")
    result = context.Queue()
    process = context.Process(target=_peak, args=(artifact, name, valid, capacity, threads, result))
    process.start()
    value = result.get(timeout=600)
    process.join()
    return value


def bench_capacity(
    artifact: Annotated[Path, typer.Option(help="Artifact folder.")] = Path("tvm_output"),
    threads: Annotated[int, typer.Option(help="Threads.")] = 2,
    runs: Annotated[int, typer.Option(help="Runs per buffer, alternating; the median counts.")] = 9,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the figures here.")] = None,
) -> None:
    """Time and memory of a short utterance in a large buffer, against a buffer of its own length."""
    engine = Engine(artifact, threads)
    table = Table(title=f"{TOKENS[0]} of {TOKENS[1]} tokens, {FRAMES[0]} of {FRAMES[1]} frames; {threads} threads")
    for column in ("component", "tight ms", "large ms", "ratio", "tight MiB", "large MiB", "full MiB"):
        table.add_column(column, justify="left" if column == "component" else "right")
    figures = {}
    for name in COMPONENTS:
        valid, capacity = _sizes(name)
        tight, large = _medians(engine, name, runs)
        buffers = ((valid, valid), (valid, capacity), (capacity, capacity))
        memory = [_peak_memory(artifact, name, *pair, threads) for pair in buffers]
        figures[name] = {"tight_ms": 1e3 * tight, "large_ms": 1e3 * large, "ratio": large / tight, "peak_mib": memory}
        table.add_row(name, f"{1e3 * tight:.2f}", f"{1e3 * large:.2f}", f"{large / tight:.3f}", *(f"{m:.0f}" for m in memory))
    Console().print(table)
    if json_file is not None:
        json_file.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    typer.run(bench_capacity)
