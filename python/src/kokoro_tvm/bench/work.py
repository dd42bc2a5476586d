"""How much arithmetic an operator is, counted from its shapes, attributes and lengths.

What it is: two operations for every multiply-add of a convolution or matrix product, by its definition: a convolution counts as
a direct one whatever algorithm computes it, and an activation or a norm counts nothing. What it is not: what a CPU executes.

Shape legend: B batch, T rows, C channels, K taps, H hidden, D style, S style projections.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kokoro_tvm.ops import SHAPES

Shape = Sequence[int | None]

CONVOLUTION, PRODUCT, REST = "convolution", "matrix product", "everything else"
KINDS = {
    "conv1d": CONVOLUTION,
    "conv_transpose1d": CONVOLUTION,
    "bilstm": PRODUCT,
    "attention": PRODUCT,
    "style_linear": PRODUCT,
}
"""Operator to what it is; those that are not listed are ``REST``."""


def kind(operator: str, shapes: dict[str, Shape]) -> str:
    """``CONVOLUTION``, ``PRODUCT`` or ``REST``; a convolution of one tap and stride 1 is a matrix product."""
    found = KINDS.get(operator, REST)
    return PRODUCT if operator == "conv1d" and shapes["weight"][2] == 1 else found


def _conv1d(shapes: dict[str, Shape], lengths: Sequence[int], stride: int, **_: Any) -> int:
    c_out, c_in, taps = _fixed(shapes["weight"])
    rows = sum(SHAPES["conv1d"](x=(1, n, c_in), weight=(c_out, c_in, taps), stride=stride)[1] for n in lengths)
    return 2 * rows * c_out * c_in * taps


def _conv_transpose1d(shapes: dict[str, Shape], lengths: Sequence[int], **_: Any) -> int:
    c_in, c_out, taps = _fixed(shapes["weight"])
    return 2 * sum(lengths) * c_in * c_out * taps


def _bilstm(shapes: dict[str, Shape], lengths: Sequence[int], **_: Any) -> int:
    return _projection(shapes, lengths) + _recurrence(shapes, lengths)


def _projection(shapes: dict[str, Shape], lengths: Sequence[int], **_: Any) -> int:
    directions, gates, inputs = _fixed(shapes["w_ih"])
    return 2 * sum(lengths) * directions * gates * inputs


def _recurrence(shapes: dict[str, Shape], lengths: Sequence[int], **_: Any) -> int:
    directions, gates, hidden = _fixed(shapes["w_hh"])
    return 2 * sum(lengths) * directions * gates * hidden


def _attention(shapes: dict[str, Shape], lengths: Sequence[int], **_: Any) -> int:
    width = _fixed(shapes["qkv"][2:])[0] // 3
    # Scores, and the weighted sum of values; all heads together are as wide as the model.
    return sum(2 * 2 * n * n * width for n in lengths)


def _style_linear(shapes: dict[str, Shape], lengths: Sequence[int], **_: Any) -> int:
    outputs, inputs = _fixed(shapes["weight"])
    return 2 * len(lengths) * outputs * inputs


_COUNTS: dict[str, Callable[..., int]] = {
    "conv1d": _conv1d,
    "conv_transpose1d": _conv_transpose1d,
    "bilstm": _bilstm,
    "attention": _attention,
    "style_linear": _style_linear,
}
PARTS: dict[tuple[str, str], Callable[..., int]] = {("bilstm", "conv1d"): _projection, ("bilstm", "bilstm"): _recurrence}
"""Operators that several kernels compute: operator and kernel to the kernel's part."""


def operations(
    operator: str, shapes: dict[str, Shape], attributes: dict[str, Any], lengths: Sequence[int], part: str | None = None
) -> int:
    """Operations of one call.

    Args:
        operator: Its name in ``kokoro_tvm.ops``.
        shapes: Shapes of its tensors by argument name, weights as exported (not packed); None for extents that vary.
        attributes: Its other arguments.
        lengths: Valid rows of every sample (of a style: one entry a sample).
        part: The kernel, where the operator is several kernels.
    """
    count = _COUNTS.get(operator) if part is None else PARTS.get((operator, part))
    return count(shapes, lengths, **attributes) if count else 0


def _fixed(shape: Sequence[int | None]) -> list[int]:
    if any(e is None for e in shape):
        raise RuntimeError(f"the extents {list(shape)} of a weight are not fixed")
    return [int(e) for e in shape if e is not None]
