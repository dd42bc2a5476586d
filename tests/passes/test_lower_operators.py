"""The lowering pass: before and after, on modules of one operator."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx

from kokoro_tvm.kernels import conv1d
from kokoro_tvm.kernels import tile as tiles
from kokoro_tvm.kernels.conv1d import Conv1d
from kokoro_tvm.kernels.metal.tile import APPLE
from kokoro_tvm.kernels.records import layer_name
from kokoro_tvm.passes.lower_operators import PACKING, LowerOperators
from kokoro_tvm.passes.pipeline import pipeline
from kokoro_tvm.stages import COMPONENTS

B, N = tirx.Var("B", "int64"), tirx.Var("N", "int64")


def _tensor(name, *shape, dtype="float32"):
    return relax.Var(name, relax.TensorType(shape, dtype))


def _module(calls, inputs):
    """A function that makes the calls in order, each the first input of the next; the last one is the result."""
    builder = relax.BlockBuilder()
    with builder.function("main", inputs):
        with builder.dataflow():
            value = inputs[0]
            for name, arguments, attributes, shape in calls:
                tensors = [value, *arguments, tvm.ir.StringImm(json.dumps(attributes))]
                out = relax.TensorType(shape, "float32")
                value = builder.emit(relax.call_dps_packed(f"kokoro_tvm.{name}", relax.Tuple(tensors), out))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return builder.get()


CONV = {
    "absent": ["coef", "alpha", "residual", "residual2"], "stride": 1, "dilation": 1, "padding": 1, "prologue": "none",
    "slope": 0.0, "residual_shift": 0, "scale": 1.0, "epilogue": "none",
}  # fmt: skip


def _convolutions(count=1):
    lengths, weight, bias = _tensor("lengths", B, dtype="int64"), _tensor("weight", 8, 8, 3), _tensor("bias", 8)
    call = ("conv1d", [lengths, weight, bias], CONV, (B, N, 8))
    return _module([call] * count, [_tensor("x", B, N, 8), lengths, weight, bias])


def _lstm():
    lengths = _tensor("lengths", B, dtype="int64")
    weights = [_tensor("w_ih", 2, 32, 6), _tensor("w_hh", 2, 32, 8), _tensor("b_ih", 2, 32), _tensor("b_hh", 2, 32)]
    return _module([("bilstm", [lengths, *weights], {"absent": []}, (B, N, 16))], [_tensor("x", B, N, 6), lengths, *weights])


def _calls(module):
    names = []
    relax.analysis.post_order_visit(
        module["main"], lambda e: names.append(e) if isinstance(e, relax.Call) and isinstance(e.op, tvm.ir.Op) else None
    )
    return [(c.op.name, str(getattr(c.args[0], "global_symbol", getattr(c.args[0], "name_hint", "")))) for c in names]


def test_operator_becomes_its_kernel_and_weights_their_layout():
    lowered = LowerOperators(tiles.AVX2)(_convolutions())
    assert _calls(lowered) == [("relax.call_tir", "conv1d")]
    main = lowered["main"]
    assert json.loads(main.attrs[PACKING]) == {"weight": "conv1d@8", "bias": "bias@8"}  # a tile as narrow as the layer
    shapes = {p.name: [int(d) for d in p.ty.shape.values] for p in main.params[2:]}
    assert shapes == {"weight": [1, 3, 8, 8], "bias": [8]}


@pytest.mark.parametrize(
    ("taps", "layout", "products"),
    [(3, "winograd:6,3", 8), (7, "winograd:4,2x4,4", 34), (11, "winograd:4,3x4,4", 41), (5, "conv1d", 5)],
)
def test_convolution_gets_the_scheme_that_pays(taps, layout, products):
    lengths, weight, bias = _tensor("lengths", B, dtype="int64"), _tensor("weight", 64, 64, taps), _tensor("bias", 64)
    call = ("conv1d", [lengths, weight, bias], CONV | {"padding": taps // 2}, (B, N, 64))
    lowered = LowerOperators(tiles.AVX2)(_module([call], [_tensor("x", B, N, 64), lengths, weight, bias]))
    assert _calls(lowered) == [("relax.call_tir", layout.split(":")[0])]
    assert json.loads(lowered["main"].attrs[PACKING])["weight"] == layout
    assert [int(d) for d in lowered["main"].params[2].ty.shape.values] == [4, products, 64, 16]


def _named(name, taps, channels=64):
    """A convolution in the function of a component."""
    lengths, weight = _tensor("lengths", B, dtype="int64"), _tensor("weight", channels, channels, taps)
    bias, attributes = _tensor("bias", channels), CONV | {"padding": taps // 2}
    inputs = [_tensor("x", B, N, channels), lengths, weight, bias]
    module = _module([("conv1d", [lengths, weight, bias], attributes, (B, N, channels))], inputs)
    return tvm.IRModule({name: module["main"].with_attr("global_symbol", name)})


@pytest.mark.parametrize(
    ("component", "taps", "layout", "dtype"),
    [
        ("decoder", 3, "winograd-bf16:4,3", "uint16"),
        ("decoder", 11, "winograd-bf16:3,3x4,4", "uint16"),
        ("decoder", 1, "conv1d", "float32"),
        ("text_encoder", 3, "winograd:6,3", "float32"),
        ("f0n", 3, "conv1d@16", "float32"),
    ],
)
def test_bf16_rounds_in_the_decoder_alone(component, taps, layout, dtype):
    module = _named(component, taps)
    lowered = LowerOperators(tiles.AVX512, dtype="bf16")(module)[component]
    assert json.loads(lowered.attrs[PACKING])["weight"] == layout
    assert lowered.params[2].ty.dtype == dtype
    usual = LowerOperators(tiles.AVX512)(module)[component]
    assert usual.params[2].ty.dtype == "float32"
    if dtype == "uint16":
        # Words of two input channels, and two values for every one of 32 output channels.
        assert [int(d) for d in lowered.params[2].ty.shape.values][2:] == [32, 64]


@pytest.mark.parametrize(
    ("component", "channels", "layout", "dtype"),
    [("decoder", 64, "conv1d-fp16", "float16"), ("decoder", 22, "conv1d", "float32"), ("text_encoder", 64, "conv1d", "float32")],
)
def test_fp16_rounds_wide_convolutions_of_the_decoder_alone(component, channels, layout, dtype):
    lowered = LowerOperators(APPLE, "tir", "fp16")(_named(component, 3, channels))[component]
    assert json.loads(lowered.attrs[PACKING])["weight"] == layout
    assert lowered.params[2].ty.dtype == dtype
    assert lowered.params[3].ty.dtype == "float32"


def test_sums_in_float64_stay_direct():
    # f0n is summed in float64 by name.
    lengths, weight, bias = _tensor("lengths", B, dtype="int64"), _tensor("weight", 64, 64, 3), _tensor("bias", 64)
    module = _module([("conv1d", [lengths, weight, bias], CONV, (B, N, 64))], [_tensor("x", B, N, 64), lengths, weight, bias])
    renamed = tvm.IRModule({"f0n": module["main"].with_attr("global_symbol", "f0n")})
    assert json.loads(LowerOperators(tiles.AVX2)(renamed)["f0n"].attrs[PACKING])["weight"] == "conv1d"


def test_equal_operators_share_one_kernel():
    lowered = LowerOperators(tiles.AVX2)(_convolutions(3))
    assert _calls(lowered) == [("relax.call_tir", "conv1d")] * 3
    assert len(lowered.functions) == 2


def test_weight_in_two_layouts_is_refused():
    lengths, weight, bias = _tensor("lengths", B, dtype="int64"), _tensor("weight", 16, 16, 4), _tensor("bias", 16)
    transposed = {"absent": ["residual"], "stride": 2, "padding": 1, "reflect": 0, "slope": 0.1}
    convolution = CONV | {"padding": 0}
    module = _module(
        [("conv1d", [lengths, weight, bias], convolution, (B, N, 16)),
         ("conv_transpose1d", [lengths, weight, bias], transposed, (B, N * 2, 16))],
        [_tensor("x", B, N, 16), lengths, weight, bias],
    )  # fmt: skip
    with pytest.raises(RuntimeError, match="is needed as conv1d and as transposed:2"):
        LowerOperators(tiles.AVX2)(module)


def test_lstm_method():
    extern = LowerOperators(tiles.AVX2, "extern")(_lstm())
    assert _calls(extern)[0][0] == "relax.call_dps_packed"
    assert _calls(extern)[0][1].startswith("kokoro_tvm.bilstm")
    tir = LowerOperators(tiles.AVX2, "tir")(_lstm())
    assert [name for op, name in _calls(tir) if op == "relax.call_tir"] == ["conv1d", "bilstm"]
    assert json.loads(tir["main"].attrs[PACKING]) == {"w_ih": "gates", "w_hh": "recurrent"}


def test_sums_follow_the_component():
    """What F0 depends on is summed with compensation, its LSTM's projection apart from the recurrence."""
    module = _lstm()
    module = tvm.IRModule({"duration": module["main"].with_attr("global_symbol", "duration")})
    lowered = LowerOperators(tiles.AVX2, "extern")(module)
    assert _calls({"main": lowered["duration"]})[-2:] == [
        ("relax.call_tir", "conv1d"), ("relax.call_dps_packed", "kokoro_tvm.bilstm_recurrence")
    ]  # fmt: skip
    for accumulate in ("compensated", "float32"):
        conv = Conv1d(6, 64, 1, accumulate=accumulate)
        kernel = conv1d.kernel(conv, tiles.AVX2.best(layer_name(conv), accumulate == "compensated"))
        same = tvm_ffi.structural_equal(kernel.body, lowered["conv1d"].body, map_free_vars=True)
        assert same == (accumulate == COMPONENTS["duration"].accumulate)


