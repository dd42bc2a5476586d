"""What a kernel has to know of the GPU it is built for.

What it is: sizes of thread groups and of their tiles. What it is not: a TVM target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

SIMD = 32
"""Threads that run in lockstep and can exchange registers."""

THREADS = 256
"""Threads of a group. Apple GPUs allow 1024, but only to kernels with few registers; 256 every pipeline can have."""

GROUPS = THREADS // SIMD
"""SIMD groups of a thread group."""

SHARED_BYTES = 32 * 1024
"""Thread-group memory that every Apple GPU has."""


@dataclass(frozen=True)
class Tile:
    """Sizes of the matrix kernel.

    Attributes:
        rows: Time rows of one thread group's tile.
        width: Output channels of one thread group's tile; also the panel width of packed weights.
        chunk: Input channels that are staged at a time; packed weights are padded to a multiple.
    """

    rows: int = 64
    width: int = 64
    chunk: int = 16

    tuned: ClassVar[tuple[()]] = ()
    tuning: ClassVar[str] = ""
    """There is no tuning per layer: nothing can be measured here."""

    def best(self, layer: str, compensated: bool = False, channels: int | None = None) -> Tile:
        """The tile for a layer: this."""
        return self


APPLE = Tile()
"""From the A14 and the M1 on."""
