"""The gates: each fails for its own reason and for NaN; what the report says about what was heard."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from kokoro_tvm.validate import speech, speech_report
from kokoro_tvm.validate.e2e import COMPILED, SINGLE, Rendering
from kokoro_tvm.validate.listening import Impression, Likeness, Recording, Sound, _differing, examine, examine_all
from kokoro_tvm.validate.perceptual import PitchRange
from kokoro_tvm.validate.recogniser import Transcript, align, words
from kokoro_tvm.validate.report import plain
from kokoro_tvm.validate.speech import DOUBLE, Line, Result

TEXT = "the night was clear and the stars were bright over the quiet valley"
SAME = Likeness(
    samples=0, duration=1.0, tokens=0, lag=0.0, loudness_db=0.0, peak_db=0.0, offset=0.0, pitch_cents=0.0, pitch_errors=0.0,
    log_mel_db=0.0, mcd_db=0.0, pesq=4.6, stoi=1.0,
)  # fmt: skip


def sound(heard=TEXT, peak=0.5):
    transcript = Transcript(align(words(TEXT), words(heard)))
    return Sound(transcript, -26.0, peak, np.full(100, 200.0), PitchRange(200.0, 150.0, 250.0, 1.0))


def result(likeness=SAME, **heard):
    sounds = {n: heard.get(k, sound()) for n, k in ((COMPILED, "compiled"), (SINGLE, "single"), (DOUBLE, "double"))}
    renderings = {n: Rendering(np.sin(np.arange(24000.0) / 20) / 2, np.ones(80), np.ones(4, int)) for n in sounds}
    return Result(Line(TEXT, "somebody", []), renderings, Impression(sounds, {COMPILED: likeness, SINGLE: SAME}))


def failed(*results, dtype="float32"):
    return {g.name for g in speech.gates(results, dtype) if not g.passed}


@pytest.mark.parametrize("dtype", ["float32", "bf16", "fp16"])
def test_what_is_the_same_passes(dtype):
    conditions = speech.gates([result(), result()], dtype)
    assert speech.passed(conditions)
    assert all(g.reason for g in conditions)


def test_nothing_said_is_no_pass():
    assert not speech.passed(speech.gates([]))


FAULTS = {
    "samples": ("samples", -600), "tokens of other duration": ("tokens", 1), "lag, samples": ("lag", 1.0),
    "loudness, dB": ("loudness_db", -0.11), "peak, dB": ("peak_db", 1.1), "offset": ("offset", -0.002),
    "F0, cents": ("pitch_cents", 5.1), "F0 in error, % of frames": ("pitch_errors", 0.03), "MCD, dB": ("mcd_db", 0.6),
    "PESQ": ("pesq", 3.9), "STOI": ("stoi", 0.98),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bf16"])
@pytest.mark.parametrize("gate", FAULTS)
def test_one_bad_line_fails_its_gate_alone(gate, dtype):
    name, value = FAULTS[gate]
    assert failed(result(), result(replace(SAME, **{name: value})), result(), dtype=dtype) == {gate}
    assert failed(result(), result(replace(SAME, **{name: math.nan})), dtype=dtype) == {gate}


def test_every_figure_of_the_gates_can_fail():
    names = {g.name for g in speech.gates([result()])}
    assert names == FAULTS.keys() | {"word errors, %", "word errors of float64, %", "last words lost", "peak"}


def test_rounded_products_may_cost_more():
    worse = result(replace(SAME, mcd_db=0.3, pesq=4.2))
    assert failed(worse) == {"MCD, dB", "PESQ"}
    assert failed(worse, dtype="bf16") == set()


def test_a_point_of_word_errors_is_allowed_over_all_lines():
    """Thirteen words a line: one error in 100 lines is 0.08 %, one in seven 1.1 %."""
    one_wrong = result(compiled=sound(TEXT.replace("stars", "scars")))
    assert failed(one_wrong, *[result()] * 9) == set()
    assert failed(one_wrong, *[result()] * 6) == {"word errors, %"}
    as_bad = sound(TEXT.replace("stars", "scars"))
    assert failed(result(compiled=as_bad, single=as_bad)) == set()


def test_speech_that_nobody_understands_fails_though_it_is_the_same():
    babble = sound("an hour ago there is no")
    assert failed(result(compiled=babble, single=babble, double=babble)) == {"word errors of float64, %"}


def test_a_last_word_that_both_references_said_has_to_be_heard():
    cut = sound(TEXT.removesuffix(" valley"))
    many = [result()] * 20
    assert failed(result(compiled=cut), *many) == {"last words lost"}
    assert failed(result(compiled=cut, single=cut), *many) == set()


def test_clipping_fails():
    assert failed(result(compiled=sound(peak=1.2))) == {"peak"}
    assert failed(result(compiled=sound(peak=math.nan))) == {"peak"}


def test_durations_are_compared_token_by_token():
    assert _differing(np.array([1, 2, 3]), np.array([1, 3, 2])) == 2
    assert _differing(np.array([1, 2]), np.array([1, 2, 3])) == 3


def test_examining_in_other_processes_gives_the_same():
    rng = np.random.default_rng(0)
    tone = np.sin(2 * np.pi * 150 * np.arange(30000) / 24000) * np.hanning(30000) * 0.3
    recordings = {n: Recording(tone + rng.normal(0, a, 30000), np.ones(4, int)) for n, a in ((COMPILED, 1e-3), (DOUBLE, 1e-4))}
    jobs = [speech.job(Line(TEXT, "x", []), {n: Rendering(r.samples, None, r.durations) for n, r in recordings.items()})] * 2
    here = examine(jobs[0])
    for there in examine_all(jobs, 2):
        assert there.likeness == here.likeness
        assert there.sounds[COMPILED].transcript == here.sounds[COMPILED].transcript


# --- report ------------------------------------------------------------------------------------------------------------------


def test_errors_are_marked():
    transcript = Transcript(align("the <old> man walked".split(), "the man walk".split()))
    assert speech_report.marked(transcript) == "the <del>&lt;old&gt;</del> man <del>walked</del> <ins>walk</ins>"


def test_the_page_holds_everything():
    results = [result(compiled=sound(TEXT.replace("stars", "scars")))]
    page = speech_report.speech_page(results, speech.gates(results), [("model", "a & b")])
    assert "FAILED" in page
    assert "<del>stars</del> <ins>scars</ins>" in page
    assert page.count("data:audio/flac;base64,") == 2
    assert page.count("data:image/png;base64,") == 1
    assert "a &amp; b" in page
    assert "http" not in page.replace("http-equiv", "")


def test_what_is_not_finite_is_shown_as_such():
    broken = result(replace(SAME, mcd_db=math.nan))
    renderings = {**broken.renderings, COMPILED: replace(broken.renderings[COMPILED], samples=np.full(24000, np.nan))}
    page = speech_report.speech_page([replace(broken, renderings=renderings)], [], [])
    assert "not finite, cannot be played" in page


def test_figures_for_programs():
    found = json.loads(json.dumps(plain(speech.as_dict(result(replace(SAME, pesq=math.nan))))))
    assert found["sounds"][COMPILED]["heard"] == TEXT
    assert found["sounds"][COMPILED]["errors"] == 0
    assert found["likeness"][COMPILED]["pesq"] is None
