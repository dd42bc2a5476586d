"""Every kernel of an artifact: its time, and the share of what this CPU can do that it reaches.

What it is: the virtual machine's own calls, timed one by one while an utterance is rendered, and joined with the operators they
were made for. What it is not: a sampling profiler, or a comparison of engines (``compare``).
"""

from __future__ import annotations

import json
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from kokoro_tvm.artifact import staged
from kokoro_tvm.bench.peaks import Meter, Peaks
from kokoro_tvm.bench.peers import Window
from kokoro_tvm.bench.utterance import utterance
from kokoro_tvm.bench.work import CONVOLUTION, PARTS, PRODUCT, REST, kind, operations
from kokoro_tvm.ops import tensor_names
from kokoro_tvm.runtime.alignment import frame_counts
from kokoro_tvm.runtime.synthesis import Synthesizer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kokoro_tvm.validate.operators import Plan

MACHINE = "virtual machine"
"""The kind of everything that is no kernel: allocation, shapes, checks."""

Plans = dict[str, dict[str, list["Plan"]]]
"""Component to operator to plans (``validate.operators``)."""


Clock = Callable[[], float]


@dataclass(frozen=True)
class Kernel:
    """All calls of one kernel within one rendering.

    Attributes:
        component: Where it is called.
        name: In the component's library.
        operator: What it computes.
        kind: ``convolution``, ``matrix product``, ``everything else`` or ``virtual machine``.
        shape: The operator's shape in words.
        calls: How many.
        seconds: For all of them, the median of the runs.
        operations: For all of them; 0 where none are counted.
        bytes: Arguments and results, each once.
    """

    component: str
    name: str
    operator: str
    kind: str
    shape: str
    calls: int
    seconds: float
    operations: int
    bytes: int

    @property
    def gflops(self) -> float:
        """Billions of operations a second."""
        return self.operations / self.seconds / 1e9

    @property
    def bandwidth(self) -> float:
        """GB/s, as if nothing were read twice."""
        return self.bytes / self.seconds / 1e9


