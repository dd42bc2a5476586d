"""Pass: operators of the vocabulary to kernels.

``call_dps_packed("kokoro_tvm.conv1d", …)`` becomes ``call_tir`` of the kernel specialised to its shapes and attributes; weights
get the layout their kernel reads, named in the function attribute ``kokoro_tvm.packing``. ``--lstm-method`` is decided here: the
extern or TIR.

What it is: one rule per operator. What it is not: kernels (``kernels/``) or their semantics (``export/ops.py``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

import numpy as np
import tvm
from tvm import relax, tirx

from kokoro_tvm.kernels import winograd
from kokoro_tvm.kernels.conv1d import Accumulate, Conv1d
from kokoro_tvm.kernels.harmonic_source import Source
from kokoro_tvm.kernels.metal.conv1d import rounds
from kokoro_tvm.kernels.metal.packing import HALF
from kokoro_tvm.kernels.metal.tile import Tile as MetalTile
from kokoro_tvm.kernels.packing import pack
from kokoro_tvm.kernels.records import layer_name
from kokoro_tvm.kernels.selection import Tile, kernel_set
from kokoro_tvm.ops import NAMESPACE, tensor_names
from kokoro_tvm.stages import COMPONENTS

LstmMethod = Literal["extern", "tir"]
Dtype = Literal["float32", "bf16", "fp16"]
Products = Literal["float32", "bfloat16", "float16"]

PACKING = "kokoro_tvm.packing"
"""Function attribute: JSON object from weight parameter to layout name (``kernels.packing``)."""


@dataclass
class OperatorCall:
    """One operator: its tensors by argument name (lists as lists), attributes and output type."""

    tensors: dict[str, Any]
    attributes: dict[str, Any]
    type: relax.TensorType

    def __getitem__(self, name: str) -> Any:
        return self.tensors.get(name)

    def channels(self, name: str = "x") -> int:
        """The last extent of a tensor."""
        return _extent(self.tensors[name], -1)

    def present(self, *names: str) -> list[relax.Expr]:
        """Those of the named tensors that are there, in order."""
        return [self.tensors[n] for n in names if n in self.tensors]


def _extent(tensor: relax.Expr, axis: int) -> int:
    return int(tensor.ty.shape.values[axis])


@dataclass
class Lowering:
    """What a rule works with: the tile and its kernels, the LSTM method, types of sums and products, and what they collect."""

    tile: Tile
    lstm_method: LstmMethod
    accumulate: Accumulate
    products: Products
    builder: relax.BlockBuilder
    layouts: dict[relax.Var, str] = field(default_factory=dict)

    def kernel(self, module: str, *arguments: Any, function: str = "kernel") -> tirx.PrimFunc:
        """What a function of the kernels for the tile returns."""
        return _kernel(self.tile, module, function, arguments)

    def tile_for(self, conv: Conv1d) -> Tile:
        """The tile for a direct convolution."""
        return self.tile.best(layer_name(conv), conv.accumulate == "compensated", conv.c_out)

    def call(self, kernel: tirx.PrimFunc, name: str, arguments: list[relax.Expr], out: relax.TensorType) -> relax.Call:
        """A call of ``kernel``, which joins the module once per specialisation."""
        # The schedule that TVM's own operators still need must leave ours alone.
        kernel = kernel.with_attr("tirx.is_scheduled", True)
        return relax.call_tir(self.builder.add_func(kernel, name), relax.Tuple(arguments), out)

    def packed(self, weight: relax.Var, layout_name: str, tile: Tile | None = None) -> relax.Var:
        """Notes that a weight has to be in a layout, for a tile of its own if one is given."""
        if tile is not None and tile.width != self.tile.width:
            layout_name = f"{layout_name}@{tile.width}"
        if self.layouts.setdefault(weight, layout_name) != layout_name:
            raise RuntimeError(f"{weight} is needed as {self.layouts[weight]} and as {layout_name}")
        return weight


@cache
def _kernel(tile: Tile, module: str, function: str, arguments: tuple[Any, ...]) -> tirx.PrimFunc:
    return getattr(getattr(kernel_set(tile), module), function)(*arguments)


@cache
def _winograd_kernel(conv: Conv1d, tile: Tile, scheme: winograd.Scheme) -> tirx.PrimFunc:
    return winograd.kernel(conv, tile, scheme)


def _conv1d_of(call: OperatorCall, accumulate: Accumulate) -> Conv1d:
    a = call.attributes
    return Conv1d(
        c_in=call.channels(),
        c_out=_extent(call["weight"], 0),
        taps=_extent(call["weight"], 2),
        stride=a["stride"],
        dilation=a["dilation"],
        padding_left=a["padding"],
        padding_right=a["padding"],
        affine="coef" in call.tensors,
        prologue=a["prologue"],
        slope=a["slope"],
        bias="bias" in call.tensors,
        residuals=len(call.present("residual", "residual2")),
        residual_shift=a["residual_shift"],
        scale=a["scale"],
        epilogue=a["epilogue"],
        accumulate=accumulate,
    )


def _measured(conv: Conv1d, low: Lowering) -> tuple[Tile, winograd.Scheme | None]:
    """Tile and scheme of a convolution: those on record, else the target's."""
    tile = low.tile_for(conv)
    return tile, None if isinstance(tile, MetalTile) else winograd.choice(conv, tile)


