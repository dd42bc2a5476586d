"""The operator vocabulary as ONNX: one model-local function per specialisation of an operator, made of standard operators.

What it is: the meaning of ``kokoro_tvm.ops`` for any ONNX runtime. A graph calls ``kokoro_tvm::conv1d`` with the vocabulary's
arguments as attributes; a runtime inlines the body, and our own compiler ignores it and takes the call for what it says.
What it is not: a graph (``export.onnx_graph``) or a file (``onnx.files``).

Every body treats each sample as if it had been run unpadded: what lies beyond a sample's valid rows is selected away with
``Where`` before it is used, as it may hold NaN. Rows beyond the valid ones of a result hold anything, except at a component's
end, where they are zero. Statistics over time, the source and both Fourier transforms run in float64 inside.

Shape legend: B batch, N tokens, M frames, T time rows, C channels, H hidden, F spectral frames.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import AttributeProto, FunctionProto, NodeProto, TensorProto, helper, numpy_helper

from kokoro_tvm.ops import NAMESPACE

OPSET = 20
"""Of the standard operators."""
NAMESPACE_VERSION = 1

Extents = tuple[int | None, ...]
"""A shape whose symbolic extents are None."""

_TYPES = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "int64": TensorProto.INT64, "int32": TensorProto.INT32}
_LIMITS = {"n_fft": 2**12}
_ADAIN_EPSILON = 1e-5
"""``nn.InstanceNorm1d``'s."""


@dataclass(frozen=True)
class Value:
    """A tensor within a body; arithmetic on it adds nodes."""

    body: Body
    name: str
    dtype: str

    def __add__(self, other: Operand) -> Value:
        return self.body.op("Add", self, other)

    def __radd__(self, other: Operand) -> Value:
        return self.body.op("Add", other, self)

    def __sub__(self, other: Operand) -> Value:
        return self.body.op("Sub", self, other)

    def __rsub__(self, other: Operand) -> Value:
        return self.body.op("Sub", other, self)

    def __mul__(self, other: Operand) -> Value:
        return self.body.op("Mul", self, other)

    def __rmul__(self, other: Operand) -> Value:
        return self.body.op("Mul", other, self)

    def __truediv__(self, other: Operand) -> Value:
        return self.body.op("Div", self, other)

    def __neg__(self) -> Value:
        return self.body.op("Neg", self)

    def __lt__(self, other: Operand) -> Value:
        return self.body.op("Less", self, other, dtype="bool")

    def __gt__(self, other: Operand) -> Value:
        return self.body.op("Greater", self, other, dtype="bool")

    def equals(self, other: Operand) -> Value:
        """``self == other``."""
        return self.body.op("Equal", self, other, dtype="bool")

    def to(self, dtype: str) -> Value:
        """In another dtype."""
        return self if dtype == self.dtype else self.body.op("Cast", self, dtype=dtype, to=_TYPES[dtype])


Operand = Value | int | float