@dataclass
class Profile:
    """One utterance, kernel by kernel.

    Attributes:
        header: Machine and artifact, by name.
        peaks: What the CPU can do at most, measured between the components.
        audio: Seconds of audio.
        kernels: Slowest first.
        plain: Component to seconds without a listener: what the kernels' sum has to be compared with.
    """

    header: dict[str, str]
    peaks: Peaks
    audio: float
    kernels: list[Kernel] = field(default_factory=list)
    plain: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Of all calls."""
        return sum(k.seconds for k in self.kernels)

    def share(self, *kinds: str) -> float:
        """Of the time, by kind."""
        return sum(k.seconds for k in self.kernels if k.kind in kinds) / self.seconds

    def of_peak(self, kernel: Kernel) -> float:
        """Share of the measured multiply-add peak."""
        return kernel.gflops / self.peaks.gflops

    def mean_of_peak(self, kernels: Sequence[Kernel]) -> float:
        """The time that the operations of some kernels need at the peak, by the time they take."""
        return sum(k.operations for k in kernels) / sum(k.seconds for k in kernels) / 1e9 / self.peaks.gflops

    def of_memory(self, kernel: Kernel) -> float:
        """Share of the measured memory bandwidth; above 1 where caches serve."""
        return kernel.bandwidth / self.peaks.memory


@dataclass
class _Call:
    name: str
    arguments: tuple[Any, ...]
    seconds: float


class _Recorder:
    """Hears of the calls of one component."""

    def __init__(self, clock: Clock) -> None:
        self.calls: list[_Call] = []
        self._clock = clock
        self._started = 0.0

    def __call__(self, name: str, before: bool, arguments: tuple[object, ...]) -> None:
        if before:
            self._started = self._clock()
            return
        seconds = self._clock() - self._started
        # Only sizes and lengths are kept: a tensor would keep its buffer from being used again.
        kept = () if name.startswith("vm.") else tuple(map(_described, arguments))
        self.calls.append(_Call(name, kept, seconds))


def _described(argument: object) -> Any:
    """Shape, bytes and, for a few whole numbers, values of an argument."""
    if not hasattr(argument, "shape") or not hasattr(argument, "__dlpack__"):
        return argument
    array = np.from_dlpack(argument)
    small = array.dtype == np.int64 and array.ndim == 1 and array.size <= 1024
    return tuple(array.shape), array.nbytes, array.tolist() if small else None


def profile(
    synthesizer: Synthesizer,
    plans: Plans,
    voice: np.ndarray,
    seconds: float,
    components: Sequence[str],
    runs: int,
    meter: Meter,
    header: dict[str, str],
    listener: Callable[[str], None] = lambda _: None,
    clock: Clock = time.perf_counter,
) -> Profile:
    """Renders an utterance ``runs`` times without and with a listener in the virtual machine.

    Before every component the multiply-add peak is measured: a CPU's speed is not the same from second to second.

    Args:
        synthesizer: An artifact, loaded, to be used for nothing else afterwards.
        plans: Its kernels, by ``validate.operators``.
        voice: float32 [510, 1, 256].
        seconds: Wanted length of the audio.
        components: Those to look into.
        runs: Of which the medians count.
        meter: Measures the peaks.
        header: See ``Profile``.
        listener: Told what goes on.
        clock: ``time.thread_time`` counts only what the calling thread computed: with one thread, a busy machine's figures can
            then be compared with each other.
    """
    engine = synthesizer.engine

    def durations(window: Window) -> np.ndarray:
        lengths = np.array([window.input_ids.shape[1]])
        (d_en,) = engine.run("bert", window.input_ids, lengths)
        return frame_counts(engine.run("duration", d_en, window.style[:, 128:].copy(), lengths)[1][0], 1.0)

    said = utterance(seconds, voice, engine.manifest.model.vocab, durations)
    plain: dict[str, list[float]] = defaultdict(list)
    run = engine.run

    def timed(name: str, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        meter.read()
        start = clock()
        result = run(name, *inputs)
        plain[name].append(clock() - start)
        return result

    def render() -> None:
        for w in said.windows:
            synthesizer.render(w.input_ids[0], w.style[0, :128], w.style[0, 128:])

    render()
    engine.run = timed  # type: ignore[method-assign]
    for i in range(runs):
        listener(f"whole components, run {i + 1} of {runs}")
        render()
    plain_times = {n: statistics.median(plain[n]) for n in components}
    recorders = {name: _Recorder(clock) for name in components}
    for name, recorder in recorders.items():
        engine.observe(name, recorder)
    rendered = []
    for i in range(runs):
        listener(f"kernels, run {i + 1} of {runs}")
        render()
        rendered.append({name: recorder.calls for name, recorder in recorders.items()})
        for recorder in recorders.values():
            recorder.calls = []
    engine.run = run  # type: ignore[method-assign]
    windows = len(said.windows)
    found = Profile(header, meter.peaks(), said.seconds)
    found.plain = {n: windows * seconds for n, seconds in plain_times.items()}
    for name in components:
        found.kernels += aggregated(name, [r[name] for r in rendered], plans[name])
    found.kernels.sort(key=lambda k: -k.seconds)
    return found


def aggregated(component: str, runs: Sequence[Sequence[_Call]], plans: dict[str, list[Plan]]) -> list[Kernel]:
    """Calls of several equal runs, joined by kernel."""
    made_for = {
        step.function: (plan, _base(step.function) if len(plan.steps) > 1 else None)
        for group in plans.values()
        for plan in group
        for step in plan.steps
    }
    # The extern serves every LSTM: its calls are told apart by the shapes of their weights.
    shared = {p.steps[0].function: p for p in plans.get("bilstm", ()) if len(p.steps) == 1}
    times: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * len(runs))
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    about: dict[tuple[str, str], tuple[str, str]] = {}
    for index, calls in enumerate(runs):
        for call in calls:
            plan, part = made_for.get(call.name, (None, None))
            if plan is None:
                key = (_base(call.name) if call.name.startswith("vm.") else call.name, "")
                about[key] = (key[0], MACHINE)
            elif part is not None and (plan.operator, part) not in PARTS:
                key = (call.name, plan.operator)
                about[key] = (part, REST)
                sums[key][2] += sum(a[1] for a in call.arguments if isinstance(a, tuple)) * (index == 0)
            else:
                names = _names(plan)
                shapes = _shapes(plan, names, call, call.name in shared)
                key = (call.name, _words(plan.operator, shapes, json.loads(plan.attributes)))
                about[key] = (plan.operator, kind(plan.operator, shapes))
                if index == 0:
                    lengths = _lengths(names, call)
                    attributes = {k: v for k, v in json.loads(plan.attributes).items() if k != "absent"}
                    sums[key][1] += operations(plan.operator, shapes, attributes, lengths, part)
                    sums[key][2] += sum(a[1] for a in call.arguments if isinstance(a, tuple))
            times[key][index] += call.seconds
            sums[key][0] += index == 0
    return [
        Kernel(component, key[0], about[key][0], about[key][1], key[1], sums[key][0], statistics.median(t), *sums[key][1:])
        for key, t in times.items()
    ]


def _base(name: str) -> str:
    """``conv1d`` for ``conv1d12``."""
    return re.sub(r"(?<=[a-z])_?\d+$", "", name.rpartition(".")[2])


def _names(plan: Plan) -> list[str]:
    """Argument names of the operator's tensors, lists repeated."""
    names = tensor_names(plan.operator, json.loads(plan.attributes)["absent"], len(plan.shapes))
    return [name.partition(".")[0] for name in names]


