"""Each component of eager kokoro by itself, in the dtype of the model, with the source's noise injected.

What it is: thin calls into kokoro's own modules, so that a component can be judged on chosen inputs.
What it is not: the whole model with its intermediate tensors (``trace``), nor code that handles padding or batches: the
truth is one utterance at its own length.

Eager kokoro mixes dtypes in a few places, which would quietly turn the float64 oracle into float32 or fail: buffers
made with ``torch.zeros`` in the default dtype (``modules.py``: ``x_pad``; ``model.py``: ``pred_aln_trg``), and the
voicing mask cast to float32 (``istftnet.py``: ``SineGen._f02uv``). :class:`Arithmetic` redirects exactly these calls,
in the current thread only. ``torch.rsqrt(torch.tensor(2))`` of ``AdainResBlk1d`` stays the float32 number it is: it is
a constant of the model.

In float64 one more call is redirected. Reflect padding makes frame 0 of the source's STFT its own mirror image, so in exact
arithmetic its spectrum is real. The imaginary parts that an FFT returns there are rounding noise, and for a negative bin the
sign of that noise decides between a phase of π and -π: a whole turn, which the network behind it does not see as equal.
The truth must not hang on that, so :class:`Arithmetic` sets these imaginary parts to the +0 they are (:func:`real_edge`).
The float32 yardstick keeps upstream's noise, which is an error of upstream's arithmetic like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from kokoro.istftnet import SineGen
from torch.overrides import TorchFunctionMode

from kokoro_tvm.config import SAMPLES_PER_FRAME, STYLE_ROWS
from kokoro_tvm.reference.model import ReferenceModel

Noise = torch.Tensor | Callable[[int], torch.Tensor]
"""Standard normal ``[1, 600·M, 9]``, or a function from the duration frames M to it."""

HARMONICS = 9
"""Sines of the source: the fundamental and eight overtones (``SineGen.dim``)."""
PREDICTOR_STYLE = slice(128, 256)
"""Columns of a style row that the duration and F0/N predictors read (``KModel.forward_with_tokens``)."""
DECODER_STYLE = slice(0, 128)
"""Columns of a style row that the decoder reads."""


class Arithmetic(TorchFunctionMode):
    """Keeps eager kokoro in one dtype, and feeds the source's noise.

    Args:
        dtype: Of the model; ``torch.zeros`` without a dtype and casts to float32 use it.
        noise: What ``torch.randn_like`` returns inside ``SineGen.forward``; None leaves torch's own generator.
        canonical: In float64, make the STFT's frame 0 exactly real; False leaves the FFT's rounding noise.

    Attributes:
        consumed: How often the noise was read.
    """

    def __init__(self, dtype: torch.dtype, noise: Noise | None = None, canonical: bool = True) -> None:
        super().__init__()
        self.dtype = dtype
        self.noise = noise
        self.canonical = canonical and dtype == torch.float64
        self.consumed = 0
        self._in_source = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.zeros:
            kwargs.setdefault("dtype", self.dtype)
        elif func is torch.Tensor.type and args[1:] == (torch.float32,):
            args = (args[0], self.dtype)
        elif func is torch.randn_like and self._in_source and self.noise is not None:
            return self._read_noise(args[0])
        elif func is torch.stft and self.canonical:
            return real_edge(func(*args, **kwargs))
        return func(*args, **kwargs)

    def _read_noise(self, like: torch.Tensor) -> torch.Tensor:
        noise = self.noise(like.shape[1] // SAMPLES_PER_FRAME) if callable(self.noise) else self.noise
        if noise is None or noise.shape != like.shape:
            raise ValueError(f"noise is {list(noise.shape)}, the source needs {list(like.shape)}")
        self.consumed += 1
        return noise.to(like.dtype)

    def enter_source(self, *_: Any) -> None:
        """Forward pre-hook of ``SineGen``: only its own noise is replaced, not the unused one of its caller."""
        self._in_source = True

    def leave_source(self, *_: Any) -> None:
        """Forward hook of ``SineGen``."""
        self._in_source = False


def real_edge(spectrum: torch.Tensor) -> torch.Tensor:
    """``spectrum`` [..., bins, frames] of a centred STFT with reflect padding, its frame 0 made exactly real.

    The frame is symmetric about its centre, so every imaginary part is zero in exact arithmetic; it becomes +0, which gives
    negative bins the phase π. The bins at DC and Nyquist are real in every frame. The last frame is centred one sample
    beyond the last valid one and is no mirror image.
    """
    imaginary = spectrum.imag.clone()
    imaginary[..., 0] = 0
    imaginary[..., [0, -1], :] = 0
    return torch.complex(spectrum.real, imaginary)


@contextmanager
def arithmetic(model: ReferenceModel, noise: Noise | None = None, canonical: bool = True) -> Iterator[Arithmetic]:
    """Runs the body without gradients, in the dtype of ``model``, with ``noise`` as the source's noise.

    ``canonical`` is :class:`Arithmetic`'s.

    Raises:
        RuntimeError: The noise was given and not read exactly once.
    """
    mode = Arithmetic(dtype_of(model), noise, canonical)
    source: SineGen = model.decoder.generator.m_source.l_sin_gen
    hooks = (
        source.register_forward_pre_hook(mode.enter_source),
        source.register_forward_hook(mode.leave_source, always_call=True),
    )
    try:
        with torch.no_grad(), mode:
            yield mode
    finally:
        for hook in hooks:
            hook.remove()
    if noise is not None and mode.consumed != 1:
        raise RuntimeError(f"the source's noise was read {mode.consumed} times, expected once")


def dtype_of(model: ReferenceModel) -> torch.dtype:
    """The dtype of the model's parameters."""
    return model.bert_encoder.weight.dtype


