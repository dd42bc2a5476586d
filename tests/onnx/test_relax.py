"""The ONNX front end gives what torch.export's gives: the same module, before and after lowering, and the same weights."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from kokoro_tvm.export.program import export_program, to_relax
from kokoro_tvm.kernels import tile
from kokoro_tvm.onnx import relax as front
from kokoro_tvm.onnx.files import read_component
from kokoro_tvm.passes.lower_operators import LowerOperators
from kokoro_tvm.reference.checkpoint import build_model
from kokoro_tvm.stages import COMPONENTS


@pytest.fixture(scope="module")
def both(tiny_onnx, tiny_checkpoint):
    model = build_model(tiny_checkpoint)
    return {
        name: (front.to_relax(read_component(tiny_onnx, name)), to_relax(name, export_program(name, model)))
        for name in COMPONENTS
    }


@pytest.mark.parametrize("name", COMPONENTS)
def test_same_module_and_weights(both, name):
    ours, theirs = both[name]
    tvm.ir.assert_structural_equal(ours.module, theirs.module)
    assert list(ours.weights) == list(theirs.weights)
    for key, weight in theirs.weights.items():
        np.testing.assert_array_equal(ours.weights[key], weight)


@pytest.mark.parametrize(("name", "method"), [("text_encoder", "extern"), ("text_encoder", "tir"), ("f0n", "extern")])
def test_same_kernels(both, name, method):
    """Equal machine code follows, and with it equal samples and equal speed."""
    ours, theirs = (LowerOperators(tile.AVX2, method)(c.module) for c in both[name])
    tvm.ir.assert_structural_equal(ours, theirs)
    assert ours.script(show_meta=False) == theirs.script(show_meta=False)


def test_length_is_no_size(both):
    """One call per operator, and an LSTM is one of them: nothing is unrolled."""
    lines = {name: len(ours.module.script(show_meta=False).splitlines()) for name, (ours, _) in both.items()}
    assert lines["decoder"] < 250
    assert lines["duration"] < 60
    assert 'call_dps_packed("kokoro_tvm.bilstm"' in both["duration"][0].module.script(show_meta=False)
