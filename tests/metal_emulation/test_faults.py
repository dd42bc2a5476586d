"""Faults that are put into right kernels are found, each by the means that is meant to find it."""

import ctypes
import re

import numpy as np
import pytest
import sample_kernels
import tvm_ffi
from metal_emulator import CompileError, KernelFault, MetalEmulator, replace_once, serialised
from metal_emulator.serialised import Signature
from tvm.script import tirx as T

RNG = np.random.default_rng(21)
BARRIER = r"threadgroup_barrier\(mem_flags::mem_threadgroup\);"
ORDERS = [("forward", 0), ("reverse", 0), ("random", 1), ("random", 2)]


def launch(kernel, inputs, output, edit, dtype="float32", **options):
    with MetalEmulator(edit=edit, **options) as emulator:
        return sample_kernels.run(emulator, kernel, inputs, output, dtype)


def fault(kernel, inputs, output, edit, match, **options):
    with pytest.raises(KernelFault, match=match) as caught:
        launch(kernel, inputs, output, edit, **options)
    assert str(caught.value).startswith("kernel main_kernel: ")


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


# ---- barriers and divergence ----


@pytest.mark.parametrize("which", range(6))
def test_barrier_removed_is_a_race_in_any_order(which):
    with MetalEmulator(race=True, edit=replace_once("main", BARRIER, "", occurrence=which)) as emulator:
        module = sample_kernels.build(sample_kernels.block_sum(64))
        for emulator.order, emulator.seed in ORDERS:
            with pytest.raises(KernelFault, match="data race, .* of threadgroup memory"):
                module["main"](emulator.tensor(normal(2, 64)), emulator.empty((2,)))


def test_barrier_removed_changes_the_result_in_some_order():
    x = normal(1, 64)
    wrong = []
    with MetalEmulator(edit=replace_once("main", BARRIER, "", occurrence=1)) as emulator:
        module = sample_kernels.build(sample_kernels.block_sum(64))
        for emulator.order, emulator.seed in ORDERS:
            y = emulator.empty((1,))
            module["main"](emulator.tensor(x), y)
            wrong.append(not abs(y.numpy()[0] - x.sum()) <= 1e-5)
    assert any(wrong)


def test_barrier_for_the_wrong_memory():
    edit = replace_once("main", "mem_flags::mem_threadgroup", "mem_flags::mem_device")
    fault(sample_kernels.block_sum(64), [normal(2, 64)], (2,), edit, "data race, .* of threadgroup memory", race=True)


def test_barrier_that_some_threads_skip():
    with MetalEmulator(edit=replace_once("main", BARRIER, r"if (threadIdx < 40) \g<0>")) as emulator:
        module = sample_kernels.build(sample_kernels.block_sum(64))
        for emulator.order, emulator.seed in ORDERS:
            with pytest.raises(KernelFault, match="diverged at a barrier: thread .* at another threadgroup_barrier"):
                module["main"](emulator.tensor(normal(1, 64)), emulator.empty((1,)))


def test_barrier_behind_an_early_return():
    edit = replace_once("main", r"threadgroup float partial\[64\];", r"\g<0> if (threadIdx > 60) return;")
    fault(sample_kernels.block_sum(64), [normal(1, 64)], (1,), edit, "thread 61 at the end")


def test_shuffle_without_the_whole_simdgroup():
    edit = replace_once("main", r"value\[0\] = \(value\[0\] \+ simd_shuffle_down\(value\[0\], 8", r"if (threadIdx < 8) \g<0>")
    fault(sample_kernels.simd_sum(), [normal(1, 32)], (1,), edit, "diverged in a SIMD-group operation")


def test_matrix_without_the_whole_simdgroup():
    """Whoever skips the operation is at another one, or at the same one elsewhere in the kernel."""
    edit = replace_once("main", r"simdgroup_load\(b\[1\].*;", r"if (threadIdx.x < 9) \g<0>")
    kernel, inputs = sample_kernels.matmul(16, 8, 64), [normal(16, 8), normal(8, 64)]
    fault(kernel, inputs, (16, 64), edit, "diverged in a SIMD-group operation: thread 0 is at simdgroup_load")


