"""An ONNX graph of calls of the operator vocabulary, in the making.

What it is: the one place where calls, the functions they need and their overloads are put together, for the exporter and for
models of a single operator. What it is not: aware of components, weights on disk or metadata (``onnx.files``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from kokoro_tvm.onnx.operators import (
    NAMESPACE_VERSION,
    OPSET,
    Extents,
    call_attributes,
    function,
    read_attributes,
)
from kokoro_tvm.ops import NAMESPACE, tensor_names
from kokoro_tvm.stages import ENCODERS

IR_VERSION = 10
"""The first with overloads of functions."""

Shape = Sequence[int | str]
"""Extents; a name or an expression such as ``2*M`` where they are symbolic."""

_TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}


def fixed(shape: Shape) -> Extents:
    """The shape with None for symbolic extents."""
    return tuple(d if isinstance(d, int) else None for d in shape)


def sums_wide(component: str) -> bool:
    """Whether a component's convolutions sum in float64, in place of our kernels' compensated sums or sums of short chunks.

    ONNX Runtime's float32 is behind PyTorch's there; nine tenths of the arithmetic are the decoder's.
    """
    return component in ENCODERS


def called_function(node: NodeProto, shapes: Sequence[Extents], component: str) -> FunctionProto:
    """What a call of an operator means, by our own definition and under the overload that the call names.

    Args:
        node: The call.
        shapes: Extents of its inputs.
        component: Name of the component, or of another graph.

    Raises:
        KeyError: There is no such operator, or it lacks an attribute.
        ValueError: The number of inputs does not fit.
    """
    attributes = read_attributes(node)
    names = tensor_names(node.op_type, attributes.pop("absent", []), len(node.input))
    proto = function(node.op_type, dict(zip(names, shapes, strict=True)), attributes, sums_wide(component))
    proto.overload = node.overload
    return proto


class Graph:
    """Inputs, calls and outputs, in order; ``name`` is the component's, whose precision its operators have."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: list[NodeProto] = []
        self.functions: dict[tuple[str, bytes], FunctionProto] = {}
        self._inputs: list[ValueInfoProto] = []
        self._outputs: list[ValueInfoProto] = []
        self._inner: list[ValueInfoProto] = []
        self._weights: list[TensorProto] = []

    def input(self, name: str, dtype: str, shape: Shape) -> None:
        """Declares an input."""
        self._inputs.append(helper.make_tensor_value_info(name, _TYPES[dtype], list(shape)))

    def output(self, name: str, dtype: str, shape: Shape) -> None:
        """Declares an output."""
        self._outputs.append(helper.make_tensor_value_info(name, _TYPES[dtype], list(shape)))

    def weight(self, name: str, value: np.ndarray) -> None:
        """Adds an initializer."""
        self._weights.append(numpy_helper.from_array(np.ascontiguousarray(value), name))

    def standard(self, kind: str, inputs: Sequence[str | int], output: str, dtype: str, shape: Shape) -> None:
        """Adds a node of a standard operator; numbers become int64 constants of their own."""
        names = []
        for i, value in enumerate(inputs):
            if isinstance(value, int):
                names.append(f"{output}.{i}")
                # Axes have rank 1, factors and summands rank 0.
                array = np.asarray([value] if kind in ("Squeeze", "Unsqueeze") else value, np.int64)
                self.nodes.append(helper.make_node("Constant", [], [names[-1]], value=numpy_helper.from_array(array)))
            else:
                names.append(value)
        self.nodes.append(helper.make_node(kind, names, [output]))
        self._inner.append(helper.make_tensor_value_info(output, _TYPES[dtype], list(shape)))

    def call(
        self,
        operator: str,
        tensors: Sequence[tuple[str, Shape]],
        attributes: Mapping[str, Any],
        output: str,
        shape: Shape,
    ) -> None:
        """Adds a call of an operator.

        Args:
            operator: Its name.
            tensors: Name in the graph and shape of every tensor that is there, in schema order, lists flattened.
            attributes: The other arguments, with ``absent``.
            output: Name of the float32 result.
            shape: Its shape.
        """
        node = self._call(operator, [name for name, _ in tensors], attributes, output)
        proto = called_function(node, [fixed(shape) for _, shape in tensors], self.name)
        key = (operator, proto.SerializeToString(deterministic=True))
        if key not in self.functions:
            proto.overload = str(sum(o == operator for o, _ in self.functions) + 1)
            self.functions[key] = proto
        node.overload = self.functions[key].overload
        self.nodes.append(node)
        self._inner.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, list(shape)))

    @staticmethod
    def _call(operator: str, inputs: Sequence[str], attributes: Mapping[str, Any], output: str) -> NodeProto:
        others = {k: v for k, v in attributes.items() if k != "absent" or v}
        node = helper.make_node(operator, list(inputs), [output], name=output, domain=NAMESPACE)
        node.attribute.extend(call_attributes(others))
        return node

    def model(self) -> ModelProto:
        """The finished model, its weights within."""
        outputs = {o.name for o in self._outputs}
        inner = [v for v in self._inner if v.name not in outputs]
        graph: GraphProto = helper.make_graph(
            self.nodes, self.name, self._inputs, self._outputs, self._weights, value_info=inner
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(NAMESPACE, NAMESPACE_VERSION)]
        return helper.make_model(
            graph, functions=list(self.functions.values()), opset_imports=opsets, ir_version=IR_VERSION,
            producer_name="kokoro-tvm",
        )  # fmt: skip
