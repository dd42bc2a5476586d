"""Every stage of one utterance against eager kokoro in float64.

What it is: two passes over the pipeline. Isolated: every stage gets the reference's inputs, rounded to float32, and the truth is
computed from the same rounded inputs, so that a stage answers for its own error only. Chained: every stage gets what the one
before it made, as in use. Both in two hops, eager to our rewrite (in float64: is it the same model?) and rewrite to compiled
(in float32: how exact are the kernels?), beside what float32 PyTorch loses on the same tensor.
What it is not: the place of floors (``tolerances``) or of pictures (``report``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from kokoro_tvm.reference import components as eager
from kokoro_tvm.reference.trace import Trace, trace
from kokoro_tvm.runtime import alignment
from kokoro_tvm.runtime.noise import source_noise
from kokoro_tvm.stages import COMPONENTS
from kokoro_tvm.validate.metrics import Measurement, branch_flips, compare, compare_phase, missing, snr_db
from kokoro_tvm.validate.published import on_published_weights
from kokoro_tvm.validate.subjects import Eager, Rewrite, Subject, Tensors, cropped, length_of
from kokoro_tvm.validate.tolerances import CHAINED, EXACT, REWRITE_CHAINED, STAGES, Stage, Tolerance, for_dtype

STATIC, UNBOUNDED, COMPILED, SINGLE = "static with lengths", "static without lengths", "compiled", "float32 PyTorch"
"""The regimes that are measured against the dynamic reference (eager float64 at the utterance's own length)."""

PHASES = {"har_phase": "har_magnitude", "phase": "spectrum"}
"""Tensors that are angles, and the magnitudes that weight them."""

Listener = Callable[[str], None]
"""Told what begins."""


@dataclass(frozen=True)
class Utterance:
    """What is spoken.

    Attributes:
        name: For reports.
        phonemes: Symbols, for reports.
        input_ids: int64 [1, N].
        style: float32 [1, 256].
        speed: Divides the durations.
        seed: Of the source's noise, as the runtime draws it.
        window: Index in its text, which gives it noise of its own.
    """

    name: str
    phonemes: str
    input_ids: torch.Tensor
    style: torch.Tensor
    speed: float = 1.0
    seed: int = 0
    window: int = 0

    def noise(self, frames: int) -> torch.Tensor:
        """Standard normal float32 [1, 600·M, 9]."""
        return torch.from_numpy(source_noise(self.seed, frames, window=self.window))[None]

    @property
    def styles(self) -> Tensors:
        """The halves of the style by the names that stages ask for."""
        return {"prosody": self.style[:, eager.PREDICTOR_STYLE], "timbre": self.style[:, eager.DECODER_STYLE]}


@dataclass(frozen=True)
class Record:
    """One tensor of one stage.

    Attributes:
        stage: The stage's name.
        tensor: The tensor's name in ``reference.trace``.
        mode: ``isolated`` or ``chained``.
        tolerance: What the compiled tensor may lose.
        rewrite: What the rewrite may lose; None where it is not judged.
        measured: Regime to its measurement against the dynamic reference.
        hop_db: Second hop: the compiled tensor against the rewrite's.
        note: What else a reader should know.
    """

    stage: str
    tensor: str
    mode: str
    tolerance: Tolerance
    rewrite: Tolerance | None
    measured: Mapping[str, Measurement]
    hop_db: float = math.nan
    note: str = ""

    @property
    def passed(self) -> bool:
        """Both hops; fails closed."""
        first = self.rewrite is None or self.rewrite.passes(self.measured.get(STATIC))
        return first and self.tolerance.passes(self.measured.get(COMPILED), self.measured.get(SINGLE))

    @property
    def floor_db(self) -> float:
        """What the compiled tensor had to reach."""
        return self.tolerance.floor(self.measured.get(SINGLE))


@dataclass
class Report:
    """Everything that was found about one utterance.

    Attributes:
        utterance: What was spoken.
        records: In pipeline order, isolated then chained.
        truth: The float64 trace.
        chained: Regime to its chained tensors.
        context: Figures that put others in proportion, by name, in dB.
        disagreements: Outputs that the kernels, put together, do not give as the artifact does; there should be none.
        frames: What the decoder was given of the utterance; None for all of it.
    """

    utterance: Utterance
    records: list[Record]
    truth: Trace
    chained: dict[str, Tensors]
    context: dict[str, float] = field(default_factory=dict)
    disagreements: list[str] = field(default_factory=list)
    frames: int | None = None

    @property
    def passed(self) -> bool:
        """Whether there is something, all of it passed, and it speaks of the artifact."""
        return bool(self.records) and not self.disagreements and all(r.passed for r in self.records)

    @property
    def failures(self) -> list[Record]:
        """Those that did not pass, in pipeline order."""
        return [r for r in self.records if not r.passed]


@dataclass(frozen=True)
class Subjects:
    """Who computes.

    Attributes:
        truth: Eager float64.
        single: Eager float32, the yardstick.
        static: Rewrite in float64, padded, with lengths.
        unbounded: The same without lengths.
        compiled: What is judged.
        dtype: What its decoder's convolutions multiply.
        published: Whether the weights are the published ones and the kernels our CPU's, of which more is known.
        yardstick: Whether nothing may lie far behind float32 PyTorch. Kernels for GPUs add up plainly, in one order; PyTorch's
            sums are blocked, and ours for CPUs compensated where it matters.
    """

    truth: Eager
    single: Eager
    static: Subject
    unbounded: Subject
    compiled: Subject
    dtype: str = "float32"
    published: bool = False
    yardstick: bool = True

    @classmethod
    def around(
        cls,
        double: Eager,
        single: Eager,
        compiled: Subject,
        spare: float = 0.1,
        dtype: str = "float32",
        published: bool = False,
        yardstick: bool = True,
    ) -> Subjects:
        """The usual ones; ``spare`` is the padding of the static regimes as a fraction of the utterance."""
        static = Rewrite(double.model, spare)
        unbounded = Rewrite(double.model, spare, lengths=False, modules=static.modules)
        return cls(double, single, static, unbounded, compiled, dtype, published, yardstick)

    def tolerance(self, stage: str, tensor: str, mode: str, tolerance: Tolerance) -> Tolerance:
        """What the compiled tensor may lose, where ``tolerance`` is what any float32 build may with any weights."""
        rounded = for_dtype(tolerance, self.dtype)
        if self.published and rounded is tolerance:
            return on_published_weights(stage, tensor, mode, tolerance)
        return rounded if self.yardstick else replace(rounded, behind_db=math.inf)


def validate(
    subjects: Subjects,
    utterance: Utterance,
    listener: Listener | None = None,
    components: Sequence[str] = tuple(COMPONENTS),
    frames: int | None = None,
    truth: Trace | None = None,
) -> Report:
    """Compares every stage.

    Args:
        subjects: Who computes.
        utterance: What.
        listener: Told of each stage as it begins.
        components: Those to judge. Only all of them make a chain.
        frames: Give the decoder so many of the utterance's frames, if it has more.
        truth: ``reference`` of the utterance, where it is known already.
    """
    say = listener or (lambda _: None)
    if truth is None:
        say("reference in float64")
        truth = reference(subjects, utterance)
    frames = frames if frames is not None and frames < truth.frames else None
    records: list[Record] = []
    for stage in STAGES:
        if stage.component in components:
            say(f"{stage.name}, isolated")
            records += isolated(subjects, stage, reference_inputs(stage, truth, utterance, frames))
    decodes = "decoder" in components
    if decodes and frames is not None:
        truth = Trace({**truth, "audio": _decoded(subjects.truth, truth, utterance, frames)}, truth.dtype)
    chains: dict[str, Tensors] = {}
    if set(components) == set(COMPONENTS):
        for regime, subject in ((STATIC, subjects.static), (SINGLE, subjects.single), (COMPILED, subjects.compiled)):
            say(f"{regime}, chained")
            chains[regime] = chain(subject, utterance, frames)
        records += judge_chained(subjects, truth, chains, utterance)
    say("the reference's own ambiguity")
    context = _context(subjects.truth, truth, utterance, frames) if decodes else {}
    disagreements = list(getattr(subjects.compiled, "disagreements", ()))
    return Report(utterance, records, truth, chains, context, disagreements, frames if decodes else None)


def reference(subjects: Subjects, utterance: Utterance) -> Trace:
    """The truth about an utterance."""
    return trace(subjects.truth.model, utterance.input_ids, utterance.style, utterance.noise, utterance.speed)


def first_frames(stage: Stage, inputs: Tensors, frames: int | None) -> Tensors:
    """A stage's inputs; the decoder's for so many frames only, unless there are fewer or None is asked for."""
    if frames is None or stage.component != "decoder":
        return inputs
    total = length_of(stage, inputs)
    return {name: cropped(name, tensor, min(frames, total), total) for name, tensor in inputs.items()}


def reference_inputs(
    stage: Stage, truth: Mapping[str, torch.Tensor], utterance: Utterance, frames: int | None = None
) -> Tensors:
    """The stage's inputs as the truth computes them, rounded to float32; see ``first_frames``."""
    available = {**truth, **utterance.styles, "input_ids": utterance.input_ids, "x": _last_block(truth)}
    if "noise" in stage.inputs:
        available["noise"] = utterance.noise(truth["asr"].shape[2])
    inputs = {n: available[n].float() if available[n].is_floating_point() else available[n] for n in stage.inputs}
    return first_frames(stage, inputs, frames)


def _last_block(truth: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return truth[max(n for n in truth if n.startswith("decoder.decode."))]


# --- isolated ----------------------------------------------------------------------------------------------------------------


def isolated(subjects: Subjects, stage: Stage, inputs: Tensors) -> list[Record]:
    """Compares one stage on given inputs in every regime."""
    expected = subjects.truth.run(stage, inputs)
    regimes = {STATIC: subjects.static, UNBOUNDED: subjects.unbounded, COMPILED: subjects.compiled, SINGLE: subjects.single}
    if stage.name == "decoder":
        # Its parts have shown what ignoring lengths does; it is the dearest run of all.
        del regimes[UNBOUNDED]
    found = {regime: subject.run(stage, inputs) for regime, subject in regimes.items()}
    names = [name for name in expected if not name.startswith("ups.")]
    return [_isolated_record(subjects, stage, name, expected, found) for name in names]


def _isolated_record(
    subjects: Subjects, stage: Stage, name: str, expected: Tensors, found: Mapping[str, Tensors]
) -> Record:
    measured = {regime: measure(name, tensors.get(name), expected) for regime, tensors in found.items()}
    tolerance = stage.tolerance(name)
    assert tolerance is not None
    # The second hop asks how far the kernels are from the program they were compiled from.
    hop = measure(name, found[COMPILED].get(name), {**expected, **found[STATIC]}).snr_db if name in found[STATIC] else math.nan
    tolerance = subjects.tolerance(stage.name, name, "isolated", tolerance)
    return Record(stage.name, name, "isolated", tolerance, stage.rewrite, measured, hop, _flips(name, found, expected))


def measure(name: str, actual: torch.Tensor | None, expected: Mapping[str, torch.Tensor]) -> Measurement:
    """Compares a tensor with the truth of its name, as angles if it is one."""
    truth = expected[name].numpy()
    if actual is None:
        return missing(truth)
    if name in PHASES:
        return compare_phase(actual.numpy(), truth, expected[PHASES[name]].numpy())
    return compare(actual.numpy(), truth)


def _flips(name: str, found: Mapping[str, Tensors], expected: Tensors) -> str:
    """Bins whose phase is right modulo 2π but a turn away, which a network sees."""
    if name not in PHASES:
        return ""
    count = {r: branch_flips(t[name].numpy(), expected[name].numpy()) for r, t in found.items() if name in t}
    return "; ".join(f"{n} bins a turn away ({regime})" for regime, n in count.items() if n and regime in (COMPILED, SINGLE))


# --- chained -----------------------------------------------------------------------------------------------------------------


def chain(subject: Subject, utterance: Utterance, frames: int | None = None) -> Tensors:
    """Runs the components one after the other, each on what the one before it made; the decoder on so many frames."""
    stages = {s.name: s for s in STAGES}
    made: Tensors = {"input_ids": utterance.input_ids, **utterance.styles}

    def run(name: str) -> None:
        stage = stages[name]
        made.update(subject.run(stage, first_frames(stage, {n: made[n] for n in stage.inputs}, frames)))

    run("bert")
    run("duration")
    made["pred_dur"] = frame_counts(made["duration"], utterance.speed)
    made["en"] = made["d"].transpose(1, 2).repeat_interleave(made["pred_dur"], dim=2)
    run("f0n")
    run("text_encoder")
    made["asr"] = made["t_en"].repeat_interleave(made["pred_dur"], dim=2)
    made["noise"] = utterance.noise(made["asr"].shape[2])
    run("decoder")
    return {name: made[name] for name in CHAINED if name in made}


def frame_counts(duration: torch.Tensor, speed: float) -> torch.Tensor:
    """``pred_dur`` int64 [N] from durations [1, N]; float32 as the runtime rounds, float64 as eager kokoro does."""
    if duration.dtype == torch.float32:
        return torch.from_numpy(alignment.frame_counts(duration[0].numpy(), speed))
    return torch.round(duration[0] / speed).clamp(min=1).long()


def judge_chained(
    subjects: Subjects, truth: Mapping[str, torch.Tensor], chains: Mapping[str, Tensors], utterance: Utterance
) -> list[Record]:
    """Compares the chained tensors with the trace."""
    expected = {**truth, "samples": torch.tensor([truth["audio"].shape[1]])}
    found = {regime: _with_sample_count(tensors) for regime, tensors in chains.items()}
    records = []
    for name, (stage, tolerance) in CHAINED.items():
        measured = {regime: measure(name, tensors.get(name), expected) for regime, tensors in found.items()}
        note = ""
        if name == "pred_dur":
            note = "; ".join(duration_flips(truth, found[COMPILED], utterance.speed))
        static = found[STATIC].get(name)
        hop = math.nan if static is None else measure(name, found[COMPILED].get(name), {**expected, name: static}).snr_db
        rewrite = EXACT if tolerance is EXACT else REWRITE_CHAINED
        allowed = subjects.tolerance(stage, name, "chained", tolerance)
        records.append(Record(stage, name, "chained", allowed, rewrite, measured, hop, note))
    return records


def _with_sample_count(tensors: Tensors) -> Tensors:
    """``samples``: how many there are, which has to be 600 for every frame."""
    return {**tensors, "samples": torch.tensor([tensors["audio"].shape[1]])} if "audio" in tensors else dict(tensors)


def duration_flips(truth: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor], speed: float) -> Iterator[str]:
    """One line per token whose frame count differs: the two counts, and how far the truth is from the half between them."""
    actual, expected = found.get("pred_dur"), truth["pred_dur"]
    if actual is None or actual.shape != expected.shape:
        return
    for token in torch.nonzero(actual != expected).flatten().tolist():
        exact = float(truth["duration"][0, token]) / speed
        distance = abs(exact - math.floor(exact) - 0.5)
        yield f"token {token}: {int(actual[token])} frames for {int(expected[token])} ({exact:.7f}, {distance:.1e} from .5)"


# --- context -----------------------------------------------------------------------------------------------------------------


def _decoded(judge: Eager, truth: Trace, utterance: Utterance, frames: int | None, canonical: bool = True) -> torch.Tensor:
    """Audio [1, 600·frames] from the truth's F0, N and text features, as they are."""
    (stage,) = (s for s in STAGES if s.name == "decoder")
    available = {**truth, **utterance.styles, "noise": utterance.noise(truth.frames)}
    inputs = first_frames(stage, {n: available[n] for n in stage.inputs}, frames)
    return eager.run_decoder(judge.model, *inputs.values(), canonical=canonical).reshape(1, -1)


def _context(judge: Eager, truth: Trace, utterance: Utterance, frames: int | None) -> dict[str, float]:
    """What an equally valid choice costs: the sign that the FFT gives to zeros of the source's first frame."""
    accidental = _decoded(judge, truth, utterance, frames, canonical=False)
    return {"float64 eager, FFT's own signs in frame 0": snr_db(accidental.numpy(), truth["audio"].numpy())}


def find(records: Sequence[Record], stage: str, tensor: str, mode: str) -> Record:
    """The one record of these names."""
    return next(r for r in records if (r.stage, r.tensor, r.mode) == (stage, tensor, mode))
