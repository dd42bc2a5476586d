"""Every measure on signals whose answer is known, and where there is none: NaN, which no gate lets through."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kokoro_tvm.config import SAMPLE_RATE
from kokoro_tvm.validate import perceptual
from kokoro_tvm.validate.perceptual import lag, loudness, mel_cepstral_distortion, pitch, pitch_differences, pitch_range

SECOND = np.arange(SAMPLE_RATE) / SAMPLE_RATE
MEASURES = (perceptual.pesq, perceptual.stoi, mel_cepstral_distortion, lag, perceptual.log_mel_distance)


def harmonics(f0, amplitudes, seconds=1.0):
    """A tone of constant or given (one value a sample) frequency with these amplitudes of its harmonics, and a little noise."""
    count = round(seconds * SAMPLE_RATE)
    phase = 2 * np.pi * np.cumsum(np.broadcast_to(f0, count)) / SAMPLE_RATE
    tone = sum(a * np.sin((k + 1) * phase + k) for k, a in enumerate(amplitudes))
    return 0.1 * tone + np.random.default_rng(0).normal(0, 1e-4, count)


def syllables(seed=0, seconds=2.0):
    """Harmonic tones in bursts, with noise: enough like speech for models of hearing."""
    rng = np.random.default_rng(seed)
    count = round(seconds * SAMPLE_RATE)
    time = np.arange(count) / SAMPLE_RATE
    envelope = np.clip(np.sin(2 * np.pi * 3 * time), 0, None)
    return envelope * (harmonics(150 + 30 * np.sin(5 * time), [1, 0.8, 0.7, 0.5, 0.4, 0.3], seconds) + rng.normal(0, 0.01, count))


# --- pitch -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("f0", [70.0, 98.3, 220.0, 430.0])
@pytest.mark.parametrize(
    "amplitudes",
    [[1, 0.5, 0.3, 0.2], [0.2, 1, 0.3, 0.2], [0, 1, 1, 1, 0.5], [1]],
    ids=["falling", "strong second", "missing fundamental", "sine"],
)
def test_pitch_of_tones_without_octave_errors(f0, amplitudes):
    curve = pitch(harmonics(f0, amplitudes))
    assert np.isfinite(curve).all()
    assert np.abs(1200 * np.log2(curve / f0)).max() < 3


def test_pitch_follows_a_glide():
    glide = np.linspace(120, 240, SAMPLE_RATE)
    curve = pitch(harmonics(glide, [1, 0.5, 0.3]))
    # A frame's window and the period it looks ahead are centred some 20 ms after it begins.
    centres = np.arange(len(curve)) * 240 + 520
    assert np.median(np.abs(1200 * np.log2(curve / glide[centres]))) < 10


def test_noise_and_silence_have_no_pitch():
    assert np.isnan(pitch(np.zeros(SAMPLE_RATE))).all()
    assert np.isnan(pitch(np.random.default_rng(0).normal(0, 0.1, SAMPLE_RATE))).mean() > 0.95
    assert not len(pitch(np.zeros(500)))
    assert not len(pitch(np.full(SAMPLE_RATE, np.nan)))
    assert math.isnan(pitch_range(np.full(5, np.nan)).median)


def test_pitch_range():
    found = pitch_range(np.concatenate([np.arange(100.0, 201.0), np.full(101, np.nan)]))
    assert (found.low, found.median, found.high) == (105, 150, 195)
    assert found.voiced == 0.5


def test_differences_of_pitch():
    truth = np.array([100.0, 200.0, 200.0, 200.0, np.nan])
    actual = np.array([100.0, 200 * 2 ** (6 / 1200), 400.0, np.nan, np.nan])
    cents, errors = pitch_differences(actual, truth)
    assert cents == pytest.approx(6 / math.sqrt(2))
    assert errors == 2 / 5
    assert all(map(math.isnan, pitch_differences(truth[:4], truth)))
    assert math.isnan(pitch_differences(truth * np.nan, truth * np.nan)[0])
    moved = pitch_differences(truth * 2 ** (60 / 1200), truth)
    assert math.isnan(moved[0])
    assert moved[1] == 4 / 5


# --- loudness, lag -----------------------------------------------------------------------------------------------------------


def test_loudness_of_the_standard_s_tone():
    """BS.1770: a full-scale sine of 997 Hz in one channel is -3.01 LUFS, to 0.03 dB at this rate; pauses do not count."""
    tone = np.sin(2 * np.pi * 997 * np.arange(3 * SAMPLE_RATE) / SAMPLE_RATE)
    assert loudness(tone) == pytest.approx(-3.01, abs=0.03)
    assert loudness(np.concatenate([tone, np.zeros(5 * SAMPLE_RATE)])) == pytest.approx(-3.01, abs=0.3)
    assert loudness(tone * 10 ** (-0.5 / 20)) - loudness(tone) == pytest.approx(-0.5, abs=1e-6)


def test_low_rumble_is_not_loud():
    rumble = np.sin(2 * np.pi * 20 * np.arange(3 * SAMPLE_RATE) / SAMPLE_RATE)
    assert loudness(rumble) < -10


def test_loudness_of_nothing():
    assert loudness(np.zeros(SAMPLE_RATE)) == -math.inf
    assert math.isnan(loudness(np.zeros(100)))
    assert math.isnan(loudness(np.full(SAMPLE_RATE, np.inf)))


@pytest.mark.parametrize("late", [0, 1, -7, 300])
def test_lag_is_found_to_the_sample(late):
    truth = syllables()
    moved = np.roll(np.pad(truth, 500), late) + np.random.default_rng(1).normal(0, 0.01, len(truth) + 1000)
    assert lag(moved, np.pad(truth, 500)) == late


# --- spectra -----------------------------------------------------------------------------------------------------------------


def test_mel_cepstral_distortion_of_a_known_tilt(monkeypatch):
    """Spectra that differ by 2 dB times one of the cosines are √2 dB apart; by a level, not at all."""
    level = np.full((80, 50), -40.0)
    ripple = 2 * np.cos(np.pi * 3 * (np.arange(80) + 0.5) / 80)[:, None]
    too_fine = 2 * np.cos(np.pi * 14 * (np.arange(80) + 0.5) / 80)[:, None]
    one, two = np.ones(10), np.full(10, 2.0)
    for difference, expected in ((ripple, math.sqrt(2)), (ripple * 0 + 5, 0.0), (too_fine, 0.0)):
        spectra = {1.0: level, 2.0: level + difference}
        monkeypatch.setattr(perceptual, "log_mel", lambda samples, spectra=spectra: spectra[samples[0]])
        assert mel_cepstral_distortion(two, one) == pytest.approx(expected, abs=1e-9)


def test_pauses_of_both_do_not_count_but_those_of_one_do():
    speech = syllables()
    with_pause = np.concatenate([speech, np.zeros(SAMPLE_RATE)])
    hiss = with_pause + np.random.default_rng(3).normal(0, 1e-5, len(with_pause))
    assert mel_cepstral_distortion(hiss, with_pause) < 0.5
    dropped = speech.copy()
    dropped[SAMPLE_RATE : SAMPLE_RATE + 2400] = 0
    assert mel_cepstral_distortion(dropped, speech) > 0.5


def test_distances_grow_with_the_difference():
    truth = syllables()
    noise = np.random.default_rng(2).normal(0, 1, len(truth))
    near, far = truth + 1e-4 * noise, truth + 1e-2 * noise
    for measure in (mel_cepstral_distortion, perceptual.log_mel_distance):
        assert measure(truth, truth) == 0
        assert measure(near, truth) < measure(far, truth)
    for measure in (perceptual.pesq, perceptual.stoi):
        assert measure(truth, truth) > measure(near, truth) > measure(far, truth)
    assert perceptual.pesq(truth, truth) == pytest.approx(4.644, abs=1e-3)


def test_resampling_keeps_a_tone():
    tone = np.sin(2 * np.pi * 440 * SECOND)
    expected = np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    assert np.abs(perceptual.resampled(tone) - expected)[200:-200].max() < 1e-3


# --- what cannot be measured -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("measure", MEASURES, ids=lambda m: m.__name__)
def test_what_cannot_be_measured_is_nan(measure):
    truth = syllables()
    damaged = truth.copy()
    damaged[1000] = np.nan
    assert math.isnan(measure(damaged, truth))
    assert math.isnan(measure(np.zeros(0), truth))


@pytest.mark.parametrize("measure", [perceptual.pesq, perceptual.stoi, mel_cepstral_distortion], ids=lambda m: m.__name__)
def test_other_lengths_cannot_be_compared(measure):
    truth = syllables()
    assert math.isnan(measure(truth[:-600], truth))


@pytest.mark.parametrize("measure", [perceptual.pesq, perceptual.stoi], ids=lambda m: m.__name__)
def test_models_of_hearing_refuse_silence_and_blips(measure):
    truth = syllables()
    assert math.isnan(measure(np.zeros_like(truth), np.zeros_like(truth)))
    assert math.isnan(measure(truth[:2000], truth[:2000]))
    assert not measure(np.zeros_like(truth), truth) > 1.5