def _shapes(plan: Plan, names: Sequence[str], call: _Call, literal: bool) -> dict[str, Sequence[int | None]]:
    """Shapes by name; ``literal`` takes the call's own, for a function that reads its weights as they were exported."""
    if literal:
        return {n: a[0] for n, a in zip(names, call.arguments, strict=False) if isinstance(a, tuple)}
    return dict(zip(names, plan.shapes, strict=True))


def _lengths(names: Sequence[str], call: _Call) -> list[int]:
    """Valid rows of every sample; one entry a sample where the operator has no lengths."""
    for name, argument in zip(names, call.arguments, strict=False):
        if name == "lengths":
            return list(argument[2])
    # The first step of a plan gets the operator's own tensors; a style [B, D] has no lengths.
    return [1] * call.arguments[0][0][0]


def _words(operator: str, shapes: dict[str, Sequence[int | None]], attributes: dict[str, Any]) -> str:
    """What a kernel was specialised to, for people."""
    if operator == "conv1d":
        c_out, c_in, taps = shapes["weight"]
        parts = [f"{c_in}→{c_out}", f"k{taps}"]
        parts += [f"/{attributes['stride']}"] if attributes["stride"] > 1 else []
        parts += [f"d{attributes['dilation']}"] if attributes["dilation"] > 1 else []
        parts += [p for p in (attributes["prologue"], attributes["epilogue"]) if p != "none"]
        return " ".join(parts + [f"+{n}" for n in ("residual", "residual2") if n in shapes])
    if operator == "conv_transpose1d":
        c_in, c_out, taps = shapes["weight"]
        return f"{c_in}→{c_out} k{taps} ×{attributes['stride']}"
    if operator == "bilstm":
        return f"{shapes['w_ih'][2]}→2×{shapes['w_hh'][2]}"
    first = next(iter(shapes.values()))
    return f"{first[-1]}" if len(first) > 2 and first[-1] else ""


def made_up_voice() -> np.ndarray:
    """float32 [510, 1, 256], spread like published voices: kernels take no notice of what is said."""
    rng = np.random.default_rng(0)
    return (rng.normal(0, 0.16, (1, 1, 256)) + np.zeros((510, 1, 1))).astype(np.float32)


# --- what is shown -----------------------------------------------------------------------------------------------------------


def kernels_table(found: Profile, most: int) -> Table:
    """The slowest kernels."""
    table = Table(title=f"{found.audio:.2f} s of audio, {found.peaks.threads} threads: kernels", title_justify="left")
    for column in ("component", "kernel", "shape"):
        table.add_column(column, no_wrap=True)
    for column in ("calls", "ms", "time", "GFLOP/s", "of peak", "GB/s", "of memory"):
        table.add_column(column, justify="right", no_wrap=True)
    for k in found.kernels[:most]:
        compute = (f"{k.gflops:.1f}", f"{found.of_peak(k):.0%}") if k.operations else ("–", "–")
        memory = (f"{k.bandwidth:.1f}", f"{found.of_memory(k):.0%}") if k.bytes else ("–", "–")
        row = (k.component, k.name, k.shape, str(k.calls), f"{1e3 * k.seconds:.2f}", f"{k.seconds / found.seconds:.1%}")
        table.add_row(*row, *compute, *memory)
    rest = found.kernels[most:]
    if rest:
        seconds = sum(k.seconds for k in rest)
        calls = str(sum(k.calls for k in rest))
        table.add_row(f"{len(rest)} more", "", "", calls, f"{1e3 * seconds:.2f}", f"{seconds / found.seconds:.1%}")
    return table


