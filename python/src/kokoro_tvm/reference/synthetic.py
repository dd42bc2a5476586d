"""Seeded weights of the full architecture, calibrated so that the activations are like the real ones.

What it is: a stand-in for the published checkpoint, in the published file format, for tests and for machines without
the download. What it is not: a voice. The audio is structured noise with a pitch contour.

Every parameter is drawn from a generator keyed by the seed and the parameter's name, with a variance that keeps each
stage near unit scale. Four read-outs would still be arbitrary, so they are built or measured:

* durations: an ordinal read-out (logit k says "longer than t_k") of one direction of the predictor's LSTM, whose mean
  and spread are measured;
* F0: three hinges of one instance-normalized channel, a steep step from unvoiced to voiced and a slope above it, so the
  share of voiced frames hardly depends on the text or the voice;
* N: an affine read-out, measured;
* the log-magnitudes of the inverse STFT: spread and level, measured.

Measured in float64 and rounded to 2⁻²⁰, so that the thread count does not show in the weights.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from kokoro.istftnet import AdaIN1d, AdaINResBlock1
from kokoro.modules import AdaLayerNorm, LayerNorm
from torch import nn

from kokoro_tvm.config import STYLE_ROWS, ModelConfig
from kokoro_tvm.reference import components
from kokoro_tvm.reference.checkpoint import CHECKPOINT_FILE, CONFIG_FILE, SYNTHETIC_MARKER
from kokoro_tvm.reference.model import PARTS, ReferenceModel, published_config

FORMAT = 1
"""Raised when the same seed starts to give other weights."""

MEAN_LOG_FRAMES = 0.85
LOG_FRAMES_SPREAD = 0.42
LONGEST_FRAMES = 14
"""Durations: log-normal around 2.3 frames, as in a real utterance; the longest a phoneme gets."""
DURATION_SHARPNESS = 5.0
"""Logits per standard deviation of the duration's direction: neighbouring durations overlap a little."""

RIDGE = 0.05
"""Of the mean variance between utterances: how much of it the duration's direction may keep."""

UNVOICED_BELOW = -0.6
STEP_WIDTH = 0.2
LOWEST_HZ, HIGHEST_HZ = 110.0, 270.0
HIGHEST_AT = 2.0
"""F0 as a function of a zero-mean, unit-variance contour: 0 Hz, a steep step, then a slope to a ceiling."""

N_MEAN, N_SPREAD = 2.3, 5.0
"""Of the energy curve in a real utterance."""
LOG_MAGNITUDE_SPREAD = 0.7
AUDIO_PEAK = 0.25
"""Of the short utterances measured; longer ones peak higher, and all should fall in 0.1 … 1."""

Sample = tuple[torch.Tensor, torch.Tensor]
"""Token ids int64 [1, N] and a style row [1, 256] to calibrate on."""

_CALIBRATION_PHONEMES = 24
_CALIBRATION_SAMPLES = 48
_AUDIO_SAMPLES = 2


