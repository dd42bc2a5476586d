"""Float16 factors in eager kokoro: where they are rounded, and where not."""

from __future__ import annotations

import pytest
import torch

from kokoro_tvm.reference import components
from kokoro_tvm.reference.synthetic import synthetic_voice
from kokoro_tvm.reference.trace import trace
from kokoro_tvm.validate.metrics import snr_db
from kokoro_tvm.validate.rounding import NARROW, half_products, rounded


def test_rounding():
    values = torch.tensor([1 + 2.0**-10, 1 + 2.0**-12, 1e9, -1e9], dtype=torch.float64)
    assert rounded(values).tolist() == [1 + 2.0**-10, 1.0, 65504.0, -65504.0]
    assert rounded(values).dtype == torch.float64


class Two(torch.nn.Module):
    """A model with a decoder and something before it."""

    def __init__(self, channels):
        super().__init__()
        self.before = torch.nn.Conv1d(NARROW, NARROW, 3, dtype=torch.float64)
        self.decoder = torch.nn.Conv1d(NARROW, channels, 3, dtype=torch.float64)


@pytest.mark.parametrize(("channels", "rounds"), [(NARROW, True), (NARROW - 1, False)])
def test_only_wide_convolutions_of_the_decoder(channels, rounds):
    torch.manual_seed(0)
    model, x = Two(channels), torch.randn(1, NARROW, 50, dtype=torch.float64)
    with torch.no_grad():
        exact = model.before(x), model.decoder(x)
        with half_products(model):
            found = model.before(x), model.decoder(x)
        by_hand = torch.conv1d(rounded(x), rounded(model.decoder.weight), model.decoder.bias)
        assert torch.equal(found[0], exact[0])
        assert torch.equal(found[1], by_hand if rounds else exact[1])
        assert torch.equal(model.decoder(x), exact[1]), "nothing is rounded afterwards"
    if rounds:
        assert 60 < snr_db(found[1], exact[1]) < 80, "two factors of 11 bits: 71 dB"


def test_in_the_model_nothing_before_the_decoder_changes(tiny64):
    ids = components.token_ids(tiny64, "hˈO")
    style = components.style_row(synthetic_voice(7), ids)
    noise = components.seeded_noise(0)
    exact = trace(tiny64, ids, style, noise, 1.0)
    with half_products(tiny64):
        found = trace(tiny64, ids, style, noise, 1.0)
    assert torch.equal(found["f0"], exact["f0"])
    assert torch.equal(found["har_source"], exact["har_source"])
    assert not torch.equal(found["decoder.encode"], exact["decoder.encode"])
