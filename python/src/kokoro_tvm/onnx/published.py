"""Published ONNX files of the model as weights: what kokoro-onnx's exports hold, by the names of the published checkpoint.

What it is: the way from ``kokoro-v1.0.int8.onnx``, its float16 and its float32 siblings back to the parameters they were
exported from. The graph says which is which: a weight is found at the operator that multiplies with it, whose name is the
module's path, and its scale is followed from there; everything else (biases, gains, alphas) still carries its name. What it is
not: a runner of these graphs, nor the judge of whether a model is complete (``reference.checkpoint``).

Eight bits: a weight is (q − z) · s. The difference is an integer of at most 9 bits and the float32 scale has 24, so float64 holds
the product exactly, and it is rounded once, to float32 (whose own multiplication would give the same bits).

Convolutions were exported with their weight norm applied. Here each gets v = the weight and g = |v|, both rounded once from
float64, so that g · v / |v| is the weight again. Eight bits leave rows that are all zero: these get g = 0 and a unit v, as 0 / 0
is no number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

from kokoro_tvm.config import PARTS
from kokoro_tvm.errors import CheckpointError
from kokoro_tvm.onnx import untrusted

EIGHT_BIT, FLOAT16, FLOAT32 = "8-bit, dequantised", "float16, widened", "float32"
"""What the weights of a file have gone through."""

_OF_PREDICTOR = re.compile(r"(F0|F0_proj|N|N_proj|shared|lstm|duration_proj|text_encoder\.lstms)(\.|$)")
"""Modules that wrappers call without going through ``predictor``, which is then missing in their operators' names."""
_PLAIN = re.compile(r"predictor\.(F0|N)_proj|decoder\.generator\.noise_convs\.\d+")
"""The convolutions without weight norm (``kokoro/modules.py``, ``kokoro/istftnet.py``)."""
_TRANSFORM = re.compile(r"decoder\.generator\.i?stft\b")
"""Bases and windows of the STFT and its inverse: tensors with names, but no parameters."""
_REPEATED = re.compile(r"_\d+$")
"""What the exporter appends to the name of a module when it is called again, as ALBERT's only layer is."""
_UNCHANGED = ("Cast", "Identity", "Transpose", "DequantizeLinear")
"""Operators that may lie between a weight's tensor and what multiplies with it."""
_LARGE = 4096
"""Elements from which a tensor must be a weight; constants of the graph are smaller."""
_INDICES = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)
_HOPS = 4
"""Nodes that lie between a weight and its scale, or between a constant and its tensor, at most."""


@dataclass(frozen=True)
class PublishedWeights:
    """What a file holds.

    Attributes:
        parts: One of ``PARTS`` → parameter name → float32; neither complete nor finite by itself.
        precision: ``EIGHT_BIT``, ``FLOAT16`` or ``FLOAT32``: that of the coarsest weights among them.
    """

    parts: dict[str, dict[str, np.ndarray]] = field(repr=False)
    precision: str


def read_published(file: Path | bytes, source: str | None = None) -> PublishedWeights:
    """Reads an ONNX export of the model.

    Args:
        file: Its path or its content.
        source: Its name, for errors; by default the path.

    Returns:
        Weights in float32 by the names of the published checkpoint.

    Raises:
        CheckpointError: The file is damaged or something else, or a weight cannot be told for certain.
    """
    name = source or ("the ONNX file" if isinstance(file, bytes) else str(file))
    model = untrusted.parse(file if isinstance(file, bytes) else untrusted.read_bytes(file), name)
    try:
        reader = _Reader(model.graph)
        with np.errstate(over="ignore", invalid="ignore"):  # whoever judges the weights names those that are not finite
            reader.read()
    except CheckpointError as error:
        raise CheckpointError(f"{name} is no ONNX export of Kokoro-82M that can be read: {error}") from error
    precision = next((p for p in (EIGHT_BIT, FLOAT16) if p in reader.precisions), FLOAT32)
    return PublishedWeights(reader.parts, precision)


