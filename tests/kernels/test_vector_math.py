"""The errors that the docstrings of ``vector_math`` promise, measured over the whole argument range."""

from collections.abc import Callable

import numpy as np
import pytest
from tvm.script import tirx as T

from kokoro_tvm.kernels import vector_math

COUNT = 1 << 21
LANES = 16


@pytest.fixture(scope="module")
def apply(harness) -> Callable[[Callable, np.ndarray], np.ndarray]:
    """Evaluates a function of ``vector_math`` on COUNT values."""

    def build(function: Callable):
        @T.prim_func
        def elementwise(x_h: T.handle, y_h: T.handle):
            T.func_attr({"tirx.noalias": True})
            X = T.match_buffer(x_h, (COUNT,), "float32")
            Y = T.match_buffer(y_h, (COUNT,), "float32")
            for i in range(COUNT // LANES):
                for j in T.vectorized(LANES):
                    Y[i * LANES + j] = function(X[i * LANES + j])

        return harness.build(elementwise)

    return lambda function, x: harness.run(build(function), x, np.zeros(COUNT, np.float32)).astype(np.float64)


def _uniform(low: float, high: float) -> np.ndarray:
    return np.linspace(low, high, COUNT).astype(np.float32)


def _magnitudes(smallest: float, largest: float) -> np.ndarray:
    """Both signs, evenly spread over the exponents."""
    half = np.geomspace(smallest, largest, COUNT // 2)
    return np.concatenate([-half, half]).astype(np.float32)


def _multiples(period: float, count: int) -> np.ndarray:
    """Neighbourhoods of the multiples of a period, where the reduction of the argument cancels most."""
    centre = (np.arange(COUNT) % count * period).astype(np.float32)
    return centre + (np.arange(COUNT) // count - COUNT // count // 2).astype(np.float32) * np.spacing(centre)


def _ulps(y: np.ndarray, expected: np.ndarray) -> float:
    return float((np.abs(y - expected) / np.spacing(np.abs(expected).astype(np.float32))).max())


@pytest.mark.parametrize(
    "x",
    [_uniform(-1e5, 1e5), _uniform(-100, 100), _uniform(-4, 4), _magnitudes(1e-30, 1e5), _multiples(np.pi / 2, 60_000)],
    ids=["1e5", "100", "4", "magnitudes", "quadrants"],
)
def test_sin_squared(apply, x):
    error = np.abs(apply(vector_math.sin_squared, x) - np.sin(x.astype(np.float64)) ** 2).max()
    print(f"sin_squared: {error:.3g}")
    assert error < 3e-7


@pytest.mark.parametrize(
    "x",
    [_uniform(-87, 87), _uniform(-1, 1), _magnitudes(1e-30, 87), _multiples(np.log(2) / 2, 250)],
    ids=["87", "1", "magnitudes", "powers"],
)
def test_exp(apply, x):
    x = np.clip(x, -87, 87)
    ulps = _ulps(apply(vector_math.exp, x), np.exp(x.astype(np.float64)))
    print(f"exp: {ulps:.3g} ulp")
    assert ulps <= 2


def test_exp_saturates(apply):
    x = np.resize(np.array([-np.inf, -3e38, -88, 88, 3e38, np.inf], np.float32), COUNT)
    y = apply(vector_math.exp, x)
    assert _ulps(y, np.exp(np.clip(x.astype(np.float64), -87, 87))) <= 2


@pytest.mark.parametrize("x", [_uniform(-87, 87), _uniform(-1, 1), _magnitudes(1e-30, 87)], ids=["87", "1", "magnitudes"])
def test_sigmoid(apply, x):
    ulps = _ulps(apply(vector_math.sigmoid, x), 1 / (1 + np.exp(-x.astype(np.float64))))
    print(f"sigmoid: {ulps:.3g} ulp")
    assert ulps <= 3


@pytest.mark.parametrize("x", [_uniform(-20, 20), _uniform(-1, 1), _magnitudes(1e-30, 1e3)], ids=["20", "1", "magnitudes"])
def test_gelu(apply, x):
    z = x.astype(np.float64)
    expected = 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
    error = (np.abs(apply(vector_math.gelu, x) - expected) / np.maximum(1, np.abs(z))).max()
    print(f"gelu: {error:.3g}")
    assert error < 2e-7


def test_leaky_relu(apply):
    x = _magnitudes(1e-30, 1e30)
    np.testing.assert_array_equal(apply(lambda v: vector_math.leaky_relu(v, 0.2), x), np.where(x > 0, x, np.float32(0.2) * x))
