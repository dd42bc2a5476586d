"""Can it be understood, and does it sound the same? Whole sentences, judged by what is heard.

What it is: sentences spoken by the artifact, by eager float32 PyTorch and by eager float64 from the same phonemes, voice and
noise; a recogniser writes down each, everything is compared with float64, and gates hold it to what listeners do not notice.
What it is not: a place to find out where an error comes from (``steps``, ``bisect``), nor the waveform's signal-to-noise ratio
(``e2e``): a listener has no reference.
"""

from __future__ import annotations

import importlib.resources
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from kokoro_tvm.errors import InputError
from kokoro_tvm.reference.model import ReferenceModel
from kokoro_tvm.validate.e2e import COMPILED, RESEEDED, SINGLE, Gate, Rendering, joined, render_eager
from kokoro_tvm.validate.listening import Impression, Job, Likeness, Recording, Sound
from kokoro_tvm.validate.recogniser import Transcript, word_error_rate
from kokoro_tvm.validate.rounding import half_products
from kokoro_tvm.validate.steps import Utterance

DOUBLE = "float64"
"""The truth."""
HALF = "float64, products as fp16"
"""See ``rounding``."""
ALSO = ("another-seed", "fp16")
"""What can be said for scale: float64 with another noise seed; float64 with the decoder's factors rounded as on Metal."""


@dataclass(frozen=True)
class Line:
    """What is to be said, and by whom.

    Attributes:
        text: English.
        voice: Its name, for reports.
        utterances: Its windows.
    """

    text: str
    voice: str
    utterances: Sequence[Utterance]


@dataclass(frozen=True)
class Result:
    """A line as it was said in every way, and what was heard."""

    line: Line
    renderings: Mapping[str, Rendering]
    impression: Impression

    @property
    def sounds(self) -> Mapping[str, Sound]:
        """What each rendering sounds like."""
        return self.impression.sounds

    @property
    def likeness(self) -> Mapping[str, Likeness]:
        """How far each rendering is from float64."""
        return self.impression.likeness


def sentences(count: int | None = None) -> list[str]:
    """The first sentences of this package, or all; none needs a word that the recogniser does not know.

    Raises:
        InputError: There are not so many.
    """
    known = importlib.resources.files(__package__).joinpath("sentences.txt").read_text(encoding="utf-8").splitlines()
    if count is not None and not 1 <= count <= len(known):
        raise InputError(f"--sentences must be 1 to {len(known)}, got {count}")
    return known[:count]


def speak(
    double: ReferenceModel,
    single: ReferenceModel,
    render: Callable[[Utterance], Rendering],
    line: Line,
    also: Sequence[str] = (),
) -> dict[str, Rendering]:
    """Says a line in every way.

    Args:
        double: Eager, float64.
        single: Eager, float32.
        render: What is judged.
        line: The line.
        also: Of ``ALSO``: ways that are shown for scale, and not judged.
    """
    ways: dict[str, Callable[[Utterance], Rendering]] = {
        COMPILED: render,
        SINGLE: lambda u: render_eager(single, u),
        DOUBLE: lambda u: render_eager(double, u),
    }
    further = {
        "another-seed": (RESEEDED, lambda u: render_eager(double, replace(u, seed=u.seed + 1))),
        "fp16": (HALF, lambda u: _render_half(double, u)),
    }
    ways.update(further[name] for name in also)
    return {name: joined([way(u) for u in line.utterances]) for name, way in ways.items()}


def _render_half(double: ReferenceModel, utterance: Utterance) -> Rendering:
    with half_products(double):
        return render_eager(double, utterance)


def job(line: Line, renderings: Mapping[str, Rendering]) -> Job:
    """What is to be listened to."""
    return Job(line.text, {name: Recording(r.samples, r.durations) for name, r in renderings.items()}, DOUBLE)


# --- gates -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limits:
    """What depends on whether products are rounded to 16 bits.

    Attributes:
        mcd_db: Most mel cepstral distortion of a sentence.
        pesq: Least wideband PESQ of a sentence.
        reason: Why.
    """

    mcd_db: float
    pesq: float
    reason: str


EXACT = Limits(0.1, 4.5, "a tenth of the 1 dB of spectral distortion that listeners take for none; PESQ's scale ends at 4.64")
ROUNDED = Limits(0.5, 4.0, "half of the 1 dB of spectral distortion that listeners take for none; PESQ of 4 is good telephony")


def limits(dtype: str) -> Limits:
    """For an artifact whose convolutions multiply ``dtype``."""
    return EXACT if dtype == "float32" else ROUNDED


def error_rates(results: Sequence[Result]) -> dict[str, float]:
    """Word error rate of each way of speaking over all lines, in percent."""
    names = results[0].sounds if results else ()
    return {name: 100 * word_error_rate(r.sounds[name].transcript for r in results) for name in names}


def lost_endings(results: Sequence[Result]) -> int:
    """Lines whose last word was heard from both references, and not from the compiled one."""

    def last(result: Result, name: str) -> bool:
        return result.sounds[name].transcript.last_heard

    return sum(last(r, SINGLE) and last(r, DOUBLE) and not last(r, COMPILED) for r in results)


