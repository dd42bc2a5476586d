"""Kernels run as Metal defines them, in every order, and TVM's runtime finds in the emulator what it finds in a device."""

import numpy as np
import pytest
import sample_kernels
import tvm
import tvm_ffi
from metal_emulator import KernelFault, MetalEmulator, kernel_texts, replace_once
from tvm import relax
from tvm.script import tirx as T

RNG = np.random.default_rng(20)
EPSILON = float(np.finfo(np.float32).eps)

watched = pytest.mark.parametrize("race", [False, True], ids=["plain", "race"])


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@watched
@pytest.mark.parametrize("n", [1, 63, 64, 65, 200])
def test_add(n, race):
    a, b = normal(n), normal(n)
    with MetalEmulator(race=race) as emulator:
        for c in sample_kernels.run_in_orders(emulator, sample_kernels.add(), [a, b], (n,)):
            np.testing.assert_array_equal(c, a + b)
    record = emulator.kernels["main_kernel"]
    assert (record.launches, record.most_threads, record.most_groups) == (3, 64, -(-n // 64))


@watched
@pytest.mark.parametrize("threads", [2, 32, 64, 256])
def test_reduction_in_threadgroup_memory(threads, race):
    x = normal(3, threads)
    with MetalEmulator(race=race, seed=threads) as emulator:
        for y in sample_kernels.run_in_orders(emulator, sample_kernels.block_sum(threads), [x], (3,)):
            assert np.abs(y - x.sum(1, dtype=np.float64)).max() <= threads * EPSILON * np.abs(x).sum(1).max()


@watched
def test_shuffles(race):
    x = normal(5, 32)
    with MetalEmulator(race=race) as emulator:
        for y in sample_kernels.run_in_orders(emulator, sample_kernels.simd_sum(), [x], (5,)):
            assert np.abs(y - x.sum(1, dtype=np.float64)).max() <= 5 * EPSILON * np.abs(x).sum(1).max()


SIMD_FUNCTIONS = {
    "simd_shuffle(v, 7)": lambda v: np.full(32, v[7]),
    "simd_broadcast(v, 31)": lambda v: np.full(32, v[31]),
    "simd_shuffle(v, (lane + 5) % 32)": lambda v: np.roll(v, -5),
    "simd_shuffle_down(v, 3)": lambda v: np.concatenate([v[3:], v[29:]]),
    "simd_shuffle_up(v, 3)": lambda v: np.concatenate([v[:3], v[:29]]),
    "simd_shuffle_xor(v, 1)": lambda v: v.reshape(16, 2)[:, ::-1].ravel(),
    "simd_sum(v)": lambda v: np.full(32, v.sum()),
    "simd_product(v)": lambda v: np.full(32, v.prod()),
    "simd_min(v)": lambda v: np.full(32, v.min()),
    "simd_max(v)": lambda v: np.full(32, v.max()),
    "simd_prefix_inclusive_sum(v)": lambda v: v.cumsum(),
    "simd_prefix_exclusive_sum(v)": lambda v: v.cumsum() - v,
}


@pytest.mark.parametrize("function", SIMD_FUNCTIONS)
def test_simdgroup_functions(function):
    """Of integers, so that the order of a sum does not matter; two SIMD-groups, which know nothing of each other."""
    x = RNG.integers(1, 3, (2, 32)).astype(np.float32)
    expected = np.concatenate([SIMD_FUNCTIONS[function](half) for half in x])
    text = f"if (true) {{ float v = A_ptr[threadIdx]; uint lane = threadIdx % 32; C_ptr[threadIdx] = {function}; return;"
    with MetalEmulator(edit=replace_once("main", r"if \(.*\) \{", text)) as emulator:
        for y in sample_kernels.run_in_orders(emulator, sample_kernels.add(64), [x.ravel()] * 2, (64,)):
            np.testing.assert_array_equal(y, expected)


def test_a_lane_that_does_not_exist_is_nan():
    """16 threads: what a shuffle from lane 16 and above gives is undefined in Metal."""
    kernel = sample_kernels.add(16)
    edit = replace_once("main", r"if \(.*\) \{", "C_ptr[threadIdx] = simd_shuffle_down(A_ptr[threadIdx], 4); if (false) {")
    with MetalEmulator(edit=edit) as emulator:
        y = sample_kernels.run(emulator, kernel, [np.arange(16, dtype=np.float32)] * 2, (16,))
    assert y[:12].tolist() == list(range(4, 16))
    assert np.isnan(y[12:]).all()


@watched
@pytest.mark.parametrize("threads", [1, 33, 256])
def test_scan(threads, race):
    x = RNG.integers(-9, 9, (4, threads)).astype(np.float32)
    with MetalEmulator(race=race) as emulator:
        for y in sample_kernels.run_in_orders(emulator, sample_kernels.scan(threads), [x], (4, threads)):
            np.testing.assert_array_equal(y, x.cumsum(1))


@watched
def test_simdgroup_matrices(race):
    a, b = normal(32, 24), normal(24, 128)
    bound = 24 * EPSILON * (np.abs(a) @ np.abs(b)).max()
    with MetalEmulator(race=race) as emulator:
        for c in sample_kernels.run_in_orders(emulator, sample_kernels.matmul(32, 24, 128), [a, b], (32, 128)):
            assert np.abs(c - a.astype(np.float64) @ b).max() <= bound


def test_simdgroup_matrices_of_halves():
    """Of integers that halves hold exactly, and of 2049, which they do not: the sum is a half after each product."""
    a = RNG.integers(-3, 4, (16, 32)).astype(np.float16)
    b = RNG.integers(-3, 4, (32, 64)).astype(np.float16)
    a[0], b[:, 0] = 0, 0
    a[0, [0, 8, 16]], b[[0, 8, 16], 0] = [2048, 1, 1], 1
    with MetalEmulator() as emulator:
        c = sample_kernels.run(emulator, sample_kernels.matmul(16, 32, 64, "float16"), [a, b], (16, 64), "float16")
    expected = a.astype(np.float64) @ b.astype(np.float64)
    assert (c[0, 0], expected[0, 0]) == (2048, 2050)
    c[0], expected[0] = 0, 0
    np.testing.assert_array_equal(c, expected)


def test_transposed_simdgroup_matrix():
    a, b = normal(16, 8), normal(8, 64)
    edit = replace_once("main", r"simdgroup_load\(a\[0\], (.*), 8, 0, \(bool\)0\)", r"simdgroup_load(a[0], \1, 8, 0, true)")
    with MetalEmulator(edit=edit) as emulator:
        c = sample_kernels.run(emulator, sample_kernels.matmul(16, 8, 64), [a, b], (16, 64))
    expected = np.concatenate([a[:8].T, a[8:]]).astype(np.float64) @ b
    assert np.abs(c - expected).max() <= 8 * EPSILON * (np.abs(a).max() * np.abs(b).sum(0)).max()


LIBRARY = {
    "float4(1.0f)[3]": 1,
    "float4(1.0f, 2.0f, 3.0f, 4.0f).z": 3,
    "float2(half2(1.5h, 2.5h))[1]": 2.5,
    "(float3(1.0f, 2.0f, 3.0f) * 2.0f).y": 4,
    "float(int4(7, 8, 9, 10).x)": 7,
    "fma(float2(2.0f), float2(3.0f), float2(1.0f)).x": 7,
    "max(float4(1.0f), float4(5.0f)).x": 5,
    "select(float2(1.0f), float2(2.0f), float2(0.0f) < float2(1.0f)).x": 2,
    "select(1.0f, 2.0f, true)": 2,
    "as_type<float>(1073741824)": 2,
    "clz(1u)": 31,
    "popcount(7)": 3,
    "rint(2.5f)": 2,
    "round(2.5f)": 3,
    "fract(-0.25f)": 0.75,
    "sign(-3.0f)": -1,
    "fmod(-5.0f, 3.0f)": -2,
    "abs(-3)": 3,
    "clamp(9, 1, 4)": 4,
    "exp10(2.0f)": 100,
    "atan2(1.0f, 0.0f)": np.pi / 2,
    "copysign(3.0f, -0.0f)": -3,
    "rsqrt(4.0f)": 0.5,
    "isfinite(INFINITY)": 0,
    "isnan(NAN)": 1,
}


def test_library():
    """One kernel that writes the value of each expression."""
    body = "".join(f"if (threadIdx == {i}) Y_ptr[{i}] = (float)({text});\n" for i, text in enumerate(LIBRARY))
    edit = replace_once("main", r"int cse_v1", body + "int cse_v1")
    kernel = sample_kernels.elementwise(lambda v: v)
    with MetalEmulator(edit=edit) as emulator:
        emulator.edit = lambda name, msl: edit(name, msl).replace("if (((((int)blockIdx)", "if (false && ((((int)blockIdx)")
        y = sample_kernels.run(emulator, kernel, [normal(32)], (32,))
    assert dict(zip(LIBRARY, y.tolist(), strict=False)) == pytest.approx(LIBRARY, rel=2e-7)


@watched
@pytest.mark.parametrize("lanes", [2, 4])
def test_vectors(lanes, race):
    x = normal(33, lanes)
    kernel = sample_kernels.vectors(lambda v: T.Select(v > T.float32(0), T.exp(v), T.float32(0)), lanes)
    with MetalEmulator(race=race) as emulator:
        y = sample_kernels.run(emulator, kernel, [x], x.shape)
    assert f"device float{lanes}*" in emulator.kernels["main_kernel"].msl
    np.testing.assert_allclose(y, np.where(x > 0, np.exp(x), 0), rtol=2 * EPSILON)


@watched
def test_half_rounds_each_operation(race):
    x = normal(70).astype(np.float16)
    kernel = sample_kernels.elementwise(lambda v: v * v + T.float16(1), "float16")
    with MetalEmulator(race=race) as emulator:
        y = sample_kernels.run(emulator, kernel, [x], (70,), "float16")
    np.testing.assert_array_equal(y, x * x + np.float16(1))


@pytest.mark.parametrize("n", [1, 5])
def test_virtual_machine_and_exported_library(n, tmp_path, relax_module):
    inputs = [normal(1, n, 32), normal(32, 64), normal(64)]
    reference = relax.VirtualMachine(relax.build(relax_module, target="llvm"), tvm.cpu())["main"](
        *(tvm.runtime.tensor(x) for x in inputs)
    ).numpy()
    with MetalEmulator(order="random", seed=n, race=True) as emulator:
        executable = relax.build(relax_module, target=sample_kernels.target())
        executable.export_library(tmp_path / "library.so")
        for module in (executable, tvm.runtime.load_module(str(tmp_path / "library.so"))):
            machine = emulator.virtual_machine(module)
            result = machine["main"](*(emulator.tensor(x) for x in inputs)).numpy()
            assert np.abs(result - reference).max() <= 64 * EPSILON * np.abs(reference).max()
    assert set(emulator.kernels) == {text.name for text in kernel_texts(executable)}
    assert all(record.launches == 2 for record in emulator.kernels.values())


@pytest.fixture(scope="module")
def relax_module() -> tvm.IRModule:
    """A normalised and squashed sum over a dynamic number of rows, with a scan."""
    builder = relax.BlockBuilder()
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((1, n, 32), "float32"))
    w = relax.Var("w", relax.TensorType((32, 64), "float32"))
    g = relax.Var("g", relax.TensorType((64,), "float32"))
    with builder.function("main", [x, w, g]):
        with builder.dataflow():
            y = builder.emit(relax.op.multiply(relax.op.sum(x, axis=-1, keepdims=True), g))
            y = builder.emit(relax.op.add(y, relax.op.sum(w, axis=0)))
            y = builder.emit(relax.op.nn.layer_norm(y, g, g, axes=[-1]))
            y = builder.emit_output(relax.op.tanh(relax.op.nn.softmax(y)))
        builder.emit_func_output(y)
    return builder.get()


def test_built_bytes_do_not_depend_on_the_emulator():
    """What is verified is what ships."""
    pack = tvm_ffi.get_global_func("runtime.ModulePackImportsToTensor")
    kernel = sample_kernels.block_sum()
    plain = sample_kernels.build(kernel)
    with MetalEmulator(edit=replace_once("main", r"Y_ptr\[", "Y_ptr[0 * ")) as emulator:
        emulated = sample_kernels.build(kernel)
    np.testing.assert_array_equal(pack(emulated).numpy(), pack(plain).numpy())
    assert emulator.kernels["main_kernel"].msl != kernel_texts(plain)[0].msl


def test_orders_differ():
    """All threads write the same place: the last one stays."""
    last = replace_once("main", r"Y_ptr\[.*?\] = (.*);", r"Y_ptr[0] = (float)(int)(blockIdx * 32 + threadIdx);")
    kernel = sample_kernels.elementwise(lambda v: v)
    with MetalEmulator(edit=last) as emulator:
        module = sample_kernels.build(kernel)
        written = set()
        for order, seed in [("forward", 0), ("reverse", 0), *(("random", seed) for seed in range(4))]:
            emulator.order, emulator.seed = order, seed
            y = emulator.empty((64,))
            module["main"](emulator.tensor(normal(64)), y)
            written.add(float(y.numpy()[0]))
    assert {63.0, 0.0} < written
    assert len(written) >= 4


def test_a_seed_repeats_its_order():
    last = replace_once("main", r"Y_ptr\[.*?\] = (.*);", r"Y_ptr[0] = (float)(int)(blockIdx * 32 + threadIdx);")
    results = []
    for _ in range(2):
        with MetalEmulator(order="random", seed=3, edit=last) as emulator:
            results.append(sample_kernels.run(emulator, sample_kernels.elementwise(lambda v: v), [normal(640)], (640,))[0])
    assert results[0] == results[1]


def test_new_memory_is_nan():
    with MetalEmulator() as emulator:
        assert np.isnan(emulator.empty((33,)).numpy()).all()
        assert np.isnan(emulator.empty((33,), "float16").numpy()).all()


def test_copies_on_the_device():
    x = normal(3, 7)
    with MetalEmulator() as emulator:
        y = emulator.empty((3, 7))
        y.copyfrom(emulator.tensor(x))
        np.testing.assert_array_equal(y.numpy(), x)


def test_constants_and_booleans():
    """A table of constants, which the checks of memory let pass; booleans, a byte each."""
    edit = replace_once("main", "kernel void", "constant float table[4] = {1, 2, 3, 4};\nkernel void")
    other = replace_once("main", r"= \(0.000000e\+00f < .*?\);", "= table[threadIdx & 3] < X_ptr[threadIdx];")

    @T.prim_func(s_tir=True)
    def kernel(X: T.Buffer((8,), "float32"), Y: T.Buffer((8,), "bool")):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        for thread in T.thread_binding(8, thread="threadIdx.x"):
            Y[thread] = T.float32(0) < X[thread]

    with MetalEmulator(race=True, edit=lambda name, msl: other(name, edit(name, msl))) as emulator:
        y = sample_kernels.run(emulator, kernel, [np.full(8, 2.5, np.float32)], (8,), "bool")
    assert y.tolist() == [True, True, False, False] * 2


# ---- caller mistakes ----


def test_unknown_order():
    with pytest.raises(ValueError, match="order is 'sideways', expected one of forward, reverse, random"):
        MetalEmulator(order="sideways")
    emulator = MetalEmulator()
    with pytest.raises(ValueError, match="order is ''"):
        emulator.order = ""
    assert emulator.order == "forward"


def test_one_emulator_at_a_time():
    with MetalEmulator():
        with pytest.raises(RuntimeError, match="another Metal device is active"):
            MetalEmulator().__enter__()
    with MetalEmulator() as emulator:
        assert emulator.device.exist


def test_kernels_of_another_build():
    """TVM keeps libraries and their host code the kernels it first found: neither a mode nor an edit may be lost that way."""
    with MetalEmulator() as emulator:
        module = sample_kernels.build(sample_kernels.elementwise(lambda v: v))
        x, y = emulator.tensor(normal(4)), emulator.empty((4,))
        module["main"](x, y)
    edit = replace_once("main", "no such thing", "")
    for options in ({"race": True}, {"fast_math": True}, {"edit": edit}):
        with MetalEmulator(**options), pytest.raises(KernelFault, match="compiled with another race, fast_math or edit"):
            module["main"](x, y)


def test_launch_outside_the_block():
    with MetalEmulator() as emulator:
        module = sample_kernels.build(sample_kernels.elementwise(lambda v: v))
        x, y = emulator.tensor(normal(4)), emulator.empty((4,))
    with pytest.raises(KernelFault, match="outside of the emulator's with block"):
        module["main"](x, y)


def test_an_edit_has_to_find_something():
    with pytest.raises(ValueError, match="kernel main_kernel: 0 matches of 'no such thing'"):
        with MetalEmulator(edit=replace_once("main", "no such thing", "")):
            sample_kernels.build(sample_kernels.add())
