"""Every intermediate tensor of one utterance through eager kokoro.

What it is: ``KModel.forward_with_tokens`` itself, run with hooks that copy what flows by. With a float64 model it is
the oracle, with a float32 model the yardstick of what upstream's own arithmetic loses. What it is not: a second
implementation. Three tensors that no module hands out (the mean of the residual blocks and the two halves of the
spectrum) are recomputed from their neighbours with upstream's expressions.

Tensors of a :class:`Trace`, in the order they are computed (N tokens, M duration frames, i from 0):

========================= ============== ==============================================================================
name                      shape          what
========================= ============== ==============================================================================
bert                      [1,N,H]        last hidden state of ALBERT
d_en                      [1,512,N]      projected by ``bert_encoder``
duration_encoder.lstm.i   [1,N,512]      output of each LSTM of ``DurationEncoder``
duration_encoder.norm.i   [1,N,512]      output of each ``AdaLayerNorm``
d                         [1,N,640]      ``DurationEncoder``'s output, style appended
duration.lstm             [1,N,512]      ``predictor.lstm``
duration                  [1,N]          frames, before dividing by the speed and rounding
pred_dur                  [N]            int64 frames
en                        [1,640,M]      ``d`` repeated
f0n.shared                [1,M,512]      ``predictor.shared``
f0n.f0.i, f0n.n.i         [1,·,·]        the residual blocks of each branch
f0, n                     [1,2M]         Hz; energy
text_encoder.cnn.i        [1,512,N]      convolution, norm and activation
text_encoder.lstm         [1,N,512]
t_en                      [1,512,N]
asr                       [1,512,M]      ``t_en`` repeated
decoder.f0, decoder.n     [1,1,M]        strided convolutions of the two curves
decoder.encode            [1,1024,M]
decoder.asr_res           [1,64,M]
decoder.decode.i          [1,1024,M]     the last one [1,512,2M]
har_source                [1,600M]       harmonic source
har_magnitude, har_phase  [1,11,120M+1]  its STFT; radians
noise_conv.i, noise_res.i [1,C,T]        source branch into up-sampling stage i (``noise_convs``, ``noise_res``)
ups.i                     [1,C,T]        transposed convolution of stage i, before padding and adding the source
resblocks.i               [1,C,T]        mean of stage i's residual blocks
conv_post                 [1,22,120M+1]
spectrum, phase           [1,11,120M+1]  ``exp`` and ``sin`` of its halves: inverse STFT magnitude and phase (radians)
audio                     [1,600M]       24 kHz
========================= ============== ==============================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from kokoro_tvm.reference.components import Noise, arithmetic, dtype_of
from kokoro_tvm.reference.model import ReferenceModel

View = Callable[[Any], torch.Tensor]
"""Picks the tensor to keep from what a module was given or returned."""


@dataclass(frozen=True)
class Trace(Mapping[str, torch.Tensor]):
    """The tensors of one utterance by name, in the order they were computed; none shares memory with another.

    Attributes:
        tensors: Name → tensor, floating ones all in ``dtype``.
        dtype: Of the model that ran.
    """

    tensors: dict[str, torch.Tensor]
    dtype: torch.dtype

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def frames(self) -> int:
        """M, the sum of ``pred_dur``."""
        return self["asr"].shape[2]


def trace(
    model: ReferenceModel,
    input_ids: torch.Tensor,
    style_row: torch.Tensor,
    noise: Noise,
    speed: float = 1.0,
    canonical: bool = True,
) -> Trace:
    """Runs one utterance and keeps every stage.

    Args:
        model: In float64 for the truth, in float32 for upstream's arithmetic.
        input_ids: int64 [1, N], boundary tokens included.
        style_row: float32 [1, 256], see ``components.style_row``.
        noise: Standard normal [1, 600·M, 9], or a function from M to it where M is not known beforehand.
        speed: Divides the durations.
        canonical: See ``components.Arithmetic``.

    Raises:
        ValueError: The noise has another shape than the source needs.
        RuntimeError: The noise was not read, or a stage computed in another dtype than the model's.
    """
    with arithmetic(model, noise, canonical) as mode, recorded(model) as tensors:
        ids, style = input_ids.clone(), style_row.to(mode.dtype, copy=True)
        audio, pred_dur = model.forward_with_tokens(ids, style, speed)
    tensors["audio"] = audio.reshape(1, -1)
    ordered = _insert_after(tensors, "duration", "pred_dur", pred_dur.reshape(-1))
    return _checked(Trace(ordered, dtype_of(model)))


@contextmanager
def recorded(model: ReferenceModel) -> Iterator[dict[str, torch.Tensor]]:
    """Keeps the tensors named above that modules compute while the body runs any part of ``model``."""
    recorder = _Recorder({})
    with ExitStack() as stack:
        recorder.attach(model, stack)
        yield recorder.tensors


@dataclass
class _Recorder:
    """Copies tensors into ``tensors`` as modules run."""

    tensors: dict[str, torch.Tensor]

    def attach(self, model: ReferenceModel, stack: ExitStack) -> None:
        """Hooks every stage of ``model`` for as long as ``stack`` is open."""
        for name, module, view in _outputs(model):
            hook = module.register_forward_hook(lambda _, args, out, n=name, v=view: self.keep(n, v(out)))
            stack.callback(hook.remove)
        for name, module, view in _inputs(model):
            hook = module.register_forward_pre_hook(lambda _, args, n=name, v=view: self.keep(n, v(args[0])))
            stack.callback(hook.remove)
        self._attach_resblocks(model.decoder.generator, stack)
        self._attach_spectrum(model.decoder.generator, stack)

    def keep(self, name: str, tensor: torch.Tensor) -> None:
        """Copies, because upstream goes on to write into some of its tensors (``masked_fill_``, ``xs +=``)."""
        self.tensors[name] = tensor.detach().clone()

    def _attach_resblocks(self, generator: nn.Module, stack: ExitStack) -> None:
        """``Generator.forward``: ``x = xs / self.num_kernels``, with ``xs`` summed in the order of the blocks."""
        count = generator.num_kernels
        for index, block in enumerate(generator.resblocks):
            stage, last = f"resblocks.{index // count}", index % count == count - 1

            def add(_: nn.Module, args: Any, out: torch.Tensor, stage: str = stage, last: bool = last) -> None:
                total = self.tensors[stage] + out if stage in self.tensors else out.clone()
                self.tensors[stage] = total / count if last else total

            stack.callback(block.register_forward_hook(add).remove)

    def _attach_spectrum(self, generator: nn.Module, stack: ExitStack) -> None:
        """``Generator.forward``: ``torch.exp`` and ``torch.sin`` of the two halves of ``conv_post``."""
        bins = generator.post_n_fft // 2 + 1

        def split(_: nn.Module, args: Any, out: torch.Tensor) -> None:
            self.keep("conv_post", out)
            self.keep("spectrum", torch.exp(out[:, :bins]))
            self.keep("phase", torch.sin(out[:, bins:]))

        stack.callback(generator.conv_post.register_forward_hook(split).remove)


def _outputs(model: ReferenceModel) -> Iterator[tuple[str, nn.Module, View]]:
    predictor, decoder = model.predictor, model.decoder
    yield "bert", model.bert, _same
    yield "d_en", model.bert_encoder, _transposed
    for i, block in enumerate(predictor.text_encoder.lstms):
        yield f"duration_encoder.{'norm' if i % 2 else 'lstm'}.{i // 2}", block, _same if i % 2 else _sequence
    yield "d", predictor.text_encoder, _same
    yield "duration.lstm", predictor.lstm, _sequence
    yield "duration", predictor.duration_proj, lambda out: torch.sigmoid(out).sum(axis=-1)
    yield "f0n.shared", predictor.shared, _sequence
    for name, blocks, proj in (("f0", predictor.F0, predictor.F0_proj), ("n", predictor.N, predictor.N_proj)):
        for i, block in enumerate(blocks):
            yield f"f0n.{name}.{i}", block, _same
        yield name, proj, _channel
    for i, block in enumerate(model.text_encoder.cnn):
        yield f"text_encoder.cnn.{i}", block, _same
    yield "text_encoder.lstm", model.text_encoder.lstm, _sequence
    yield "t_en", model.text_encoder, _same
    yield "decoder.f0", decoder.F0_conv, _same
    yield "decoder.n", decoder.N_conv, _same
    yield "decoder.encode", decoder.encode, _same
    yield "decoder.asr_res", decoder.asr_res, _same
    for i, block in enumerate(decoder.decode):
        yield f"decoder.decode.{i}", block, _same
    yield from _generator_outputs(decoder.generator)


def _generator_outputs(generator: nn.Module) -> Iterator[tuple[str, nn.Module, View]]:
    yield "har_source", generator.m_source, lambda out: out[0].transpose(1, 2).squeeze(1)
    for i in range(generator.num_upsamples):
        yield f"noise_conv.{i}", generator.noise_convs[i], _same
        yield f"noise_res.{i}", generator.noise_res[i], _same
        yield f"ups.{i}", generator.ups[i], _same


def _inputs(model: ReferenceModel) -> Iterator[tuple[str, nn.Module, View]]:
    bins = model.decoder.generator.post_n_fft // 2 + 1
    yield "en", model.predictor.shared, _transposed
    yield "asr", model.decoder, _same
    yield "har_magnitude", model.decoder.generator.noise_convs[0], lambda har: har[:, :bins]
    yield "har_phase", model.decoder.generator.noise_convs[0], lambda har: har[:, bins:]


def _same(value: torch.Tensor) -> torch.Tensor:
    return value


def _transposed(value: torch.Tensor) -> torch.Tensor:
    return value.transpose(-1, -2)


def _channel(value: torch.Tensor) -> torch.Tensor:
    return value.squeeze(1)


def _sequence(value: tuple[torch.Tensor | PackedSequence, Any]) -> torch.Tensor:
    """An LSTM's outputs ``[1, T, C]``, packed or not."""
    sequence = value[0]
    return pad_packed_sequence(sequence, batch_first=True)[0] if isinstance(sequence, PackedSequence) else sequence


def _insert_after(
    tensors: dict[str, torch.Tensor], anchor: str, name: str, value: torch.Tensor
) -> dict[str, torch.Tensor]:
    result = {}
    for key, tensor in tensors.items():
        result[key] = tensor
        if key == anchor:
            result[name] = value
    return result


def _checked(result: Trace) -> Trace:
    wrong = [f"{k} is {v.dtype}" for k, v in result.items() if v.is_floating_point() and v.dtype != result.dtype]
    if wrong:
        raise RuntimeError(f"expected {result.dtype} throughout, but {', '.join(wrong)}")
    return result