def kinds_table(found: Profile) -> Table:
    """Sums by component, kind and operator."""
    table = Table(title="By operator", title_justify="left")
    for column in ("component", "kind", "operator"):
        table.add_column(column, no_wrap=True)
    for column in ("calls", "ms", "time", "RTF", "GFLOP/s", "of peak"):
        table.add_column(column, justify="right", no_wrap=True)

    def row(names: tuple[str, str, str], kernels: Sequence[Kernel]) -> None:
        seconds = sum(k.seconds for k in kernels)
        work = sum(k.operations for k in kernels)
        rate = work / seconds / 1e9 if seconds else 0.0
        compute = (f"{rate:.1f}", f"{found.mean_of_peak(kernels):.0%}") if work else ("–", "–")
        times = (f"{1e3 * seconds:.2f}", f"{seconds / found.seconds:.1%}", f"{seconds / found.audio:.4f}")
        table.add_row(*names, str(sum(k.calls for k in kernels)), *times, *compute)

    for component in dict.fromkeys(k.component for k in found.kernels):
        inside = [k for k in found.kernels if k.component == component]
        row((component, "", ""), inside)
        operators = dict.fromkeys((k.kind, k.operator if k.kind != MACHINE else "") for k in inside)
        for what, operator in operators:
            row(("", what, operator), [k for k in inside if k.kind == what and operator in ("", k.operator)])
    table.add_section()
    for what in (CONVOLUTION, PRODUCT, REST, MACHINE):
        if any(k.kind == what for k in found.kernels):
            row(("all", what, ""), [k for k in found.kernels if k.kind == what])
    row(("all", "", ""), found.kernels)
    return table


def summary(found: Profile) -> list[tuple[str, str]]:
    """What the issue is about, in a few lines."""
    peaks = found.peaks
    convolutions = [k for k in found.kernels if k.kind == CONVOLUTION]
    rows = [
        *found.header.items(),
        ("multiply-add peak, measured", f"{peaks.gflops:.1f} GFLOP/s on {peaks.threads} threads (best {peaks.best:.1f})"),
        ("bandwidth, measured", f"{peaks.memory:.1f} GB/s from memory, {peaks.cache:.1f} GB/s from level-2 caches"),
        ("neither convolution nor matrix product", f"{found.share(REST, MACHINE):.1%} of the time"),
    ]
    if convolutions:
        work, seconds = sum(k.operations for k in convolutions), sum(k.seconds for k in found.kernels)
        rows.append(("time × peak / direct convolutions", f"{seconds * peaks.gflops * 1e9 / work:.2f}"))
    plain = sum(found.plain.values())
    rows.append(("components without a listener", f"{1e3 * plain:.1f} ms (kernels add up to {1e3 * found.seconds:.1f} ms)"))
    return rows


def as_dict(found: Profile) -> dict[str, Any]:
    """For JSON: the records, and each kernel's rates and shares."""
    kernels = [
        asdict(k) | {"gflops": k.gflops, "of_peak": found.of_peak(k), "gb_s": k.bandwidth, "of_memory": found.of_memory(k)}
        for k in found.kernels
    ]
    shares = {what: found.share(what) for what in (CONVOLUTION, PRODUCT, REST, MACHINE)}
    return {**asdict(found), "kernels": kernels, "seconds": found.seconds, "shares": shares}


def write_json(path: Path, found: Profile) -> None:
    """Writes ``as_dict``."""
    with staged(path) as temporary:
        temporary.write_text(json.dumps(as_dict(found), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def roofline(found: Profile) -> Figure:
    """Operations a second over operations a byte: a mark for every kernel, as large as its time, under the measured roofs.

    Raises:
        ToolchainError: matplotlib is not installed.
    """
    from kokoro_tvm.bench.report import new_figure

    figure = new_figure((8, 5.5))
    axis = figure.subplots()
    counted = [k for k in found.kernels if k.operations and k.bytes]
    for i, operator in enumerate(dict.fromkeys(k.operator for k in counted)):
        marks = [k for k in counted if k.operator == operator]
        axis.scatter(
            [k.operations / k.bytes for k in marks], [k.gflops for k in marks],
            s=[20 + 3000 * k.seconds / found.seconds for k in marks], alpha=0.5, label=operator, color=f"C{i}",
        )  # fmt: skip
    intensities = np.geomspace(0.1, 2000, 200)
    for name, rate, style in (("memory", found.peaks.memory, "-"), ("level-2 cache", found.peaks.cache, "--")):
        roof = np.minimum(intensities * rate, found.peaks.gflops)
        axis.plot(intensities, roof, style, color="black", lw=1, label=f"{name}, {rate:.0f} GB/s")
    axis.set(
        xscale="log", yscale="log", xlabel="operations per byte of arguments and results", ylabel="GFLOP/s",
        title=f"{found.header.get('cpu', '')}, {found.peaks.threads} threads, {found.audio:.1f} s of audio",
    )  # fmt: skip
    axis.axhline(found.peaks.gflops, color="grey", lw=0.5)
    axis.grid(which="both", alpha=0.2)
    legend = axis.legend(fontsize=8)
    for handle in legend.legend_handles[: len({k.operator for k in counted})]:
        handle.set_sizes([40])
    return figure
