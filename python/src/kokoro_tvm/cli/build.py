"""Compiling from the command line: the options, the plan, the progress and the verdict of every program that compiles.

What it is: the one implementation behind ``port_encoder``, ``port_decoder`` and ``kokoro-tvm compile``, which differ in the
components they know. What it is not: the compiler (``kokoro_tvm.compile``) or the measurement (``kokoro_tvm.validate``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kokoro_tvm.cli.common import FAILED, announce, compiler_packages, console, peak_memory, rows_table
from kokoro_tvm.config import DEFAULT_SEQ_LEN
from kokoro_tvm.errors import InputError

if TYPE_CHECKING:
    from kokoro_tvm.compile import CompileOptions
    from kokoro_tvm.reference.checkpoint import Checkpoint
    from kokoro_tvm.runtime.engine import Engine
    from kokoro_tvm.runtime.onnx_engine import OnnxEngine
    from kokoro_tvm.validate.parity import ParityRecord

PHASES = ("export", "kernels", "virtual machine", "machine code", "linking", "weights")
"""What the compiler announces for every component, in order; ``linking`` only for another system."""


@dataclass(frozen=True)
class Request:
    """What was asked for, as typed; the names are those of the options."""

    checkpoint: Path | None
    config: Path | None
    target: str
    mcpu: str | None
    seq_len: int
    aligned_len: int | None
    lstm_method: str | None
    output_dir: Path
    dump_ir: bool
    dtype: str = "float32"

    def resolve(self, checkpoint: Checkpoint) -> CompileOptions:
        """The compiler's options; raises ``InputError`` with everything that is wrong."""
        from kokoro_tvm.compile import CompileOptions

        return CompileOptions.resolve(
            checkpoint, self.target, self.mcpu, self.seq_len, self.aligned_len, self.lstm_method, self.dump_directory, self.dtype
        )

    @property
    def dump_directory(self) -> Path | None:
        """Beside the artifact, whose folder holds nothing but what belongs to it."""
        return self.output_dir.with_name(f"{self.output_dir.name}-ir") if self.dump_ir else None


def build_command(choices: Sequence[str]) -> Callable[..., int]:
    """The command that compiles some or all of ``choices``, for typer."""

    def command(
        component: Annotated[str, typer.Option(help="One component, or all that this program knows.")] = "all",
        checkpoint: Annotated[
            Path | None, typer.Option(help="kokoro-v1_0.pth, its folder or a published .onnx; the published weights if absent.")
        ] = None,
        config: Annotated[Path | None, typer.Option(help="config.json; the one beside the weights if absent.")] = None,
        target: Annotated[str, typer.Option(help="llvm, metal-macos or metal-ios (experimental: never run on a Mac).")] = "llvm",
        mcpu: Annotated[
            str | None, typer.Option(help="LLVM's name of the CPU, e.g. x86-64-v3, apple-m1; this CPU if absent.")
        ] = None,
        seq_len: Annotated[int, typer.Option(help="Capacity in tokens, begin and end included.")] = DEFAULT_SEQ_LEN,
        aligned_len: Annotated[
            int | None, typer.Option(help="Capacity in frames of 25 ms; the most that seq-len can need if absent.")
        ] = None,
        lstm_method: Annotated[
            str | None, typer.Option(help="extern (the C++ recurrence) or tir; extern if absent, tir on a GPU.")
        ] = None,
        dtype: Annotated[
            str,
            typer.Option(help="What the decoder's convolutions multiply: float32, bf16 on CPUs with avx512bf16, fp16 on GPUs."),
        ] = "float32",
        output_dir: Annotated[
            Path, typer.Option("--output-dir", "-o", help="The artifact; components of the same build are kept.")
        ] = Path("tvm_output"),
        force: Annotated[bool, typer.Option("--force", help="Start over if another build lies there.")] = False,
        dump_ir: Annotated[
            bool, typer.Option("--dump-ir", help="Leave the IR of every phase in the folder OUTPUT_DIR-ir.")
        ] = False,
        validate: Annotated[
            bool, typer.Option("--validate", help="Measure the error against eager PyTorch in float64; exit 1 below the floor.")
        ] = False,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be built, and stop.")] = False,
    ) -> int:
        names = _selected(component, choices)
        request = Request(checkpoint, config, target, mcpu, seq_len, aligned_len, lstm_method, output_dir, dump_ir, dtype)
        return _plan(names, request) if dry_run else _build(names, request, force, validate)

    command.__doc__ = f"Compile {', '.join(choices)} into an artifact."
    return command


def _selected(component: str, choices: Sequence[str]) -> list[str]:
    if component == "all":
        return list(choices)
    if component not in choices:
        raise InputError(f"unknown component {component!r}; expected one of: {', '.join(choices)}, all")
    return [component]


def _plan(names: Sequence[str], request: Request) -> int:
    with compiler_packages():
        from kokoro_tvm.reference.checkpoint import Checkpoint, load_checkpoint
        from kokoro_tvm.reference.model import published_config

    if request.checkpoint or request.config:
        checkpoint = load_checkpoint(request.checkpoint, request.config)
    else:
        checkpoint = Checkpoint(published_config(), {}, "", False, "the published weights (not read: dry run)")
    _print_plan(names, request, checkpoint, request.resolve(checkpoint).rows())
    console.print("Dry run: nothing was compiled.")
    return 0


def _print_plan(names: Sequence[str], request: Request, checkpoint: Checkpoint, rows: list[tuple[str, str]]) -> None:
    weights = [("checkpoint", checkpoint.source), ("weights", checkpoint.precision)]
    about = [("components", ", ".join(names)), *weights, *rows, ("output", str(request.output_dir))]
    if request.dump_directory:
        about.append(("IR", str(request.dump_directory)))
    console.print(rows_table(about))
    announce(checkpoint)