def _with_products(conv: Conv1d, low: Lowering) -> Conv1d:
    """The convolution with the products that are asked for, where its kernel rounds."""
    rounded = replace(conv, products=low.products)
    tile, scheme = _measured(rounded, low)
    return rounded if (rounds(conv, tile) if isinstance(tile, MetalTile) else scheme) else conv


def _layout(name: str, conv: Conv1d) -> str:
    """The weight's layout for a direct convolution."""
    return name + HALF if conv.products == "float16" else name


def _conv1d(call: OperatorCall, low: Lowering) -> relax.Expr:
    conv = _with_products(_conv1d_of(call, low.accumulate), low)
    tile, scheme = _measured(conv, low)
    weights = [low.packed(call["weight"], winograd.layout(conv, scheme) if scheme else _layout("conv1d", conv), tile)]
    arguments = [call["x"], call["lengths"], *weights, *(low.packed(b, "bias", tile) for b in call.present("bias"))]
    arguments += call.present("coef", "alpha", "residual", "residual2")
    if scheme:
        return low.call(_winograd_kernel(conv, tile, scheme), "winograd", arguments, call.type)
    return low.call(low.kernel("conv1d", conv, tile), "conv1d", arguments, call.type)


def _conv_transpose1d_of(call: OperatorCall, accumulate: Accumulate) -> Conv1d:
    a = call.attributes
    taps, stride = _extent(call["weight"], 2), a["stride"]
    if taps % stride:
        raise RuntimeError(f"transposed convolution of {taps} taps and stride {stride}: taps must be a multiple of the stride")
    span = taps // stride - 1
    return Conv1d(
        c_in=call.channels(),
        c_out=_extent(call["weight"], 1),
        taps=taps // stride,
        padding_left=span,
        padding_right=span,
        phases=stride,
        crop=a["padding"],
        reflect=a["reflect"],
        prologue="leaky",
        slope=a["slope"],
        residuals=len(call.present("residual")),
        accumulate=accumulate,
    )


def _conv_transpose1d(call: OperatorCall, low: Lowering) -> relax.Expr:
    conv = _with_products(_conv_transpose1d_of(call, low.accumulate), low)
    tile, scheme = _measured(conv, low)
    layout = winograd.layout(conv, scheme) if scheme else _layout(f"transposed:{conv.phases}", conv)
    weights = [low.packed(call["weight"], layout, tile), low.packed(call["bias"], "bias", tile)]
    arguments = [call["x"], call["lengths"], *weights, *call.present("residual")]
    if scheme:
        return low.call(_winograd_kernel(conv, tile, scheme), "winograd_transpose", arguments, call.type)
    return low.call(low.kernel("conv1d", conv, tile), "conv_transpose1d", arguments, call.type)


def _bilstm(call: OperatorCall, low: Lowering) -> relax.Expr:
    """One extern where float32 sums do; else the projection as a convolution of one tap, and a recurrence on its gates."""
    names = ("x", "lengths", "w_ih", "w_hh", "b_ih", "b_hh")
    if low.lstm_method == "extern" and low.accumulate == "float32":
        return relax.call_dps_packed(f"{NAMESPACE}.bilstm", relax.Tuple(call.present(*names)), call.type)
    batch, rows, _ = call["x"].ty.shape.values
    hidden = _extent(call["w_hh"], 2)
    conv = Conv1d(c_in=call.channels(), c_out=8 * hidden, taps=1, accumulate=low.accumulate)
    tile = low.tile_for(conv)
    bias = low.builder.emit(relax.op.add(call["b_ih"], call["b_hh"]), "bias_sum")
    bias = low.builder.emit(relax.op.reshape(bias, (8 * hidden,)), "gate_bias")
    projection = [call["x"], call["lengths"], low.packed(call["w_ih"], "gates", tile), bias]
    gates_type = relax.TensorType((batch, rows, 8 * hidden), "float32")
    gates = low.builder.emit(low.call(low.kernel("conv1d", conv, tile), "conv1d", projection, gates_type), "gates")
    if low.lstm_method == "extern":
        recurrence = relax.Tuple([gates, call["lengths"], call["w_hh"]])
        return relax.call_dps_packed(f"{NAMESPACE}.bilstm_recurrence", recurrence, call.type)
    recurrence = [gates, call["lengths"], low.packed(call["w_hh"], "recurrent")]
    return low.call(low.kernel("bilstm", hidden, low.tile), "bilstm", recurrence, call.type)


