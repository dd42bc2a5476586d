"""What a comparison found: the records, and how they are shown.

What it is: dataclasses that go to JSON and back, tables for the terminal and for Markdown, and a picture. What it is not: a
measurement.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from kokoro_tvm import environment
from kokoro_tvm.artifact import staged
from kokoro_tvm.bench.peers import DECODER, OURS, SUBJECTS, WHOLE
from kokoro_tvm.errors import InputError, ToolchainError
from kokoro_tvm.runtime import cpu

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMA = 1
MARKS = ("<!-- bench -->", "<!-- /bench -->")
"""Lines of a README between which ``write_summary`` puts its table."""

TITLES = {WHOLE: "Whole model, token ids to samples", DECODER: "Decoder alone"}


@dataclass(frozen=True)
class Timing:
    """Warm runs of one engine on one utterance.

    Attributes:
        engine: Its name.
        subject: ``whole`` or ``decoder``.
        threads: Asked for.
        wanted: Seconds of audio that were asked for.
        audio: Seconds of audio.
        seconds: Of every run.
        first: Seconds until the first window's samples, of every run.
        level: Root mean square of the samples.
        warm_up: Seconds of the runs before, which do not count; a compiler's work is in the first.
    """

    engine: str
    subject: str
    threads: int
    wanted: float
    audio: float
    seconds: tuple[float, ...]
    first: tuple[float, ...]
    level: float
    warm_up: tuple[float, ...]

    @property
    def median(self) -> float:
        """Of the runs, in seconds."""
        return statistics.median(self.seconds)

    @property
    def rtf(self) -> float:
        """Real-time factor: time of computing by time of audio."""
        return self.median / self.audio

    @property
    def spread(self) -> float:
        """Distance of the quartiles by the median."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / self.median


@dataclass(frozen=True)
class Cold:
    """A fresh process: seconds until it can speak, of its first utterance, and the most memory it held, in MiB."""

    engine: str
    subject: str
    threads: int
    audio: float
    load: float
    first: float
    peak_mib: float


@dataclass(frozen=True)
class Spoken:
    """Warm seconds from a text to samples, G2P included, of every run."""

    engine: str
    threads: int
    text: str
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Problem:
    """What an engine could not do. ``known``: a limit of that engine that was known before; no failure."""

    engine: str
    what: str
    reason: str
    known: bool = False


@dataclass
class Comparison:
    """Everything one run of ``kokoro-tvm bench`` found.

    Attributes:
        header: Machine, CPU, versions, weights, command and load, by name.
        timings: Warm runs.
        cold: Fresh processes.
        spoken: A text to samples.
        setups: Engine to seconds that compiling or exporting took, where that is known.
        problems: What is missing and why.
    """

    header: dict[str, str]
    timings: list[Timing] = field(default_factory=list)
    cold: list[Cold] = field(default_factory=list)
    spoken: list[Spoken] = field(default_factory=list)
    setups: dict[str, float] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @property
    def engines(self) -> list[str]:
        """Those that were measured, in order."""
        return list(dict.fromkeys([t.engine for t in self.timings] + [c.engine for c in self.cold]))

    def timing(self, engine: str, subject: str, threads: int, wanted: float) -> Timing | None:
        """The record of these, if there is one."""
        key = (engine, subject, threads, wanted)
        return next((t for t in self.timings if (t.engine, t.subject, t.threads, t.wanted) == key), None)

    def ratio(self, timing: Timing) -> float | None:
        """How many times longer than ours it took, in this run of the benchmark."""
        ours = self.timing(OURS, timing.subject, timing.threads, timing.wanted)
        return timing.median / ours.median if ours else None


def machine() -> dict[str, str]:
    """The machine that measures, by name of what is told."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30 if hasattr(os, "sysconf") else 0.0
    count = environment.cpu_count()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    rows = {
        "cpu": f"{cpu.model_name()}, {count} CPUs",
        "features": cpu.vector_features(),
        "memory": f"{memory:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "date": datetime.date.today().isoformat(),
        "load before": f"{load:.2f}",
    }
    if load > 0.3 * count:
        rows["warning"] = "the machine was busy: absolute figures mean little"
    return rows


# --- JSON --------------------------------------------------------------------------------------------------------------------


def write_json(path: Path, found: Comparison) -> None:
    """Writes all records, each run's time included."""
    with staged(path) as temporary:
        temporary.write_text(json.dumps({"schema": SCHEMA, **asdict(found)}, indent=1, ensure_ascii=False) + "\n", "utf-8")


