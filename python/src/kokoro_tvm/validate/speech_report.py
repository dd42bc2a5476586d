"""The report of ``validate_speech``: to read, to listen to and to look at.

What it is: tables for the terminal and one HTML file with what was heard, its errors marked, and spectrograms, pitch and sound
of the compiled rendering and PyTorch's. What it is not: a judgement (``speech``); pages in general are ``report``'s.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from kokoro_tvm.config import SAMPLE_RATE
from kokoro_tvm.runtime.audio import encode_audio
from kokoro_tvm.validate import perceptual, speech
from kokoro_tvm.validate.e2e import COMPILED, SINGLE, Gate
from kokoro_tvm.validate.recogniser import Transcript
from kokoro_tvm.validate.report import embedded, html_table, page, subplots

if TYPE_CHECKING:
    from kokoro_tvm.validate.speech import Result

SHOWN = (COMPILED, SINGLE)
"""Whom the report lets one hear and see."""

_STYLE = "<style>del{color:#b3141d}ins{color:#b3141d;font-weight:bold;text-decoration:none}</style>"


def totals(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """A header, then a row per figure: a column per way of speaking, median and worst of the lines."""
    rates = speech.error_rates(results)
    truth = speech.DOUBLE
    compared = [n for n in rates if n != truth]
    rows: list[tuple[str, ...]] = [("", *compared, truth)]
    rows.append(("word errors, %", *(f"{rates[n]:.2f}" for n in (*compared, truth))))
    rows.append(("durations equal, % of lines", *(f"{speech.equal_durations(results, n):.0f}" for n in compared), ""))
    columns = [speech.figures(results, n) for n in compared]
    for figures in zip(*columns, strict=True):
        rows.append((figures[0].name, *(f"{f.median:.4g} ({f.worst:.4g})" for f in figures), ""))
    for label, values in (
        ("loudness, LUFS", {n: [r.sounds[n].loudness for r in results] for n in rates}),
        ("F0, Hz", {n: [r.sounds[n].pitch.median for r in results] for n in rates}),
    ):
        rows.append((label, *(f"{np.median(values[n]):.2f}" for n in (*compared, truth))))
    low, high = ({n: [getattr(r.sounds[n].pitch, end) for r in results] for n in rates} for end in ("low", "high"))
    rows.append(("F0 range, Hz", *(f"{np.median(low[n]):.1f} to {np.median(high[n]):.1f}" for n in (*compared, truth))))
    return rows


def totals_table(results: Sequence[Result]) -> Table:
    """``totals`` for the terminal."""
    header, *rows = totals(results)
    words = sum(r.sounds[speech.DOUBLE].transcript.said for r in results)
    title = f"{len(results)} sentences, {words} words; against eager float64: median (worst) of the sentences"
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(header):
        table.add_column(column, justify="right" if i else "left")
    for row in rows:
        table.add_row(*row)
    return table


def marked(transcript: Transcript) -> str:
    """HTML of what was heard: words not heard struck out, words heard in their place or added set bold."""
    parts = []
    for pair in transcript.pairs:
        if pair.correct:
            parts.append(html.escape(pair.said or ""))
            continue
        parts.append(f"<del>{html.escape(pair.said)}</del>" if pair.said else "")
        parts.append(f"<ins>{html.escape(pair.heard)}</ins>" if pair.heard else "")
    return " ".join(p for p in parts if p)


def speech_page(results: Sequence[Result], conditions: Sequence[Gate], facts: Sequence[tuple[str, str]]) -> str:
    """The whole report."""
    header, *rows = totals(results)
    verdicts = [(g.name, f"{g.value:.3f}", g.limit, "ok" if g.passed else "FAILS", g.reason) for g in conditions]
    sections = [
        _STYLE, html_table(("", ""), facts),
        "<h2>All sentences</h2><p>Against eager float64: median (worst) of the sentences.</p>", html_table(header, rows),
        html_table(("", "compiled", "limit", "verdict", "why"), verdicts, [not g.passed for g in conditions]),
        "<p>Below: what the recogniser heard, <del>said</del> <ins>heard</ins> where it erred.</p>",
    ]  # fmt: skip
    for number, result in enumerate(results, 1):
        sections += _line(number, result)
    return page("Speech, as it is heard", speech.passed(conditions), sections)


def _line(number: int, result: Result) -> list[str]:
    heard = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{marked(s.transcript)}</td><td>{s.loudness:.2f} LUFS</td>"
        f"<td>F0 {s.pitch.low:.0f}, {s.pitch.median:.1f}, {s.pitch.high:.0f} Hz</td></tr>"
        for name, s in result.sounds.items()
    )
    likeness = [
        (name, f"{d.mcd_db:.3f}", f"{d.pesq:.3f}", f"{d.stoi:.4f}", f"{d.log_mel_db:.3f}", f"{d.pitch_cents:.2f}")
        for name, d in result.likeness.items()
    ]
    return [
        f"<h3>{number}. {html.escape(result.line.text)}</h3><p>{html.escape(result.line.voice)}</p>", f"<table>{heard}</table>",
        *(_player(name, result.renderings[name].samples) for name in SHOWN),
        html_table(("", "MCD, dB", "PESQ", "STOI", "log-mel, dB", "F0, cents"), likeness), sound_picture(result),
    ]  # fmt: skip


def _player(label: str, samples: np.ndarray) -> str:
    """A player with 16-bit FLAC inside: a fifth of float WAV, and there are dozens."""
    if not np.isfinite(samples).all():
        return f'<p class="bad">{html.escape(label)}: not finite, cannot be played</p>'
    data = base64.b64encode(encode_audio(np.clip(samples, -1, 1).astype(np.float32), ".flac", "PCM_16")).decode()
    player = f'<audio controls src="data:audio/flac;base64,{data}"></audio>'
    return f"<figure><figcaption>{html.escape(label)}, {len(samples) / SAMPLE_RATE:.2f} s</figcaption>{player}</figure>"


def sound_picture(result: Result) -> str:
    """Spectrogram of each that is shown, and their pitch."""
    figure, axes = subplots(1, 3, 2.4)
    spectra = [perceptual.log_mel(np.nan_to_num(result.renderings[n].samples, posinf=0.0, neginf=0.0)) for n in SHOWN]
    top = max(float(s.max()) for s in spectra)
    for axis, spectrum, name in zip(axes[0], spectra, SHOWN, strict=False):
        seconds = len(result.renderings[name].samples) / SAMPLE_RATE
        axis.imshow(spectrum, origin="lower", aspect="auto", extent=(0, seconds, 0, 80), vmin=top - 80, vmax=top)
        axis.set_title(name)
    for name, style, size in zip(SHOWN, ("r.", "k."), (5, 2), strict=True):
        curve = result.sounds[name].curve
        axes[0, 2].plot(np.arange(len(curve)) / 100, curve, style, markersize=size, label=name)
    axes[0, 2].set_title("F0, Hz")
    axes[0, 2].legend(fontsize=7)
    return embedded(figure)