def _style_linear(call: OperatorCall, low: Lowering) -> relax.Expr:
    kernel = low.kernel("style_linear", call.channels("style"), _extent(call["weight"], 0), low.tile)
    weights = [low.packed(call["weight"], "style_linear"), low.packed(call["bias"], "bias")]
    return low.call(kernel, "style_linear", [call["style"], *weights], call.type)


def _adain(call: OperatorCall, low: Lowering) -> relax.Expr:
    arguments = call.present("x", "lengths", "affine", "weight", "bias")
    offset = tirx.IntImm("int64", call.attributes["offset"])
    return low.call(low.kernel("adain", call.channels(), low.tile), "adain", [*arguments, offset], call.type)


def _ada_layer_norm(call: OperatorCall, low: Lowering) -> relax.Expr:
    a = call.attributes
    sizes = (call.channels(), call.channels("style"), call.channels("affine"))
    kernel = low.kernel("ada_layer_norm", *sizes, a["offset"], a["eps"], low.tile)
    return low.call(kernel, "ada_layer_norm", call.present("x", "lengths", "affine", "style"), call.type)


def _layer_norm(call: OperatorCall, low: Lowering) -> relax.Expr:
    slope = call.attributes["slope"]
    kernel = low.kernel("layer_norm", call.channels(), call.attributes["eps"], None if slope == 1.0 else slope, low.tile)
    return low.call(kernel, "layer_norm", call.present("x", "lengths", "weight", "bias"), call.type)


def _embed(call: OperatorCall, low: Lowering) -> relax.Expr:
    vocabulary, channels = (_extent(call["table"], axis) for axis in (0, 1))
    kernel = low.kernel("embed", channels, vocabulary, "positions" in call.tensors, low.tile)
    return low.call(kernel, "embed", call.present("ids", "lengths", "table", "positions"), call.type)


