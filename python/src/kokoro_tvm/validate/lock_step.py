"""Every kernel call of a component on Metal, in lock step with the CPU.

Both run the same program. What Metal's kernel made is compared with what the CPU's made, which then takes its place, so that each
call answers for its own error only. Rows beyond the valid lengths become NaN then: reading one would show in the next result.

What it is: the bounds, the CPU's side (which the bundle for the Mac takes along), and the comparison on whatever Metal device TVM
has. What it is not: a device (``emulated``), or a judgement of stages (``steps``).
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import tvm
from tvm import relax

from kokoro_tvm.artifact import read_manifest, read_weights
from kokoro_tvm.stages import COMPONENTS

BOUND = 1e-5
"""Largest error of a kernel relative to the largest value it makes."""
BOUNDS = {"harmonic_source": 1e-4, "to_rows": 0.0, "to_columns": 0.0, "mask_rows": 0.0, "concat": 0.0, "append_style": 0.0}
"""Kernels with another bound: a phase error of 1e-4 rad, and copies."""
_ROUNDED = ("conv1d", "conv_transpose1d")
"""Kernels that ``--dtype fp16`` concerns."""


def operator_of(kernel: str) -> str:
    """The operator of a kernel, whose name numbers its specialisations."""
    return kernel.rstrip("0123456789")


def bound(component: str, kernel: str, dtype: str) -> float:
    """Largest error of a kernel relative to the largest value it makes, in a build of ``dtype``; the CPU's is float32 always."""
    from kokoro_tvm.kernels.metal.conv1d import TOLERANCE_HALF

    operator = operator_of(kernel)
    if dtype == "fp16" and COMPONENTS[component].rounds and operator in _ROUNDED:
        return TOLERANCE_HALF
    return BOUNDS.get(operator, BOUND)


# --- the CPU -----------------------------------------------------------------------------------------------------------------


def kernel_recorder(name: str, model: object) -> Callable[[Sequence[np.ndarray]], list[tuple[str, np.ndarray]]]:
    """Compiles one component for this CPU; what is returned runs it on inputs.

    Its result are the kernel calls in order, with what the CPU kernels make: the operators are the same on every target. So are
    the kernels' names as long as convolutions are direct, as Metal's are.
    """
    from kokoro_tvm.compile import packed_weights
    from kokoro_tvm.export.program import export_program, to_relax
    from kokoro_tvm.passes.pipeline import build, pipeline
    from kokoro_tvm.targets import cpu_target

    target = cpu_target()
    # One tile for all sums: that for compensated ones rounds a little less, and takes twice as long to compile.
    tile = replace(target.tile, scheme="direct", compensated=None, tuned=())
    component = to_relax(name, export_program(name, model))
    executable = build(component.module, target.tvm_target(), pipeline(tile, "tir"), tile)
    weights = packed_weights(component, tile, "tir")
    results: list[tuple[str, np.ndarray]] = []

    def instrument(_function: object, called: str, before: bool, _result: object, *arguments: object) -> int:
        if not before and _is_kernel(name, called) and _is_tensor(arguments[-1]):
            results.append((str(called), arguments[-1].numpy()))
        return 0

    machine = relax.VirtualMachine(executable, tvm.cpu())
    machine.set_instrument(instrument)
    parameters = [tvm.runtime.tensor(w) for w in weights.values()]

    def run(inputs: Sequence[np.ndarray]) -> list[tuple[str, np.ndarray]]:
        results.clear()
        machine[name](*(tvm.runtime.tensor(a) for a in inputs), *parameters)
        return list(results)

    return run


def _is_kernel(component: str, called: str) -> bool:
    return not called.startswith(("vm.", "shape_func")) and called != component


def _is_tensor(argument: object) -> bool:
    return isinstance(argument, tvm.runtime.Tensor)


Rows = Mapping[int, tuple[int, int]]
"""Axis to (rate, edge): of ``rate * capacity + edge`` entries the first ``rate * length + edge`` are valid."""


@dataclass(frozen=True)
class Expected:
    """What the CPU makes in one kernel call: the kernel's name, its result, and which values of it count."""

    kernel: str
    value: np.ndarray
    valid: np.ndarray


class CpuKernels:
    """One component's kernels on this CPU, with direct convolutions.

    Args:
        name: The component.
        model: Float32, of the weights that the component was compiled from.
    """

    def __init__(self, name: str, model: object) -> None:
        self.name = name
        self._record = kernel_recorder(name, model)
        # Two capacities tell which axes are time, and how many rows a token or frame has on each.
        small, large = (self._record(_blank_inputs(name, n)) for n in _PROBES)
        self._rows = [_rows_of(a.shape, b.shape) for (_, a), (_, b) in zip(small, large, strict=True)]

    def run(self, inputs: Sequence[np.ndarray]) -> list[Expected]:
        """The kernel calls for a batch, in order.

        Args:
            inputs: As ``stages.COMPONENTS`` lists them; whatever lies beyond the lengths is never read.
        """
        component = COMPONENTS[self.name]
        by_name = {spec.name: array for spec, array in zip(component.inputs, inputs, strict=True)}
        spec = next(s for s in component.inputs if component.capacity in s.shape)
        capacity = by_name[spec.name].shape[spec.shape.index(component.capacity)]
        lengths = [int(n) for n in by_name[component.lengths]]
        calls = zip(self._record(inputs), self._rows, strict=True)
        return [Expected(kernel, value, _valid(value.shape, rows, lengths, capacity)) for (kernel, value), rows in calls]


_PROBES = (4, 5)


