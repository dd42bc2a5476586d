"""Time the bidirectional LSTM extern against PyTorch's packed ``nn.LSTM``, side by side.

Both compute the same thing with the same number of threads: input 640, hidden 256, as in Kokoro. They take turns in
rounds over all cases, so that a busy machine hurts all alike, and the medians are compared. The extern is called as a
compiled model calls it: through tvm-ffi, on TVM's thread pool. What it is not: a benchmark of the whole model.

Usage::

    python -m kokoro_tvm.cli.bench_bilstm --threads 2 --json bilstm.json
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from kokoro_tvm.errors import InputError, ToolchainError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

INPUT, HIDDEN = 640, 256
CASES: tuple[tuple[str, list[int]], ...] = (
    ("1 x 64", [64]),
    ("1 x 256", [256]),
    ("1 x 512", [512]),
    ("8 x 512", [512] * 8),
    ("8 x 512, ragged", [512, 64, 400, 511, 128, 300, 1, 256]),
)
"""Name and lengths; the capacity is the longest."""

_SHARE_CPUS = -3
"""TVM's ``kSpecifyThreadShareAllCore``."""
_PAUSE = 0.02
"""Seconds until the other side's idle threads have stopped spinning."""


@dataclass(frozen=True)
class Timing:
    """Medians of one case, in milliseconds, and the largest absolute difference between the two results."""

    case: str
    torch_ms: float
    extern_ms: float
    ratio: float
    max_error: float


def _configure_threads(threads: int) -> None:
    """Give TVM's pool this many threads, without importing ``tvm``, which takes seconds.

    Raises:
        ToolchainError: apache-tvm is not installed, or its pool does not take the number.
    """
    import tvm_ffi

    spec = importlib.util.find_spec("tvm")
    if spec is None or spec.origin is None:
        raise ToolchainError("the benchmark runs on TVM's thread pool: install apache-tvm")
    # Read once, when the pool starts; without it the pool takes half of the logical CPUs.
    os.environ.setdefault("TVM_NUM_THREADS", str(threads))
    # An idle worker spins for a tenth of a second by default and would take a CPU from PyTorch's turn.
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "5000")
    ctypes.CDLL(str(Path(spec.origin).parent / "lib" / "libtvm_runtime.so"), mode=ctypes.RTLD_GLOBAL)
    # The default mode pins this thread to one CPU, and with it every thread that PyTorch starts later.
    cpus = [str(i) for i in sorted(os.sched_getaffinity(0))]
    tvm_ffi.get_global_func("runtime.config_threadpool")(_SHARE_CPUS, threads, cpus)
    got = tvm_ffi.get_global_func("runtime.NumThreads")()
    if got != threads:
        raise ToolchainError(f"TVM's pool has {got} threads, expected {threads}: set TVM_NUM_THREADS={threads}")


def _take_turns(cases: Sequence[tuple[Callable[[], object], Callable[[], object]]], seconds: float) -> list[tuple[float, float]]:
    """Median times in milliseconds of pairs of functions, in rounds over all of them: ``seconds`` long, 11 at least.

    A bad moment of the machine so hits every case and both sides, and leaves the medians alone. Before its turn a
    function runs once untimed: its threads are awake then and its weights back in the cache. Each round another side
    of a pair begins.
    """
    times: list[tuple[list[float], list[float]]] = [([], []) for _ in cases]
    end = time.perf_counter() + seconds
    while len(times[0][0]) < 11 or time.perf_counter() < end:
        for functions, into in zip(cases, times, strict=True):
            for side in (0, 1) if len(into[0]) % 2 == 0 else (1, 0):
                time.sleep(_PAUSE)
                functions[side]()
                start = time.perf_counter()
                functions[side]()
                into[side].append(1e3 * (time.perf_counter() - start))
    return [(statistics.median(first), statistics.median(second)) for first, second in times]


def run(threads: int, seconds: float) -> list[Timing]:
    """Time every case.

    Args:
        threads: For PyTorch and for TVM.
        seconds: For each case, on average, at least.

    Raises:
        InputError: Fewer than one thread, or a time that is not positive.
        ToolchainError: The extern, PyTorch or apache-tvm is missing.
    """
    if threads < 1 or seconds <= 0:
        raise InputError(f"got {threads} threads and {seconds} seconds, expected at least 1 and more than 0")
    try:
        import torch
    except ImportError as e:
        raise ToolchainError("the benchmark compares with PyTorch: install torch") from e
    import tvm_ffi
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    from kokoro_tvm.native import load_externs

    _configure_threads(threads)
    load_externs()
    bilstm = tvm_ffi.get_global_func("kokoro_tvm.bilstm")
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(INPUT, HIDDEN, bidirectional=True, batch_first=True).eval().requires_grad_(requires_grad=False)
    weights = [
        tvm_ffi.from_dlpack(torch.stack([getattr(lstm, f"{name}_l0"), getattr(lstm, f"{name}_l0_reverse")]))
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    ]
    functions, errors = [], []
    for _, sizes in CASES:
        lengths = torch.tensor(sizes)
        x = torch.randn(len(sizes), max(sizes), INPUT)
        y = torch.full((len(sizes), max(sizes), 2 * HIDDEN), torch.nan)
        args = [tvm_ffi.from_dlpack(t) for t in (x, lengths)] + weights + [tvm_ffi.from_dlpack(y)]

        def reference(x: torch.Tensor = x, lengths: torch.Tensor = lengths) -> torch.Tensor:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return pad_packed_sequence(lstm(packed)[0], batch_first=True)[0]

        def extern(args: Sequence[object] = args) -> None:
            bilstm(*args)

        with torch.inference_mode():
            extern()
            errors.append((reference() - y).abs().max().item())
        functions.append((reference, extern))
    with torch.inference_mode():
        times = _take_turns(functions, seconds * len(CASES))
    return [
        Timing(name, torch_ms, extern_ms, torch_ms / extern_ms, error)
        for (name, _), (torch_ms, extern_ms), error in zip(CASES, times, errors, strict=True)
    ]


def main(
    threads: Annotated[int, typer.Option(help="Threads for both sides.")] = 2,
    seconds: Annotated[float, typer.Option(help="Time per case, on average, at least.")] = 2.0,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the figures here.")] = None,
) -> None:
    """Time the bidirectional LSTM extern against PyTorch's, input 640, hidden 256."""
    try:
        timings = run(threads, seconds)
    except (InputError, ToolchainError) as e:
        Console(stderr=True).print(f"bench_bilstm: {e}", style="red", highlight=False)
        raise typer.Exit(2) from e
    table = Table(title=f"Bidirectional LSTM, {INPUT} -> 2 x {HIDDEN}, {threads} threads, medians")
    for column in ("batch x steps", "torch, ms", "extern, ms", "times faster", "max abs difference"):
        table.add_column(column, justify="right")
    for t in timings:
        table.add_row(t.case, f"{t.torch_ms:.2f}", f"{t.extern_ms:.2f}", f"{t.ratio:.2f}", f"{t.max_error:.1e}")
    Console().print(table)
    if json_path is not None:
        report = {"threads": threads, "input": INPUT, "hidden": HIDDEN, "cases": [asdict(t) for t in timings]}
        json_path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