def _build(names: Sequence[str], request: Request, force: bool, validate: bool) -> int:
    start = time.perf_counter()
    with compiler_packages():
        from kokoro_tvm.compile import compile_artifact
        from kokoro_tvm.reference.checkpoint import load_checkpoint
        from kokoro_tvm.targets import named_target

    named_target(request.target, request.mcpu)  # a slip of the pen should not wait for a download
    with console.status("reading the checkpoint"):
        checkpoint = load_checkpoint(request.checkpoint, request.config)
    options = request.resolve(checkpoint)
    if validate:
        _check_runs_here(options)
    _print_plan(names, request, checkpoint, options.rows())
    with _Progress(names) as progress:
        compile_artifact(names, checkpoint, options, request.output_dir, force, progress.begin)
    console.print(progress.table())
    console.print(f"{request.output_dir}: {time.perf_counter() - start:.1f} s, peak memory {peak_memory():.1f} GiB")
    return _validate(names, request.output_dir, checkpoint) if validate else 0


def _check_runs_here(options: CompileOptions) -> None:
    from kokoro_tvm.runtime import cpu

    missing = cpu.missing_features(options.target.features) if options.target.native else ["another system"]
    if missing:
        raise InputError(f"--validate runs the code, which is for another machine than this ({', '.join(missing)})")


def _validate(names: Sequence[str], directory: Path, checkpoint: Checkpoint) -> int:
    from kokoro_tvm.compile import record_validation
    from kokoro_tvm.runtime.engine import Engine

    code, figures = judge(Engine(directory, components=names), names, checkpoint)
    record_validation(directory, figures)
    return code


def judge(
    engine: Engine | OnnxEngine, names: Sequence[str], checkpoint: Checkpoint
) -> tuple[int, dict[str, dict[str, float]]]:
    """Measures components against eager PyTorch in float64 and prints a table.

    Returns:
        The exit code, and SNR in dB by component and output, that of the worst utterance.
    """
    import torch

    from kokoro_tvm.reference.checkpoint import build_model
    from kokoro_tvm.validate.parity import check_component

    model64, model32 = build_model(checkpoint, torch.float64), build_model(checkpoint)
    records: list[ParityRecord] = []
    for name in names:
        with console.status(f"validating {name}"):
            records += check_component(engine, model64, model32, name)
    figures: dict[str, dict[str, float]] = {}
    # Best first: what is written last is the worst.
    for record in sorted(records, key=lambda r: -r.snr_db):
        figures.setdefault(record.component, {})[record.output] = record.snr_db
    console.print(_parity_table(records))
    return 0 if records and all(r.passed for r in records) else FAILED, figures


def _parity_table(records: Sequence[ParityRecord]) -> Table:
    title = "A ragged batch in padded buffers against eager PyTorch in float64, SNR in dB; PyTorch: its own float32"
    table = Table(title=title, title_justify="left")
    table.add_column("output", no_wrap=True)
    # As narrow as a terminal: nothing of a verdict may be cut off.
    for column in ("length", "SNR, dB", "floor", "PyTorch", "error", "verdict"):
        table.add_column(column, justify="right", no_wrap=True)
    for r in records:
        verdict = "[green]ok[/green]" if r.passed else "[red]BELOW[/red]" if r.snr_db < r.floor_db else "[red]FAILED[/red]"
        figures = (f"{r.snr_db:.1f}", f"{r.floor_db:.0f}", f"{r.pytorch_db:.1f}", f"{r.max_abs:.2e}")
        table.add_row(f"{r.component} {r.output}", f"{len(r.phonemes)}", *figures, verdict)
    return table


@dataclass
class _Progress:
    """Shows which component is in which phase, and adds up the seconds of each."""

    names: Sequence[str]
    seconds: dict[tuple[str, str], float] = field(default_factory=dict)

    def __enter__(self) -> _Progress:
        columns = (TextColumn("{task.description:13}"), BarColumn(), TextColumn("{task.fields[phase]:16}"), TimeElapsedColumn())
        self._bars = Progress(*columns, console=console, disable=not console.is_terminal)
        self._tasks = {n: self._bars.add_task(n, total=len(PHASES), start=False, phase="") for n in self.names}
        self._open: tuple[str, str] | None = None
        self._bars.start()
        return self

    def __exit__(self, *failure: object) -> None:
        if failure[0] is None:
            self._close()
        self._bars.stop()

    def begin(self, name: str, phase: str) -> None:
        """The compiler's listener."""
        self._close()
        self._open, self._since = (name, phase), time.perf_counter()
        if phase == PHASES[0]:
            self._bars.start_task(self._tasks[name])
        self._bars.update(self._tasks[name], phase=phase)
        if not console.is_terminal:
            console.print(f"{name}: {phase}")

    def _close(self) -> None:
        """Ends the open phase, and the component with its last."""
        if self._open is None:
            return
        (name, phase), self._open = self._open, None
        self.seconds[name, phase] = self.seconds.get((name, phase), 0.0) + time.perf_counter() - self._since
        self._bars.advance(self._tasks[name])
        if phase == PHASES[-1]:
            self._bars.update(self._tasks[name], phase="done")
            self._bars.stop_task(self._tasks[name])

    def table(self) -> Table:
        """Seconds per component and phase."""
        table = Table(title="Seconds", title_justify="left")
        table.add_column("component", no_wrap=True)
        for column in (*PHASES, "total"):
            table.add_column(column, justify="right")
        for name in self.names:
            seconds = [self.seconds.get((name, phase), 0.0) for phase in PHASES]
            table.add_row(name, *(f"{s:.1f}" for s in (*seconds, sum(seconds))))
        return table
