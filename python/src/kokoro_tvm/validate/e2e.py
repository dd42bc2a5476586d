"""The waveform of a text against eager kokoro in float64, as a listener would meet it.

What it is: the artifact runs freely from text to samples (its own durations, its own F0), and so do float32 PyTorch and, for
scale, float64 PyTorch with another noise seed. Each is compared with float64 PyTorch: signal-to-noise ratio, distance of log-mel
spectra, F0 on voiced frames, voicing, duration and loudness.
What it is not: a place to find out where an error comes from (``steps``, ``bisect``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch

from kokoro_tvm.reference import components as eager
from kokoro_tvm.reference.model import ReferenceModel
from kokoro_tvm.reference.trace import trace
from kokoro_tvm.runtime.synthesis import Synthesizer
from kokoro_tvm.validate.metrics import snr_db
from kokoro_tvm.validate.perceptual import log_mel_distance
from kokoro_tvm.validate.steps import Utterance
from kokoro_tvm.validate.tolerances import AUDIO_CHAINED

COMPILED, SINGLE, RESEEDED = "compiled", "float32 PyTorch", "float64, another noise seed"
VOICED_HZ = 10.0
"""kokoro's ``SineGen.voiced_threshold``."""

_CLOSER = "closer than float32, dB"
_MEDIAN_SNR, _MEDIAN_ADVANTAGE = "median SNR, dB", "median advantage over float32 PyTorch, dB"


@dataclass(frozen=True)
class Rendering:
    """A text, spoken.

    Attributes:
        samples: [600·M], 24 kHz, windows one after the other.
        f0: [2M], Hz.
        durations: int64 [N], frames per token.
    """

    samples: np.ndarray
    f0: np.ndarray
    durations: np.ndarray


@dataclass(frozen=True)
class Distance:
    """How far a rendering is from the truth.

    Attributes:
        snr_db: Of the waveform; NaN if the number of samples differs.
        log_mel_db: Root mean square difference of 80-band log-mel spectra over the frames both have, dB.
        f0_cents: Root mean square difference on frames voiced in both; 0 if there is none in either, NaN if only one has them.
        voicing: Fraction of F0 values on whose voicing both agree.
        samples: Samples more than the truth.
        loudness_db: Difference of root mean squares, dB.
    """

    snr_db: float
    log_mel_db: float
    f0_cents: float
    voicing: float
    samples: int
    loudness_db: float


@dataclass(frozen=True)
class Gate:
    """One condition on the compiled rendering: a figure, its limit, and why the limit is what it is."""

    name: str
    value: float
    limit: str
    passed: bool
    reason: str


@dataclass(frozen=True)
class Result:
    """One text.

    Attributes:
        utterances: Its windows.
        renderings: ``float64`` and whatever was compared with it.
        distances: Name to its distance from float64.
        gates: The conditions on the compiled one.
    """

    utterances: Sequence[Utterance]
    renderings: Mapping[str, Rendering]
    distances: Mapping[str, Distance]
    gates: Sequence[Gate]

    @property
    def passed(self) -> bool:
        """Whether there are gates, and every one was passed."""
        return bool(self.gates) and all(g.passed for g in self.gates)

    @property
    def advantage_db(self) -> float:
        """How much closer to float64 the artifact is than float32 PyTorch."""
        return self.distances[COMPILED].snr_db - self.distances[SINGLE].snr_db


def validate(
    double: ReferenceModel,
    single: ReferenceModel,
    render: Callable[[Utterance], Rendering],
    utterances: Sequence[Utterance],
    listener: Callable[[str], None] | None = None,
    dtype: str = "float32",
) -> Result:
    """Speaks the windows of a text in every way and compares.

    Args:
        double: Eager, float64.
        single: Eager, float32.
        render: What is judged: a window to its rendering.
        utterances: The windows.
        listener: Told of each rendering as it begins.
        dtype: What the judged decoder's convolutions multiply.
    """
    ways: dict[str, Callable[[Utterance], Rendering]] = {
        "float64": lambda u: render_eager(double, u),
        COMPILED: render,
        SINGLE: lambda u: render_eager(single, u),
        RESEEDED: lambda u: render_eager(double, replace(u, seed=u.seed + 1)),
    }
    renderings = {}
    for name, way in ways.items():
        if listener:
            listener(name)
        renderings[name] = joined([way(u) for u in utterances])
    truth = renderings["float64"]
    distances = {name: distance(r, truth) for name, r in renderings.items() if r is not truth}
    return Result(utterances, renderings, distances, gates(distances, dtype))


def render_eager(model: ReferenceModel, utterance: Utterance) -> Rendering:
    """Eager kokoro, in the dtype of ``model``."""
    tensors = trace(model, utterance.input_ids, utterance.style, utterance.noise, utterance.speed)
    return Rendering(tensors["audio"][0].numpy(), tensors["f0"][0].numpy(), tensors["pred_dur"].numpy())


def render_artifact(synthesizer: Synthesizer, utterance: Utterance) -> Rendering:
    """The artifact, as the runtime runs it."""
    timbre, prosody = (utterance.style[0, part].numpy() for part in (eager.DECODER_STYLE, eager.PREDICTOR_STYLE))
    spoken = synthesizer.render(
        utterance.input_ids[0].numpy(), timbre, prosody, speed=utterance.speed, seed=utterance.seed, window=utterance.window
    )
    return Rendering(spoken.samples, spoken.stages["f0"][0, : 2 * int(spoken.durations.sum())], spoken.durations)