class Body:
    """A function body in the making.

    Args:
        tensors: Extents of the operator's tensors by argument name; a list argument's as ``name.0``, ``name.1``, …
        attributes: The vocabulary's other arguments, without ``absent``.
        wide: Whether convolutions sum in float64.
    """

    def __init__(self, tensors: Mapping[str, Extents], attributes: Mapping[str, Any], wide: bool = False) -> None:
        self.tensors = tensors
        self.attributes = attributes
        self.wide = wide
        self.nodes: list[NodeProto] = []
        self.referenced: dict[str, None] = {}
        self._constants: dict[tuple[str, str], Value] = {}
        self._count = 0

    # --- arguments ---

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __getitem__(self, name: str) -> Value:
        return Value(self, name, "int64" if name in ("lengths", "ids") else "float32")

    def several(self, name: str) -> list[Value]:
        """The tensors of a list argument."""
        return [self[n] for n in self.tensors if n.startswith(f"{name}.")]

    def extent(self, name: str, axis: int) -> int:
        """A fixed extent of a tensor."""
        extent = self.tensors[name][axis]
        assert extent is not None, f"{name} has no fixed extent {axis}"
        return extent

    def scalar(self, name: str, dtype: str = "float32") -> Value:
        """A numeric argument, read from the call's attribute: bodies that differ in nothing else are one function."""
        key = (name, "reference")
        if key not in self._constants:
            whole = isinstance(self.attributes[name], int)
            node = helper.make_node("Constant", [], [f"c_{name}"])
            # A double attribute does not exist; a float would round 1/3.
            node.attribute.append(
                AttributeProto(
                    name="value_int" if whole else "value",
                    ref_attr_name=name,
                    type=AttributeProto.INT if whole else AttributeProto.TENSOR,
                )
            )
            self.nodes.append(node)
            self.referenced[name] = None
            self._constants[key] = Value(self, f"c_{name}", "int64" if whole else "float64")
        return self._constants[key].to(dtype)

    # --- nodes ---

    def op(self, kind: str, *inputs: Operand | None, dtype: str | None = None, **attributes: Any) -> Value:
        """Adds a node with one output, of its first input's dtype unless told (``Where``: its second's)."""
        return self.ops(kind, 1, *inputs, dtype=dtype, **attributes)[0]

    def ops(self, kind: str, outputs: int, *inputs: Operand | None, dtype: str | None = None, **attributes: Any) -> list[Value]:
        """Adds a node with several outputs. Numbers among the inputs take the dtype of the last tensor among them."""
        like = [i.dtype for i in inputs if isinstance(i, Value) and i.dtype != "bool"]
        names = [i if isinstance(i, Value) or i is None else self.constant(i, like[-1] if like else "int64") for i in inputs]
        found = [f"t{self._count + i}" for i in range(outputs)]
        self._count += outputs
        self.nodes.append(helper.make_node(kind, ["" if n is None else n.name for n in names], found, **attributes))
        first = next(n for n in (names[1:] if kind == "Where" else names) if n is not None)
        return [Value(self, name, dtype or first.dtype) for name in found]

    def constant(self, value: Any, dtype: str = "int64") -> Value:
        """A constant, made once."""
        array = np.asarray(value, dtype)
        key = (repr((array.shape, array.tobytes())), dtype)
        if key not in self._constants:
            name = f"c{len(self._constants)}"
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array)))
            self._constants[key] = Value(self, name, dtype)
        return self._constants[key]

    # --- idioms ---

    def where(self, condition: Value, yes: Operand, no: Operand) -> Value:
        """``yes`` where ``condition``, else ``no``."""
        return self.op("Where", condition, yes, no)

    def unsqueeze(self, x: Value, *axes: int) -> Value:
        """With axes of extent 1."""
        return self.op("Unsqueeze", x, self.constant(axes))

    def transpose(self, x: Value, *axes: int) -> Value:
        """With its axes in this order."""
        return self.op("Transpose", x, perm=list(axes))

    def slice(self, x: Value, axis: int, start: Operand, end: Operand) -> Value:
        """Part of an axis; positions as numbers or int64 [1]."""
        bounds = [b if isinstance(b, Value) else self.constant([b]) for b in (start, end)]
        return self.op("Slice", x, *bounds, self.constant([axis]))

    def size(self, x: Value, axis: int) -> Value:
        """An extent, int64 [1]."""
        return self.op("Shape", x, dtype="int64", start=axis, end=axis + 1)

    def rows(self, x: Value, axis: int = 1) -> Value:
        """0, 1, … for the rows of ``x``, int64 [T]."""
        count = self.op("Squeeze", self.size(x, axis), self.constant([0]))
        return self.op("Range", self.constant(0), count, self.constant(1))

    def valid(self, x: Value, lengths: Value, axis: int = 1) -> Value:
        """Which rows of ``x`` are within ``lengths`` [B]: bool [B, T]."""
        return self.rows(x, axis) < self.unsqueeze(lengths, 1)

    def masked(self, x: Value, lengths: Value) -> Value:
        """``x`` [B, T, C] with zeros beyond the valid rows, whatever is there."""
        return self.where(self.unsqueeze(self.valid(x, lengths), 2), x, 0)


def _activated(f: Body, x: Value, prologue: str) -> Value:
    """``prologue(x * scale + shift)``, [B, T, C]; rows beyond the valid ones as they come."""
    if "coef" in f:
        x = x * f.slice(f["coef"], 1, 0, 1) + f.slice(f["coef"], 1, 1, 2)
    if prologue == "leaky":
        return _leaky(f, x)
    if prologue == "snake":
        alpha, reciprocal = (f.slice(f["alpha"], 0, i, i + 1) for i in (0, 1))  # [1, C]
        sine = f.op("Sin", alpha * x)
        return x + reciprocal * (sine * sine)
    return x


