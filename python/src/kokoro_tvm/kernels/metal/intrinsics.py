"""What TVM 0.27 does not know of the Metal shading language.

What it is: lowerings of TIR operators whose default name does not exist in Metal, and exchange between the threads of a SIMD
group. What it is not: elementary functions; those are polynomials (``vector_math``, ``angles``), because the runtime compiles
shaders in fast-math mode, where Metal's own sine is good for 2^-13 and its power of a negative base is undefined.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from tvm import tirx
from tvm.script import tirx as T

from kokoro_tvm.kernels.metal.tile import SIMD
from kokoro_tvm.kernels.vector_math import Expr

_NAMES = {"tirx.fma": "fma", "tirx.nearbyint": "rint"}
"""TIR operator to Metal function."""


@cache
def register() -> None:
    """Makes the lowerings known to TVM; later calls do nothing."""
    for op, name in _NAMES.items():
        tirx.register_intrin_lowering(op, target="metal", f=_function(name), level=99)


def _function(name: str) -> Callable[[tirx.Call], Expr]:
    return lambda call: tirx.call_pure_extern(call.ty, name, *call.args)


def shuffle(value: Expr, lane: Expr) -> Expr:
    """``value`` of another thread of the SIMD group; all its threads must take part."""
    return T.call_extern("float32", "simd_shuffle", value, T.cast(lane, "uint16"))


def shuffle_xor(value: Expr, mask: Expr) -> Expr:
    """``value`` of the thread whose number differs in the bits of ``mask``; all threads of the SIMD group must take part."""
    return T.call_extern("float32", "simd_shuffle_xor", value, T.cast(mask, "uint16"))


@T.macro
def simd_sum(buffer, index) -> None:
    """``buffer[index]`` becomes its sum over the SIMD group, in all threads the same: a butterfly."""
    for i in T.unroll(5):
        buffer[index] = buffer[index] + shuffle_xor(buffer[index], T.shift_right(SIMD // 2, i))


@T.macro
def simd_max(buffer, index) -> None:
    """``buffer[index]`` becomes its maximum over the SIMD group."""
    for i in T.unroll(5):
        buffer[index] = T.max(buffer[index], shuffle_xor(buffer[index], T.shift_right(SIMD // 2, i)))
