"""Which set of kernels a tile stands for.

What it is: the one place where a CPU's tile and a GPU's lead to different modules. Both sets have the same modules with the same
functions (a test compares them), so a lowering rule names a kernel and takes it from the set of its target.
What it is not: a list of targets (``kokoro_tvm.targets``).
"""

from __future__ import annotations

import importlib
from functools import cache
from types import SimpleNamespace

from kokoro_tvm.kernels.metal.tile import Tile as MetalTile
from kokoro_tvm.kernels.tile import Tile as CpuTile

Tile = CpuTile | MetalTile

MODULES = (
    "ada_layer_norm", "adain", "append_style", "attention", "bilstm", "concat", "conv1d", "depthwise_upsample", "embed",
    "harmonic_source", "istft", "layer_norm", "layout", "sigmoid_sum", "stft", "style_linear",
)  # fmt: skip


def kernel_set(tile: Tile) -> SimpleNamespace:
    """The modules ``MODULES`` for a tile, as attributes."""
    return _modules("kokoro_tvm.kernels.metal" if isinstance(tile, MetalTile) else "kokoro_tvm.kernels")


@cache
def _modules(package: str) -> SimpleNamespace:
    return SimpleNamespace(**{name: importlib.import_module(f"{package}.{name}") for name in MODULES})
