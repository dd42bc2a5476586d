"""``--validate``: good builds pass with room to spare, and nothing that is wrong passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from kokoro_tvm.reference.checkpoint import Checkpoint, build_model
from kokoro_tvm.reference.model import ReferenceModel
from kokoro_tvm.runtime.engine import Engine
from kokoro_tvm.stages import COMPONENTS
from kokoro_tvm.validate.parity import PHONEMES, TOLERANCE, check_component
from kokoro_tvm.validate.tolerances import BEHIND_DB


@pytest.fixture(scope="module")
def engine(tiny_artifact: Path) -> Engine:
    return Engine(tiny_artifact, verify=False)


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Checkpoint) -> ReferenceModel:
    return build_model(tiny_checkpoint, torch.float64)


@pytest.fixture(scope="module")
def single(tiny_checkpoint: Checkpoint) -> ReferenceModel:
    return build_model(tiny_checkpoint)


@pytest.mark.parametrize("name", COMPONENTS)
def test_components(name: str, engine: Engine, model: ReferenceModel, single: ReferenceModel) -> None:
    records = check_component(engine, model, single, name)
    assert [(r.phonemes, r.output) for r in records] == [(p, s.name) for p in PHONEMES for s in COMPONENTS[name].outputs]
    for record in records:
        assert 0 < record.pytorch_db < 200
        assert record.passed, record
        # Of what any weights allow and what PyTorch keeps of these, the higher one.
        assert TOLERANCE[name].floor_db == (90.0 if name == "decoder" else 100.0)
        assert record.floor_db == max(TOLERANCE[name].floor_db, record.pytorch_db - BEHIND_DB)
        assert record.finite
        assert record.max_abs > 0


class Spoiled:
    """An engine whose results are changed behind its back."""

    def __init__(self, engine: Engine, spoil: Callable[[np.ndarray], np.ndarray]) -> None:
        self.engine, self.manifest, self.spoil = engine, engine.manifest, spoil

    def run(self, name: str, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(self.spoil(a) for a in self.engine.run(name, *inputs))


def _set(index: tuple[int, ...], value: float) -> Callable[[np.ndarray], np.ndarray]:
    def spoil(array: np.ndarray) -> np.ndarray:
        array[index] = value
        return array

    return spoil


SPOILED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "one NaN": _set((0, 0, 0), np.nan),
    "one infinity": _set((0, 3, 1), np.inf),
    "not zero beyond": _set((0, 0, -1), 1e-30),
    "NaN beyond": _set((0, 0, -1), np.nan),
    "a little off": lambda a: a * np.float32(1 + 1e-4),
    "silent": np.zeros_like,
    "shifted by a token": lambda a: np.roll(a, 1, axis=-1),
    "another shape": lambda a: a[..., :4],
}

ONLY_FIRST = ("one NaN", "one infinity", "not zero beyond", "NaN beyond")


@pytest.mark.parametrize("case", SPOILED)
def test_wrong_results_do_not_pass(case: str, engine: Engine, model: ReferenceModel, single: ReferenceModel) -> None:
    records = check_component(Spoiled(engine, SPOILED[case]), model, single, "text_encoder")  # type: ignore[arg-type]
    # The spoiled values lie in the first utterance of the batch; the others see them where all are spoiled.
    assert not records[0].passed
    assert any(r.passed for r in records[1:]) == (case in ONLY_FIRST)


def test_other_weights_do_not_pass(engine: Engine, tiny_checkpoint: Checkpoint, single: ReferenceModel) -> None:
    changed = build_model(tiny_checkpoint, torch.float64)
    changed.text_encoder.embedding.weight += 1e-3
    assert not any(r.passed for r in check_component(engine, changed, single, "text_encoder"))
