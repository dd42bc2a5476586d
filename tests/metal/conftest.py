"""Whole components on an emulated Metal device: the smallest model always, the published architecture on demand."""

from __future__ import annotations

from pathlib import Path

import pytest

from kokoro_tvm.reference.checkpoint import Checkpoint


@pytest.fixture(scope="session", params=["tiny", pytest.param("full", marks=pytest.mark.full)])
def size(request: pytest.FixtureRequest) -> str:
    """Of the model."""
    if request.param == "full" and not request.config.getoption("--metal-thorough"):
        pytest.skip("--metal-thorough runs it")
    return request.param


@pytest.fixture(scope="session")
def checkpoint(size: str, request: pytest.FixtureRequest) -> Checkpoint:
    """Synthetic weights."""
    return request.getfixturevalue(f"{size}_checkpoint")


@pytest.fixture(scope="session")
def artifact(size: str, metal_artifact) -> Path:
    """All components, for the emulator."""
    return metal_artifact(size)
