"""torch.export and the translation to Relax."""

from __future__ import annotations

import json

import pytest
import torch
import tvm
from tvm import relax

from kokoro_tvm.export.modules import COMPONENTS as MODULES
from kokoro_tvm.export.program import example_inputs, export_program, to_relax
from kokoro_tvm.reference.checkpoint import build_model
from kokoro_tvm.stages import COMPONENTS


@pytest.fixture(scope="module")
def model(tiny_checkpoint):
    return build_model(tiny_checkpoint)


@pytest.fixture(scope="module")
def programs(model):
    return {name: export_program(name, model) for name in COMPONENTS}


@pytest.mark.parametrize("name", COMPONENTS)
def test_exported_program_runs_in_pytorch_at_other_sizes(model, programs, name):
    extents = {"B": 3, "N": 9, "M": 4}
    generator = torch.Generator().manual_seed(0)
    inputs = []
    for spec in COMPONENTS[name].inputs:
        shape = spec.resolve(**extents)
        if spec.name == COMPONENTS[name].lengths:
            inputs.append(torch.tensor([2, 4, 1]))
        elif spec.dtype == "int64":
            inputs.append(torch.randint(1, 100, shape, generator=generator))
        else:
            inputs.append(torch.randn(shape, generator=generator))
    with torch.no_grad():
        exported, eager = programs[name].module()(*inputs), MODULES[name](model)(*inputs)
    for a, b in zip(torch.utils._pytree.tree_leaves(exported), torch.utils._pytree.tree_leaves(eager), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", COMPONENTS)
def test_relax_has_symbolic_extents_and_the_vocabulary_alone(programs, name):
    component = to_relax(name, programs[name])
    function = component.module[name]
    for spec, parameter in zip(COMPONENTS[name].inputs, function.params, strict=False):
        assert str(parameter.ty.dtype) == spec.dtype or str(parameter.ty.dtype).endswith(spec.dtype)
        symbols = [str(d) for d in parameter.ty.shape.values]
        assert all(s in str(symbols) for s in {d.rpartition("*")[2] for d in spec.shape if isinstance(d, str)})
    assert len(component.weights) == len(function.params) - len(COMPONENTS[name].inputs)
    operators = set()
    relax.analysis.post_order_visit(
        function, lambda e: operators.add(e.op.name) if isinstance(e, relax.Call) and isinstance(e.op, tvm.ir.Op) else None
    )
    # Besides the vocabulary only arithmetic on lengths and views.
    assert operators <= {"relax.call_dps_packed", "relax.multiply", "relax.add", "relax.squeeze", "relax.expand_dims"}
    results = function.ret_ty.fields if hasattr(function.ret_ty, "fields") else [function.ret_ty]
    assert [len(r.shape.values) for r in results] == [len(s.shape) for s in COMPONENTS[name].outputs]


def test_size_of_the_ir_is_that_of_the_model(programs):
    """One call per operator: an unrolled LSTM or a bucket would show."""
    decoder = to_relax("decoder", programs["decoder"]).module.script(show_meta=False)
    duration = to_relax("duration", programs["duration"]).module.script(show_meta=False)
    assert len(decoder.splitlines()) < 250
    assert len(duration.splitlines()) < 60


def test_example_inputs_are_valid():
    for name, component in COMPONENTS.items():
        inputs = example_inputs(name)
        assert [str(t.dtype).removeprefix("torch.") for t in inputs] == [s.dtype for s in component.inputs]


def test_attributes_are_json(programs):
    function = to_relax("text_encoder", programs["text_encoder"]).module["text_encoder"]
    found = []
    relax.analysis.post_order_visit(function, lambda e: found.append(e.value) if isinstance(e, tvm.ir.StringImm) else None)
    assert found
    assert all("absent" in json.loads(text) for text in found)