def _attention(call: OperatorCall, low: Lowering) -> relax.Expr:
    heads = call.attributes["heads"]
    kernel = low.kernel("attention", heads, call.channels("qkv") // 3 // heads, low.tile)
    return low.call(kernel, "attention", call.present("qkv", "lengths"), call.type)


def _concat(call: OperatorCall, low: Lowering) -> relax.Expr:
    xs = call["xs"]
    kernel = low.kernel("concat", tuple(_extent(x, -1) for x in xs), low.tile)
    return low.call(kernel, "concat", [*xs, call["lengths"]], call.type)


def _depthwise_upsample(call: OperatorCall, low: Lowering) -> relax.Expr:
    kernel = low.kernel("depthwise_upsample", call.channels(), call.attributes["slope"], low.tile)
    return low.call(kernel, "depthwise_upsample", call.present("x", "lengths", "coef", "weight", "bias"), call.type)


def _append_style(call: OperatorCall, low: Lowering) -> relax.Expr:
    kernel = low.kernel("append_style", call.channels(), call.channels("style"))
    return low.call(kernel, "append_style", call.present("x", "lengths", "style"), call.type)


def _harmonic_source(call: OperatorCall, low: Lowering) -> relax.Expr:
    a = {k: v for k, v in call.attributes.items() if k != "absent"}
    kernel = low.kernel("harmonic_source", Source(harmonics=call.channels("noise"), **a), low.tile)
    return low.call(kernel, "harmonic_source", call.present("f0", "lengths", "noise", "weight", "bias"), call.type)


def _spectral(name: str) -> Rule:
    def rule(call: OperatorCall, low: Lowering) -> relax.Expr:
        kernel = low.kernel(name, low.tile, call.attributes["n_fft"], call.attributes["hop"])
        return low.call(kernel, name, call.present("x", "lengths"), call.type)

    return rule


def _rows(module: str, function: str, name: str, axis: int = -1) -> Rule:
    """A rule for kernels that depend on the channel count alone."""

    def rule(call: OperatorCall, low: Lowering) -> relax.Expr:
        kernel = low.kernel(module, _extent(call["x"], axis), low.tile, function=function)
        return low.call(kernel, name, call.present("x", "lengths"), call.type)

    return rule


Rule = Callable[[OperatorCall, Lowering], relax.Expr]

RULES: dict[str, Rule] = {
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
    "sigmoid_sum": _rows("sigmoid_sum", "kernel", "sigmoid_sum"),
    "to_rows": _rows("layout", "to_rows", "to_rows", axis=1),
    "to_columns": _rows("layout", "to_columns", "to_columns"),
    "mask_rows": _rows("layout", "mask_rows", "mask_rows"),
    "concat": _concat,
    "style_linear": _style_linear,
    "harmonic_source": _harmonic_source,
    "stft": _spectral("stft"),
    "istft": _spectral("istft"),
}
"""Operator to its rule."""


def _accumulate(function: str) -> Accumulate:
    return COMPONENTS[function].accumulate if function in COMPONENTS else "float32"


def _products(function: str, dtype: Dtype) -> Products:
    rounded: Products = {"float32": "float32", "bf16": "bfloat16", "fp16": "float16"}[dtype]
    return rounded if function in COMPONENTS and COMPONENTS[function].rounds else "float32"


def _parsed(name: str, arguments: list[relax.Expr], out: relax.TensorType) -> OperatorCall:
    *tensors, last = arguments
    attributes = json.loads(last.value)
    found: dict[str, Any] = {}
    for label, tensor in zip(tensor_names(name, attributes["absent"], len(tensors)), tensors, strict=True):
        argument, _, place = label.partition(".")
        if place:
            found.setdefault(argument, []).append(tensor)
        else:
            found[argument] = tensor
    return OperatorCall(found, attributes, out)


def convolutions(name: str, function: relax.Function) -> list[tuple[Conv1d, relax.Expr]]:
    """Every convolution of the exported function ``name``, and its input's type (for the number of rows)."""
    makers = {"conv1d": _conv1d_of, "conv_transpose1d": _conv_transpose1d_of}
    found: list[tuple[Conv1d, relax.Expr]] = []
    for binding in (b for block in function.body.blocks for b in block.bindings):
        call = binding.value
        if not isinstance(call, relax.Call) or call.op != tvm.ir.Op.get("relax.call_dps_packed"):
            continue
        kind = str(call.args[0].global_symbol).removeprefix(f"{NAMESPACE}.")
        if kind in makers:
            operator = _parsed(kind, list(call.args[1].fields), call.ty_args[0])
            found.append((makers[kind](operator, _accumulate(name)), operator["x"].ty))
    return found


@relax.expr_functor.mutator
class _Mutator(relax.PyExprMutator):
    def __init__(
        self, module: tvm.IRModule, tile: Tile, lstm_method: LstmMethod, accumulate: Accumulate, products: Products
    ) -> None:
        super().__init__(module)
        self.lowering = Lowering(tile, lstm_method, accumulate, products, self.builder_)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if call.op != tvm.ir.Op.get("relax.call_dps_packed"):
            return call
        name = str(call.args[0].global_symbol).removeprefix(f"{NAMESPACE}.")
        if name not in RULES:
            return call
        operator = _parsed(name, list(call.args[1].fields), call.ty_args[0])
        return RULES[name](operator, self.lowering)


@relax.expr_functor.mutator
class _Substitute(relax.PyExprMutator):
    """Replaces variables throughout an expression."""

    def __init__(self, binding: dict[relax.Var, relax.Var]) -> None:
        super().__init__()
        self.binding = binding

    def visit_var_(self, var: relax.Var) -> relax.Expr:
        return self.binding.get(var, var)


@tvm.transform.module_pass(opt_level=0, name="LowerOperators")
class LowerOperators:
    """See the module. ``tile`` is the target's register tile; ``dtype`` what components that may round multiply."""

    def __init__(self, tile: Tile, lstm_method: LstmMethod = "extern", dtype: Dtype = "float32") -> None:
        self.tile = tile
        self.lstm_method = lstm_method
        self.dtype = dtype

    def transform_module(self, module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        """Lowers every Relax function."""
        for global_var, function in module.functions_items():
            if isinstance(function, relax.Function):
                # The kernels for GPUs know float32 sums alone.
                accumulate = "float32" if isinstance(self.tile, MetalTile) else _accumulate(global_var.name_hint)
                products = _products(global_var.name_hint, self.dtype)
                mutator = _Mutator(module, self.tile, self.lstm_method, accumulate, products)
                lowered = mutator.visit_expr(function)
                module = mutator.builder_.get()
                module[global_var] = self._with_layouts(lowered, mutator.lowering.layouts)
        return module

    def _with_layouts(self, function: relax.Function, layouts: dict[relax.Var, str]) -> relax.Function:
        """Gives the weight parameters the types of their layouts."""
        binding, parameters = {}, []
        for old in function.params:
            if old not in layouts:
                parameters.append(old)
                continue
            shape = [int(d) for d in old.ty.shape.values]
            blank = np.broadcast_to(np.float32(0), shape)
            packed = pack(layouts[old], blank, self.tile)
            binding[old] = relax.Var(old.name, relax.TensorType(packed.shape, str(packed.dtype)))
            parameters.append(binding[old])
        body = _Substitute(binding).visit_expr(function.body)
        names = {v.name: name for v, name in layouts.items()}
        return relax.Function(parameters, body, function.ret_ty, attrs=function.attrs).with_attr(PACKING, json.dumps(names))
