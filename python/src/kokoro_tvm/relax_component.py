"""One component in Relax, and how a call of the operator vocabulary is written there.

What it is: what the two front ends, ``torch.export`` (``export.program``) and ONNX (``onnx.relax``), have in common, so that both
give the same module. What it is not: either of them; it imports no PyTorch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from kokoro_tvm.ops import NAMESPACE, SHAPES


@dataclass(frozen=True)
class RelaxComponent:
    """One component in Relax.

    Attributes:
        name: Component name; also the name of the function in ``module``.
        module: A module with that one function; its parameters are the component's inputs, then the weights.
        weights: Weight name to array, in the order of the function's parameters.
    """

    name: str
    module: tvm.IRModule
    weights: dict[str, np.ndarray]


def call_operator(
    builder: relax.BlockBuilder,
    operator: str,
    tensors: Mapping[str, relax.Expr | list[relax.Expr]],
    attributes: Mapping[str, Any],
) -> relax.Var:
    """Emits ``call_dps_packed("kokoro_tvm.operator", …)``; the convention is in ``kokoro_tvm.ops``.

    Args:
        builder: Where to.
        operator: Its name.
        tensors: Those that are there, by argument name in schema order.
        attributes: The other arguments, with ``absent``.
    """
    shapes: dict[str, Any] = {}
    flat: list[relax.Expr] = []
    for name, value in tensors.items():
        listed = isinstance(value, list)
        flat += value if listed else [value]
        shapes[name] = [_extents(v) for v in value] if listed else _extents(value)
    analyzer = tvm.sym.Analyzer()
    shape = [analyzer.simplify(d) if isinstance(d, tvm.ir.Expr) else d for d in SHAPES[operator](**shapes, **attributes)]
    arguments = [*flat, tvm.ir.StringImm(json.dumps(attributes))]
    call = relax.call_dps_packed(f"{NAMESPACE}.{operator}", relax.Tuple(arguments), relax.TensorType(shape, "float32"))
    return builder.emit(call)


def _extents(var: relax.Expr) -> tuple[Any, ...]:
    return tuple(int(d) if isinstance(d, tirx.IntImm) else d for d in var.ty.shape.values)
