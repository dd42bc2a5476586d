"""``kokoro-tvm synth``: a text to an audio file, with an artifact and without PyTorch.

What it is: reading the text, checking where the results will go, and a report. What it is not: synthesis
(``kokoro_tvm.runtime.synthesis``).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from kokoro_tvm.cli.common import check_writable, console, read_text, warn_synthetic
from kokoro_tvm.errors import OutputError
from kokoro_tvm.stages import COMPONENTS

if TYPE_CHECKING:
    from kokoro_tvm.runtime.synthesis import Speech, Synthesizer
    from kokoro_tvm.runtime.text.timestamps import WordTimestamp

TIMESTAMP_SUFFIXES = (".tsv", ".json")


def synth(
    text: Annotated[str | None, typer.Argument(help="The text; - for standard input.")] = None,
    artifact: Annotated[Path, typer.Option("--artifact", "-a", help="The compiled artifact.")] = Path("tvm_output"),
    voice: Annotated[
        str, typer.Option("--voice", "-v", help="A name, a file, or a blend such as af_heart:0.7,af_bella:0.3.")
    ] = "af_heart",
    voices_dir: Annotated[list[Path] | None, typer.Option(help="Where to look voices up by name; may be repeated.")] = None,
    speed: Annotated[float, typer.Option(help="2 is twice as fast.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the noise; the same seed gives the same samples.")] = 0,
    lang: Annotated[
        str | None,
        typer.Option("--lang", "-l", help="a b e f h i j p z, or en-us en-gb es fr-fr hi it ja zh; the voice's if absent."),
    ] = None,
    g2p: Annotated[str, typer.Option(help="How text becomes phonemes: auto, lexicon (English), misaki or espeak.")] = "auto",
    phonemes: Annotated[str | None, typer.Option(help="Phonemes instead of a text.")] = None,
    text_file: Annotated[Path | None, typer.Option(help="A UTF-8 file with the text; - for standard input.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads; all CPUs if absent.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="A .wav or .flac file.")] = Path("output.wav"),
    timestamps: Annotated[Path | None, typer.Option(help="Also write when each word is spoken: .tsv or .json.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Also draw the spectrogram: .png, .svg or .pdf.")] = None,
    backend: Annotated[str, typer.Option(help="tvm (--artifact) or onnxruntime (--onnx-dir).")] = "tvm",
    onnx_dir: Annotated[Path, typer.Option(help="Made by kokoro-tvm export --format onnx.")] = Path("build/onnx"),
) -> None:
    """Speak a text into an audio file."""
    from kokoro_tvm.runtime.audio import write_audio
    from kokoro_tvm.runtime.backends import open_engine
    from kokoro_tvm.runtime.synthesis import Synthesizer

    source = read_text(text, text_file, phonemes)
    _check_outputs(output, timestamps, picture)
    start = time.perf_counter()
    synthesizer = Synthesizer(open_engine(backend, artifact, onnx_dir, threads, tuple(COMPONENTS)), voices_dir or ())
    loaded = time.perf_counter()
    spent = time_components(synthesizer)
    with console.status("speaking"):
        speech = synthesizer.synthesize(source, voice=voice, speed=speed, seed=seed, lang=lang, phonemes=phonemes, g2p=g2p)
    spoken = time.perf_counter()
    write_audio(output, speech.samples)
    if timestamps:
        _write_timestamps(timestamps, speech.words)
    if picture:
        from kokoro_tvm.runtime.picture import write_spectrogram

        write_spectrogram(picture, speech)
    _report(speech, output)
    threads = synthesizer.engine.threads
    console.print(times_table(spent, loaded - start, spoken - loaded, speech.seconds, threads))
    warn_synthetic(synthesizer.synthetic)


def _check_outputs(output: Path, timestamps: Path | None, picture: Path | None) -> None:
    from kokoro_tvm.runtime.audio import SUBTYPES
    from kokoro_tvm.runtime.picture import SUFFIXES

    for path, suffixes in ((output, tuple(SUBTYPES)), (timestamps, TIMESTAMP_SUFFIXES), (picture, SUFFIXES)):
        if path is None:
            continue
        if path.suffix.lower() not in suffixes:
            raise OutputError(f"file type of {path} is unknown, expected one of {', '.join(suffixes)}")
        check_writable(path)


def time_components(synthesizer: Synthesizer) -> dict[str, float]:
    """Makes the synthesizer's engine add up seconds per component in the dictionary returned."""
    spent = dict.fromkeys(COMPONENTS, 0.0)
    run = synthesizer.engine.run

    def timed(name: str, *inputs: object) -> object:
        start = time.perf_counter()
        try:
            return run(name, *inputs)
        finally:
            spent[name] += time.perf_counter() - start

    synthesizer.engine.run = timed
    return spent


def times_table(spent: dict[str, float], loading: float, speaking: float, audio: float, threads: int) -> Table:
    """Where the time went, in milliseconds and as real-time factor.

    Args:
        spent: Seconds per component.
        loading: Seconds to load the artifact.
        speaking: Seconds from text to samples.
        audio: Seconds of audio.
        threads: Threads used.
    """
    table = Table(title=f"Where the time went ({threads} threads)", title_justify="left")
    for column in ("", "ms", "share", "RTF"):
        table.add_column(column, justify="right" if column else "left")
    for name, seconds in (*spent.items(), ("text, alignment, noise", speaking - sum(spent.values()))):
        table.add_row(name, f"{1e3 * seconds:.1f}", f"{seconds / speaking:.1%}", f"{seconds / audio:.4f}")
    table.add_section()
    table.add_row("text to samples", f"{1e3 * speaking:.1f}", "", f"{speaking / audio:.4f}")
    table.add_row("loading the model", f"{1e3 * loading:.1f}")
    return table


def _report(speech: Speech, output: Path) -> None:
    windows = f"{speech.windows} windows" if speech.windows > 1 else "1 window"
    console.print(f"{escape(str(output))}: {speech.seconds:.3f} s, {len(speech.samples)} samples, {windows}", style="bold")
    console.print(f"phonemes: {escape(speech.phonemes)}")
    if speech.dropped:
        console.print(f"left out, unknown to the model: {escape(speech.dropped)}", style="yellow")


def _write_timestamps(path: Path, words: Sequence[WordTimestamp]) -> None:
    """One word a line or object: text, start and end in seconds."""
    from kokoro_tvm.artifact import staged

    if path.suffix.lower() == ".json":
        text = json.dumps([{"text": w.text, "start": w.start, "end": w.end} for w in words], ensure_ascii=False, indent=1) + "\n"
    else:
        text = "".join(f"{w.start:.3f}\t{w.end:.3f}\t{w.text}\n" for w in words)
    with staged(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
