"""The spectrogram: a tone where it belongs, and a picture file, all or nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from kokoro_tvm.config import SAMPLE_RATE
from kokoro_tvm.errors import InputError, OutputError, ToolchainError
from kokoro_tvm.runtime import picture
from kokoro_tvm.runtime.synthesis import Speech
from kokoro_tvm.runtime.text.timestamps import WordTimestamp


def _speech(seconds: float) -> Speech:
    time = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    samples = np.where(time < seconds / 2, np.sin(2 * np.pi * 3000 * time), 0).astype(np.float32)
    words = (WordTimestamp("tone", 0.0, seconds / 2), WordTimestamp("<silence> & $\\frac$", seconds / 2, seconds))
    return Speech(samples, SAMPLE_RATE, "tˈOn", np.ones(round(40 * seconds), np.int64), words)


def test_a_tone_is_where_it_belongs() -> None:
    power = picture.spectrogram(_speech(1.0).samples)
    assert power.shape == (301, 1 + SAMPLE_RATE // picture.HOP)
    bin_hz = SAMPLE_RATE / picture.WINDOW
    assert power[:, 10:90].argmax(axis=0) == pytest.approx(np.full(80, 3000 / bin_hz))
    assert power.max() == 0
    assert np.all(power[:, 110:] == -picture.RANGE_DB)


@pytest.mark.parametrize("samples", [1, 599, 600, 601])
def test_the_shortest(samples: int) -> None:
    assert picture.spectrogram(np.zeros(samples, np.float32)).shape == (301, 1 + samples // picture.HOP)


@pytest.mark.parametrize("seconds", [0.025, 1.5, 30.0])
def test_file(seconds: float, tmp_path: Path) -> None:
    path = picture.write_spectrogram(tmp_path / "speech.png", _speech(seconds))
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in tmp_path.iterdir()] == ["speech.png"]


def test_bad_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="expected one of .png"):
        picture.write_spectrogram(tmp_path / "speech.doc", _speech(0.1))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="cannot write"):
        picture.write_spectrogram(tmp_path / "file" / "speech.png", _speech(0.1))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ToolchainError, match="pip install"):
        picture.write_spectrogram(tmp_path / "speech.png", _speech(0.1))