def read_json(path: Path) -> Comparison:
    """Reads what ``write_json`` wrote.

    Raises:
        InputError: It is no such file.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw.pop("schema") != SCHEMA:
            raise InputError(f"{path} is of another version of the benchmark; run it again")
        return Comparison(
            header=raw["header"],
            timings=_records(Timing, raw["timings"]),
            cold=_records(Cold, raw["cold"]),
            spoken=_records(Spoken, raw["spoken"]),
            setups=raw["setups"],
            problems=_records(Problem, raw["problems"]),
        )
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
        raise InputError(f"{path} holds no figures of kokoro-tvm bench: {error!r}") from error


def _records(kind: type, raw: Sequence[dict[str, Any]]) -> list[Any]:
    return [kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in record.items()}) for record in raw]


# --- tables ------------------------------------------------------------------------------------------------------------------

Rows = tuple[str, list[str], list[list[str]]]
"""A title, column names, and rows of cells; the first column is left-aligned."""


def tables(found: Comparison) -> list[Rows]:
    """Every table that the records fill."""
    result = [_speed(found, subject, threads) for subject in SUBJECTS for threads in _threads(found, subject)]
    result += [_first_audio(found, threads) for threads in _threads(found, WHOLE)]
    result += [_spoken(found)] if found.spoken else []
    result += [_cold(found)] if found.cold else []
    return result


def _threads(found: Comparison, subject: str) -> list[int]:
    return sorted({t.threads for t in found.timings if t.subject == subject})


def _lengths(found: Comparison, subject: str, threads: int) -> list[tuple[float, float]]:
    """Wanted and actual seconds."""
    return sorted({(t.wanted, t.audio) for t in found.timings if (t.subject, t.threads) == (subject, threads)})


def _per_length(found: Comparison, subject: str, threads: int, title: str, cell: Any) -> Rows:
    lengths = _lengths(found, subject, threads)
    rows = []
    for engine in found.engines:
        timings = [found.timing(engine, subject, threads, wanted) for wanted, _ in lengths]
        if any(timings):
            rows.append([engine, *(cell(t) if t else "–" for t in timings)])
    return f"{title}, {_plural(threads)}", ["", *(f"{audio:.1f} s" for _, audio in lengths)], rows


def _speed(found: Comparison, subject: str, threads: int) -> Rows:
    def cell(t: Timing) -> str:
        ratio = found.ratio(t)
        times = f", {ratio:.2f} ×" if ratio and t.engine != OURS else ""
        return f"{t.rtf:.3f} ±{50 * t.spread:.0f} %{times}"

    title = f"{TITLES[subject]}: real-time factor ± half the distance of the quartiles, × our time"
    return _per_length(found, subject, threads, title, cell)


def _first_audio(found: Comparison, threads: int) -> Rows:
    cell = lambda t: f"{1e3 * statistics.median(t.first):.0f} ms"  # noqa: E731
    return _per_length(found, WHOLE, threads, "Time to first audio", cell)


def _spoken(found: Comparison) -> Rows:
    rows = []
    ours = {(s.text, s.threads): statistics.median(s.seconds) for s in found.spoken if s.engine == OURS}
    for s in found.spoken:
        median, own = statistics.median(s.seconds), ours.get((s.text, s.threads))
        ratio = f"{median / own:.2f} ×" if own and s.engine != OURS else "–"
        rows.append([s.engine, s.text, str(s.threads), f"{1e3 * median:.0f} ms", ratio])
    return "A text to samples, G2P included, warm", ["", "text", "threads", "time", "against ours"], rows


def _cold(found: Comparison) -> Rows:
    rows = []
    for c in found.cold:
        setup = found.setups.get(c.engine)
        rows.append([
            c.engine, c.subject, f"{c.audio:.1f} s", f"{c.load:.2f} s", f"{c.first:.2f} s", f"{c.load + c.first:.2f} s",
            f"{c.peak_mib:.0f} MiB", f"{setup:.0f} s" if setup is not None else "–",
        ])  # fmt: skip
    threads = "/".join(str(t) for t in sorted({c.threads for c in found.cold}))
    columns = ["", "subject", "audio", "load", "first run", "sum", "peak", "set up"]
    title = f"A fresh process, {threads} threads: imports and load, first run, peak memory; set up (compiled or exported) once"
    return title, columns, rows


def _plural(threads: int) -> str:
    return f"{threads} thread{'' if threads == 1 else 's'}"


def rich_table(rows: Rows) -> Table:
    """For the terminal."""
    title, columns, body = rows
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    for row in body:
        table.add_row(*row)
    return table


def markdown(found: Comparison) -> str:
    """The whole report: header, tables, and what could not be measured."""
    lines = [f"- {name}: {value}" for name, value in found.header.items()]
    for title, columns, body in tables(found):
        lines += ["", f"**{title}**", "", *_table_lines(columns, body)]
    lines += [""] if found.problems else []
    lines += [f"- {p.engine}, {p.what}: {p.reason}" for p in found.problems]
    return "\n".join(lines) + "\n"


def summary(found: Comparison) -> str:
    """For a README: one table with a column per engine, at the largest number of threads, and what it was measured on."""
    threads = max((t.threads for t in found.timings), default=0)
    rows = [
        [f"{TITLES[subject]}, {audio:.1f} s", *(f"{t.rtf:.3f}" if t else "–" for t in timings)]
        for subject in SUBJECTS
        for wanted, audio in _lengths(found, subject, threads)
        for timings in [[found.timing(engine, subject, threads, wanted) for engine in found.engines]]
    ]
    for text in dict.fromkeys(s.text for s in found.spoken if s.threads == threads):
        times = {s.engine: statistics.median(s.seconds) for s in found.spoken if (s.text, s.threads) == (text, threads)}
        cells = [f"{1e3 * times[engine]:.0f} ms" if engine in times else "–" for engine in found.engines]
        rows.append([f"“{text}” to samples, warm", *cells])
    fresh = [c for c in found.cold if (c.subject, c.threads) == (WHOLE, threads)]
    shortest = min((c.audio for c in fresh), default=0.0)
    of = {c.engine: c for c in fresh if c.audio == shortest}
    if of:
        times = [f"{c.load + c.first:.2f} s" if (c := of.get(engine)) else "–" for engine in found.engines]
        peaks = [f"{c.peak_mib:.0f} MiB" if (c := of.get(engine)) else "–" for engine in found.engines]
        rows += [[f"A fresh process: load, speak {shortest:.1f} s", *times], ["its peak memory", *peaks]]
    told = [_plural(threads), *(found.header[k] for k in ("cpu", "features", "date") if k in found.header)]
    if "weights" in found.header:
        told.append(f"{found.header['weights']} weights")
    method = found.header.get("method", "")
    sentences = ["; ".join(told), *([method[0].upper() + method[1:]] if method else [])]
    lines = _table_lines(["real-time factor (lower is faster)", *found.engines], rows)
    return "\n".join([*lines, "", *(f"{sentence}." for sentence in sentences)])


def write_summary(path: Path, found: Comparison) -> None:
    """Replaces what stands between the two lines ``MARKS`` of a file by ``summary``.

    Raises:
        InputError: The file cannot be read, or does not have each of the two lines once, in this order.
    """
    begin, end = MARKS
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    before, _, rest = text.partition(f"{begin}\n")
    _, found_end, after = rest.partition(end)
    if not found_end or begin in rest or end in after:
        raise InputError(f"{path} has no single pair of lines {begin} and {end} to put the table between")
    with staged(path) as temporary:
        temporary.write_text(f"{before}{begin}\n{summary(found)}\n{end}{after}", encoding="utf-8")


def _table_lines(columns: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    return [_line(columns), _line(["---", *["---:"] * (len(columns) - 1)]), *(_line(row) for row in body)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(c.replace('|', chr(92) + '|') for c in cells)} |"


# --- the picture -------------------------------------------------------------------------------------------------------------


def picture(found: Comparison) -> Figure:
    """Real-time factor by length of the audio: a panel for every subject and number of threads, a bar for every engine.

    Raises:
        ToolchainError: matplotlib is not installed.
    """
    panels = [(subject, threads) for subject in SUBJECTS for threads in _threads(found, subject)]
    columns = max(1, len({t for _, t in panels}))
    lines = max(1, len({s for s, _ in panels}))
    figure = new_figure((5.2 * columns, 3.4 * lines + 0.4))
    axes = figure.subplots(lines, columns, squeeze=False, sharey="row").ravel()
    handles: dict[str, Any] = {}
    for axis, (subject, threads) in zip(axes, panels, strict=False):
        lengths = _lengths(found, subject, threads)
        engines = [e for e in found.engines if any((t.engine, t.subject) == (e, subject) for t in found.timings)]
        width = 0.8 / max(1, len(engines))
        for i, engine in enumerate(engines):
            points = [(j, t) for j, (w, _) in enumerate(lengths) if (t := found.timing(engine, subject, threads, w))]
            places = [j + (i - (len(engines) - 1) / 2) * width for j, _ in points]
            errors = [
                [t.rtf - min(t.seconds) / t.audio for _, t in points],
                [max(t.seconds) / t.audio - t.rtf for _, t in points],
            ]
            color = f"C{found.engines.index(engine)}"
            bars = axis.bar(places, [t.rtf for _, t in points], width, yerr=errors, error_kw={"lw": 0.8}, color=color)
            handles.setdefault(engine, bars)
        axis.set_xticks(range(len(lengths)), [f"{audio:.1f} s" for _, audio in lengths])
        axis.set_title(f"{TITLES[subject]}, {_plural(threads)}", fontsize=9)
        axis.set_ylabel("real-time factor (lower is better)", fontsize=8)
        axis.grid(axis="y", alpha=0.3)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    side_by_side = min(len(handles), 3 * columns) or 1
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=side_by_side, fontsize=8)
    figure.suptitle(found.header.get("cpu", ""), fontsize=9)
    return figure


def new_figure(size: tuple[float, float]) -> Figure:
    """An empty picture of a size in inches, without a display.

    Raises:
        ToolchainError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ToolchainError("a picture needs matplotlib: pip install 'kokoro-tvm[bench]'") from error
    return Figure(figsize=size, layout="constrained")


def write_picture(path: Path, figure: Figure) -> None:
    """Writes ``.png``, ``.svg`` or whatever else matplotlib knows by its suffix."""
    with staged(path) as temporary:
        figure.savefig(temporary, dpi=130)
