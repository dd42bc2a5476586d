"""Published exports give back the weights they were made from, bit for bit; anything else is one error.

The files here are a few operators in the naming of kokoro-onnx's exports, in 8 bits, float16 and float32; the real file comes
from the packages that carry it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from kokoro_tvm.errors import CheckpointError
from kokoro_tvm.onnx import packaged, untrusted
from kokoro_tvm.onnx.published import EIGHT_BIT, FLOAT16, FLOAT32, read_published
from kokoro_tvm.reference.checkpoint import checkpoint_from_onnx, load_checkpoint

HIDDEN, WIDTH = 2, 3
"""Of the small LSTM."""
MICROSOFT = "com.microsoft"
EXPECTED_NUMBERS = (
    -0.08154186606407166, -0.1851966679096222, -0.18263398110866547, -0.17837205529212952, -0.09873894602060318,
    0.0826403945684433, 0.08743999153375626, -0.39068546891212463, -0.5477443337440491,
)  # fmt: skip
"""``decoder.generator.m_source.l_linear.weight`` of the published checkpoint, as framallo/kokoro-coreml has it in its fixtures;
the 8-bit file keeps it in float32."""


class Export:
    """A few modules as an exporter would write them, and what reading them has to give."""

    def __init__(self, form: str) -> None:
        self.form = form
        self.rng = np.random.default_rng(0)
        self.graph = GraphProto(name="main_graph")
        for name in ("tokens", "style", "speed"):
            self.graph.input.add(name=name)
        self.graph.output.add(name="audio")
        self.expected: dict[str, np.ndarray] = {}

    def node(self, op: str, name: str, inputs: list[str], domain: str = "", **attributes: Any) -> str:
        output = f"{name}_output_0"
        self.graph.node.append(helper.make_node(op, inputs, [output], name=name, domain=domain, **attributes))
        return output

    def tensor(self, name: str, value: Any, dtype: Any = None) -> str:
        value = np.asarray(value)
        self.graph.initializer.append(numpy_helper.from_array(value.astype(dtype or value.dtype), name))
        return name

    def floats(self, *shape: int) -> np.ndarray:
        """Random values that this form's files hold exactly."""
        return self.rng.normal(size=shape).astype(np.float16 if self.form == FLOAT16 else np.float32)

    def named(self, name: str, parameter: str, *shape: int) -> str:
        value = self.floats(*shape)
        self.expected[parameter] = value.astype(np.float32)
        return self.tensor(name, value)

    def eight_bits(self, stem: str, shape: tuple[int, ...], dtype: Any, axes: tuple[int, ...] = ()) -> np.ndarray:
        """Adds q, and s and z for each index of ``axes``; returns (q − z) · s in float64, which is exact."""
        info, scales = np.iinfo(dtype), tuple(shape[a] for a in axes)
        q = self.rng.integers(info.min, info.max, shape, dtype, endpoint=True)
        z = self.rng.integers(info.min, info.max, scales, dtype, endpoint=True)
        s = self.rng.uniform(1e-3, 1e-2, scales).astype(np.float32)
        self.tensor(f"{stem}_quantized", q)
        self.tensor(f"{stem}_scale", s)
        self.tensor(f"{stem}_zero_point", z)
        along = [n if axis in axes else 1 for axis, n in enumerate(shape)]
        return (q.astype(np.float64) - z.astype(np.float64).reshape(along)) * s.astype(np.float64).reshape(along)

    def integer(self, op: str, name: str, stem: str, bias: bool) -> None:
        """The operator with its scales behind it, as onnxruntime's quantizer writes it."""
        y = self.node(op, name, ["x", f"{stem}_quantized", "x_zero_point", f"{stem}_zero_point"])
        y = self.node("Add", f"{name}_bias", [y, "bias_quantized"]) if bias else y
        scales = self.node("Mul", f"{name}_scales_mul", ["x_scale", f"{stem}_scale"])
        self.node("Mul", f"{name}_scale_mul", [self.node("Cast", f"{name}_cast", [y], to=1), scales])

    def table(self, path: str, name: str, parameter: str) -> None:
        if self.form != EIGHT_BIT:
            self.node("Gather", f"{path}/Gather", [self.named(name, parameter, 4, 3), "tokens"])
            return
        self.expected[parameter] = self.eight_bits(name, (4, 3), np.int8).astype(np.float32)
        looked_up = self.node("Gather", f"{path}/Gather_quant", [f"{name}_quantized", "tokens"])
        self.node("DequantizeLinear", f"{path}/Gather_DequantizeLinear", [looked_up, f"{name}_scale", f"{name}_zero_point"])

    def linear(self, path: str, stem: str, parameter: str, *, gemm: bool = False, again: str = "") -> None:
        if self.form == EIGHT_BIT:
            weight = self.eight_bits(stem, (3, 5), np.int8, (1,))
            self.expected[f"{parameter}.weight"] = weight.T.astype(np.float32)
            for p in filter(None, (path, again)):
                self.integer("MatMulInteger", f"{p}/MatMul_quant", stem, bias=False)
            return
        weight = self.floats(5, 3)
        self.expected[f"{parameter}.weight"] = weight.astype(np.float32)
        if gemm:
            self.node("Gemm", f"{path}/Gemm", ["x", self.tensor(stem, weight)], transB=1)
            return
        self.tensor(stem, weight.T)
        for p in filter(None, (path, again)):  # converters to float16 cast back where an operator stays in float32
            name = stem if self.form == FLOAT32 else self.node("Cast", f"{p}/weight_cast", [stem], to=1)
            self.node("MatMul", f"{p}/MatMul", ["x", name])

    def conv(self, path: str, stem: str, parameter: str, *, plain: bool = False) -> None:
        if self.form == EIGHT_BIT:
            weight = self.eight_bits(stem, (4, 3, 5), np.uint8)
            q = next(t for t in self.graph.initializer if t.name == f"{stem}_quantized")
            z = numpy_helper.to_array(next(t for t in self.graph.initializer if t.name == f"{stem}_zero_point"))
            values = numpy_helper.to_array(q).copy()
            values[2], weight[2] = z, 0
            q.CopyFrom(numpy_helper.from_array(values, q.name))
            self.integer("ConvInteger", f"{path}/Conv_quant", stem, bias=True)
        else:
            weight = self.floats(4, 3, 5)
            weight[2] = 0
            self.node("Conv", f"{path}/Conv", ["x", self.tensor(stem, weight)])
        self.expect_conv(parameter, weight.astype(np.float64), plain)

    def expect_conv(self, parameter: str, weight: np.ndarray, plain: bool = False) -> None:
        if plain:
            self.expected[f"{parameter}.weight"] = weight.astype(np.float32)
            return
        rows = [math.sqrt(math.fsum(x * x for x in row.ravel())) for row in weight]
        self.expected[f"{parameter}.weight_g"] = np.array(rows, np.float32).reshape(-1, 1, 1)
        direction = weight.astype(np.float32)
        direction[np.array(rows) == 0, 0, 0] = 1
        self.expected[f"{parameter}.weight_v"] = direction

    def lstm(self, path: str, parameter: str) -> None:
        names = ["lstm_W", "lstm_R", "lstm_B"]
        if self.form == EIGHT_BIT:
            w, r = (
                self.eight_bits(stem, (2, rows, 4 * HIDDEN), np.int8, axes).swapaxes(1, 2)
                for stem, rows, axes in (("lstm_W", WIDTH, (0,)), ("lstm_R", HIDDEN, (0, 2)))
            )
            b = self.floats(2, 8 * HIDDEN)
            scales = [f"{stem}_{kind}" for stem in names[:2] for kind in ("scale", "zero_point")]
            inputs = ["x", "lstm_W_quantized", "lstm_R_quantized", "lstm_B", "", "", "", "", *scales]
            self.node("DynamicQuantizeLSTM", f"{path}/LSTM_quant", inputs, MICROSOFT, direction="bidirectional")
        else:
            w, r, b = self.floats(2, 4 * HIDDEN, WIDTH), self.floats(2, 4 * HIDDEN, HIDDEN), self.floats(2, 8 * HIDDEN)
            self.tensor("lstm_W", w)
            self.tensor("lstm_R", r)
            self.node("LSTM", f"{path}/LSTM", ["x", *names], direction="bidirectional", hidden_size=HIDDEN)
        self.tensor("lstm_B", b)
        for d, suffix in enumerate(("", "_reverse")):
            kinds = {"weight_ih": w[d], "weight_hh": r[d], "bias_ih": b[d, : 4 * HIDDEN], "bias_hh": b[d, 4 * HIDDEN :]}
            for kind, value in kinds.items():
                i, o, f, c = np.split(value, 4)
                self.expected[f"{parameter}.{kind}_l0{suffix}"] = np.concatenate([i, f, c, o]).astype(np.float32)

    def model(self) -> ModelProto:
        return helper.make_model(self.graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)])


