"""``validate_steps --device metal-emulated``: sound kernels pass, a changed one is named, and what is left out does not pass."""

from __future__ import annotations

import json
import math
import platform
from dataclasses import replace

import pytest

from kokoro_tvm.cli import validate_steps
from kokoro_tvm.errors import ArtifactError, InputError
from kokoro_tvm.runtime.engine import Engine
from kokoro_tvm.runtime.synthesis import Synthesizer
from kokoro_tvm.stages import COMPONENTS
from kokoro_tvm.validate import emulated, steps
from kokoro_tvm.validate.lock_step import Call, Comparison, worst
from kokoro_tvm.validate.report import emulated_dict, lock_step_rows
from kokoro_tvm.validate.workbench import Workbench

COMPONENT = "text_encoder"
emulates = pytest.mark.skipif(platform.system() != "Linux", reason="the emulator needs Linux")


@pytest.fixture
def options(tiny_checkpoint, tmp_path):
    return [
        "--device", "metal-emulated", "--checkpoint", tiny_checkpoint.source, "--component", COMPONENT, "--phonemes", "ə",
        "--save-dir", str(tmp_path / "out"), "--json", str(tmp_path / "out.json"),
    ]  # fmt: skip


@emulates
def test_sound_kernels_pass(options, tmp_path, capsys):
    assert validate_steps.main(options) == 0
    (found,) = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["utterances"]
    calls = found["lock_step"][COMPONENT]["calls"]
    assert {c["kernel"].rstrip("0123456789") for c in calls} >= {"embed", "conv1d", "layer_norm", "bilstm", "to_columns"}
    assert max(c["error"] for c in calls) <= 1e-5
    assert {r["tensor"] for r in found["stages"]["records"]} >= {"text_encoder.lstm", "t_en"}
    assert (tmp_path / "out" / "report.html").is_file()
    printed = capsys.readouterr().out
    assert "not judged" in printed, "only one of five components was"
    tables = [line for line in printed.splitlines() if line.startswith((COMPONENT, "  t_en", "tensor", "component"))]
    assert len(tables) > 5
    assert all(len(line.rstrip()) <= 80 and "…" not in line for line in tables)