def test_matrix_in_half_a_simdgroup():
    edit = replace_once("main", r"if \(.*\) \{", "simdgroup_float8x8 m; simdgroup_load(m, A_ptr, 8); if (true) {")
    fault(sample_kernels.add(16), [normal(64)] * 2, (64,), edit, "uses a SIMD-group matrix in a SIMD-group of 16 threads")


@pytest.mark.parametrize("pattern, replacement", [(", 16\\)", ", 8)"), ("shuffle_down", "shuffle_up"), (", 1\\)", ", 2)")])
def test_wrong_shuffle(pattern, replacement):
    x = normal(3, 32)
    edit = replace_once("main", pattern, replacement)
    assert np.abs(launch(sample_kernels.simd_sum(), [x], (3,), edit) - x.sum(1)).max() > 0.1


# ---- races between threadgroups, and through device memory ----


def test_threadgroups_that_write_the_same_place():
    edit = replace_once("main", r"Y_ptr\[\(\(int\)blockIdx\)\]", "Y_ptr[((int)blockIdx) / 2]")
    fault(
        sample_kernels.block_sum(32), [normal(4, 32)], (4,), edit,
        "data race, write and write of buffer argument 1 at byte 0: thread 0 of threadgroup 0 and thread 0 of threadgroup 1",
        race=True,
    )  # fmt: skip


def test_neighbouring_halves_do_not_race():
    x = normal(64).astype(np.float16)
    kernel = sample_kernels.elementwise(lambda v: v + v, "float16")
    np.testing.assert_array_equal(launch(kernel, [x], (64,), None, "float16", race=True), x + x)


@pytest.mark.parametrize("flags, races", [("mem_flags::mem_threadgroup", True), ("mem_flags::mem_device", False)])
def test_exchange_through_device_memory_needs_its_own_barrier(flags, races):
    """Metal's threadgroup barrier orders the memory that its flags name, and no other."""
    exchange = f"""
      Y_ptr[threadIdx] = 1.0f;
      threadgroup_barrier({flags});
      float other = Y_ptr[threadIdx ^ 1];
      threadgroup_barrier({flags});
      sums[threadIdx] = other + X_ptr"""
    edit = replace_once("main", r"sums\[\(\(int\)threadIdx\)\] = X_ptr", exchange)
    kernel, x = sample_kernels.scan(64), np.zeros((1, 64), np.float32)
    if races:
        fault(kernel, [x], (1, 64), edit, "data race, write and read of buffer argument 1", race=True)
    else:
        np.testing.assert_array_equal(launch(kernel, [x], (1, 64), edit, race=True)[0], np.arange(1, 65))


# ---- bounds ----


def test_bound_off_by_one_reads_past_the_end():
    """One row too many: beyond the buffer, which only the exact check sees as less than 16 bytes are missing."""
    edit = replace_once("main", r"arg\.n\[0\]", "arg.n[0] + 1")
    kernel, x = sample_kernels.elementwise(lambda v: v), normal(70)
    where = r"reads 4 bytes out of bounds, 0 bytes past the end of buffer argument 0 \(280 bytes\): thread 6 of threadgroup 2"
    fault(kernel, [x], (70,), edit, where, race=True)


def test_bound_off_by_one_inside_the_buffer():
    x = normal(50, 9)
    edit = replace_once("main", "i < 9", "i < 8")
    assert np.abs(launch(sample_kernels.dot_rows(9), [x], (50,), edit) - (x * x).sum(1)).max() > 0.1


@pytest.mark.parametrize("race", [False, True])
def test_buffer_over_run(race):
    edit = replace_once("main", r"Y_ptr\[.*?\] = ", "Y_ptr[threadIdx + blockIdx * 4096] = ")
    what = "writes 4 bytes" if race else "accesses memory"
    where = r" out of bounds, 16128 bytes past the end of buffer argument 1 \(256 bytes\): thread 0 of threadgroup 1"
    fault(sample_kernels.elementwise(lambda v: v), [normal(64)], (64,), edit, what + where, race=race)


