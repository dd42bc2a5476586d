"""``validate_steps``: every stage of a text against eager kokoro in float64; the exit code is the verdict.

What it is: options, progress and files around ``kokoro_tvm.validate``. What it is not: a comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from kokoro_tvm.cli.common import FAILED, compiler_packages, console, rows_table, single, warn_synthetic
from kokoro_tvm.errors import InputError, OutputError
from kokoro_tvm.stages import COMPONENTS

if TYPE_CHECKING:
    from kokoro_tvm.validate.steps import Report, Utterance
    from kokoro_tvm.validate.workbench import Workbench


def validate_steps(
    text: Annotated[str | None, typer.Option(help="What to say; Hello world if neither this nor --phonemes is given.")] = None,
    phonemes: Annotated[str | None, typer.Option(help="Phonemes instead of a text.")] = None,
    voice: Annotated[
        str | None, typer.Option(help="A name, a file, a blend, or synthetic:SEED; one that suits the weights if absent.")
    ] = None,
    speed: Annotated[float, typer.Option(help="2 is twice as fast.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the source's noise.")] = 0,
    lang: Annotated[str, typer.Option(help="Language of the text.")] = "a",
    checkpoint: Annotated[
        Path | None, typer.Option(help="The weights the artifact was made from; from the model hub if absent.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu.")] = "cpu",
    lib_dir: Annotated[Path, typer.Option(help="The compiled artifact.")] = Path("tvm_output"),
    backend: Annotated[str, typer.Option(help="tvm (--lib-dir) or onnxruntime (--onnx-dir).")] = "tvm",
    onnx_dir: Annotated[Path, typer.Option(help="Made by kokoro-tvm export --format onnx.")] = Path("build/onnx"),
    threads: Annotated[int | None, typer.Option(help="Threads; all CPUs if absent.")] = None,
    save_dir: Annotated[Path, typer.Option(help="Where the HTML report and the audio go.")] = Path("logs/step_validation"),
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write every figure to this file.")] = None,
    bisect: Annotated[
        str | None, typer.Option(metavar="COMPONENT", help="Only find this component's first kernel that errs too much.")
    ] = None,
) -> int:
    """Compare every stage of the compiled model with eager kokoro in float64. Exit code 0: within tolerance."""
    check_options(device, save_dir)
    model = Model(backend, lib_dir, onnx_dir, threads)
    with Spinner() as say:
        bench, utterances = prepare(say, model, save_dir, checkpoint, text, phonemes, voice, speed, seed, lang)
        if bisect is not None:
            return _bisect(bench, utterances[0], bisect, say, json_file)
        reports = _validate(bench, utterances, say)
    _save(reports, bench, save_dir, json_file)
    return _verdict(reports, bench, save_dir)


@dataclass(frozen=True)
class Model:
    """What is judged, as asked for; the names are those of the options."""

    backend: str
    lib_dir: Path
    onnx_dir: Path
    threads: int | None


def check_options(device: str, save_dir: Path) -> None:
    """Refuses before anything is loaded what can only fail afterwards."""
    if device != "cpu":
        raise InputError(f"--device must be cpu, got {device!r}: artifacts run on CPUs")
    try:
        save_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write {save_dir}: {error.strerror or error}") from error


class Spinner:
    """A spinner with what is being done; plain lines where there is no terminal."""

    def __enter__(self) -> Spinner:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self._bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bars.add_task("starting", total=None)
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def __call__(self, what: str) -> None:
        """Shows what begins."""
        self._bars.update(self._task, description=what)
        if not console.is_terminal:
            console.print(what)


def prepare(
    say: Spinner, model: Model, save_dir: Path, checkpoint: Path | None, text: str | None, phonemes: str | None,
    voice: str | None, speed: float, seed: int, lang: str,
) -> tuple[Workbench, list[Utterance]]:  # fmt: skip
    """Loads reference and model, and splits the text."""
    say("loading")
    with compiler_packages():
        from kokoro_tvm.runtime.backends import open_engine
        from kokoro_tvm.validate.workbench import Workbench

    engine = open_engine(model.backend, model.lib_dir, model.onnx_dir, model.threads, tuple(COMPONENTS))
    bench = Workbench.open(checkpoint, engine, save_dir / "cache")
    if text is None and phonemes is None:
        text = "Hello world"
    return bench, bench.utterances(text, phonemes, voice, speed, seed, lang)


def facts(bench: Workbench, utterances: Sequence[Utterance]) -> list[tuple[str, str]]:
    """What was compared with what."""
    engine = bench.synthesizer.engine
    return [
        ("phonemes", " / ".join(u.phonemes for u in utterances)),
        ("speed, noise seed", f"{utterances[0].speed}, {utterances[0].seed}"),
        ("checkpoint", f"{bench.checkpoint.source} (sha256 {bench.checkpoint.sha256[:12]})"),
        ("model", f"{engine.directory} {engine.description}"),
        ("version", f"kokoro-tvm {engine.manifest.kokoro_tvm}"),
    ]


def _validate(bench: Workbench, utterances: Sequence[Utterance], say: Spinner) -> list[Report]:
    from kokoro_tvm.validate.steps import validate

    subjects = bench.subjects(say)
    return [validate(subjects, u, lambda what, u=u: say(f"{u.name}: {what}")) for u in utterances]


def _save(reports: Sequence[Report], bench: Workbench, save_dir: Path, json_file: Path | None) -> None:
    from kokoro_tvm.validate import report as writer
    from kokoro_tvm.validate.e2e import tensor_rendering

    about = facts(bench, [r.utterance for r in reports])
    writer.write_page(save_dir / "report.html", writer.steps_page(reports, about))
    for number, report in enumerate(reports, 1):
        found = {"float64": report.truth, **report.chained}
        renderings = {name: tensor_rendering(tensors) for name, tensors in found.items() if "audio" in tensors}
        writer.write_waves(save_dir / f"window{number}", renderings)
    if json_file is not None:
        passed = all(r.passed for r in reports)
        content = {"facts": dict(about), "passed": passed, "utterances": [writer.steps_dict(r) for r in reports]}
        writer.write_json(json_file, content)


def _verdict(reports: Sequence[Report], bench: Workbench, save_dir: Path) -> int:
    from kokoro_tvm.validate.report import ALIEN, decibels, notes, steps_table

    for report in reports:
        console.print(steps_table(report))
        context = [(name, f"{decibels(value)} dB") for name, value in report.context.items()]
        console.print(rows_table([*notes(report), *context], "Notes"))
        for output in report.disagreements:
            console.print(ALIEN.format(output), style="bold red")
    failures = [r for report in reports for r in report.failures]
    console.print(f"report: {save_dir / 'report.html'}")
    warn_synthetic(bench.checkpoint.synthetic)
    if failures:
        first = failures[0]
        where = f"{first.stage} ({first.tensor}, {first.mode})"
        console.print(f"{len(failures)} tensors fail, the first in {where}", style="bold red")
    return 0 if reports and all(r.passed for r in reports) else FAILED


def _bisect(bench: Workbench, utterance: Utterance, component: str, say: Spinner, json_file: Path | None) -> int:
    from kokoro_tvm.validate.bisect import first_failure
    from kokoro_tvm.validate.report import bisect_table, decibels, write_json

    say(f"every operator of {component}")
    records = bench.bisect(component, utterance)
    if json_file is not None:
        write_json(json_file, records)
    console.print(bisect_table(records))
    first = first_failure(records)
    if first is None:
        console.print(f"no operator of {component} errs more than its share", style="bold green")
        return 0
    console.print(
        f"first: operator {first.index}, {first.operator} in {first.place or component} ({', '.join(first.kernels)}): "
        f"{decibels(first.isolated.snr_db)} dB, its share is {decibels(first.tolerance.floor_db)} ({first.tolerance.reason})",
        style="bold red",
    )
    return FAILED


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program."""
    return single("validate_steps", validate_steps, argv)


if __name__ == "__main__":
    raise SystemExit(main())
