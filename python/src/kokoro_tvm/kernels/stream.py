"""Stores past the caches.

What it is: for results that are written once, a whole line or two at a time. Their lines are not fetched from memory to be
overwritten, and push neither weights nor input out of the caches. What it is not: for what the same kernel reads again.

Such stores are not ordered with others. The atomic counter that every task takes the next one from (``shares``) orders them: on
x86 by the lock of its instruction.
"""

from __future__ import annotations

from tvm.script import tirx as T

from kokoro_tvm.kernels.vector_math import Expr


def llvm(lanes: int) -> str:
    """What a kernel has to import (``pragma_import_llvm``) that calls ``stream`` with so many lanes."""
    return f"""
define linkonce_odr i32 @kokoro_tvm_stream_{lanes}(ptr %place, <{lanes} x float> %values) alwaysinline nounwind {{
  store <{lanes} x float> %values, ptr %place, align {4 * lanes}, !nontemporal !0
  ret i32 0
}}
!0 = !{{i32 1}}
"""


def stream(lanes: int, place: Expr, values: Expr) -> None:
    """Stores a vector of float32 from the element ``place`` on, which has to be aligned as the vector is."""
    T.evaluate(T.call_extern("int32", f"kokoro_tvm_stream_{lanes}", T.address_of(place), values))
