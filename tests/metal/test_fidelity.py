"""Every stage on Metal against eager kokoro in float64, with the floors that hold for CPUs.

Where the CPU's encoders compensate their sums, Metal's are plain float32.
"""

from __future__ import annotations

import pytest
import torch
from metal_emulator import MetalEmulator

from kokoro_tvm.reference import components as eager
from kokoro_tvm.reference.checkpoint import build_model
from kokoro_tvm.reference.synthetic import synthetic_voice
from kokoro_tvm.reference.trace import trace
from kokoro_tvm.runtime.engine import Engine
from kokoro_tvm.validate.operators import load_operators
from kokoro_tvm.validate.steps import COMPILED, SINGLE, Subjects, Utterance, isolated, reference_inputs
from kokoro_tvm.validate.subjects import Artifact, Build, Eager, Rewrite
from kokoro_tvm.validate.tolerances import STAGES

PHONEMES = {"tiny": "ə", "full": "həlˈO"}
"""Short, as the decoder's stages take the emulator two minutes at seven tokens of the smallest model."""


@pytest.fixture(scope="module")
def subjects(checkpoint, artifact, components, dtype, tmp_path_factory: pytest.TempPathFactory):
    double, single = (Eager(build_model(checkpoint, dtype)) for dtype in (torch.float64, torch.float32))
    plans = tmp_path_factory.mktemp("plans")
    with MetalEmulator(order="random", seed=11):
        operators = {name: load_operators(artifact, name, single.model, plans) for name in components}
        build = Build(Artifact(Engine(artifact, components=components)), Rewrite(single.model, operators=operators))
        yield Subjects.around(double, single, build, dtype=dtype)


@pytest.fixture(scope="module")
def reference(size: str, subjects: Subjects):
    model = subjects.truth.model
    ids = eager.token_ids(model, PHONEMES[size])
    utterance = Utterance("short", PHONEMES[size], ids, eager.style_row(synthetic_voice(0), ids))
    return utterance, trace(model, ids, utterance.style, utterance.noise, utterance.speed)


@pytest.mark.parametrize("stage", STAGES, ids=lambda s: s.name)
def test_stage(stage, size: str, dtype: str, components: list[str], subjects: Subjects, reference) -> None:
    if stage.component not in components:
        pytest.skip(f"the same code as with float32, no {dtype}")
    utterance, truth = reference
    subjects.compiled.disagreements.clear()
    records = isolated(subjects, stage, reference_inputs(stage, truth, utterance))
    print()
    for r in records:
        snr = {regime: r.measured[regime].snr_db for regime in (COMPILED, SINGLE)}
        figures = f"{snr[COMPILED]:.1f} dB, float32 PyTorch {snr[SINGLE]:.1f}, floor {r.tolerance.floor_db:g}"
        print(f"{size} {dtype} {stage.name} {r.tensor}: {figures}")
    assert records
    assert subjects.compiled.disagreements == []
    assert [r.tensor for r in records if not r.passed] == []
