"""The operator vocabulary: names, output shapes and argument conventions of every operator in an exported graph.

What it is: a leaf that the exporter (which gives the operators an eager meaning in PyTorch), the passes (which lower them to
kernels) and other front ends share. What it is not: an implementation.

An operator ``kokoro_tvm::name`` of an exported program becomes ``call_dps_packed("kokoro_tvm.name", tensors + [attributes])`` in
Relax: the tensors that are present in schema order, lists flattened, then one JSON string with every other argument and,
under ``"absent"``, the names of optional tensors that were left out.

Shape legend: B batch, N tokens, M frames, T time rows, C channels, D style, S all style projections of a component.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

NAMESPACE = "kokoro_tvm"

Shape = tuple[Any, ...]
"""Extents: ints, torch SymInts or TIR expressions; shape rules use only ``+ - * //``."""


def _conv1d(x: Shape, weight: Shape, stride: int, **_: Any) -> Shape:
    # Every convolution of the model is "same": T' = T for stride 1, and T // stride for the strided ones.
    return (x[0], x[1] // stride if stride > 1 else x[1], weight[0])


def _conv_transpose1d(x: Shape, weight: Shape, stride: int, reflect: int, **_: Any) -> Shape:
    return (x[0], x[1] * stride + reflect, weight[1])


TENSORS: dict[str, tuple[str, ...]] = {
    "conv1d": ("x", "lengths", "weight", "bias", "coef", "alpha", "residual", "residual2"),
    "conv_transpose1d": ("x", "lengths", "weight", "bias", "residual"),
    "adain": ("x", "lengths", "affine", "weight", "bias"),
    "depthwise_upsample": ("x", "lengths", "coef", "weight", "bias"),
    "layer_norm": ("x", "lengths", "weight", "bias"),
    "ada_layer_norm": ("x", "lengths", "affine", "style"),
    "append_style": ("x", "lengths", "style"),
    "embed": ("ids", "lengths", "table", "positions"),
    "attention": ("qkv", "lengths"),
    "bilstm": ("x", "lengths", "w_ih", "w_hh", "b_ih", "b_hh"),
    "sigmoid_sum": ("x", "lengths"),
    "to_rows": ("x", "lengths"),
    "to_columns": ("x", "lengths"),
    "mask_rows": ("x", "lengths"),
    "concat": ("xs*", "lengths"),
    "style_linear": ("style", "weight", "bias"),
    "harmonic_source": ("f0", "lengths", "noise", "weight", "bias"),
    "stft": ("x", "lengths"),
    "istft": ("x", "lengths"),
}
"""Operator to its tensor arguments in schema order; ``*``: a list."""


def tensor_names(operator: str, absent: Sequence[str], count: int) -> list[str]:
    """Names of the tensors of a call in order; those of a list are ``name.0``, ``name.1`` and so on.

    Raises:
        ValueError: ``count`` tensors cannot be what the operator takes.
    """
    names = [n for n in TENSORS[operator] if n not in absent]
    extra = count - len(names)
    if extra < 0 or (extra and not any(n.endswith("*") for n in names)):
        raise ValueError(f"{operator} takes {', '.join(names)}, got {count} tensors")
    result: list[str] = []
    for name in names:
        result += [f"{name[:-1]}.{i}" for i in range(extra + 1)] if name.endswith("*") else [name]
    return result


SHAPES: dict[str, Callable[..., Shape]] = {
    "conv1d": _conv1d,
    "conv_transpose1d": _conv_transpose1d,
    "adain": lambda x, **_: (x[0], 2, x[2]),
    "depthwise_upsample": lambda x, **_: (x[0], x[1] * 2, x[2]),
    "layer_norm": lambda x, **_: x,
    "ada_layer_norm": lambda x, style, **_: (x[0], x[1], x[2] + style[1]),
    "append_style": lambda x, style, **_: (x[0], x[1], x[2] + style[1]),
    "embed": lambda ids, table, **_: (ids[0], ids[1], table[1]),
    "attention": lambda qkv, **_: (qkv[0], qkv[1], qkv[2] // 3),
    "bilstm": lambda x, w_hh, **_: (x[0], x[1], w_hh[2] * 2),
    "sigmoid_sum": lambda x, **_: (x[0], x[1]),
    "to_rows": lambda x, **_: (x[0], x[2], x[1]),
    "to_columns": lambda x, **_: (x[0], x[2], x[1]),
    "mask_rows": lambda x, **_: x,
    "concat": lambda xs, **_: (xs[0][0], xs[0][1], sum(x[2] for x in xs)),
    "style_linear": lambda style, weight, **_: (style[0], weight[0]),
    "harmonic_source": lambda f0, upsample, **_: (f0[0], f0[1] * upsample, 2),
    "stft": lambda x, n_fft, hop, **_: (x[0], x[1] // hop + 1, n_fft + 2),
    "istft": lambda x, hop, **_: (x[0], (x[1] - 1) * hop),
}
"""Output shape from keyword arguments: tensors as their shapes, attributes as values. All outputs are float32."""
