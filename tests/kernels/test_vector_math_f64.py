"""The float64 elementary functions keep the errors that their docstrings state."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pytest
from tvm.script import tirx as T

from kokoro_tvm.kernels import vector_math_f64

LANES = 8


def _call(function: Callable, x: T.Buffer, column: vector_math_f64.Expr) -> vector_math_f64.Expr:
    return function(*(x[i, column] for i in range(int(x.shape[0]))))


@pytest.fixture(scope="module")
def apply(harness) -> Callable[..., np.ndarray]:
    """Evaluates a function of ``vector_math_f64`` on float64 arrays [N] of any length."""

    @cache
    def compiled(function: Callable, arguments: int) -> Callable[..., None]:
        at = partial(_call, function)

        @T.prim_func
        def f(x_h: T.handle, y_h: T.handle):
            N = T.int64()
            X = T.match_buffer(x_h, (arguments, N), "float64")
            Y = T.match_buffer(y_h, (N,), "float64")
            for v in range(N // LANES):
                for j in T.vectorized(LANES):
                    Y[v * LANES + j] = at(X, v * LANES + j)

        return harness.build(f)

    def values(function: Callable, *arguments: np.ndarray) -> np.ndarray:
        count = len(arguments[0])
        x = np.pad(np.stack(arguments), ((0, 0), (0, -count % LANES)), constant_values=0.25)
        return harness.run(compiled(function, len(arguments)), x, np.zeros(x.shape[1]))[:count]

    return values


def _relative(value: np.ndarray, truth: np.ndarray) -> float:
    return float(np.max(np.abs(value - truth) / np.abs(truth)))


def test_turns_drops_whole_turns_exactly(apply) -> None:
    x = np.array([0.0, 0.25, -0.25, 0.75, 1e6 + 0.375, -1e6 - 0.375, 2.0**40 + 0.125, 3.0])
    np.testing.assert_array_equal(apply(vector_math_f64.turns, x), [0, 0.25, -0.25, -0.25, 0.375, -0.375, 0.125, 0])


@pytest.mark.parametrize(
    ("function", "truth", "bound"),
    [
        (vector_math_f64.sin_half_turn, lambda r: np.sin(np.pi * r), 1e-15),
        (vector_math_f64.cos_half_turn, lambda r: np.cos(np.pi * r), 1e-15),
        (vector_math_f64.sin_turns, lambda r: np.sin(2 * np.pi * r), 3e-15),
        (vector_math_f64.cos_turns, lambda r: np.cos(2 * np.pi * r), 3e-15),
    ],
)
def test_sine_and_cosine(apply, function: Callable, truth: Callable, bound: float) -> None:
    r = np.linspace(-0.5, 0.5, 100_001)
    assert np.max(np.abs(apply(function, r) - truth(r))) < bound


def test_sine_keeps_its_digits_near_zero(apply) -> None:
    r = np.geomspace(1e-300, 0.5, 10_001)
    assert _relative(apply(vector_math_f64.sin_half_turn, r), np.sin(np.pi * r)) < 1e-15


def test_exp(apply) -> None:
    x = np.linspace(-699, 699, 200_001)
    assert _relative(apply(vector_math_f64.exp, x), np.exp(x)) < 1e-12
    np.testing.assert_allclose(apply(vector_math_f64.exp, np.array([-1e4, 1e4])), np.exp([-700, 700]), rtol=1e-12)
    assert apply(vector_math_f64.exp, np.zeros(1))[0] == 1


def test_tanh(apply) -> None:
    x = np.concatenate([np.geomspace(1e-300, 40, 50_001), np.linspace(-40, 40, 50_001)])
    x = x[x != 0]
    assert _relative(apply(vector_math_f64.tanh, x), np.tanh(x)) < 1e-12
    np.testing.assert_array_equal(apply(vector_math_f64.tanh, np.array([0.0, 1e9, -1e9])), [0, 1, -1])


def test_atan2_over_the_plane(apply) -> None:
    angle = np.linspace(-np.pi, np.pi, 100_002)[1:-1]
    for radius in (1e-40, 1.0, 1e40):
        y, x = radius * np.sin(angle), radius * np.cos(angle)
        truth = np.arctan2(y, x)
        assert _relative(apply(vector_math_f64.atan2, y, x), truth) < 2e-11
        # Once in float32, the value is at most one step from the rounded truth, and nearly always the rounded truth itself.
        single, expected = apply(vector_math_f64.atan2, y, x).astype(np.float32), truth.astype(np.float32)
        steps = np.abs(single.view(np.int32) - expected.view(np.int32))
        assert steps.max() <= 1
        assert np.mean(steps == 0) > 0.999


def test_atan2_on_the_axes_and_signed_zeros(apply) -> None:
    values = [-np.inf, -2.0, -1e-300, -0.0, 0.0, 1e-300, 2.0, np.inf]
    y, x = (a.ravel() for a in np.meshgrid(values, values))
    # inf / inf is no angle that a finite signal asks for.
    keep = ~(np.isinf(x) & np.isinf(y))
    y, x = y[keep], x[keep]
    result, truth = apply(vector_math_f64.atan2, y, x), np.arctan2(y, x)
    np.testing.assert_allclose(result, truth, rtol=2e-11)
    np.testing.assert_array_equal(np.signbit(result), np.signbit(truth))
