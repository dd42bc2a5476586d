"""From a component's ONNX file to Relax.

What it is: the ONNX front end. Every call of an operator becomes the ``call_dps_packed`` that ``torch.export``'s front end makes
of it (``relax_component.call_operator``), so that the same passes and kernels follow; the functions' bodies are not looked at.
What it is not: ``tvm.relax.frontend.onnx``: no standard operator is translated but the arithmetic on lengths and views.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import NodeProto, helper, numpy_helper
from tvm import relax, tirx

from kokoro_tvm.onnx.files import OnnxComponent
from kokoro_tvm.onnx.operators import read_attributes
from kokoro_tvm.ops import NAMESPACE, tensor_names
from kokoro_tvm.relax_component import RelaxComponent, call_operator
from kokoro_tvm.stages import COMPONENTS, Dim

_ARITHMETIC = {"Add": relax.op.add, "Mul": relax.op.multiply}


def to_relax(component: OnnxComponent) -> RelaxComponent:
    """Translates a checked component, its weights kept as parameters."""
    builder = relax.BlockBuilder()
    symbols = {s: tirx.Var(s, "int64") for s in ("B", "N", "M")}
    spec = COMPONENTS[component.name]
    inputs = [
        relax.Var(s.name, relax.TensorType([_extent(d, symbols) for d in s.shape], s.dtype)) for s in spec.inputs
    ]
    # Named as torch.export names them: the names reach the lowered function's attributes.
    weights = [relax.Var(f"p_{n.replace('.', '_')}", relax.TensorType(w.shape, "float32")) for n, w in component.weights.items()]
    values: dict[str, Any] = dict(zip((s.name for s in spec.inputs), inputs, strict=True))
    values |= dict(zip(component.weights, weights, strict=True))
    with builder.function(component.name, [*inputs, *weights]):
        with builder.dataflow():
            for node in component.graph.node:
                values[node.output[0]] = _translated(builder, node, values)
            outputs = [values[s.name] for s in spec.outputs]
            result = builder.emit_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
        builder.emit_func_output(result)
    return RelaxComponent(component.name, builder.finalize(), component.weights)


def _extent(dim: Dim, symbols: dict[str, tirx.Var]) -> Any:
    if isinstance(dim, int):
        return dim
    factor, _, symbol = dim.rpartition("*")
    return symbols[symbol] * int(factor) if factor else symbols[symbol]


def _translated(builder: relax.BlockBuilder, node: NodeProto, values: dict[str, Any]) -> Any:
    """A node's result; a constant stays an array until it is used."""
    if node.domain == NAMESPACE:
        return _call(builder, node, values)
    if node.op_type == "Constant":
        return numpy_helper.to_array(helper.get_node_attr_value(node, "value"))
    tensor, number = (values[i] for i in node.input)
    if node.op_type in _ARITHMETIC:
        return builder.emit(_ARITHMETIC[node.op_type](tensor, relax.const(np.int64(number), "int64")))
    axis = int(number.item())
    return builder.emit(relax.op.squeeze(tensor, [axis]) if node.op_type == "Squeeze" else relax.op.expand_dims(tensor, axis))


def _call(builder: relax.BlockBuilder, node: NodeProto, values: dict[str, Any]) -> relax.Var:
    attributes = read_attributes(node)
    attributes = {"absent": attributes.pop("absent", []), **attributes}
    tensors: dict[str, Any] = {}
    for name, source in zip(tensor_names(node.op_type, attributes["absent"], len(node.input)), node.input, strict=True):
        argument, listed, _ = name.partition(".")
        if listed:
            tensors.setdefault(argument, []).append(values[source])
        else:
            tensors[argument] = values[source]
    return call_operator(builder, node.op_type, tensors, attributes)
