"""Audio files: exact, atomic, and loud about what they cannot keep."""

from __future__ import annotations

import io
import os
import struct
import sys
import wave

import numpy as np
import pytest

from kokoro_tvm.errors import InputError, OutputError, ToolchainError
from kokoro_tvm.runtime.audio import ClippingWarning, concatenate, encode_audio, write_audio

SAMPLES = (np.sin(np.arange(4800) * 0.05) * 0.5).astype(np.float32)


def decode(data: bytes) -> np.ndarray:
    soundfile = pytest.importorskip("soundfile")
    samples, rate = soundfile.read(io.BytesIO(data), dtype="float32")
    assert rate == 24_000 and samples.ndim == 1
    return samples


def test_float_wav_keeps_every_bit(tmp_path):
    samples = SAMPLES.copy()
    samples[:3] = [1.5, -2.0, 1e-30]
    path = write_audio(tmp_path / "a.wav", samples)
    np.testing.assert_array_equal(decode(path.read_bytes()), samples)


def test_equal_samples_give_equal_bytes():
    assert encode_audio(SAMPLES) == encode_audio(SAMPLES.astype(np.float64))


@pytest.mark.parametrize("suffix", [".wav", ".flac", ".FLAC"])
def test_16_bit(suffix):
    assert np.abs(decode(encode_audio(SAMPLES, suffix, "PCM_16")) - SAMPLES).max() < 1 / 32767


def test_16_bit_wav_is_read_by_the_standard_library():
    with wave.open(io.BytesIO(encode_audio(SAMPLES, ".wav", "PCM_16"))) as file:
        assert file.getparams()[:4] == (1, 2, 24_000, 4800)


def test_flac_defaults_to_24_bit():
    assert np.abs(decode(encode_audio(SAMPLES, ".flac")) - SAMPLES).max() < 2**-22


def test_riff_sizes_are_consistent():
    data = encode_audio(SAMPLES)
    assert struct.unpack("<I", data[4:8])[0] == len(data) - 8
    assert data[-SAMPLES.nbytes - 8 :][:4] == b"data"


def test_no_samples():
    assert decode(encode_audio(np.zeros(0, np.float32))).size == 0
    with pytest.raises(InputError, match="no samples"):
        encode_audio(np.zeros(0, np.float32), ".flac")


def test_clipping_is_reported_and_clipped():
    with pytest.warns(ClippingWarning, match=r"2 of 3 samples .*peak 2\.000"):
        data = encode_audio(np.array([2.0, -1.5, 0.5], np.float32), ".wav", "PCM_16")
    np.testing.assert_allclose(decode(data), [1, -1, 0.5], atol=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_samples_are_refused_and_the_file_is_untouched(tmp_path, bad):
    path = tmp_path / "a.wav"
    path.write_bytes(b"before")
    samples = SAMPLES.copy()
    samples[7] = bad
    with pytest.raises(InputError, match="1 samples of 4800 that are not finite"):
        write_audio(path, samples)
    assert path.read_bytes() == b"before" and os.listdir(tmp_path) == ["a.wav"]


@pytest.mark.parametrize("samples", [np.zeros((1, 5), np.float32), np.zeros(5, np.int16), np.float32(0), [0, 1]])
def test_wrong_shape_or_dtype(samples):
    with pytest.raises(InputError, match=r"expected float32 \[T\]"):
        encode_audio(samples)


@pytest.mark.parametrize("name", ["a.mp3", "a", "a.wave"])
def test_unknown_type(tmp_path, name):
    with pytest.raises(OutputError, match=r"expected one of \.wav, \.flac"):
        write_audio(tmp_path / name, SAMPLES)
    assert not os.listdir(tmp_path)


def test_flac_cannot_hold_floats():
    with pytest.raises(OutputError, match="'FLOAT'.*PCM_24, PCM_16"):
        encode_audio(SAMPLES, ".flac", "FLOAT")


def test_missing_directory(tmp_path):
    with pytest.raises(OutputError, match="cannot write"):
        write_audio(tmp_path / "none" / "a.wav", SAMPLES)


def test_a_directory_is_no_file(tmp_path):
    (tmp_path / "a.wav").mkdir()
    with pytest.raises(OutputError, match="not a regular file"):
        write_audio(tmp_path / "a.wav", SAMPLES)


def test_a_failed_replace_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = write_audio(tmp_path / "a.wav", SAMPLES)
    before = path.read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(OutputError, match="No space left"):
        write_audio(path, SAMPLES * 0)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["a.wav"]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX links and modes")
def test_links_stay_and_new_files_follow_the_umask(tmp_path):
    target = write_audio(tmp_path / "real.wav", SAMPLES)
    plain = tmp_path / "plain"
    plain.touch()
    assert target.stat().st_mode == plain.stat().st_mode
    link = tmp_path / "link.wav"
    link.symlink_to(target)
    write_audio(link, SAMPLES * 0)
    assert link.is_symlink() and not decode(target.read_bytes()).any()


def test_flac_without_soundfile_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(ToolchainError, match="pip install soundfile"):
        encode_audio(SAMPLES, ".flac")
    assert encode_audio(SAMPLES)


def test_concatenate_with_silence():
    joined = concatenate([np.ones(2, np.float32), np.ones(3, np.float64)], silence=0.001)
    assert joined.tolist() == [1] * 2 + [0] * 24 + [1] * 3 and joined.dtype == np.float32
    assert concatenate([]).shape == (0,)


@pytest.mark.parametrize("silence", [-1, float("nan"), float("inf")])
def test_bad_silence(silence):
    with pytest.raises(InputError, match="silence"):
        concatenate([], silence)
