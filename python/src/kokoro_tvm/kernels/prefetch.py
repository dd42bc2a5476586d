"""Cache lines asked for before they are needed.

What it is: hints, which change no result. What it is not: aware of what is computed.
"""

from __future__ import annotations

from tvm.script import tirx as T

from kokoro_tvm.kernels.vector_math import Expr

LINE = 64
"""Bytes of a cache line."""

AHEAD = 128
"""Input channels between the weights in use and those asked for: the CPU itself looks no further than the end of a page."""


def fetch(element: Expr, write: bool = False) -> None:
    """Asks for the cache line of an element that will soon be read or written, in the level-2 cache.

    The level-1 cache holds no panel of weights, and what is asked for early would push out what is in use.
    """
    T.evaluate(T.call_intrin("void", "tirx.prefetch", T.address_of(element), int(write), 2, 1))


def fetch_row(row: T.Buffer, size: int, *indices: Expr) -> None:
    """Asks for ``size`` elements from ``row[*indices, 0]`` on; they may lie beyond the buffer's end."""
    per_line = LINE * 8 // row.dtype.bits
    for first in range(0, size, per_line):
        fetch(row[(*indices, first)])
