"""What ``validate_steps`` and ``validate_e2e`` share: options, progress, loading.

What it is: the options' types (each with its help) and the way from them to a workbench. What it is not: a command, and no
comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from kokoro_tvm.cli.common import compiler_packages, console
from kokoro_tvm.errors import InputError, OutputError
from kokoro_tvm.stages import COMPONENTS

if TYPE_CHECKING:
    from kokoro_tvm.validate.steps import Utterance
    from kokoro_tvm.validate.workbench import Workbench

Phonemes = Annotated[str | None, typer.Option(help="Phonemes instead of a text.")]
Voice = Annotated[
    str | None, typer.Option(help="A name, a file, a blend, or synthetic:SEED; one that suits the weights if absent.")
]
Speed = Annotated[float, typer.Option(help="2 is twice as fast.")]
Seed = Annotated[int, typer.Option(help="Of the source's noise.")]
Lang = Annotated[str, typer.Option(help="Language of the text.")]
Weights = Annotated[Path | None, typer.Option(help="The weights it was made from; the published ones if absent.")]
Device = Annotated[str, typer.Option(help="cpu.")]
LibDir = Annotated[Path, typer.Option(help="The compiled artifact.")]
Backend = Annotated[str, typer.Option(help="tvm (--lib-dir) or onnxruntime (--onnx-dir).")]
OnnxDir = Annotated[Path, typer.Option(help="Made by kokoro-tvm export --format onnx.")]
Threads = Annotated[int | None, typer.Option(help="Threads; all CPUs if absent.")]
SaveDir = Annotated[Path, typer.Option(help="Where the HTML report and the audio go.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Also write every figure to this file.")]


@dataclass(frozen=True)
class Model:
    """What is judged, as asked for; the names are those of the options."""

    backend: str
    lib_dir: Path
    onnx_dir: Path
    threads: int | None


def check_options(device: str, save_dir: Path, devices: Sequence[str] = ("cpu",)) -> None:
    """Refuses before anything is loaded what can only fail afterwards."""
    if device not in devices:
        raise InputError(f"--device must be {' or '.join(devices)}, got {device!r}: artifacts run on CPUs")
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
        self.progress(what)
        if not console.is_terminal:
            console.print(what)

    def progress(self, what: str) -> None:
        """Shows how far it is, where there is a terminal."""
        self._bars.update(self._task, description=what)


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
