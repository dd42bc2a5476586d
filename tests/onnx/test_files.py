"""The files: what they say, and that nothing damaged or foreign is taken for one."""

from __future__ import annotations

import json
import shutil

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from kokoro_tvm.artifact import component_interface
from kokoro_tvm.errors import OnnxError, OutputError
from kokoro_tvm.onnx import files
from kokoro_tvm.onnx.files import Source, read_component, read_components, write_component
from kokoro_tvm.onnx.operators import OPSET
from kokoro_tvm.stages import COMPONENTS


def properties(model):
    return {p.key: p.value for p in model.metadata_props}


@pytest.mark.parametrize("name", COMPONENTS)
def test_content(tiny_onnx, tiny_checkpoint, name):
    path = tiny_onnx / f"{name}.onnx"
    onnx.checker.check_model(str(path), full_check=True)
    model = onnx.load(str(path), load_external_data=False)
    component = COMPONENTS[name]
    for specs, values in ((component.inputs, model.graph.input), (component.outputs, model.graph.output)):
        assert [v.name for v in values] == [s.name for s in specs]
        for spec, value in zip(specs, values, strict=True):
            dims = value.type.tensor_type.shape.dim
            assert [d.dim_param or d.dim_value for d in dims] == list(spec.shape)
    found = properties(model)
    assert json.loads(found["kokoro_tvm.checkpoint"])["sha256"] == tiny_checkpoint.sha256
    assert json.loads(found["kokoro_tvm.interface"]) == json.loads(json.dumps(component_interface(name)))
    assert found["kokoro_tvm.version"]
    assert {n.domain for n in model.graph.node} <= {"", "kokoro_tvm"}
    assert len({(f.name, f.overload) for f in model.functions}) == len(model.functions)


def test_shapes_are_inferred_throughout(tiny_onnx):
    """Every value between two nodes has a type and a rank, and inference of its own agrees."""
    model = onnx.shape_inference.infer_shapes(onnx.load(str(tiny_onnx / "f0n.onnx")), strict_mode=True, data_prop=True)
    known = {v.name for v in (*model.graph.value_info, *model.graph.output)}
    produced = {o for n in model.graph.node if n.domain for o in n.output}
    assert produced <= known


def test_lstm_counts_lengths(tiny_onnx):
    model = onnx.load(str(tiny_onnx / "duration.onnx"))
    nodes = [n for f in model.functions if f.name == "bilstm" for n in f.node if n.op_type == "LSTM"]
    assert nodes
    assert all(len(n.input) == 5 and n.input[4] for n in nodes)


def test_large_weights_lie_beside_the_graph(tiny_onnx):
    assert (tiny_onnx / "decoder.onnx").stat().st_size < 2**20
    assert (tiny_onnx / "decoder.onnx.data").stat().st_size > files.EXTERNAL_FROM
    assert not (tiny_onnx / "bert.onnx.data").exists()
    assert {p.name for p in tiny_onnx.iterdir()} == {*(f"{n}.onnx" for n in COMPONENTS), "decoder.onnx.data"}


def test_all_are_read(tiny_onnx, tiny_checkpoint):
    components = read_components(tiny_onnx)
    assert list(components) == list(COMPONENTS)
    assert components["decoder"].source.model == tiny_checkpoint.config
    assert isinstance(next(iter(components["decoder"].weights.values())), np.memmap)


# --- damage ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tiny_onnx, tmp_path):
    """The smallest component alone, to be changed."""
    shutil.copy(tiny_onnx / "bert.onnx", tmp_path)
    return tmp_path


@pytest.fixture
def external(tiny_onnx, tmp_path, monkeypatch):
    """The smallest component with its weights beside it."""
    monkeypatch.setattr(files, "EXTERNAL_FROM", 0)
    model = onnx.load(str(tiny_onnx / "bert.onnx"))
    source = read_component(tiny_onnx, "bert").source
    del model.metadata_props[:]
    write_component(tmp_path, "bert", model, source)
    return tmp_path


def changed(folder, change):
    path = folder / "bert.onnx"
    model = onnx.load(str(path), load_external_data=False)
    change(model)
    path.write_bytes(model.SerializeToString())


def refused(folder, *parts, name="bert"):
    with pytest.raises(OnnxError) as caught:
        read_component(folder, name)
    message = str(caught.value)
    assert "\n" not in message
    for part in ("kokoro-tvm export --format onnx", *parts):
        assert part in message, message


def edit_metadata(key, value):
    def change(model):
        found = properties(model)
        found[f"kokoro_tvm.{key}"] = value
        del model.metadata_props[:]
        helper.set_model_props(model, found)

    return change


def edit_weight(model):
    tensor = model.graph.initializer[0]
    content = bytearray(tensor.raw_data)
    content[100] ^= 1
    tensor.raw_data = bytes(content)


def rename_input(model):
    model.graph.input[1].name = "mask"
    for node in model.graph.node:
        node.input[:] = ["mask" if i == "lengths" else i for i in node.input]