def _leaky(f: Body, x: Value) -> Value:
    slope = f.attributes["slope"]
    return x if slope == 1.0 else f.op("LeakyRelu", x, alpha=slope)


def _conv1d(f: Body) -> Value:
    a = f.attributes
    x, stride, padding = f["x"], a["stride"], a["padding"]
    v = f.masked(_activated(f, x, a["prologue"]), f["lengths"])
    dtype = "float64" if f.wide and stride == 1 else "float32"
    if dtype == "float64" or f.extent("weight", 2) == 1:
        y = f.op("MatMul", _patches(f, v).to(dtype), _patch_weight(f).to(dtype))
        y = y + f["bias"].to(dtype) if "bias" in f else y
    else:
        settings = {"strides": [stride], "dilations": [a["dilation"]], "pads": [padding, padding]}
        bias = [f["bias"]] if "bias" in f else []
        y = f.transpose(f.op("Conv", f.transpose(v, 0, 2, 1), f["weight"], *bias, **settings), 0, 2, 1)
    if stride > 1:
        y = f.slice(y, 1, 0, f.size(x, 1) / stride)
    if "residual" in f:
        residual = f["residual"]
        if a["residual_shift"]:
            residual = f.op("Gather", residual, f.rows(y) / (1 << a["residual_shift"]), axis=1)
        y = y + residual.to(dtype)
    if "residual2" in f:
        y = y + f["residual2"].to(dtype)
    if a["scale"] != 1.0:
        y = y * f.scalar("scale", dtype)
    return (_gelu(f, y) if a["epilogue"] == "gelu" else y).to("float32")


def _patches(f: Body, v: Value) -> Value:
    """The rows that each row of a "same" convolution sees, side by side: [B, T, K * C]."""
    taps, dilation, padding = f.extent("weight", 2), f.attributes["dilation"], f.attributes["padding"]
    if taps == 1 and padding == 0:
        return v
    padded = f.op("Pad", v, f.constant([0, padding, 0, 0, padding, 0]))
    starts = [k * dilation for k in range(taps)]
    ends = [start - 2 * padding if start < 2 * padding else 2**62 for start in starts]
    return f.op("Concat", *(f.slice(padded, 1, *bounds) for bounds in zip(starts, ends, strict=True)), axis=2)


def _patch_weight(f: Body) -> Value:
    """[C_out, C_in, K] as [K * C_in, C_out]."""
    return f.op("Reshape", f.transpose(f["weight"], 2, 1, 0), f.constant([-1, f.extent("weight", 0)]))


def _gelu(f: Body, y: Value) -> Value:
    """The tanh approximation."""
    inner = math.sqrt(2 / math.pi) * (y + 0.044715 * (y * y * y))
    return 0.5 * y * (f.op("Tanh", inner) + 1)


def _conv_transpose1d(f: Body) -> Value:
    a = f.attributes
    v = f.masked(_leaky(f, f["x"]), f["lengths"])
    settings = {"strides": [a["stride"]], "pads": [a["padding"], a["padding"]]}
    y = f.op("ConvTranspose", f.transpose(v, 0, 2, 1), f["weight"], f["bias"], **settings)
    y = f.transpose(y, 0, 2, 1)
    if a["reflect"]:
        y = f.op("Concat", f.slice(y, 1, 1, 2), y, axis=1)
    return y + f["residual"] if "residual" in f else y


def _columns_of(f: Body, affine: Value, offset: Value, channels: int) -> tuple[Value, Value]:
    """The columns ``offset`` and ``offset + channels`` of ``affine`` [B, S], each [B, 1, C]."""
    middle, end = offset + channels, offset + 2 * channels
    both = f.slice(affine, 1, offset, middle), f.slice(affine, 1, middle, end)
    first, second = (f.unsqueeze(c, 1) for c in both)
    return first, second


