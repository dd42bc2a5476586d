"""Every kernel call of every component on Metal, in lock step with the CPU: ragged batches, every mode of the emulator."""

from __future__ import annotations

import numpy as np
import pytest
from metal_emulator import KernelFault, MetalEmulator, replace_once

from kokoro_tvm.mac_bundle import sample_inputs
from kokoro_tvm.reference.checkpoint import build_model
from kokoro_tvm.stages import COMPONENTS
from kokoro_tvm.validate.emulated import MODES
from kokoro_tvm.validate.lock_step import BOUND, CpuKernels, compare, worst

LENGTHS = {
    "tiny": {"N": [(1,), (9, 3)], "M": [(4, 1)]},
    "full": {"N": [(1,), (13,), (13, 4), (64,)], "M": [(1,), (16, 5)]},
}
"""Size and kind of capacity to batches: one token, "Hello world", that one with a shorter neighbour, a sentence of 4 s."""
LONG = {"f0n": [(160,)]}
"""More at full size: the frames of 4 s."""


@pytest.fixture(scope="module", params=COMPONENTS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def kernels(name: str, checkpoint) -> CpuKernels:
    return CpuKernels(name, build_model(checkpoint))


@pytest.mark.parametrize("mode", MODES)
def test_lock_step(
    mode: str, name: str, size: str, dtype: str, components: list[str], artifact, kernels, request: pytest.FixtureRequest
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
    calls = []
    with MetalEmulator(**MODES[mode]):
        for lengths in batches:
            inputs = _inputs(name, lengths)
            found = compare(artifact, name, kernels.run(inputs), inputs)
            assert found.passed, found.failures
            calls += [(operator, call) for operator, group in found.by_operator().items() for call in group]
    errors = {o: worst([c for operator, c in calls if operator == o]) for o in dict(calls)}
    listing = ", ".join(f"{operator} {error:.1e}" for operator, error in sorted(errors.items(), key=lambda item: -item[1]))
    print(f"\n{size} {dtype} {name}, {mode}: {len(calls)} calls, {listing}")
    assert not errors.get("harmonic_source", 0.0) > BOUND, "its bound is the phase's, and as tight as the others here"
    assert dtype == "float32" or errors["conv1d"] > BOUND, "it does not round"


def test_a_fault_is_a_problem(name: str, size: str, dtype: str, artifact, kernels) -> None:
    """What the emulator refuses ends the comparison, and does not pass."""
    if (name, size, dtype) != ("text_encoder", "tiny", "float32"):
        pytest.skip("one component shows it")
    # Barriers: after the first state, TVM's own within a step, the step's.
    edit = replace_once("bilstm", r"threadgroup_barrier\(.*?\);", "", occurrence=2)
    with MetalEmulator(**MODES["watched"], edit=edit):
        found = compare(artifact, name, kernels.run(inputs := _inputs(name, (4,))), inputs, faults=(KernelFault,))
    assert not found.passed
    assert "data race" in found.problem and "bilstm" in found.problem
    assert 0 < len(found.calls) < found.due


def _inputs(name: str, lengths: tuple[int, ...]) -> list[np.ndarray]:
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
    return batch
