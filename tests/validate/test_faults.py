"""Each deliberate fault makes the right stage fail, and nothing before it; without a fault everything passes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kokoro_tvm.reference import components
from kokoro_tvm.reference.synthetic import synthetic_voice
from kokoro_tvm.validate import steps
from kokoro_tvm.validate.subjects import Eager, Rewrite
from kokoro_tvm.validate.tolerances import STAGES

PHONEMES = "hˈO"
BY_NAME = {s.name: s for s in STAGES}


@pytest.fixture(scope="module")
def utterance(tiny64):
    ids = components.token_ids(tiny64, PHONEMES)
    return steps.Utterance("test", PHONEMES, ids, components.style_row(synthetic_voice(7), ids))


@pytest.fixture(scope="module")
def cached(tiny64, tiny32):
    """Subjects whose answers for the same stage and inputs are computed once: only the judged one changes between tests."""
    static = Rewrite(tiny64, 0.1)
    return steps.Subjects(
        Cached(Eager(tiny64)),
        Cached(Eager(tiny32)),
        Cached(static),
        Cached(Rewrite(tiny64, 0.1, lengths=False, modules=static.modules)),
        Cached(Rewrite(tiny32, 0.1)),
    )


class Cached:
    """Remembers results by stage and inputs."""

    def __init__(self, subject):
        self.subject = subject
        self.known = {}
        self.model = subject.model

    def run(self, stage, inputs):
        key = (stage.name, *(hash(t.numpy().tobytes()) for t in inputs.values()))
        if key not in self.known:
            self.known[key] = self.subject.run(stage, inputs)
        return dict(self.known[key])


class Faulty:
    """A subject with one fault: ``change`` gets a stage's results (and inputs) and returns others."""

    def __init__(self, subject, stages, change):
        self.subject = subject
        self.stages = stages
        self.change = change

    def run(self, stage, inputs):
        found = self.subject.run(stage, inputs)
        return self.change(found, inputs) if stage.name in self.stages else found


def failures(cached, compiled, utterance, stage=None):
    """Names of the records that fail: of one stage isolated, or of everything."""
    subjects = replace(cached, compiled=compiled)
    truth = _truth(cached, utterance)
    if stage is not None:
        records = steps.isolated(subjects, BY_NAME[stage], steps.reference_inputs(BY_NAME[stage], truth, utterance))
        assert records
        return [r.tensor for r in records if not r.passed]
    chains = {name: steps.chain(s, utterance) for name, s in _regimes(subjects).items()}
    return [r.tensor for r in steps.judge_chained(subjects, truth, chains, utterance) if not r.passed]


def _truth(cached, utterance):
    key = ("trace", utterance)
    if key not in cached.truth.known:
        cached.truth.known[key] = steps.trace(
            cached.truth.model, utterance.input_ids, utterance.style, utterance.noise, utterance.speed
        )
    return cached.truth.known[key]


def _regimes(subjects):
    return {steps.STATIC: subjects.static, steps.SINGLE: subjects.single, steps.COMPILED: subjects.compiled}


def changed(name, change):
    """A change of one tensor."""
    return lambda found, _: {**found, name: change(found[name])}


def test_without_a_fault_everything_passes(cached, utterance):
    for stage in BY_NAME:
        assert failures(cached, cached.compiled, utterance, stage) == [], stage
    assert failures(cached, cached.compiled, utterance) == []


def _nan_in_one_channel(tensor):
    tensor = tensor.clone()
    tensor[0, 3, 1] = torch.nan
    return tensor


@pytest.mark.parametrize(
    ("stage", "tensor", "change"),
    [
        ("text_encoder", "t_en", _nan_in_one_channel),
        ("bert", "d_en", lambda t: t * 1.5),
        ("generator", "audio", lambda t: t * 1.5),
        ("f0n", "f0", lambda t: t.roll(2, dims=1)),
        ("decoder", "audio", lambda t: t.roll(600, dims=1)),
        ("duration", "d", lambda t: t[:, :-1]),
        ("trunk", "decoder.encode", lambda t: t.transpose(1, 2)),
    ],
    ids=["nan in one channel", "scaled encoder", "scaled audio", "f0 a frame late", "audio a frame late", "short", "transposed"],
)
def test_a_damaged_tensor_fails_alone(cached, utterance, stage, tensor, change):
    faulty = Faulty(cached.compiled, (stage,), changed(tensor, change))
    assert failures(cached, faulty, utterance, stage) == [tensor]