@pytest.mark.parametrize("race", [False, True])
def test_buffer_under_run(race):
    edit = replace_once("main", r"= X_ptr\[.*?\];", "= X_ptr[(int)threadIdx - 4096];")
    fault(sample_kernels.elementwise(lambda v: v), [normal(64)], (64,), edit, "out of bounds", race=race)


def test_the_emulator_goes_on_after_a_crash():
    x = normal(64)
    with MetalEmulator(edit=replace_once("main", r"= X_ptr\[.*?\];", "= X_ptr[1 << 20];")) as emulator:
        for _ in range(3):
            with pytest.raises(KernelFault, match="out of bounds"):
                sample_kernels.run(emulator, sample_kernels.elementwise(lambda v: v), [x], (64,))
        emulator.edit = None
        np.testing.assert_array_equal(sample_kernels.run(emulator, sample_kernels.elementwise(lambda v: v), [x], (64,)), x)


@pytest.mark.parametrize("race", [False, True])
def test_misaligned_vector(race):
    edit = replace_once("main", r"Y_ptr\[.*?\] = .*;", "*(device float4*)(Y_ptr + 1) = ((device float4*)(X_ptr + 4))[0];")
    what = "16 bytes at an address that is no multiple" if race else "impossible or misaligned address"
    fault(sample_kernels.elementwise(lambda v: v), [normal(64)], (64,), edit, what, race=race)


def test_integer_division_by_zero():
    edit = replace_once("main", r"= X_ptr\[.*?\];", "= 7 / (arg.n[0] - 64);")
    fault(sample_kernels.elementwise(lambda v: v), [normal(64)], (64,), edit, "divides an integer by zero")


@pytest.mark.parametrize("offset, what", [(128, "an address inside a buffer"), (1 << 40, "no buffer of the device")])
def test_argument_that_is_no_buffer(offset, what):
    """Metal binds whole buffers, so a view would be its buffer's start on a Mac."""
    with MetalEmulator() as emulator:
        kernel = sample_kernels.build(sample_kernels.elementwise(lambda v: v)).imports[0]["main_kernel"]
        x, y = emulator.tensor(normal(64)), emulator.empty((64,))
        place = ctypes.c_void_p(x.data_ptr() + offset)
        with pytest.raises(KernelFault, match=f"kernel main_kernel: buffer argument 0 is {what}"):
            kernel(place, ctypes.c_void_p(y.data_ptr()), 32, 1, 32)


# ---- memory that nobody wrote ----


def test_uninitialised_accumulator():
    edit = replace_once("main", r"total\[0\] = 0\.000000e\+00f;", "")
    assert np.isnan(launch(sample_kernels.dot_rows(9), [normal(50, 9)], (50,), edit)).all()


def test_uninitialised_simdgroup_matrix():
    edit = replace_once("main", r"c\[3\] = make_filled.*;", "")
    c = launch(sample_kernels.matmul(16, 8, 64), [normal(16, 8), normal(8, 64)], (16, 64), edit)
    assert np.isnan(c[8:, 8:16]).all()
    assert np.isfinite(c[:8]).all()


def test_uninitialised_threadgroup_memory():
    edit = replace_once("main", r"partial\[\(\(int\)threadIdx\)\] = X_ptr", r"if (threadIdx != 5) \g<0>")
    kernel, x = sample_kernels.block_sum(64), normal(2, 64)
    fault(kernel, [x], (2,), edit, "uninitialised memory read of threadgroup memory at byte 20: by thread 5", race=True)
    assert np.isnan(launch(kernel, [x], (2,), edit)).all()


def test_threadgroup_memory_does_not_survive_its_group():
    """What the previous threadgroup left is not there for the next."""
    edit = replace_once("main", r"partial\[\(\(int\)threadIdx\)\] = X_ptr", r"if (blockIdx == 0) \g<0>")
    y = launch(sample_kernels.block_sum(64), [normal(2, 64)], (2,), edit)
    assert np.isfinite(y[0])
    assert np.isnan(y[1])


