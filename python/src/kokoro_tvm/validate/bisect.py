"""The first operator of a component whose kernel errs more than its share.

What it is: the component's own operators in the order they run. Each kernel gets the reference's inputs, rounded to float32, and
is compared with the operator in float64 on the same rounded inputs, so that it answers for its own error only; beside it stands
the error that has gathered up to there when the kernels are chained.
What it is not: a comparison with eager kokoro, which has no such operators (``steps`` covers that hop).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from kokoro_tvm.errors import InputError
from kokoro_tvm.ops import NAMESPACE
from kokoro_tvm.validate.metrics import Measurement, compare, snr_db
from kokoro_tvm.validate.operators import Operators, operator_call
from kokoro_tvm.validate.subjects import Rewrite, Tensors
from kokoro_tvm.validate.tolerances import STAGES, Stage, Tolerance, operator_tolerance

if TYPE_CHECKING:
    from kokoro_tvm.validate.onnx_operators import OnnxOperators


@dataclass(frozen=True)
class Call:
    """One operator call of a run: where in the model, what, on which tensors, and its result."""

    place: str
    func: Any
    args: tuple[Any, ...]
    result: torch.Tensor


@dataclass(frozen=True)
class OperatorRecord:
    """One operator.

    Attributes:
        index: Position in the component, from 0.
        place: Module of ``export.modules`` that called it.
        operator: Its name in ``kokoro_tvm.ops``.
        kernels: Names of the compiled functions that computed it.
        shape: Of its result.
        isolated: The kernels on the reference's rounded inputs, against float64 on the same.
        chained_db: The kernels on what the kernels before them made.
        tolerance: Its share of the component's error.
    """

    index: int
    place: str
    operator: str
    kernels: tuple[str, ...]
    shape: tuple[int, ...]
    isolated: Measurement
    chained_db: float
    tolerance: Tolerance

    @property
    def passed(self) -> bool:
        """Whether the isolated error is within the share; fails closed."""
        return self.tolerance.passes(self.isolated)


def component_stage(component: str) -> Stage:
    """The stage that is the whole component.

    Raises:
        InputError: There is no such component.
    """
    found = [s for s in STAGES if s.name == s.component == component]
    if not found:
        names = ", ".join(s.name for s in STAGES if s.name == s.component)
        raise InputError(f"unknown component {component!r}; expected one of: {names}")
    return found[0]


def bisect(
    double: Rewrite,
    kernels: Rewrite,
    operators: Operators | OnnxOperators,
    stage: Stage,
    inputs: Tensors,
    dtype: str = "float32",
) -> list[OperatorRecord]:
    """Judges every operator of a component.

    Args:
        double: The rewrite in float64, unpadded.
        kernels: The same in float32 on ``operators``, unpadded.
        operators: The component's kernels.
        stage: The component's stage.
        inputs: The reference's, rounded to float32.
        dtype: What the component's convolutions multiply.

    Returns:
        One record per operator, in order.
    """
    exact, single = _calls(double, stage, inputs), _calls(kernels, stage, inputs)
    if len(exact) != len(single):
        raise RuntimeError(f"{len(exact)} operators in float64, {len(single)} compiled")
    return [_judge(i, e, s, operators, dtype) for i, (e, s) in enumerate(zip(exact, single, strict=True))]


def first_failure(records: Sequence[OperatorRecord]) -> OperatorRecord | None:
    """The first that does not pass."""
    return next((r for r in records if not r.passed), None)


def _judge(index: int, exact: Call, single: Call, operators: Operators | OnnxOperators, dtype: str) -> OperatorRecord:
    rounded = tuple(_rounded(a, b) for a, b in zip(exact.args, single.args, strict=True))
    call = operator_call(exact.func, rounded, {})
    assert call is not None
    operators.used.clear()
    actual = operators(*call)
    with torch.no_grad():
        expected = exact.func(*(_widened(a) for a in rounded))
    return OperatorRecord(
        index,
        exact.place,
        call[0],
        tuple(operators.used),
        tuple(actual.shape),
        compare(actual.numpy(), expected.numpy()),
        snr_db(single.result.numpy(), exact.result.numpy()),
        operator_tolerance(call[0], dtype),
    )


def _rounded(value: Any, single: Any) -> Any:
    """An argument in float32; a weight is the float32 model's own, which is packed already."""
    if isinstance(value, list | tuple):
        return [_rounded(v, s) for v, s in zip(value, single, strict=True)]
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    return single if isinstance(single, nn.Parameter) else value.float().contiguous()


def _widened(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_widened(v) for v in value]
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _calls(rewrite: Rewrite, stage: Stage, inputs: Tensors) -> list[Call]:
    with _places(rewrite.module(stage.component)) as stack:
        log = _Log(stack)
        rewrite.run(stage, inputs, log)
    return log.calls


class _Log(TorchDispatchMode):
    """Keeps every operator call; ``stack`` names the modules that are running."""

    def __init__(self, stack: list[str]) -> None:
        super().__init__()
        self.stack = stack
        self.calls: list[Call] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace == NAMESPACE:
            self.calls.append(Call(self.stack[-1] if self.stack else "", func, args, result))
        return result


@contextmanager
def _places(module: nn.Module) -> Iterator[list[str]]:
    """A stack of the names of the modules that are running, innermost last."""
    stack: list[str] = []
    with ExitStack() as hooks:
        for name, inner in module.named_modules():

            def enter(*_: Any, name: str = name) -> None:
                stack.append(name)

            def leave(*_: Any) -> None:
                stack.pop()

            hooks.callback(inner.register_forward_pre_hook(enter).remove)
            hooks.callback(inner.register_forward_hook(leave, always_call=True).remove)
        yield stack