def test_nan_is_not_equal_to_nan(cached, utterance):
    """The truth cannot excuse a NaN, and the measurement says where it is."""
    faulty = Faulty(cached.compiled, ("text_encoder",), changed("t_en", _nan_in_one_channel))
    truth = _truth(cached, utterance)
    inputs = steps.reference_inputs(BY_NAME["text_encoder"], truth, utterance)
    records = steps.isolated(replace(cached, compiled=faulty), BY_NAME["text_encoder"], inputs)
    found = steps.find(records, "text_encoder", "t_en", "isolated").measured[steps.COMPILED]
    assert np.isnan(found.snr_db)
    assert found.where == (0, 3, 1)
    assert 0 < found.finite < 1


@pytest.mark.parametrize("stage", ["bert", "duration", "text_encoder", "f0n", "trunk", "generator", "decoder"])
def test_ignored_lengths_fail(cached, tiny32, utterance, stage):
    careless = Rewrite(tiny32, 0.1, lengths=False)
    assert failures(cached, careless, utterance, stage)


def test_swapped_gates_fail_where_the_lstm_is(cached, tiny32, utterance):
    """Gates i, f, g, o taken as i, g, f, o (the order of other frameworks)."""
    swapped = Rewrite(tiny32)
    lstm = swapped.module("text_encoder").lstm
    hidden = lstm.w_hh.shape[2]
    order = torch.cat([torch.arange(k * hidden, (k + 1) * hidden) for k in (0, 2, 1, 3)])
    for weight in (lstm.w_ih, lstm.w_hh, lstm.b_ih, lstm.b_hh):
        weight.data = weight.data[:, order].contiguous()
    assert failures(cached, swapped, utterance, "text_encoder") == ["text_encoder.lstm", "t_en"]


def test_missing_window_sum_fails_in_the_inverse_transform(cached, utterance):
    """An inverse STFT that adds frames up and does not divide by the sum of squared windows."""
    window = torch.hann_window(20) ** 2

    def unnormalised(audio):
        frames = audio.shape[1] // 5 + 1
        total = torch.zeros(5 * (frames - 1) + 20)
        for i in range(frames):
            total[5 * i : 5 * i + 20] += window
        return audio * total[10 : 10 + audio.shape[1]]

    faulty = Faulty(cached.compiled, ("generator",), changed("audio", unnormalised))
    assert failures(cached, faulty, utterance, "generator") == ["audio"]


def test_noise_that_is_not_injected_fails_in_the_source(cached, utterance):
    class Quiet:
        def run(self, stage, inputs):
            return cached.compiled.run(stage, {n: torch.zeros_like(t) if n == "noise" else t for n, t in inputs.items()})

    assert failures(cached, Quiet(), utterance, "source") == ["har_source", "har_magnitude", "har_phase"]
    assert failures(cached, Quiet(), utterance, "trunk") == []
    assert failures(cached, Quiet(), utterance) == ["audio"]


def test_a_missing_tensor_fails(cached, utterance):
    faulty = Faulty(cached.compiled, ("f0n",), lambda found, _: {k: v for k, v in found.items() if k != "n"})
    assert failures(cached, faulty, utterance, "f0n") == ["n"]


def test_a_stage_that_gives_nothing_fails(cached, utterance):
    faulty = Faulty(cached.compiled, ("source",), lambda *_: {})
    assert failures(cached, faulty, utterance, "source") == ["har_source", "har_magnitude", "har_phase"]


def test_no_records_is_no_pass(cached, utterance):
    assert not steps.Report(utterance, [], _truth(cached, utterance), {}).passed


def test_a_duration_flip_fails_first_in_the_durations(cached, utterance):
    """One token's duration is pushed over the half; the note says which and how close it was."""
    truth = _truth(cached, utterance)
    exact = truth["duration"][0]
    token = int((exact - exact.floor() - 0.5).abs().argmin())
    step = 1.0 if exact[token] - exact[token].floor() < 0.5 else -1.0

    def flip(duration):
        duration = duration.clone()
        duration[0, token] += step
        return duration

    faulty = Faulty(cached.compiled, ("duration",), changed("duration", flip))
    failed = failures(cached, faulty, utterance)
    assert failed[:2] == ["duration", "pred_dur"]
    assert {"samples", "audio", "f0"} <= set(failed)
    note = list(steps.duration_flips(truth, steps.chain(faulty, utterance), 1.0))
    assert len(note) == 1
    assert note[0].startswith(f"token {token}: ")
    assert "from .5" in note[0]
