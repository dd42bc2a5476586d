"""What is written: one HTML file that needs nothing else, JSON that any parser reads, and speech compared as it is heard."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest

from kokoro_tvm.validate import e2e, report
from kokoro_tvm.validate.metrics import compare

RATE = 24_000


def _tone(hz: float = 200.0, level: float = 0.1, frames: int = 40) -> e2e.Rendering:
    samples = level * np.sin(2 * np.pi * hz * np.arange(600 * frames) / RATE)
    return e2e.Rendering(samples, np.full(2 * frames, hz), np.full(4, frames // 4))


def _result(compiled: e2e.Rendering) -> e2e.Result:
    truth = _tone()
    noisy = e2e.Rendering(truth.samples + np.random.default_rng(0).normal(0, 0.02, truth.samples.size), truth.f0, truth.durations)
    renderings = {"float64": truth, e2e.COMPILED: compiled, e2e.SINGLE: noisy, e2e.RESEEDED: noisy}
    distances = {n: e2e.distance(r, truth) for n, r in renderings.items() if r is not truth}
    return e2e.Result([], renderings, distances, e2e.gates(distances))


def _close() -> e2e.Rendering:
    truth = _tone()
    return e2e.Rendering(truth.samples + 1e-5, truth.f0 * 1.000001, truth.durations)


def test_equal_speech_passes():
    result = _result(_close())
    assert result.passed
    assert result.advantage_db > 40


@pytest.mark.parametrize(
    ("compiled", "gate"),
    [
        (_tone(level=0.15), "loudness, dB"),
        (_tone(hz=201.0), "F0, cents"),
        (_tone(frames=44), "samples"),
        (e2e.Rendering(np.full(24000, np.nan), _tone().f0, _tone().durations), "SNR, dB"),
        (e2e.Rendering(_tone().samples, np.zeros(80), _tone().durations), "voicing"),
        (e2e.Rendering(np.random.default_rng(1).normal(0, 0.07, 24000), _tone().f0, _tone().durations), "log-mel, dB"),
        (e2e.Rendering(np.zeros(24000), _tone().f0, _tone().durations), "loudness, dB"),
    ],
    ids=["loud", "sharp", "long", "not finite", "unvoiced", "noise", "silent"],
)
def test_each_way_to_be_wrong_is_found(compiled, gate):
    result = _result(compiled)
    assert not result.passed
    assert gate in [g.name for g in result.gates if not g.passed]


def test_no_gates_is_no_pass():
    assert not e2e.Result([], {}, {}, []).passed


def test_cents_are_cents():
    octave = e2e.distance(_tone(hz=400.0), _tone(hz=200.0))
    assert octave.f0_cents == pytest.approx(1200)


def test_page_refers_to_nothing_outside(tmp_path):
    content = report.e2e_page(_result(_close()), [("checkpoint", "<synthetic> & small")])
    sources = re.findall(r'(?:src|href)\s*=\s*"([^"]{0,30})', content)
    assert len(sources) >= 7
    assert all(s.startswith("data:") for s in sources)
    assert "http" not in re.sub(r'"data:[^"]*"', "", content)
    assert "&lt;synthetic&gt; &amp; small" in content
    report.write_page(tmp_path / "a" / "report.html", content)
    assert (tmp_path / "a" / "report.html").read_text(encoding="utf-8") == content


def test_page_survives_speech_that_is_not_finite():
    broken = e2e.Rendering(np.full(24000, np.nan), _tone().f0, _tone().durations)
    assert "cannot be played" in report.e2e_page(_result(broken), [])


def test_json_has_no_nan(tmp_path):
    path = tmp_path / "figures.json"
    report.write_json(path, {"found": compare(np.array([np.nan]), np.ones(1)), "exact": math.inf, "by": {1: (2.5,)}})
    assert json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)["found"]["snr_db"] is None
    assert json.loads(path.read_text(encoding="utf-8"))["exact"] == "inf"


def test_waves_are_not_clipped(tmp_path):
    import soundfile

    report.write_waves(tmp_path, {"float32 PyTorch": _tone(level=1.7)})
    samples, rate = soundfile.read(tmp_path / "float32_PyTorch.wav")
    assert rate == RATE
    assert samples.max() > 1.6
