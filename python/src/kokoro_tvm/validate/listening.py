"""What can be said about one text, spoken in several ways, by somebody who only hears them.

What it is: the transcript, loudness and pitch of every recording, and how far each is from the truth; ``examine`` runs in
worker processes, several texts at once. What it is not: synthesis or judgement (``speech``), and no place for PyTorch, which a
worker would import in vain.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np

from kokoro_tvm.validate import perceptual
from kokoro_tvm.validate.perceptual import PitchRange
from kokoro_tvm.validate.recogniser import Recogniser, Transcript


@dataclass(frozen=True)
class Recording:
    """Speech without the model that made it.

    Attributes:
        samples: [T], 24 kHz, full scale ±1.
        durations: int64 [N], frames per token.
    """

    samples: np.ndarray
    durations: np.ndarray


@dataclass(frozen=True)
class Sound:
    """What one recording sounds like.

    Attributes:
        transcript: What the recogniser heard.
        loudness: LUFS.
        peak: Largest absolute sample; NaN if one is not finite.
        curve: Pitch in Hz every 10 ms, NaN where unvoiced.
        pitch: Its range.
    """

    transcript: Transcript
    loudness: float
    peak: float
    curve: np.ndarray
    pitch: PitchRange


@dataclass(frozen=True)
class Likeness:
    """How far a recording is from the truth.

    Attributes:
        samples: Samples more than the truth.
        duration: Length relative to the truth's.
        tokens: Tokens whose durations differ; all of them if there is another number.
        lag: Samples by which it is late.
        loudness_db: Difference of loudness.
        peak_db: Difference of peaks.
        offset: Difference of means, full scale 1.
        pitch_cents: Root mean square difference on frames voiced in both, but those in error.
        pitch_errors: Share of frames voiced in one only, or half a semitone apart.
        log_mel_db: Distance of log-mel spectra.
        mcd_db: Mel cepstral distortion.
        pesq: Wideband PESQ.
        stoi: STOI.
    """

    samples: int
    duration: float
    tokens: int
    lag: float
    loudness_db: float
    peak_db: float
    offset: float
    pitch_cents: float
    pitch_errors: float
    log_mel_db: float
    mcd_db: float
    pesq: float
    stoi: float


@dataclass(frozen=True)
class Job:
    """A text and its recordings by name; ``truth`` names the one that others are compared with."""

    text: str
    recordings: Mapping[str, Recording]
    truth: str


@dataclass(frozen=True)
class Impression:
    """What was found about a job: a sound for every recording, a likeness for all but the truth."""

    sounds: Mapping[str, Sound]
    likeness: Mapping[str, Likeness]


@cache
def _recogniser() -> Recogniser:
    return Recogniser()


def listen(samples: np.ndarray, text: str) -> Sound:
    """Hears one recording of a text."""
    curve = perceptual.pitch(samples)
    transcript = _recogniser().transcribe(samples, text)
    return Sound(transcript, perceptual.loudness(samples), _peak(samples), curve, perceptual.pitch_range(curve))


def likeness(actual: Recording, truth: Recording, sounds: tuple[Sound, Sound]) -> Likeness:
    """Compares a recording with the truth; ``sounds`` are theirs."""
    a, t = actual.samples, truth.samples
    cents, errors = perceptual.pitch_differences(sounds[0].curve, sounds[1].curve)
    peaks = [20 * math.log10(s.peak) if s.peak > 0 else math.nan for s in sounds]
    return Likeness(
        samples=len(a) - len(t),
        duration=len(a) / len(t) if len(t) else math.nan,
        tokens=_differing(actual.durations, truth.durations),
        lag=perceptual.lag(a, t),
        loudness_db=sounds[0].loudness - sounds[1].loudness,
        peak_db=peaks[0] - peaks[1],
        offset=float(np.mean(a, dtype=np.float64) - np.mean(t, dtype=np.float64)) if len(a) and len(t) else math.nan,
        pitch_cents=cents,
        pitch_errors=errors,
        log_mel_db=perceptual.log_mel_distance(a, t),
        mcd_db=perceptual.mel_cepstral_distortion(a, t),
        pesq=perceptual.pesq(a, t),
        stoi=perceptual.stoi(a, t),
    )


def _peak(samples: np.ndarray) -> float:
    finite = samples.size and np.isfinite(samples).all()
    return float(np.abs(samples).max()) if finite else math.nan


def _differing(actual: np.ndarray, truth: np.ndarray) -> int:
    return int(np.count_nonzero(actual != truth)) if len(actual) == len(truth) else max(len(actual), len(truth))


def examine(job: Job) -> Impression:
    """Hears and compares all recordings of a text."""
    sounds = {name: listen(r.samples, job.text) for name, r in job.recordings.items()}
    truth = job.recordings[job.truth]
    others = {n: likeness(r, truth, (sounds[n], sounds[job.truth])) for n, r in job.recordings.items() if n != job.truth}
    return Impression(sounds, others)


def examine_all(jobs: Sequence[Job], processes: int = 1) -> Iterator[Impression]:
    """``examine`` for each in turn, in this process or in several others."""
    if min(processes, len(jobs)) < 2:
        yield from map(examine, jobs)
        return
    # Spawned, not forked: this process has threads of PyTorch's and TVM's.
    with ProcessPoolExecutor(min(processes, len(jobs)), multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(examine, jobs)