def gates(results: Sequence[Result], dtype: str = "float32") -> list[Gate]:
    """The conditions on the compiled renderings, the worst line counting; each fails closed."""
    if not results:
        return []
    limit, rates = limits(dtype), error_rates(results)
    allowed = rates[SINGLE] + 1
    worst = {name: _worst([getattr(r.likeness[COMPILED], name) for r in results]) for name in _DIFFERENCES}
    best = {name: _least([getattr(r.likeness[COMPILED], name) for r in results]) for name in ("pesq", "stoi")}
    peak = _worst([r.sounds[COMPILED].peak for r in results])
    lost = lost_endings(results)

    def at_most(name: str, value: float, most: float, reason: str) -> Gate:
        return Gate(name, value, f"<= {most:g}", value <= most, reason)

    def at_least(name: str, value: float, least: float, reason: str) -> Gate:
        return Gate(name, value, f">= {least:g}", value >= least, reason)

    return [
        at_most("word errors, %", rates[COMPILED], round(allowed, 2), "eager float32 PyTorch's and one point"),
        at_most("word errors of float64, %", rates[DOUBLE], 50, "more, and the recogniser says nothing about anybody"),
        at_most("last words lost", lost, 0, "what both references were heard to say at the end"),
        at_most("peak", peak, 1, "full scale: more is clipped by every player"),
        at_most("samples", worst["samples"], 0, "durations are whole numbers"),
        at_most("tokens of other duration", worst["tokens"], 0, "nothing that durations depend on is rounded, in any dtype"),
        at_most("lag, samples", worst["lag"], 0, "nothing delays: half a frame is 300 samples"),
        at_most("loudness, dB", worst["loudness_db"], 0.1, "a tenth of what listeners notice"),
        at_most("peak, dB", worst["peak_db"], 1, "what listeners notice; another noise seed changes up to 0.7"),
        at_most("offset", worst["offset"], 1e-3, "60 dB below full scale, where speech has its pauses"),
        at_most("F0, cents", worst["pitch_cents"], 5, "what trained listeners notice on steady tones"),
        at_most("F0 in error, % of frames", 100 * worst["pitch_errors"], 2, "frames at voicing's edge may fall on either side"),
        at_most("MCD, dB", worst["mcd_db"], limit.mcd_db, limit.reason),
        at_least("PESQ", best["pesq"], limit.pesq, limit.reason),
        at_least("STOI", best["stoi"], 0.99, "another noise seed leaves as much"),
    ]


_DIFFERENCES = (
    "samples", "tokens", "lag", "loudness_db", "peak_db", "offset", "pitch_cents", "pitch_errors", "mcd_db",
)  # fmt: skip


def _worst(values: Sequence[float]) -> float:
    """The one furthest from zero; NaN if there is one."""
    return float(np.max(np.abs(values)))


def _least(values: Sequence[float]) -> float:
    return float(np.min(values))


def passed(conditions: Sequence[Gate]) -> bool:
    """Whether there are conditions, and all hold."""
    return bool(conditions) and all(g.passed for g in conditions)


# --- figures -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """One figure of a way of speaking over all lines: its median and its worst value."""

    name: str
    median: float
    worst: float


def figures(results: Sequence[Result], name: str) -> list[Figure]:
    """What sets ``name`` apart from float64, over all lines."""
    found = [r.likeness[name] for r in results]

    def of(label: str, values: Sequence[float], worst: Callable[[Sequence[float]], float] = _worst) -> Figure:
        return Figure(label, float(np.median(values)), worst(values))

    return [
        of("samples more", [d.samples for d in found]),
        of("lag, samples", [d.lag for d in found]),
        of("loudness, dB", [d.loudness_db for d in found]),
        of("peak, dB", [d.peak_db for d in found]),
        of("F0, cents", [d.pitch_cents for d in found]),
        of("F0 in error, %", [100 * d.pitch_errors for d in found]),
        of("log-mel, dB", [d.log_mel_db for d in found]),
        of("MCD, dB", [d.mcd_db for d in found]),
        of("PESQ", [d.pesq for d in found], _least),
        of("STOI", [d.stoi for d in found], _least),
    ]


def equal_durations(results: Sequence[Result], name: str) -> float:
    """Share of lines in which every token lasts as long as in float64, in percent."""
    return 100 * float(np.mean([r.likeness[name].tokens == 0 for r in results])) if results else math.nan


def as_dict(result: Result) -> dict[str, object]:
    """A line's figures without samples and curves, for JSON."""

    def sound(s: Sound) -> dict[str, object]:
        return {
            "heard": heard(s.transcript), "errors": s.transcript.errors, "loudness_lufs": s.loudness, "peak": s.peak,
            "f0_hz": asdict(s.pitch),
        }  # fmt: skip

    return {
        "text": result.line.text,
        "voice": result.line.voice,
        "phonemes": [u.phonemes for u in result.line.utterances],
        "words": result.sounds[DOUBLE].transcript.said,
        "sounds": {name: sound(s) for name, s in result.sounds.items()},
        "likeness": {name: asdict(d) for name, d in result.likeness.items()},
    }


def heard(transcript: Transcript) -> str:
    """What was heard, as a line."""
    return " ".join(p.heard for p in transcript.pairs if p.heard is not None)
