"""``validate_steps --device metal-emulated``: the kernels for Apple GPUs, judged on this machine.

What it is: progress, tables and files around ``kokoro_tvm.validate.emulated``. What it is not: a command, and no comparison.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kokoro_tvm.cli import validation
from kokoro_tvm.cli.common import FAILED, compiler_packages, console, rows_table, warn_synthetic
from kokoro_tvm.errors import InputError
from kokoro_tvm.stages import COMPONENTS

if TYPE_CHECKING:
    from kokoro_tvm.reference.checkpoint import Checkpoint
    from kokoro_tvm.validate.emulated import Judgement

FRAMES = 16
"""Of the decoder, unless more are asked for: 0.4 s of audio."""
_SHOWN = 12


@dataclass(frozen=True)
class Request:
    """What is asked for; the names are those of the options.

    Attributes:
        components: None for all.
        mode: None for the usual one.
        frames: Of the decoder; 0 for all, None for ``FRAMES``.
        lib_dir: An artifact for metal-macos that has to hold the programs that are judged.
        checkpoint: The weights; the published ones if None.
        speech: Text, phonemes, voice, speed, seed and language, as ``Workbench.utterances`` takes them.
        save_dir: For the report.
        json_file: For every figure.
    """

    components: Sequence[str] | None
    mode: str | None
    frames: int | None
    lib_dir: Path | None
    checkpoint: Path | None
    speech: tuple[str | None, str | None, str | None, float, int, str]
    save_dir: Path
    json_file: Path | None


def validate_emulated(request: Request) -> int:
    """Compiles, compares, and gives the exit code."""
    with validation.Spinner() as say:
        found, facts, checkpoint = _judge(request, say)
    return _verdict(request, found, facts, checkpoint.synthetic)


def _judge(request: Request, say: validation.Spinner) -> tuple[list[Judgement], list[tuple[str, str]], Checkpoint]:
    """What was found for each window of the text, what was compared, and the weights."""
    say("loading")
    with compiler_packages():
        from kokoro_tvm.reference.checkpoint import load_checkpoint
        from kokoro_tvm.runtime.engine import Engine
        from kokoro_tvm.runtime.synthesis import Synthesizer
        from kokoro_tvm.validate import emulated
        from kokoro_tvm.validate.workbench import Workbench

    if request.frames is not None and request.frames < 0:
        raise InputError(f"--frames must be 0 (all) or more, got {request.frames}")
    names, mode = emulated.check_components(request.components or ()), request.mode or "random"
    frames = FRAMES if request.frames is None else request.frames or None
    with tempfile.TemporaryDirectory(prefix="kokoro-tvm-") as scratch, emulated.emulated_device(mode):
        checkpoint = load_checkpoint(request.checkpoint)
        artifact = Path(scratch) / "emulated"
        tell = lambda name, phase: say(f"{name}: {phase}")  # noqa: E731
        emulated.compile_emulated(names, checkpoint, artifact, request.lib_dir, tell)
        engine = Engine(artifact, components=names)
        bench = Workbench(checkpoint, Synthesizer(engine), request.save_dir / "cache")
        utterances = bench.utterances(*request.speech)
        judge = emulated.Judge(bench, names, frames, say, say.progress)
        found = [judge(u) for u in utterances]
        about = [row for row in validation.facts(bench, utterances) if row[0] != "model"]
    about += [("device", f"Metal, emulated: {mode}"), ("model", f"{engine.description}, compiled for this run")]
    if request.lib_dir is not None:
        about.append(("the same programs and weights", str(request.lib_dir)))
    return found, [*about, *_scope(found)], checkpoint


def _scope(judgements: Sequence[Judgement]) -> list[tuple[str, str]]:
    """What was left out because it was asked for, or takes too long."""
    rows = []
    absent = [n for n in COMPONENTS if n not in judgements[0].components]
    if absent:
        rows.append(("not judged", f"{', '.join(absent)}; nor the chain, which needs all components"))
    for j in judgements:
        if "decoder" in j.components and j.frames < j.total:
            rows.append(("decoder", f"{j.utterance.name}: only the first {j.frames} of {j.total} frames; --frames 0 takes all"))
    return rows


def _verdict(
    request: Request, judgements: Sequence[Judgement], facts: Sequence[tuple[str, str]], synthetic: bool
) -> int:
    """Writes the files, prints the tables, and gives the exit code."""
    from kokoro_tvm.validate import report as writer

    passed = bool(judgements) and all(j.passed for j in judgements)
    writer.write_page(request.save_dir / "report.html", writer.emulated_page(judgements, facts))
    if request.json_file is not None:
        content = {"facts": dict(facts), "passed": passed, "utterances": [writer.emulated_dict(j) for j in judgements]}
        writer.write_json(request.json_file, content)
    for j in judgements:
        console.print(writer.lock_step_table(j.comparisons))
        if j.report is not None:
            console.print(writer.steps_table(j.report))
            console.print(rows_table(writer.notes(j.report), "Notes"))
            for output in j.report.disagreements:
                console.print(writer.ALIEN.format(output), style="bold red")
    console.print(rows_table(facts, "What was compared"))
    console.print(f"report: {request.save_dir / 'report.html'}")
    warn_synthetic(synthetic)
    failures = [line for j in judgements for line in j.failures]
    for line in failures[:_SHOWN]:
        console.print(line, style="bold red", markup=False)
    if len(failures) > _SHOWN:
        console.print(f"and {len(failures) - _SHOWN} more", style="bold red")
    if passed:
        console.print("every kernel agrees with the CPU's, every stage is within tolerance", style="bold green")
    return 0 if passed else FAILED
