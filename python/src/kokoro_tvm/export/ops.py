"""The operators of an exported program, with their eager meaning in PyTorch.

What it is: one ``torch.library`` operator per name of ``kokoro_tvm.ops``, so that a program from ``torch.export`` can be run and
checked in PyTorch, in float32 or float64, before it is compiled. What it is not: fast.

Every operator runs each sample on its valid rows alone and puts the result into a zero-padded buffer: the eager meaning of
a length is "as if the sample had been run unpadded". That is what the kernels are held to, except that they leave rows beyond
the valid ones unwritten where nothing reads them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from kokoro_tvm.ops import NAMESPACE, SHAPES

_lengths_ignored = False


@contextmanager
def ignore_lengths() -> Iterator[None]:
    """Treats every row as valid while active: what exports without lengths do. For validators and tests only."""
    global _lengths_ignored
    _lengths_ignored = True
    try:
        yield
    finally:
        _lengths_ignored = False


def _operator(eager: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Registers ``eager`` under its name, with the shape rule of ``kokoro_tvm.ops`` as its fake implementation."""
    name = eager.__name__
    signature = inspect.signature(eager)
    op = torch.library.custom_op(f"{NAMESPACE}::{name}", eager, mutates_args=())

    def fake(*args: Any, **kwargs: Any) -> Tensor:
        bound = signature.bind(*args, **kwargs).arguments
        shapes = {k: _shape_of(v) for k, v in bound.items()}
        first = next(v for v in _tensors(bound.values()) if v.is_floating_point())
        return first.new_empty(SHAPES[name](**shapes))

    op.register_fake(fake)
    return op


def _shape_of(value: Any) -> Any:
    if isinstance(value, Tensor):
        return tuple(value.shape)
    if isinstance(value, list | tuple) and value and isinstance(value[0], Tensor):
        return [tuple(v.shape) for v in value]
    return value


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _per_sample(name: str, lengths: Tensor, valid: Callable[[int, int], Tensor], like: Tensor, **shapes: Any) -> Tensor:
    """Stacks ``valid(sample, length)`` (its rows first) into zeros of the operator's output shape.

    ``like`` is the input [B, T, ...] that the lengths count.
    """
    out = like.new_zeros(SHAPES[name](**{k: _shape_of(v) for k, v in shapes.items()}), dtype=_float_dtype(shapes.values()))
    for b, n in enumerate(lengths.tolist()):
        n = like.shape[1] if _lengths_ignored else n
        rows = valid(b, n)
        out[b, : rows.shape[0]] = rows
    return out


def _float_dtype(values: Any) -> torch.dtype:
    return next(v for v in _tensors(values) if v.is_floating_point()).dtype


def _columns(x: Tensor) -> Tensor:
    """[T, C] to [1, C, T], the layout of PyTorch's convolutions."""
    return x.T.unsqueeze(0)


def _activate(x: Tensor, coef: Tensor | None, prologue: str, slope: float, alpha: Tensor | None) -> Tensor:
    if coef is not None:
        x = x * coef[0] + coef[1]
    if prologue == "leaky":
        return F.leaky_relu(x, slope)
    if prologue == "snake":
        assert alpha is not None
        return x + alpha[1] * torch.sin(alpha[0] * x) ** 2
    return x


@_operator
def conv1d(
    x: Tensor,
    lengths: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    coef: Tensor | None,
    alpha: Tensor | None,
    residual: Tensor | None,
    residual2: Tensor | None,
    stride: int,
    dilation: int,
    padding: int,
    prologue: str,
    slope: float,
    residual_shift: int,
    scale: float,
    epilogue: str,
) -> Tensor:
    """``epilogue((conv(prologue(x)) + bias + residual + residual2) * scale)``.

    Args:
        x: [B, T, C_in].
        lengths: [B], valid rows of ``x``.
        weight: [C_out, C_in, K].
        bias: [C_out].
        coef: [B, 2, C_in], scale and shift applied before the prologue (see ``adain``).
        alpha: [2, C_in], Snake's alpha and its reciprocal.
        residual: [B, T', C_out], read at row ``t >> residual_shift``.
        residual2: [B, T', C_out].
        stride: Time step of the output.
        dilation: Time step between taps.
        padding: Zero rows on both sides of the valid ones.
        prologue: ``none``, ``leaky`` (``slope``) or ``snake`` (``alpha``).
        slope: See above.
        residual_shift: See above.
        scale: See above.
        epilogue: ``none`` or ``gelu`` (tanh approximation).

    Returns:
        [B, T', C_out].
    """

    def valid(b: int, n: int) -> Tensor:
        v = _activate(x[b, :n], None if coef is None else coef[b], prologue, slope, alpha)
        y = F.conv1d(_columns(v), weight, bias, stride, padding, dilation)[0].T
        rows = torch.arange(len(y))
        if residual is not None:
            y = y + residual[b, rows >> residual_shift]
        if residual2 is not None:
            y = y + residual2[b, rows]
        y = y * scale if scale != 1.0 else y
        return F.gelu(y, approximate="tanh") if epilogue == "gelu" else y

    return _per_sample("conv1d", lengths, valid, x, x=x, weight=weight, stride=stride)