def test_unknown_operators_are_left_alone():
    lengths = _tensor("lengths", B, dtype="int64")
    module = _module([("mystery", [lengths], {"absent": []}, (B, N, 8))], [_tensor("x", B, N, 8), lengths])
    assert _calls(LowerOperators(tiles.AVX2)(module)) == [("relax.call_dps_packed", "kokoro_tvm.mystery")]


def test_pipeline_dumps_and_announces_every_phase_and_runs(tmp_path):
    heard = []
    target = tvm.target.Target({"kind": "llvm"})
    module = _convolutions()
    executable = relax.build(module, target=target, relax_pipeline=pipeline(tiles.SSE, "extern", tmp_path, heard.append))
    assert heard == ["kernels", "virtual machine", "machine code"]
    dumps = sorted(p.name for p in tmp_path.iterdir())
    assert dumps == ["0_imported.py", "1_kernels.py", "2_lowered.py"]
    assert "kokoro_tvm.conv1d" in (tmp_path / "0_imported.py").read_text()
    assert "def conv1d" in (tmp_path / "1_kernels.py").read_text()
    from kokoro_tvm.kernels.packing import pack

    rng = np.random.default_rng(0)
    x, weight, bias = (rng.standard_normal(s).astype(np.float32) for s in ((1, 5, 8), (8, 8, 3), (8,)))
    packed = [pack(name, w, tiles.SSE) for name, w in (("conv1d", weight), ("bias", bias))]
    machine = relax.VirtualMachine(executable, tvm.cpu())
    y = machine["main"](*(tvm.runtime.tensor(a) for a in (x, np.array([5]), *packed))).numpy()
    padded = np.pad(x[0], ((1, 1), (0, 0))).astype(np.float64)
    expected = sum(padded[k : k + 5] @ weight[:, :, k].T for k in range(3)) + bias
    np.testing.assert_allclose(y[0], expected, rtol=1e-5, atol=1e-5)
