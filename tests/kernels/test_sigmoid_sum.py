import numpy as np
import pytest

from kokoro_tvm.kernels import sigmoid_sum


@pytest.mark.parametrize("channels", [1, 22, 50, 1090])
def test_agrees_with_twin(harness, channels):
    lengths = harness.lengths()
    x = harness.ragged(lengths, channels)
    harness.check(
        sigmoid_sum.kernel(channels, harness.tile),
        [x, harness.LENGTHS],
        lengths,
        harness.Output(lambda n: (n,), zero=True),
        [sigmoid_sum.reference(s[None], [len(s)])[0] for s in x.samples],
        sigmoid_sum.TOLERANCE,
    )


def test_extreme_logits(harness):
    x = np.array([[[-1e30, 1e30, -200.0, 200.0, 0.0]]], np.float32)
    kernel = harness.build(sigmoid_sum.kernel(5, harness.tile))
    assert harness.run(kernel, x, np.array([1]), np.zeros((1, 1), np.float32))[0, 0] == 2.5
