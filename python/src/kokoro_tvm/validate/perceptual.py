"""How alike two recordings of one utterance sound, as numbers: of samples alone, without a model of this project.

What it is: spectra on the mel scale and their distance, mel cepstral distortion, loudness as broadcasters measure it, a
tracker of the fundamental frequency, delay, and two published models of hearing (PESQ, STOI). All take mono samples, 24 kHz,
full scale ±1. What cannot be measured (nothing there, not finite, too short, silent) is NaN, which no gate lets through.
What it is not: a judgement (``speech``), a recogniser (``listening``), and no place for PyTorch: worker processes import it.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np

from kokoro_tvm.config import SAMPLE_RATE
from kokoro_tvm.errors import ToolchainError

WIDEBAND = 16000
"""Hz: what wideband PESQ and the recogniser listen to."""

_N_FFT, _HOP, _MELS = 1024, 256, 80
_CEPSTRA = 13
_AUDIBLE_DB = 50.0
"""Frames further than this below the loudest one are pauses."""


def log_mel(samples: np.ndarray) -> np.ndarray:
    """Log power of 80 mel bands, dB, [80, frames]; Hann windows of 43 ms every 11 ms, floor 100 dB below full scale."""
    padded = np.pad(np.asarray(samples, np.float64), _N_FFT // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, _N_FFT)[::_HOP]
    power = np.abs(np.fft.rfft(frames * np.hanning(_N_FFT + 1)[:-1])) ** 2 / _N_FFT
    return 10 * np.log10(np.maximum(mel_filters() @ power.T, 1e-10))


def mel_filters() -> np.ndarray:
    """Triangles [80, 513] of unit height, evenly spaced on the mel scale up to 12 kHz."""
    mel = np.linspace(0, 2595 * np.log10(1 + SAMPLE_RATE / 2 / 700), _MELS + 2)
    edges = 700 * (10 ** (mel / 2595) - 1)
    bins = np.arange(_N_FFT // 2 + 1) * SAMPLE_RATE / _N_FFT
    rising = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    return np.clip(np.minimum(rising, falling), 0, None)


def log_mel_distance(actual: np.ndarray, truth: np.ndarray) -> float:
    """Root mean square difference of the log-mel spectra, dB, over the frames both have; NaN if it cannot be measured."""
    if not _usable(actual, truth):
        return math.nan
    a, t = log_mel(actual), log_mel(truth)
    shared = min(a.shape[1], t.shape[1])
    return float(np.sqrt(np.mean((a[:, :shared] - t[:, :shared]) ** 2)))


def mel_cepstral_distortion(actual: np.ndarray, truth: np.ndarray) -> float:
    """Mel cepstral distortion in dB: 10 / ln 10 · √(2 Σ_k (c_k − c'_k)²), k = 1 … 13, the mean over frames.

    c are coefficients of the logarithm of the mel power spectrum, c_0 / 2 + Σ c_k cos(π k (m + ½) / 80), halved: those of its
    amplitude. A frame's distortion then is the root mean square difference in dB of the two spectra, smoothed to 13 cosines and
    without their level. Frames count that are no pause in at least one of the two. There is no time warping: recordings of other
    lengths cannot be compared, and are NaN.
    """
    if not _audible(actual, truth) or len(actual) != len(truth):
        return math.nan
    a, t = log_mel(actual), log_mel(truth)
    heard = np.zeros(a.shape[1], bool)
    for spectrum in (a, t):
        level = _level(spectrum)
        heard |= level > level.max() - _AUDIBLE_DB
    angles = np.pi * np.outer(np.arange(1, _CEPSTRA + 1), np.arange(_MELS) + 0.5) / _MELS
    # log_mel is 10 / ln 10 times the logarithm that the definition asks for, which is the factor in front of the root.
    difference = np.cos(angles) @ (a - t)[:, heard] / _MELS
    return float(np.sqrt(2 * np.square(difference).sum(axis=0)).mean())


def _level(spectrum_db: np.ndarray) -> np.ndarray:
    return 10 * np.log10(np.power(10, spectrum_db / 10).sum(axis=0))


def loudness(samples: np.ndarray) -> float:
    """Integrated loudness by ITU-R BS.1770-4 (K-weighted, gated), LUFS; −inf for silence, NaN below 0.4 s."""
    from scipy.signal import lfilter

    block, step = round(0.4 * SAMPLE_RATE), round(0.1 * SAMPLE_RATE)
    if len(samples) < block or not np.isfinite(samples).all():
        return math.nan
    weighted = np.asarray(samples, np.float64)
    for numerator, denominator in (_HEAD, _HIGH_PASS):
        weighted = lfilter(numerator, denominator, weighted)
    energy = np.concatenate([[0.0], np.cumsum(weighted**2)])
    power = (energy[block::step] - energy[:-block:step]) / block
    with np.errstate(divide="ignore"):
        levels = -0.691 + 10 * np.log10(np.maximum(power, 0))
        kept = levels > -70
        if not kept.any():
            return -math.inf
        kept &= levels > -0.691 + 10 * np.log10(power[kept].mean()) - 10
    return float(-0.691 + 10 * np.log10(power[kept].mean()))


def _biquad(frequency: float, q: float, gain_db: float) -> tuple[np.ndarray, np.ndarray]:
    """One of BS.1770's two filters at this sampling rate: a high shelf of ``gain_db``, or, without gain, the high-pass.

    The standard lists coefficients for 48 kHz only; these are the analogue filters that they come from by the bilinear transform.
    """
    k = math.tan(math.pi * frequency / SAMPLE_RATE)
    denominator = np.array([1 + k / q + k * k, 2 * (k * k - 1), 1 - k / q + k * k])
    if not gain_db:
        return np.array([1.0, -2.0, 1.0]), denominator / denominator[0]
    high = 10 ** (gain_db / 20)
    band = high**0.4996667741545416
    numerator = np.array([high + band * k / q + k * k, 2 * (k * k - high), high - band * k / q + k * k])
    return numerator / denominator[0], denominator / denominator[0]


_HEAD = _biquad(1681.974450955533, 0.7071752369554196, 3.999843853973347)
_HIGH_PASS = _biquad(38.13547087602444, 0.5003270373238773, 0.0)


def lag(actual: np.ndarray, truth: np.ndarray) -> float:
    """Samples by which ``actual`` is late: where the cross-correlation of the two is largest; NaN if it cannot be measured."""
    if not _audible(actual, truth):
        return math.nan
    size = 1 << (len(actual) + len(truth) - 1).bit_length()
    spectrum = np.fft.rfft(np.asarray(actual, np.float64), size) * np.fft.rfft(np.asarray(truth, np.float64), size).conj()
    best = int(np.argmax(np.fft.irfft(spectrum, size)))
    return float(best if best < len(actual) else best - size)


# --- fundamental frequency ---------------------------------------------------------------------------------------------------

_LOWEST, _HIGHEST = 60.0, 500.0
_WINDOW, _STEP = round(0.035 * SAMPLE_RATE), round(0.01 * SAMPLE_RATE)
_PERIODIC = 0.2
"""A frame is voiced where its difference function falls below this share of its mean."""
_GROSS_CENTS = 50.0
"""Half a semitone: what is further apart is another note, or the tracker took another dip of its difference function."""


def pitch(samples: np.ndarray) -> np.ndarray:
    """Fundamental frequency in Hz every 10 ms, 60 to 500 Hz; NaN where nothing is periodic.

    YIN (de Cheveigné and Kawahara 2002): the first dip of the cumulative-mean-normalised difference function below 0.2,
    followed to its bottom and refined by a parabola; windows of 35 ms, two of the longest periods.
    """
    longest = math.ceil(SAMPLE_RATE / _LOWEST)
    shortest = math.floor(SAMPLE_RATE / _HIGHEST)
    span = _WINDOW + longest + 1
    if len(samples) < span or not np.isfinite(samples).all():
        return np.empty(0)
    frames = np.lib.stride_tricks.sliding_window_view(np.asarray(samples, np.float64), span)[::_STEP]
    return np.array([_period(d, shortest) for d in _differences(frames, longest + 1)])


def _differences(frames: np.ndarray, lags: int) -> np.ndarray:
    """The normalised difference function [frames, lags + 1]; 1 for silence."""
    size = 1 << (frames.shape[1] + _WINDOW - 1).bit_length()
    head = np.fft.rfft(frames[:, :_WINDOW], size)
    products = np.fft.irfft(np.fft.rfft(frames, size) * head.conj(), size)[:, : lags + 1]
    energy = np.pad(np.cumsum(frames**2, axis=1), ((0, 0), (1, 0)))
    shifted = energy[:, _WINDOW : _WINDOW + lags + 1] - energy[:, : lags + 1]
    difference = np.maximum(shifted[:, :1] + shifted - 2 * products, 0)
    mean = np.cumsum(difference[:, 1:], axis=1) / np.arange(1, lags + 1)
    # What is quieter than the rounding of a 16-bit sample has no pitch.
    loud = shifted[:, :1] > _WINDOW * 2.0**-30
    normalised = np.divide(difference[:, 1:], mean, out=np.ones_like(mean), where=(mean > 0) & loud)
    return np.pad(normalised, ((0, 0), (1, 0)), constant_values=1.0)


def _period(difference: np.ndarray, shortest: int) -> float:
    low = np.flatnonzero(difference[shortest:-1] < _PERIODIC)
    if not low.size:
        return math.nan
    lag = shortest + int(low[0])
    while lag + 2 < len(difference) and difference[lag + 1] < difference[lag]:
        lag += 1
    before, here, after = difference[lag - 1 : lag + 2]
    curvature = before - 2 * here + after
    return SAMPLE_RATE / (lag + (0.5 * (before - after) / curvature if curvature > 0 else 0.0))


@dataclass(frozen=True)
class PitchRange:
    """Median and the range without the extremes, Hz; NaN if nothing is voiced.

    Attributes:
        median: Half of the voiced frames are below.
        low: 5 % are below.
        high: 95 % are below.
        voiced: Share of frames that are voiced.
    """

    median: float
    low: float
    high: float
    voiced: float


def pitch_range(curve: np.ndarray) -> PitchRange:
    """Sums up a curve of ``pitch``."""
    voiced = curve[np.isfinite(curve)]
    if not voiced.size:
        return PitchRange(math.nan, math.nan, math.nan, 0.0)
    low, median, high = (float(v) for v in np.percentile(voiced, (5, 50, 95)))
    return PitchRange(median, low, high, len(voiced) / len(curve))


def pitch_differences(actual: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Fine difference in cents and share of frames in error, between two curves of ``pitch``.

    A frame is in error if only one of the two is voiced there, or they are more than half a semitone apart. The fine difference
    is the root mean square over the other voiced frames. Both are NaN for curves of other lengths, or without a frame to compare.
    """
    if len(actual) != len(truth) or not len(truth):
        return math.nan, math.nan
    voiced = np.isfinite(actual), np.isfinite(truth)
    both = voiced[0] & voiced[1]
    cents = 1200 * np.log2(actual[both] / truth[both])
    fine = np.abs(cents) <= _GROSS_CENTS
    errors = (np.count_nonzero(voiced[0] != voiced[1]) + np.count_nonzero(~fine)) / len(truth)
    return (float(np.sqrt(np.mean(cents[fine] ** 2))) if fine.any() else math.nan), float(errors)


# --- models of hearing -------------------------------------------------------------------------------------------------------


def resampled(samples: np.ndarray) -> np.ndarray:
    """The samples at 16 kHz."""
    from scipy.signal import resample_poly

    return resample_poly(np.asarray(samples, np.float64), WIDEBAND // 8000, SAMPLE_RATE // 8000)


def pesq(actual: np.ndarray, truth: np.ndarray) -> float:
    """Wideband PESQ (ITU-T P.862.2), 1 to 4.64; NaN where it finds no utterance, or the lengths differ."""
    if not _audible(actual, truth) or len(actual) != len(truth):
        return math.nan
    try:
        import pesq as package
    except ImportError as error:
        raise ToolchainError(f"this needs the package pesq ({error}): pip install 'kokoro-tvm[validate]'") from error
    try:
        return float(package.pesq(WIDEBAND, resampled(truth), resampled(actual), "wb"))
    except (package.PesqError, ValueError, ZeroDivisionError):  # too short or silent
        return math.nan


def stoi(actual: np.ndarray, truth: np.ndarray) -> float:
    """Short-time objective intelligibility (Taal et al. 2011), 0 to 1; NaN where speech is too short, or lengths differ."""
    if not _audible(actual, truth) or len(actual) != len(truth):
        return math.nan
    try:
        import pystoi
    except ImportError as error:
        raise ToolchainError(f"this needs the package pystoi ({error}): pip install 'kokoro-tvm[validate]'") from error
    with warnings.catch_warnings():
        # The package answers with 1e-5 and a warning where it cannot.
        warnings.simplefilter("error", RuntimeWarning)
        try:
            return float(pystoi.stoi(np.asarray(truth, np.float64), np.asarray(actual, np.float64), SAMPLE_RATE))
        except (RuntimeWarning, ValueError):
            return math.nan


def _usable(*recordings: np.ndarray) -> bool:
    return all(r.size and np.isfinite(r).all() for r in recordings)


def _audible(*recordings: np.ndarray) -> bool:
    return _usable(*recordings) and all(np.any(r) for r in recordings)
