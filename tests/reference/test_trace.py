"""The trace is eager kokoro, in one dtype throughout, with the noise it was given."""

from __future__ import annotations

import math

import pytest
import torch

from kokoro_tvm.reference import components
from kokoro_tvm.reference.cases import CASES
from kokoro_tvm.reference.model import ReferenceModel, published_config
from kokoro_tvm.reference.synthetic import synthetic_voice
from kokoro_tvm.reference.trace import Trace, trace

IDS = torch.tensor([[0, 50, 83, 54, 156, 31, 16, 65, 156, 87, 123, 54, 46, 0]])
STYLE = synthetic_voice(7)[11]
NOISE = components.seeded_noise(3)
# fmt: off
NAMES = [
    "bert", "d_en", "duration_encoder.lstm.0", "duration_encoder.norm.0", "d", "duration.lstm", "duration",
    "pred_dur", "en", "f0n.shared", "f0n.f0.0", "f0n.f0.1", "f0n.f0.2", "f0", "f0n.n.0", "f0n.n.1", "f0n.n.2", "n",
    "text_encoder.cnn.0", "text_encoder.lstm", "t_en", "asr", "decoder.f0", "decoder.n", "decoder.encode",
    "decoder.asr_res", "decoder.decode.0", "decoder.decode.1", "decoder.decode.2", "decoder.decode.3", "har_source",
    "har_magnitude", "har_phase", "noise_conv.0", "noise_res.0", "ups.0", "resblocks.0", "noise_conv.1",
    "noise_res.1", "ups.1", "resblocks.1", "conv_post", "spectrum", "phase", "audio",
]
# fmt: on


@pytest.fixture(scope="module")
def truth(tiny64: ReferenceModel) -> Trace:
    return trace(tiny64, IDS, STYLE, NOISE)


@pytest.fixture(scope="module")
def yardstick(tiny32: ReferenceModel) -> Trace:
    return trace(tiny32, IDS, STYLE, NOISE)


def snr(reference: torch.Tensor, value: torch.Tensor) -> float:
    """Decibels."""
    reference, error = reference.double(), reference.double() - value.double()
    return 10 * math.log10(reference.square().sum() / max(error.square().sum().item(), 1e-300))


def test_names_and_shapes(truth: Trace) -> None:
    frames, count = truth.frames, IDS.shape[1]
    assert list(truth) == NAMES
    assert truth["pred_dur"].sum() == frames
    shapes = {
        "d": (1, count, 640), "duration": (1, count), "en": (1, 640, frames), "f0": (1, 2 * frames),
        "asr": (1, 512, frames), "decoder.decode.3": (1, 512, 2 * frames), "har_source": (1, 600 * frames),
        "har_phase": (1, 11, 120 * frames + 1), "ups.0": (1, 256, 20 * frames), "ups.1": (1, 128, 120 * frames),
        "resblocks.1": (1, 128, 120 * frames + 1), "audio": (1, 600 * frames),
    }  # fmt: skip
    assert {k: tuple(truth[k].shape) for k in shapes} == shapes


def test_every_tensor_has_the_model_s_dtype_and_memory_of_its_own(truth: Trace, yardstick: Trace) -> None:
    for result, dtype in ((truth, torch.float64), (yardstick, torch.float32)):
        assert {v.dtype for k, v in result.items() if k != "pred_dur"} == {dtype}
        assert result["pred_dur"].dtype == torch.int64
        assert len({v.untyped_storage().data_ptr() for v in result.values()}) == len(result)


def test_float32_trace_is_upstream_sample_by_sample(tiny32: ReferenceModel) -> None:
    torch.manual_seed(4)
    audio, pred_dur = tiny32.forward_with_tokens(IDS, STYLE, 1.1)
    torch.manual_seed(4)
    torch.rand(1, components.HARMONICS)  # SineGen draws its initial phases first
    sines = torch.empty(1, components.HARMONICS, 600 * int(pred_dur.sum())).transpose(1, 2)
    noise = torch.randn_like(sines)  # its order of drawing follows the strides, which upstream's sines have like this
    result = trace(tiny32, IDS, STYLE, noise, speed=1.1)
    assert torch.equal(result["pred_dur"], pred_dur)
    assert torch.equal(result["audio"][0], audio)


def test_float64_is_not_float32_in_disguise(truth: Trace, yardstick: Trace) -> None:
    """Values that went through float32 would be representable in it; and the two runs agree as float32 should."""
    for name, value in truth.items():
        if name != "pred_dur":
            assert (value == value.float().double()).float().mean() < 0.3, name
    for name in ("d_en", "d", "t_en"):
        assert snr(truth[name], yardstick[name]) > 100, name


def test_speed_divides_durations(tiny64: ReferenceModel, truth: Trace) -> None:
    fast = trace(tiny64, IDS, STYLE, NOISE, speed=2.0)
    assert torch.equal(fast["duration"], truth["duration"])
    assert torch.equal(fast["pred_dur"], (truth["duration"][0] / 2).round().clamp(min=1).long())


