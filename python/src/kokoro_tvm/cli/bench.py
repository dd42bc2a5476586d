"""``kokoro-tvm bench``: this engine and others on the same weights and phonemes.

What it is: options, progress, and where the figures go. What it is not: the comparison (``kokoro_tvm.bench.compare``).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kokoro_tvm.cli.common import FAILED, check_writable, compiler_packages, console, rows_table, warn_synthetic, wide_console
from kokoro_tvm.errors import InputError

if TYPE_CHECKING:
    from kokoro_tvm.bench.report import Comparison


def bench(
    peers: Annotated[
        str | None,
        typer.Option(
            help="Of torch, torch-compile, onnxruntime, openvino, openvino-bf16, kokoro-tvm-bf16; '' for none. Float32 if absent."
        ),
    ] = None,
    seconds: Annotated[str, typer.Option(help="Lengths of audio.")] = "1.5,3,10,30",
    threads: Annotated[str, typer.Option(help="Numbers of threads.")] = "1,2",
    runs: Annotated[int, typer.Option(help="Timed runs of every engine, alternating; the median counts.")] = 9,
    checkpoint: Annotated[
        Path | None, typer.Option(help="kokoro-v1_0.pth, its folder or a published .onnx; the published weights if absent.")
    ] = None,
    artifact: Annotated[Path | None, typer.Option(help="What to measure; compiled for this CPU if absent.")] = None,
    voice: Annotated[str | None, typer.Option(help="As for synth; one that suits the weights if absent.")] = None,
    cache: Annotated[Path, typer.Option(help="Where weights, artifact and ONNX graphs are kept.")] = Path("build/bench"),
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every run's time here.")] = None,
    markdown_file: Annotated[Path | None, typer.Option("--markdown", help="Write all tables here.")] = None,
    readme: Annotated[
        Path | None, typer.Option(help="Put a short table between the lines <!-- bench --> and <!-- /bench --> of this file.")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw them here (.png, .svg).")] = None,
    read: Annotated[Path | None, typer.Option("--from", help="Show a run's --json again instead of measuring.")] = None,
) -> int:
    """Time this engine against others: same weights, same phonemes, alternating runs, one process per engine."""
    for path in (json_file, markdown_file, readme, picture):
        if path:
            check_writable(path)
    from kokoro_tvm.bench import report
    from kokoro_tvm.bench.peers import checked_peers

    if read:
        found = report.read_json(read)
    else:
        with compiler_packages():
            from kokoro_tvm.bench.compare import Plan, check_lengths
        lengths, counts = _numbers("--seconds", seconds, float), _numbers("--threads", threads, int)
        problems = check_lengths(lengths, counts) + ([f"--runs must be at least 1, got {runs}"] if runs < 1 else [])
        if problems:
            raise InputError("; ".join(problems))
        plan = Plan(checked_peers(peers), peers is not None, lengths, counts, runs, cache, checkpoint, artifact, voice)
        found = _measure(plan)
    if json_file:
        report.write_json(json_file, found)
    if markdown_file:
        from kokoro_tvm.artifact import staged

        with staged(markdown_file) as temporary:
            temporary.write_text(report.markdown(found), encoding="utf-8")
    if readme:
        report.write_summary(readme, found)
    if picture:
        report.write_picture(picture, report.picture(found))
    _show(found)
    return FAILED if any(not p.known for p in found.problems) else 0


def _numbers(option: str, text: str, kind: type) -> tuple:
    try:
        found = tuple(dict.fromkeys(kind(t) for t in text.split(",") if t.strip()))
    except ValueError as error:
        raise InputError(f"{option} must be numbers separated by commas, got {text!r}") from error
    if not found:
        raise InputError(f"{option} must be numbers separated by commas, got {text!r}")
    return found


def _measure(plan: object) -> Comparison:
    from kokoro_tvm.bench.client import EngineError
    from kokoro_tvm.bench.compare import compare

    with console.status("setting up") as status:

        def hear(line: str) -> None:
            status.update(line)
            if not console.is_terminal:
                console.print(line)

        try:
            return compare(plan, hear)
        except EngineError as error:
            # A missing checkpoint, a damaged artifact: the worker's message says what to do.
            raise InputError(str(error)) from error


def _show(found: Comparison) -> None:
    from kokoro_tvm.bench.report import rich_table, tables

    wide = wide_console()
    wide.print(rows_table(list(found.header.items())))
    for table in tables(found):
        wide.print(rich_table(table))
    for problem in found.problems:
        style = "yellow" if problem.known else "bold red"
        console.print(f"{problem.engine}, {problem.what}: {problem.reason}", style=style, markup=False)
    warn_synthetic(found.header.get("weights") == "synthetic")
