import pytest

from kokoro_tvm.kernels import ada_layer_norm


@pytest.mark.parametrize("channels", [1, 22, 50, 512, 1090])
def test_agrees_with_twin(harness, channels):
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
            ada_layer_norm.reference(s[None], [len(s)], affine[b : b + 1], style[b : b + 1], offset, 1e-5)[0]
            for b, s in enumerate(x.samples)
        ],
        ada_layer_norm.TOLERANCE,
    )


def test_columns_must_exist(harness):
    with pytest.raises(ValueError, match="columns 5 to 21 are not in an affine of 20"):
        ada_layer_norm.kernel(8, 4, 20, 5, 1e-5, harness.tile)