def test_uninitialised_device_memory():
    kernel = sample_kernels.elementwise(lambda v: v + T.float32(1))
    with MetalEmulator(race=True) as emulator:
        with pytest.raises(KernelFault, match="uninitialised memory read of buffer argument 0 at byte 0"):
            sample_kernels.build(kernel)["main"](emulator.empty((8,)), emulator.empty((8,)))


# ---- limits of devices ----


@pytest.mark.parametrize("floats, right", [(8192, True), (8193, False)])
def test_threadgroup_memory(floats, right):
    edit = replace_once("main", r"partial\[64\];", f"partial[{floats}];")
    kernel, x = sample_kernels.block_sum(64), normal(1, 64)
    if right:
        assert np.isfinite(launch(kernel, [x], (1,), edit)).all()
    else:
        fault(kernel, [x], (1,), edit, r"exceeds the limits of a device: \d+ bytes of threadgroup memory, at most 32768")


def test_threads():
    fault(
        sample_kernels.add(512), [normal(4), normal(4)], (4,), None,
        "exceeds the limits of a device: 512 threads in a threadgroup, at most 256",
    )  # fmt: skip


@pytest.mark.parametrize(
    "buffers, scalars, right", [(31, 0, True), (32, 0, False), (30, 1, True), (31, 1, False), (1, 512, True), (1, 513, False)]
)
def test_argument_table(buffers, scalars, right):
    """A kernel of our own, in the bytes of a Metal module: TVM only warns."""
    signature = Signature(("handle",) * buffers + ("int32",) * scalars, ())
    parameters = [f"device float* b{i} [[ buffer({i}) ]]" for i in range(buffers)]
    if scalars:
        parameters.append(f"constant arguments& arg [[ buffer({buffers}) ]]")
    value = "(float)arg.n[0]" if scalars else "5.0f"
    msl = f"""#include <metal_stdlib>
using namespace metal;
struct arguments {{ int n[{2 * max(scalars, 1)}]; }};
kernel void k({", ".join(parameters)}) {{ b0[0] = {value}; }}
"""
    with MetalEmulator() as emulator:
        kernel = tvm_ffi.get_global_func("ffi.Module.load_from_bytes.metal")(serialised.save({"k": signature}, {"k": msl}))["k"]
        y = emulator.empty((1,))
        arguments = [ctypes.c_void_p(y.data_ptr())] * buffers + [5] * scalars
        if right:
            kernel(*arguments)
            assert y.numpy().tolist() == [5]
        else:
            with pytest.raises(KernelFault, match=r"kernel k: exceeds the limits of a device: \d+ (buffers|scalars), at most"):
                kernel(*arguments)


def test_empty_grid():
    fault(sample_kernels.simd_sum(), [np.zeros((0, 32), np.float32)], (0,), None, "an empty grid")


# ---- what Metal's compiler would refuse ----


def refused(kernel, edit, match):
    with pytest.raises(CompileError, match=match) as caught:
        with MetalEmulator(edit=edit):
            sample_kernels.build(kernel)
    assert "kernel main_kernel does not compile" in str(caught.value)


@pytest.mark.parametrize("name", ["expf", "sinf", "log1p", "nearbyint", "atan2f", "printf"])
def test_names_that_are_not_metals(name):
    """TVM emits some of them, from operators that it has no rule for."""
    edit = replace_once("main", r"exp\(", f"{name}(")
    refused(sample_kernels.elementwise(lambda v: T.exp(v)), edit, f"use of undeclared identifier '{name}'")


def test_tvm_emits_a_name_that_is_not_metals():
    refused(sample_kernels.elementwise(lambda v: T.atan2(v, v)), None, "'atan2f'")


@pytest.mark.parametrize(
    "pattern, replacement, match",
    [
        (r"device float\* X_ptr", "float* X_ptr", "pointer arguments to kernel functions must reside in"),
        (r"threadgroup float partial\[64\];", r"{ \g<0> } \g<0>", "only be declared in the outermost scope of a kernel"),
        (r"= X_ptr\[", "= ((threadgroup float*)X_ptr)[", "converts between mismatching address spaces"),
        (r"= X_ptr\[", "= ((volatile float*)X_ptr)[", "converts between mismatching address spaces"),
        (r"= X_ptr\[", "= ((thread float*)partial)[", "converts between mismatching address spaces"),
        (r"mem_flags::mem_threadgroup", "mem_flags::mem_shared", "no member named 'mem_shared'"),
    ],
)
def test_address_spaces(pattern, replacement, match):
    refused(sample_kernels.block_sum(64), replace_once("main", pattern, replacement), match)


