"""An exported component as an ONNX model.

What it is: the walk over a ``torch.export`` program that writes every operator of the vocabulary as a call of its ONNX function
(``onnx.operators``), with PyTorch's parameters as initializers, named and laid out as they are. What it is not: a converter of
PyTorch operators (``torch.onnx`` is not involved), or a writer of files (``onnx.files``).
"""

from __future__ import annotations

from typing import Any

import torch
from onnx import ModelProto
from torch.export import ExportedProgram

from kokoro_tvm.export.program import parsed_call
from kokoro_tvm.onnx.graph import Graph
from kokoro_tvm.ops import NAMESPACE
from kokoro_tvm.stages import COMPONENTS

_STANDARD = {
    torch.ops.aten.mul.Tensor: "Mul",
    torch.ops.aten.add.Tensor: "Add",
    torch.ops.aten.squeeze.dim: "Squeeze",
    torch.ops.aten.unsqueeze.default: "Unsqueeze",
}
"""What a program holds besides the vocabulary: arithmetic on lengths and views, of a tensor and a whole number."""


def to_onnx(name: str, program: ExportedProgram) -> ModelProto:
    """Writes a component's program as an ONNX model, its weights within.

    Args:
        name: Component name; inputs and outputs get the names and symbolic shapes of ``stages.COMPONENTS``.
        program: From ``export.program.export_program``.

    Raises:
        RuntimeError: The program has an operator without an ONNX form: the modules have changed and this has not.
    """
    return _Writer(name, program).model()


class _Writer:
    def __init__(self, name: str, program: ExportedProgram) -> None:
        self.component = COMPONENTS[name]
        self.program = program
        self.graph = Graph(name)
        self.names: dict[torch.fx.Node, str] = {}
        self.symbols: dict[Any, str] = {}

    def model(self) -> ModelProto:
        nodes = list(self.program.graph.nodes)
        self._placeholders([n for n in nodes if n.op == "placeholder"])
        results = next(n for n in nodes if n.op == "output").args[0]
        for node, spec in zip(results, self.component.outputs, strict=True):
            self.names[node] = spec.name
        for node in nodes:
            if node.op == "call_function":
                self._node(node)
        for spec in self.component.outputs:
            self.graph.output(spec.name, spec.dtype, spec.shape)
        return self.graph.model()

    def _placeholders(self, nodes: list[torch.fx.Node]) -> None:
        parameters = self.program.graph_signature.inputs_to_parameters
        inputs = [n for n in nodes if n.name not in parameters]
        for node, spec in zip(inputs, self.component.inputs, strict=True):
            for extent, symbol in zip(node.meta["val"].shape, spec.shape, strict=True):
                if isinstance(symbol, str) and symbol.isidentifier():
                    self.symbols[extent.node.expr] = symbol
            self.names[node] = spec.name
            self.graph.input(spec.name, spec.dtype, spec.shape)
        for node in (n for n in nodes if n.name in parameters):
            self.names[node] = parameters[node.name]
            self.graph.weight(parameters[node.name], self.program.state_dict[parameters[node.name]].detach().numpy())

    def _node(self, node: torch.fx.Node) -> None:
        name = self.names.setdefault(node, node.name)
        if getattr(node.target, "namespace", "") == NAMESPACE:
            operator, arguments, attributes = parsed_call(node)
            flat = [n for v in arguments.values() for n in (v if isinstance(v, list) else [v])]
            self.graph.call(operator, [(self.names[n], self._shape(n)) for n in flat], attributes, name, self._shape(node))
        elif node.target in _STANDARD and not node.kwargs:
            inputs = [self.names[a] if isinstance(a, torch.fx.Node) else a for a in node.args]
            dtype = str(node.meta["val"].dtype).removeprefix("torch.")
            self.graph.standard(_STANDARD[node.target], inputs, name, dtype, self._shape(node))
        else:
            raise RuntimeError(f"{self.component.name}: {node.target} has no ONNX form")

    def _shape(self, node: torch.fx.Node) -> list[int | str]:
        """Extents, the symbolic ones as expressions of B, N and M."""
        extents = node.meta["val"].shape
        return [d if isinstance(d, int) else str(d.node.expr.subs(self.symbols)) for d in extents]