def drop_lengths(model):
    del model.graph.input[1]
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT32


def newer_opset(model):
    next(o for o in model.opset_import if not o.domain).version = OPSET + 3


def other_body(model):
    model.functions[0].node[-1].op_type = "Neg"


def unknown_operator(model):
    model.graph.node[0].op_type = "fourier"


def standard_operator(model):
    model.graph.node.append(helper.make_node("Relu", ["d_en"], ["spare"]))


def other_attribute(model):
    node = next(n for n in model.graph.node if n.op_type == "attention")
    node.attribute[0].i = 5


def hostile_attribute(model):
    node = next(n for n in model.graph.node if n.op_type == "attention")
    node.attribute[0].i = 2**40


def no_heads(model):
    node = next(n for n in model.graph.node if n.op_type == "attention")
    node.attribute[0].i = 0


def swapped(model):
    norms = [n.output[0] for n in model.graph.node if n.op_type == "layer_norm"]
    encoder = next(n for n in model.graph.node if n.input[0] == norms[-1])
    encoder.input[0] = norms[-2]


def half_a_weight(model):
    model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:-4]


def integers(model):
    model.graph.initializer[0].data_type = TensorProto.INT32


CHANGES = {
    "a changed weight": (edit_weight, ["does not match its hash"]),
    "another graph": (swapped, ["does not match its hash"]),
    "another name of an input": (rename_input, ["lengths int64[B] is missing", "mask"]),
    "a missing input and another dtype": (drop_lengths, ["lengths int64[B] is missing", "input_ids int32", "be input_ids int64"]),
    "a newer opset": (newer_opset, [f"is {OPSET + 3}, expected {OPSET}"]),
    "a newer ONNX": (lambda m: setattr(m, "ir_version", 99), ["IR version 99 is newer"]),
    "another opset domain": (lambda m: m.opset_import.append(helper.make_opsetid("com.example", 1)), ["com.example"]),
    "another format": (edit_metadata("format", "7"), ["format 7, this version reads 1"]),
    "another component": (edit_metadata("component", "f0n"), ["'f0n', expected 'bert'"]),
    "another configuration": (edit_metadata("config", "{}"), ["metadata", "missing"]),
    "no JSON": (edit_metadata("checkpoint", "nobody knows"), ["metadata"]),
    "another meaning": (other_body, ["means something else"]),
    "an unknown operator": (unknown_operator, ["fourier does not belong"]),
    "an operator of ONNX": (standard_operator, ["ai.onnx::Relu does not belong"]),
    "another attribute": (other_attribute, ["means something else"]),
    "a hostile attribute": (hostile_attribute, ["cannot be understood", str(2**40)]),
    "no heads": (no_heads, ["cannot be understood"]),
    "half a weight": (half_a_weight, ["bytes, its shape needs"]),
    "integers for weights": (integers, ["is no float32"]),
    "several at once": (
        lambda m: (newer_opset(m), drop_lengths(m), half_a_weight(m)),
        ["expected 20", "is missing", "its shape needs"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES)
def test_changed_files_are_refused(folder, case):
    change, parts = CHANGES[case]
    changed(folder, change)
    refused(folder, *parts)


@pytest.mark.parametrize("kept", [0, 1, 100, 0.3, 0.999])
def test_truncated_files_are_refused(folder, kept):
    path = folder / "bert.onnx"
    content = path.read_bytes()
    path.write_bytes(content[: kept if isinstance(kept, int) else int(kept * len(content))])
    refused(folder)


@pytest.mark.parametrize("content", [b"hello", b"\x89PNG\r\n", b"\0" * 500, b"\xff" * 500], ids=repr)
def test_other_files_are_refused(folder, content):
    (folder / "bert.onnx").write_bytes(content)
    refused(folder)


def test_flipped_bits_are_noticed(folder):
    path = folder / "bert.onnx"
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for position in [*rng.integers(0, len(content), 12), 0, len(content) - 1]:
        spoiled = bytearray(content)
        spoiled[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(spoiled)
        try:
            component = read_component(folder, "bert")
        except OnnxError:
            continue
        # What means nothing to anyone, such as the producer's name, may change.
        path.write_bytes(content)
        expected = read_component(folder, "bert")
        assert component.graph == expected.graph
        assert all(np.array_equal(component.weights[k], w) for k, w in expected.weights.items())


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("../bert.onnx.data", "only bert.onnx.data beside the file"),
        ("/etc/passwd", "only bert.onnx.data beside the file"),
        ("other.data", "only bert.onnx.data beside the file"),
    ],
)
def test_weights_lie_nowhere_else(external, location, message):
    def change(model):
        for tensor in model.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = location

    changed(external, change)
    refused(external, message)


@pytest.mark.parametrize("key", ["offset", "length"])
@pytest.mark.parametrize("value", ["-64", "x", str(2**62)])
def test_places_outside_the_data_are_refused(external, key, value):
    def change(model):
        entry = next(e for t in model.graph.initializer for e in t.external_data if e.key == key)
        entry.value = value

    changed(external, change)
    refused(external)


def test_external_weights_are_read(external, tiny_onnx):
    inside, outside = read_component(tiny_onnx, "bert"), read_component(external, "bert")
    assert (external / "bert.onnx.data").stat().st_size > 0
    for name, weight in inside.weights.items():
        np.testing.assert_array_equal(outside.weights[name], weight)


def test_missing_data(external):
    (external / "bert.onnx.data").unlink()
    refused(external, "bert.onnx.data with the weights is missing")


def test_truncated_data(external):
    path = external / "bert.onnx.data"
    path.write_bytes(path.read_bytes()[:-1])
    refused(external, "truncated")


def test_changed_data(external):
    path = external / "bert.onnx.data"
    content = bytearray(path.read_bytes())
    content[200] ^= 4
    path.write_bytes(content)
    refused(external, "does not match its hash")


def test_data_behind_a_link_that_leaves(external, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "data"
    shutil.move(external / "bert.onnx.data", elsewhere)
    (external / "bert.onnx.data").symlink_to(elsewhere)
    refused(external, "leaves the folder")


# --- foreign files -----------------------------------------------------------------------------------------------------------


def whole_model(path):
    """What the public whole-model exports look like."""
    value = helper.make_tensor_value_info
    inputs = [
        value("input_ids", TensorProto.INT64, [1, "tokens"]), value("style", TensorProto.FLOAT, [1, 256]),
        value("speed", TensorProto.FLOAT, [1]),
    ]  # fmt: skip
    nodes = [helper.make_node("Identity", ["speed"], ["waveform"])]
    graph = helper.make_graph(nodes, "kokoro", inputs, [value("waveform", TensorProto.FLOAT, ["samples"])])
    onnx.save(helper.make_model(graph), str(path))


def test_a_whole_model_is_no_component(tmp_path):
    whole_model(tmp_path / "bert.onnx")
    expected = "input_ids int64[B, N], lengths int64[B]"
    refused(tmp_path, "not exported by kokoro-tvm", "input_ids, style, speed -> waveform", expected)


def test_a_folder_with_a_whole_model(tmp_path):
    whole_model(tmp_path / "model.onnx")
    with pytest.raises(OnnxError) as caught:
        read_components(tmp_path)
    for part in ("lacks bert.onnx, duration.onnx", "decoder.onnx", "model.onnx is something else", "-> waveform"):
        assert part in str(caught.value)


def test_no_folder(tmp_path):
    with pytest.raises(OnnxError, match="is no folder"):
        read_components(tmp_path / "nowhere")


def test_problems_of_several_files_are_named_together(tiny_onnx, tmp_path):
    for name in COMPONENTS:
        (tmp_path / f"{name}.onnx").symlink_to(tiny_onnx / f"{name}.onnx")
    (tmp_path / "bert.onnx").unlink()
    (tmp_path / "bert.onnx").write_bytes(b"nothing")
    with pytest.raises(OnnxError) as caught:
        read_components(tmp_path)
    assert "bert.onnx is damaged" in str(caught.value)
    assert "decoder.onnx.data with the weights is missing" in str(caught.value)


def test_components_of_different_checkpoints(tiny_onnx, tmp_path):
    original = read_component(tiny_onnx, "text_encoder")
    model = onnx.load(str(tiny_onnx / "bert.onnx"))
    del model.metadata_props[:]
    write_component(tmp_path, "bert", model, Source.of("0" * 64, "other.pth", True, original.source.model))
    shutil.copy(tiny_onnx / "text_encoder.onnx", tmp_path)
    with pytest.raises(OnnxError, match="different checkpoints"):
        read_components(tmp_path, ["bert", "text_encoder"])


# --- writing -----------------------------------------------------------------------------------------------------------------


def test_a_failure_leaves_what_was_there(folder, monkeypatch):
    before = (folder / "bert.onnx").read_bytes()
    source = read_component(folder, "bert").source

    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(onnx.checker, "check_model", fail)
    with pytest.raises(OutputError, match="cannot write"):
        write_component(folder, "bert", onnx.load(str(folder / "bert.onnx")), source)
    assert (folder / "bert.onnx").read_bytes() == before
    assert [p.name for p in folder.iterdir()] == ["bert.onnx"]


def test_a_folder_that_cannot_be_made(folder):
    with pytest.raises(OutputError, match="cannot write"):
        write_component(folder / "bert.onnx" / "below", "bert", onnx.ModelProto(), read_component(folder, "bert").source)


def test_same_program_same_bytes(folder, tmp_path):
    source = read_component(folder, "bert").source
    model = onnx.load(str(folder / "bert.onnx"))
    del model.metadata_props[:]
    again = write_component(tmp_path / "again", "bert", model, source)
    assert again.read_bytes() == (folder / "bert.onnx").read_bytes()
