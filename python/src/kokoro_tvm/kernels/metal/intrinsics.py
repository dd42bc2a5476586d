"""Exchange between the threads of a SIMD group, in the Metal shading language.

What it is not: elementary functions; those are polynomials (``vector_math``), because the runtime compiles shaders in fast-math
mode, where Metal's own sine is good for 2^-13 and its power of a negative base is undefined.
"""

from __future__ import annotations

from tvm.script import tirx as T

from kokoro_tvm.kernels.metal.tile import SIMD
from kokoro_tvm.kernels.script import macro
from kokoro_tvm.kernels.vector_math import Expr


def shuffle(value: Expr, lane: Expr) -> Expr:
    """``value`` of another thread of the SIMD group; all its threads must take part."""
    return T.call_extern("float32", "simd_shuffle", value, T.cast(lane, "uint16"))


def shuffle_xor(value: Expr, mask: Expr) -> Expr:
    """``value`` of the thread whose number differs in the bits of ``mask``; all threads of the SIMD group must take part."""
    return T.call_extern("float32", "simd_shuffle_xor", value, T.cast(mask, "uint16"))


@macro
def simd_sum(buffer, index) -> None:
    """``buffer[index]`` becomes its sum over the SIMD group, in all threads the same: a butterfly."""
    for i in T.unroll(5):
        buffer[index] = buffer[index] + shuffle_xor(buffer[index], T.shift_right(SIMD // 2, i))


@macro
def simd_max(buffer, index) -> None:
    """``buffer[index]`` becomes its maximum over the SIMD group."""
    for i in T.unroll(5):
        buffer[index] = T.max(buffer[index], shuffle_xor(buffer[index], T.shift_right(SIMD // 2, i)))