@_operator
def conv_transpose1d(
    x: Tensor,
    lengths: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    stride: int,
    padding: int,
    reflect: int,
    slope: float,
) -> Tensor:
    """Transposed convolution of ``leaky_relu(x, slope)``, one row reflected on the left if ``reflect``, plus ``residual``.

    Args:
        x: [B, T, C_in].
        lengths: [B].
        weight: [C_in, C_out, K] with K = 2 * stride.
        bias: [C_out].
        residual: [B, T * stride + reflect, C_out].
        stride: Up-sampling factor.
        padding: Rows cropped at each end, (K - stride) / 2.
        reflect: 0 or 1 (``ReflectionPad1d((1, 0))``).
        slope: Of the leaky ReLU.

    Returns:
        [B, T * stride + reflect, C_out].
    """

    def valid(b: int, n: int) -> Tensor:
        y = F.conv_transpose1d(F.leaky_relu(_columns(x[b, :n]), slope), weight, bias, stride, padding)
        y = (F.pad(y, (1, 0), mode="reflect") if reflect else y)[0].T
        return y if residual is None else y + residual[b, : len(y)]

    return _per_sample("conv_transpose1d", lengths, valid, x, x=x, weight=weight, stride=stride, reflect=reflect)


@_operator
def adain(x: Tensor, lengths: Tensor, affine: Tensor, weight: Tensor, bias: Tensor, offset: int) -> Tensor:
    """Scale and shift [B, 2, C] of adaptive instance norm over the valid rows of x [B, T, C]; see ``kernels.adain``."""
    channels = x.shape[2]
    out = x.new_empty(x.shape[0], 2, channels)
    for b, n in enumerate(lengths.tolist()):
        v = x[b] if _lengths_ignored else x[b, :n]
        gain = 1 + affine[b, offset : offset + channels]
        out[b, 0] = gain * weight / torch.sqrt(v.var(0, unbiased=False) + 1e-5)
        out[b, 1] = gain * bias + affine[b, offset + channels : offset + 2 * channels] - out[b, 0] * v.mean(0)
    return out


@_operator
def depthwise_upsample(x: Tensor, lengths: Tensor, coef: Tensor, weight: Tensor, bias: Tensor, slope: float) -> Tensor:
    """Depthwise transposed convolution (3 taps, stride 2) of the activated x: [B, T, C] to [B, 2T, C]; weight [3, C]."""

    def valid(b: int, n: int) -> Tensor:
        v = _columns(_activate(x[b, :n], coef[b], "leaky", slope, None))
        kernel = weight.T.unsqueeze(1)
        return F.conv_transpose1d(v, kernel, bias, 2, 1, output_padding=1, groups=x.shape[2])[0].T

    return _per_sample("depthwise_upsample", lengths, valid, x, x=x)


@_operator
def layer_norm(x: Tensor, lengths: Tensor, weight: Tensor, bias: Tensor, eps: float, slope: float) -> Tensor:
    """Layer norm over the channels of x [B, T, C], then leaky ReLU of ``slope`` (1 for none)."""

    def valid(b: int, n: int) -> Tensor:
        y = F.layer_norm(x[b, :n], weight.shape, weight, bias, eps)
        return y if slope == 1.0 else F.leaky_relu(y, slope)

    return _per_sample("layer_norm", lengths, valid, x, x=x)


