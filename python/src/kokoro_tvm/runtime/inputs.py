"""What an engine is given, checked before anything runs.

What it is: shapes, dtypes, lengths, token ids and thread counts against ``stages.COMPONENTS`` and an engine's capacities, for
every engine alike. What it is not: a loader or a kernel.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from kokoro_tvm import environment
from kokoro_tvm.config import ModelConfig
from kokoro_tvm.errors import CapacityError, InputError
from kokoro_tvm.stages import Component, TensorSpec


class Capacities(Protocol):
    """What a manifest says about the largest inputs."""

    @property
    def seq_len(self) -> int:
        """Most tokens."""

    @property
    def aligned_len(self) -> int:
        """Most frames."""

    @property
    def model(self) -> ModelConfig:
        """The configuration, for the size of the vocabulary."""


def checked_threads(threads: int | None) -> int:
    """A number of threads; all CPUs for None.

    Raises:
        InputError: It is no positive whole number.
    """
    if threads is None:
        return environment.cpu_count()
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise InputError(f"threads must be a positive whole number, got {threads!r}")
    return threads


def checked_inputs(component: Component, inputs: tuple[np.ndarray, ...], capacities: Capacities) -> list[np.ndarray]:
    """The inputs of a component as arrays.

    Raises:
        InputError: One has another dtype, rank or shape, or a length or token id is out of range; every problem is named.
        CapacityError: A length exceeds a capacity.
    """
    if len(inputs) != len(component.inputs):
        raise InputError(f"{component.name} takes {len(component.inputs)} inputs, got {len(inputs)}")
    extents: dict[str, int] = {}
    problems = []
    for spec, array in zip(component.inputs, inputs, strict=True):
        problems += _mismatch(spec, np.asarray(array), extents)
    if problems:
        raise InputError(f"{component.name}: " + "; ".join(problems))
    arrays = dict(zip((s.name for s in component.inputs), map(np.asarray, inputs), strict=True))
    _check_lengths(component, arrays, extents, capacities)
    return list(arrays.values())


def _check_lengths(component: Component, arrays: dict[str, np.ndarray], extents: dict[str, int], capacities: Capacities) -> None:
    lengths, capacity = arrays[component.lengths], extents[component.capacity]
    if lengths.size and (lengths.min() < 1 or lengths.max() > capacity):
        raise InputError(f"{component.name}: {component.lengths} {lengths.tolist()} must lie within 1..{capacity}")
    most = capacities.seq_len if component.capacity == "N" else capacities.aligned_len
    if lengths.size and lengths.max() > most:
        unit = "tokens" if component.capacity == "N" else "frames"
        raise CapacityError(
            f"{component.name}: {lengths.max()} {unit} exceed the capacity of {most}; split the text, or compile with a larger "
            f"--{'seq-len' if component.capacity == 'N' else 'aligned-len'}"
        )
    if "input_ids" in arrays:
        valid = np.arange(capacity) < lengths[:, None]
        ids = arrays["input_ids"][valid]
        vocabulary = capacities.model.n_token
        if ids.size and (ids.min() < 0 or ids.max() >= vocabulary):
            raise InputError(f"{component.name}: token ids must lie within 0..{vocabulary - 1}")


def _mismatch(spec: TensorSpec, array: np.ndarray, extents: dict[str, int]) -> list[str]:
    """Problems of one input; learns the extents of B, N and M on the way."""
    if array.dtype != spec.dtype:
        return [f"{spec.name} must be {spec.dtype}, got {array.dtype}"]
    if array.ndim != len(spec.shape):
        return [f"{spec.name} must have shape {list(spec.shape)}, got {list(array.shape)}"]
    for dim, extent in zip(spec.shape, array.shape, strict=True):
        if isinstance(dim, str):
            factor, _, symbol = dim.rpartition("*")
            step = int(factor) if factor else 1
            if extent % step == 0:
                extents.setdefault(symbol, extent // step)
    try:
        expected = spec.resolve(**extents)
    except KeyError:
        expected = ()
    if tuple(array.shape) != expected or 0 in array.shape:
        return [f"{spec.name} must have shape {list(spec.shape)} with {extents}, got {list(array.shape)}"]
    return []
