"""What kernels are, how much work they are, and what this CPU can do."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from torch.utils.flop_counter import FlopCounterMode

from kokoro_tvm.artifact import aligned_empty
from kokoro_tvm.bench import peaks, profile, work
from kokoro_tvm.bench.profile import MACHINE
from kokoro_tvm.cli.__main__ import main
from kokoro_tvm.targets import cpu_target

# --- operations --------------------------------------------------------------------------------------------------------------


def test_convolution_is_what_pytorch_counts():
    counter = FlopCounterMode(display=False)
    with counter:
        torch.nn.functional.conv1d(torch.zeros(1, 5, 30), torch.zeros(7, 5, 3), stride=2, padding=1)
    shapes = {"x": (None, None, 5), "weight": (7, 5, 3)}
    assert work.operations("conv1d", shapes, {"stride": 2, "dilation": 1}, [30]) == counter.get_total_flops()
    assert work.operations("conv1d", shapes, {"stride": 1}, [30, 10]) == 2 * 40 * 7 * 5 * 3


def test_transposed_convolution_is_what_pytorch_counts():
    counter = FlopCounterMode(display=False)
    with counter:
        torch.nn.functional.conv_transpose1d(torch.zeros(1, 5, 30), torch.zeros(5, 7, 12), stride=6, padding=3)
    assert work.operations("conv_transpose1d", {"weight": (5, 7, 12)}, {"stride": 6}, [30]) == counter.get_total_flops()


def test_products():
    lstm = {"x": (None, None, 6), "w_ih": (2, 16, 6), "w_hh": (2, 16, 4)}
    whole = work.operations("bilstm", lstm, {}, [5, 3])
    assert whole == 2 * 8 * 2 * 16 * (6 + 4)
    parts = [work.operations("bilstm", lstm, {}, [5, 3], part) for part in ("conv1d", "bilstm")]
    assert sum(parts) == whole
    assert work.operations("attention", {"qkv": (None, None, 3 * 8)}, {"heads": 2}, [5]) == 2 * 2 * 5 * 5 * 8
    assert work.operations("style_linear", {"weight": (9, 4)}, {}, [1, 1]) == 2 * 2 * 9 * 4
    assert work.operations("adain", {}, {}, [100]) == 0


def test_kinds():
    assert work.kind("conv1d", {"weight": (4, 4, 3)}) == work.CONVOLUTION
    assert work.kind("conv1d", {"weight": (4, 4, 1)}) == work.PRODUCT
    assert work.kind("adain", {}) == work.REST


# --- peaks -------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library():
    target = cpu_target()
    kernels = {"fma": peaks.fma_kernel(target.tile.lanes, 3), "triad": peaks.triad_kernel(target.tile.lanes)}
    module = tvm.IRModule({name: f.with_attr("global_symbol", name) for name, f in kernels.items()})
    return target.tile.lanes, tvm.compile(module, target=target.tvm_target())


def aligned(values):
    array = aligned_empty(values.shape, np.float32)
    array[...] = values
    return array


def test_the_peak_kernel_does_its_work(library):
    lanes, kernels = library
    x = aligned(np.stack([np.full(lanes, 0.5), np.arange(lanes)]))
    y = aligned(np.ones((2, peaks.CHAINS, lanes)))
    expected = y.copy()
    for _ in range(8 * 3):
        expected = expected * x[0] + x[1]
    kernels["fma"](tvm_ffi.from_dlpack(x), tvm_ffi.from_dlpack(y))
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_the_triad_does_its_work(library):
    lanes, kernels = library
    rng = np.random.default_rng(0)
    b, c, a = (aligned(rng.normal(size=(2, 5, lanes))) for _ in range(3))
    kernels["triad"](*map(tvm_ffi.from_dlpack, (b, c, a)), 2)
    np.testing.assert_allclose(a, b + 3 * c, rtol=1e-6, atol=1e-6)


def test_peaks_are_those_of_a_cpu():
    meter = peaks.Meter(1)
    before = len(meter.readings)
    meter.read()
    assert len(meter.readings) == before + 1
    found = meter.peaks()
    assert found.threads == 1
    assert 1 < found.gflops <= found.best < 1000
    assert 0.1 < found.memory < 1000
    assert 0.1 < found.cache < 10000


# --- the command -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def quick_peaks(monkeypatch):
    class Meter:
        def __init__(self, threads, clock):
            self.threads, self.read = threads, lambda: None

        def peaks(self):
            return peaks.Peaks(self.threads, 100.0, 110.0, 50.0, 10.0)

    monkeypatch.setattr(peaks, "Meter", Meter)


def test_every_kernel_of_every_component(tiny_artifact, tmp_path, quick_peaks, capfd):
    paths = [tmp_path / "a.json", tmp_path / "a.svg"]
    arguments = ["--artifact", tiny_artifact, "--seconds", 0.6, "--threads", 1, "--runs", 2, "--cache", tmp_path / "plans"]
    assert main(["profile", *map(str, arguments), "--json", str(paths[0]), "--picture", str(paths[1])]) == 0
    out = capfd.readouterr().out
    assert "neither convolution nor matrix product" in out
    raw = json.loads(paths[0].read_text())
    kernels = raw["kernels"]
    assert {k["component"] for k in kernels} == {"bert", "duration", "text_encoder", "f0n", "decoder"}
    for operator in ("conv1d", "conv_transpose1d", "bilstm", "attention", "adain", "istft", "harmonic_source", MACHINE):
        assert [k for k in kernels if operator in (k["operator"], k["kind"])], operator
    assert all(k["seconds"] > 0 and k["calls"] > 0 for k in kernels)
    counted = {"conv1d", "conv_transpose1d", "bilstm", "attention", "style_linear"}
    assert all((k["operations"] > 0) == (k["operator"] in counted) for k in kernels)
    assert all((k["bytes"] > 0) == (k["kind"] != MACHINE) for k in kernels)
    assert sum(raw["shares"].values()) == pytest.approx(1)
    known = {"conv1d", "shape_func"} | counted
    strangers = [k["name"] for k in kernels if k["kind"] == MACHINE and k["operator"] in known - {"shape_func"}]
    assert not strangers, "kernels that belong to no operator"
    assert "<svg" in paths[1].read_text()


def test_one_component(tiny_artifact, tmp_path, quick_peaks, capfd):
    arguments = ["--artifact", tiny_artifact, "--component", "text_encoder", "--seconds", 0.6, "--runs", 1, "--threads", 1]
    arguments += ["--clock", "cpu"]
    path = tmp_path / "a.json"
    assert main(["profile", *map(str, arguments), "--cache", str(tmp_path), "--json", str(path)]) == 0
    raw = json.loads(path.read_text())
    assert {k["component"] for k in raw["kernels"]} == {"text_encoder"} == raw["plain"].keys()
    convolutions = [k for k in raw["kernels"] if k["operator"] == "conv1d"]
    assert convolutions
    assert all(k["of_peak"] == pytest.approx(k["gflops"] / 100.0) for k in convolutions)


def test_numbered_kernels_have_one_name():
    assert [profile._base(n) for n in ("conv1d", "conv1d12", "to_rows3", "kokoro_tvm.bilstm", "vm.builtin.copy")] == [
        "conv1d", "conv1d", "to_rows", "bilstm", "copy",
    ]  # fmt: skip