def _blank_inputs(name: str, capacity: int) -> list[np.ndarray]:
    """One token or frame, in buffers of a capacity."""
    specs = [(s.resolve(B=1, N=capacity, M=capacity), s.dtype) for s in COMPONENTS[name].inputs]
    return [np.ones(shape, dtype) if dtype == "int64" else np.zeros(shape, dtype) for shape, dtype in specs]


def _rows_of(small: Sequence[int], large: Sequence[int]) -> Rows:
    first, second = _PROBES
    rates = {axis: (b - a) // (second - first) for axis, (a, b) in enumerate(zip(small, large, strict=True)) if a != b}
    return {axis: (rate, small[axis] - rate * first) for axis, rate in rates.items()}


def _valid(shape: Sequence[int], rows: Rows, lengths: Sequence[int], capacity: int) -> np.ndarray:
    mask = np.ones(shape, bool)
    for axis, (rate, edge) in rows.items():
        if shape[axis] != rate * capacity + edge:
            raise RuntimeError(f"axis {axis} of {list(shape)} has not {rate} * {capacity} + {edge} rows")
        for member, n in zip(np.moveaxis(mask, axis, 1), lengths, strict=True):
            member[rate * n + edge :] = False
    return mask


# --- Metal -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """One kernel call.

    Attributes:
        kernel: Its name.
        error: Largest error relative to the largest value; NaN if a value is not finite.
        bound: Of the error.
    """

    kernel: str
    error: float
    bound: float

    @property
    def passed(self) -> bool:
        """Fails closed."""
        return self.error <= self.bound


@dataclass(frozen=True)
class Comparison:
    """A component's kernel calls on one batch.

    Attributes:
        component: Its name.
        calls: Those that were compared, in order.
        due: How many the CPU makes.
        problem: What ended the comparison early, or was found besides; empty if nothing.
    """

    component: str
    calls: Sequence[Call]
    due: int
    problem: str = ""

    @property
    def passed(self) -> bool:
        """Whether every call was made, compared, and is within its bound."""
        return self.due > 0 and len(self.calls) == self.due and not self.problem and all(c.passed for c in self.calls)

    @property
    def failures(self) -> list[str]:
        """A line for everything that is wrong, in order."""
        found = [
            f"{self.component}: {c.kernel}, call {i} of {self.due}, errs by {c.error:.1e} of its largest value, bound {c.bound:g}"
            for i, c in enumerate(self.calls, 1)
            if not c.passed
        ]
        if self.problem:
            found.append(f"{self.component}: {self.problem}")
        elif len(self.calls) != self.due or not self.due:
            found.append(f"{self.component}: {len(self.calls)} kernel calls compared of {self.due}")
        return found

    def by_operator(self) -> dict[str, list[Call]]:
        """The calls by kind of kernel."""
        groups: dict[str, list[Call]] = {}
        for call in self.calls:
            groups.setdefault(operator_of(call.kernel), []).append(call)
        return groups


def worst(calls: Sequence[Call]) -> float:
    """The largest error of some calls; NaN if any is."""
    errors = [c.error for c in calls]
    return math.nan if any(map(math.isnan, errors)) else max(errors)


def compare(
    directory: Path,
    name: str,
    expected: Sequence[Expected],
    inputs: Sequence[np.ndarray],
    faults: tuple[type[Exception], ...] = (),
    listener: Callable[[int], None] | None = None,
) -> Comparison:
    """Runs a component on TVM's Metal device, in lock step.

    Args:
        directory: An artifact for that device.
        name: The component.
        expected: ``CpuKernels.run`` of ``inputs``.
        inputs: As ``stages.COMPONENTS`` lists them.
        faults: What the device raises where a kernel does what it must not; becomes the comparison's problem.
        listener: Told how many calls have been compared.
    """
    manifest = read_manifest(directory)
    record = manifest.components[name]
    # Buffers as large as asked for: the usual allocator's are rounded up to pages, which hides over-runs from an emulator.
    machine = relax.VirtualMachine(_load_afresh(directory / record.library.name), tvm.metal(0), memory_cfg="naive")
    weights = read_weights(directory / record.weights.name, record.parameters)
    calls: list[Call] = []
    problem = ""

    def instrument(_function: object, called: str, before: bool, _result: object, *arguments: object) -> int:
        nonlocal problem
        if before or problem or not _is_kernel(name, called):
            return 0
        due = expected[len(calls)] if len(calls) < len(expected) else None
        if due is None or due.kernel != called or not _is_tensor(arguments[-1]):
            problem = f"call {len(calls) + 1} is {called}, the CPU's is {due.kernel if due else 'none'}"
            return 0
        calls.append(Call(due.kernel, _error(arguments[-1].numpy(), due), bound(name, due.kernel, manifest.dtype)))
        arguments[-1].copyfrom(np.where(due.valid, due.value, np.float32(np.nan)))
        if listener:
            listener(len(calls))
        return 0

    machine.set_instrument(instrument)
    try:
        machine[name](*(tvm.runtime.tensor(a, tvm.metal(0)) for a in (*inputs, *weights)))
    except faults as fault:
        problem = " ".join(str(fault).split())
    return Comparison(name, calls, len(expected), problem)


def _load_afresh(library: Path) -> object:
    """Loads a copy: of a library that is loaded twice, the host code would go on with the kernels that the first device made."""
    with TemporaryDirectory() as folder:
        return tvm.runtime.load_module(str(shutil.copy(library, folder)))


def _error(result: np.ndarray, due: Expected) -> float:
    """NaN if either side is not finite, or has another shape."""
    if result.shape != due.value.shape:
        return math.nan
    found, value = result[due.valid].astype(np.float64), due.value[due.valid].astype(np.float64)
    if not (np.isfinite(found).all() and np.isfinite(value).all()):
        return math.nan
    return float(np.abs(found - value).max() / max(np.abs(value).max(), np.finfo(np.float32).tiny))
