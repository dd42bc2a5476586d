"""Published weights, compiled: what a listener would notice fails the gates, those named for it at least, also where rounding is
allowed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kokoro_tvm.runtime.engine import Engine
from kokoro_tvm.runtime.synthesis import Synthesizer
from kokoro_tvm.stages import COMPONENTS
from kokoro_tvm.validate import speech
from kokoro_tvm.validate.e2e import COMPILED, RESEEDED, SINGLE, render_artifact
from kokoro_tvm.validate.listening import Impression, Recording, likeness, listen
from kokoro_tvm.validate.speech import DOUBLE, Line, Result
from kokoro_tvm.validate.workbench import Workbench

pytestmark = pytest.mark.full

SPOKEN = {
    "Nobody answered the telephone.": "nˈObˌɑdi ˈænsəɹd ðə tˈɛləfˌOn.",
    "Where did you leave your umbrella?": "wˌɛɹ dɪd ju lˈiv jʊɹ ʌmbɹˈɛlə?",
}
HALF_FRAME = 300


@pytest.fixture(scope="module")
def bench(full_checkpoint, full_artifact, tmp_path_factory):
    engine = Engine(full_artifact, 2, tuple(COMPONENTS))
    return Workbench(full_checkpoint, Synthesizer(engine), tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def known(bench):
    """Each line, said and heard by all but the judged one, once for all faults."""

    def render(utterance):
        return render_artifact(bench.synthesizer, utterance)

    lines = [Line(text, "af_heart", bench.utterances(None, p, "af_heart", 1.0)) for text, p in SPOKEN.items()]
    spoken = [(line, speech.speak(bench.double.model, bench.single.model, render, line, ("another-seed",))) for line in lines]
    return [(line, said, {n: listen(r.samples, line.text) for n, r in said.items()}) for line, said in spoken]


DTYPES = ("float32", "bf16")


def judged(known, render):
    """By dtype, the gates that fail when ``render`` (of an utterance and its faultless rendering) is what is judged."""
    results = []
    for line, said, sounds in known:
        (utterance,) = line.utterances
        renderings = {**said, COMPILED: render(utterance, said[COMPILED])}
        heard = {**sounds, COMPILED: listen(renderings[COMPILED].samples, line.text)}
        recordings = {n: Recording(r.samples, r.durations) for n, r in renderings.items()}
        found = likeness(recordings[COMPILED], recordings[DOUBLE], (heard[COMPILED], heard[DOUBLE]))
        results.append(Result(line, renderings, Impression(heard, {COMPILED: found})))
    return {dtype: {g.name for g in speech.gates(results, dtype) if not g.passed} for dtype in DTYPES}


def caught(known, render, *gates):
    """Whether all of these gates, or any if none is named, fail with either dtype's limits."""
    failed = judged(known, render)
    return all(failed[dtype] and failed[dtype] >= set(gates) for dtype in DTYPES)


def heard_as(change):
    """A fault of the samples alone."""
    return lambda _, faultless: replace(faultless, samples=change(faultless.samples).astype(np.float32))


def test_without_a_fault_everything_passes(known):
    assert judged(known, lambda _, faultless: faultless) == {"float32": set(), "bf16": set()}


def test_another_noise_seed_passes_where_rounding_is_allowed(known):
    """It sounds the same; gates that refuse it would measure something else than listeners do."""
    reseeded = {id(line.utterances[0]): said[RESEEDED] for line, said, _ in known}
    assert judged(known, lambda utterance, _: reseeded[id(utterance)])["bf16"] == set()


def test_float32_pytorch_passes(known):
    single = {id(line.utterances[0]): said[SINGLE] for line, said, _ in known}
    assert judged(known, lambda utterance, _: single[id(utterance)])["float32"] == set()


# --- the samples -------------------------------------------------------------------------------------------------------------


def late(samples, by):
    return np.concatenate([np.zeros(by, samples.dtype), samples[:-by]])


def silenced(samples, start, count):
    changed = samples.copy()
    changed[start : start + count] = 0
    return changed


@pytest.mark.parametrize(
    ("change", "gate"),
    [
        (lambda s: s * 10 ** (0.5 / 20), "loudness, dB"),
        (lambda s: s * 10 ** (-0.5 / 20), "loudness, dB"),
        (lambda s: late(s, HALF_FRAME), "lag, samples"),
        (lambda s: late(s, 1), "lag, samples"),
        (lambda s: s + 0.005, "offset"),
        (lambda s: silenced(s, 16000, 2400), "MCD, dB"),
        (lambda s: np.where(np.arange(len(s)) == 9000, np.nan, s), "peak"),
        (lambda s: np.where(np.arange(len(s)) == 9000, 0.9, s), "peak, dB"),
        (lambda s: s[:-600], "samples"),
    ],
    ids=["louder", "softer", "half a frame late", "a sample late", "offset", "a gap", "nan", "click", "short"],
)  # fmt: skip
def test_damaged_samples(known, change, gate):
    assert caught(known, heard_as(change), gate)


