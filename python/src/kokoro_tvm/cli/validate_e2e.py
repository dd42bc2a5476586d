"""``validate_e2e``: the waveform of a text against eager kokoro in float64; the exit code is the verdict.

What it is: options, progress and files around ``kokoro_tvm.validate.e2e``. What it is not: a comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kokoro_tvm.cli import validation
from kokoro_tvm.cli.common import FAILED, announce, compiler_packages, console, single
from kokoro_tvm.errors import InputError

if TYPE_CHECKING:
    from kokoro_tvm.validate.e2e import Gate, Result
    from kokoro_tvm.validate.steps import Utterance
    from kokoro_tvm.validate.workbench import Workbench


def validate_e2e(
    text: Annotated[
        list[str] | None, typer.Option(help="What to say, may be repeated; Hello world if neither this nor --phonemes is given.")
    ] = None,
    sentences: Annotated[int | None, typer.Option(help="So many of validate_speech's sentences instead.")] = None,
    phonemes: validation.Phonemes = None,
    voice: Annotated[list[str] | None, typer.Option(help="As for validate_steps; may be repeated, each says everything.")] = None,
    speed: validation.Speed = 1.0,
    seed: validation.Seed = 0,
    lang: validation.Lang = "a",
    checkpoint: validation.Weights = None,
    device: validation.Device = "cpu",
    lib_dir: validation.LibDir = Path("tvm_output"),
    backend: validation.Backend = "tvm",
    onnx_dir: validation.OnnxDir = Path("build/onnx"),
    threads: validation.Threads = None,
    save_dir: validation.SaveDir = Path("logs/e2e_validation"),
    json_file: validation.JsonFile = None,
) -> int:
    """Compare what the artifact says with what eager kokoro says in float64. Exit code 0: within tolerance."""
    validation.check_options(device, save_dir)
    texts = _texts(text, sentences, phonemes)
    voices: list[str | None] = list(voice) if voice else [None]
    model = validation.Model(backend, lib_dir, onnx_dir, threads)
    results = []
    with validation.Spinner() as say:
        bench, utterances = validation.prepare(say, model, save_dir, checkpoint, texts[0], phonemes, voices[0], speed, seed, lang)
        for number, (name, words) in enumerate((v, t) for v in voices for t in texts):
            if number:
                utterances = bench.utterances(words, phonemes, name, speed, seed, lang)
            results.append(_validate(bench, utterances, say))
    gates = _gates(results, bench)
    _save(results, gates, bench, save_dir, json_file)
    return _verdict(results, gates, bench, save_dir)


def _texts(text: list[str] | None, sentences: int | None, phonemes: str | None) -> list[str | None]:
    """What is said; one None for phonemes."""
    given = [n for n, v in (("--text", text), ("--sentences", sentences), ("--phonemes", phonemes)) if v is not None]
    if len(given) > 1:
        raise InputError(f"give one of --text, --sentences and --phonemes, got {' and '.join(given)}")
    if sentences is None:
        return [None] if phonemes is not None else list(text or ["Hello world"])
    with compiler_packages():
        from kokoro_tvm.validate import speech

    return list(speech.sentences(sentences))


def _gates(results: Sequence[Result], bench: Workbench) -> list[Gate]:
    """Conditions on all texts together, where they are known well enough to have some."""
    from kokoro_tvm.runtime.engine import Engine
    from kokoro_tvm.validate import e2e

    engine = bench.synthesizer.engine
    known = bench.checkpoint.published and isinstance(engine, Engine) and engine.manifest.dtype == "float32"
    return e2e.median_gates(results) if known else []


def _validate(bench: Workbench, utterances: list[Utterance], say: validation.Spinner) -> Result:
    from kokoro_tvm.validate import e2e

    def render(utterance: Utterance) -> e2e.Rendering:
        return e2e.render_artifact(bench.synthesizer, utterance)

    return e2e.validate(bench.double.model, bench.single.model, render, utterances, say, bench.synthesizer.engine.manifest.dtype)


def _save(results: Sequence[Result], gates: Sequence[Gate], bench: Workbench, save_dir: Path, json_file: Path | None) -> None:
    from kokoro_tvm.validate import e2e
    from kokoro_tvm.validate import report as writer

    for number, result in enumerate(results, 1):
        folder = save_dir if len(results) == 1 else save_dir / f"text{number}"
        writer.write_waves(folder, result.renderings)
        writer.write_page(folder / "report.html", writer.e2e_page(result, validation.facts(bench, result.utterances)))
    if json_file is not None:
        passed = all(r.passed for r in (*results, *gates))
        texts = [e2e.as_dict(r) for r in results]
        content = {"passed": passed, "summary": e2e.summary(results), "gates": list(gates), "texts": texts}
        writer.write_json(json_file, content)


def _verdict(results: Sequence[Result], gates: Sequence[Gate], bench: Workbench, save_dir: Path) -> int:
    from kokoro_tvm.validate import e2e
    from kokoro_tvm.validate.report import e2e_table, gates_table

    for result in results:
        console.print(e2e_table(result))
        console.print(gates_table(result.gates))
    if len(results) > 1:
        console.print("; ".join(f"{name}: {value:.1f}" for name, value in e2e.summary(results).items()))
    if gates:
        console.print(gates_table(gates))
    console.print(f"report: {save_dir}")
    announce(bench.checkpoint)
    return 0 if results and all(r.passed for r in (*results, *gates)) else FAILED


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program."""
    return single("validate_e2e", validate_e2e, argv)


if __name__ == "__main__":
    raise SystemExit(main())
