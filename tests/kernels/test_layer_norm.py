import numpy as np
import pytest

from kokoro_tvm.kernels import layer_norm


@pytest.mark.parametrize("channels", [1, 22, 50, 128, 1090])
@pytest.mark.parametrize("slope", [None, 0.2])
def test_agrees_with_twin(harness, channels, slope):
    lengths = harness.lengths()
    x = harness.ragged(lengths, channels)
    weight, bias = harness.normal(channels), harness.normal(channels)
    harness.check(
        layer_norm.kernel(channels, 1e-5, slope, harness.tile),
        [x, harness.LENGTHS, weight, bias],
        lengths,
        harness.Output(lambda n: (n, channels)),
        [layer_norm.reference(s[None], [len(s)], weight, bias, 1e-5, slope)[0] for s in x.samples],
        layer_norm.TOLERANCE,
    )


def test_large_mean_does_not_cancel(harness):
    channels = 512
    x = harness.normal(1, 9, channels) + np.float32(1000)
    weight, bias = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    kernel = harness.build(layer_norm.kernel(channels, 1e-5, None, harness.tile))
    y = harness.run(kernel, x, np.array([9]), weight, bias, np.zeros_like(x))
    assert harness.error(y, layer_norm.reference(x, [9], weight, bias, 1e-5)) < 1000 * layer_norm.TOLERANCE


def test_twin_is_pytorch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    x, weight, bias = rng.standard_normal((1, 7, 20)), rng.standard_normal(20), rng.standard_normal(20)
    expected = torch.nn.functional.layer_norm(torch.tensor(x), (20,), torch.tensor(weight), torch.tensor(bias), 1e-12)
    expected = torch.nn.functional.leaky_relu(expected, 0.2).numpy()
    np.testing.assert_allclose(layer_norm.reference(x, [7], weight, bias, 1e-12, 0.2)[0], expected[0], rtol=1e-12, atol=1e-12)