class Draw:
    """Random tensors that depend on the seed, the name and the shape only, not on the order of drawing."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def generator(self, name: str) -> torch.Generator:
        """A generator of its own for every name."""
        digest = hashlib.sha256(f"{self.seed}:{name}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)

    def normal(self, name: str, *shape: int, std: float = 1.0, mean: float = 0.0) -> torch.Tensor:
        """Normally distributed values."""
        return torch.randn(shape, generator=self.generator(name)) * std + mean

    def uniform(self, name: str, *shape: int, low: float, high: float) -> torch.Tensor:
        """Uniformly distributed values."""
        return torch.rand(shape, generator=self.generator(name)) * (high - low) + low


def write_synthetic_checkpoint(directory: Path | str, seed: int = 0, config: ModelConfig | None = None) -> Path:
    """Writes ``kokoro-v1_0.pth`` and ``config.json`` with seeded, calibrated weights.

    Args:
        directory: Created where it does not exist.
        seed: Same seed, same bytes.
        config: The architecture; default: the published one. See :func:`tiny_config`.

    Returns:
        The path of the weight file, which ``load_checkpoint`` reads and reports as synthetic. Like the published file
        it has ``module.`` prefixes and no affine parameters of the instance norms.
    """
    config = config or published_config()
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    model = synthetic_model(seed, config)
    content: dict[str, object] = {part: _published_form(getattr(model, part)) for part in PARTS}
    content[SYNTHETIC_MARKER] = {"seed": seed, "format": FORMAT}
    path = directory / CHECKPOINT_FILE
    torch.save(content, path)
    text = json.dumps(config.to_dict(), indent=2, ensure_ascii=False)
    (directory / CONFIG_FILE).write_text(text + "\n", encoding="utf-8")
    return path


def synthetic_model(seed: int, config: ModelConfig) -> ReferenceModel:
    """The calibrated model itself, float32, in evaluation mode."""
    draw = Draw(seed)
    with torch.random.fork_rng(devices=[]):
        model = ReferenceModel(config).requires_grad_(False)
    _fill(model, draw)
    _shape_f0(model, draw)
    _widen(model, torch.float64)
    samples = [_sample(model, draw, i) for i in range(_CALIBRATION_SAMPLES)]
    _calibrate_duration(model, samples, draw)
    _calibrate_n(model, samples[:_AUDIO_SAMPLES])
    _calibrate_spectrum(model, samples[:_AUDIO_SAMPLES])
    _widen(model, torch.float32)
    return model


def synthetic_voice(seed: int) -> torch.Tensor:
    """A style tensor ``float32 [510, 1, 256]``, spread like a published voice.

    Published voices have a standard deviation of 0.15–0.2 and drift by about 0.005 from one row to the next.
    """
    draw = Draw(seed)
    base = draw.normal("voice.base", 1, 1, 256, std=0.16)
    steps = draw.normal("voice.drift", STYLE_ROWS, 1, 256, std=0.004)
    return base + steps.cumsum(dim=0) * 0.3 + steps


def write_synthetic_voice(path: Path | str, seed: int = 0) -> Path:
    """Writes :func:`synthetic_voice`: raw little-endian float32 for ``.bin``, ``torch.save`` for any other suffix."""
    path = Path(path)
    voice = synthetic_voice(seed)
    if path.suffix == ".bin":
        voice.numpy().astype("<f4").tofile(path)
    else:
        torch.save(voice, path)
    return path


def tiny_config() -> ModelConfig:
    """The smallest configuration of the same shapes: what ``Decoder`` and the style split hard-code stays.

    One ALBERT layer of width 64, one layer per encoder, one generator kernel. About a third of the parameters.
    """
    full = published_config()
    bert = replace(full.plbert, hidden_size=64, num_attention_heads=4, intermediate_size=128, num_hidden_layers=1)
    net = replace(full.istftnet, resblock_kernel_sizes=(3,), resblock_dilation_sizes=((1, 3, 5),))
    return replace(full, plbert=bert, istftnet=net, n_layer=1)


def synthetic_phonemes(seed: int, count: int, config: ModelConfig) -> str:
    """``count`` symbols of the vocabulary, with a space about every sixth."""
    generator = Draw(seed).generator("phonemes")
    symbols = sorted(s for s in config.vocab if s != " ")
    picks = torch.randint(len(symbols) + len(symbols) // 5, (count,), generator=generator).tolist()
    return "".join(symbols[p] if p < len(symbols) else " " for p in picks)


def _published_form(part: nn.Module) -> dict[str, torch.Tensor]:
    return {f"module.{k}": v.detach().clone() for k, v in part.state_dict().items() if ".norm." not in k}


# Filling: every parameter once, by the type of its module.


def _fill(model: ReferenceModel, draw: Draw) -> None:
    for name, module in model.named_modules():
        for kind, fill in _FILLERS.items():
            if isinstance(module, kind):
                fill(module, name, draw)
                break
    _scale_inputs(model)


def _fill_embedding(module: nn.Embedding, name: str, draw: Draw) -> None:
    # Words carry the text; positions and the constant token type only tint it.
    std = 0.3 if "position" in name or "token_type" in name else 1.0
    module.weight.copy_(draw.normal(name, *module.weight.shape, std=std))


def _fill_norm(module: nn.LayerNorm | LayerNorm, name: str, draw: Draw) -> None:
    for key, parameter in module.named_parameters():
        mean = 1.0 if key in ("weight", "gamma") else 0.0
        parameter.copy_(draw.normal(f"{name}.{key}", *parameter.shape, std=0.1, mean=mean))


def _fill_style(module: AdaIN1d | AdaLayerNorm, name: str, draw: Draw) -> None:
    # A style of spread 0.17 moves gain and offset by about 0.2 (between LSTMs, which sum a constant up, 0.07), against
    # a constant spread of 0.1.
    fc = module.fc
    std = 0.035 if isinstance(module, AdaLayerNorm) else 0.11
    fc.weight.copy_(draw.normal(f"{name}.weight", *fc.weight.shape, std=std))
    fc.bias.copy_(draw.normal(f"{name}.bias", *fc.bias.shape, std=0.1))


def _fill_linear(module: nn.Linear, name: str, draw: Draw) -> None:
    if name.endswith(".fc"):  # AdaIN1d and AdaLayerNorm have filled theirs
        return
    # Sharp queries and keys, and branches that only add a little, or twelve rounds of ALBERT's one layer make all
    # tokens of a text alike.
    gains = {"query": 1.5, "key": 1.5, "dense": 0.2, "ffn_output": 0.3}
    gain = gains.get(name.rpartition(".")[2], 1.0)
    module.weight.copy_(draw.normal(f"{name}.weight", *module.weight.shape, std=gain / math.sqrt(module.in_features)))
    module.bias.copy_(draw.normal(f"{name}.bias", *module.bias.shape, std=0.1))


def _fill_lstm(module: nn.LSTM, name: str, draw: Draw) -> None:
    hidden = module.hidden_size
    for key, parameter in module.named_parameters():
        scale = {"weight_ih": 2 / math.sqrt(module.input_size), "weight_hh": 0.8 / math.sqrt(hidden)}.get(key[:9], 0.1)
        parameter.copy_(draw.normal(f"{name}.{key}", *parameter.shape, std=scale))
        if key.startswith("bias_ih"):
            # Forget gates of 0.2 to 0.8: enough memory to show padding that leaks in, not so much that four LSTMs in a
            # row average the phonemes away.
            parameter[hidden : 2 * hidden] += draw.uniform(f"{name}.{key}.forget", hidden, low=-1.5, high=1.5)


def _fill_conv(module: nn.Conv1d | nn.ConvTranspose1d, name: str, draw: Draw) -> None:
    shape = _weight(module).shape
    taps = shape[1] * shape[2]
    if isinstance(module, nn.ConvTranspose1d):
        # [in, out / groups, K]: an output sample sees K / stride taps of every input channel of its group.
        taps = module.in_channels // module.groups * shape[2] / module.stride[0]
    gain = 0.5 if ".convs2." in name else 1.2  # residual branches of the generator add up three times
    set_weight(module, draw.normal(f"{name}.weight", *shape, std=gain / math.sqrt(taps)), draw, name)
    if module.bias is not None:
        module.bias.copy_(draw.normal(f"{name}.bias", *module.bias.shape, std=0.1))


def _fill_snake(module: AdaINResBlock1, name: str, draw: Draw) -> None:
    for kind, alphas in (("alpha1", module.alpha1), ("alpha2", module.alpha2)):
        for i, alpha in enumerate(alphas):
            alpha.copy_(draw.normal(f"{name}.{kind}.{i}", *alpha.shape, std=0.3).exp())


_FILLERS: dict[type | tuple[type, ...], Callable[..., None]] = {
    nn.Embedding: _fill_embedding,
    (nn.LayerNorm, LayerNorm): _fill_norm,
    (AdaIN1d, AdaLayerNorm): _fill_style,
    nn.LSTM: _fill_lstm,
    (nn.Conv1d, nn.ConvTranspose1d): _fill_conv,
    AdaINResBlock1: _fill_snake,
    nn.Linear: _fill_linear,
}


def _weight(conv: nn.Module) -> torch.Tensor:
    return conv.weight_v if hasattr(conv, "weight_v") else conv.weight


def set_weight(conv: nn.Module, weight: torch.Tensor, draw: Draw | None = None, name: str = "") -> None:
    """Sets the effective weight of a convolution, through ``weight_g`` and ``weight_v`` where it is weight-normed.

    ``weight_v`` gets a length of its own per slice, so that code which forgets to normalize it is found out.
    """
    if not hasattr(conv, "weight_v"):
        conv.weight.copy_(weight)
        return
    conv.weight_g.copy_(weight.flatten(1).norm(dim=1).reshape(conv.weight_g.shape))
    stretch = draw.normal(f"{name}.stretch", *conv.weight_g.shape, std=0.3).exp() if draw else 1.0
    conv.weight_v.copy_(weight * stretch)


def effective_weight(conv: nn.Module) -> torch.Tensor:
    """The weight that a convolution multiplies with."""
    if not hasattr(conv, "weight_v"):
        return conv.weight.clone()
    return torch._weight_norm(conv.weight_v, conv.weight_g, 0)


def _scale_inputs(model: ReferenceModel) -> None:
    """Brings the inputs of unlike scale (Hz, STFT phase and magnitude, sines of 0.1) to where they matter alike."""
    decoder = model.decoder
    set_weight(decoder.F0_conv, effective_weight(decoder.F0_conv) / 150)
    set_weight(decoder.N_conv, effective_weight(decoder.N_conv) / 5)
    for block in (decoder.encode, *decoder.decode):
        for conv in (block.conv1, block.conv1x1):
            weight = effective_weight(conv)
            if weight.shape[1] == block.norm1.norm.num_features:  # F0 and N are the last two input channels
                weight[:, -2:] *= 4
                set_weight(conv, weight)
    source = decoder.generator.m_source.l_linear
    source.weight.mul_(0.25 * math.sqrt(source.in_features))
    for conv in decoder.generator.noise_convs:
        bins = conv.in_channels // 2
        conv.weight[:, :bins] *= 3.0  # magnitudes of about 0.3
        conv.weight[:, bins:] *= 0.5  # phases spread over ±π


# Read-outs that are built.


def _thresholds(count: int) -> torch.Tensor:
    """t_k in standard deviations: a duration of about k frames where u = t_k; beyond the longest they run away."""
    k = torch.arange(count) + 0.5
    ordinal = (k.log() - MEAN_LOG_FRAMES) / LOG_FRAMES_SPREAD
    return torch.where(k < LONGEST_FRAMES, ordinal, ordinal + (k - LONGEST_FRAMES))


def _shape_f0(model: ReferenceModel, draw: Draw) -> None:
    """Rewires the last F0 block: three copies of one channel, offset, whose leaky ReLUs combine into the F0 curve.

    With slope 1 above and 0.2 below their hinge, hinges whose weights sum to zero give a curve that is flat at both
    ends.
    """
    block, proj = model.predictor.F0[2], model.predictor.F0_proj
    knees = torch.tensor([UNVOICED_BELOW, UNVOICED_BELOW + STEP_WIDTH, HIGHEST_AT])
    slopes = torch.tensor([LOWEST_HZ / STEP_WIDTH, (HIGHEST_HZ - LOWEST_HZ) / (HIGHEST_AT - knees[1].item()), 0.0])
    heights = torch.diff(slopes, prepend=torch.zeros(1)) / 0.8
    _copy_channel(block, offsets=-knees)
    channels = proj.in_channels
    pattern = draw.normal("f0.pattern", channels).sign() * 2.0
    weight = effective_weight(block.conv2) * 0.2
    weight[:, :3] = 0.0
    weight[:, :3, 1] = pattern[:, None] * heights / 100.0
    set_weight(block.conv2, weight)
    gain = 100.0 * math.sqrt(2.0)  # undoes the scaling above and AdainResBlk1d's 1/√2
    proj.weight.copy_((pattern * gain / pattern.square().sum())[None, :, None])
    floor = 0.2 * (heights * -knees).sum()
    proj.bias.copy_(-floor.reshape(1))


def _copy_channel(block: nn.Module, offsets: torch.Tensor) -> None:
    """Makes channels 0, 1, 2 of ``block.norm2`` equal but for ``offsets``, and mild in their style."""
    conv, fc = block.conv1, block.norm2.fc
    weight = effective_weight(conv)
    weight[1:3] = weight[:1]
    set_weight(conv, weight)
    conv.bias[1:3] = conv.bias[0]
    half = fc.out_features // 2
    for rows in (slice(0, 3), slice(half, half + 3)):
        fc.weight[rows] = 0.5 * fc.weight[rows][:1]
        fc.bias[rows] = 0.0
    fc.bias[half : half + 3] = offsets


# Read-outs that are measured.


def _sample(model: ReferenceModel, draw: Draw, index: int) -> Sample:
    """Token ids ``[1, N]`` and a style row ``[1, 256]`` to calibrate on."""
    seed = int(draw.generator(f"calibration.{index}").initial_seed() % 2**31)
    phonemes = synthetic_phonemes(seed, _CALIBRATION_PHONEMES, published_config())
    ids = components.token_ids(model, phonemes)
    return ids, components.style_row(synthetic_voice(seed), ids)


def _calibrate_duration(model: ReferenceModel, samples: list[Sample], draw: Draw) -> None:
    """Thresholds on one direction of the LSTM's output: logit k is sharpness · (u − t_k) with u standardized.

    The direction is a random one, shrunk where the means of the samples differ, or every voice and text would have one
    duration of its own. It is standardized on other samples than it was fitted on.
    """
    with _inputs_of(model.predictor.duration_proj) as seen:
        for ids, style in samples:
            components.run_duration(model, components.run_bert(model, ids), style[:, components.PREDICTOR_STYLE])
    hidden = torch.stack([x[0] for x in seen])  # [samples, N, features]
    half = len(samples) * 3 // 4
    between = torch.cov(hidden[:half].mean(dim=1).T)
    proj = model.predictor.duration_proj.linear_layer
    count, features = proj.weight.shape
    direction = draw.normal("duration.direction", features).to(hidden.dtype)
    ridge = RIDGE * between.trace() / features
    direction = ridge * torch.linalg.solve(between + ridge * torch.eye(features, dtype=hidden.dtype), direction)
    u = hidden[half:] @ direction
    gain = 1 / u.std()
    detail = draw.normal("duration.detail", count, features, std=0.05).to(hidden.dtype)
    proj.weight.copy_(_rounded(DURATION_SHARPNESS * gain * (direction + detail)))
    proj.bias.copy_(_rounded(-DURATION_SHARPNESS * (gain * u.mean() + _thresholds(count))))


def _calibrate_n(model: ReferenceModel, samples: list[Sample]) -> None:
    curves = torch.cat([_prosody(model, ids, style)[2].flatten() for ids, style in samples])
    gain = _rounded(N_SPREAD / curves.std())
    proj = model.predictor.N_proj
    proj.weight.mul_(gain)
    proj.bias.mul_(gain).add_(_rounded(N_MEAN - gain * curves.mean()))


def _calibrate_spectrum(model: ReferenceModel, samples: list[Sample]) -> None:
    """First the spread of the log-magnitudes and phases, channel by channel, then the level of the audio."""
    generator = model.decoder.generator
    conv, bins = generator.conv_post, generator.conv_post.out_channels // 2
    with _outputs_of(conv) as seen:
        for ids, style in samples:
            _speak(model, ids, style)
    rows = torch.cat([y[0] for y in seen], dim=1)
    spread = torch.full((2 * bins,), LOG_MAGNITUDE_SPREAD, dtype=rows.dtype)
    spread[bins:] *= 2
    gain = _rounded(spread / rows.std(dim=1))
    mean = _rounded(gain * rows.mean(dim=1))
    conv.weight_g.mul_(gain[:, None, None])
    conv.bias.mul_(gain).sub_(mean)
    standard = [y * gain[:, None] - mean[:, None] for y in seen]  # what the convolution gives from now on
    peaks = [generator.stft.inverse(y[:, :bins].exp(), y[:, bins:].sin()).abs().max() for y in standard]
    conv.bias[:bins] += _rounded(math.log(AUDIO_PEAK) - torch.stack(peaks).log().mean())


def _widen(model: ReferenceModel, dtype: torch.dtype) -> None:
    model.to(dtype)
    model.decoder.generator.stft.window = model.decoder.generator.stft.window.to(dtype)


def _prosody(model: ReferenceModel, ids: torch.Tensor, style: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """``repeats`` [N], F0 and N of one sample."""
    prosody = style[:, components.PREDICTOR_STYLE]
    d, duration = components.run_duration(model, components.run_bert(model, ids), prosody)
    repeats = duration[0].round().clamp(min=1).long()
    return repeats, *components.run_f0n(model, d.transpose(1, 2).repeat_interleave(repeats, dim=2), prosody)


def _speak(model: ReferenceModel, ids: torch.Tensor, style: torch.Tensor) -> torch.Tensor:
    repeats, f0, n = _prosody(model, ids, style)
    asr = components.run_text_encoder(model, ids).repeat_interleave(repeats, dim=2)
    return components.run_decoder(model, asr, f0, n, style[:, components.DECODER_STYLE], components.seeded_noise(0))


def _rounded(values: torch.Tensor) -> torch.Tensor:
    return (values * 2.0**20).round() / 2.0**20


@contextmanager
def _inputs_of(module: nn.Module) -> Iterator[list[torch.Tensor]]:
    seen: list[torch.Tensor] = []
    hook = module.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    try:
        yield seen
    finally:
        hook.remove()


@contextmanager
def _outputs_of(module: nn.Module) -> Iterator[list[torch.Tensor]]:
    seen: list[torch.Tensor] = []
    hook = module.register_forward_hook(lambda _, args, output: seen.append(output.clone()))
    try:
        yield seen
    finally:
        hook.remove()
