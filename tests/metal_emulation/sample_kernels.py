"""Small GPU kernels, each for one thing that the emulator does."""

from __future__ import annotations

import numpy as np
import tvm
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

THREADS = 64


def target() -> tvm.target.Target:
    """Metal as the project compiles for it, with a host that runs here."""
    return tvm.target.Target(
        {
            "kind": "metal",
            "max_threads_per_block": 256,
            "max_num_threads": 256,
            "max_shared_memory_per_block": 32768,
            "thread_warp_size": 32,
        },
        host={"kind": "llvm"},
    )


def build(kernel: PrimFunc) -> tvm.runtime.Module:
    """The kernel compiled; call it as ``module["main"](...)``."""
    return tvm.tirx.build(tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")}), target=target())


def add(threads: int = THREADS) -> PrimFunc:
    """c = a + b over n elements, any n."""

    @T.prim_func(s_tir=True)
    def kernel(a: T.handle, b: T.handle, c: T.handle):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        n = T.int32()
        A = T.match_buffer(a, (n,), "float32")
        B = T.match_buffer(b, (n,), "float32")
        C = T.match_buffer(c, (n,), "float32")
        for block in T.thread_binding((n + threads - 1) // threads, thread="blockIdx.x"):
            for thread in T.thread_binding(threads, thread="threadIdx.x"):
                if block * threads + thread < n:
                    C[block * threads + thread] = A[block * threads + thread] + B[block * threads + thread]

    return kernel


def block_sum(threads: int = 256) -> PrimFunc:
    """y[g] = sum of x[g, :threads]: a tree in threadgroup memory, with a barrier after each level."""
    levels = threads.bit_length() - 1

    @T.prim_func(s_tir=True)
    def kernel(x: T.handle, y: T.handle):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        groups = T.int32()
        X = T.match_buffer(x, (groups, threads), "float32")
        Y = T.match_buffer(y, (groups,), "float32")
        for group in T.thread_binding(groups, thread="blockIdx.x"):
            for thread in T.thread_binding(threads, thread="threadIdx.x"):
                with T.sblock("sum"):
                    T.reads(X[0:groups, 0:threads])
                    T.writes(Y[0:groups])
                    partial = T.sblock_alloc_buffer((threads,), "float32", scope="shared")
                    partial[thread] = X[group, thread]
                    T.tvm_storage_sync("shared")
                    for level in T.unroll(levels):
                        if thread < T.shift_right(threads, level + 1):
                            partial[thread] = partial[thread] + partial[thread + T.shift_right(threads, level + 1)]
                        T.tvm_storage_sync("shared")
                    if thread == 0:
                        Y[group] = partial[0]

    return kernel


def simd_sum() -> PrimFunc:
    """y[g] = sum of x[g, :32], by shuffles."""

    @T.prim_func(s_tir=True)
    def kernel(x: T.handle, y: T.handle):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        groups = T.int32()
        X = T.match_buffer(x, (groups, 32), "float32")
        Y = T.match_buffer(y, (groups,), "float32")
        for group in T.thread_binding(groups, thread="blockIdx.x"):
            for lane in T.thread_binding(32, thread="threadIdx.x"):
                with T.sblock("sum"):
                    T.reads(X[0:groups, 0:32])
                    T.writes(Y[0:groups])
                    value = T.sblock_alloc_buffer((1,), "float32", scope="local")
                    value[0] = X[group, lane]
                    for step in T.unroll(5):
                        value[0] = value[0] + T.metal.simd_shuffle_down(value[0], T.shift_right(16, step))
                    if lane == 0:
                        Y[group] = value[0]

    return kernel


def scan(threads: int = 64) -> PrimFunc:
    """y[r, i] = x[r, 0] + ... + x[r, i] for i < threads: Hillis and Steele's steps between two arrays of threadgroup memory."""
    steps = (threads - 1).bit_length()

    @T.prim_func(s_tir=True)
    def kernel(x: T.handle, y: T.handle):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        rows = T.int32()
        X = T.match_buffer(x, (rows, threads), "float32")
        Y = T.match_buffer(y, (rows, threads), "float32")
        for row in T.thread_binding(rows, thread="blockIdx.x"):
            for thread in T.thread_binding(threads, thread="threadIdx.x"):
                with T.sblock("scan"):
                    T.reads(X[0:rows, 0:threads])
                    T.writes(Y[0:rows, 0:threads])
                    sums = T.sblock_alloc_buffer((2, threads), "float32", scope="shared")
                    sums[0, thread] = X[row, thread]
                    T.tvm_storage_sync("shared")
                    for step in T.unroll(steps):
                        if thread >= T.shift_left(1, step):
                            sums[(step + 1) % 2, thread] = (
                                sums[step % 2, thread] + sums[step % 2, thread - T.shift_left(1, step)]
                            )
                        else:
                            sums[(step + 1) % 2, thread] = sums[step % 2, thread]
                        T.tvm_storage_sync("shared")
                    Y[row, thread] = sums[steps % 2, thread]

    return kernel


def matmul(m: int, k: int, n: int, dtype: str = "float32") -> PrimFunc:
    """c = a b by 8x8 SIMD-group matrices: a SIMD-group has a tile of 16x16, a threadgroup four of them side by side."""

    zero = T.cast(0, dtype)

    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((m, k), dtype), B: T.Buffer((k, n), dtype), C: T.Buffer((m, n), dtype)):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        for block in T.thread_binding(m // 16, thread="blockIdx.x"):
            for panel in T.thread_binding(n // 64, thread="blockIdx.y"):
                for tile in T.thread_binding(4, thread="threadIdx.y"):
                    for _lane in T.thread_binding(32, thread="threadIdx.x"):
                        with T.sblock("matmul"):
                            T.reads(A[0:m, 0:k], B[0:k, 0:n])
                            T.writes(C[0:m, 0:n])
                            a = T.sblock_alloc_buffer((2 * 64,), dtype, scope="metal.simdgroup")
                            b = T.sblock_alloc_buffer((2 * 64,), dtype, scope="metal.simdgroup")
                            c = T.sblock_alloc_buffer((4 * 64,), dtype, scope="metal.simdgroup")
                            row: T.let = block * 16
                            column: T.let = panel * 64 + tile * 16
                            for i in T.unroll(4):
                                T.evaluate(T.metal.make_filled_simdgroup_matrix(c.data, i, zero, 8, 8))
                            for inner in range(k // 8):
                                for i in T.unroll(2):
                                    T.evaluate(
                                        T.metal.simdgroup_load(
                                            a.data, i, A.access_ptr("r", offset=(row + i * 8) * k + inner * 8), k, 8, 8, False
                                        )
                                    )
                                    T.evaluate(
                                        T.metal.simdgroup_load(
                                            b.data, i, B.access_ptr("r", offset=inner * 8 * n + column + i * 8), n, 8, 8, False
                                        )
                                    )
                                for i in T.unroll(2):
                                    for j in T.unroll(2):
                                        T.evaluate(
                                            T.metal.simdgroup_multiply_accumulate(
                                                c.data, i * 2 + j, a.data, i, b.data, j, c.data, i * 2 + j
                                            )
                                        )
                            for i in T.unroll(2):
                                for j in T.unroll(2):
                                    T.evaluate(
                                        T.metal.simdgroup_store(
                                            c.data, i * 2 + j, C.access_ptr("w", offset=(row + i * 8) * n + column + j * 8),
                                            n, 8, 8, False,
                                        )
                                    )  # fmt: skip

    return kernel


def dot_rows(inner: int) -> PrimFunc:
    """y[r] = sum of x[r, i] * x[r, i] for i < inner, a row per thread, in a private accumulator."""

    @T.prim_func(s_tir=True)
    def kernel(x: T.handle, y: T.handle):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        rows = T.int32()
        X = T.match_buffer(x, (rows, inner), "float32")
        Y = T.match_buffer(y, (rows,), "float32")
        for block in T.thread_binding((rows + 31) // 32, thread="blockIdx.x"):
            for thread in T.thread_binding(32, thread="threadIdx.x"):
                with T.sblock("dot"):
                    T.reads(X[0:rows, 0:inner])
                    T.writes(Y[0:rows])
                    total = T.sblock_alloc_buffer((1,), "float32", scope="local")
                    if block * 32 + thread < rows:
                        total[0] = T.float32(0)
                        for i in range(inner):
                            total[0] = total[0] + X[block * 32 + thread, i] * X[block * 32 + thread, i]
                        Y[block * 32 + thread] = total[0]

    return kernel


def elementwise(expression, dtype: str = "float32") -> PrimFunc:
    """y = expression(x) over n elements."""

    @T.prim_func(s_tir=True)
    def kernel(x: T.handle, y: T.handle):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        n = T.int32()
        X = T.match_buffer(x, (n,), dtype)
        Y = T.match_buffer(y, (n,), dtype)
        for block in T.thread_binding((n + 31) // 32, thread="blockIdx.x"):
            for thread in T.thread_binding(32, thread="threadIdx.x"):
                if block * 32 + thread < n:
                    Y[block * 32 + thread] = expression(X[block * 32 + thread])

    return kernel


def vectors(expression, lanes: int = 4) -> PrimFunc:
    """y = expression(x), a vector per thread; x and y are [n, lanes]."""

    @T.prim_func(s_tir=True)
    def kernel(x: T.handle, y: T.handle):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        n = T.int32()
        X = T.match_buffer(x, (n, lanes), "float32")
        Y = T.match_buffer(y, (n, lanes), "float32")
        for block in T.thread_binding((n + 31) // 32, thread="blockIdx.x"):
            for thread in T.thread_binding(32, thread="threadIdx.x"):
                if block * 32 + thread < n:
                    for lane in T.vectorized(lanes):
                        Y[block * 32 + thread, lane] = expression(X[block * 32 + thread, lane])

    return kernel


def run(emulator, kernel: PrimFunc, inputs: list[np.ndarray], output: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    """Builds the kernel, calls it with the inputs and an output that nobody has written, and returns the output."""
    return next(run_in_orders(emulator, kernel, inputs, output, dtype, [emulator.order]))


def run_in_orders(emulator, kernel, inputs, output, dtype="float32", orders=("forward", "reverse", "random")):
    """Builds the kernel and yields its output for each order."""
    module = build(kernel)
    for emulator.order in orders:
        result = emulator.empty(output, dtype)
        module["main"](*(emulator.tensor(x) for x in inputs), result)
        yield result.numpy()
