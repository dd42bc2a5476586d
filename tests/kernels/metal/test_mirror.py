"""The Metal kernels mirror the CPU's: the same modules, functions and arguments, so that one lowering rule serves both."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from kokoro_tvm.kernels import metal
from kokoro_tvm.kernels import tile as tiles
from kokoro_tvm.kernels.metal.packing import _PACKERS as METAL_PACKERS
from kokoro_tvm.kernels.metal.tile import APPLE
from kokoro_tvm.kernels.packing import _PACKERS
from kokoro_tvm.kernels.selection import MODULES, kernel_set

CPU, METAL = kernel_set(tiles.AVX2), kernel_set(APPLE)
FACTORIES = {"layout": ("to_rows", "to_columns", "mask_rows")}
HELPERS = {"__init__", "intrinsics", "packing", "tile", "vector_math"}


@pytest.mark.parametrize("module", MODULES)
def test_same_functions(module):
    for name in FACTORIES.get(module, ("kernel",)):
        ours, theirs = (inspect.signature(getattr(getattr(kernels, module), name)) for kernels in (METAL, CPU))
        # The CPU's attention has a limit of its own for scratch memory.
        expected = [p for p in theirs.parameters if p != "max_tokens"]
        assert list(ours.parameters) == expected
        assert [ours.parameters[p].default for p in expected] == [theirs.parameters[p].default for p in expected]


def test_every_module_is_listed():
    assert {p.stem for p in Path(metal.__file__).parent.glob("*.py")} - HELPERS == set(MODULES)


def test_same_layouts():
    assert METAL_PACKERS.keys() == _PACKERS.keys()
