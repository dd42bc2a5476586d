import numpy as np
import pytest

from kokoro_tvm.kernels import layout


@pytest.mark.parametrize("channels", [1, 22, 50, 1090])
class TestLayout:
    def test_to_rows(self, harness, channels):
        lengths = [*harness.lengths(), layout.LINE, layout.LINE + 1]
        x = harness.Ragged([harness.normal(channels, n) for n in lengths], axis=1)
        harness.check(
            layout.to_rows(channels, harness.tile),
            [x, harness.LENGTHS],
            lengths,
            harness.Output(lambda n: (n, channels)),
            [s.T for s in x.samples],
            layout.TOLERANCE,
        )

    def test_to_columns(self, harness, channels):
        lengths = [*harness.lengths(), layout.LINE, layout.LINE + 1]
        x = harness.ragged(lengths, channels)
        harness.check(
            layout.to_columns(channels, harness.tile),
            [x, harness.LENGTHS],
            lengths,
            harness.Output(lambda n: (channels, n), axis=1, zero=True),
            [s.T for s in x.samples],
            layout.TOLERANCE,
        )

    def test_mask_rows(self, harness, channels):
        lengths = harness.lengths()
        x = harness.ragged(lengths, channels)
        harness.check(
            layout.mask_rows(channels, harness.tile),
            [x, harness.LENGTHS],
            lengths,
            harness.Output(lambda n: (n, channels), zero=True),
            [layout.reference(s[None], [len(s)])[0] for s in x.samples],
            layout.TOLERANCE,
        )


def test_twin_clears_the_padding():
    x = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    x[0, 1:] = np.nan
    np.testing.assert_array_equal(layout.reference(x, [1, 3]), [[[0, 1], [0, 0], [0, 0]], [[6, 7], [8, 9], [10, 11]]])
