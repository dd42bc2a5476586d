"""The register tile: what a kernel has to know of the CPU it is built for.

What it is: vector width and block sizes, chosen by the target preset. What it is not: a TVM target.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

FEW = 256
"""Output channels up to which one task works through all of them, if no measurement says otherwise."""


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
        packed: Bytes of input, prologue applied, that one parallel task of a direct convolution keeps at most.
        ends: Rows of smaller tiles, one of which takes what is left at the end of a block if that fits; ascending.
        joined: Products whose sum joins the total where sums are compensated.
        compensated: The tile for sums with compensation, each of which has a total besides; None for this one.
        tuned: Layer (``kernels.records.layer_name``) to the tile that was measured to be fastest for it.
    """

    lanes: int
    vectors: int
    rows: int
    block: int
    columns: int = 256
    scheme: str | None = None
    packed: int = 160 * 1024
    ends: tuple[int, ...] = ()
    joined: int = 32
    compensated: Tile | None = field(default=None, repr=False)
    tuned: tuple[tuple[str, Tile], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self.block % self.rows:
            raise ValueError(f"block {self.block} is not a multiple of rows {self.rows}")

    def best(self, layer: str, compensated: bool = False, channels: int | None = None) -> Tile:
        """The tile for a layer: a tuned one, else this, or the one for sums with compensation, fitted to its output channels."""
        if layer in (tuned := dict(self.tuned)):
            return tuned[layer]
        tile = (self.compensated if compensated else None) or self
        return tile if channels is None else tile.fitted(channels)

    def fitted(self, channels: int) -> Tile:
        """This tile, or one of as many values that leaves fewer columns empty where this would leave more than a fifth.

        Few channels are one task's columns: a second one would fetch the same input from another core.
        """
        if channels <= FEW and self.columns < FEW:
            return replace(self, columns=FEW).fitted(channels)
        lanes = min(self.lanes, 8)
        vectors = -(-channels // lanes)
        rows = self.rows * self.vectors // vectors
        if rows < 4 or 5 * channels > 4 * -(-channels // self.width) * self.width:
            return self
        return replace(self, lanes=lanes, vectors=vectors, rows=rows, block=max(1, self.block // rows) * rows, tuned=())

    @property
    def tuning(self) -> str:
        """Names the tuning: machine code and packed weights of different ones do not fit together. Empty for none."""
        return hashlib.sha256(repr(self.tuned).encode()).hexdigest()[:12] if self.tuned else ""

    @property
    def sizes(self) -> list[Tile]:
        """This tile and the smaller ones for the end of a block, the smallest first."""
        return [*(replace(self, rows=r, block=r) for r in self.ends if r < self.rows), self]

    @property
    def width(self) -> int:
        """Output channels of one tile."""
        return self.lanes * self.vectors


# Where sums are compensated, AVX-512 has registers for their totals, to join often; AVX2 keeps these in memory.
AVX2 = Tile(lanes=8, vectors=2, rows=6, block=192, packed=256 * 1024)
AVX512 = Tile(lanes=16, vectors=2, rows=8, block=192, packed=400 * 1024,
              compensated=Tile(lanes=16, vectors=1, rows=12, block=192, columns=192, packed=320 * 1024, ends=(4, 8),
                               joined=8))  # fmt: skip
NEON = Tile(lanes=4, vectors=4, rows=6, block=192)
SSE = Tile(lanes=4, vectors=2, rows=4, block=192)
