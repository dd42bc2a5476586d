"""The engines by name.

What it is: the one place that knows which engines there are; each has ``run``, ``manifest``, ``directory``, ``threads`` and
``description``. What it is not: an engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kokoro_tvm.errors import InputError

if TYPE_CHECKING:
    from kokoro_tvm.runtime.engine import Engine
    from kokoro_tvm.runtime.onnx_engine import OnnxEngine

BACKENDS = ("tvm", "onnxruntime")


def open_engine(
    backend: str,
    artifact: Path | str,
    onnx_dir: Path | str,
    threads: int | None = None,
    components: Sequence[str] | None = None,
) -> Engine | OnnxEngine:
    """Opens an engine.

    Args:
        backend: One of ``BACKENDS``.
        artifact: For ``tvm``: the compiled artifact.
        onnx_dir: For ``onnxruntime``: the folder of ONNX files.
        threads: Threads per call; all CPUs if None.
        components: Which components to load; all that are there if None.

    Raises:
        InputError: There is no such backend.
        ArtifactError: The artifact cannot be loaded.
        OnnxError: The ONNX files cannot be loaded.
        ToolchainError: ONNX Runtime is not installed.
    """
    if backend not in BACKENDS:
        raise InputError(f"unknown backend {backend!r}; expected one of: {', '.join(BACKENDS)}")
    if backend == "onnxruntime":
        from kokoro_tvm.runtime.onnx_engine import OnnxEngine

        return OnnxEngine(onnx_dir, threads, components)
    from kokoro_tvm.runtime.engine import Engine

    return Engine(artifact, threads, components)
