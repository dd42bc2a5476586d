"""Whole components on an emulated Metal device: the smallest model always, the published architecture on demand."""

from __future__ import annotations

from pathlib import Path

import pytest

from kokoro_tvm.reference.checkpoint import Checkpoint
from kokoro_tvm.stages import COMPONENTS


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


@pytest.fixture(scope="session", params=["float32", "fp16"])
def dtype(request: pytest.FixtureRequest) -> str:
    """Of products in the decoder."""
    if request.param != "float32" and not request.config.getoption("--metal-thorough"):
        pytest.skip("--metal-thorough runs it")
    return request.param


@pytest.fixture(scope="session")
def components(dtype: str) -> list[str]:
    """Those that the type concerns."""
    return [name for name, c in COMPONENTS.items() if dtype == "float32" or c.rounds]


@pytest.fixture(scope="session")
def artifact(size: str, dtype: str, metal_artifact) -> Path:
    """``components``, for the emulator."""
    return metal_artifact(size, dtype)
