"""Elementary functions in float32, as statements.

What it is: macros ``f(out, i, x)`` that store ``f(x)`` to ``out[i]``. The source of a GPU kernel is text: what an expression uses
twice would be printed, and compiled on the user's machine, twice. Hence named intermediate values instead of the expressions
of ``kernels.vector_math``. They are plain arithmetic with fused steps, which fast-math compilation leaves alone; Metal's own
functions are not used (see ``intrinsics``). What it is not: a place for kernels.

Coefficients are Chebyshev interpolants of the remainder, rounded to float32. The errors stated are the maxima over the whole
argument range, measured by ``tests/kernels/metal/test_vector_math.py``.
"""

from __future__ import annotations

import math

from tvm.script import tirx as T

from kokoro_tvm.kernels.script import macro
from kokoro_tvm.kernels.vector_math import _EXP, _LN2_HI, _LN2_LO, _PI_HI, _PI_LO, _horner
from kokoro_tvm.kernels.vector_math import _SIN as _SIN_RADIANS

# sin(πr) / r and (cos(πr) - 1) / r² in r² for |r| <= 1/2.
_SIN = (3.1415927410125732, -5.167712688446045, 2.550163984298706, -0.5992644429206848, 0.08214479684829712,
        -0.0073640053160488605, 0.00044749153312295675)  # fmt: skip
_COS = (-4.934802055358887, 4.058712005615234, -1.3352627754211426, 0.23533061146736145, -0.025806676596403122,
        0.0019283074652776122, -0.00010093445598613471)  # fmt: skip
# atan(r) / r in r² for 0 <= r <= 1.
_ATAN = (1.0, -0.3333328366279602, 0.19998230040073395, -0.14261573553085327, 0.10940198600292206, -0.08372063934803009,
         0.05746355652809143, -0.030717508867383003, 0.010680719278752804, -0.0017437011701986194)  # fmt: skip
_TURN_HI, _TURN_LO = 6.2831854820251465, -1.7484555314695172e-07
_HALF_PI_HI, _HALF_PI_LO = 1.5707963705062866, -4.371139000186241e-08


@macro
def sin_squared(out, i, x) -> None:
    """sin²(x): absolute error below 3e-7 for ``abs(x) < 1e5``."""
    v: T.float32 = x
    n: T.float32 = T.nearbyint(v * T.float32(1 / math.pi))
    r: T.float32 = T.fma(n, T.float32(-_PI_LO), T.fma(n, T.float32(-_PI_HI), v))
    z: T.float32 = r * r
    s: T.float32 = T.fma(r * z, _horner(_SIN_RADIANS, z), r)
    out[i] = s * s


@macro
def sin_half_turn(out, i, x) -> None:
    """sin(πx) for ``abs(x) <= 1/2``: absolute error below 2e-7."""
    r: T.float32 = x
    z: T.float32 = r * r
    out[i] = r * _horner(_SIN, z)


@macro
def sin_cos_turns(sine, i, cosine, j, x) -> None:
    """sin(2πx) and cos(2πx) for ``abs(x) <= 1/2``, by the double angle: absolute errors below 8e-7."""
    r: T.float32 = x
    z: T.float32 = r * r
    s: T.float32 = r * _horner(_SIN, z)
    c: T.float32 = T.fma(z, _horner(_COS, z), T.float32(1))
    sine[i] = T.float32(2) * s * c
    cosine[j] = T.fma(T.float32(-2) * s, s, T.float32(1))


@macro
def turns(out, i, x) -> None:
    """``x`` radians in turns without whole ones, in [-1/2, 1/2]: absolute error below 8e-8 for ``abs(x) < 1e4``."""
    v: T.float32 = x
    n: T.float32 = T.nearbyint(v * T.float32(1 / (2 * math.pi)))
    out[i] = T.fma(n, T.float32(-_TURN_LO), T.fma(n, T.float32(-_TURN_HI), v)) * T.float32(1 / (2 * math.pi))


@macro
def exp(out, i, x) -> None:
    """exp(x), 2 ulp; saturates at exp(±87) instead of overflowing."""
    v: T.float32 = T.min(T.max(x, T.float32(-87)), T.float32(87))
    n: T.float32 = T.nearbyint(v * T.float32(1 / math.log(2)))
    r: T.float32 = T.fma(n, T.float32(-_LN2_LO), T.fma(n, T.float32(-_LN2_HI), v))
    power: T.float32 = T.reinterpret("float32", (T.cast(n, "int32") + 127) << 23)
    out[i] = (T.fma(r * r, _horner(_EXP, r), r) + T.float32(1)) * power


@macro
def sigmoid(out, i, x) -> None:
    """1 / (1 + exp(-x)), 3 ulp."""
    exp(out, i, -(x))
    out[i] = T.float32(1) / (T.float32(1) + out[i])


@macro
def tanh(out, i, x) -> None:
    """tanh(x): relative error below 5e-7, through ``expm1(2x)`` so that small arguments keep their digits."""
    v: T.float32 = T.min(T.max(T.float32(2) * x, T.float32(-30)), T.float32(30))
    n: T.float32 = T.nearbyint(v * T.float32(1 / math.log(2)))
    r: T.float32 = T.fma(n, T.float32(-_LN2_LO), T.fma(n, T.float32(-_LN2_HI), v))
    power: T.float32 = T.reinterpret("float32", (T.cast(n, "int32") + 127) << 23)
    expm1: T.float32 = T.fma(power, T.fma(r * r, _horner(_EXP, r), r), power - T.float32(1))
    out[i] = expm1 / (expm1 + T.float32(2))


@macro
def gelu(out, i, x) -> None:
    """GELU with the tanh approximation of ALBERT's ``gelu_new``: error below 3e-7 of ``max(1, abs(x))``."""
    u: T.float32 = x
    sigmoid(out, i, T.float32(2 * math.sqrt(2 / math.pi)) * T.fma(u * u * u, T.float32(0.044715), u))
    out[i] = u * out[i]


@macro
def atan2(out, i, y, x) -> None:
    """The angle of ``x + iy`` in [-π, π]: absolute error below 4e-7, relative below 3e-7.

    A zero has no sign here: the angle of ``x < 0, y = 0`` is π, that of two zeros 0.
    """
    ax: T.float32 = T.fabs(x)
    ay: T.float32 = T.fabs(y)
    ratio: T.float32 = T.min(ax, ay) / T.max(T.max(ax, ay), T.float32(1e-37))
    z: T.float32 = ratio * ratio
    angle: T.float32 = ratio * _horner(_ATAN, z)
    # Whole quarters are added last and in two parts, so that the sum is rounded once.
    quarters: T.float32 = T.float32(0)
    if ay > ax:
        angle = -angle
        quarters = T.float32(1)
    if x < T.float32(0):
        angle = -angle
        quarters = T.float32(2) - quarters
    angle = T.fma(quarters, T.float32(_HALF_PI_HI), T.fma(quarters, T.float32(_HALF_PI_LO), angle))
    if y < T.float32(0):
        angle = -angle
    out[i] = angle
