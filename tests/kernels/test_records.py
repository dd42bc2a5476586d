"""Tuning records: files, and the tiles they make."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from kokoro_tvm.errors import InputError
from kokoro_tvm.kernels import conv1d, records, tile
from kokoro_tvm.kernels.conv1d import Conv1d
from kokoro_tvm.kernels.packing import pack
from kokoro_tvm.kernels.records import Record
from kokoro_tvm.targets import cpu_target

CONV = Conv1d(128, 128, 3, dilation=5, affine=True, prologue="snake", residuals=1)
RECORD = Record(
    records.layer_name(CONV), "direct", lanes=8, vectors=1, rows=12, block=48, columns=128, seconds=1.0, default_seconds=2.0
)


def test_names_tell_layers_apart():
    assert RECORD.layer == "128-128-k3-s1-d5-p1-snake-affine-r1"
    changes = [
        {"c_in": 64}, {"c_out": 64}, {"taps": 5}, {"stride": 2}, {"dilation": 1}, {"phases": 2}, {"affine": False},
        {"prologue": "none"}, {"residuals": 2}, {"epilogue": "gelu"}, {"accumulate": "compensated"},
        {"products": "bfloat16"},
    ]  # fmt: skip
    names = {records.layer_name(dataclasses.replace(CONV, **c)) for c in changes}
    assert len(names | {RECORD.layer}) == len(changes) + 1
    assert records.layer_name(dataclasses.replace(CONV, scale=0.5, slope=0.1)) == RECORD.layer


def test_file_and_back(tmp_path):
    path = tmp_path / "cpu.json"
    records.write(path, [RECORD], {"mcpu": "cpu"})
    assert records.read(path) == [RECORD]
    assert json.loads(path.read_text())["about"] == {"mcpu": "cpu"}


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema": 9}', '{"schema": 2, "records": [{"layer": 1}]}'])
def test_damaged_file(content, tmp_path):
    path = tmp_path / "cpu.json"
    path.write_text(content)
    with pytest.raises(InputError, match="tune again"):
        records.read(path)


@pytest.mark.parametrize(
    ("default", "channels", "sizes"),
    [
        (tile.AVX512, 22, (8, 3, 5)), (tile.AVX512, 1, (8, 1, 16)), (tile.AVX512, 26, (16, 2, 8)), (tile.AVX512, 50, (16, 2, 8)),
        (tile.AVX2, 22, (8, 3, 4)), (tile.AVX2, 1090, (8, 2, 6)), (tile.NEON, 22, (4, 6, 4)), (tile.SSE, 22, (4, 2, 4)),
    ],
)  # fmt: skip
def test_few_channels_get_a_tile_that_they_fill(default, channels, sizes):
    fitted = default.best("layer", channels=channels)
    assert (fitted.lanes, fitted.vectors, fitted.rows) == sizes
    assert fitted.block % fitted.rows == 0
    assert fitted.packed == default.packed


def test_a_recorded_layer_gets_its_tile_and_others_the_default():
    tuned = records.with_records(tile.AVX2, [RECORD])
    assert tuned.best(RECORD.layer) == tile.Tile(8, 1, 12, 48, 128, "direct", tile.AVX2.packed)
    sums = dataclasses.replace(RECORD, layer=RECORD.layer + "-compensated")
    tuned_sums = records.with_records(tile.AVX512, [sums])
    assert tuned_sums.best(sums.layer).ends == tile.AVX512.compensated.ends
    assert tuned_sums.best("another", compensated=True) is tile.AVX512.compensated
    assert tuned.best("another") is tuned
    assert tile.SSE.best("another", compensated=True) is tile.SSE
    assert (tuned.lanes, tuned.vectors, tuned.rows, tuned.block) == (8, 2, 6, 192)
    assert tuned.best(RECORD.layer, channels=1) == tuned.best(RECORD.layer)
    assert tile.AVX2.tuning == ""
    assert len(tuned.tuning) == 12
    assert tuned.tuning != records.with_records(tile.AVX2, [dataclasses.replace(RECORD, rows=6)]).tuning


def test_records_that_fit_no_cpu():
    with pytest.raises(InputError, match=r"block 48 is not a multiple of rows 7; tune again"):
        records.with_records(tile.AVX2, [dataclasses.replace(RECORD, rows=7)])


def test_the_user_s_records_are_found(tmp_path, monkeypatch):
    default = cpu_target().tile
    monkeypatch.setenv("KOKORO_TVM_TUNING", str(tmp_path))
    assert cpu_target().tile == default
    records.write(records.user_file(cpu_target().mcpu), [RECORD], {})
    assert cpu_target().tile.best(RECORD.layer).rows == 12
    assert cpu_target(mcpu="x86-64-v2").tile.best(RECORD.layer) == cpu_target(mcpu="x86-64-v2").tile
    records.user_file(cpu_target().mcpu).write_text("{")
    with pytest.raises(InputError, match="or remove it"):
        cpu_target()


def test_shipped_records_can_be_read():
    for path in records.SHIPPED.glob("*.json"):
        assert records.with_records(cpu_target(mcpu=path.stem).tile, records.read(path)).tuned


def test_layouts_of_another_width():
    weight = np.arange(4 * 6 * 2, dtype=np.float32).reshape(4, 6, 2)
    assert (pack("conv1d@3", weight, tile.AVX2) == conv1d.pack_weight(weight, 3)).all()
    assert (pack("transposed:2@3", weight, tile.AVX2) == conv1d.pack_transposed_weight(weight, 2, 3)).all()
    assert pack("bias@3", np.ones(4, np.float32), tile.AVX2).shape == (6,)
    assert pack("bias", np.ones(4, np.float32), tile.AVX2).shape == (16,)
