"""Hop one: eager kokoro to the export-ready rewrite, both in float64, on padded buffers with NaN in the padding."""

from __future__ import annotations

import pytest
import torch

from kokoro_tvm.export import ops
from kokoro_tvm.export.modules import COMPONENTS, folded_weight
from kokoro_tvm.reference import components as reference
from kokoro_tvm.reference.checkpoint import build_model
from kokoro_tvm.reference.synthetic import synthetic_voice

FLOOR = 200.0
"""dB: the rewrite is exact algebra, so that only float64 rounding is left."""
PHONEMES = "həlˈO wˈɜɹld"


@pytest.fixture(scope="module")
def model(tiny_checkpoint):
    return build_model(tiny_checkpoint, torch.float64)


@pytest.fixture(scope="module")
def truth(model):
    """Inputs and outputs of every component, from the eager model."""
    ids = reference.token_ids(model, PHONEMES)
    row = reference.style_row(synthetic_voice(1), ids).double()
    style, timbre = row[:, 128:], row[:, :128]
    d_en = reference.run_bert(model, ids)
    d, duration = reference.run_duration(model, d_en, style)
    t_en = reference.run_text_encoder(model, ids)
    index = torch.repeat_interleave(torch.arange(ids.shape[1]), torch.round(duration[0]).clamp(min=1).long())
    en, asr = d.transpose(1, 2)[..., index], t_en[..., index]
    f0, n = reference.run_f0n(model, en, style)
    noise = reference.seeded_noise(0)(len(index)).double()
    audio = reference.run_decoder(model, asr, f0, n, timbre, noise).reshape(1, -1)
    tokens, frames = torch.tensor([ids.shape[1]]), torch.tensor([len(index)])
    return {
        "bert": ((ids, tokens), (d_en,)),
        "duration": ((d_en, style, tokens), (d, duration)),
        "text_encoder": ((ids, tokens), (t_en,)),
        "f0n": ((en, style, frames), (f0, n)),
        "decoder": ((asr, f0, n, timbre, frames, noise), (audio,)),
    }


def _padded(tensor: torch.Tensor, factor: int = 2) -> torch.Tensor:
    """Twice the time axis (the longest one), NaN beyond; styles and lengths as they are."""
    if tensor.dim() == 1 or tensor.shape == (1, 128):
        return tensor
    axis = 1 if tensor.dim() == 2 or tensor.shape[2] == 9 else 2
    rest = torch.full_like(tensor, 0 if tensor.dtype == torch.int64 else float("nan"))
    return torch.cat([tensor] + [rest] * (factor - 1), dim=axis)


def _snr(actual: torch.Tensor, expected: torch.Tensor) -> float:
    valid = actual[tuple(slice(0, n) for n in expected.shape)]
    error = ((valid - expected) ** 2).sum()
    return float("inf") if error == 0 else float(10 * torch.log10((expected**2).sum() / error))


def _outputs(module, inputs):
    with torch.no_grad():
        outputs = module(*inputs)
    return outputs if isinstance(outputs, tuple) else (outputs,)


@pytest.mark.parametrize("name", COMPONENTS)
def test_rewrite_is_exact(model, truth, name):
    inputs, expected = truth[name]
    for outputs in (
        _outputs(COMPONENTS[name](model), inputs),
        _outputs(COMPONENTS[name](model), [_padded(t) for t in inputs]),
    ):
        for actual, reference_output in zip(outputs, expected, strict=True):
            assert actual.dtype == torch.float64
            assert _snr(actual, reference_output) >= FLOOR
            beyond = actual.clone()
            beyond[tuple(slice(0, n) for n in reference_output.shape)] = 0
            assert not beyond.any(), "not zero beyond the valid length"


@pytest.mark.parametrize("name", COMPONENTS)
def test_without_lengths_it_is_not(model, truth, name):
    inputs, expected = truth[name]
    padded = [torch.nan_to_num(_padded(t)) for t in inputs]
    with ops.ignore_lengths():
        outputs = _outputs(COMPONENTS[name](model), padded)
    assert min(_snr(a, e) for a, e in zip(outputs, expected, strict=True)) < 30


def test_weight_norm_is_folded():
    conv = torch.nn.utils.weight_norm(torch.nn.Conv1d(5, 7, 3))
    with torch.no_grad():
        conv.weight_g.uniform_(0.5, 2)
        conv(torch.zeros(1, 5, 3))
    assert torch.allclose(folded_weight(conv), conv.weight, rtol=1e-6)
