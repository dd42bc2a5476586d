"""How far one tensor is from another, as data.

What it is: one comparison per kind of tensor (plain, phase, exact counts), each returning a ``Measurement``. A comparison that
cannot be made (shapes that differ, values that are not finite) measures NaN, which no gate lets through.
What it is not: a judgement; floors and verdicts are in ``tolerances``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Measurement:
    """What a comparison found.

    Attributes:
        snr_db: 20 log10 of the norm of the truth over the norm of the error; infinite for equal tensors, NaN where shapes
            differ or a value is not finite.
        max_abs: Largest absolute error (phases: radians, weighted), NaN as above.
        max_rel: Largest error relative to the truth's value or to its root mean square, whichever is larger, so that values
            near zero do not decide.
        where: Index of the largest absolute error, or of the first value that is not finite; empty if shapes differ.
        actual_range: Smallest and largest finite value.
        expected_range: The same of the truth.
        finite: Fraction of values that are finite.
        actual_shape: Extents.
        expected_shape: Extents of the truth.
        actual_dtype: NumPy's name.
        expected_dtype: NumPy's name.
    """

    snr_db: float
    max_abs: float
    max_rel: float
    where: tuple[int, ...]
    actual_range: tuple[float, float]
    expected_range: tuple[float, float]
    finite: float
    actual_shape: tuple[int, ...]
    expected_shape: tuple[int, ...]
    actual_dtype: str
    expected_dtype: str

    @property
    def comparable(self) -> bool:
        """Whether shapes agree and every value is finite."""
        return self.actual_shape == self.expected_shape and self.finite == 1.0


def snr_db(actual: Any, expected: Any) -> float:
    """Signal-to-noise ratio of ``actual`` against the truth ``expected`` in decibels; see ``Measurement.snr_db``."""
    return compare(actual, expected).snr_db


def compare(actual: Any, expected: Any) -> Measurement:
    """Compares two tensors value by value, in float64."""
    return _measure(actual, expected, lambda a, e: (a - e, e))


def compare_phase(actual: Any, expected: Any, magnitude: Any) -> Measurement:
    """Compares angles in radians modulo 2π, each weighted by its magnitude.

    The signal-to-noise ratio is that of the unit vectors ``magnitude * exp(i * angle)``. ``magnitude`` has the truth's shape;
    ``max_abs`` is in radians at the largest magnitude.
    """
    weight = np.asarray(magnitude, np.float64)
    peak = float(np.abs(weight).max(initial=0.0)) or 1.0

    def distance(a: Array, e: Array) -> tuple[Array, Array]:
        # The chord of the wrapped difference: |exp(ia) - exp(ie)| = 2 sin(|a - e| / 2).
        return 2 * np.sin(wrapped(a - e) / 2) * weight / peak, weight / peak

    return _measure(actual, expected, distance)


def missing(expected: Any) -> Measurement:
    """The measurement of a tensor that is not there."""
    return _measure(np.empty(0, np.float32), expected, None)


def wrapped(angle: Array) -> Array:
    """Angles in radians brought to [-π, π]."""
    return angle - 2 * np.pi * np.rint(angle / (2 * np.pi))


def branch_flips(actual: Any, expected: Any) -> int:
    """How many angles are nearly equal modulo 2π but a whole turn apart: the same spectrum, another input to a network."""
    a, e = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    return int((np.abs(a - e) > np.pi).sum()) if a.shape == e.shape else 0


def _measure(actual: Any, expected: Any, error_and_signal: Any) -> Measurement:
    actual, expected = np.asarray(actual), np.asarray(expected)
    good = np.isfinite(actual)
    finite = float(good.mean()) if actual.size else 0.0
    facts = (
        _range(actual), _range(expected), finite, actual.shape, expected.shape, str(actual.dtype), str(expected.dtype),
    )  # fmt: skip
    if actual.shape != expected.shape or not actual.size:
        return Measurement(math.nan, math.nan, math.nan, (), *facts)
    if finite < 1:
        first = np.unravel_index(int(np.argmin(good)), actual.shape)
        return Measurement(math.nan, math.nan, math.nan, tuple(int(i) for i in first), *facts)
    error, signal = error_and_signal(actual.astype(np.float64), expected.astype(np.float64))
    size = np.abs(error)
    worst = np.unravel_index(int(size.argmax()), size.shape)
    scale = np.maximum(np.abs(signal), math.sqrt(float(np.mean(np.square(signal)))))
    with np.errstate(divide="ignore"):
        relative = float(np.max(np.divide(size, scale, out=np.zeros_like(size), where=size > 0)))
    return Measurement(_ratio_db(signal, error), float(size.max()), relative, tuple(int(i) for i in worst), *facts)


def _ratio_db(signal: Array, error: Array) -> float:
    noise, power = float(np.linalg.norm(error)), float(np.linalg.norm(signal))
    if not (math.isfinite(noise) and math.isfinite(power)):
        return math.nan
    if noise == 0:
        return math.inf
    return 20 * math.log10(power / noise) if power > 0 else -math.inf


def _range(values: Array) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (math.nan, math.nan)