def joined(parts: Sequence[Rendering]) -> Rendering:
    """Windows one after the other."""
    return Rendering(*(np.concatenate([getattr(p, f) for p in parts]) for f in ("samples", "f0", "durations")))


def distance(actual: Rendering, truth: Rendering) -> Distance:
    """Compares two renderings."""
    shared = min(len(actual.f0), len(truth.f0))
    voiced = [r.f0[:shared] > VOICED_HZ for r in (actual, truth)]
    return Distance(
        snr_db=snr_db(actual.samples, truth.samples),
        log_mel_db=log_mel_distance(actual.samples, truth.samples),
        f0_cents=_cents(actual.f0[:shared], truth.f0[:shared], *voiced),
        voicing=float((voiced[0] == voiced[1]).mean()) if shared else math.nan,
        samples=len(actual.samples) - len(truth.samples),
        loudness_db=_level_db(actual.samples) - _level_db(truth.samples),
    )


def _cents(actual: np.ndarray, truth: np.ndarray, actual_voiced: np.ndarray, truth_voiced: np.ndarray) -> float:
    if not (actual_voiced.any() or truth_voiced.any()):
        return 0.0
    both = actual_voiced & truth_voiced
    if not both.any():
        return math.nan
    cents = 1200 * np.log2(actual[both].astype(np.float64) / truth[both])
    return float(np.sqrt(np.mean(cents**2)))


def _level_db(samples: np.ndarray) -> float:
    power = float(np.mean(np.square(samples, dtype=np.float64))) if samples.size else math.nan
    return 10 * math.log10(power) if power > 0 else -math.inf


def gates(distances: Mapping[str, Distance], dtype: str = "float32") -> list[Gate]:
    """The conditions on the compiled rendering; each fails closed.

    Who asks for bfloat16 products asks for speech that sounds the same, not for float32's digits: what rounding changes has to
    stay below what the noise seed changes.
    """
    d, single, other = distances[COMPILED], distances[SINGLE], distances[RESEEDED]
    floor = AUDIO_CHAINED.floor_db
    exact = dtype == "float32"
    share, least = (2, "half of what another seed gives") if exact else (1, "bfloat16 must change less than another seed does")
    mel_limit = other.log_mel_db / share
    # Float32 PyTorch cannot be compared with where its own durations differ from the truth's.
    advantage = d.snr_db - single.snr_db if not math.isnan(single.snr_db) else d.snr_db
    conditions = [
        Gate("samples", d.samples, "= 0", d.samples == 0, "durations are whole numbers"),
        Gate("SNR, dB", d.snr_db, f">= {floor:.0f}", d.snr_db >= floor, AUDIO_CHAINED.reason),
        Gate(_CLOSER, advantage, ">= 0", advantage >= 0, "the source's phase is exact here and not there"),
        Gate("log-mel, dB", d.log_mel_db, f"<= {mel_limit:.2f}", d.log_mel_db <= mel_limit, least),
        Gate("F0, cents", d.f0_cents, "<= 1", d.f0_cents <= 1, "a fifth of what trained listeners notice"),
        Gate("voicing", d.voicing, ">= 0.99", d.voicing >= 0.99, "F0 near 10 Hz may fall on either side"),
        Gate("loudness, dB", d.loudness_db, "within 0.1", abs(d.loudness_db) <= 0.1, "a tenth of what listeners notice"),
    ]
    return [c for c in conditions if exact or c.name != _CLOSER]


ENOUGH = 8
"""Texts from which on a median says something: single bins that flip move one text by 10 to 40 dB."""


def median_gates(results: Sequence[Result]) -> list[Gate]:
    """Conditions on the medians over texts, for a float32 build of the published weights; none for a few texts."""
    if len(results) < ENOUGH:
        return []
    found = summary(results)
    return [
        Gate(name, found[name], f">= {least:g}", found[name] >= least, reason)
        for name, least, reason in (
            (_MEDIAN_SNR, 45.0, "above what float32 PyTorch reaches, whose median is 42 dB on these weights"),
            (_MEDIAN_ADVANTAGE, 15.0, "the source's phase and F0 are what the sums are compensated for"),
        )
    ]


def summary(results: Sequence[Result]) -> dict[str, float]:
    """Medians over texts, where there are several."""
    advantages = [r.advantage_db for r in results if not math.isnan(r.advantage_db)]
    return {
        "texts": len(results),
        _MEDIAN_SNR: float(np.median([r.distances[COMPILED].snr_db for r in results])),
        _MEDIAN_ADVANTAGE: float(np.median(advantages)) if advantages else math.nan,
    }


def as_dict(result: Result) -> dict[str, object]:
    """Figures without samples, for JSON."""
    return {
        "phonemes": [u.phonemes for u in result.utterances],
        "distances": {name: asdict(d) for name, d in result.distances.items()},
        "gates": [asdict(g) for g in result.gates],
        "passed": result.passed,
    }


def tensor_rendering(tensors: Mapping[str, torch.Tensor]) -> Rendering:
    """From named tensors of one utterance, as ``steps`` keeps them."""
    f0, durations = tensors["f0"], tensors["pred_dur"]
    return Rendering(tensors["audio"].reshape(-1).numpy(), f0.reshape(-1).numpy(), durations.numpy())
