"""Limits that are read from a built module, and the bytes that they are read from."""

import re

import pytest
import sample_kernels
import tvm
import tvm_ffi
from hypothesis import given
from hypothesis import strategies as st
from metal_emulator import KernelText, check_kernels, kernel_texts, serialised
from metal_emulator.serialised import Signature
from tvm.script import tirx as T


def text(msl: str, buffers: int = 2, scalars: int = 1) -> KernelText:
    return KernelText("k", msl, Signature(("handle",) * buffers + ("int32",) * scalars, ("blockIdx.x",)))


def test_texts_of_a_module():
    (kernel,) = kernel_texts(sample_kernels.build(sample_kernels.block_sum(64)))
    assert kernel.name == "main_kernel"
    assert kernel.msl.startswith("#include <metal_stdlib>")
    assert kernel.buffers == 3 == len(re.findall(r"\[\[ buffer\(", kernel.msl))
    assert kernel.threadgroup_bytes == 64 * 4
    assert kernel.signature == Signature(("handle", "handle", "int32"), ("blockIdx.x", "threadIdx.x"))
    assert check_kernels([kernel], max_total_bytes=4096) == []


def test_module_without_kernels():
    @T.prim_func(s_tir=True)
    def kernel(x: T.Buffer((4,), "float32")):
        x[0] = T.float32(1)

    with pytest.raises(ValueError, match="no Metal kernels in this module"):
        kernel_texts(tvm.tirx.build(tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")}), target="llvm"))


@pytest.mark.parametrize("spare", [0, 1])
@pytest.mark.parametrize(
    "make, problem",
    [
        (lambda spare: text("x" * (65537 - spare)), "65537 bytes of source, at most 65536"),
        (lambda spare: text("", buffers=31 - spare), "32 buffers, at most 31"),
        (lambda spare: text("", buffers=32 - spare, scalars=0), "32 buffers, at most 31"),
        (
            lambda spare: text(f"  threadgroup float4 a[{2048 - spare}];\n  threadgroup half b[8];"),
            "32784 bytes of threadgroup memory, at most 32768",
        ),
    ],
)
def test_limits(make, problem, spare):
    assert check_kernels([make(spare)]) == ([] if spare else [f"kernel k: {problem}"])


def test_all_problems_at_once():
    kernels = [text("x" * 70000, buffers=40)] * 2
    problems = check_kernels(kernels, max_total_bytes=100_000)
    assert len(problems) == 5
    assert problems[-1] == "2 kernels: 140000 bytes of source together, at most 100000"


def test_bytes_are_tvms():
    module = sample_kernels.build(sample_kernels.add())
    blob = tvm_ffi.get_global_func("runtime.ModulePackImportsToTensor")(module).numpy().tobytes()
    (data,) = serialised.metal_modules(blob)
    assert serialised.save(*serialised.load(data)) == data


_names = st.text(st.characters(codec="ascii", categories=["L"]), min_size=1, max_size=8)
_types = st.lists(st.sampled_from(["handle", "int32", "int64", "float32", "uint8", "bool8"]), max_size=5).map(tuple)
_signatures = st.builds(Signature, _types, st.lists(st.sampled_from(["blockIdx.x", "threadIdx.z"]), max_size=3).map(tuple))


@given(st.dictionaries(_names, st.tuples(_signatures, st.text(max_size=50)), max_size=3))
def test_round_trip(kernels):
    signatures = {name: signature for name, (signature, _) in kernels.items()}
    sources = {name: source for name, (_, source) in kernels.items()}
    assert serialised.load(serialised.save(signatures, sources)) == (signatures, sources)


@given(st.binary(max_size=80))
def test_other_bytes(data):
    for parse in (serialised.load, serialised.metal_modules):
        with pytest.raises(ValueError):
            parse(data)


@given(st.data())
def test_truncated_bytes(data):
    whole = serialised.save({"k": Signature(("handle", "int32"), ("blockIdx.x",))}, {"k": "kernel void k() {}"})
    with pytest.raises(ValueError):
        serialised.load(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(ValueError, match="3 bytes behind"):
        serialised.load(whole + b"end")
