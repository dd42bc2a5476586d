import numpy as np
import pytest

from kokoro_tvm.kernels import depthwise_upsample


@pytest.mark.parametrize("channels", [1, 22, 512, 1090])
def test_agrees_with_twin(harness, channels):
    lengths = harness.lengths()
    x = harness.ragged(lengths, channels)
    coef = harness.normal(len(lengths), 2, channels)
    weight, bias = harness.normal(3, channels), harness.normal(channels)
    expected = [
        depthwise_upsample.reference(s[None], [len(s)], coef[i : i + 1], weight, bias, 0.2)[0] for i, s in enumerate(x.samples)
    ]
    harness.check(
        depthwise_upsample.kernel(channels, 0.2, harness.tile),
        [x, harness.LENGTHS, harness.PerSample(coef), weight, bias],
        lengths,
        harness.Output(lambda n: (2 * n, channels), rows=lambda n: 2 * n),
        expected,
        depthwise_upsample.TOLERANCE,
    )


def test_twin_is_pytorch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x, weight, bias = rng.standard_normal((1, 9, 4)), rng.standard_normal((3, 4)), rng.standard_normal(4)
    coef = np.stack([np.ones((1, 4)), np.zeros((1, 4))], axis=1)
    activated = torch.nn.functional.leaky_relu(torch.tensor(x[0].T[None]), 0.2)
    kernel = torch.tensor(weight.T[:, None])
    expected = torch.nn.functional.conv_transpose1d(activated, kernel, torch.tensor(bias), 2, 1, output_padding=1, groups=4)
    actual = depthwise_upsample.reference(x, [9], coef, weight, bias, 0.2)[0]
    np.testing.assert_allclose(actual, expected[0].T.numpy(), rtol=1e-12, atol=1e-12)
