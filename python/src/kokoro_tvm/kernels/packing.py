"""Weight layouts that kernels expect, by name.

What it is: the one list of transformations from an exported weight to the form its kernel reads, applied once at compile time.
The passes refer to a layout by name so that the graph says what its parameters have to look like.
What it is not: aware of models or files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from kokoro_tvm.kernels import bf16, bilstm, conv1d, style_linear, winograd
from kokoro_tvm.kernels.metal import packing as metal
from kokoro_tvm.kernels.metal.tile import Tile as MetalTile
from kokoro_tvm.kernels.tile import Tile

Packer = Callable[[np.ndarray, Tile], np.ndarray]

_PACKERS: dict[str, Packer] = {
    "conv1d": lambda w, tile: conv1d.pack_weight(w, tile.width),
    "bias": lambda b, tile: conv1d.pack_bias(b, tile.width),
    "style_linear": lambda w, tile: style_linear.pack_weight(w, tile.width),
    "gates": lambda w, tile: conv1d.pack_weight(w.reshape(-1, w.shape[2], 1), tile.width),
    "recurrent": lambda w, _: bilstm.pack_recurrent(w),
}


def pack(layout: str, weight: np.ndarray, tile: Tile | MetalTile) -> np.ndarray:
    """Applies a layout: a name of ``_PACKERS``, ``transposed:<stride>`` or the name of a ``winograd.Scheme``.

    ``/<stride>`` behind a scheme is for a transposed convolution; ``winograd-bf16`` is ``winograd`` in pairs of bfloat16.

    ``@<width>`` behind it all asks for panels of another width than the tile's.

    Raises:
        KeyError: There is no such layout.
    """
    if isinstance(tile, MetalTile):
        return metal.pack(layout, weight, tile)
    layout, _, width = layout.partition("@")
    if width:
        tile = replace(tile, lanes=int(width), vectors=1, rows=1, block=1)
    name, _, argument = layout.partition(":")
    if name == "transposed":
        return conv1d.pack_transposed_weight(weight, int(argument), tile.width)
    if name in ("winograd", "winograd-bf16"):
        scheme, _, stride = argument.partition("/")
        weight = conv1d.phase_weights(weight, int(stride)) if stride else weight
        panels = winograd.pack_weight(weight, winograd.SCHEMES[f"winograd:{scheme}"], tile.width)
        return bf16.pack_pairs(panels) if name == "winograd-bf16" else panels
    return np.ascontiguousarray(_PACKERS[name](weight, tile))
