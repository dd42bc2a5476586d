"""The synthetic weights behave as promised, over texts and voices they were not calibrated on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from kokoro_tvm.reference import components
from kokoro_tvm.reference.cases import CASES
from kokoro_tvm.reference.checkpoint import Checkpoint, build_model, load_checkpoint
from kokoro_tvm.reference.model import ReferenceModel
from kokoro_tvm.reference.synthetic import (
    synthetic_phonemes,
    synthetic_voice,
    tiny_config,
    write_synthetic_checkpoint,
    write_synthetic_voice,
)
from kokoro_tvm.reference.trace import Trace, trace

TEXTS = {c.name: c.phonemes for c in CASES if c.name in ("hello with stop", "four seconds", "rare symbols")}
VOICES = {"a": synthetic_voice(1), "b": synthetic_voice(2), "faint": synthetic_voice(3) * 0.6}


@pytest.fixture(scope="module")
def full32(full_synthetic_checkpoint: Checkpoint) -> ReferenceModel:
    return build_model(full_synthetic_checkpoint)


@pytest.fixture(scope="module")
def traces(full32: ReferenceModel) -> list[Trace]:
    result = []
    for phonemes in TEXTS.values():
        ids = components.token_ids(full32, phonemes)
        result += [
            trace(full32, ids, components.style_row(v, ids), components.seeded_noise(0)) for v in VOICES.values()
        ]
    return result


def test_full_architecture(full_synthetic_checkpoint: Checkpoint) -> None:
    count = sum(v.numel() for part in full_synthetic_checkpoint.state.values() for k, v in part.items() if ".norm." not in k)
    assert count == 81_763_410


def test_durations(traces: list[Trace]) -> None:
    durations = torch.cat([t["pred_dur"] for t in traces]).float()
    assert durations.min() >= 1
    assert durations.max() <= 15
    assert 2 <= durations.mean() <= 4
    assert durations.std() > 0.8
    assert all(1.2 <= t["pred_dur"].float().mean() <= 7 and t["pred_dur"].unique().numel() > 1 for t in traces)


def test_durations_are_no_closer_to_a_half_than_chance(traces: list[Trace]) -> None:
    distance = torch.cat([((t["duration"] % 1) - 0.5).abs().flatten() for t in traces])
    assert (distance < 0.005).float().mean() < 0.03


def test_pitch(traces: list[Trace]) -> None:
    for t in traces:
        f0 = t["f0"]
        voiced = (f0 > 80) & (f0 < 300)
        assert 0.5 < voiced.float().mean() < 0.9
        assert 0.1 < (f0 < 10).float().mean() < 0.45
        assert f0.max() < 330
        assert f0[voiced].std() > 20


def test_energy(traces: list[Trace]) -> None:
    n = torch.cat([t["n"].flatten() for t in traces])
    assert -1 < n.mean() < 5
    assert 3 < n.std() < 8


def test_audio_peaks(traces: list[Trace]) -> None:
    for t in traces:
        assert torch.isfinite(t["audio"]).all()
        assert 0.1 <= t["audio"].abs().max() <= 1


def test_no_stage_vanishes_or_explodes(traces: list[Trace]) -> None:
    other_units = {"f0", "n", "pred_dur", "duration", "f0n.f0.2", "har_source", "har_magnitude", "audio"}
    for name in traces[0].keys() - other_units:
        rms = [t[name].square().mean().sqrt() for t in traces]
        assert min(rms) > 0.1 and max(rms) < 5, name


def test_style_and_text_matter(traces: list[Trace]) -> None:
    first, second = traces[0]["t_en"], traces[1]["t_en"]
    assert torch.equal(first, second)  # the text encoder has no style
    change = (traces[0]["d"] - traces[1]["d"])[..., :512].square().mean().sqrt()
    assert change > 0.2


def test_lstms_carry_state(full32: ReferenceModel) -> None:
    """A changed first token is seen ten steps on, so that padding which leaks in would be seen as well."""
    ids = components.token_ids(full32, TEXTS["four seconds"])
    changed = ids.clone()
    changed[0, 1] = 130
    change = (components.run_text_encoder(full32, ids) - components.run_text_encoder(full32, changed))[0].abs()
    assert change.amax(dim=0)[12] > 1e-3


def test_same_seed_same_bytes_for_any_thread_count(tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if threads > 1 else 2)
    try:
        path = write_synthetic_checkpoint(tmp_path, config=tiny_config())
    finally:
        torch.set_num_threads(threads)
    again = load_checkpoint(tmp_path)
    path.unlink()
    assert again.sha256 == tiny_checkpoint.sha256


def test_voices(tmp_path: Path) -> None:
    voice = synthetic_voice(5)
    assert voice.shape == (510, 1, 256)
    assert voice.dtype == torch.float32
    assert 0.1 < voice.std() < 0.3
    assert (voice[1:] - voice[:-1]).std() < 0.02
    assert torch.equal(voice, synthetic_voice(5))
    assert not torch.equal(voice, synthetic_voice(6))
    raw = np.fromfile(write_synthetic_voice(tmp_path / "v.bin", 5), "<f4").reshape(510, 1, 256)
    assert np.array_equal(raw, voice.numpy())
    assert torch.equal(torch.load(write_synthetic_voice(tmp_path / "v.pt", 5), weights_only=True), voice)


def test_phonemes_are_in_the_vocabulary() -> None:
    config = tiny_config()
    phonemes = synthetic_phonemes(3, 200, config)
    assert len(phonemes) == 200
    assert set(phonemes) <= config.vocab.keys()
    assert phonemes == synthetic_phonemes(3, 200, config)