# --- names -------------------------------------------------------------------------------------------------------------------


def _published(name: str) -> str:
    """The checkpoint's name, part first, of a module or parameter of the exported wrapper."""
    for wrapped, plain in (("decoder.decoder.", "decoder."), ("encoder.", ""), ("kmodel.", "")):
        if name.startswith(wrapped):
            name = plain + name[len(wrapped) :]
            break
    return f"predictor.{name}" if _OF_PREDICTOR.match(name) else name


def _is_transform(name: str) -> bool:
    return _TRANSFORM.match(_published(name)) is not None


def _parameter(name: str) -> str | None:
    """The checkpoint's name of a module or parameter; None for what is none of the model's."""
    name = _published(name)
    return name if name.partition(".")[0] in PARTS and not _TRANSFORM.match(name) else None


def _module(node: str) -> str | None:
    """The module whose operator a node is, from the node's path.

    ``/encoder/text_encoder/cnn.0/cnn.0.0/Conv`` is ``text_encoder.cnn.0.0``: inside containers each name repeats its parent's.
    """
    path: list[str] = []
    for name in node.strip("/").split("/")[:-1]:
        name = _REPEATED.sub("", name)
        if path and name.startswith(f"{path[-1]}."):
            path.pop()
        path.append(name)
    return _parameter(".".join(path))


# --- reading -----------------------------------------------------------------------------------------------------------------