@_operator
def ada_layer_norm(x: Tensor, lengths: Tensor, affine: Tensor, style: Tensor, offset: int, eps: float) -> Tensor:
    """``(1 + gamma) * layer_norm(x) + beta`` with the style appended: [B, N, C] to [B, N, C + D].

    gamma and beta are the columns ``offset`` and ``offset + C`` of ``affine`` [B, S].
    """

    def valid(b: int, n: int) -> Tensor:
        c = x.shape[2]
        gamma, beta = affine[b, offset : offset + c], affine[b, offset + c : offset + 2 * c]
        y = (1 + gamma) * F.layer_norm(x[b, :n], (c,), eps=eps) + beta
        return torch.cat([y, style[b].expand(n, -1)], dim=1)

    return _per_sample("ada_layer_norm", lengths, valid, x, x=x, style=style)


@_operator
def append_style(x: Tensor, lengths: Tensor, style: Tensor) -> Tensor:
    """[B, N, C] with the style [B, D] appended to every row."""

    def valid(b: int, n: int) -> Tensor:
        return torch.cat([x[b, :n], style[b].expand(n, -1)], dim=1)

    return _per_sample("append_style", lengths, valid, x, x=x, style=style)


@_operator
def embed(ids: Tensor, lengths: Tensor, table: Tensor, positions: Tensor | None) -> Tensor:
    """Rows of ``table`` [V, C] for ids [B, N] int64, plus ``positions`` [P, C] by row if given."""

    def valid(b: int, n: int) -> Tensor:
        y = table[ids[b, :n]]
        return y if positions is None else y + positions[:n]

    return _per_sample("embed", lengths, valid, ids, ids=ids, table=table)


@_operator
def attention(qkv: Tensor, lengths: Tensor, heads: int) -> Tensor:
    """Multi-head self-attention over the valid keys: queries, keys and values side by side in qkv [B, N, 3E] to [B, N, E]."""

    def valid(b: int, n: int) -> Tensor:
        q, k, v = (t.view(n, heads, -1).transpose(0, 1) for t in qkv[b, :n].chunk(3, dim=1))
        scores = torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, dim=-1)
        return (scores @ v).transpose(0, 1).reshape(n, -1)

    return _per_sample("attention", lengths, valid, qkv, qkv=qkv)


