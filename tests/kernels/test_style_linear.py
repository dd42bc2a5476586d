import numpy as np
import pytest

from kokoro_tvm.kernels import conv1d, style_linear


@pytest.mark.parametrize("c_in", [1, 22, 128])
@pytest.mark.parametrize("c_out", [1, 22, 1090, 2048])
def test_agrees_with_twin(harness, c_in, c_out):
    width = harness.tile.width
    style, weight, bias = harness.normal(3, c_in), harness.normal(c_out, c_in), harness.normal(c_out)
    kernel = harness.build(style_linear.kernel(c_in, c_out, harness.tile))

    def call(rows: np.ndarray) -> np.ndarray:
        packed = style_linear.pack_weight(weight, width), conv1d.pack_bias(bias, width)
        return harness.run(kernel, rows, *packed, np.zeros((len(rows), c_out), np.float32))

    y = call(style)
    assert harness.error(y, style_linear.reference(style, weight, bias)) <= style_linear.TOLERANCE
    assert y.tobytes() == np.concatenate([call(style[b : b + 1]) for b in range(3)]).tobytes()
    assert y.tobytes() == harness.one_thread(lambda: call(style)).tobytes()
