"""Models that the tests of the validators share."""

from __future__ import annotations

import pytest
import torch

from kokoro_tvm.reference.checkpoint import Checkpoint, build_model
from kokoro_tvm.reference.model import ReferenceModel


@pytest.fixture(scope="session")
def tiny32(tiny_checkpoint: Checkpoint) -> ReferenceModel:
    return build_model(tiny_checkpoint)


@pytest.fixture(scope="session")
def tiny64(tiny_checkpoint: Checkpoint) -> ReferenceModel:
    return build_model(tiny_checkpoint, torch.float64)
