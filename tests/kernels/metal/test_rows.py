"""Kernels that move or map rows."""

from __future__ import annotations

import numpy as np
import pytest

from kokoro_tvm.kernels import append_style as cpu_append_style
from kokoro_tvm.kernels import concat as cpu_concat
from kokoro_tvm.kernels import depthwise_upsample as cpu_depthwise_upsample
from kokoro_tvm.kernels import embed as cpu_embed
from kokoro_tvm.kernels import layout as cpu_layout
from kokoro_tvm.kernels import sigmoid_sum as cpu_sigmoid_sum
from kokoro_tvm.kernels.metal import append_style, concat, depthwise_upsample, embed, layout, sigmoid_sum

CHANNELS = [1, 22, 33, 130]


@pytest.mark.parametrize("channels", CHANNELS)
def test_to_rows(harness, channels):
    lengths = harness.lengths()
    x = harness.Ragged([harness.normal(channels, n) for n in lengths], axis=1)
    output = harness.Output(lambda n: (n, channels))
    harness.check(layout.to_rows(channels, harness.tile), [x, harness.LENGTHS], lengths, output, [s.T for s in x.samples], 0.0)


@pytest.mark.parametrize("channels", CHANNELS)
def test_to_columns(harness, channels):
    lengths = harness.lengths()
    x = harness.ragged(lengths, channels)
    output = harness.Output(lambda n: (channels, n), axis=1, zero=True)
    harness.check(layout.to_columns(channels, harness.tile), [x, harness.LENGTHS], lengths, output, [s.T for s in x.samples], 0.0)


@pytest.mark.parametrize("channels", CHANNELS)
def test_mask_rows(harness, channels):
    lengths = harness.lengths()
    x = harness.ragged(lengths, channels)
    output = harness.Output(lambda n: (n, channels), zero=True)
    reference = [cpu_layout.reference(s[None], [len(s)])[0] for s in x.samples]
    harness.check(layout.mask_rows(channels, harness.tile), [x, harness.LENGTHS], lengths, output, reference, 0.0)


@pytest.mark.parametrize(("channels", "style_dim"), [(1, 1), (512, 128), (50, 3)])
def test_append_style(harness, channels, style_dim):
    lengths = harness.lengths()
    x, style = harness.ragged(lengths, channels), harness.normal(len(lengths), style_dim)
    harness.check(
        append_style.kernel(channels, style_dim),
        [x, harness.LENGTHS, harness.PerSample(style)],
        lengths,
        harness.Output(lambda n: (n, channels + style_dim)),
        [cpu_append_style.reference(s[None], [len(s)], style[i : i + 1])[0] for i, s in enumerate(x.samples)],
        0.0,
    )


@pytest.mark.parametrize("channels", [(22, 50), (512, 1, 1), (130, 64, 1, 1)])
def test_concat(harness, channels):
    lengths = harness.lengths()
    inputs = [harness.ragged(lengths, c) for c in channels]
    harness.check(
        concat.kernel(channels, harness.tile),
        [*inputs, harness.LENGTHS],
        lengths,
        harness.Output(lambda n: (n, sum(channels))),
        [cpu_concat.reference(tuple(x.samples[b][None] for x in inputs), [n])[0] for b, n in enumerate(lengths)],
        0.0,
    )


@pytest.mark.parametrize("count", [1, 5])
def test_concat_of_another_number(harness, count):
    with pytest.raises(ValueError, match="two to four"):
        concat.kernel((4,) * count, harness.tile)


@pytest.mark.parametrize("channels", [22, 128])
@pytest.mark.parametrize("positions", [False, True])
def test_embed(harness, channels, positions):
    lengths, vocabulary = harness.lengths(), 30
    # Padding ids point to a row of NaN: a kernel that looked them up would show it.
    ids = harness.Ragged([harness.rng.integers(0, vocabulary - 1, n) for n in lengths], poison=vocabulary - 1)
    table, place = harness.normal(vocabulary, channels), harness.normal(512, channels)
    table[-1] = np.nan
    extra = [place] if positions else []
    harness.check(
        embed.kernel(channels, vocabulary, positions, harness.tile),
        [ids, harness.LENGTHS, table, *extra],
        lengths,
        harness.Output(lambda n: (n, channels)),
        [cpu_embed.reference(s[None], [len(s)], table, *extra)[0] for s in ids.samples],
        cpu_embed.TOLERANCE if positions else 0.0,
    )


@pytest.mark.parametrize("channels", [1, 22, 50])
def test_sigmoid_sum(harness, channels):
    lengths = harness.lengths()
    x = harness.ragged(lengths, channels)
    harness.check(
        sigmoid_sum.kernel(channels, harness.tile),
        [x, harness.LENGTHS],
        lengths,
        harness.Output(lambda n: (n,), zero=True),
        [cpu_sigmoid_sum.reference(s[None], [len(s)])[0] for s in x.samples],
        harness.bound,
    )


@pytest.mark.parametrize("channels", [1, 22, 130])
def test_depthwise_upsample(harness, channels):
    lengths = harness.lengths()
    x = harness.ragged(lengths, channels)
    coef = harness.normal(len(lengths), 2, channels)
    weight, bias = harness.normal(3, channels), harness.normal(channels)
    harness.check(
        depthwise_upsample.kernel(channels, 0.2, harness.tile),
        [x, harness.LENGTHS, harness.PerSample(coef), weight, bias],
        lengths,
        harness.Output(lambda n: (2 * n, channels), rows=lambda n: 2 * n),
        [
            cpu_depthwise_upsample.reference(s[None], [len(s)], coef[i : i + 1], weight, bias, 0.2)[0]
            for i, s in enumerate(x.samples)
        ],
        harness.bound,
    )
