"""``torch.export`` of a component, and its translation to Relax.

What it is: the PyTorch front end. The result is a Relax function whose operators are ``call_dps_packed("kokoro_tvm.…")``
(the convention is in ``kokoro_tvm.ops``) and whose batch, token and frame extents are symbolic.
What it is not: lowering; ``passes`` turns the operators into kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import tvm
from torch.export import Dim, ExportedProgram
from tvm import relax, tirx
from tvm.relax.frontend.torch import from_exported_program

from kokoro_tvm.export.modules import COMPONENTS as MODULES
from kokoro_tvm.ops import SHAPES
from kokoro_tvm.relax_component import RelaxComponent, call_operator
from kokoro_tvm.stages import COMPONENTS

if TYPE_CHECKING:
    from kokoro.model import KModel
    from tvm.relax.frontend.torch.base_fx_graph_translator import BaseFXGraphImporter

_EXAMPLE = {"B": 2, "N": 5, "M": 7}
"""Extents of the example inputs: any but 0 and 1, which torch.export would specialise to."""


def example_inputs(name: str, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """Zero inputs of a component with valid lengths, for tracing."""
    tensors = []
    for spec in COMPONENTS[name].inputs:
        shape = spec.resolve(**_EXAMPLE)
        if spec.dtype == "int64":
            tensors.append(torch.ones(shape, dtype=torch.int64))
        else:
            tensors.append(torch.zeros(shape, dtype=dtype))
    return tuple(tensors)


def export_program(name: str, model: KModel) -> ExportedProgram:
    """Exports a component with symbolic batch, token and frame extents.

    Args:
        name: A name of ``stages.COMPONENTS``.
        model: An eval-mode model in float32.
    """
    module = MODULES[name](model).eval()
    dims: dict[str, Any] = {s: Dim(s, min=2 if s == "B" else 1, max=2**20) for s in _EXAMPLE}
    shapes = []
    for spec in COMPONENTS[name].inputs:
        axes = {}
        for axis, dim in enumerate(spec.shape):
            if isinstance(dim, str):
                factor, _, symbol = dim.rpartition("*")
                axes[axis] = int(factor) * dims[symbol] if factor else dims[symbol]
        shapes.append(axes)
    with torch.no_grad():
        return torch.export.export(module, example_inputs(name), dynamic_shapes=tuple(shapes))


def to_relax(name: str, program: ExportedProgram) -> RelaxComponent:
    """Translates an exported component to Relax, its weights kept as parameters."""
    module = from_exported_program(
        program,
        keep_params_as_input=True,
        unwrap_unit_return_tuple=True,
        custom_convert_map={f"{op}.default": _convert for op in SHAPES},
        run_ep_decomposition=False,
    )
    function = module["main"]
    arrays = [np.ascontiguousarray(p.numpy()) for p in function.attrs["params"]]
    names = [name for name, _ in program.named_parameters()]
    for attribute in ("params", "num_input", "tir_var_lower_bound", "tir_var_upper_bound"):
        function = function.without_attr(attribute)
    function = function.with_attr("global_symbol", name)
    function = function.bind_symbolic_vars(_symbols(name, function))
    return RelaxComponent(name, tvm.IRModule({name: function}), dict(zip(names, arrays, strict=True)))


def _symbols(name: str, function: relax.Function) -> dict[tirx.Var, tirx.Var]:
    """The tracer's symbols (s14, ...) by their meaning: B, N, M."""
    found = {}
    for spec, parameter in zip(COMPONENTS[name].inputs, function.params, strict=False):
        for dim, extent in zip(spec.shape, parameter.ty.shape.values, strict=True):
            if dim in _EXAMPLE and extent not in found:
                found[extent] = tirx.Var(dim, "int64")
    return found


def _convert(node: torch.fx.Node, importer: BaseFXGraphImporter) -> relax.Var:
    """One operator of the vocabulary to ``call_dps_packed``."""
    operator, nodes, attributes = parsed_call(node)
    tensors = {k: [importer.env[n] for n in v] if isinstance(v, list) else importer.env[v] for k, v in nodes.items()}
    return call_operator(importer.block_builder, operator, tensors, attributes)


def parsed_call(node: torch.fx.Node) -> tuple[str, dict[str, torch.fx.Node | list[torch.fx.Node]], dict[str, Any]]:
    """A call of an operator of the vocabulary: its name, the tensors that are there, and the other arguments with ``absent``."""
    schema = node.target._schema
    values = dict(zip((a.name for a in schema.arguments), node.args, strict=False)) | dict(node.kwargs)
    tensors: dict[str, torch.fx.Node | list[torch.fx.Node]] = {}
    attributes: dict[str, Any] = {"absent": []}
    for argument in schema.arguments:
        value = values.get(argument.name)
        if isinstance(value, torch.fx.Node):
            tensors[argument.name] = value
        elif isinstance(value, list | tuple):
            tensors[argument.name] = list(value)
        elif value is None:
            attributes["absent"].append(argument.name)
        else:
            attributes[argument.name] = value
    return schema.name.split("::")[1], tensors, attributes