@emulates
def test_a_changed_kernel_is_named(options, tmp_path, capsys, monkeypatch):
    from metal_emulator import replace_once

    edit = replace_once("layer_norm", r"2\.000000e-01f", "2.010000e-01f")  # the slope of its activation
    monkeypatch.setitem(emulated.MODES, "random", {"order": "random", "seed": 3, "edit": edit})
    assert validate_steps.main(options) == 1
    assert "text_encoder: layer_norm, call" in capsys.readouterr().out
    content = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert content["passed"] is False
    failed = [c["kernel"] for c in content["utterances"][0]["lock_step"][COMPONENT]["calls"] if not c["passed"]]
    assert [k.rstrip("0123456789") for k in failed] == ["layer_norm"], "each call answers for its own error"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--component", "vocoder"], "unknown component 'vocoder'"),
        (["--mode", "sideways"], "unknown mode 'sideways'"),
        (["--frames", "-1"], "--frames must be 0 (all) or more"),
        (["--bisect", "bert"], "--bisect: not with --device metal-emulated"),
        (["--device", "cpu"], "--component: not with --device cpu"),
    ],
)
def test_mistakes_are_one_line(options, more, message, capsys):
    assert validate_steps.main([*options, *more]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_no_emulator(options, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("KOKORO_TVM_METAL_EMULATION", str(tmp_path))
    assert validate_steps.main(options) == 2
    error = capsys.readouterr().err
    assert "has no Metal emulator" in error and "source checkout" in error and "clang" in error
    assert error.count("\n") == 1


def test_no_clang(options, tmp_path, capsys, monkeypatch):
    from metal_emulator import toolchain

    toolchain.clang.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    try:
        assert validate_steps.main(options) == 2
    finally:
        toolchain.clang.cache_clear()
    error = capsys.readouterr().err
    assert toolchain.CLANG in error
    assert error.count("\n") == 1


# --- what does not pass ------------------------------------------------------------------------------------------------------

GOOD = Comparison(COMPONENT, [Call("conv1d3", 1e-6, 1e-5), Call("to_rows", 0.0, 0.0)], 2)


@pytest.mark.parametrize(
    "comparison",
    [
        replace(GOOD, calls=[Call("conv1d3", math.nan, 1e-5), GOOD.calls[1]]),
        replace(GOOD, calls=[Call("conv1d3", 2e-5, 1e-5), GOOD.calls[1]]),
        replace(GOOD, calls=GOOD.calls[:1]),
        replace(GOOD, due=1),
        replace(GOOD, calls=[], due=0),
        replace(GOOD, problem="data race"),
    ],
    ids=["not finite", "large", "a call is missing", "one too many", "nothing", "a fault"],
)
def test_a_comparison_fails_closed(comparison):
    assert GOOD.passed and not GOOD.failures and all(row[-1] for row in lock_step_rows([GOOD]))
    assert not comparison.passed
    assert comparison.failures
    assert not all(row[-1] for row in lock_step_rows([comparison]))


def test_the_worst_of_some_is_not_finite_if_one_is_not():
    assert worst(GOOD.calls) == 1e-6
    assert math.isnan(worst([Call("a", 1.0, 1.0), Call("a", math.nan, 1.0)]))


@pytest.fixture(scope="module")
def bench(tiny_artifact, tiny_checkpoint, tmp_path_factory):
    """On this CPU: what is tested with it does not depend on the device."""
    return Workbench(tiny_checkpoint, Synthesizer(Engine(tiny_artifact)), tmp_path_factory.mktemp("plans"))


@pytest.fixture(scope="module")
def utterance(bench):
    return bench.utterances(None, "həlˈO wˈɜɹld", None, 1.0)[0]


def test_the_decoder_gets_some_frames(bench, utterance):
    """The chain included; what the truth says of them is no longer what it says of the whole utterance."""
    report = steps.validate(bench.subjects(), utterance, frames=16)
    assert report.passed, [(r.stage, r.tensor, r.mode) for r in report.failures]
    assert report.frames == 16 < report.truth.frames
    audio = [t["audio"].shape[1] for t in (report.truth, *report.chained.values())]
    assert audio == [9600] * 4
    assert {r.measured[steps.COMPILED].actual_shape for r in report.records if r.tensor == "audio"} == {(1, 9600)}


def test_a_stage_or_component_that_is_missing_does_not_pass(bench, utterance):
    names = ("text_encoder",)
    report = steps.validate(bench.subjects(components=names), utterance, components=names)
    assert report.passed and not report.chained and report.frames is None
    judgement = emulated.Judgement(utterance, names, [GOOD], report, "", 9, 2)
    assert judgement.passed and emulated_dict(judgement)["passed"]
    for other in (
        replace(judgement, comparisons=[]),
        replace(judgement, components=("text_encoder", "f0n")),
        replace(judgement, report=None),
        replace(judgement, report=replace(report, records=[])),
        replace(judgement, fault="data race"),
    ):
        assert not other.passed


def test_components_by_name():
    assert emulated.check_components(()) == emulated.check_components(["all"]) == tuple(COMPONENTS)
    assert emulated.check_components(["decoder", "bert"]) == ("bert", "decoder")
    with pytest.raises(InputError, match="'x'"):
        emulated.check_components(["bert", "x"])


def test_an_artifact_for_another_target_is_refused(tiny_artifact, tiny_checkpoint, tmp_path):
    with pytest.raises(ArtifactError, match="takes an artifact for metal-macos"):
        emulated.compile_emulated([COMPONENT], tiny_checkpoint, tmp_path / "out", beside=tiny_artifact)
