"""The compiled components against float64 eager kokoro: durations exactly, everything else in dB.

Every component is fed the reference's own tensors (isolated), the durations also come from the chain bert, duration as it runs in
synthesis.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kokoro_tvm.reference import components as reference
from kokoro_tvm.reference.cases import CASES
from kokoro_tvm.reference.checkpoint import build_model
from kokoro_tvm.reference.synthetic import synthetic_voice
from kokoro_tvm.runtime import alignment
from kokoro_tvm.runtime.engine import Engine

pytestmark = pytest.mark.full

ENCODER_FLOOR = 100.0
"""dB: float32 PyTorch itself is 109 to 132 dB away."""
DECODER_FLOOR = 90.0
"""dB: with the source in float64 and the rest in float32, 100 dB is what the arithmetic allows; float32 PyTorch reaches 10."""
VOICES = (1, 2)


@pytest.fixture(scope="module")
def engine(full_artifact):
    return Engine(full_artifact, threads=2)


@pytest.fixture(scope="module")
def oracle(full_checkpoint):
    return build_model(full_checkpoint, torch.float64)


def _snr(actual: np.ndarray, expected: torch.Tensor) -> float:
    truth = expected.numpy().reshape(actual.shape)
    assert truth.dtype == np.float64
    error = float(((actual - truth) ** 2).sum())
    return float("inf") if error == 0 else 10 * np.log10(float((truth**2).sum()) / error)


def _float32(x: torch.Tensor) -> np.ndarray:
    return np.ascontiguousarray(x.numpy(), np.float32)


def test_durations_of_many_texts(engine, oracle):
    assert len(CASES) >= 20
    tables = [synthetic_voice(voice) for voice in VOICES]
    wrong = {}
    for case in CASES:
        ids = reference.token_ids(oracle, case.phonemes)
        lengths = np.array([ids.shape[1]])
        d_en = reference.run_bert(oracle, ids)
        (compiled,) = engine.run("bert", ids.numpy(), lengths)
        assert _snr(compiled, d_en) >= ENCODER_FLOOR, case.name
        for voice, table in zip(VOICES, tables, strict=True):
            style = reference.style_row(table, ids)[:, 128:]
            _, duration = reference.run_duration(oracle, d_en, style.double())
            _, chained = engine.run("duration", compiled, _float32(style), lengths)
            expected = torch.round(duration[0]).clamp(min=1).long().numpy()
            if not np.array_equal(alignment.frame_counts(chained[0]), expected):
                wrong[case.name, voice] = np.abs(duration[0].numpy() % 1 - 0.5).min()
    assert not wrong, f"durations differ (distance of the closest from .5): {wrong}"


@pytest.mark.parametrize("phonemes", ["həlˈO wˈɜɹld", "ðə kwˈɪk bɹˈWn fˈɑks ʤˈʌmps ˈOvəɹ ðə lˈAzi dˈɔɡ."])
def test_isolated_components(engine, oracle, phonemes):
    ids = reference.token_ids(oracle, phonemes)
    row = reference.style_row(synthetic_voice(1), ids).double()
    style, timbre = row[:, 128:], row[:, :128]
    lengths = np.array([ids.shape[1]])
    d_en = reference.run_bert(oracle, ids)
    d, duration = reference.run_duration(oracle, d_en, style)
    d32, duration32 = engine.run("duration", _float32(d_en), _float32(style), lengths)
    assert _snr(d32, d) >= ENCODER_FLOOR
    assert _snr(duration32, duration) >= ENCODER_FLOOR
    t_en = reference.run_text_encoder(oracle, ids)
    assert _snr(engine.run("text_encoder", ids.numpy(), lengths)[0], t_en) >= ENCODER_FLOOR

    pred_dur = alignment.frame_counts(duration[0].float().numpy())
    index = torch.from_numpy(alignment.frame_index(pred_dur))
    frames = np.array([len(index)])
    en = d.transpose(1, 2)[..., index]
    f0, n = reference.run_f0n(oracle, en, style)
    compiled = engine.run("f0n", _float32(en), _float32(style), frames)
    assert _snr(compiled[0], f0) >= ENCODER_FLOOR
    assert _snr(compiled[1], n) >= ENCODER_FLOOR

    asr = t_en[..., index]
    noise = reference.seeded_noise(0)(len(index))
    inputs = [_float32(v) for v in (asr, f0, n)]
    # The oracle decodes exactly what the compiled decoder is given: float32 values, widened.
    widened = [torch.from_numpy(v).double() for v in inputs]
    audio = reference.run_decoder(oracle, *widened, timbre, noise)
    (compiled_audio,) = engine.run("decoder", *inputs, _float32(timbre), frames, _float32(noise))
    assert compiled_audio.shape == (1, 600 * len(index))
    assert _snr(compiled_audio, audio) >= DECODER_FLOOR