class _Reader:
    """Collects the parameters of one graph.

    Attributes:
        parts: What was found so far; see ``PublishedWeights``.
        precisions: Those of all weights that were read.
    """

    def __init__(self, graph: GraphProto) -> None:
        self.parts: dict[str, dict[str, np.ndarray]] = {}
        self.precisions: set[str] = set()
        self._graph = graph
        self._tensors: dict[str, TensorProto] = {}
        self._producers: dict[str, NodeProto] = {}
        self._consumers: dict[str, list[NodeProto]] = {}
        self._weights: dict[str, str] = {}
        self._used: set[str] = set()
        self._inputs = {v.name for v in graph.input}
        self._elements = 0
        for tensor in graph.initializer:
            if tensor.name in self._tensors:
                raise CheckpointError(f"it holds two tensors named {tensor.name!r}")
            self._tensors[tensor.name] = tensor
        for node in graph.node:
            for name in filter(None, node.output):
                if name in self._producers or name in self._tensors:
                    raise CheckpointError(f"two values in it are named {name!r}")
                self._producers[name] = node
            for name in dict.fromkeys(node.input):
                self._consumers.setdefault(name, []).append(node)

    def read(self) -> None:
        """Finds every parameter.

        Raises:
            CheckpointError: A weight cannot be told for certain, or the graph has none of the model's.
        """
        for node in self._graph.node:
            rule = _RULES.get((node.domain, node.op_type))
            module = _module(node.name) if rule else None
            if rule and module and self._is_new_weight(module, _input(node, rule.weight)):
                rule.read(self, node, module)
        for name in self._tensors.keys() - self._used:
            parameter = _parameter(name)
            if parameter and self._tensors[name].data_type in (TensorProto.FLOAT, TensorProto.FLOAT16):
                self.add(parameter, self.floats(name))
        if not self.parts:
            raise CheckpointError(
                f"its graph is {_signature(self._graph)}, expected tokens, style, speed -> audio with nodes named "
                "/encoder/bert/... and /decoder/decoder/..."
            )
        self._check_nothing_left()

    def _is_new_weight(self, module: str, name: str) -> bool:
        """Whether a value is a module's weight, and this its first operator; others must have the same weight."""
        if not any(name in known for known in (self._tensors, self._producers, self._inputs)):
            raise CheckpointError(f"the weight {name!r} of {module} is missing")
        tensor = self.origin(name)
        # Attention multiplies activations, shapes are looked up, and weight norm may have been exported as it is computed.
        if tensor is None or _is_transform(tensor):
            return False
        if module not in self._weights:
            self._weights[module] = tensor
            return True
        if self._weights[module] != tensor:
            raise CheckpointError(f"{module} has two weights, {self._weights[module]!r} and {tensor!r}")
        return False

    def _check_nothing_left(self) -> None:
        """A weight that was not understood is named with what holds it, which a list of missing parameters would not say."""
        for name in sorted(self._tensors.keys() - self._used):
            tensor = self._tensors[name]
            if tensor.data_type not in _INDICES and untrusted.elements(tensor) >= _LARGE:
                users = ", ".join(sorted({n.op_type for n in self._consumers.get(name, [])})) or "nothing"
                raise CheckpointError(
                    f"the weight {name!r} {list(tensor.dims)} belongs to {users}; expected 8, 16 or 32 bits in "
                    f"{', '.join(sorted({operator for _, operator in _RULES}))}"
                )

    # --- what the rules ask for

    def add(self, parameter: str, value: np.ndarray) -> None:
        """Takes a parameter, once, and rounds it to float32."""
        part, _, name = parameter.partition(".")
        if name in self.parts.setdefault(part, {}):
            raise CheckpointError(f"it holds {parameter} twice")
        self.parts[part][name] = np.array(value, np.float32, order="C")  # a copy: the file's bytes need not stay

    def origin(self, name: str, hops: int = _HOPS) -> str | None:
        """The tensor that a value is made of; None for indices and for what is computed when the model runs."""
        if name in self._tensors:
            return None if self._tensors[name].data_type in _INDICES else name
        node = self._producers.get(name)
        if node is None or hops == 0:
            return None
        if node.op_type == "Constant":
            tensor = _constant(node)
            return None if tensor is None or tensor.data_type in _INDICES else name
        return self.origin(_input(node, 0), hops - 1) if node.op_type in _UNCHANGED else None

    def floats(self, name: str) -> np.ndarray:
        """A stored value: float16 or float32 as it is, 8 bits as float64."""
        if self.origin(name) is None:
            raise CheckpointError(f"{name!r} is missing or computed when the model runs, expected a tensor")
        if name in self._tensors:
            return self._float(name, self._array(name))
        node = self._producers[name]
        if node.op_type == "Constant":
            return self._float(name, self._allowed(_constant(node)))
        if node.op_type == "DequantizeLinear":
            if _attribute(node, "block_size", 0):
                raise CheckpointError(f"{node.name!r} has scales per block, expected one per tensor or channel")
            weight, scale, zero_point = (_input(node, i) for i in range(3))
            return self.eight_bits(weight, scale, zero_point, (_attribute(node, "axis", 1),))
        value = self.floats(_input(node, 0))
        return value.transpose(_permutation(node, value.ndim)) if node.op_type == "Transpose" else value

    def eight_bits(self, weight: str, scale: str, zero_point: str, axes: Sequence[int]) -> np.ndarray:
        """(q − z) · s, exact in float64.

        Args:
            weight: Name of the tensor q, int8 or uint8.
            scale: Name of the tensor s: a scalar, or one value per index of the first of ``axes``, or of the first two, ...
            zero_point: Name of z, of q's type, shaped like s or a scalar; empty for 0.
            axes: Of q.
        """
        q, s = self._stored(weight), self._stored(scale)
        if q.dtype not in (np.int8, np.uint8) or s.dtype not in (np.float32, np.float16):
            raise CheckpointError(f"{weight!r} is {q.dtype} and its scale {s.dtype}, expected int8 or uint8, and float32")
        if not (np.isfinite(s) & (s > 0)).all():
            raise CheckpointError(f"the scale {scale!r} of {weight!r} is not positive and finite everywhere")
        difference = q.astype(np.int16)
        if zero_point:
            z = self._stored(zero_point)
            if z.dtype != q.dtype:
                raise CheckpointError(f"the zero point {zero_point!r} is {z.dtype}, {weight!r} is {q.dtype}")
            difference -= _along(z, q.shape, axes, zero_point).astype(np.int16)
        self.precisions.add(EIGHT_BIT)
        return difference * _along(s.astype(np.float64), q.shape, axes, scale)

    def follow(self, node: NodeProto, through: Sequence[str], until: str) -> tuple[NodeProto, str]:
        """The first operator of a kind behind another, and the name of its input that comes from there.

        Args:
            node: Where to start.
            through: Operators that may lie between, each the only user of the one before.
            until: The operator to find.

        Raises:
            CheckpointError: Something else comes first.
        """
        value = next(iter(node.output), "")
        for _ in range(_HOPS):
            users = self._consumers.get(value, [])
            if len(users) == 1 and users[0].op_type == until:
                return users[0], value
            if len(users) != 1 or users[0].op_type not in through:
                break
            value = next(iter(users[0].output), "")
        raise CheckpointError(f"there is no {until} behind {node.name!r}, which would have its weight's scale")

    def is_integer(self, name: str) -> bool:
        """Whether a tensor needs a scale."""
        return name in self._tensors and self._tensors[name].data_type not in (TensorProto.FLOAT, TensorProto.FLOAT16)

    def scale_of(self, node: NodeProto) -> str:
        """The name of the weight's scale of an operator that multiplies integers.

        Its result is multiplied with the product of two scales: the weight's, and that of the activations, which is computed.
        """
        scaling, value = self.follow(node, ("Add", "Cast"), "Mul")
        scales = [name for name in scaling.input if name != value]
        product = self._producers.get(scales[0]) if scales else None
        stored = [name for name in product.input if name in self._tensors] if product and product.op_type == "Mul" else []
        if len(stored) != 1:
            raise CheckpointError(f"the scale of the weight of {node.name!r} cannot be told")
        return stored[0]

    # --- tensors

    def _stored(self, name: str) -> np.ndarray:
        if name not in self._tensors:
            raise CheckpointError(f"the tensor {name!r} is missing")
        return self._array(name)

    def _array(self, name: str) -> np.ndarray:
        self._used.add(name)
        return self._allowed(self._tensors[name])

    def _allowed(self, tensor: TensorProto) -> np.ndarray:
        """A tensor's content, unless there has been too much of it: a graph can ask for the same one any number of times."""
        self._elements += untrusted.elements(tensor)
        if 4 * self._elements > untrusted.MOST_BYTES:
            raise CheckpointError(f"its weights have more than {untrusted.MOST_BYTES >> 20} MiB as float32, expected 330 MB")
        return untrusted.array(tensor)

    def _float(self, name: str, value: np.ndarray) -> np.ndarray:
        if value.dtype not in (np.float32, np.float16):
            raise CheckpointError(f"{name!r}, which has no scale, is {value.dtype}, expected float32 or float16")
        self.precisions.add(FLOAT16 if value.dtype == np.float16 else FLOAT32)
        return value


