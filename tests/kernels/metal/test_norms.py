"""Normalisations: over channels and over time."""

from __future__ import annotations

import numpy as np
import pytest

from kokoro_tvm.kernels import ada_layer_norm as cpu_ada_layer_norm
from kokoro_tvm.kernels import adain as cpu_adain
from kokoro_tvm.kernels import layer_norm as cpu_layer_norm
from kokoro_tvm.kernels.metal import ada_layer_norm, adain, layer_norm


@pytest.mark.parametrize("channels", [1, 22, 130, 512])
@pytest.mark.parametrize("slope", [None, 0.2])
def test_layer_norm(harness, channels, slope):
    lengths = harness.lengths()
    x = harness.ragged(lengths, channels)
    weight, bias = harness.normal(channels), harness.normal(channels)
    harness.check(
        layer_norm.kernel(channels, 1e-5, slope, harness.tile),
        [x, harness.LENGTHS, weight, bias],
        lengths,
        harness.Output(lambda n: (n, channels)),
        [cpu_layer_norm.reference(s[None], [len(s)], weight, bias, 1e-5, slope)[0] for s in x.samples],
        harness.bound,
    )


@pytest.mark.parametrize("channels", [1, 22, 512])
def test_ada_layer_norm(harness, channels):
    lengths, style_dim, offset = harness.lengths(), 9, 5
    size = 2 * channels + offset + 3
    x = harness.ragged(lengths, channels)
    affine, style = harness.normal(len(lengths), size), harness.normal(len(lengths), style_dim)
    harness.check(
        ada_layer_norm.kernel(channels, style_dim, size, offset, 1e-5, harness.tile),
        [x, harness.LENGTHS, harness.PerSample(affine), harness.PerSample(style)],
        lengths,
        harness.Output(lambda n: (n, channels + style_dim)),
        [
            cpu_ada_layer_norm.reference(s[None], [len(s)], affine[b : b + 1], style[b : b + 1], offset, 1e-5)[0]
            for b, s in enumerate(x.samples)
        ],
        harness.bound,
    )


def test_columns_must_exist(harness):
    with pytest.raises(ValueError, match="columns 5 to 21 are not in an affine of 20"):
        ada_layer_norm.kernel(8, 4, 20, 5, 1e-5, harness.tile)


@pytest.mark.parametrize("channels", [1, 33, 130])
def test_adain(harness, channels):
    offset, chunk = 5, cpu_adain.CHUNK
    lengths = [1, 2, chunk - 1, chunk, chunk + 1, 2 * chunk + 7]
    x = harness.ragged(lengths, channels)
    affine = harness.normal(len(lengths), offset + 2 * channels + 3)
    weight, bias = harness.normal(channels), harness.normal(channels)
    kernel = harness.build(adain.kernel(channels, harness.tile))

    def run(members, capacity):
        coef = np.full((len(members), 2, channels), np.nan, np.float32)
        given = np.array([lengths[m] for m in members])
        return harness.run(kernel, x.batch(members, capacity), given, affine[members], weight, bias, offset, coef)

    everyone = list(range(len(lengths)))
    result = run(everyone, max(lengths))
    expected = cpu_adain.reference(x.batch(everyone, max(lengths)), np.array(lengths), affine, offset, weight, bias)
    for m in everyone:
        assert np.abs(result[m] - expected[m]).max() <= harness.bound * np.abs(expected[m]).max()
    for again in (run(everyone, 4 * max(lengths)), harness.one_thread(lambda: run(everyone, max(lengths)))):
        assert np.asarray(again).tobytes() == result.tobytes()
    for m in everyone:
        assert run([m], lengths[m])[0].tobytes() == result[m].tobytes()


def test_large_mean_does_not_cancel(harness):
    """E[x^2] - E[x]^2 in float32 would lose the variance altogether."""
    channels, n = 33, 1000
    x = harness.normal(1, n, channels) + np.float32(3000)
    ones, zeros = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    affine = np.zeros((1, 2 * channels), np.float32)
    kernel = harness.build(adain.kernel(channels, harness.tile))
    coef = harness.run(kernel, x, np.array([n]), affine, ones, zeros, 0, np.zeros((1, 2, channels), np.float32))
    expected = cpu_adain.reference(x, np.array([n]), affine, 0, ones, zeros)
    assert np.abs(coef[0, 0] / expected[0, 0] - 1).max() < 2e-4