def export(form: str) -> Export:
    """One module of every kind."""
    e = Export(form)
    e.table("/encoder/text_encoder/embedding", "encoder.text_encoder.embedding.weight", "text_encoder.embedding.weight")
    attention = "bert.encoder.albert_layer_groups.0.albert_layers.0.attention"
    path = f"/encoder/{attention.replace('.', '/').replace('groups/0', 'groups.0').replace('layers/0', 'layers.0')}"
    e.linear(f"{path}/query", "onnx::MatMul_1", f"{attention}.query", again=f"{path.replace('attention', 'attention_2')}/query_2")
    e.linear("/decoder/decoder/encode/norm1/fc", "decoder.decoder.encode.norm1.fc.weight", "decoder.encode.norm1.fc", gemm=True)
    e.conv("/encoder/text_encoder/cnn.0/cnn.0.0", "/encoder/text_encoder/cnn.0/Mul_output_0", "text_encoder.cnn.0.0")
    e.conv("/decoder/decoder/asr_res/asr_res.0", "onnx::Conv_2", "decoder.asr_res.0")
    e.conv("/encoder/F0_proj", "encoder.predictor.F0_proj.weight", "predictor.F0_proj", plain=True)
    e.lstm("/encoder/shared", "predictor.shared")
    pool = e.floats(3, 1, 3)
    e.node("ConvTranspose", "/encoder/F0.1/pool/ConvTranspose", ["x", e.tensor("/encoder/F0.1/Mul_output_0", pool)])
    e.expect_conv("predictor.F0.1.pool", pool.astype(np.float64))
    e.named("encoder.predictor.F0.1.pool.bias", "predictor.F0.1.pool.bias", 3)
    e.named("decoder.decoder.generator.resblocks.0.alpha1.0", "decoder.generator.resblocks.0.alpha1.0", 1, 3, 1)
    e.named("encoder.bert_encoder.bias", "bert_encoder.bias", 5)
    basis = e.tensor("decoder.decoder.generator.stft.istft.stft.inverse_basis", e.floats(4, 1, 4))
    e.node("ConvTranspose", "/decoder/decoder/generator/istft/stft/ConvTranspose", ["x", basis])
    e.node("Gather", "/encoder/bert/Gather_1", [e.tensor("indices", np.arange(3)), "tokens"])
    return e


