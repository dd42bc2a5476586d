"""The demonstration behind ``scripts/demo``: from nothing to ``build/hello.wav``, with embedded defaults.

What it is: checkpoint (from the hub, or synthetic if that cannot be reached, and said so), compile for this CPU, speak, and a
table of where the time went. Steps whose result is in place are left out. What it is not: a tool; see ``kokoro-tvm compile`` and
``kokoro-tvm synth``.
"""

from __future__ import annotations

import hashlib
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from kokoro_tvm.errors import CheckpointError, KokoroTvmError
from kokoro_tvm.stages import COMPONENTS

if TYPE_CHECKING:
    from kokoro_tvm.reference.checkpoint import Checkpoint

PACKAGE = Path(__file__).resolve().parents[1]
VOICE = "af_heart"

console = Console(soft_wrap=True)


def demo(
    text: Annotated[str, typer.Option(help="What to say.")] = "Hello world",
    build: Annotated[Path, typer.Option(help="Where checkpoint, artifact and audio go.")] = Path("build"),
    threads: Annotated[int | None, typer.Option(help="Threads; all CPUs if absent.")] = None,
) -> None:
    """Speaks a text to ``build/hello.wav``, making everything that is needed for it."""
    artifact, voice, synthetic = _prepare(build)
    from kokoro_tvm.cli.synth import time_components, times_table
    from kokoro_tvm.runtime.audio import write_audio
    from kokoro_tvm.runtime.synthesis import load

    start = time.perf_counter()
    synthesizer = load(artifact, threads=threads)
    loading = time.perf_counter() - start
    start = time.perf_counter()
    synthesizer.synthesize(text, voice=voice)
    first = time.perf_counter() - start
    spent = time_components(synthesizer)
    start = time.perf_counter()
    speech = synthesizer.synthesize(text, voice=voice)
    warm = time.perf_counter() - start
    table = times_table(spent, loading, warm, speech.seconds, synthesizer.engine.threads)
    table.add_row("the first time", f"{1e3 * first:.1f}")
    console.print(table)
    path = write_audio(build / "hello.wav", speech.samples)
    console.print(f"[bold]{path}[/bold]: {speech.seconds:.3f} s, {len(speech.samples)} samples, phonemes {speech.phonemes}")
    if synthetic:
        console.print("[bold yellow]The weights are synthetic: full model, full size, but this is not speech.[/bold yellow]")


def _prepare(build: Path) -> tuple[Path, str, bool]:
    """Artifact folder, voice, and whether the weights are synthetic; compiles only if these sources have not yet."""
    done = build / "demo" / _fingerprint()
    for kind in ("published", "synthetic"):
        if (done / kind / "manifest.json").is_file():
            return done / kind, _voice(build, kind == "synthetic"), kind == "synthetic"
    checkpoint = _checkpoint(build)
    artifact = done / ("synthetic" if checkpoint.synthetic else "published")
    _compile(checkpoint, artifact)
    return artifact, _voice(build, checkpoint.synthetic), checkpoint.synthetic


def _checkpoint(build: Path) -> Checkpoint:
    """The published checkpoint, or a synthetic one where the model hub cannot be reached."""
    from kokoro_tvm.reference.checkpoint import load_checkpoint

    # Its retries are announced by the line below, not one by one.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        with console.status("asking the model hub for Kokoro-82M"):
            return load_checkpoint()
    except CheckpointError as error:
        console.print(f"[yellow]{error}[/yellow]")
        console.print("[yellow]Going on with a synthetic checkpoint: the full architecture, calibrated random weights.[/yellow]")
    from kokoro_tvm.reference.synthetic import write_synthetic_checkpoint

    folder = build / "synthetic"
    if not (folder / "config.json").is_file():
        with console.status("writing the synthetic checkpoint (about a minute)"):
            write_synthetic_checkpoint(folder)
    return load_checkpoint(folder)


def _compile(checkpoint: Checkpoint, artifact: Path) -> None:
    from kokoro_tvm.compile import CompileOptions, compile_artifact

    start = time.perf_counter()
    options = CompileOptions.resolve(checkpoint)
    with console.status("compiling") as status:
        compile_artifact(
            tuple(COMPONENTS), checkpoint, options, artifact, force=True,
            listener=lambda name, phase: status.update(f"compiling {name}: {phase}"),
        )  # fmt: skip
    console.print(f"compiled for this CPU ({options.target.mcpu}) in {time.perf_counter() - start:.0f} s")


def _voice(build: Path, synthetic: bool) -> str:
    """The published voice, or a synthetic one beside a synthetic checkpoint."""
    if not synthetic:
        return VOICE
    from kokoro_tvm.reference.synthetic import write_synthetic_voice

    path = build / "synthetic" / "voice.bin"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_synthetic_voice(path)
    return str(path)


def _fingerprint() -> str:
    """Names the artifact after the sources it was compiled by."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.parts[-2] not in ("cli", "validate", "runtime"):
            digest.update(path.relative_to(PACKAGE).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def main() -> int:
    """Runs the demonstration; 2 for a caller's mistake."""
    app = typer.Typer(add_completion=False)
    app.command()(demo)
    try:
        app(standalone_mode=False)
    except KokoroTvmError as error:
        console.print(f"demo: {error}", style="red")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
