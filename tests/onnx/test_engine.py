"""The ONNX Runtime engine: exact against float64, whatever the padding and the neighbours, and strict about its inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kokoro_tvm.errors import CapacityError, InputError, OnnxError
from kokoro_tvm.reference.checkpoint import build_model
from kokoro_tvm.runtime.onnx_engine import OnnxEngine
from kokoro_tvm.runtime.synthesis import Synthesizer, load, load_onnx
from kokoro_tvm.stages import COMPONENTS
from kokoro_tvm.validate.metrics import snr_db
from kokoro_tvm.validate.parity import check_component

TOKENS, FRAMES = (14, 3, 20), (9, 3, 12)
"""Valid lengths of a ragged batch; the last is the longest."""
FLOOR_DB = {name: 90.0 if name == "decoder" else 100.0 for name in COMPONENTS}


@pytest.fixture(scope="module")
def engine(tiny_onnx):
    return OnnxEngine(tiny_onnx, threads=2)


@pytest.fixture(scope="module")
def model64(tiny_checkpoint):
    return build_model(tiny_checkpoint, torch.float64)


@pytest.fixture(scope="module")
def model32(tiny_checkpoint):
    return build_model(tiny_checkpoint)


@pytest.mark.parametrize("name", COMPONENTS)
def test_close_to_float64_in_a_ragged_batch_in_poisoned_buffers(engine, model64, model32, name):
    for record in check_component(engine, model64, model32, name):
        assert record.passed, record
        assert record.snr_db >= FLOOR_DB[name]


def drawn(name, length, seed):
    """Inputs of one utterance, of realistic scale."""
    rng = np.random.default_rng(seed)
    draw = {"f0": lambda s: rng.uniform(0, 300, s), "n": lambda s: rng.normal(0, 4, s), "style": lambda s: rng.normal(0, 0.15, s)}
    inputs = []
    for spec in COMPONENTS[name].inputs:
        shape = spec.resolve(B=1, N=length, M=length)
        if spec.name == COMPONENTS[name].lengths:
            inputs.append(np.array([length]))
        elif spec.dtype == "int64":
            inputs.append(rng.integers(1, 100, shape))
        else:
            inputs.append(draw.get(spec.name, lambda s: rng.normal(0, 0.5, s))(shape).astype(np.float32))
    return inputs


def batched(name, samples, capacity):
    """Samples in buffers of a capacity, with NaN and ids outside the vocabulary behind them."""
    batch = []
    for position, spec in enumerate(COMPONENTS[name].inputs):
        shape = spec.resolve(B=len(samples), N=capacity, M=capacity)
        buffer = np.full(shape, 10**9 if spec.dtype == "int64" else np.nan, spec.dtype)
        for b, sample in enumerate(samples):
            value = sample[position][0]
            buffer[(b, *(slice(0, n) for n in np.shape(value)))] = value
        batch.append(buffer)
    return batch


@pytest.mark.parametrize("name", COMPONENTS)
def test_padding_and_neighbours_do_not_matter(engine, name):
    lengths = TOKENS if COMPONENTS[name].capacity == "N" else FRAMES
    samples = [drawn(name, n, seed) for seed, n in enumerate(lengths)]
    together = engine.run(name, *batched(name, samples, max(lengths) + 5))
    for b, sample in enumerate(samples):
        alone = engine.run(name, *sample)
        for spec, output, expected in zip(COMPONENTS[name].outputs, together, alone, strict=True):
            inside = tuple(slice(0, n) for n in expected[0].shape)
            # ONNX Runtime sums in an order that depends on sizes; a row too many or too few would cost all but a few dB.
            floor = 70 if spec.name == "audio" else 95
            assert snr_db(output[b][inside], expected[0]) >= floor, (spec.name, b)
            beyond = output[b].copy()
            beyond[inside] = 0
            assert not beyond.any(), f"{spec.name}: not zero beyond the valid length"


def test_speaks_like_the_compiled_artifact(engine, tiny_artifact, voices_dir):
    compiled = load(tiny_artifact, voices=[voices_dir]).synthesize(phonemes="həlˈO wˈɜɹld", voice="one", seed=3)
    speech = Synthesizer(engine, [voices_dir]).synthesize(phonemes="həlˈO wˈɜɹld", voice="one", seed=3)
    assert np.array_equal(speech.durations, compiled.durations)
    assert np.isfinite(speech.samples).all()
    # Free-running, F0 in float32 decides the source's phase; another noise seed gives about 0 dB.
    assert snr_db(speech.samples, compiled.samples) > 6


def test_load(tiny_onnx, voices_dir):
    synthesizer = load_onnx(tiny_onnx, threads=1, voices=[voices_dir])
    assert synthesizer.synthetic
    assert synthesizer.engine.threads == 1
    assert "ONNX Runtime" in synthesizer.engine.description


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ids, lengths: (ids.astype(np.int32), lengths), "input_ids must be int64"),
        (lambda ids, lengths: (ids[0], lengths), "input_ids must have shape"),
        (lambda ids, lengths: (ids, lengths * 0), "must lie within"),
        (lambda ids, lengths: (ids + 10**6, lengths), "token ids"),
        (lambda ids, lengths: (ids,), "takes 2 inputs"),
    ],
)
def test_wrong_inputs(engine, change, message):
    with pytest.raises(InputError, match=message):
        engine.run("text_encoder", *change(*drawn("text_encoder", 5, 0)))


def test_more_tokens_than_positions(engine):
    with pytest.raises(CapacityError, match="capacity of"):
        engine.run("bert", *drawn("bert", engine.manifest.seq_len + 1, 0))


def test_components_that_were_not_loaded(tiny_onnx):
    with pytest.raises(OnnxError, match="not loaded"):
        OnnxEngine(tiny_onnx, components=["bert"]).run("text_encoder", *drawn("text_encoder", 5, 0))


@pytest.mark.parametrize("threads", [0, -1, True, 1.5])
def test_wrong_threads(tiny_onnx, threads):
    with pytest.raises(InputError, match="threads"):
        OnnxEngine(tiny_onnx, threads=threads, components=["bert"])