def read(model: ModelProto) -> dict[str, np.ndarray]:
    return flat(read_published(model.SerializeToString(), "small.onnx"))


def flat(weights: Any) -> dict[str, np.ndarray]:
    return {f"{part}.{name}": value for part, values in weights.parts.items() for name, value in values.items()}


@pytest.mark.parametrize("form", [EIGHT_BIT, FLOAT16, FLOAT32])
def test_weights_come_back_bit_for_bit(form: str, tmp_path: Path) -> None:
    """8 bits: the exact product in float64, rounded once; float16 and float32: the same numbers."""
    small = export(form)
    path = tmp_path / "any name.onnx"
    path.write_bytes(small.model().SerializeToString())
    weights = read_published(path)
    found = flat(weights)
    assert weights.precision == form
    assert found.keys() == small.expected.keys()
    assert all(v.dtype == np.float32 and v.flags.writeable for v in found.values())
    different = [k for k, v in small.expected.items() if found[k].shape != v.shape or found[k].tobytes() != v.tobytes()]
    assert not different


@pytest.mark.parametrize("form", [EIGHT_BIT, FLOAT32])
def test_upstreams_weight_norm_gives_the_weight_again(form: str) -> None:
    """PyTorch's own weight norm on what was read: the weight to the last bits, zeros for the row of zeros."""
    small = export(form)
    found = read(small.model())
    g, v = (torch.from_numpy(found[f"decoder.asr_res.0.weight_{kind}"]) for kind in "gv")
    weight = torch._weight_norm(v, g, 0)
    assert weight[2].eq(0).all() and not weight[1].eq(0).all()
    expected = v.clone()
    expected[2] = 0
    # g, |v| and the quotient are rounded once each, and the product again.
    torch.testing.assert_close(weight, expected, rtol=4 * torch.finfo(torch.float32).eps, atol=0)


