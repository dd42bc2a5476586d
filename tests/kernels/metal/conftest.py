"""The kernel harness for Metal: kernels run in the emulator, and lane orders take the place of thread counts.

A quick run watches every memory access in one order of threads and then repeats the call in two others. ``--metal-thorough``
watches all of them, and compiles with the worst that fast math allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tvm
from metal_emulator import MetalEmulator

from kokoro_tvm.kernels.metal.tile import APPLE
from kokoro_tvm.passes.pipeline import build_kernel
from kokoro_tvm.targets import metal_target

BOUND = 1e-5
"""Largest error of any Metal kernel relative to the largest output."""


@pytest.fixture(scope="module", params=["precise", "fast math"])
def emulator(request: pytest.FixtureRequest) -> Iterator[MetalEmulator]:
    """The device."""
    fast_math = request.param == "fast math"
    if fast_math and not request.config.getoption("--metal-thorough"):
        pytest.skip("--metal-thorough runs it")
    with MetalEmulator(race=True, fast_math=fast_math) as device:
        yield device


@pytest.fixture(scope="module")
def harness(host_harness, emulator: MetalEmulator):
    """The CPU's harness with another device."""

    class MetalHarness(type(host_harness)):
        bound = BOUND

        def __init__(self) -> None:
            self.tile = APPLE
            self.emulator = emulator
            self.rng = np.random.default_rng(0)
            self._target = metal_target("linux").tvm_target()

        def lengths(self) -> list[int]:
            """One ragged batch with the lengths at which kernels break: a SIMD group's rows and the tile's."""
            return [1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65]

        def build(self, func: tvm.tirx.PrimFunc) -> Callable[..., None]:
            """``func`` compiled for the emulator."""
            return build_kernel(func, "kernel", self._target)["kernel"]

        def run(self, kernel: Callable[..., None], *arrays: np.ndarray) -> np.ndarray:
            """Calls a built kernel; the last array is the output, returned. Scalars are passed on as they are."""
            tensors = [emulator.tensor(np.ascontiguousarray(a)) if isinstance(a, np.ndarray) else a for a in arrays]
            kernel(*tensors)
            return tensors[-1].numpy()

        def one_thread(self, action: Callable[[], list[np.ndarray]]) -> list[np.ndarray]:
            """Runs ``action`` with threads in reverse and in random order, which has to make no difference."""
            try:
                emulator.order = "reverse"
                backwards = action()
                emulator.order, emulator.seed = "random", 7
                again = action()
            finally:
                emulator.order = "forward"
            assert all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(backwards, again, strict=True))
            return again

    return MetalHarness()