def test_cast_of_a_vector():
    """TVM emits ((int4)v) for a vectorised cast, which keeps the bits in clang's languages and may convert in Apple's."""
    edit = replace_once("main", r"= X_ptr\[.*?\];", "= ((int4)((device float4*)X_ptr)[0]).x;")
    refused(sample_kernels.elementwise(lambda v: v), edit, r"main_kernel:\d+: casts to a vector, \(int4\); cast its lanes")


def test_line_numbers_are_those_of_the_source():
    edit = replace_once("main", "exp", "expf")
    with pytest.raises(CompileError) as caught:
        with MetalEmulator(edit=edit) as emulator:
            emulator.edit = lambda name, msl: lines.append(msl.splitlines()) or edit(name, msl)
            lines: list[list[str]] = []
            sample_kernels.build(sample_kernels.elementwise(lambda v: T.exp(v)))
    number = int(re.search(r"main_kernel:(\d+):", str(caught.value))[1])
    assert "exp(" in lines[0][number - 1]


# ---- fast math ----


def fast(expression, x):
    return launch(sample_kernels.elementwise(expression), [x], x.shape, None, fast_math=True)


def test_power_of_a_negative_base():
    x = np.array([-2, -0.5, 3], np.float32)
    right = launch(sample_kernels.elementwise(lambda v: T.pow(v, T.float32(2))), [x], (3,), None)
    np.testing.assert_array_equal(right, x * x)
    assert np.isnan(fast(lambda v: T.pow(v, T.float32(2)), x)).tolist() == [True, True, False]


def test_sine_of_a_large_phase():
    """Within 2^-13 on one period, which is what phases have to be reduced to, and off in proportion beyond."""
    x = np.linspace(-np.pi, np.pi, 501, dtype=np.float32)
    near = np.abs(fast(lambda v: T.sin(v), x) - np.sin(x))
    far = np.abs(fast(lambda v: T.sin(v), x * 64) - np.sin(x * 64))
    assert 2**-14 < near.max() <= 2**-13 * 1.01
    assert far.max() > 20 * near.max()


def test_precise_functions_stay_precise():
    x = np.linspace(-3, 3, 101, dtype=np.float32)
    edit = replace_once("main", r"\bsin\(", "precise::sin(")
    y = launch(sample_kernels.elementwise(lambda v: T.sin(v)), [x], (101,), edit, fast_math=True)
    assert np.abs(y - np.sin(x)).max() <= 1e-7


def test_tanh_overflows():
    edit = replace_once("main", r"= X_ptr\[(.*?)\];", r"= tanh(X_ptr[\1]);")
    x = np.array([-60, 0, 1, 60], np.float32)
    y = launch(sample_kernels.elementwise(lambda v: v), [x], (4,), edit, fast_math=True)
    assert np.isnan(y).tolist() == [False, False, False, True]


def test_not_a_number_is_not_seen():
    edit = replace_once("main", r"= X_ptr\[(.*?)\];", r"= isnan(X_ptr[\1]) ? 1.0f : 0.0f;")
    x = np.array([np.nan, 1], np.float32)
    kernel = sample_kernels.elementwise(lambda v: v)
    assert launch(kernel, [x], (2,), edit).tolist() == [1, 0]
    assert launch(kernel, [x], (2,), edit, fast_math=True).tolist() == [0, 0]


def test_subnormal_numbers():
    x = np.array([1e-40, 1e-30], np.float32)
    kernel = sample_kernels.elementwise(lambda v: v * T.float32(2))
    np.testing.assert_array_equal(launch(kernel, [x], (2,), None), x * 2)
    assert launch(kernel, [x], (2,), None, fast_math=True).tolist() == [0, float(x[1] * 2)]
