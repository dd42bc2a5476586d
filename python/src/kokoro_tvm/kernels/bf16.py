"""Products of bfloat16 pairs with float32 sums, for CPUs that have an instruction for them.

What it is: the rounding, the packing of weights in pairs and the one multiply-add that kernels build on where ``--dtype bf16`` is
asked for. What it is not: a storage type; tensors between kernels stay float32.

``vdpbf16ps`` adds to each float32 lane the products of two bfloat16 pairs: ``(s + a1 * b1) + a0 * b0``, both sums rounded to
nearest even, whatever the rounding mode; subnormal inputs count as zero and subnormal results become zero. The conversion rounds
to nearest even and takes subnormal float32 for zero. Neither raises exceptions.

TVM turns every bfloat16 value of a kernel into float32 (``BF16ComputeLegalize``), so the two instructions come as functions in
LLVM's language, on integers; LLVM inlines them.
"""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T

from kokoro_tvm.kernels.vector_math import Expr

FEATURE = "avx512bf16"
"""LLVM's name of what the CPU must have."""
LANES = 16
"""float32 values of a vector."""
UNIT_ROUNDOFF = 2.0**-8
"""Largest relative error of a rounding to bfloat16: 8 bits of significand, the leading one included."""
TOLERANCE = 3 * (2 / 3) ** 0.5 * UNIT_ROUNDOFF
"""Largest error of a sum of products relative to the largest sum.

A rounding error is spread up to the unit roundoff: a standard deviation of ``UNIT_ROUNDOFF / sqrt(3)``, for both factors. Errors
of different products are independent, so a sum has the same relative to its own deviation. Six of these over a sum of two.
"""

LLVM = """
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
declare <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float>)

define linkonce_odr <16 x float> @kokoro_tvm_bf16_dot(<16 x float> %sum, <16 x i32> %a, <32 x i16> %b) alwaysinline nounwind {
  %x = bitcast <16 x i32> %a to <32 x bfloat>
  %y = bitcast <32 x i16> %b to <32 x bfloat>
  %r = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %sum, <32 x bfloat> %x, <32 x bfloat> %y)
  ret <16 x float> %r
}

define linkonce_odr <8 x i32> @kokoro_tvm_bf16_round(<16 x float> %x) alwaysinline nounwind {
  %h = call <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float> %x)
  %r = bitcast <16 x bfloat> %h to <8 x i32>
  ret <8 x i32> %r
}
"""
"""What a kernel has to import (``pragma_import_llvm``) that calls ``dot`` or ``round_pairs``."""


def dot(total: Expr, pair: Expr, weights: Expr) -> Expr:
    """``total`` float32x16 plus the products of one pair (int32) with 16 pairs of weights (uint16x32)."""
    return T.call_pure_extern(f"float32x{LANES}", "kokoro_tvm_bf16_dot", total, T.Broadcast(pair, LANES), weights)


def round_pairs(values: Expr) -> Expr:
    """float32x16 to int32x8, two neighbours in each."""
    return T.call_pure_extern(f"int32x{LANES // 2}", "kokoro_tvm_bf16_round", values)


def rounded(x: np.ndarray) -> np.ndarray:
    """Upper halves (uint16) of the nearest bfloat16 numbers, ties to even; finite input that is no larger than the largest."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    nearest = (bits + (0x7FFF + ((bits >> 16) & 1)).astype(np.uint32)) >> 16
    subnormal = (bits & 0x7F800000) == 0
    return np.where(subnormal, (bits >> 16) & 0x8000, nearest).astype(np.uint16)


def values(halves: np.ndarray) -> np.ndarray:
    """The float32 numbers that ``rounded`` stands for."""
    return (halves.astype(np.uint32) << 16).view(np.float32)


def pack_pairs(panels: np.ndarray) -> np.ndarray:
    """[..., C_in, width] to uint16 [..., ceil(C_in / 2), 2 * width]: for every output channel two neighbouring input channels."""
    *outer, c_in, width = panels.shape
    padded = np.zeros((*outer, -(-c_in // 2), 2, width), np.float32)
    padded.reshape(*outer, -1, width)[..., :c_in, :] = panels
    return rounded(np.ascontiguousarray(np.swapaxes(padded, -1, -2))).reshape(*outer, -1, 2 * width)
