"""``kokoro-tvm profile``: every kernel of an artifact against what this CPU can do.

What it is: options, and where the figures go. What it is not: the measurement (``kokoro_tvm.bench.profile``).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from kokoro_tvm.cli.common import check_writable, compiler_packages, console, rows_table, wide_console
from kokoro_tvm.errors import InputError
from kokoro_tvm.stages import COMPONENTS


def profile(
    component: Annotated[str, typer.Option(help="One component, or all.")] = "all",
    seconds: Annotated[float, typer.Option(help="Length of the audio.")] = 3.0,
    threads: Annotated[int, typer.Option(help="Threads.")] = 2,
    runs: Annotated[int, typer.Option(help="Runs; the median counts.")] = 7,
    artifact: Annotated[Path, typer.Option("--artifact", "-a", help="The compiled artifact.")] = Path("tvm_output"),
    voice: Annotated[str | None, typer.Option(help="As for synth; a made-up one if absent.")] = None,
    clock: Annotated[
        str, typer.Option(help="wall, or cpu: what one thread computed, for figures from a busy machine; with --threads 1.")
    ] = "wall",
    most: Annotated[int, typer.Option(help="Kernels in the table; the JSON file has all.")] = 40,
    cache: Annotated[Path, typer.Option(help="Where lists of kernels are kept.")] = Path("build/bench/plans"),
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures here.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the roofline here (.png, .svg).")] = None,
) -> None:
    """Time, GFLOP/s and share of the measured peaks of every kernel."""
    for path in (json_file, picture):
        if path:
            check_writable(path)
    if component != "all" and component not in COMPONENTS:
        raise InputError(f"unknown component {component!r}; expected one of: {', '.join(COMPONENTS)}, all")
    if runs < 1 or most < 1:
        raise InputError(f"--runs and --most must be at least 1, got {runs} and {most}")
    if clock not in ("wall", "cpu") or (clock == "cpu" and threads != 1):
        raise InputError(f"--clock must be wall, or cpu with --threads 1; got {clock} with {threads}")
    count = time.perf_counter if clock == "wall" else time.thread_time
    names = list(COMPONENTS) if component == "all" else [component]
    with compiler_packages():
        from kokoro_tvm.bench import peaks
        from kokoro_tvm.bench import profile as profiling
        from kokoro_tvm.bench.report import machine, write_picture
        from kokoro_tvm.reference.model import ReferenceModel
        from kokoro_tvm.runtime.synthesis import load
        from kokoro_tvm.runtime.voices import VoiceStore
        from kokoro_tvm.validate.operators import load_operators
    with console.status("loading") as status:
        synthesizer = load(artifact, threads)
        manifest = synthesizer.engine.manifest
        model = ReferenceModel(manifest.model)  # for its shapes alone: weights are the artifact's
        plans = {n: load_operators(artifact, n, model, cache).plans for n in names}
        status.update("measuring what this CPU can do")
        meter = peaks.Meter(threads, clock=count)
        table = VoiceStore([]).load(voice).table if voice else profiling.made_up_voice()
        header = machine() | {"clock": clock} | {"artifact": f"{manifest.target.mcpu}, {' '.join(manifest.target.features)}"}
        found = profiling.profile(synthesizer, plans, table, seconds, names, runs, meter, header, status.update, count)
    if json_file:
        profiling.write_json(json_file, found)
    if picture:
        write_picture(picture, profiling.roofline(found))
    wide = wide_console()
    wide.print(profiling.kernels_table(found, most))
    wide.print(profiling.kinds_table(found))
    wide.print(rows_table(profiling.summary(found)))
