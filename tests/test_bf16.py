"""``--dtype bf16`` and ``fp16`` as options: where they are refused, what is recorded, and what their results are judged by."""

from __future__ import annotations

import dataclasses

import pytest

from kokoro_tvm.artifact import read_manifest
from kokoro_tvm.compile import CompileOptions
from kokoro_tvm.errors import InputError
from kokoro_tvm.stages import COMPONENTS
from kokoro_tvm.validate import e2e, tolerances
from kokoro_tvm.validate.tolerances import STAGES, for_dtype, operator_tolerance


@pytest.mark.parametrize("mcpu", ["x86-64-v3", "x86-64-v4", "znver3"])
def test_a_cpu_without_the_instruction_is_named(mcpu, tiny_checkpoint):
    with pytest.raises(ValueError, match=f"--dtype bf16 needs a CPU with avx512bf16, which {mcpu} lacks"):
        CompileOptions.resolve(tiny_checkpoint, mcpu=mcpu, dtype="bf16")


@pytest.mark.parametrize("target", ["metal-macos", "metal-ios"])
def test_a_gpu_is_refused(target, tiny_checkpoint):
    with pytest.raises(InputError, match="avx512bf16"):
        CompileOptions.resolve(tiny_checkpoint, target, dtype="bf16")


def test_fp16_is_for_gpus(tiny_checkpoint):
    with pytest.raises(InputError, match="--dtype fp16 is for metal-macos and metal-ios, not --target llvm"):
        CompileOptions.resolve(tiny_checkpoint, dtype="fp16")
    assert CompileOptions.resolve(tiny_checkpoint, "metal-macos", dtype="fp16").dtype == "fp16"


def test_unknown_types_are_refused(tiny_checkpoint):
    with pytest.raises(InputError, match="--dtype must be one of float32, bf16, fp16, got 'float16'"):
        CompileOptions.resolve(tiny_checkpoint, dtype="float16")


def test_it_is_part_of_the_plan_and_of_the_build(tiny_checkpoint, tiny_artifact):
    options = CompileOptions.resolve(tiny_checkpoint, mcpu="znver4", dtype="bf16")
    assert ("dtype", "bf16") in options.rows()
    manifest = read_manifest(tiny_artifact)
    assert manifest.dtype == "float32"
    assert manifest.same_build(dataclasses.replace(manifest, dtype="bf16")) == ["dtype"]


def test_only_what_cannot_move_durations_rounds():
    assert [name for name, c in COMPONENTS.items() if c.rounds] == ["decoder"]


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_tolerances_of_rounding_are_their_own(dtype):
    for stage in STAGES:
        for _, tolerance in stage.tensors:
            relaxed = for_dtype(tolerance, dtype)
            assert for_dtype(tolerance, "float32") is tolerance
            # The source runs in float64 in either case.
            rounds = stage.component == "decoder" and stage.name != "source"
            assert (relaxed is not tolerance) == rounds
            assert relaxed.floor_db >= 20
            assert not rounds or relaxed.name.endswith(dtype)
    assert operator_tolerance("conv1d", dtype).floor_db < operator_tolerance("conv1d").floor_db
    assert operator_tolerance("adain", dtype) is operator_tolerance("adain")


def test_more_bits_have_to_give_more():
    for tolerance in (tolerances.TRUNK, tolerances.GENERATOR, tolerances.DECODER):
        assert for_dtype(tolerance, "bf16").floor_db + 10 < for_dtype(tolerance, "fp16").floor_db < tolerance.floor_db


def _distances(log_mel_db):
    near = e2e.Distance(snr_db=12.0, log_mel_db=log_mel_db, f0_cents=0.0, voicing=1.0, samples=0, loudness_db=0.0)
    return {
        e2e.COMPILED: near,
        e2e.SINGLE: dataclasses.replace(near, snr_db=13.0),
        e2e.RESEEDED: dataclasses.replace(near, snr_db=-1.0, log_mel_db=4.0),
    }


def test_audio_has_to_be_nearer_than_another_seed():
    failed = lambda log_mel, dtype: {g.name for g in e2e.gates(_distances(log_mel), dtype) if not g.passed}  # noqa: E731
    assert failed(3.0, "bf16") == set()
    assert failed(4.1, "bf16") == {"log-mel, dB"}
    assert failed(float("nan"), "bf16") == {"log-mel, dB"}
    assert failed(3.0, "float32") == {"log-mel, dB", "closer than float32, dB"}
    assert tolerances.AUDIO_CHAINED.floor_db > 0