def style_row(voice: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
    """The row ``[1, 256]`` of a voice ``[510, 1, 256]`` for ``input_ids [1, N]``, which hold N − 2 phonemes.

    ``kokoro/pipeline.py`` takes row ``len(phonemes) − 1``; no phonemes at all take the first row.
    """
    return voice[min(max(input_ids.shape[1] - 3, 0), STYLE_ROWS - 1)]


def token_ids(model: ReferenceModel, phonemes: str) -> torch.Tensor:
    """``int64 [1, N]`` with the boundary token 0 at both ends; unknown symbols are dropped (``KModel.forward``)."""
    known = [model.vocab[p] for p in phonemes if p in model.vocab]
    return torch.tensor([[0, *known, 0]])


def seeded_noise(seed: int) -> Callable[[int], torch.Tensor]:
    """A :data:`Noise` function: float32 from a generator of its own."""
    return lambda frames: torch.randn(
        1, SAMPLES_PER_FRAME * frames, HARMONICS, generator=torch.Generator().manual_seed(seed)
    )


def run_bert(model: ReferenceModel, input_ids: torch.Tensor) -> torch.Tensor:
    """``input_ids`` int64 [1, N] → ``d_en`` [1, 512, N]."""
    with arithmetic(model):
        hidden = model.bert(input_ids, attention_mask=torch.ones_like(input_ids, dtype=torch.int32))
        return model.bert_encoder(hidden).transpose(-1, -2)


def run_duration(model: ReferenceModel, d_en: torch.Tensor, style: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``d_en`` [1, 512, N], predictor style [1, 128] → ``d`` [1, N, 640], ``duration`` [1, N] in frames.

    The duration is neither divided by the speed nor rounded.
    """
    lengths, mask = _full(d_en.shape[2])
    with arithmetic(model) as mode:
        d_en, style = _cast(mode, d_en, style)
        d = model.predictor.text_encoder(d_en, style, lengths, mask)
        hidden, _ = model.predictor.lstm(d)
        return d, torch.sigmoid(model.predictor.duration_proj(hidden)).sum(dim=-1)


def run_text_encoder(model: ReferenceModel, input_ids: torch.Tensor) -> torch.Tensor:
    """``input_ids`` int64 [1, N] → ``t_en`` [1, 512, N]."""
    lengths, mask = _full(input_ids.shape[1])
    with arithmetic(model):
        return model.text_encoder(input_ids, lengths, mask)


def run_f0n(model: ReferenceModel, en: torch.Tensor, style: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``en`` [1, 640, M], predictor style [1, 128] → F0 in Hz [1, 2M] and N [1, 2M]."""
    with arithmetic(model) as mode:
        return model.predictor.F0Ntrain(*_cast(mode, en, style))


def run_source(
    model: ReferenceModel, f0: torch.Tensor, noise: Noise
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The harmonic source and its STFT (``Generator.forward``, first lines).

    Args:
        model: The reference model.
        f0: [1, 2M], Hz.
        noise: Standard normal [1, 600·M, 9].

    Returns:
        ``har_source`` [1, 600·M], magnitude and phase (radians) [1, 11, 120·M + 1].
    """
    generator = model.decoder.generator
    with arithmetic(model, noise) as mode:
        (f0,) = _cast(mode, f0)
        har_source, _, _ = generator.m_source(generator.f0_upsamp(f0[:, None]).transpose(1, 2))
        har_source = har_source.transpose(1, 2).squeeze(1)
        return har_source, *generator.stft.transform(har_source)


def run_decoder(
    model: ReferenceModel,
    asr: torch.Tensor,
    f0: torch.Tensor,
    n: torch.Tensor,
    style: torch.Tensor,
    noise: Noise | None,
    har: torch.Tensor | None = None,
    canonical: bool = True,
) -> torch.Tensor:
    """The decoder, optionally with the source's spectrum given.

    Args:
        model: The reference model.
        asr: [1, 512, M].
        f0: [1, 2M], Hz.
        n: [1, 2M].
        style: Decoder style [1, 128].
        noise: Standard normal [1, 600·M, 9]. May be None where ``har`` is given.
        har: [1, 22, 120·M + 1], magnitude then phase, in place of the source computed from ``f0`` and ``noise``. The
            source is the ill-conditioned part: with it fixed, the rest can be compared to many more digits.
        canonical: See :class:`Arithmetic`.

    Returns:
        Audio [1, 600·M].
    """
    if noise is None and har is None:
        raise ValueError("the decoder needs the source's noise or its spectrum")
    with arithmetic(model, None if har is not None else noise, canonical) as mode, _spectrum(model, har):
        return model.decoder(*_cast(mode, asr, f0, n, style)).squeeze(1)


def run_trunk(
    model: ReferenceModel, asr: torch.Tensor, f0: torch.Tensor, n: torch.Tensor, style: torch.Tensor
) -> torch.Tensor:
    """The decoder's blocks before the vocoder: arguments as ``run_decoder``, output [1, 512, 2M]."""
    generator = model.decoder.generator
    # As in ``_spectrum``: the instance's attribute hides the method.
    generator.forward = lambda x, *_: x
    try:
        with arithmetic(model) as mode:
            return model.decoder(*_cast(mode, asr, f0, n, style))
    finally:
        del generator.forward


def run_generator(model: ReferenceModel, x: torch.Tensor, style: torch.Tensor, har: torch.Tensor) -> torch.Tensor:
    """The vocoder behind the decoder's blocks, with the source's spectrum given.

    Args:
        model: The reference model.
        x: [1, 512, 2M], the output of the last decoder block.
        style: Decoder style [1, 128].
        har: [1, 22, 120·M + 1], magnitude then phase.

    Returns:
        Audio [1, 600·M].
    """
    # The F0 curve reaches the output only through the source, which is replaced.
    unused = torch.zeros(1, x.shape[2])
    with arithmetic(model) as mode, _spectrum(model, har):
        return model.decoder.generator(*_cast(mode, x, style, unused)).squeeze(1)


@contextmanager
def _spectrum(model: ReferenceModel, har: torch.Tensor | None) -> Iterator[None]:
    """Makes the forward STFT of this model return ``har``."""
    stft = model.decoder.generator.stft
    if har is None:
        yield
        return
    bins = har.shape[1] // 2
    # An attribute of the instance hides the method of the class until it is deleted.
    stft.transform = lambda _: (har[:, :bins].to(dtype_of(model)), har[:, bins:].to(dtype_of(model)))
    try:
        yield
    finally:
        del stft.transform


def _full(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``lengths [1]`` and the all-false padding mask ``[1, length]`` of one unpadded utterance."""
    return torch.tensor([length]), torch.zeros(1, length, dtype=torch.bool)


def _cast(mode: Arithmetic, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Copies in the model's dtype: upstream masks some of its inputs in place."""
    return tuple(t.detach().to(mode.dtype, copy=True) for t in tensors)
