"""Fused steps and rounding by Metal's names, in the project's kernels and in no others."""

from __future__ import annotations

import pytest
import sample_kernels
from metal_emulator import kernel_texts
from tvm.script import tirx as T

from kokoro_tvm.passes.pipeline import build_kernel

EXPRESSIONS = {
    "v * v + 1": (lambda v: v * v + T.float32(1), "fma(", "float32"),
    "1 + v * v": (lambda v: T.float32(1) + v * v, "fma(", "float32"),
    "fma": (lambda v: T.fma(v, v, v), "fma(", "float32"),
    "nearbyint": (T.nearbyint, "rint(", "float32"),
    "half": (lambda v: v * v + T.float16(1), "fma(", "float16"),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_named(name: str) -> None:
    expression, expected, dtype = EXPRESSIONS[name]
    module = build_kernel(sample_kernels.elementwise(expression, dtype), "kernel", sample_kernels.target())
    (kernel,) = kernel_texts(module)
    assert expected in kernel.msl
    assert "nearbyint" not in kernel.msl


def test_whole_numbers_are_not_fused() -> None:
    kernel = sample_kernels.elementwise(lambda v: v * v + 1, "int32")
    (text,) = kernel_texts(build_kernel(kernel, "kernel", sample_kernels.target()))
    assert "fma(" not in text.msl


def test_modules_of_others_stay_as_they_are() -> None:
    """TVM's own rules are the process's: one for ``tirx.fma`` would fuse everyone's sums of products."""
    kernel = sample_kernels.elementwise(lambda v: v * v + T.float16(1), "float16")
    before = [text.msl for text in kernel_texts(sample_kernels.build(kernel))]
    build_kernel(kernel, "kernel", sample_kernels.target())
    after = [text.msl for text in kernel_texts(sample_kernels.build(kernel))]
    assert after == before
    assert "fma(" not in after[0]
