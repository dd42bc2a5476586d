"""Elementary functions as TIR expressions that stay in vector registers.

LLVM turns ``sin`` or ``exp`` of a vector into one library call per lane. The polynomials here are plain arithmetic, so a
vectorized loop over them remains vector code on every target. What it is not: a place for kernels.

Coefficients are Chebyshev interpolants of the remainder in exact arithmetic, rounded to float32. The errors stated are the
maxima over the whole argument range, measured by ``tests/kernels/test_vector_math.py``.
"""

from __future__ import annotations

import math
from typing import Any

from tvm.script import tirx as T

Expr = Any
"""A TIR scalar expression; TVM has no narrower public type for it."""

_SIN = (-0.1666666716337204, 0.00833333283662796, -0.00019841086759697646, 2.7536455036170082e-06, -2.4080000216031294e-08)
_EXP = (0.5, 0.16666576266288757, 0.041666556149721146, 0.008363203145563602, 0.0013926213141530752)
_PI_HI, _PI_LO = 3.1415927410125732, -8.742277657347586e-08
_LN2_HI, _LN2_LO = 0.693145751953125, 1.4286068203094172e-06


def _horner(coefficients: tuple[float, ...], x: Expr) -> Expr:
    value = T.float32(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        value = T.fma(value, x, T.float32(c))
    return value


def nearest(x: Expr, factor: float) -> Expr:
    """The whole number nearest to ``factor * x``, ties to even, if that is below 2**22.

    TVM does not vectorise ``nearbyint``: a loop with it is left scalar, and LLVM makes of it vectors that it then transposes for
    longer than it computes. Adding 1.5 * 2**23 leaves no bits for a fraction. In the form ``(x + magic) - magic`` the constant is
    simplified away; the fused product keeps it. A compiler that re-associates sums must not be used.
    """
    magic = T.float32(1.5 * 2**23)
    return T.fma(x, T.float32(factor), magic) - magic


def sin_squared(x: Expr) -> Expr:
    """sin² of a float32: absolute error below 3e-7 for ``abs(x) < 1e5``.

    The square has period π, so one reduction to [-π/2, π/2] in two fused steps serves every quadrant.
    """
    n = nearest(x, 1 / math.pi)
    r = T.fma(n, T.float32(-_PI_LO), T.fma(n, T.float32(-_PI_HI), x))
    z = r * r
    s = T.fma(r * z, _horner(_SIN, z), r)
    return s * s


def exp(x: Expr) -> Expr:
    """exp of a float32, 2 ulp; saturates at exp(±87) instead of overflowing."""
    x = T.min(T.max(x, T.float32(-87)), T.float32(87))
    n = nearest(x, 1 / math.log(2))
    r = T.fma(n, T.float32(-_LN2_LO), T.fma(n, T.float32(-_LN2_HI), x))
    mantissa = T.fma(r * r, _horner(_EXP, r), r) + T.float32(1)
    power = T.reinterpret("float32", (T.cast(n, "int32") + 127) << 23)
    return mantissa * power


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + exp(-x)) of a float32, 3 ulp."""
    return T.float32(1) / (T.float32(1) + exp(-x))


def gelu(x: Expr) -> Expr:
    """GELU with the tanh approximation of ALBERT's ``gelu_new``: ``0.5 x (1 + tanh(u)) = x sigmoid(2u)``.

    Error below 2e-7 of ``max(1, abs(x))``.
    """
    inner = T.float32(2 * math.sqrt(2 / math.pi)) * T.fma(x * x * x, T.float32(0.044715), x)
    return x * sigmoid(inner)


def leaky_relu(x: Expr, slope: float) -> Expr:
    """``x`` for positive ``x``, else ``slope * x``."""
    return T.max(x, T.float32(slope) * x)
