"""Every stage on Metal against eager kokoro in float64, with the floors that hold for CPUs.

Where the CPU's encoders compensate their sums, Metal's are plain float32.
"""

from __future__ import annotations

import pytest

from kokoro_tvm.runtime.engine import Engine
from kokoro_tvm.runtime.synthesis import Synthesizer
from kokoro_tvm.validate.emulated import emulated_device
from kokoro_tvm.validate.steps import COMPILED, SINGLE, Subjects, isolated, reference, reference_inputs
from kokoro_tvm.validate.tolerances import STAGES
from kokoro_tvm.validate.workbench import Workbench

PHONEMES = {"tiny": "ə", "full": "həlˈO"}
"""Short, as the decoder's stages take the emulator two minutes at seven tokens of the smallest model."""


@pytest.fixture(scope="module")
def bench(checkpoint, artifact, components, tmp_path_factory: pytest.TempPathFactory):
    with emulated_device("random"):
        yield Workbench(checkpoint, Synthesizer(Engine(artifact, components=components)), tmp_path_factory.mktemp("plans"))


@pytest.fixture(scope="module")
def subjects(bench: Workbench, components) -> Subjects:
    return bench.subjects(components=components)


@pytest.fixture(scope="module")
def spoken(size: str, bench: Workbench, subjects: Subjects):
    (utterance,) = bench.utterances(None, PHONEMES[size], None, 1.0)
    return utterance, reference(subjects, utterance)


@pytest.mark.parametrize("stage", STAGES, ids=lambda s: s.name)
def test_stage(stage, size: str, dtype: str, components: list[str], subjects: Subjects, spoken) -> None:
    if stage.component not in components:
        pytest.skip(f"the same code as with float32, no {dtype}")
    utterance, truth = spoken
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