# --- rules: from an operator to its module's parameters ------------------------------------------------------------------------


def _read_conv(reader: _Reader, node: NodeProto, module: str) -> None:
    _add_conv(reader, module, reader.floats(_input(node, 1)))
    _add_bias(reader, module, _input(node, 2))


def _read_conv_integer(reader: _Reader, node: NodeProto, module: str) -> None:
    _add_conv(reader, module, reader.eight_bits(_input(node, 1), reader.scale_of(node), _input(node, 3), (0,)))


def _add_conv(reader: _Reader, module: str, weight: np.ndarray) -> None:
    """weight: [channels, channels of a group, taps], the first axis that of the weight norm, whichever direction it convolves."""
    if weight.ndim != 3:
        raise CheckpointError(f"the weight of {module} is {list(weight.shape)}, expected three axes")
    if _PLAIN.fullmatch(module):
        reader.add(f"{module}.weight", weight)
        return
    reader.add(f"{module}.weight_g", np.sqrt(np.square(weight, dtype=np.float64).sum(axis=(1, 2), keepdims=True)))
    direction = weight.copy()
    direction[~weight.any(axis=(1, 2)), :1, :1] = 1
    reader.add(f"{module}.weight_v", direction)


def _read_matmul(reader: _Reader, node: NodeProto, module: str) -> None:
    _add_linear(reader, module, reader.floats(_input(node, 1)), transposed=True)


