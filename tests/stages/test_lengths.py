"""Length is data: padding and batch neighbours never change a valid value.

Every compiled component runs one utterance at the capacity of its length, at twice and at sixteen times that, and as a member of
a ragged batch, with NaN in the padding of every floating-point input. The valid region has to be the same to the last bit.
"""

from __future__ import annotations

import numpy as np
import pytest

from kokoro_tvm.artifact import aligned_empty
from kokoro_tvm.runtime.engine import Engine
from kokoro_tvm.stages import COMPONENTS

TOKENS = (14, 1, 33, 60)
FRAMES = (16, 1, 23, 64)
"""Valid lengths of the four members of the ragged batch; the last is the longest."""

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def engine(full_artifact):
    return Engine(full_artifact, threads=2)


def _sample(name: str, length: int, seed: int) -> list[np.ndarray]:
    """Inputs of one utterance at the capacity of its length, of realistic scale."""
    rng = np.random.default_rng(seed)
    draw = {"f0": lambda s: rng.uniform(0, 300, s), "n": lambda s: rng.normal(0, 4, s), "style": lambda s: rng.normal(0, 0.15, s)}
    inputs = []
    for spec in COMPONENTS[name].inputs:
        shape = spec.resolve(B=1, N=length, M=length)
        if spec.name == "input_ids":
            inputs.append(rng.integers(1, 178, shape))
        elif spec.dtype == "int64":
            inputs.append(np.array([length]))
        else:
            inputs.append(draw.get(spec.name, lambda s: rng.normal(0, 0.5, s))(shape).astype(np.float32))
    return inputs


def _batched(name: str, samples: list[list[np.ndarray]], capacity: int) -> list[np.ndarray]:
    """Samples in buffers of a capacity; what lies beyond their lengths is NaN, and an id outside the vocabulary."""
    batch = []
    for position, spec in enumerate(COMPONENTS[name].inputs):
        shape = spec.resolve(B=len(samples), N=capacity, M=capacity)
        buffer = aligned_empty(shape, spec.dtype)
        buffer[...] = 10**9 if spec.dtype == "int64" else np.nan
        for b, sample in enumerate(samples):
            value = sample[position][0]
            buffer[(b, *(slice(0, n) for n in np.shape(value)))] = value
        batch.append(buffer)
    return batch


def _check(name: str, outputs: tuple[np.ndarray, ...], alone: tuple[np.ndarray, ...], member: int) -> None:
    for spec, output, expected in zip(COMPONENTS[name].outputs, outputs, alone, strict=True):
        valid = tuple(slice(0, n) for n in expected[0].shape)
        assert np.isfinite(expected).all()
        assert np.array_equal(output[member][valid], expected[0]), f"{name}: {spec.name} depends on its padding"
        rest = output[member].copy()
        rest[valid] = 0
        assert not rest.any(), f"{name}: {spec.name} is not zero beyond the valid length"


@pytest.mark.parametrize("name", COMPONENTS)
def test_capacity_changes_nothing(engine, name):
    length = (TOKENS if COMPONENTS[name].capacity == "N" else FRAMES)[-1]
    sample = _sample(name, length, seed=1)
    alone = engine.run(name, *sample)
    for capacity in (length + 1, 2 * length, min(16 * length, 1024)):
        _check(name, engine.run(name, *_batched(name, [sample], capacity)), alone, 0)


@pytest.mark.parametrize("name", COMPONENTS)
def test_batch_neighbours_change_nothing(engine, name):
    lengths = TOKENS if COMPONENTS[name].capacity == "N" else FRAMES
    samples = [_sample(name, n, seed=n) for n in lengths]
    outputs = engine.run(name, *_batched(name, samples, max(lengths) + 3))
    for member, sample in enumerate(samples):
        _check(name, outputs, engine.run(name, *sample), member)


LSTM_COMPONENTS = ("duration", "text_encoder", "f0n")


@pytest.mark.parametrize("name", LSTM_COMPONENTS)
def test_the_lstm_in_tir_keeps_the_same_promises(full_artifact_tir, engine, name):
    tir = Engine(full_artifact_tir, threads=2, components=[name])
    assert tir.manifest.extern is None
    lengths = TOKENS if COMPONENTS[name].capacity == "N" else FRAMES
    samples = [_sample(name, n, seed=n) for n in lengths]
    outputs = tir.run(name, *_batched(name, samples, 4 * max(lengths)))
    for member, sample in enumerate(samples):
        alone = tir.run(name, *sample)
        _check(name, outputs, alone, member)
        if lengths[member] < 3:
            # No utterance is that short. One row has no variance: instance norm magnifies rounding by 1 / sqrt(epsilon).
            continue
        for ours, theirs in zip(alone, engine.run(name, *sample), strict=True):
            error = np.abs(ours - theirs).max() / np.abs(theirs).max()
            assert error <= 2e-5, f"extern and TIR differ by {error:.1e}"


@pytest.mark.parametrize("name", COMPONENTS)
def test_threads_change_nothing(full_artifact, engine, name):
    length = TOKENS[-1] if COMPONENTS[name].capacity == "N" else FRAMES[2]
    sample = _sample(name, length, seed=3)
    single = Engine(full_artifact, threads=1, components=[name], verify=False)
    for one, two in zip(single.run(name, *sample), engine.run(name, *sample), strict=True):
        assert np.array_equal(one, two)


@pytest.mark.parametrize("name", COMPONENTS)
def test_ignoring_the_lengths_is_noticed(engine, name):
    """The switch of the validators: the same padded buffers with every row declared valid give other values."""
    component = COMPONENTS[name]
    length = TOKENS[-1] if component.capacity == "N" else FRAMES[2]
    sample = _sample(name, length, seed=4)
    alone = engine.run(name, *sample)
    inputs = [np.nan_to_num(a, nan=0.0) if a.dtype == np.float32 else a for a in _batched(name, [sample], 2 * length)]
    position = [s.name for s in component.inputs].index(component.lengths)
    inputs[position] = np.array([2 * length])
    if component.inputs[0].name == "input_ids":
        inputs[0][inputs[0] == 10**9] = 0
    outputs = engine.run(name, *inputs)
    with pytest.raises(AssertionError, match="depends on its padding"):
        _check(name, outputs, alone, 0)
