import numpy as np
import pytest

from kokoro_tvm.kernels import embed

VOCABULARY = 30


@pytest.mark.parametrize("channels", [1, 22, 50, 128, 1090])
@pytest.mark.parametrize("positions", [False, True])
def test_agrees_with_twin(harness, channels, positions):
    lengths = harness.lengths()
    # Padding ids point to a row of NaN: a kernel that looked them up would show it.
    ids = harness.Ragged([harness.rng.integers(0, VOCABULARY - 1, n) for n in lengths], poison=VOCABULARY - 1)
    table, place = harness.normal(VOCABULARY, channels), harness.normal(512, channels)
    table[-1] = np.nan
    extra = [place] if positions else []
    harness.check(
        embed.kernel(channels, VOCABULARY, positions, harness.tile),
        [ids, harness.LENGTHS, table, *extra],
        lengths,
        harness.Output(lambda n: (n, channels)),
        [embed.reference(s[None], [len(s)], table, *extra)[0] for s in ids.samples],
        embed.TOLERANCE if positions else 0.0,
    )
