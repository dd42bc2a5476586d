"""Elementary functions in float64 as TIR expressions that stay in vector registers.

The source and the two transforms at the ends of the vocoder are a sliver of the arithmetic, but a float32 phase would cost 60 dB
there; so they calculate in float64. What it is not: correctly rounded to float64. The polynomials are good for a float32 result
with digits to spare, and the errors stated are the maxima measured by ``tests/kernels/test_vector_math_f64.py``.

Coefficients are Chebyshev interpolants in exact arithmetic, rounded to float64.
"""

from __future__ import annotations

import math
from typing import Any

from tvm.script import tirx as T

Expr = Any
"""A TIR scalar expression; TVM has no narrower public type for it."""

# sin(πr) / r and (cos(πr) - 1) / r² in r² for |r| <= 1/2.
_SIN = (
    3.1415926535897927, -5.1677127800497855, 2.5501640398618677, -0.599264528825224, 0.08214587881631043,
    -0.0073703643265304155, 0.0004659870158043378, -2.113362735205297e-05,
)  # fmt: skip
_COS = (
    -4.934802200544679, 4.058712126416736, -1.3352627688518803, 0.2353306302721577, -0.02580689002587539,
    0.001929562652479866, -0.00010458286368326585, 4.166399462726949e-06,
)  # fmt: skip
# (exp(r) - 1 - r) / r² for |r| <= log(2) / 2.
_EXP = (
    0.4999999999995511, 0.16666666666662586, 0.04166666678626573, 0.00833333334420298, 0.0013888839110572009,
    0.00019841224599656011, 2.4867870179687727e-05, 2.7617564785876086e-06,
)  # fmt: skip
# atan(r) / r in r² for 0 <= r <= 1.
_ATAN = (
    0.9999999999887381, -0.3333333295165722, 0.19999978336217084, -0.1428522560816021, 0.11105306732424464,
    -0.09049179093720577, 0.07495262378099696, -0.06022196387937433, 0.04364658944281667, -0.02600599597760862,
    0.011427633277375594, -0.0031954252407363944, 0.00041922786011272897,
)  # fmt: skip
_LN2_HI, _LN2_LO = 0.6931471803691238, 1.9082149292705877e-10
_ROUND = 1.5 * 2**52
"""Adding it leaves an integer in the low bits of the sum, where a shift can reach it: AVX2 cannot convert float64 to int64."""


def _horner(coefficients: tuple[float, ...], x: Expr) -> Expr:
    value = T.float64(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        value = T.fma(value, x, T.float64(c))
    return value


def turns(x: Expr) -> Expr:
    """The part of ``x`` turns that is left without whole turns, in [-1/2, 1/2]; exact for ``abs(x) < 2**51``.

    Rounded as by ``vector_math.nearest``, and for its reasons.
    """
    return x - (T.fma(x, T.float64(1), T.float64(_ROUND)) - T.float64(_ROUND))


def sin_half_turn(r: Expr) -> Expr:
    """sin(πr) for ``abs(r) <= 1/2``: relative error below 1e-15."""
    return r * _horner(_SIN, r * r)


def cos_half_turn(r: Expr) -> Expr:
    """cos(πr) for ``abs(r) <= 1/2``: absolute error below 1e-15."""
    return T.fma(r * r, _horner(_COS, r * r), T.float64(1))


def sin_turns(r: Expr) -> Expr:
    """sin(2πr) for ``abs(r) <= 1/2``, by the double angle: absolute error below 3e-15."""
    return T.float64(2) * sin_half_turn(r) * cos_half_turn(r)


def cos_turns(r: Expr) -> Expr:
    """cos(2πr) for ``abs(r) <= 1/2``, by the double angle: absolute error below 3e-15."""
    return T.fma(T.float64(-2) * sin_half_turn(r), sin_half_turn(r), T.float64(1))


def _exp_parts(x: Expr) -> tuple[Expr, Expr]:
    """``(2^n, expm1(r))`` with ``x = n log(2) + r``, for ``abs(x) < 700``."""
    shifted = T.fma(x, T.float64(1 / math.log(2)), T.float64(_ROUND))
    n = shifted - T.float64(_ROUND)
    r = T.fma(n, T.float64(-_LN2_LO), T.fma(n, T.float64(-_LN2_HI), x))
    power = T.reinterpret("float64", (T.reinterpret("int64", shifted) + T.int64(1023)) << T.int64(52))
    return power, T.fma(r * r, _horner(_EXP, r), r)


def exp(x: Expr) -> Expr:
    """exp(x): relative error below 1e-12; saturates at exp(±700), far beyond what float32 can hold."""
    power, mantissa = _exp_parts(T.min(T.max(x, T.float64(-700)), T.float64(700)))
    return T.fma(power, mantissa, power)


def tanh(x: Expr) -> Expr:
    """tanh(x): relative error below 1e-12, through ``expm1(2x)`` so that small arguments keep their digits."""
    power, mantissa = _exp_parts(T.min(T.max(T.float64(2) * x, T.float64(-60)), T.float64(60)))
    expm1 = T.fma(power, mantissa, power - T.float64(1))
    return expm1 / (expm1 + T.float64(2))


def _sign_bit(x: Expr) -> Expr:
    return T.bitwise_and(T.reinterpret("int64", x), T.int64(-(2**63)))


def _or_sign(magnitude: Expr, sign: Expr) -> Expr:
    return T.reinterpret("float64", T.bitwise_or(T.reinterpret("int64", magnitude), sign))


def atan2(y: Expr, x: Expr) -> Expr:
    """The angle of ``x + iy``, signed zeros as IEEE 754 has them: relative error below 2e-11, 1/5000 of a float32 ulp.

    Where neither argument reaches 1e-300, they count as zero.

    Three quarters of the plane fold into one octant, where the ratio is at most 1. Each fold is written as ``sign * a + offset``
    rather than as a choice between two expressions that both contain ``a``: the expression stays linear in size.
    """
    ax, ay = T.fabs(x), T.fabs(y)
    # Where both are zero the ratio has to be zero, not 0 / 0.
    ratio = T.min(ax, ay) / T.max(T.max(ax, ay), T.float64(1e-300))
    octant = ratio * _horner(_ATAN, ratio * ratio)
    steep = ay > ax
    quadrant = T.fma(octant, T.Select(steep, T.float64(-1), T.float64(1)), T.Select(steep, T.float64(math.pi / 2), T.float64(0)))
    # 1 with the sign of x, and 0 or π.
    side = _or_sign(T.float64(1), _sign_bit(x))
    offset = T.fma(side, T.float64(-math.pi / 2), T.float64(math.pi / 2))
    return _or_sign(T.fma(quadrant, side, offset), _sign_bit(y))
