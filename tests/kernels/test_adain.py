import numpy as np
import pytest
import tvm

from kokoro_tvm.kernels import adain


def _inputs(harness, lengths, channels, offset):
    affine = harness.normal(len(lengths), offset + 2 * channels + 3)
    return harness.ragged(lengths, channels), affine, harness.normal(channels), harness.normal(channels)


@pytest.mark.parametrize("channels", [1, 22, 128, 514, 1090])
def test_agrees_with_twin_and_ignores_padding(harness, channels):
    offset = 5
    lengths = [1, 2, adain.CHUNK - 1, adain.CHUNK, adain.CHUNK + 1, 3 * adain.CHUNK + 7]
    x, affine, weight, bias = _inputs(harness, lengths, channels, offset)
    kernel = harness.build(adain.kernel(channels, harness.tile))

    def run(members, capacity):
        coef = np.full((len(members), 2, channels), np.nan, np.float32)
        arrays = [x.batch(members, capacity), np.array([lengths[m] for m in members]), affine[members], weight, bias]
        tensors = [tvm.runtime.tensor(np.ascontiguousarray(a)) for a in arrays]
        result = tvm.runtime.tensor(coef)
        kernel(*tensors, offset, result)
        return result.numpy()

    everyone = list(range(len(lengths)))
    result = run(everyone, max(lengths))
    expected = adain.reference(x.batch(everyone, max(lengths)), np.array(lengths), affine, offset, weight, bias)
    for m in everyone[1:]:
        assert np.abs(result[m] - expected[m]).max() <= adain.TOLERANCE * np.abs(expected[m]).max()
    # One row has no variance: the scale is weight / sqrt(epsilon), and what cancels is of that size.
    assert np.abs(result[0] - expected[0]).max() <= adain.TOLERANCE * np.abs(expected[0]).max()
    for again in (run(everyone, 16 * max(lengths)), harness.one_thread(lambda: run(everyone, max(lengths)))):
        assert again.tobytes() == result.tobytes()
    for m in everyone:
        assert run([m], lengths[m])[0].tobytes() == result[m].tobytes()


def test_large_mean_does_not_cancel(harness):
    """E[x^2] - E[x]^2 in float32 would lose the variance altogether."""
    channels, n = 128, 4000
    x = harness.normal(1, n, channels) + np.float32(3000)
    ones, zeros = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    affine = np.zeros((1, 2 * channels), np.float32)
    coef = tvm.runtime.tensor(np.zeros((1, 2, channels), np.float32))
    kernel = harness.build(adain.kernel(channels, harness.tile))
    kernel(*(tvm.runtime.tensor(a) for a in (x, np.array([n]), affine, ones, zeros)), 0, coef)
    expected = adain.reference(x, np.array([n]), affine, 0, ones, zeros)
    assert np.abs(coef.numpy()[0, 0] / expected[0, 0] - 1).max() < 2e-4


def test_twin_is_pytorch():
    torch = pytest.importorskip("torch")
    from kokoro.istftnet import AdaIN1d

    norm = AdaIN1d(8, 6).double().eval()
    with torch.no_grad():
        norm.norm.weight.normal_()
        norm.norm.bias.normal_()
        x, style = torch.randn(1, 6, 31, dtype=torch.float64), torch.randn(1, 8, dtype=torch.float64)
        expected = norm(x, style)[0].T.numpy()
        affine = norm.fc(style).numpy()
    weight, bias = norm.norm.weight.detach().numpy(), norm.norm.bias.detach().numpy()
    coef = adain.reference(x.transpose(1, 2).numpy(), [31], affine, 0, weight, bias)
    np.testing.assert_allclose(x[0].T.numpy() * coef[0, 0] + coef[0, 1], expected, rtol=1e-11, atol=1e-11)