def _read_gemm(reader: _Reader, node: NodeProto, module: str) -> None:
    if _attribute(node, "alpha", 1.0) != 1 or _attribute(node, "beta", 1.0) != 1 or _attribute(node, "transA", 0):
        raise CheckpointError(f"{node.name} does more than multiply with its weight and add its bias")
    _add_linear(reader, module, reader.floats(_input(node, 1)), transposed=not _attribute(node, "transB", 0))
    _add_bias(reader, module, _input(node, 2))


def _read_matmul_integer(reader: _Reader, node: NodeProto, module: str) -> None:
    weight = reader.eight_bits(_input(node, 1), reader.scale_of(node), _input(node, 3), (1,))
    _add_linear(reader, module, weight, transposed=True)


def _add_linear(reader: _Reader, module: str, weight: np.ndarray, transposed: bool) -> None:
    """weight: [in, out] if transposed, else [out, in] as the checkpoint has it."""
    if weight.ndim != 2:
        raise CheckpointError(f"the weight of {module} is {list(weight.shape)}, expected two axes")
    reader.add(f"{module}.weight", weight.T if transposed else weight)


def _add_bias(reader: _Reader, module: str, name: str) -> None:
    if name:
        reader.add(f"{module}.bias", reader.floats(name))


def _read_gather(reader: _Reader, node: NodeProto, module: str) -> None:
    """A table; of 8 bits if what was looked up is dequantized afterwards."""
    table = _input(node, 0)
    if reader.is_integer(table):
        scaling, value = reader.follow(node, ("Transpose", "Identity"), "DequantizeLinear")
        if _input(scaling, 0) != value:
            raise CheckpointError(f"{scaling.name!r} does not scale what {node.name!r} looked up")
        reader.add(f"{module}.weight", reader.eight_bits(table, _input(scaling, 1), _input(scaling, 2), ()))
    else:
        reader.add(f"{module}.weight", reader.floats(table))


def _read_lstm(reader: _Reader, node: NodeProto, module: str) -> None:
    _add_lstm(reader, node, module, *(reader.floats(_input(node, i)) for i in (1, 2, 3)))


def _read_lstm_integer(reader: _Reader, node: NodeProto, module: str) -> None:
    """Microsoft's operator has [direction, in, gate · out] and scales per direction, or per direction and column."""
    w, r = (
        reader.eight_bits(*(_input(node, i) for i in (weight, scale, scale + 1)), (0, 2)) for weight, scale in ((1, 8), (2, 10))
    )
    if w.ndim == r.ndim == 3:
        w, r = w.swapaxes(1, 2), r.swapaxes(1, 2)
    _add_lstm(reader, node, module, w, r, reader.floats(_input(node, 3)))