def test_lstm_gates_mean_the_same_to_pytorch() -> None:
    small = Export(FLOAT32)
    small.lstm("/encoder/predictor/lstm", "predictor.lstm")
    found = read(small.model())
    ours = torch.nn.LSTM(WIDTH, HIDDEN, bidirectional=True)
    ours.load_state_dict({k.removeprefix("predictor.lstm."): torch.from_numpy(v) for k, v in found.items()}, strict=True)
    node = small.graph.node[0]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node], "lstm", [value("x", TensorProto.FLOAT, [5, 1, WIDTH])],
        [value(node.output[0], TensorProto.FLOAT, [5, 2, 1, HIDDEN])], list(small.graph.initializer),
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    x = np.random.default_rng(1).normal(size=(5, 1, WIDTH)).astype(np.float32)
    (theirs,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    with torch.no_grad():
        y, _ = ours(torch.from_numpy(x))
    # A few sums of five terms below 1; swapped gates are off by more than 0.1.
    np.testing.assert_allclose(y.numpy(), theirs.swapaxes(1, 2).reshape(5, 1, -1), atol=1e-6)


def test_weight_norm_may_be_left_as_it_is_computed() -> None:
    small = Export(FLOAT32)
    for kind, shape in (("g", (4, 1, 1)), ("v", (4, 3, 5))):
        small.named(f"encoder.text_encoder.cnn.0.0.weight_{kind}", f"text_encoder.cnn.0.0.weight_{kind}", *shape)
    weight = small.node("Mul", "/encoder/text_encoder/cnn.0/cnn.0.0/Mul", ["encoder.text_encoder.cnn.0.0.weight_v", "ratio"])
    small.node("Conv", "/encoder/text_encoder/cnn.0/cnn.0.0/Conv", ["x", weight])
    found = read(small.model())
    assert {k: v.tobytes() for k, v in found.items()} == {k: v.tobytes() for k, v in small.expected.items()}


def test_upstreams_own_export_has_shorter_names() -> None:
    """``KModelForONNX`` calls parts of the predictor directly, and the second module called text_encoder gets a number."""
    small = Export(FLOAT32)
    small.linear("/duration_proj/linear_layer", "onnx::MatMul_1", "predictor.duration_proj.linear_layer")
    small.linear("/text_encoder/lstms.1/fc", "onnx::MatMul_2", "predictor.text_encoder.lstms.1.fc")
    small.table("/text_encoder_1/embedding", "kmodel.text_encoder.embedding.weight", "text_encoder.embedding.weight")
    assert read(small.model()).keys() == small.expected.keys()


# --- refusals ------------------------------------------------------------------------------------------------------------------


def tensor(graph: GraphProto, name: str) -> TensorProto:
    return next(t for t in graph.initializer if t.name == name)


def node(graph: GraphProto, op: str, name: str = "") -> Any:
    return next(n for n in graph.node if n.op_type == op and name in n.name)


def replace(graph: GraphProto, name: str, value: np.ndarray) -> None:
    tensor(graph, name).CopyFrom(numpy_helper.from_array(value, name))


SCALE = "onnx::MatMul_1_scale"
WEIGHT = "onnx::MatMul_1_quantized"


def _nan(graph: GraphProto) -> None:
    replace(graph, SCALE, np.array([1, 1, np.nan, 1, 1], np.float32))


def _negative(graph: GraphProto) -> None:
    replace(graph, SCALE, -np.ones(5, np.float32))


def _zero_scale(graph: GraphProto) -> None:
    replace(graph, SCALE, np.zeros(5, np.float32))


def _scale_of_other_length(graph: GraphProto) -> None:
    replace(graph, SCALE, np.ones(3, np.float32))


def _integer_scale(graph: GraphProto) -> None:
    replace(graph, SCALE, np.ones(5, np.int8))


def _zero_point_of_other_type(graph: GraphProto) -> None:
    replace(graph, "onnx::MatMul_1_zero_point", np.zeros(5, np.uint8))


def _zero_point_of_other_length(graph: GraphProto) -> None:
    replace(graph, "onnx::MatMul_1_zero_point", np.zeros(3, np.int8))


def _external(graph: GraphProto) -> None:
    t = tensor(graph, WEIGHT)
    t.ClearField("raw_data")
    t.data_location = TensorProto.EXTERNAL
    t.external_data.add(key="location", value="../../../../etc/passwd")


def _external_place_only(graph: GraphProto) -> None:
    tensor(graph, WEIGHT).external_data.add(key="location", value="/etc/passwd")


def _short(graph: GraphProto) -> None:
    t = tensor(graph, WEIGHT)
    t.raw_data = t.raw_data[:-1]


def _huge(graph: GraphProto) -> None:
    tensor(graph, WEIGHT).dims[:] = [2**31, 2**31]


def _negative_dimension(graph: GraphProto) -> None:
    tensor(graph, WEIGHT).dims[:] = [-3, -5]


def _empty(graph: GraphProto) -> None:
    replace(graph, WEIGHT, np.zeros((0, 5), np.int8))


def _four_bits(graph: GraphProto) -> None:
    n = node(graph, "MatMulInteger", "norm1/fc")
    n.op_type, n.domain = "MatMulNBits", MICROSOFT
    replace(graph, n.input[1], np.zeros((512, 1, 16), np.uint8))


def _four_bit_type(graph: GraphProto) -> None:
    tensor(graph, WEIGHT).data_type = TensorProto.INT4


def _other_operator(graph: GraphProto) -> None:
    node(graph, "ConvInteger", "asr_res").op_type = "QLinearConv"
    replace(graph, "onnx::Conv_2_quantized", np.zeros((64, 64, 5), np.uint8))


def _missing(graph: GraphProto) -> None:
    graph.initializer.remove(tensor(graph, WEIGHT))


def _missing_scale(graph: GraphProto) -> None:
    graph.initializer.remove(tensor(graph, SCALE))


def _missing_zero_point(graph: GraphProto) -> None:
    graph.initializer.remove(tensor(graph, "onnx::MatMul_1_zero_point"))


def _twice(graph: GraphProto) -> None:
    graph.initializer.append(tensor(graph, WEIGHT))


def _two_producers(graph: GraphProto) -> None:
    graph.node.append(graph.node[0])


def _two_weights(graph: GraphProto) -> None:
    node(graph, "MatMulInteger", "query_2").input[1] = "decoder.decoder.encode.norm1.fc.weight_quantized"


def _by_name_too(graph: GraphProto) -> None:
    graph.initializer.append(numpy_helper.from_array(np.ones((5, 3), np.float32), "decoder.decoder.encode.norm1.fc.weight"))


def _no_scale_behind(graph: GraphProto) -> None:
    node(graph, "Cast", "query/").op_type = "Relu"


def _cycle(graph: GraphProto) -> None:
    cast, scaling = node(graph, "Cast", "query/"), node(graph, "Mul", "query/MatMul_quant_scale_mul")
    scaling.op_type = "Cast"
    cast.input.append(scaling.output[0])


def _flat_lstm(graph: GraphProto) -> None:
    replace(graph, "lstm_W_quantized", np.zeros((WIDTH, 8 * HIDDEN), np.int8))
    replace(graph, "lstm_W_scale", np.ones((), np.float32))
    replace(graph, "lstm_W_zero_point", np.zeros((), np.int8))


def _one_direction(graph: GraphProto) -> None:
    attribute = next(a for a in node(graph, "DynamicQuantizeLSTM").attribute if a.name == "direction")
    attribute.s = b"forward"


def _no_bias(graph: GraphProto) -> None:
    node(graph, "DynamicQuantizeLSTM").input[3] = ""


def _table_without_scale(graph: GraphProto) -> None:
    node(graph, "DequantizeLinear").op_type = "Cast"


def _flat_conv(graph: GraphProto) -> None:
    replace(graph, "onnx::Conv_2_quantized", np.zeros((4, 15), np.uint8))


def _no_text(graph: GraphProto) -> None:
    """Valid in ONNX's version of protobuf, which hands out bytes for it."""
    renamed = graph.SerializeToString().replace(b"query_2", b"query\xff\xff")
    graph.ParseFromString(renamed)


def _foreign(graph: GraphProto) -> None:
    graph.CopyFrom(GraphProto(name="resnet"))
    graph.input.add(name="pixels")
    graph.output.add(name="class")


REFUSALS: dict[Callable[[GraphProto], None], str] = {
    _nan: "scale.*not positive and finite",
    _negative: "scale.*not positive and finite",
    _zero_scale: "scale.*not positive and finite",
    _scale_of_other_length: r"scale' is \[3\], which does not fit a weight of \[3, 5\]",
    _integer_scale: "its scale int8, expected",
    _zero_point_of_other_type: "zero point .* is uint8",
    _zero_point_of_other_length: r"zero_point' is \[3\], which does not fit",
    _external: "lies in another file, expected one file",
    _external_place_only: "lies in another file, expected one file",
    _short: "has 14 bytes, expected 15",
    _huge: "which no weight of this model has",
    _negative_dimension: "which no weight of this model has",
    _empty: "is empty",
    _four_bits: r"belongs to MatMulNBits; expected 8, 16 or 32 bits in .*MatMulInteger",
    _four_bit_type: "is int4, expected",
    _other_operator: "belongs to QLinearConv; expected",
    _missing: "is missing",
    _missing_scale: "scale of the weight of .*query.* cannot be told",
    _missing_zero_point: "zero_point' is missing",
    _twice: "two tensors named",
    _two_producers: "two values in it are named",
    _two_weights: "has two weights",
    _by_name_too: "holds decoder.encode.norm1.fc.weight twice",
    _no_scale_behind: "no Mul behind",
    _cycle: "no Mul behind",
    _flat_lstm: "expected",
    _one_direction: "expected a bidirectional one",
    _no_bias: "missing or computed",
    _table_without_scale: "no DequantizeLinear behind",
    _flat_conv: "expected three axes",
    _no_text: "is damaged",
    _foreign: "its graph is pixels -> class, expected tokens, style, speed -> audio",
}


@pytest.mark.parametrize("change", REFUSALS, ids=lambda f: f.__name__.strip("_"))
def test_what_cannot_be_told_is_refused(change: Callable[[GraphProto], None]) -> None:
    model = export(EIGHT_BIT).model()
    change(model.graph)
    with pytest.raises(CheckpointError, match=REFUSALS[change]) as caught:
        read(model)
    assert str(caught.value).startswith("small.onnx") and "\n" not in str(caught.value)


def test_gemm_that_scales_is_refused() -> None:
    model = export(FLOAT32).model()
    node(model.graph, "Gemm").attribute.append(helper.make_attribute("alpha", 0.5))
    with pytest.raises(CheckpointError, match="does more than multiply"):
        read(model)


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1", b"\x00" * 64, b"\x3a\xff\xff\xff\x7f"])
def test_no_onnx_file_is_refused(content: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"small\.onnx"):
        read_published(content, "small.onnx")


def test_much_structure_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty nodes are two bytes each in the file, and objects in memory."""
    monkeypatch.setattr(onnx, "load_model_from_string", lambda _: pytest.fail("it was parsed"))
    monkeypatch.setattr(untrusted, "MOST_STRUCTURE", 2**20)
    nodes = b"\x0a\x00" * 2**19
    size = len(nodes)
    length = bytes([*((size >> s & 0x7F) | 0x80 for s in (0, 7, 14)), size >> 21])
    with pytest.raises(CheckpointError, match="1 MiB besides its tensors' raw data"):
        read_published(b"\x3a" + length + nodes, "bomb.onnx")


def test_large_files_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small = export(FLOAT32).model().SerializeToString()
    monkeypatch.setattr(untrusted, "MOST_BYTES", len(small) - 1)
    (tmp_path / "large.onnx").write_bytes(small)
    with pytest.raises(CheckpointError, match=r"large\.onnx has more than"):
        read_published(tmp_path / "large.onnx")


def test_one_tensor_for_many_modules_is_counted_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Export(FLOAT32)
    shared = small.tensor("shared", np.zeros((64, 64), np.float32))
    for i in range(64):
        small.node("MatMul", f"/encoder/bert/layer.{i}/MatMul", ["x", shared])
    assert len(read(small.model())) == 64
    monkeypatch.setattr(untrusted, "MOST_BYTES", 8 * 4 * 64 * 64)
    with pytest.raises(CheckpointError, match="its weights have more than"):
        read(small.model())


def test_other_files_are_never_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    model = export(EIGHT_BIT).model()
    _external(model.graph)
    content = model.SerializeToString()
    monkeypatch.setattr("builtins.open", lambda *_, **__: pytest.fail("a file was opened"))
    monkeypatch.setattr(Path, "open", lambda *_, **__: pytest.fail("a file was opened"))
    with pytest.raises(CheckpointError, match="lies in another file"):
        read_published(content, "small.onnx")


@pytest.mark.parametrize("form", [EIGHT_BIT, FLOAT32])
def test_damaged_files_never_raise_anything_else(form: str) -> None:
    """Bytes changed, lost and added at random; what still reads is float32."""
    content = export(form).model().SerializeToString()
    rng = random.Random(form)
    refused = 0
    for _ in range(1500):
        damaged = bytearray(content)
        for _ in range(rng.choice((1, 1, 2, 8))):
            at = rng.randrange(len(damaged))
            damaged[at : at + rng.choice((0, 1, 2, 16))] = rng.randbytes(rng.choice((0, 1, 1, 2)))
        if rng.random() < 0.1:
            del damaged[rng.randrange(len(damaged)) :]
        try:
            assert all(v.dtype == np.float32 for v in flat(read_published(bytes(damaged), "damaged")).values())
        except CheckpointError as error:
            refused += 1
            assert "\n" not in str(error)
    assert 100 < refused < 1500


# --- the architecture, and the real file ---------------------------------------------------------------------------------------


def test_what_is_missing_is_named_at_once() -> None:
    with pytest.raises(CheckpointError, match=r"small\.onnx does not match .* missing \(\d+\): .*bert_encoder\.weight"):
        checkpoint_from_onnx(export(EIGHT_BIT).model().SerializeToString(), "small.onnx")


def test_the_published_file(tmp_path: Path) -> None:
    content = packaged.packaged_file()
    path = tmp_path / "kokoro.onnx"
    path.write_bytes(content)
    checkpoint = load_checkpoint(path)
    path.unlink()
    assert (checkpoint.precision, checkpoint.sha256) == (EIGHT_BIT, packaged.SHA256)
    assert checkpoint.published and not checkpoint.synthetic
    linear = checkpoint.state["decoder"]["generator.m_source.l_linear.weight"]
    assert linear.flatten().tolist() == list(EXPECTED_NUMBERS)
    assert checkpoint.state["decoder"]["generator.m_source.l_linear.bias"].item() == -0.02945026010274887
    for part, values in checkpoint.state.items():
        unused = [k for k, v in values.items() if v.eq(0).all() and not k.endswith(".norm.bias")]
        assert unused == (["pooler.weight", "pooler.bias"] if part == "bert" else [])