def _adain(f: Body) -> Value:
    x, channels = f["x"], f.extent("x", 2)
    # Sums over seconds of audio: float32 would lose what the convolutions keep.
    v = f.masked(x, f["lengths"]).to("float64")
    count = f.unsqueeze(f["lengths"].to("float64"), 1, 2)  # [B, 1, 1]
    mean = f.op("ReduceSum", v, f.constant([1])) / count
    square = f.op("ReduceSumSquare", v, f.constant([1])) / count
    variance = f.op("Max", square - mean * mean, f.constant(0, "float64"))
    gamma, beta = _columns_of(f, f["affine"], f.unsqueeze(f.scalar("offset", "int64"), 0), channels)
    gain = gamma.to("float64") + 1
    scale = gain * f["weight"].to("float64") / f.op("Sqrt", variance + _ADAIN_EPSILON)
    shift = gain * f["bias"].to("float64") + beta.to("float64") - scale * mean
    return f.op("Concat", scale, shift, axis=1).to("float32")


def _depthwise_upsample(f: Body) -> Value:
    v = f.masked(_activated(f, f["x"], "leaky"), f["lengths"])
    before, centre, behind = (f.slice(f["weight"], 0, i, i + 1) for i in range(3))  # [1, C]
    following = f.op("Concat", f.slice(v, 1, 1, 2**62), f.slice(v, 1, 0, 1) * 0, axis=1)
    even = v * centre + f["bias"]
    odd = v * behind + following * before + f["bias"]
    pairs = f.op("Concat", f.unsqueeze(even, 2), f.unsqueeze(odd, 2), axis=2)  # [B, T, 2, C]
    return f.op("Reshape", pairs, f.constant([0, -1, f.extent("x", 2)]))


def _normalised(f: Body, x: Value) -> Value:
    """``x`` less its mean over the channels, over its standard deviation; in float64, where nothing is fused or shifted."""
    v = x.to("float64")
    v = v - f.op("ReduceMean", v, f.constant([-1]))
    variance = f.op("ReduceMean", v * v, f.constant([-1]))
    return v / f.op("Sqrt", variance + f.scalar("eps", "float64"))


def _layer_norm(f: Body) -> Value:
    y = _normalised(f, f["x"]) * f["weight"].to("float64") + f["bias"].to("float64")
    return _leaky(f, y.to("float32"))


def _ada_layer_norm(f: Body) -> Value:
    offset = f.unsqueeze(f.scalar("offset", "int64"), 0)
    gamma, beta = (c.to("float64") for c in _columns_of(f, f["affine"], offset, f.extent("x", 2)))
    return _with_style(f, ((gamma + 1) * _normalised(f, f["x"]) + beta).to("float32"))


def _with_style(f: Body, x: Value) -> Value:
    style = f.unsqueeze(f["style"], 1)  # [B, 1, D]
    rows = f.op("Concat", f.constant([1]), f.size(x, 1), f.constant([1]), axis=0)
    return f.op("Concat", x, f.op("Expand", style, rows), axis=2)


def _append_style(f: Body) -> Value:
    return _with_style(f, f["x"])


def _embed(f: Body) -> Value:
    ids = f.where(f.valid(f["ids"], f["lengths"]), f["ids"], 0)
    y = f.op("Gather", f["table"], ids, axis=0)
    if "positions" not in f:
        return y
    # A capacity may exceed the table of positions, a length not.
    rows = f.op("Min", f.rows(f["ids"]), f.constant(f.extent("positions", 0) - 1))
    return y + f.op("Gather", f["positions"], rows, axis=0)


