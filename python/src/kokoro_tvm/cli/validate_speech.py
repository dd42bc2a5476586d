"""``validate_speech``: can the artifact be understood, and does it sound like PyTorch; the exit code is the verdict.

What it is: options, progress and files around ``kokoro_tvm.validate.speech``. What it is not: a comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kokoro_tvm.cli import validation
from kokoro_tvm.cli.common import FAILED, announce, compiler_packages, single, wide_console
from kokoro_tvm.errors import InputError

if TYPE_CHECKING:
    from kokoro_tvm.validate.e2e import Gate
    from kokoro_tvm.validate.speech import Line, Result
    from kokoro_tvm.validate.workbench import Workbench


def validate_speech(
    text: Annotated[list[str] | None, typer.Option(help="English text instead of the sentences; may be repeated.")] = None,
    sentences: Annotated[int | None, typer.Option(help="So many of the sentences; all 40 if absent.")] = None,
    voice: Annotated[list[str] | None, typer.Option(help="As for validate_e2e; may be repeated, each says everything.")] = None,
    speed: validation.Speed = 1.0,
    seed: validation.Seed = 0,
    also: Annotated[
        list[str] | None, typer.Option(help="Float64 for scale: another-seed, or fp16 (products as on Metal); may be repeated.")
    ] = None,
    checkpoint: validation.Weights = None,
    device: validation.Device = "cpu",
    lib_dir: validation.LibDir = Path("tvm_output"),
    backend: validation.Backend = "tvm",
    onnx_dir: validation.OnnxDir = Path("build/onnx"),
    threads: validation.Threads = None,
    save_dir: validation.SaveDir = Path("logs/speech_validation"),
    json_file: validation.JsonFile = None,
) -> int:
    """Have a speech recogniser write down what the artifact and eager PyTorch say. Exit code 0: as good by ear."""
    validation.check_options(device, save_dir)
    with compiler_packages():
        from kokoro_tvm.validate.listening import examine_all
        from kokoro_tvm.validate.speech import Result, job, passed, speak
    from kokoro_tvm.validate import e2e, speech

    texts = _texts(text, sentences)
    unknown = [name for name in also or () if name not in speech.ALSO]
    if unknown:
        raise InputError(f"--also must be one of {', '.join(speech.ALSO)}, got {unknown[0]!r}")
    voices: list[str | None] = list(voice) if voice else [None]
    model = validation.Model(backend, lib_dir, onnx_dir, threads)
    with validation.Spinner() as say:
        bench, _ = validation.prepare(say, model, save_dir, checkpoint, texts[0], None, voices[0], speed, seed, "a")
        lines = [_line(bench, words, name, speed, seed) for name in voices for words in texts]
        spoken = []
        for number, line in enumerate(lines, 1):
            say(f"speaking {number} of {len(lines)}: {line.text}")
            render = lambda u: e2e.render_artifact(bench.synthesizer, u)  # noqa: E731
            spoken.append(speak(bench.double.model, bench.single.model, render, line, also or ()))
        say("listening")
        jobs = [job(line, renderings) for line, renderings in zip(lines, spoken, strict=True)]
        results = []
        for line, renderings, found in zip(lines, spoken, examine_all(jobs, bench.synthesizer.engine.threads), strict=True):
            say.progress(f"heard: {line.text}")
            results.append(Result(line, renderings, found))
        conditions = speech.gates(results, bench.synthesizer.engine.manifest.dtype)
        say("writing the report")
        _save(results, conditions, bench, save_dir, json_file)
    _show(results, conditions, bench, save_dir)
    return 0 if passed(conditions) else FAILED


def _texts(text: list[str] | None, count: int | None) -> list[str]:
    from kokoro_tvm.validate.recogniser import words
    from kokoro_tvm.validate.speech import sentences

    if text and count is not None:
        raise InputError("give either --text or --sentences")
    if text:
        wordless = next((t for t in text if not words(t)), None)
        if wordless is not None:
            raise InputError(f"--text {wordless!r} has no English word that could be heard")
        return list(text)
    return sentences(count)


def _line(bench: Workbench, text: str, voice: str | None, speed: float, seed: int) -> Line:
    from kokoro_tvm.runtime.text.g2p import language_of
    from kokoro_tvm.validate.speech import Line

    name = bench.voice(voice).name
    # The recogniser knows English alone; a British voice speaks it its own way.
    lang = "b" if language_of(name) == "b" else "a"
    return Line(text, name, bench.utterances(text, None, voice, speed, seed, lang))


def _save(
    results: Sequence[Result], conditions: Sequence[Gate], bench: Workbench, save_dir: Path, json_file: Path | None
) -> None:
    from kokoro_tvm.validate import report, speech
    from kokoro_tvm.validate.speech_report import speech_page

    for number, result in enumerate(results, 1):
        report.write_waves(save_dir / f"{number:02}", result.renderings)
    engine = bench.synthesizer.engine
    first = results[0].line.utterances[0]
    facts = [
        ("speed, noise seed", f"{first.speed}, {first.seed}"),
        ("checkpoint", f"{bench.checkpoint.source} (sha256 {bench.checkpoint.sha256[:12]})"),
        ("model", f"{engine.directory} {engine.description}"),
        ("version", f"kokoro-tvm {engine.manifest.kokoro_tvm}"),
    ]
    report.write_page(save_dir / "report.html", speech_page(results, conditions, facts))
    if json_file is not None:
        content = {
            "passed": speech.passed(conditions), "dtype": engine.manifest.dtype, "word_errors": speech.error_rates(results),
            "gates": list(conditions), "lines": [speech.as_dict(r) for r in results],
        }  # fmt: skip
        report.write_json(json_file, content)


def _show(results: Sequence[Result], conditions: Sequence[Gate], bench: Workbench, save_dir: Path) -> None:
    from kokoro_tvm.validate.report import gates_table
    from kokoro_tvm.validate.speech_report import totals_table

    out = wide_console()
    out.print(totals_table(results))
    out.print(gates_table(conditions))
    out.print(f"report: {save_dir / 'report.html'}")
    announce(bench.checkpoint)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program."""
    return single("validate_speech", validate_speech, argv)


if __name__ == "__main__":
    raise SystemExit(main())