@_operator
def bilstm(x: Tensor, lengths: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> Tensor:
    """Bidirectional LSTM with the semantics of pack, LSTM, pad; zero initial state.

    Args:
        x: [B, N, I].
        lengths: [B].
        w_ih: [2, 4H, I], forward and backward, gates i, f, g, o.
        w_hh: [2, 4H, H].
        b_ih: [2, 4H].
        b_hh: [2, 4H].

    Returns:
        [B, N, 2H], forward then backward.
    """
    hidden = w_hh.shape[2]
    weights = [w for d in (0, 1) for w in (w_ih[d], w_hh[d], b_ih[d], b_hh[d])]

    def valid(b: int, n: int) -> Tensor:
        state = x.new_zeros(2, 1, hidden)
        return torch.lstm(x[b : b + 1, :n], (state, state), weights, True, 1, 0.0, False, True, True)[0][0]

    return _per_sample("bilstm", lengths, valid, x, x=x, w_hh=w_hh)


@_operator
def sigmoid_sum(x: Tensor, lengths: Tensor) -> Tensor:
    """Sum of sigmoids over the channels: [B, N, C] to [B, N]."""
    return _per_sample("sigmoid_sum", lengths, lambda b, n: torch.sigmoid(x[b, :n]).sum(-1), x, x=x)


@_operator
def to_rows(x: Tensor, lengths: Tensor) -> Tensor:
    """[B, C, T] to [B, T, C]."""
    return _per_sample("to_rows", lengths, lambda b, n: x[b, :, :n].T, x.transpose(1, 2), x=x)


@_operator
def to_columns(x: Tensor, lengths: Tensor) -> Tensor:
    """[B, T, C] to [B, C, T], zero beyond the valid rows."""
    rows = _per_sample("mask_rows", lengths, lambda b, n: x[b, :n], x, x=x)
    return rows.transpose(1, 2).contiguous()


@_operator
def mask_rows(x: Tensor, lengths: Tensor) -> Tensor:
    """A copy of x [B, T, C], zero beyond the valid rows."""
    return _per_sample("mask_rows", lengths, lambda b, n: x[b, :n], x, x=x)


@_operator
def concat(xs: Sequence[Tensor], lengths: Tensor) -> Tensor:
    """Channels of several [B, T, C_i] side by side."""

    def valid(b: int, n: int) -> Tensor:
        return torch.cat([x[b, :n] for x in xs], dim=1)

    return _per_sample("concat", lengths, valid, xs[0], xs=list(xs))


@_operator
def style_linear(style: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """[B, D] to [B, S] with weight [S, D]: all style projections of a component at once."""
    return F.linear(style, weight, bias)


@_operator
def harmonic_source(
    f0: Tensor,
    lengths: Tensor,
    noise: Tensor,
    weight: Tensor,
    bias: Tensor,
    upsample: int,
    sampling_rate: int,
    sine_amplitude: float,
    noise_std: float,
    voiced_threshold: float,
) -> Tensor:
    """Harmonic-plus-noise excitation (kokoro ``istftnet.py``: ``SourceModuleHnNSF`` with its ``SineGen``).

    Args:
        f0: [B, 2M], Hz.
        lengths: [B], valid values of ``f0``.
        noise: [B, 2M * upsample, H], standard normal: the one random tensor that reaches the output.
        weight: [H], mixes the harmonics.
        bias: [1].
        upsample: Samples per value of ``f0``.
        sampling_rate: Hz.
        sine_amplitude: Of every harmonic.
        noise_std: Noise amplitude in voiced samples; in unvoiced ones it is ``sine_amplitude / 3``.
        voiced_threshold: Hz.

    Returns:
        [B, 2M * upsample, 2]: samples in the input's dtype, and what that rounds off. The phase is accumulated in float64
        whatever the input's dtype.
    """

    def valid(b: int, n: int) -> Tensor:
        harmonics = torch.arange(1, noise.shape[2] + 1, dtype=torch.float64)
        turns = torch.cumsum((f0[b, :n, None].double() * harmonics / sampling_rate) % 1, dim=0) * upsample
        phase = F.interpolate(turns.T[None], scale_factor=float(upsample), mode="linear")[0].T
        sines = torch.sin(2 * torch.pi * (phase % 1)) * sine_amplitude
        voiced = (f0[b, :n] > voiced_threshold).double().repeat_interleave(upsample)[:, None]
        amplitude = voiced * noise_std + (1 - voiced) * sine_amplitude / 3
        mixed = (sines * voiced + amplitude * noise[b, : n * upsample].double()) @ weight.double() + bias.double()
        samples = torch.tanh(mixed)
        rounded = samples.to(f0.dtype)
        return torch.stack([rounded, (samples - rounded.double()).to(f0.dtype)], dim=1)

    return _per_sample("harmonic_source", lengths, valid, f0, f0=f0, upsample=upsample)


@_operator
def stft(x: Tensor, lengths: Tensor, n_fft: int, hop: int) -> Tensor:
    """Magnitude and phase side by side, [B, L, 2] to [B, L / hop + 1, n_fft + 2]; computed in float64.

    A sample is the sum of two. ``torch.stft`` as in kokoro ``istftnet.py``: ``TorchSTFT``: centred, reflect padding, periodic
    Hann. The imaginary parts of DC and Nyquist are exactly zero, and so are those of frame 0, which the reflection makes its own
    mirror image: an FFT's rounding noise there would decide between a phase of π and -π. Zero is +0, and the phase of a negative
    bin π.
    """

    def valid(b: int, n: int) -> Tensor:
        window = torch.hann_window(n_fft, dtype=torch.float64)
        spectrum = torch.stft(x[b, :n].double().sum(dim=1), n_fft, hop, n_fft, window, return_complex=True)
        imaginary = spectrum.imag.clone()
        imaginary[:, 0] = 0
        imaginary[[0, -1]] = 0
        spectrum = torch.complex(spectrum.real, imaginary)
        return torch.cat([spectrum.abs(), spectrum.angle()]).T.to(x.dtype)

    return _per_sample("stft", lengths, valid, x, x=x, n_fft=n_fft, hop=hop)


@_operator
def istft(x: Tensor, lengths: Tensor, n_fft: int, hop: int) -> Tensor:
    """Audio from log-magnitude and raw phase, [B, F, n_fft + 2] to [B, (F - 1) * hop].

    Magnitude ``exp(x[..., :n_fft / 2 + 1])``, phase ``sin`` of the rest (kokoro ``istftnet.py``: end of ``Generator.forward``).
    """

    def valid(b: int, n: int) -> Tensor:
        window = torch.hann_window(n_fft, dtype=x.dtype)
        log_magnitude, raw_phase = x[b, :n].T.split(n_fft // 2 + 1)
        spectrum = torch.polar(torch.exp(log_magnitude), torch.sin(raw_phase))
        return torch.istft(spectrum, n_fft, hop, n_fft, window)

    return _per_sample("istft", lengths, valid, x, x=x, hop=hop)
