"""The register tile: what a kernel has to know of the CPU it is built for.

What it is: vector width and block sizes, chosen by the target preset. What it is not: a TVM target.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Tile:
    """Sizes of the matrix micro-kernel.

    Attributes:
        lanes: float32 values of one vector register.
        vectors: Vector registers side by side in one tile; a tile is ``lanes * vectors`` output channels wide.
        rows: Time rows of one tile. ``rows * vectors`` accumulators, ``vectors`` weights and one broadcast input have to fit
            into the register file.
        block: Time rows that one parallel task owns, a multiple of ``rows``. The task's input, with its prologue applied, is
            packed once and should stay in the level-2 cache.
        columns: Output channels that one parallel task works through at most.
        scheme: How a convolution is computed where that was measured: ``direct`` or the name of a scheme of ``winograd``, whose
            ``block`` then counts tiles. None leaves it to the layer's sizes.
        compensated: The tile for sums with compensation, each of which needs a second place; None for this one.
        tuned: Layer (``kernels.records.layer_name``) to the tile that was measured to be fastest for it.
    """

    lanes: int
    vectors: int
    rows: int
    block: int
    columns: int = 256
    scheme: str | None = None
    compensated: Tile | None = field(default=None, repr=False)
    tuned: tuple[tuple[str, Tile], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self.block % self.rows:
            raise ValueError(f"block {self.block} is not a multiple of rows {self.rows}")
        if self.rows * self.width * 4 > 1024:
            # TVM moves larger local buffers from the stack to the workspace allocator: every accumulate goes through memory.
            raise ValueError(f"accumulators of {self.rows} x {self.width} float32 exceed 1024 bytes")

    def best(self, layer: str, compensated: bool = False) -> Tile:
        """The tile for a layer: a tuned one, else this, or the one for sums with compensation."""
        return dict(self.tuned).get(layer, (self.compensated if compensated else None) or self)

    @property
    def tuning(self) -> str:
        """Names the tuning: machine code and packed weights of different ones do not fit together. Empty for none."""
        return hashlib.sha256(repr(self.tuned).encode()).hexdigest()[:12] if self.tuned else ""

    @property
    def width(self) -> int:
        """Output channels of one tile."""
        return self.lanes * self.vectors


# Sums that are joined one vector after the other leave the multiply-adds around them room to go on.
AVX2 = Tile(lanes=8, vectors=2, rows=6, block=96, compensated=Tile(lanes=8, vectors=2, rows=4, block=96, columns=192))
AVX512 = Tile(lanes=16, vectors=2, rows=8, block=96, compensated=Tile(lanes=16, vectors=1, rows=16, block=96, columns=192))
NEON = Tile(lanes=4, vectors=4, rows=6, block=96)
SSE = Tile(lanes=4, vectors=2, rows=4, block=96)
