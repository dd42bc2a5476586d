"""What the validators found, for people and for programs.

What it is: tables for the terminal, JSON, WAV files and one HTML file that carries its pictures and sound inside it, so that it
opens from disk without a network. What it is not: a judgement; verdicts come with the records.
"""

from __future__ import annotations

import base64
import html
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.markup import escape
from rich.table import Table

from kokoro_tvm.artifact import staged
from kokoro_tvm.config import SAMPLE_RATE
from kokoro_tvm.errors import ToolchainError
from kokoro_tvm.runtime.audio import encode_audio, write_audio
from kokoro_tvm.validate import e2e, lock_step, steps
from kokoro_tvm.validate.bisect import OperatorRecord
from kokoro_tvm.validate.perceptual import log_mel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kokoro_tvm.validate import emulated

# --- numbers -----------------------------------------------------------------------------------------------------------------


def decibels(value: float | None) -> str:
    """A ratio for a table; ``exact`` if nothing differs."""
    if value is None or math.isnan(value):
        return "-"
    return "exact" if value == math.inf else f"{value:.1f}"


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it: NaN becomes null, infinities strings."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else f"{value:+}".replace("+inf", "inf")
    return value


def write_json(path: Path, content: Any) -> None:
    """Writes ``content`` through ``plain``."""
    with staged(path) as temporary:
        temporary.write_text(json.dumps(plain(content), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def emulated_dict(judgement: emulated.Judgement) -> dict[str, Any]:
    """One utterance on the emulated device for JSON: every kernel call, then its stages as ``steps_dict`` has them."""
    return {
        "phonemes": judgement.utterance.phonemes,
        "passed": judgement.passed,
        "frames": judgement.total,
        "decoder_frames": judgement.frames,
        "failures": judgement.failures,
        "lock_step": {
            c.component: {
                "passed": c.passed,
                "due": c.due,
                "problem": c.problem,
                "calls": [asdict(call) | {"passed": call.passed} for call in c.calls],
            }
            for c in judgement.comparisons
        },
        "stages": steps_dict(judgement.report) if judgement.report else None,
    }


def steps_dict(report: steps.Report) -> dict[str, Any]:
    """One utterance's records for JSON."""
    utterance = report.utterance
    return {
        "phonemes": utterance.phonemes,
        "speed": utterance.speed,
        "seed": utterance.seed,
        "frames": report.truth.frames,
        "passed": report.passed,
        "context": report.context,
        "disagreements": report.disagreements,
        "records": [asdict(r) | {"passed": r.passed, "measured": dict(r.measured)} for r in report.records],
    }


# --- the terminal ------------------------------------------------------------------------------------------------------------

_REGIMES = (steps.STATIC, steps.UNBOUNDED, steps.COMPILED, steps.SINGLE)


def steps_table(report: steps.Report) -> Table:
    """A row per tensor, a section per stage: every regime against the dynamic float64 reference. Narrow; JSON has the rest."""
    title = f"SNR in dB against eager float64: {escape(report.utterance.phonemes)} ({report.truth.frames / 40:.2f} s)"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("tensor", no_wrap=True)
    for column in ("rewrite", "no lengths", "compiled", "floor", "float32"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict")
    before = None
    for r in report.records:
        if (r.stage, r.mode) != before:
            before = r.stage, r.mode
            table.add_row(f"[bold]{r.stage}, {r.mode}[/bold]")
        measured = [r.measured.get(regime) for regime in _REGIMES]
        static, unbounded, compiled, single = (decibels(m.snr_db if m else None) for m in measured)
        verdict = "[green]ok[/green]" if r.passed else "[bold red]FAILS[/bold red]"
        table.add_row(f"  {r.tensor}", static, unbounded, compiled, decibels(r.floor_db), single, verdict)
    return table


def lock_step_table(comparisons: Sequence[lock_step.Comparison]) -> Table:
    """A row per component and kind of kernel, with the worst of its calls."""
    title = "Each kernel call against the CPU's"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("component", no_wrap=True)
    table.add_column("kernel", no_wrap=True)
    for column in ("calls", "worst error", "bound"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict")
    for component, operator, calls, error, limit, passed in lock_step_rows(comparisons):
        verdict = "[green]ok[/green]" if passed else "[bold red]FAILS[/bold red]"
        table.add_row(component, operator, calls, error, limit, verdict)
    return table


def lock_step_rows(comparisons: Sequence[lock_step.Comparison]) -> Iterator[tuple[str, str, str, str, str, bool]]:
    """The cells of ``lock_step_table``; what is wrong with a component as a whole is a row of its own."""
    for c in comparisons:
        for operator, calls in c.by_operator().items():
            error, passed = lock_step.worst(calls), all(call.passed for call in calls)
            yield c.component, operator, str(len(calls)), f"{error:.1e}", f"{calls[0].bound:g}", passed
        if c.problem or len(c.calls) != c.due or not c.calls:
            yield c.component, "(all)", f"{len(c.calls)} of {c.due}", "-", "-", False


def notes(report: steps.Report) -> list[tuple[str, str]]:
    """What there is to say about single tensors."""
    return [(f"{r.stage}: {r.tensor}, {r.mode}", r.note) for r in report.records if r.note]


def bisect_table(records: Sequence[OperatorRecord]) -> Table:
    """A row per operator."""
    table = Table(title="Each kernel on the reference's inputs, SNR in dB", title_justify="left")
    for column in ("#", "operator", "module", "kernels"):
        table.add_column(column)
    for column in ("isolated", "share", "chained", "verdict"):
        table.add_column(column, justify="right")
    for r in records:
        verdict = "[green]ok[/green]" if r.passed else "[bold red]EXCEEDS[/bold red]"
        table.add_row(
            str(r.index), r.operator, r.place or "-", ", ".join(r.kernels), decibels(r.isolated.snr_db),
            decibels(r.tolerance.floor_db), decibels(r.chained_db), verdict,
        )  # fmt: skip
    return table


_DISTANCES: tuple[tuple[str, Callable[[e2e.Distance], str]], ...] = (
    ("SNR, dB", lambda d: decibels(d.snr_db)),
    ("log-mel, dB", lambda d: f"{d.log_mel_db:.3f}"),
    ("F0, cents", lambda d: f"{d.f0_cents:.4f}"),
    ("voicing", lambda d: f"{d.voicing:.2%}"),
    ("samples", lambda d: f"{d.samples:+d}"),
    ("loudness, dB", lambda d: f"{d.loudness_db:+.4f}"),
)


def e2e_table(result: e2e.Result) -> Table:
    """A row per figure, a column per rendering."""
    table = Table(title="Distance from eager float64", title_justify="left")
    table.add_column("")
    for name in result.distances:
        table.add_column(name, justify="right")
    for label, show in _DISTANCES:
        table.add_row(label, *(show(d) for d in result.distances.values()))
    return table


def gates_table(gates: Sequence[e2e.Gate]) -> Table:
    """A row per condition."""
    table = Table(title="Verdict", title_justify="left")
    for column in ("", "compiled", "limit", "verdict", "why"):
        table.add_column(column)
    for gate in gates:
        verdict = "[green]ok[/green]" if gate.passed else "[bold red]FAILS[/bold red]"
        table.add_row(gate.name, f"{gate.value:.3f}", gate.limit, verdict, gate.reason)
    return table


# --- pictures ----------------------------------------------------------------------------------------------------------------


def subplots(rows: int, columns: int, height: float) -> tuple[Figure, Any]:
    """A figure as wide as the page, ``height`` inches high, and its axes [rows, columns].

    Raises:
        ToolchainError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ToolchainError(f"the report needs matplotlib ({error}): pip install 'kokoro-tvm[validate]'") from error
    figure = Figure(figsize=(11, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def embedded(figure: Figure) -> str:
    """HTML of a picture that carries its own bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=90)
    return f'<img src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'


def errors_picture(records: Sequence[steps.Record]) -> str:
    """Error per tensor: compiled, float32 PyTorch and floor. Exact tensors are drawn at the right edge."""
    shown = [r for r in records if not math.isinf(r.tolerance.floor_db)]
    figure, axes = subplots(1, 1, 1.2 + 0.19 * len(shown))
    axis, edge = axes[0, 0], 160.0
    y = np.arange(len(shown))

    def values(regime: str) -> list[float]:
        found = [r.measured[regime].snr_db if regime in r.measured else math.nan for r in shown]
        return [min(v, edge) for v in found]

    colours = ["tab:green" if r.passed else "tab:red" for r in shown]
    axis.barh(y, values(steps.COMPILED), height=0.7, color=colours, label="compiled")
    axis.plot(values(steps.SINGLE), y, "k.", label="float32 PyTorch")
    axis.plot([r.floor_db for r in shown], y, "b|", markersize=9, label="floor of the compiled")
    axis.set_yticks(y, [f"{r.stage}: {r.tensor}{' (chained)' if r.mode == 'chained' else ''}" for r in shown], fontsize=7)
    axis.margins(y=0.01)
    axis.invert_yaxis()
    axis.set_xlim(0, edge)
    axis.set_xlabel("SNR against eager float64, dB: longer is closer")
    axis.legend(loc="lower right")
    return embedded(figure)


def spectrograms_picture(truth: np.ndarray, compiled: np.ndarray) -> str:
    """Log-mel spectrograms of the truth and the compiled rendering, and their difference."""
    finite = np.nan_to_num(compiled, nan=0.0, posinf=0.0, neginf=0.0)
    shown = [log_mel(truth), log_mel(finite)]
    frames = min(s.shape[1] for s in shown)
    top = max(float(s.max()) for s in shown)
    figure, axes = subplots(1, 3, 3.2)
    difference = shown[1][:, :frames] - shown[0][:, :frames]
    seconds = frames * 256 / SAMPLE_RATE
    for axis, picture, title in zip(axes[0], [*shown, difference], ("float64", "compiled", "difference, dB"), strict=True):
        limits = {"vmin": -10, "vmax": 10, "cmap": "RdBu_r"} if picture is difference else {"vmin": top - 80, "vmax": top}
        image = axis.imshow(picture, origin="lower", aspect="auto", extent=(0, seconds, 0, 80), **limits)
        axis.set_title(title)
        axis.set_xlabel("seconds")
        figure.colorbar(image, ax=axis)
    axes[0, 0].set_ylabel("mel band")
    return embedded(figure)


def prosody_picture(truth: e2e.Rendering, compiled: e2e.Rendering) -> str:
    """F0 curves and durations."""
    figure, axes = subplots(2, 1, 4.6)
    for rendering, style, label in ((truth, "k-", "float64"), (compiled, "r--", "compiled")):
        axes[0, 0].plot(np.arange(len(rendering.f0)) / 80, rendering.f0, style, label=label, linewidth=1)
    axes[0, 0].set_xlabel("seconds")
    axes[0, 0].set_ylabel("F0, Hz")
    axes[0, 0].legend()
    for rendering, shift, colour in ((truth, -0.2, "k"), (compiled, 0.2, "r")):
        axes[1, 0].bar(np.arange(len(rendering.durations)) + shift, rendering.durations, width=0.4, color=colour)
    axes[1, 0].set_xlabel("token")
    axes[1, 0].set_ylabel("frames of 25 ms")
    return embedded(figure)


def waveform_picture(truth: np.ndarray, compiled: np.ndarray) -> str:
    """The truth's waveform and the compiled one's error."""
    figure, axes = subplots(2, 1, 3.6)
    shared = min(len(truth), len(compiled))
    seconds = np.arange(shared) / SAMPLE_RATE
    for axis, values, label in (
        (axes[0, 0], truth[:shared], "float64"),
        (axes[1, 0], compiled[:shared] - truth[:shared], "compiled − float64"),
    ):
        axis.plot(seconds, values, linewidth=0.4)
        axis.set_ylabel(label)
    axes[1, 0].set_xlabel("seconds")
    return embedded(figure)


# --- HTML --------------------------------------------------------------------------------------------------------------------

ALIEN = "{}: the kernels, put together, do not give the artifact's output; was it compiled from other sources? Compile it again"
"""What a disagreement means."""

_STYLE = """body{font:14px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:1em 0;font-size:12px}td,th{padding:2px 8px;border-bottom:1px solid #ddd;text-align:right}
td:first-child,th:first-child,td:nth-child(2),td:nth-child(3){text-align:left}img{max-width:100%}
.ok{color:#187a2f}.bad{color:#b3141d;font-weight:bold}figure{margin:1em 0}audio{width:100%}"""


def page(title: str, passed: bool, sections: Sequence[str]) -> str:
    """A whole HTML file; nothing in it refers outside."""
    verdict = '<p class="ok">passed</p>' if passed else '<p class="bad">FAILED</p>'
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{html.escape(title)}</h1>{verdict}{''.join(sections)}</body></html>\n"
    )


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]], failed: Sequence[bool] = ()) -> str:
    """Cells are escaped; rows marked in ``failed`` stand out."""
    head = "".join(f"<th>{html.escape(c)}</th>" for c in header)
    marks = [*failed, *[False] * (len(rows) - len(failed))]
    body = "".join(
        f"<tr{' class=bad' if bad else ''}>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>"
        for row, bad in zip(rows, marks, strict=True)
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def audio_element(label: str, samples: np.ndarray) -> str:
    """A player with the samples as float WAV inside it, and how long they last: players show whole seconds."""
    if not np.isfinite(samples).all():
        return f'<p class="bad">{html.escape(label)}: not finite, cannot be played</p>'
    data = base64.b64encode(encode_audio(samples)).decode()
    player = f'<audio controls src="data:audio/wav;base64,{data}"></audio>'
    return f"<figure><figcaption>{html.escape(label)}, {len(samples) / SAMPLE_RATE:.2f} s</figcaption>{player}</figure>"


def emulated_page(judgements: Sequence[emulated.Judgement], facts: Sequence[tuple[str, str]]) -> str:
    """The report of ``validate_steps --device metal-emulated``."""
    sections = [html_table(("", ""), facts)]
    header = ("component", "kernel", "calls", "worst error", "bound", "verdict")
    for j in judgements:
        rows = list(lock_step_rows(j.comparisons))
        cells = [(*row, "ok" if passed else "FAILS") for *row, passed in rows]
        sections += [f"<h2>{html.escape(j.utterance.phonemes)}</h2>", "<h3>Each kernel call against the CPU's</h3>"]
        sections.append(html_table(header, cells, [not passed for *_, passed in rows]))
        sections += [f'<p class="bad">{html.escape(line)}</p>' for line in j.failures]
        sections += _steps_sections(j.report) if j.report else []
    return page("Emulated Metal", bool(judgements) and all(j.passed for j in judgements), sections)


def steps_page(reports: Sequence[steps.Report], facts: Sequence[tuple[str, str]]) -> str:
    """The report of ``validate_steps``."""
    sections = [html_table(("", ""), facts)]
    for report in reports:
        sections += _steps_sections(report)
    return page("Stages against eager kokoro in float64", bool(reports) and all(r.passed for r in reports), sections)


def _steps_sections(report: steps.Report) -> list[str]:
    header = (
        "stage", "tensor", "mode", "rewrite", "without lengths", "compiled", "compiled to rewrite", "float32 PyTorch", "floor",
        "max abs", "max rel", "where", "range", "true range", "finite", "verdict", "note",
    )  # fmt: skip
    truth = e2e.tensor_rendering(report.truth)
    odd = "".join(f'<p class="bad">{html.escape(ALIEN.format(d))}</p>' for d in report.disagreements)
    renderings = {"float64": truth} | {
        name: e2e.tensor_rendering(tensors)
        for name, tensors in report.chained.items()
        if name in (steps.COMPILED, steps.SINGLE) and {"audio", "f0", "pred_dur"} <= tensors.keys()
    }
    sections = [f"<h2>{html.escape(report.utterance.phonemes)}</h2>", odd, "<h3>Error per stage</h3>"]
    sections.append(errors_picture(report.records))
    if steps.COMPILED in renderings:
        sections += _listening(renderings, steps.COMPILED)
    sections.append("<h3>All figures</h3><p>SNR in dB against the dynamic float64 reference. The floors' reasons are below.</p>")
    sections.append(html_table(header, [_row(r) for r in report.records], [not r.passed for r in report.records]))
    sections.append(html_table(("context", "SNR, dB"), [(k, decibels(v)) for k, v in report.context.items()]))
    reasons = {r.tolerance.name: (r.tolerance.name, decibels(r.tolerance.floor_db), r.tolerance.reason) for r in report.records}
    return [*sections, html_table(("tolerance", "floor, dB", "reason"), list(reasons.values()))]


def _row(record: steps.Record) -> list[str]:
    measured = [record.measured.get(regime) for regime in _REGIMES]
    static, unbounded, compiled, single = (decibels(m.snr_db if m else None) for m in measured)
    m = record.measured[steps.COMPILED]
    span = lambda r: f"{r[0]:.3g} … {r[1]:.3g}"  # noqa: E731
    return [
        record.stage, record.tensor, record.mode, static, unbounded, compiled, decibels(record.hop_db), single,
        decibels(record.floor_db), f"{m.max_abs:.2e}", f"{m.max_rel:.1e}", str(list(m.where)), span(m.actual_range),
        span(m.expected_range), f"{m.finite:.2%}", "ok" if record.passed else "FAILS", record.note,
    ]  # fmt: skip


def _listening(renderings: Mapping[str, e2e.Rendering], compiled: str) -> list[str]:
    truth, judged = renderings["float64"], renderings[compiled]
    return [
        "<h3>Spectrograms</h3>", spectrograms_picture(truth.samples, judged.samples),
        "<h3>F0 and durations</h3>", prosody_picture(truth, judged),
        "<h3>Waveform</h3>", waveform_picture(truth.samples, judged.samples),
        "<h3>Listen</h3>", *(audio_element(name, r.samples.astype(np.float32)) for name, r in renderings.items()),
    ]  # fmt: skip


def e2e_page(result: e2e.Result, facts: Sequence[tuple[str, str]]) -> str:
    """The report of ``validate_e2e``."""
    distances = [(label, *(show(d) for d in result.distances.values())) for label, show in _DISTANCES]
    gates = [(g.name, f"{g.value:.3f}", g.limit, "ok" if g.passed else "FAILS", g.reason) for g in result.gates]
    sections = [
        html_table(("", ""), facts),
        "<h2>Distance from eager float64</h2>", html_table(("", *result.distances), distances),
        html_table(("", "compiled", "limit", "verdict", "why"), gates, [not g.passed for g in result.gates]),
        *_listening(result.renderings, e2e.COMPILED),
    ]  # fmt: skip
    return page("Speech against eager kokoro in float64", result.passed, sections)


def write_page(path: Path, content: str) -> None:
    """Writes an HTML file, all or nothing."""
    with staged(path) as temporary:
        temporary.write_text(content, encoding="utf-8")


def write_waves(folder: Path, renderings: Mapping[str, e2e.Rendering]) -> None:
    """One float WAV per rendering; nothing is clipped. One that is not finite is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rendering in renderings.items():
        if np.isfinite(rendering.samples).all():
            write_audio(folder / f"{name.replace(',', '').replace(' ', '_')}.wav", rendering.samples.astype(np.float32))
