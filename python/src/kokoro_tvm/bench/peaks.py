"""What this CPU can do at most, measured: multiply-adds in registers, and memory traffic.

What it is: two small kernels in the language and on the thread pool of the real ones. What it is not: a data sheet; a busy
machine or a throttled CPU shows here too, which is what a kernel's share should be taken of.

Two operations are counted for a multiply-add. The triad ``a = b + s * c`` counts 12 bytes a value (4 read twice, 4 written), as
STREAM does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tvm
import tvm_ffi
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.artifact import aligned_empty
from kokoro_tvm.targets import CpuTarget, cpu_target

CHAINS = 12
"""Independent accumulators: more than latency times ports of any CPU so far (4 x 2), and 12 vectors fit any register file."""
_STEPS = 1 << 14
_RUNS = 7
_CACHED = 1 << 18
_MEMORY = 384 << 20
"""Bytes of all three arrays together: half a level-2 cache for each thread, and more than any last-level cache."""


@dataclass(frozen=True)
class Peaks:
    """Of all threads together.

    Attributes:
        threads: How many.
        gflops: Billions of operations a second in registers: the median of readings taken between what is compared with it.
        best: The best such reading.
        cache: GB/s where each thread's data stay in its level-2 cache.
        memory: GB/s where nothing stays in any cache.
    """

    threads: int
    gflops: float
    best: float
    cache: float
    memory: float


# fmt: off
def fma_kernel(lanes: int, steps: int) -> PrimFunc:
    """``f(x, y)``: y [tasks, CHAINS, lanes] becomes ``y * x0 + x1``, x float32 [2, lanes], ``8 * steps`` times over."""

    @T.prim_func
    def fma(x_h: T.handle, y_h: T.handle):  # noqa: ANN202
        T.func_attr({"tirx.noalias": True})
        tasks = T.int64()
        X = T.match_buffer(x_h, (2, lanes), "float32")
        Y = T.match_buffer(y_h, (tasks, CHAINS, lanes), "float32")
        for task in T.parallel(tasks):
            acc = T.alloc_buffer((CHAINS * lanes,), "float32", scope="local")
            for i in T.unroll(CHAINS):
                for j in T.vectorized(lanes):
                    acc[i * lanes + j] = Y[task, i, j]
            for _ in range(steps):
                for _ in T.unroll(8):
                    for i in T.unroll(CHAINS):
                        for j in T.vectorized(lanes):
                            acc[i * lanes + j] = T.fma(acc[i * lanes + j], X[0, j], X[1, j])
            for i in T.unroll(CHAINS):
                for j in T.vectorized(lanes):
                    Y[task, i, j] = acc[i * lanes + j]

    return fma


def triad_kernel(lanes: int) -> PrimFunc:
    """``f(b, c, a, passes)``, float32 [tasks, n, lanes] each: ``a = b + 3 c``, ``passes`` times over."""

    @T.prim_func
    def triad(b_h: T.handle, c_h: T.handle, a_h: T.handle, passes: T.int64):  # noqa: ANN202
        T.func_attr({"tirx.noalias": True})
        tasks = T.int64()
        n = T.int64()
        B = T.match_buffer(b_h, (tasks, n, lanes), "float32")
        C = T.match_buffer(c_h, (tasks, n, lanes), "float32")
        A = T.match_buffer(a_h, (tasks, n, lanes), "float32")
        for task in T.parallel(tasks):
            for _ in range(passes):
                for i in range(n):
                    for j in T.vectorized(lanes):
                        A[task, i, j] = T.fma(C[task, i, j], T.float32(3), B[task, i, j])

    return triad
# fmt: on


class Meter:
    """Measures whenever it is asked, with ``threads`` threads of TVM's pool, which is left set to that number."""

    def __init__(self, threads: int, target: CpuTarget | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        target = target or cpu_target()
        self._threads, self._lanes, self._clock = threads, target.tile.lanes, clock
        kernels = {"fma": fma_kernel(self._lanes, _STEPS), "triad": triad_kernel(self._lanes)}
        module = tvm.IRModule({name: f.with_attr("global_symbol", name) for name, f in kernels.items()})
        library = tvm.compile(module, target=target.tvm_target())
        tvm_ffi.get_global_func("runtime.config_threadpool")(1, threads)
        self._fma, self._triad = library["fma"], library["triad"]
        self._x = _array((2, self._lanes), 0.5)
        self._y = _array((threads, CHAINS, self._lanes), 1.0)
        self.readings = [self.gflops() for _ in range(_RUNS + 1)][1:]

    def gflops(self) -> float:
        """One reading: half a millisecond of multiply-adds, give or take."""
        seconds = self._seconds(lambda: self._fma(self._x, self._y))
        return 2.0 * self._threads * CHAINS * self._lanes * 8 * _STEPS / seconds / 1e9

    def read(self) -> None:
        """Takes a reading that ``peaks`` will count."""
        self.readings.append(self.gflops())

    def peaks(self) -> Peaks:
        """The readings so far, and bandwidths, the best of several runs."""
        cache, memory = self._bandwidth(_CACHED * self._threads // 12, 400), self._bandwidth(_MEMORY // 12, 1)
        return Peaks(self._threads, statistics.median(self.readings), max(self.readings), cache, memory)

    def _bandwidth(self, values: int, passes: int) -> float:
        rows = values // (self._lanes * self._threads)
        a, b, c = (_array((self._threads, rows, self._lanes), 1.0) for _ in range(3))
        best = min([self._seconds(lambda: self._triad(b, c, a, passes)) for _ in range(_RUNS + 1)][1:])
        return 12.0 * self._threads * rows * self._lanes * passes / best / 1e9

    def _seconds(self, run: Callable[[], object]) -> float:
        start = self._clock()
        run()
        return self._clock() - start


def _array(shape: tuple[int, ...], value: float) -> tvm_ffi.Tensor:
    array = aligned_empty(shape, np.float32)
    array[...] = value
    return tvm_ffi.from_dlpack(array)
