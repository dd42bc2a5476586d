"""The published weights, compiled, against float64 eager kokoro: durations exactly, everything else in dB.

Every component is fed the reference's own tensors (isolated) and held to the floors of ``validate_steps``, PyTorch in float32
beside it; the durations also come from the chain bert, duration as it runs in synthesis.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kokoro_tvm.reference import components as reference
from kokoro_tvm.reference.cases import CASES
from kokoro_tvm.reference.checkpoint import build_model
from kokoro_tvm.runtime import alignment
from kokoro_tvm.runtime.engine import Engine
from kokoro_tvm.runtime.voices import VoiceStore
from kokoro_tvm.validate.metrics import compare, snr_db
from kokoro_tvm.validate.published import on_published_weights
from kokoro_tvm.validate.tolerances import STAGES

pytestmark = pytest.mark.full

VOICES = ("af_heart", "bm_george")


@pytest.fixture(scope="module")
def engine(full_artifact):
    return Engine(full_artifact, threads=2)


@pytest.fixture(scope="module")
def oracle(full_checkpoint):
    return build_model(full_checkpoint, torch.float64)


@pytest.fixture(scope="module")
def single(full_checkpoint):
    return build_model(full_checkpoint)


def _style(voice: str, ids: torch.Tensor) -> torch.Tensor:
    """Float32 [1, 256]."""
    return torch.from_numpy(VoiceStore(allow_download=False).load(voice).row(ids.shape[1] - 2).copy())[None]


def _judge(component: str, tensor: str, compiled: np.ndarray, truth: torch.Tensor, pytorch: torch.Tensor) -> None:
    """Holds an output to the floor that ``validate_steps`` has for it on these weights."""
    (stage,) = (s for s in STAGES if s.name == component)
    tolerance = on_published_weights(component, tensor, "isolated", stage.tolerance(tensor))
    found, yardstick = (compare(x.reshape(truth.shape), truth.numpy()) for x in (compiled, pytorch.numpy()))
    assert tolerance.passes(found, yardstick), (tensor, found.snr_db, yardstick.snr_db, tolerance)


def _float32(x: torch.Tensor) -> np.ndarray:
    return np.ascontiguousarray(x.numpy(), np.float32)


def test_durations_of_many_texts(engine, oracle):
    assert len(CASES) >= 20
    wrong = {}
    for case in CASES:
        ids = reference.token_ids(oracle, case.phonemes)
        lengths = np.array([ids.shape[1]])
        d_en = reference.run_bert(oracle, ids)
        (compiled,) = engine.run("bert", ids.numpy(), lengths)
        assert snr_db(compiled, d_en.numpy()) >= 115, case.name
        for voice in VOICES:
            style = _style(voice, ids)[:, 128:]
            _, duration = reference.run_duration(oracle, d_en, style.double())
            _, chained = engine.run("duration", compiled, _float32(style), lengths)
            expected = torch.round(duration[0]).clamp(min=1).long().numpy()
            if not np.array_equal(alignment.frame_counts(chained[0]), expected):
                wrong[case.name, voice] = np.abs(duration[0].numpy() % 1 - 0.5).min()
    assert not wrong, f"durations differ (distance of the closest from .5): {wrong}"


@pytest.mark.parametrize("voice", VOICES)
def test_isolated_components(engine, oracle, single, voice):
    ids = reference.token_ids(oracle, "həlˈO wˈɜɹld")
    style = _style(voice, ids)
    timbre, prosody = style[:, :128], style[:, 128:]
    lengths = np.array([ids.shape[1]])

    def held(component, tensors, compiled, run, *inputs):
        """One component in every arithmetic, from the same float32 inputs; returns the truth."""
        widened = [x.double() if x.is_floating_point() else x for x in inputs]
        truth, pytorch = (_listed(run(m, *x)) for m, x in ((oracle, widened), (single, inputs)))
        for each in zip(tensors, compiled, truth, pytorch, strict=True):
            _judge(component, *each)
        return truth

    (d_en,) = held("bert", ["d_en"], engine.run("bert", ids.numpy(), lengths), reference.run_bert, ids)
    d_en = d_en.float()
    made = engine.run("duration", _float32(d_en), _float32(prosody), lengths)
    d, duration = held("duration", ["d", "duration"], made, reference.run_duration, d_en, prosody)
    made = engine.run("text_encoder", ids.numpy(), lengths)
    (t_en,) = held("text_encoder", ["t_en"], made, reference.run_text_encoder, ids)

    pred_dur = alignment.frame_counts(duration[0].float().numpy())
    index = torch.from_numpy(alignment.frame_index(pred_dur))
    frames = np.array([len(index)])
    en = d.transpose(1, 2)[..., index].float()
    made = engine.run("f0n", _float32(en), _float32(prosody), frames)
    f0, n = held("f0n", ["f0", "n"], made, reference.run_f0n, en, prosody)

    inputs = [t_en[..., index].float(), f0.float(), n.float(), timbre]
    noise = reference.seeded_noise(0)(len(index))
    made = engine.run("decoder", *map(_float32, inputs), frames, _float32(noise))
    assert made[0].shape == (1, 600 * len(index))
    held("decoder", ["audio"], made, lambda m, *x: reference.run_decoder(m, *x, noise), *inputs)


def _listed(result: torch.Tensor | tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple) else [result]
