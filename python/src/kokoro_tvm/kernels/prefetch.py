"""Cache lines asked for before they are needed.

What it is: hints, which change no result. What it is not: aware of what is computed.
"""

from __future__ import annotations

from tvm.script import tirx as T

from kokoro_tvm.kernels.vector_math import Expr

LINE = 64
"""Bytes of a cache line."""

AHEAD = 64
"""Input channels between the weights in use and those asked for: the CPU itself looks no further than the end of a page."""


def fetch(element: Expr, write: bool = False, nearest: bool = False) -> None:
    """Asks for the cache line of an element that will soon be read, in the level-2 cache or the ``nearest``, or written."""
    T.evaluate(T.call_intrin("void", "tirx.prefetch", T.address_of(element), int(write), 3 if nearest else 2, 1))


def fetch_row(row: T.Buffer, size: int, *indices: Expr) -> None:
    """Asks for ``size`` elements from ``row[*indices, 0]`` on, in the nearest cache; they may lie beyond the buffer's end."""
    per_line = LINE * 8 // row.dtype.bits
    for first in range(0, size, per_line):
        fetch(row[(*indices, first)], nearest=True)
