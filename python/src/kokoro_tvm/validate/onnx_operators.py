"""The operators of the vocabulary in ONNX Runtime, one by one: what ``validate.operators`` is for compiled kernels.

What it is: every operator call of the rewrite as a model of one node, the same function that the exported components call, so
that inner tensors can be read and each operator can be fed the reference's inputs. What it is not: the components' own
sessions, in which ONNX Runtime merges neighbouring operators: results differ from those in the last bits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import onnxruntime
import torch

from kokoro_tvm.onnx.graph import Graph
from kokoro_tvm.runtime.onnx_engine import session_options


class OnnxOperators:
    """Operators by name, each session made once.

    Args:
        component: Name of the component, for reports.
        threads: Threads per call.

    Attributes:
        used: Names of the operators called, in order, since it was last cleared.
    """

    def __init__(self, component: str, threads: int) -> None:
        self.component = component
        self.threads = threads
        self.used: list[str] = []
        self._sessions: dict[tuple[object, ...], onnxruntime.InferenceSession] = {}

    def __call__(self, operator: str, attributes: str, tensors: Sequence[torch.Tensor], out: Sequence[int]) -> torch.Tensor:
        """Runs one operator on float32 and int64 tensors; ``out`` is the shape of its result."""
        self.used.append(operator)
        shapes = tuple(tuple(t.shape) for t in tensors)
        key = (operator, attributes, shapes)
        if key not in self._sessions:
            self._sessions[key] = self._session(operator, attributes, tensors, out)
        (result,) = self._sessions[key].run(None, {f"i{i}": t.numpy() for i, t in enumerate(tensors)})
        return torch.from_numpy(result)

    def _session(
        self, operator: str, attributes: str, tensors: Sequence[torch.Tensor], out: Sequence[int]
    ) -> onnxruntime.InferenceSession:
        graph = Graph(self.component)
        for i, tensor in enumerate(tensors):
            graph.input(f"i{i}", str(tensor.dtype).removeprefix("torch."), list(tensor.shape))
        graph.call(operator, [(f"i{i}", list(t.shape)) for i, t in enumerate(tensors)], json.loads(attributes), "y", list(out))
        graph.output("y", "float32", list(out))
        model = graph.model().SerializeToString()
        return onnxruntime.InferenceSession(model, session_options(self.threads), providers=["CPUExecutionProvider"])
