"""Every kernel call of every component on Metal, in lock step with the CPU.

Both run the same program. What the CPU's kernel made is compared with what Metal's made and put in its place, so that each call
answers for its own error only. Rows beyond the valid lengths become NaN then: reading one would show in the next result.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from metal_emulator import MetalEmulator

from kokoro_tvm.artifact import read_manifest
from kokoro_tvm.mac_bundle import BOUND, bound, kernel_recorder, sample_inputs
from kokoro_tvm.reference.checkpoint import build_model
from kokoro_tvm.runtime.engine import Engine
from kokoro_tvm.stages import COMPONENTS

RATES = (1, 2, 20, 120, 600)
"""Rows in time for each token or frame, in any kernel; transforms have one more."""

LENGTHS = {
    "tiny": {"N": [(1,), (9, 3)], "M": [(4, 1)]},
    "full": {"N": [(1,), (13,), (13, 4), (64,)], "M": [(1,), (16, 5)]},
}
"""Size and kind of capacity to batches: one token, "Hello world", that one with a shorter neighbour, a sentence of 4 s."""
LONG = {"f0n": [(160,)]}
"""More at full size: the frames of 4 s."""

MODES = {
    "forward": {"order": "forward"},
    "reverse": {"order": "reverse"},
    "random": {"order": "random", "seed": 3},
    "watched": {"order": "reverse", "race": True},
    "fast math": {"order": "random", "seed": 5, "fast_math": True},
}


@pytest.fixture(scope="module", params=COMPONENTS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def record(name: str, checkpoint) -> Callable[[list[np.ndarray]], list[tuple[str, np.ndarray]]]:
    return kernel_recorder(name, build_model(checkpoint))


@pytest.mark.parametrize("mode", MODES)
def test_lock_step(
    mode: str, name: str, size: str, dtype: str, components: list[str], artifact, record, request: pytest.FixtureRequest
) -> None:
    """Within 1e-5 of the largest value, whatever the order; no race and nothing unwritten is read where that is watched.

    Products of float16 have their own tolerance.
    """
    if name not in components:
        pytest.skip(f"the same code as with float32, no {dtype}")
    thorough = request.config.getoption("--metal-thorough")
    if not thorough and mode != "random":
        pytest.skip("--metal-thorough runs it")
    batches = LENGTHS[size][COMPONENTS[name].capacity]
    if size == "full":
        batches = batches[:2] if MODES[mode].get("race") else [*batches, *LONG.get(name, [])]
    worst: dict[str, float] = {}
    calls = 0
    with MetalEmulator(**MODES[mode]) as emulator:
        for lengths in batches:
            inputs, capacity = _inputs(name, lengths)
            found = _compare(emulator, name, artifact, inputs, record(inputs), lengths, capacity)
            calls += len(found)
            for kernel, error in found:
                kernel = kernel.rstrip("0123456789")
                worst[kernel] = max(worst.get(kernel, 0.0), error)
    listing = ", ".join(f"{kernel} {error:.1e}" for kernel, error in sorted(worst.items(), key=lambda item: -item[1]))
    print(f"\n{size} {dtype} {name}, {mode}: {calls} calls, {listing}")
    assert worst
    bounds = {k: bound(name, k, dtype) for k in worst} | {"harmonic_source": BOUND}
    assert {k: e for k, e in worst.items() if not e <= bounds[k]} == {}
    assert dtype == "float32" or worst["conv1d"] > BOUND, "it does not round"


def _inputs(name: str, lengths: tuple[int, ...]) -> tuple[list[np.ndarray], int]:
    """A batch in buffers three rows longer than the longest; NaN, or an id that does not exist, beyond the lengths."""
    capacity = max(lengths) + 3
    samples = [sample_inputs(name, n, n) for n in lengths]
    batch = []
    for spec, *values in zip(COMPONENTS[name].inputs, *samples, strict=True):
        shape = spec.resolve(B=len(lengths), N=capacity, M=capacity)
        buffer = np.full(shape, 10**9 if spec.dtype == "int64" else np.nan, spec.dtype)
        for member, value in enumerate(values):
            buffer[(member, *(slice(n) for n in value.shape[1:]))] = value[0]
        batch.append(buffer)
    return batch, capacity


def _valid(shape: tuple[int, ...], lengths: tuple[int, ...], capacity: int) -> np.ndarray:
    """Which values of a kernel's result count: rows of time are some axis but the first, of a length that names their rate."""
    mask = np.ones(shape, bool)
    for axis, extent in enumerate(shape):
        rate, edge = next(((r, e) for r in RATES for e in (0, 1) if extent == r * capacity + e), (0, 0))
        if axis and rate:
            for member, n in zip(np.moveaxis(mask, axis, 1), lengths, strict=True):
                member[rate * n + edge :] = False
            return mask
    return mask


def _compare(emulator, name, artifact, inputs, expected, lengths, capacity) -> list[tuple[str, float]]:
    """Kernel and largest error relative to its largest value, call by call."""
    library = artifact / read_manifest(artifact).components[name].library.name
    machine = emulator.virtual_machine(tvm.runtime.load_module(str(library)))
    weights = Engine(artifact, components=[name])._weights[name]
    remaining = iter(expected)
    found = []

    def instrument(_function, called, before, _result, *arguments):
        if before or called.startswith(("vm.", "shape_func")) or called == name:
            return 0
        kernel, value = next(remaining)
        assert called == kernel
        valid = _valid(value.shape, lengths, capacity)
        result = arguments[-1].numpy()
        assert np.isfinite(value[valid]).all(), f"{kernel} on the CPU"
        error = np.abs(result[valid] - value[valid]).max() / max(np.abs(value[valid]).max(), np.finfo(np.float32).tiny)
        found.append((kernel, float(error)))
        arguments[-1].copyfrom(np.where(valid, value, np.float32(np.nan)))
        return 0

    machine.set_instrument(instrument)
    machine[name](*(emulator.tensor(a) for a in inputs), *weights)
    assert next(remaining, None) is None
    return found
