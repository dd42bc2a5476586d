"""``kernels.packing`` for Metal: the same names, the layouts of these kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kokoro_tvm.kernels import style_linear
from kokoro_tvm.kernels.metal import bilstm, conv1d
from kokoro_tvm.kernels.metal.tile import Tile

Packer = Callable[[np.ndarray, Tile], np.ndarray]

HALF = "-fp16"
"""Behind a layout: the packed weight is rounded to float16."""

_PACKERS: dict[str, Packer] = {
    "conv1d": conv1d.pack_weight,
    "bias": lambda b, tile: conv1d.pack_bias(b, tile.width),
    "style_linear": lambda w, tile: style_linear.pack_weight(w, tile.width),
    "gates": lambda w, tile: conv1d.pack_weight(w.reshape(-1, w.shape[2], 1), tile),
    "recurrent": lambda w, _: bilstm.pack_recurrent(w),
}


def pack(layout: str, weight: np.ndarray, tile: Tile) -> np.ndarray:
    """Applies a layout of ``kernels.packing``, in float16 if ``-fp16`` stands behind its name.

    Raises:
        KeyError: There is no such layout.
    """
    if layout.endswith(HALF):
        return conv1d.halves(pack(layout.removesuffix(HALF), weight, tile))
    name, _, argument = layout.partition(":")
    if name == "transposed":
        return conv1d.pack_transposed_weight(weight, int(argument), tile)
    return np.ascontiguousarray(_PACKERS[name](weight, tile))
