"""``validate_steps``: every stage of a text against eager kokoro in float64; the exit code is the verdict.

What it is: options, progress and files around ``kokoro_tvm.validate``. What it is not: a comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kokoro_tvm.cli import validation
from kokoro_tvm.cli.common import FAILED, announce, console, rows_table, single
from kokoro_tvm.cli.emulation import Request, validate_emulated
from kokoro_tvm.errors import InputError

if TYPE_CHECKING:
    from kokoro_tvm.validate.steps import Report, Utterance
    from kokoro_tvm.validate.workbench import Workbench


DEVICES = ("cpu", "metal-emulated")


def validate_steps(
    text: Annotated[str | None, typer.Option(help="What to say; Hello world if neither this nor --phonemes is given.")] = None,
    phonemes: validation.Phonemes = None,
    voice: validation.Voice = None,
    speed: validation.Speed = 1.0,
    seed: validation.Seed = 0,
    lang: validation.Lang = "a",
    checkpoint: validation.Weights = None,
    device: Annotated[str, typer.Option(help="cpu, or metal-emulated; see above.")] = "cpu",
    lib_dir: Annotated[
        Path | None,
        typer.Option(
            help="The compiled artifact, tvm_output if absent; metal-emulated: one for metal-macos, which has to hold, byte for "
            "byte, the programs and weights that are judged."
        ),
    ] = None,
    component: Annotated[list[str] | None, typer.Option(help="metal-emulated: only this one; may be repeated.")] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help="metal-emulated: threads forward, reverse or random (the default); watched: every access, for races and "
            "unwritten memory, several times slower; fast-math: at its worst."
        ),
    ] = None,
    frames: Annotated[
        int | None, typer.Option(help="metal-emulated: give the decoder this many frames of 25 ms, 0 for all; 16 if absent.")
    ] = None,
    backend: validation.Backend = "tvm",
    onnx_dir: validation.OnnxDir = Path("build/onnx"),
    threads: validation.Threads = None,
    save_dir: validation.SaveDir = Path("logs/step_validation"),
    json_file: validation.JsonFile = None,
    bisect: Annotated[
        str | None, typer.Option(metavar="COMPONENT", help="Only find this component's first kernel that errs too much.")
    ] = None,
) -> int:
    """Compare every stage of the compiled model with eager kokoro in float64. Exit code 0: within tolerance.

    --device metal-emulated compiles the components for Apple GPUs and runs them in the Metal emulator of the source checkout
    (x86-64 Linux, clang): every kernel call in lock step with the CPU, then the stages. It is slow, 0.2 to 0.5 billion
    products a second: at full size one frame of the decoder takes 0.65 billion, and is run about six times; hence --frames.
    """
    validation.check_options(device, save_dir, DEVICES)
    emulated = {"--component": component, "--mode": mode, "--frames": frames}
    here = {"--bisect": bisect, "--backend": None if backend == "tvm" else backend, "--threads": threads}
    _without_effect(emulated if device == DEVICES[0] else here, device)
    if device != DEVICES[0]:
        text = "Hello world" if text is None and phonemes is None else text
        speech = (text, phonemes, voice, speed, seed, lang)
        return validate_emulated(Request(component, mode, frames, lib_dir, checkpoint, speech, save_dir, json_file))
    model = validation.Model(backend, lib_dir or Path("tvm_output"), onnx_dir, threads)
    with validation.Spinner() as say:
        bench, utterances = validation.prepare(say, model, save_dir, checkpoint, text, phonemes, voice, speed, seed, lang)
        if bisect is not None:
            return _bisect(bench, utterances[0], bisect, say, json_file)
        reports = _validate(bench, utterances, say)
    _save(reports, bench, save_dir, json_file)
    return _verdict(reports, bench, save_dir)


def _without_effect(options: Mapping[str, object], device: str) -> None:
    """Refuses options that mean nothing with this device; those that are None were not given."""
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise InputError(f"{', '.join(given)}: not with --device {device}")


def _validate(bench: Workbench, utterances: Sequence[Utterance], say: validation.Spinner) -> list[Report]:
    from kokoro_tvm.validate.steps import validate

    subjects = bench.subjects(say)
    return [validate(subjects, u, lambda what, u=u: say(f"{u.name}: {what}")) for u in utterances]


def _save(reports: Sequence[Report], bench: Workbench, save_dir: Path, json_file: Path | None) -> None:
    from kokoro_tvm.validate import report as writer
    from kokoro_tvm.validate.e2e import tensor_rendering

    about = validation.facts(bench, [r.utterance for r in reports])
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
    announce(bench.checkpoint)
    if failures:
        first = failures[0]
        where = f"{first.stage} ({first.tensor}, {first.mode})"
        console.print(f"{len(failures)} tensors fail, the first in {where}", style="bold red")
    return 0 if reports and all(r.passed for r in reports) else FAILED


def _bisect(bench: Workbench, utterance: Utterance, component: str, say: validation.Spinner, json_file: Path | None) -> int:
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