def test_components_give_what_the_trace_gives(tiny64: ReferenceModel, truth: Trace) -> None:
    prosody, timbre = STYLE[:, components.PREDICTOR_STYLE], STYLE[:, components.DECODER_STYLE]
    d, duration = components.run_duration(tiny64, truth["d_en"], prosody)
    f0, n = components.run_f0n(tiny64, truth["en"], prosody)
    har_source, magnitude, phase = components.run_source(tiny64, truth["f0"], NOISE)
    found = {
        "d_en": components.run_bert(tiny64, IDS), "d": d, "duration": duration, "f0": f0, "n": n,
        "t_en": components.run_text_encoder(tiny64, IDS), "har_source": har_source, "har_magnitude": magnitude,
        "har_phase": phase,
        "audio": components.run_decoder(tiny64, truth["asr"], truth["f0"], truth["n"], timbre, NOISE),
    }  # fmt: skip
    for name, value in found.items():
        assert value.dtype == torch.float64
        assert snr(truth[name], value) > 220, name


def test_given_spectrum_replaces_the_source(tiny32: ReferenceModel, truth: Trace) -> None:
    har = torch.cat([truth["har_magnitude"], truth["har_phase"]], dim=1)
    inputs = truth["asr"], truth["f0"], truth["n"], STYLE[:, components.DECODER_STYLE]
    assert snr(truth["audio"], components.run_decoder(tiny32, *inputs, None, har=har)) > 90
    assert "transform" not in vars(tiny32.decoder.generator.stft)
    with pytest.raises(ValueError, match="noise or its spectrum"):
        components.run_decoder(tiny32, *inputs, None)


def test_inputs_are_left_as_they_are(tiny64: ReferenceModel, truth: Trace) -> None:
    before = {k: v.clone() for k, v in truth.items()}
    ids, style = IDS.clone(), STYLE.clone()
    trace(tiny64, IDS, STYLE, NOISE)
    components.run_duration(tiny64, truth["d_en"], STYLE[:, components.PREDICTOR_STYLE].double())
    assert torch.equal(ids, IDS) and torch.equal(style, STYLE)
    assert all(torch.equal(before[k], truth[k]) for k in truth)


def test_noise_decides_the_unvoiced_part(tiny64: ReferenceModel, truth: Trace) -> None:
    again = trace(tiny64, IDS, STYLE, NOISE(truth.frames))
    other = trace(tiny64, IDS, STYLE, components.seeded_noise(4))
    assert torch.equal(again["audio"], truth["audio"])
    assert torch.equal(other["f0"], truth["f0"])
    assert not torch.equal(other["har_source"], truth["har_source"])


def test_rand_does_not_reach_the_output(tiny64: ReferenceModel, truth: Trace) -> None:
    torch.manual_seed(99)
    assert torch.equal(trace(tiny64, IDS, STYLE, NOISE)["audio"], truth["audio"])


def test_noise_of_another_shape_is_refused_and_nothing_stays_patched(tiny64: ReferenceModel) -> None:
    with pytest.raises(ValueError, match=r"noise is \[1, 600, 9\], the source needs"):
        trace(tiny64, IDS, STYLE, torch.zeros(1, 600, 9))
    hooks = [len(m._forward_hooks) for n, m in tiny64.named_modules() if "weight" not in n]
    assert sum(hooks) == 0
    assert torch.randn_like(torch.zeros(5, 9)).abs().sum() > 0
    assert torch.zeros(1).dtype == torch.float32


def test_noise_that_is_not_read_is_an_error(tiny64: ReferenceModel) -> None:
    with pytest.raises(RuntimeError, match="read 0 times"), components.arithmetic(tiny64, NOISE):
        pass


def test_a_single_phoneme(tiny64: ReferenceModel) -> None:
    assert torch.isfinite(trace(tiny64, torch.tensor([[0, 43, 0]]), STYLE, NOISE)["audio"]).all()


def test_style_row_follows_the_phoneme_count() -> None:
    voice = synthetic_voice(1)
    assert torch.equal(components.style_row(voice, IDS), voice[11])
    assert torch.equal(components.style_row(voice, torch.zeros(1, 2)), voice[0])
    assert torch.equal(components.style_row(voice, torch.zeros(1, 512)), voice[509])


def test_cases() -> None:
    vocab = published_config().vocab
    assert len(CASES) >= 20
    assert len({c.name for c in CASES}) == len(CASES)
    assert all(set(c.phonemes) <= vocab.keys() for c in CASES)
    assert set("".join(c.phonemes for c in CASES)) == vocab.keys()
    assert (min(len(c.phonemes) for c in CASES), max(len(c.phonemes) for c in CASES)) == (1, 510)