def _add_lstm(reader: _Reader, node: NodeProto, module: str, w: np.ndarray, r: np.ndarray, bias: np.ndarray) -> None:
    """Both directions; ONNX orders the gates input, output, forget, cell, PyTorch input, forget, cell, output.

    Args:
        reader: Takes the parameters.
        node: Its attributes are checked.
        module: The module.
        w: [2, 4 · hidden, in]; what multiplies the input.
        r: [2, 4 · hidden, hidden]; what multiplies the state.
        bias: [2, 8 · hidden]; that of the input, then that of the state.
    """
    hidden = bias.size // 16
    expected = ((2, 4 * hidden, *w.shape[2:3]), (2, 4 * hidden, hidden), (2, 8 * hidden))
    if (w.shape, r.shape, bias.shape) != expected:
        found = ", ".join(str(list(x.shape)) for x in (w, r, bias))
        raise CheckpointError(f"{module} has weights and biases of {found}, expected {', '.join(str(list(e)) for e in expected)}")
    if _attribute(node, "direction", b"") != b"bidirectional" or _attribute(node, "layout", 0) or _input(node, 7):
        raise CheckpointError(f"{node.name} is another LSTM, expected a bidirectional one without peepholes, time first")
    for direction, suffix in enumerate(("", "_reverse")):
        values_of = dict(zip(("bias_ih", "bias_hh"), np.split(bias[direction], 2), strict=True))
        for kind, values in (values_of | {"weight_ih": w[direction], "weight_hh": r[direction]}).items():
            gates = values.reshape(4, hidden, *values.shape[1:])[[0, 2, 3, 1]]
            reader.add(f"{module}.{kind}_l0{suffix}", gates.reshape(values.shape))


@dataclass(frozen=True)
class _Rule:
    """How an operator's weight is read; ``weight`` is the number of its input."""

    weight: int
    read: Callable[[_Reader, NodeProto, str], None]


_RULES = {
    ("", "Conv"): _Rule(1, _read_conv),
    ("", "ConvTranspose"): _Rule(1, _read_conv),
    ("", "ConvInteger"): _Rule(1, _read_conv_integer),
    ("", "MatMul"): _Rule(1, _read_matmul),
    ("", "Gemm"): _Rule(1, _read_gemm),
    ("", "MatMulInteger"): _Rule(1, _read_matmul_integer),
    ("", "Gather"): _Rule(0, _read_gather),
    ("", "LSTM"): _Rule(1, _read_lstm),
    ("com.microsoft", "DynamicQuantizeLSTM"): _Rule(1, _read_lstm_integer),
}
"""By domain and operator; that of weights without a module (biases, gains, alphas) is their name."""


# --- nodes -------------------------------------------------------------------------------------------------------------------


def _input(node: NodeProto, index: int) -> str:
    return node.input[index] if index < len(node.input) else ""


def _attribute(node: NodeProto, name: str, default: int | float | bytes) -> int | float | bytes:
    """A node's attribute of the default's type."""
    for attribute in node.attribute:
        if attribute.name == name:
            return {int: attribute.i, float: attribute.f, bytes: attribute.s}[type(default)]
    return default


def _constant(node: NodeProto) -> TensorProto | None:
    """What a Constant holds, if it is a tensor."""
    return next((a.t for a in node.attribute if a.name == "value" and a.type == AttributeProto.TENSOR), None)


def _permutation(node: NodeProto, axes: int) -> list[int]:
    """The order of axes that a Transpose asks for; by default the reverse."""
    order = next((list(a.ints) for a in node.attribute if a.name == "perm"), list(range(axes))[::-1])
    if sorted(order) != list(range(axes)):
        raise CheckpointError(f"{node.name} transposes {axes} axes by {order}")
    return order


def _along(values: np.ndarray, shape: tuple[int, ...], axes: Sequence[int], name: str) -> np.ndarray:
    """``values`` broadcast to a weight: a scalar, or one for every index of the first of ``axes``, of the first two, ..."""
    if values.size == 1 and values.ndim <= 1:
        return values.reshape(())
    for count in range(1, len(axes) + 1):
        if all(-len(shape) <= a < len(shape) for a in axes[:count]) and values.shape == tuple(shape[a] for a in axes[:count]):
            place = [1] * len(shape)
            for axis in axes[:count]:
                place[axis] = shape[axis]
            return values.reshape(place)
    raise CheckpointError(f"{name!r} is {list(values.shape)}, which does not fit a weight of {list(shape)}")


def _signature(graph: GraphProto) -> str:
    tensors = {t.name for t in graph.initializer}
    inputs = ", ".join(v.name for v in graph.input if v.name not in tensors) or "nothing"
    return f"{inputs} -> {', '.join(v.name for v in graph.output) or 'nothing'}"
