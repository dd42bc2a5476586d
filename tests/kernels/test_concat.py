import pytest

from kokoro_tvm.kernels import concat


@pytest.mark.parametrize("channels", [(22, 50), (512, 1, 1), (1024, 64, 1, 1)])
def test_agrees_with_twin(harness, channels):
    lengths = harness.lengths()
    inputs = [harness.ragged(lengths, c) for c in channels]
    harness.check(
        concat.kernel(channels, harness.tile),
        [*inputs, harness.LENGTHS],
        lengths,
        harness.Output(lambda n: (n, sum(channels))),
        [concat.reference(tuple(x.samples[b][None] for x in inputs), [n])[0] for b, n in enumerate(lengths)],
        concat.TOLERANCE,
    )


@pytest.mark.parametrize("count", [1, 5])
def test_number_of_inputs(harness, count):
    with pytest.raises(ValueError, match="two to four"):
        concat.kernel((4,) * count, harness.tile)
