"""Checkpoints and models that the tests of the reference share."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import pytest
import torch

from kokoro_tvm.config import ModelConfig
from kokoro_tvm.reference import synthetic
from kokoro_tvm.reference.checkpoint import Checkpoint, build_model, load_checkpoint
from kokoro_tvm.reference.model import ReferenceModel, published_config

CACHE = Path(__file__).resolve().parents[2] / "build" / "test-cache"


def cached_checkpoint(name: str, config: ModelConfig) -> Path:
    """A directory with seed 0's checkpoint, written once for each version of the code that writes it."""
    sources = [Path(synthetic.__file__), Path(synthetic.__file__).with_name("components.py")]
    version = hashlib.sha256(b"".join(s.read_bytes() for s in sources)).hexdigest()[:12]
    final = CACHE / f"synthetic-{name}-{version}"
    if not final.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            synthetic.write_synthetic_checkpoint(Path(scratch) / "new", config=config)
            try:
                os.rename(Path(scratch) / "new", final)
            except OSError:  # another run was faster
                assert final.is_dir()
    return final


@pytest.fixture(scope="session")
def tiny_checkpoint() -> Checkpoint:
    return load_checkpoint(cached_checkpoint("tiny", synthetic.tiny_config()))


@pytest.fixture(scope="session")
def full_checkpoint() -> Checkpoint:
    return load_checkpoint(cached_checkpoint("full", published_config()))


@pytest.fixture(scope="session")
def tiny32(tiny_checkpoint: Checkpoint) -> ReferenceModel:
    return build_model(tiny_checkpoint)


@pytest.fixture(scope="session")
def tiny64(tiny_checkpoint: Checkpoint) -> ReferenceModel:
    return build_model(tiny_checkpoint, torch.float64)