def _attention(f: Body) -> Value:
    heads = f.attributes["heads"]
    width = f.extent("qkv", 2) // 3
    qkv = f.masked(f["qkv"], f["lengths"])
    parts = []
    for i in range(3):
        part = f.slice(qkv, 2, i * width, (i + 1) * width)
        parts.append(f.transpose(f.op("Reshape", part, f.constant([0, 0, heads, width // heads])), 0, 2, 1, 3))
    q, k, v = parts  # [B, heads, N, E / heads]
    scores = f.op("MatMul", q, f.transpose(k, 0, 1, 3, 2)) / math.sqrt(width // heads)
    keys = f.unsqueeze(f.valid(qkv, f["lengths"]), 1, 2)  # [B, 1, 1, N]
    weights = f.op("Softmax", f.where(keys, scores, f.constant(-np.inf, "float32")), axis=-1)
    return f.op("Reshape", f.transpose(f.op("MatMul", weights, v), 0, 2, 1, 3), f.constant([0, 0, width]))


def _bilstm(f: Body) -> Value:
    """``LSTM`` between two roundings: the input's products before it and its gates after it are float64.

    ``LSTM`` exists in float32 only. It gets the products ready-made and picks its own gates from them with a matrix of zeros and
    ones. From its states of the steps before, all gates of all steps then follow at once, and a ``Scan`` of two operations a step
    gives the cells: what is left of its rounding has passed ``w_hh`` once.
    """

    def gates(name: str) -> Value:
        """From i, f, g, o, as PyTorch has them, to i, o, f, g."""
        i, forget, cell, out = f.ops("Split", 4, f[name], axis=1, num_outputs=4)
        return f.op("Concat", i, out, forget, cell, axis=1)

    hidden = f.extent("w_hh", 2)
    both = 8 * hidden  # gates of both directions
    weight = f.op("Reshape", gates("w_ih"), f.constant([both, f.extent("x", 2)])).to("float64")
    bias = f.op("Reshape", gates("b_ih").to("float64") + gates("b_hh").to("float64"), f.constant([both]))
    projected = f.op("MatMul", f.masked(f["x"], f["lengths"]).to("float64"), f.transpose(weight, 1, 0)) + bias
    projected = f.transpose(projected, 1, 0, 2)  # [T, B, 8 H]
    numbers = f.op("Range", f.constant(0), f.constant(both), f.constant(1))
    identity = f.unsqueeze(numbers, 1).equals(numbers).to("float32")
    selection = f.op("Reshape", identity, f.constant([2, both // 2, both]))
    w_hh = gates("w_hh")
    settings = {"direction": "bidirectional", "hidden_size": hidden}
    x = projected.to("float32")
    states = f.op("LSTM", x, selection, w_hh, None, f["lengths"].to("int32"), **settings).to("float64")  # [T, 2, B, H]

    valid = f.unsqueeze(f.transpose(f.valid(f["x"], f["lengths"]), 1, 0), 2)  # [T, B, 1]
    columns = f.transpose(w_hh.to("float64"), 0, 2, 1)  # [2, H, 4 H]
    cells, outs = [], []
    for i in range(2):
        own = f.op("Squeeze", f.slice(states, 1, i, i + 1), f.constant([1]))  # [T, B, H]
        # The states before the first step are zero, and so are those beyond a sample's last.
        shift = f.constant([1, 0, 0, -1, 0, 0] if i == 0 else [-1, 0, 0, 1, 0, 0])
        before = f.op("Pad", own, shift)
        recurrent = f.op("MatMul", before, f.op("Squeeze", f.slice(columns, 0, i, i + 1), f.constant([0])))
        total = f.slice(projected, 2, i * both // 2, (i + 1) * both // 2) + recurrent
        enter, out, keep, cell = f.ops("Split", 4, total, axis=2, num_outputs=4)
        cells += [
            f.where(valid, f.op("Sigmoid", keep), 0),
            f.where(valid, f.op("Sigmoid", enter) * f.op("Tanh", cell), 0),
        ]
        outs.append(f.op("Sigmoid", out))
    y = [out * f.op("Tanh", c) for out, c in zip(outs, _cells(f, hidden, *cells), strict=True)]
    return f.transpose(f.op("Concat", *y, axis=2), 1, 0, 2).to("float32")


def _cells(f: Body, hidden: int, *terms: Value) -> list[Value]:
    """c = keep c + add along time, [T, B, H] each: forwards with the first two terms, backwards with the other two."""
    names = ["forward", "backward", "keep_f", "add_f", "keep_b", "add_b"]
    inner = [helper.make_node("Mul", [names[i], names[2 + 2 * i]], [f"kept{i}"]) for i in range(2)]
    inner += [helper.make_node("Add", [f"kept{i}", names[3 + 2 * i]], [f"cell{i}"]) for i in range(2)]
    inner += [helper.make_node("Identity", [f"cell{i}"], [f"scanned{i}"]) for i in range(2)]
    results = ["cell0", "cell1", "scanned0", "scanned1"]
    inputs, outputs = (
        [helper.make_tensor_value_info(n, TensorProto.DOUBLE, ["B", hidden]) for n in group] for group in (names, results)
    )
    body = helper.make_graph(inner, "step", inputs, outputs)
    start = f.op(
        "ConstantOfShape",
        f.op("Concat", f.size(terms[0], 1), f.constant([hidden]), axis=0),
        dtype="float64",
        value=numpy_helper.from_array(np.zeros(1)),
    )
    return f.ops(
        "Scan", 4, start, start, *terms,
        num_scan_inputs=4, scan_input_directions=[0, 0, 1, 1], scan_output_directions=[0, 1], body=body,
    )[2:]  # fmt: skip


def _sigmoid_sum(f: Body) -> Value:
    x = f.masked(f["x"], f["lengths"]).to("float64")
    one = f.constant(1, "float64")
    total = f.op("ReduceSum", one / (f.op("Exp", -x) + 1), f.constant([2]), keepdims=0)
    return f.where(f.valid(x, f["lengths"]), total.to("float32"), 0)


def _to_rows(f: Body) -> Value:
    return f.transpose(f["x"], 0, 2, 1)


def _to_columns(f: Body) -> Value:
    return f.transpose(f.masked(f["x"], f["lengths"]), 0, 2, 1)


def _mask_rows(f: Body) -> Value:
    return f.masked(f["x"], f["lengths"])


def _concat(f: Body) -> Value:
    return f.op("Concat", *f.several("xs"), axis=2)


def _style_linear(f: Body) -> Value:
    return f.op("Gemm", f["style"], f["weight"], f["bias"], transB=1)


def _harmonic_source(f: Body) -> Value:
    upsample, harmonics = f.attributes["upsample"], f.extent("noise", 2)
    f0 = f.where(f.valid(f["f0"], f["lengths"]), f["f0"], 0).to("float64")  # [B, 2M]
    multiples = f.constant(np.arange(1, harmonics + 1), "float64")
    turns = f.unsqueeze(f0, 2) * multiples / f.scalar("sampling_rate", "int64").to("float64")
    turns = f.op("CumSum", turns - f.op("Floor", turns), f.constant(1)) * float(upsample)  # [B, 2M, H]
    phase = _interpolated(f, turns, upsample)  # [B, 2M, upsample, H]
    sines = f.op("Sin", (phase - f.op("Floor", phase)) * (2 * math.pi)) * f.scalar("sine_amplitude", "float64")
    voiced = f.unsqueeze(f0 > f.scalar("voiced_threshold", "float64"), 2, 3)  # [B, 2M, 1, 1]
    noise = f.masked(f["noise"], f["lengths"] * upsample)
    noise = f.op("Reshape", noise, f.constant([0, -1, upsample, harmonics])).to("float64")
    quiet = f.scalar("sine_amplitude", "float64") / 3
    excitation = f.where(voiced, sines + noise * f.scalar("noise_std", "float64"), noise * quiet)
    weight = f.unsqueeze(f["weight"], 1).to("float64")  # [H, 1]
    mixed = f.op("MatMul", excitation, weight) + f["bias"].to("float64")  # [B, 2M, upsample, 1]
    samples = f.op("Reshape", f.op("Tanh", mixed), f.constant([0, -1, 1]))
    rounded = samples.to("float32")
    return f.op("Concat", rounded, (samples - rounded.to("float64")).to("float32"), axis=2)


def _interpolated(f: Body, turns: Value, upsample: int) -> Value:
    """Linear up-sampling of [B, 2M, H] to [B, 2M, upsample, H], between the centres of the valid frames.

    The first half of a frame's samples lies between its predecessor and itself, the second between itself and its successor; at
    both ends the frame stands in for the one that is missing.
    """
    last = f.rows(turns).equals(f.unsqueeze(f["lengths"], 1) - 1)  # [B, 2M]
    before = f.op("Concat", f.slice(turns, 1, 0, 1), f.slice(turns, 1, 0, -1), axis=1)
    behind = f.op("Concat", f.slice(turns, 1, 1, 2**62), f.slice(turns, 1, -1, 2**62), axis=1)
    behind = f.where(f.unsqueeze(last, 2), turns, behind)
    position = (np.arange(upsample) + 0.5) / upsample - 0.5
    weights = [np.maximum(-position, 0), 1 - np.abs(position), np.maximum(position, 0)]
    parts = [
        f.unsqueeze(t, 2) * f.constant(w[:, None], "float64") for t, w in zip((before, turns, behind), weights, strict=True)
    ]
    return parts[0] + parts[1] + parts[2]


def _window(n_fft: int) -> np.ndarray:
    """Periodic Hann window, float64."""
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n_fft) / n_fft)


def _angles(n_fft: int) -> np.ndarray:
    """2π·k·i / n_fft, [bins, n_fft]; reduced in whole numbers, so that equal angles give equal sines."""
    return 2 * np.pi * (np.arange(n_fft // 2 + 1)[:, None] * np.arange(n_fft) % n_fft) / n_fft


def _stft(f: Body) -> Value:
    n_fft, hop = f.attributes["n_fft"], f.attributes["hop"]
    x = f.op("ReduceSum", f["x"].to("float64"), f.constant([2]), keepdims=0)  # [B, L]
    last = f.unsqueeze(f["lengths"], 1) - 1  # [B, 1]
    frames = f.op("Range", f.constant(0), f.op("Squeeze", f.size(x, 1) / hop + 1, f.constant([0])), f.constant(1))
    index = f.unsqueeze(frames, 1) * hop + f.constant(np.arange(n_fft) - n_fft // 2)
    index = f.op("Reshape", index, f.constant([1, -1]))  # [1, F * n_fft]
    index = last - f.op("Abs", last - f.op("Abs", index))  # reflected at both valid ends
    index = f.op("Max", index, f.constant(0))  # frames beyond the valid ones
    samples = f.op("GatherElements", x, index, axis=1)
    samples = f.op("Reshape", samples, f.constant([0, -1, n_fft]))
    cosines, sines = (_window(n_fft) * function(_angles(n_fft)) for function in (np.cos, np.sin))
    sines[[0, -1]] = 0
    real = f.op("MatMul", samples, f.constant(cosines.T, "float64"))
    imaginary = f.op("MatMul", samples, f.constant(-sines.T, "float64"))
    # The reflection makes frame 0 its own mirror image: its spectrum is real.
    imaginary = f.where(f.unsqueeze(frames, 1) > 0, imaginary, 0)
    magnitude = f.op("Sqrt", real * real + imaginary * imaginary)
    return f.op("Concat", magnitude.to("float32"), _atan2(f, imaginary, real).to("float32"), axis=2)


def _atan2(f: Body, y: Value, x: Value) -> Value:
    """The angle of (x, y) in float64; zero has none and gets 0, and the angle of a negative x with a y of ±0 is π."""
    across, along = f.op("Abs", y), f.op("Abs", x)
    steep = across > along
    larger = f.where(steep, across, along)
    ratio = f.where(steep, along, across) / f.where(larger > 0, larger, 1)
    angle = _atan(f, ratio)
    angle = f.where(steep, math.pi / 2 - angle, angle)
    angle = f.where(x < 0, math.pi - angle, angle)
    return f.where(y < 0, -angle, angle)


def _atan(f: Body, x: Value) -> Value:
    return f.op("Atan", x.to("float32")).to("float64")


def _istft(f: Body) -> Value:
    n_fft, hop = f.attributes["n_fft"], f.attributes["hop"]
    bins, overlap = n_fft // 2 + 1, n_fft // hop
    x = f.masked(f["x"], f["lengths"])
    magnitude = f.op("Exp", f.slice(x, 2, 0, bins).to("float64"))
    phase = f.op("Sin", f.slice(x, 2, bins, 2 * bins).to("float64"))
    real, imaginary = magnitude * f.op("Sin", phase + math.pi / 2), magnitude * f.op("Sin", phase)
    weight = np.full((bins, 1), 2.0)
    weight[[0, -1]] = 1
    inverse = weight * _window(n_fft) / n_fft
    cosines, sines = inverse * np.cos(_angles(n_fft)), inverse * np.sin(_angles(n_fft))
    sines[[0, -1]] = 0
    frames = f.op("MatMul", real, f.constant(cosines, "float64")) - f.op("MatMul", imaginary, f.constant(sines, "float64"))
    present = f.unsqueeze(f.valid(x, f["lengths"]), 2)  # [B, F, 1]
    audio = _overlapped(f, f.where(present, frames, 0), hop, overlap)
    square = f.where(present, f.constant(_window(n_fft)[None, None] ** 2, "float64"), 0)
    envelope = _overlapped(f, square, hop, overlap)
    audio, envelope = (f.op("Reshape", f.slice(v, 1, overlap // 2, -(overlap // 2)), f.constant([0, -1]))
                       for v in (audio, envelope))  # fmt: skip
    inside = f.valid(audio, (f["lengths"] - 1) * hop)
    return f.where(inside, audio / f.where(inside, envelope, 1), 0).to("float32")


def _overlapped(f: Body, frames: Value, hop: int, overlap: int) -> Value:
    """Sum of frames [B, F, overlap * hop], each ``hop`` behind the one before: blocks [B, F + overlap - 1, hop]."""
    total = None
    for i in range(overlap):
        part = f.slice(frames, 2, i * hop, (i + 1) * hop)
        part = f.op("Pad", part, f.constant([0, i, 0, 0, overlap - 1 - i, 0]))
        total = part if total is None else total + part
    assert total is not None
    return total


OPERATORS: dict[str, Callable[[Body], Value]] = {
    "conv1d": _conv1d,
    "conv_transpose1d": _conv_transpose1d,
    "adain": _adain,
    "depthwise_upsample": _depthwise_upsample,
    "layer_norm": _layer_norm,
    "ada_layer_norm": _ada_layer_norm,
    "append_style": _append_style,
    "embed": _embed,
    "attention": _attention,
    "bilstm": _bilstm,
    "sigmoid_sum": _sigmoid_sum,
    "to_rows": _to_rows,
    "to_columns": _to_columns,
    "mask_rows": _mask_rows,
    "concat": _concat,
    "style_linear": _style_linear,
    "harmonic_source": _harmonic_source,
    "stft": _stft,
    "istft": _istft,
}
"""Operator to what emits its body."""


def function(
    operator: str, tensors: Mapping[str, Extents], attributes: Mapping[str, Any], wide: bool = False
) -> FunctionProto:
    """The ONNX function that a call of an operator means; its overload is left empty.

    Args:
        operator: Its name.
        tensors: Extents of its tensors, by the names of ``ops.tensor_names``, in order.
        attributes: The vocabulary's other arguments, without ``absent``.
        wide: Whether convolutions sum in float64, where ONNX Runtime's float32 products lose up to 4 dB more than PyTorch's.

    Raises:
        ValueError: A number is far beyond what a model can mean: files come from anywhere, and bodies hold tables.
    """
    for name, value in attributes.items():
        if isinstance(value, int) and not 0 <= value < _LIMITS.get(name, 2**20):
            raise ValueError(f"{name} is {value}")
    body = Body(tensors, attributes, wide)
    result = OPERATORS[operator](body)
    body.nodes.append(helper.make_node("Identity", [result.name], ["y"]))
    proto = helper.make_function(
        NAMESPACE, operator, list(tensors), ["y"], body.nodes, [helper.make_opsetid("", OPSET)], list(attributes)
    )
    proto.doc_string = f"{operator}({', '.join(tensors)})"
    return proto


def call_attributes(attributes: Mapping[str, Any]) -> list[AttributeProto]:
    """The attributes of a call; floats as float64 tensors, because ONNX's own float attributes are rounded to float32."""
    result = []
    for name, value in attributes.items():
        if isinstance(value, float):
            value = numpy_helper.from_array(np.asarray(value, np.float64))
        result.append(helper.make_attribute(name, value))
    return result


def read_attributes(node: NodeProto) -> dict[str, Any]:
    """The inverse of ``call_attributes``, in order; ``absent`` among them if the call has it."""
    result: dict[str, Any] = {}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        if isinstance(value, TensorProto):
            value = float(numpy_helper.to_array(value))
        elif isinstance(value, bytes):
            value = value.decode()
        elif isinstance(value, list):
            value = [v.decode() if isinstance(v, bytes) else v for v in value]
        result[attribute.name] = value
    return result