def _last_word(utterance, rendering):
    """Where it begins: tokens are the phonemes between two markers."""
    assert len(rendering.durations) == len(utterance.phonemes) + 2
    return 600 * int(rendering.durations[: utterance.phonemes.rindex(" ") + 2].sum())


def test_a_dropped_last_word(known):
    def cut(utterance, faultless):
        return replace(faultless, samples=faultless.samples[: _last_word(utterance, faultless)])

    def silent(utterance, faultless):
        start = _last_word(utterance, faultless)
        return replace(faultless, samples=silenced(faultless.samples, start, len(faultless.samples)))

    lost = ("last words lost", "word errors, %")
    assert caught(known, cut, *lost, "samples")
    assert caught(known, silent, *lost, "MCD, dB")


# --- the model ---------------------------------------------------------------------------------------------------------------


class Faulty:
    """An engine with one fault: ``change`` gets a component's name, its inputs and the way to run it."""

    def __init__(self, engine, change):
        self._engine = engine
        self._change = change

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def run(self, name, *inputs):
        return self._change(name, inputs, self._engine.run)


def of_engine(engine):
    synthesizer = Synthesizer(engine)
    return lambda utterance, _: render_artifact(synthesizer, utterance)


def of_utterance(bench, change):
    return lambda utterance, _: render_artifact(bench.synthesizer, change(utterance))


def test_a_shifted_style_row(known, bench):
    """Row n, not n − 1, of n phonemes."""
    table = bench.voice("af_heart")

    def shifted(utterance):
        row = table.row(len(utterance.phonemes) + 1)
        return replace(utterance, style=torch.from_numpy(row.copy())[None])

    assert caught(known, of_utterance(bench, shifted))


def test_swapped_halves_of_the_style(known, bench):
    swap = of_utterance(bench, lambda u: replace(u, style=u.style.roll(128, dims=1)))
    assert caught(known, swap, "tokens of other duration", "samples")


def test_two_percent_faster(known, bench):
    faster = of_utterance(bench, lambda u: replace(u, speed=1.02))
    assert caught(known, faster, "tokens of other duration")


@pytest.mark.parametrize("direction", [0, 1], ids=["forward", "backward"])
@pytest.mark.parametrize(("component", "lstm"), [("duration", "lstms.0"), ("f0n", "shared"), ("text_encoder", "lstm")])
def test_swapped_gates_of_one_lstm(known, bench, full_artifact, component, lstm, direction):
    """Gates i, f, g, o taken as i, g, f, o in one direction, in the weights that the compiled code reads."""
    engine = Engine(full_artifact, 2, tuple(COMPONENTS), verify=False)
    names = [p if isinstance(p, str) else p.name for p in engine.manifest.components[component].parameters]
    swapped = [i for i, n in enumerate(names) if n.startswith(f"{lstm}.")]
    assert len(swapped) == 4
    for i in swapped:
        weight = np.from_dlpack(engine._weights[component][i]).copy()
        # However a weight is packed, directions and within them gates come first.
        gates = weight.reshape(2, 4, -1)
        gates[direction] = gates[direction][[0, 2, 1, 3]]
        engine._weights[component][i] = engine._device.put(weight)
    assert caught(known, of_engine(engine))


@pytest.mark.parametrize("change", ["late", "sharp"])
def test_another_melody(known, bench, change):
    """F0 a frame late, or 20 cents too high."""

    def changed(name, inputs, run):
        found = run(name, *inputs)
        if name != "f0n":
            return found
        f0, n = found
        return (np.roll(f0, 2, axis=1) if change == "late" else f0 * np.float32(2 ** (20 / 1200)), n)

    assert caught(known, of_engine(Faulty(bench.synthesizer.engine, changed)), "F0, cents")


def test_no_noise_in_the_source(known, bench):
    def quiet(name, inputs, run):
        return run(name, *inputs[:-1], np.zeros_like(inputs[-1])) if name == "decoder" else run(name, *inputs)

    assert "MCD, dB" in judged(known, of_engine(Faulty(bench.synthesizer.engine, quiet)))["float32"]
