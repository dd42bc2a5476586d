"""Tuning: candidates, records that compilations use, and another machine through TVM's tracker."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from kokoro_tvm import tune
from kokoro_tvm.cli.__main__ import main
from kokoro_tvm.compile import CompileOptions, compile_artifact
from kokoro_tvm.errors import ArtifactError
from kokoro_tvm.kernels import records, tile, winograd
from kokoro_tvm.kernels.conv1d import Conv1d
from kokoro_tvm.kernels.records import Record, layer_name
from kokoro_tvm.reference.checkpoint import build_model
from kokoro_tvm.runtime.engine import Engine
from kokoro_tvm.targets import cpu_target
from kokoro_tvm.tune import Layer


@pytest.fixture(scope="module")
def model(tiny_checkpoint):
    return build_model(tiny_checkpoint)


@pytest.fixture
def bench():
    with tune.local(cpu_target(), 1) as bench:
        bench.repeat = 1
        yield bench


def test_layers_have_the_rows_of_their_place(model):
    found = tune.layers(model, ["text_encoder", "f0n"], 2.0)
    rows = {layer.rows for layer in found}
    assert rows == {2 * tune.TOKENS_PER_SECOND, 2 * tune.FRAMES_PER_SECOND, 4 * tune.FRAMES_PER_SECOND}
    names = [layer_name(layer.conv) for layer in found]
    assert len(set(names)) == len(names)


def test_micro_tiles_fit_the_registers():
    for default, registers in ((tile.AVX2, 16), (tile.AVX512, 32), (tile.NEON, 32), (tile.SSE, 16)):
        found = tune.micro_tiles(default, registers)
        assert len(found) > 3
        for t in found:
            assert t.rows * t.vectors + t.vectors + 1 <= registers
            assert t.lanes == default.lanes
        assert default.rows * default.vectors <= max(t.rows * t.vectors for t in found) + 2


@pytest.mark.parametrize(
    "layer",
    [
        Layer(Conv1d(24, 40, 3, dilation=3, padding_left=3, padding_right=3, affine=True, prologue="snake", residuals=2), 50),
        Layer(Conv1d(16, 96, 2, padding_left=1, padding_right=1, phases=2, crop=1, prologue="leaky", residuals=1), 31),
    ],
    ids=["dilated", "transposed"],
)
def test_every_tile_gives_the_same_samples(layer, bench):
    inputs = tune.example(layer)
    _, truth = bench.run(layer, bench.target.tile, inputs)
    assert np.abs(truth).max() > 0.1
    conv = layer.conv
    tiles = [t for t in tune.micro_tiles(bench.target.tile, 16) if conv.phases == 1 or conv.c_out % t.width == 0]
    assert len(tiles) > 2
    one = tiles[1]  # tasks and lanes are no business of rows and vectors: one tile shows for all that they change nothing either
    changed = [dataclasses.replace(one, columns=one.width), dataclasses.replace(one, lanes=one.lanes // 2)]
    for other in (*tiles, *changed, tune._sized(one, one.vectors, one.rows, 24)):
        _, result = bench.run(layer, other, inputs)
        assert np.array_equal(result, truth), other


def test_every_tile_of_a_scheme_gives_the_same_samples(bench):
    layer = Layer(Conv1d(24, 40, 7, dilation=2, padding_left=6, padding_right=6, affine=True, prologue="snake", residuals=1), 61)
    inputs = tune.example(layer)
    ways = tune.schemes(layer.conv, bench.target.tile)
    assert [w.scheme for w in ways] == ["direct", "winograd:3,2x4,4", "winograd:4,2x4,4"]
    _, direct = bench.run(layer, ways[0], inputs)
    for way in ways[1:]:
        _, truth = bench.run(layer, way, inputs)
        assert not np.array_equal(truth, direct)
        assert np.abs(truth - direct).max() < 1e-4 * np.abs(direct).max()
        for other in (tune.micro_tiles(way, 16)[0], tune._sized(way, way.vectors, way.rows, 24)):
            _, result = bench.run(layer, other, inputs)
            assert np.array_equal(result, truth), other


def test_the_walk_leads_through_schemes(bench, monkeypatch):
    layer = Layer(Conv1d(64, 64, 3), 8)
    result = np.ones((1, 6, 64), np.float32)
    seconds = {"direct": 3.0, "winograd:6,3": 2.0, "winograd:4,3": 1.0}
    timed = lambda t: seconds[t.scheme] * (0.5 if t.block % 48 == 0 else 1)  # noqa: E731
    monkeypatch.setattr(tune.Bench, "run", lambda self, la, t, inputs: (timed(t), result))
    monkeypatch.setattr(tune.Bench, "compare", lambda self, la, tiles, inputs: [timed(t) for t in tiles])
    record = tune.tune_layer(layer, bench)
    assert (record.scheme, record.block % 48, record.seconds) == ("winograd:4,3", 0, 0.5)
    assert winograd.choice(layer.conv, tune.named(layer.conv, bench.target.tile)).name == "winograd:6,3"


def test_processor_time(monkeypatch):
    """What others do while a kernel runs does not count."""
    layer = Layer(Conv1d(8, 8, 1), 8)
    with tune.local(cpu_target(), 1, "cpu") as bench:
        call, arrays = bench.prepare(layer, tune.named(layer.conv, bench.target.tile), tune.example(layer))
        assert arrays[-1].numpy().any()
        now = iter((1.0, 1.25))
        monkeypatch.setattr(tune.time, "thread_time", lambda: next(now))
        assert call() == 0.25


def test_a_wrong_candidate_is_a_bug(bench, monkeypatch):
    layer = Layer(Conv1d(8, 8, 1), 8)
    run = tune.Bench.run

    def spoiled(self, la, t, inputs):
        seconds, result = run(self, la, t, inputs)
        return seconds, result if t == tune.named(la.conv, self.target.tile.fitted(la.conv.c_out)) else result * 1.001

    monkeypatch.setattr(tune.Bench, "run", spoiled)
    with pytest.raises(RuntimeError, match="differs from the default"):
        tune.tune_layer(layer, bench)


@pytest.mark.parametrize(("factor", "recorded"), [(0.5, True), (0.99, False), (1.5, False)])
def test_only_a_gain_is_recorded(factor, recorded, bench, monkeypatch):
    layer = Layer(Conv1d(8, 8, 1), 8)
    result = np.ones((1, 8, 8), np.float32)
    default = tune.named(layer.conv, bench.target.tile.fitted(8))
    monkeypatch.setattr(tune.Bench, "run", lambda self, la, t, inputs: (1.0 if t == default else factor, result))
    monkeypatch.setattr(tune.Bench, "compare", lambda self, la, tiles, inputs: [1.0 if t == default else factor for t in tiles])
    record = tune.tune_layer(layer, bench)
    assert (record is not None) == recorded
    if record:
        assert (record.layer, record.seconds, record.default_seconds) == (layer_name(layer.conv), factor, 1.0)


@pytest.fixture
def records_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("KOKORO_TVM_TUNING", str(tmp_path / "records"))
    return tmp_path / "records"


def test_compilations_use_the_records(tiny_checkpoint, tiny_artifact, model, records_folder, tmp_path):
    """Other widths, other packed weights, the same bits; and no mix of two tunings."""
    from kokoro_tvm.validate.operators import load_operators

    target = cpu_target()
    layers = tune.layers(model, ["text_encoder"], 1.0)
    made = [Record(layer_name(x.conv), "direct", 8, 1, 7, 14, 64, 1.0, 2.0) for x in layers]
    records.write(records.user_file(target.mcpu), made, {})
    folder = tmp_path / "tuned"
    manifest = compile_artifact(["text_encoder"], tiny_checkpoint, CompileOptions.resolve(tiny_checkpoint), folder)
    assert manifest.tuning == cpu_target().tile.tuning != ""
    ids, lengths = np.array([[0, 5, 6, 7, 8, 9, 0]]), np.array([7])
    results = [Engine(f, 1, components=["text_encoder"]).run("text_encoder", ids, lengths)[0] for f in (folder, tiny_artifact)]
    assert np.array_equal(*results)
    sizes = [(f / "text_encoder.so").read_bytes() for f in (folder, tiny_artifact)]
    assert sizes[0] != sizes[1]
    with pytest.raises(ArtifactError, match="other tuning records"):
        load_operators(tiny_artifact, "text_encoder", model)
    with pytest.raises(ArtifactError, match="tuning"):
        records.user_file(target.mcpu).unlink()
        compile_artifact(["bert"], tiny_checkpoint, CompileOptions.resolve(tiny_checkpoint), folder)


def test_another_machine(tiny_checkpoint_dir, records_folder, tmp_path, capfd, monkeypatch):
    """A tracker and a server of this machine stand in for it; a few candidates show the way there and back."""
    from tvm import rpc
    from tvm.rpc.tracker import Tracker

    every = tune.micro_tiles
    monkeypatch.setattr(tune, "micro_tiles", lambda *arguments: every(*arguments)[:2])
    monkeypatch.setattr(tune, "BLOCKS", tune.BLOCKS[:1])
    tracker = Tracker("127.0.0.1", port=9190, port_end=9290, silent=True)
    server = rpc.Server("127.0.0.1", 9091, 9189, key="lent", tracker_addr=("127.0.0.1", tracker.port), silent=True)
    path = tmp_path / "lent.json"
    arguments = ["--component", "text_encoder", "--most", "1", "--seconds", "0.5", "--threads", "1", "--mcpu", cpu_target().mcpu]
    arguments += ["--config", tiny_checkpoint_dir / "config.json", "-o", path]
    try:
        address = f"127.0.0.1:{tracker.port}"
        assert main(["tune", *map(str, arguments), "--rpc", address, "--key", "lent"]) == 0, capfd.readouterr().err
    finally:
        server.terminate()
        tracker.terminate()
    assert records.read(path) is not None
    assert str(path) in capfd.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--rpc", "here:1"], "--rpc, --key and --mcpu go together"),
        (["--rpc", "here", "--key", "a", "--mcpu", "x86-64-v3"], "host:port"),
        (["--rpc", "127.0.0.1:1", "--key", "a", "--mcpu", "x86-64-v3"], "no machine 'a' from the tracker"),
        (["--mcpu", "apple-m1"], "give --rpc and --key"),
        (["--mcpu", "pentium9"], "unknown CPU"),
        (["--component", "brain"], "unknown component"),
        (["--threads", "0"], "above 0"),
        (["--clock", "cpu"], "cpu with --threads 1"),
        (["--only", "("], "no regular expression"),
    ],
)
def test_mistakes(arguments, expected, tiny_checkpoint_dir, records_folder, tmp_path, capfd):
    output = tmp_path / "precious.json"
    output.write_text("precious")
    common = ["--config", str(tiny_checkpoint_dir / "config.json"), "-o", str(output)]
    assert main(["tune", "--component", "text_encoder", *common, *arguments]) == 2
    lines = capfd.readouterr().err.strip().splitlines()
    assert expected in lines[-1]
    assert output.read_text() == "precious"
