"""Builds a kernel, runs it, and holds it to what every length-aware kernel promises, for every CPU this machine can stand in for.

``harness`` runs a test once for each of those, so that what passes on one machine passes on another; ``host_harness`` is for what
depends on no tile.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

os.environ.setdefault("TVM_NUM_THREADS", "2")  # before the thread pool starts: tests compare one thread with two

import numpy as np
import pytest
import tvm
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels import conv1d
from kokoro_tvm.kernels.conv1d import Conv1d
from kokoro_tvm.kernels.packing import pack
from kokoro_tvm.kernels.tile import Tile
from kokoro_tvm.runtime import cpu
from kokoro_tvm.targets import CpuTarget, cpu_target

UNWRITTEN = 7.25
"""What an output holds before the kernel runs."""


@dataclass(frozen=True)
class Ragged:
    """An input with a time axis: one array per sample, poisoned up to the capacity.

    Attributes:
        samples: One array per sample.
        axis: The time axis of a sample.
        rows: Rows of this input for a length (or capacity) of the kernel.
        poison: What lies beyond the valid rows.
    """

    samples: Sequence[np.ndarray]
    axis: int = 0
    rows: Callable[[int], int] = field(default=lambda n: n)
    poison: float = float("nan")

    def batch(self, members: Sequence[int], capacity: int) -> np.ndarray:
        """The samples ``members``, each in a buffer for ``capacity``."""
        shape = list(self.samples[0].shape)
        shape[self.axis] = self.rows(capacity)
        batch = np.full((len(members), *shape), self.poison, self.samples[0].dtype)
        for row, member in zip(batch, members, strict=True):
            row[_first(self.samples[member].shape[self.axis], self.axis)] = self.samples[member]
        return batch


@dataclass(frozen=True)
class PerSample:
    """An input [B, ...] without a time axis."""

    array: np.ndarray


LENGTHS = object()
"""Where the lengths stand among the inputs."""


@dataclass(frozen=True)
class Output:
    """The output of one sample.

    Attributes:
        shape: For a capacity.
        rows: Valid rows for a length.
        axis: The time axis.
        zero: Whether the kernel writes zeros beyond the valid rows; else it leaves them alone.
    """

    shape: Callable[[int], tuple[int, ...]]
    rows: Callable[[int], int] = field(default=lambda n: n)
    axis: int = 0
    zero: bool = False


def _first(count: int, axis: int) -> tuple[slice, ...]:
    return (*[slice(None)] * axis, slice(count))


def _beyond(count: int, axis: int) -> tuple[slice, ...]:
    return (*[slice(None)] * axis, slice(count, None))


def _levels() -> list[CpuTarget]:
    """The generic CPUs with a tile of their own that this machine can run code for, the widest first."""
    if cpu.machine() != "x86_64":
        return [cpu_target()]
    levels = [cpu_target(mcpu=level) for level in ("x86-64-v4", "x86-64-v3")]
    return [level for level in levels if not cpu.missing_features(level.features)] or [cpu_target(mcpu="x86-64")]


LEVELS = _levels()


class Harness:
    """What the kernel tests share; see the methods."""

    Ragged, PerSample, Output, LENGTHS = Ragged, PerSample, Output, LENGTHS

    def __init__(self, target: CpuTarget) -> None:
        self.tile, self._target = target.tile, target.tvm_target()
        self.rng = np.random.default_rng(0)

    def normal(self, *shape: int) -> np.ndarray:
        """Standard normal float32."""
        return self.rng.standard_normal(shape).astype(np.float32)

    def ragged(self, lengths: Sequence[int], *shape: int, rows: Callable[[int], int] = lambda n: n) -> Ragged:
        """Standard normal float32 samples [rows(n), *shape]."""
        return Ragged([self.normal(rows(n), *shape) for n in lengths], rows=rows)

    def lengths(self) -> list[int]:
        """One ragged batch with the lengths at which kernels break."""
        rows, block = self.tile.rows, self.tile.block
        return [1, rows - 1, rows, 2, rows + 1, block + 1]

    def build(self, func: PrimFunc) -> Callable[..., None]:
        """``func`` compiled for the CPU."""
        return self.library({"kernel": func})["kernel"]

    def library(self, functions: dict[str, PrimFunc]) -> tvm.runtime.Executable:
        """Functions by name, compiled for the CPU in one library."""
        module = tvm.IRModule({name: f.with_attr("global_symbol", name) for name, f in functions.items()})
        return tvm.compile(module, target=self._target)

    def run(self, kernel: Callable[..., None], *arrays: np.ndarray) -> np.ndarray:
        """Calls a built kernel; the last array is the output, returned."""
        tensors = [tvm.runtime.tensor(np.ascontiguousarray(a)) for a in arrays]
        kernel(*tensors)
        return tensors[-1].numpy()

    def error(self, result: Sequence[np.ndarray], reference: Sequence[np.ndarray]) -> float:
        """Largest error relative to the largest value of the reference."""
        largest = max(np.abs(r).max() for r in reference)
        return max(np.abs(y - r).max() for y, r in zip(result, reference, strict=True)) / largest

    def check(
        self,
        func: PrimFunc,
        inputs: Sequence[Ragged | PerSample | np.ndarray | object],
        lengths: Sequence[int],
        output: Output,
        reference: Sequence[np.ndarray],
        tolerance: float,
    ) -> None:
        """Holds a kernel to its float64 twin and to the promises about lengths.

        Every sample must agree with ``reference`` (its valid rows). Its bits must not depend on the capacity (1, 2 and 16 times
        the longest), on the other members of the batch, or on the number of threads. What lies beyond is zero or untouched.
        """
        kernel = self.build(func)

        def call(members: Sequence[int], capacity: int) -> list[np.ndarray]:
            arrays = []
            for given in inputs:
                if isinstance(given, Ragged):
                    arrays.append(given.batch(members, capacity))
                elif isinstance(given, PerSample):
                    arrays.append(given.array[list(members)])
                else:
                    arrays.append(np.array([lengths[m] for m in members]) if given is LENGTHS else given)
            result = self.run(kernel, *arrays, np.full((len(members), *output.shape(capacity)), UNWRITTEN, np.float32))
            valid = []
            for y, member in zip(result, members, strict=True):
                rows = output.rows(lengths[member])
                beyond = y[_beyond(rows, output.axis)]
                np.testing.assert_array_equal(beyond, 0 if output.zero else UNWRITTEN, err_msg="beyond the valid rows")
                valid.append(y[_first(rows, output.axis)])
            return valid

        everyone, longest = range(len(lengths)), max(lengths)
        first = call(everyone, longest)
        assert self.error(first, reference) <= tolerance
        for name, again in {
            "capacity 2x": call(everyone, 2 * longest),
            "capacity 16x": call(everyone, 16 * longest),
            "alone": [call([m], longest)[0] for m in everyone],
            "one thread": self.one_thread(lambda: call(everyone, longest)),
        }.items():
            for member, (y, z) in enumerate(zip(first, again, strict=True)):
                assert y.tobytes() == z.tobytes(), f"{name}: sample {member} differs"

    def check_convolution(
        self,
        conv: Conv1d,
        lengths: Sequence[int],
        kernel: PrimFunc,
        pack_weight: Callable[[np.ndarray], np.ndarray],
        tolerance: float,
        tile: Tile | None = None,
    ) -> None:
        """``check`` for a convolution: random weights, and random coefficients, slopes and residuals where it takes them.

        ``pack_weight`` packs a weight [phases * c_out, c_in, taps] as the kernel reads it; the bias is packed for ``tile``.
        """
        x = self.ragged(lengths, conv.c_in)
        weight = self.normal(conv.phases * conv.c_out, conv.c_in, conv.taps)
        bias = self.normal(conv.c_out) if conv.bias else None
        coef = self.normal(len(lengths), 2, conv.c_in) if conv.affine else None
        alpha = None
        if conv.prologue == "snake":
            alpha = self.rng.uniform(0.2, 3.0, (1, conv.c_in)).astype(np.float32)
            alpha = np.concatenate([alpha, 1 / alpha])

        def shifted(n: int) -> int:
            return ((conv.output_rows(n) - 1) >> conv.residual_shift) + 1

        residuals = [self.ragged(lengths, conv.c_out, rows=r) for r in (shifted, conv.output_rows)[: conv.residuals]]
        packed_bias = None if bias is None else pack("bias", bias, tile or self.tile)
        optional = [packed_bias, None if coef is None else PerSample(coef), alpha, *residuals]
        self.check(
            kernel,
            [x, LENGTHS, pack_weight(weight), *(a for a in optional if a is not None)],
            lengths,
            Output(lambda n: (conv.output_rows(n), conv.c_out), rows=conv.output_rows),
            [
                conv1d.reference(
                    conv, s[None], [len(s)], weight, bias, None if coef is None else coef[b : b + 1], alpha,
                    tuple(r.samples[b][None] for r in residuals),
                )[0]
                for b, s in enumerate(x.samples)
            ],
            tolerance,
        )  # fmt: skip

    def one_thread(self, action: Callable[[], list[np.ndarray]]) -> list[np.ndarray]:
        """Runs ``action`` in a thread pool of one."""
        configure = tvm.get_global_func("runtime.config_threadpool")
        configure(1, 1)
        try:
            return action()
        finally:
            configure(1, 2)


@pytest.fixture(scope="session", params=LEVELS, ids=lambda level: level.mcpu)
def harness(request: pytest.FixtureRequest) -> Harness:
    """The shared helpers, for every CPU that this machine can stand in for."""
    return Harness(request.param)


@pytest.fixture(scope="session")
def host_harness() -> Harness:
    """The shared helpers, for the widest of these CPUs."""
    return Harness(LEVELS[0])


@pytest.fixture(autouse=True)
def _numbers_of_its_own(request: pytest.FixtureRequest) -> None:
    """Every test of a kernel draws the same numbers whatever ran before it."""
    for name in {"harness", "host_harness"} & set(request.fixturenames):
        request.getfixturevalue(name).rng = np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))
