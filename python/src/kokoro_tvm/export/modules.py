"""The five components as export-ready modules: the same arithmetic as eager kokoro, in [time, channel] layout with lengths.

What it is: graphs made of nothing but the operators of ``export.ops``, with weight norm folded, dropout gone, noise an input and
every style projection of a component gathered into one matrix. What it is not: a second model: all weights come from a
``KModel``, and ``forward`` follows its ``forward_with_tokens`` line by line.

Shape legend: B batch, N tokens, M frames, T time rows, C channels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from kokoro_tvm.export import ops

if TYPE_CHECKING:
    from kokoro.istftnet import AdaIN1d, AdainResBlk1d, AdaINResBlock1
    from kokoro.model import KModel

_HALF_ROOT = float(torch.rsqrt(torch.tensor(2)))
"""The reference's float32 constant 1/sqrt(2) (kokoro ``istftnet.py``: ``AdainResBlk1d.forward``)."""


def folded_weight(conv: nn.Module) -> Tensor:
    """The weight of a convolution with its weight norm folded in float64, in the module's own dtype."""
    if not hasattr(conv, "weight_g"):
        return conv.weight.detach().clone()
    g, v = conv.weight_g.detach().double(), conv.weight_v.detach().double()
    norm = v.flatten(1).norm(dim=1).view(-1, *[1] * (v.dim() - 1))
    return (g * v / norm).to(conv.weight_v.dtype)


def _parameter(value: Tensor) -> nn.Parameter:
    return nn.Parameter(value.detach().clone().contiguous(), requires_grad=False)


class StyleBank(nn.Module):
    """Every style projection of a component as one matrix; ``add`` returns the column at which one begins."""

    def __init__(self) -> None:
        super().__init__()
        self._weights: list[Tensor] = []
        self._biases: list[Tensor] = []
        self._size = 0

    def add(self, linear: nn.Linear) -> int:
        """Appends a projection [S_i, D]."""
        offset, self._size = self._size, self._size + linear.out_features
        self._weights.append(linear.weight.detach())
        self._biases.append(linear.bias.detach())
        return offset

    def seal(self) -> None:
        """Makes the parameters; called once, after the last ``add``."""
        self.weight = _parameter(torch.cat(self._weights))
        self.bias = _parameter(torch.cat(self._biases))
        self._weights, self._biases = [], []

    def forward(self, style: Tensor) -> Tensor:
        """[B, D] to [B, S]."""
        return ops.style_linear(style, self.weight, self.bias)


class Conv(nn.Module):
    """A convolution or linear layer in [time, channel] layout."""

    def __init__(self, weight: Tensor, bias: Tensor | None, stride: int = 1, dilation: int = 1, padding: int = 0) -> None:
        super().__init__()
        self.weight = _parameter(weight if weight.dim() == 3 else weight.unsqueeze(-1))
        self.bias = None if bias is None else _parameter(bias)
        self.stride, self.dilation, self.padding = stride, dilation, padding

    @classmethod
    def of(cls, conv: nn.Conv1d | nn.Linear) -> Conv:
        """Takes over a PyTorch layer, weight norm folded."""
        if isinstance(conv, nn.Linear):
            return cls(conv.weight, conv.bias)
        return cls(folded_weight(conv), conv.bias, conv.stride[0], conv.dilation[0], conv.padding[0])

    def forward(
        self,
        x: Tensor,
        lengths: Tensor,
        *,
        coef: Tensor | None = None,
        alpha: Tensor | None = None,
        residual: Tensor | None = None,
        residual2: Tensor | None = None,
        prologue: str = "none",
        slope: float = 0.0,
        residual_shift: int = 0,
        scale: float = 1.0,
        epilogue: str = "none",
    ) -> Tensor:
        """See ``export.ops.conv1d``."""
        return ops.conv1d(
            x, lengths, self.weight, self.bias, coef, alpha, residual, residual2, self.stride, self.dilation, self.padding,
            prologue, slope, residual_shift, scale, epilogue,
        )  # fmt: skip


class BiLstm(nn.Module):
    """A bidirectional LSTM layer, its two directions stacked."""

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        for ours, theirs in (("w_ih", "weight_ih"), ("w_hh", "weight_hh"), ("b_ih", "bias_ih"), ("b_hh", "bias_hh")):
            both = [getattr(lstm, f"{theirs}_l0{direction}").detach() for direction in ("", "_reverse")]
            setattr(self, ours, _parameter(torch.stack(both)))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """[B, N, I] to [B, N, 2H]."""
        return ops.bilstm(x, lengths, self.w_ih, self.w_hh, self.b_ih, self.b_hh)


class AdaIn(nn.Module):
    """Coefficients of one AdaIN norm."""

    def __init__(self, norm: AdaIN1d, bank: StyleBank) -> None:
        super().__init__()
        self.weight, self.bias = _parameter(norm.norm.weight), _parameter(norm.norm.bias)
        self.offset = bank.add(norm.fc)

    def forward(self, x: Tensor, lengths: Tensor, affine: Tensor) -> Tensor:
        """[B, T, C] to [B, 2, C]."""
        return ops.adain(x, lengths, affine, self.weight, self.bias, self.offset)


class ResidualBlock(nn.Module):
    """``AdainResBlk1d``: two AdaIN + leaky ReLU + convolution steps with a shortcut, optionally doubling the rate."""

    SLOPE = 0.2

    def __init__(self, block: AdainResBlk1d, bank: StyleBank) -> None:
        super().__init__()
        self.norm1, self.norm2 = AdaIn(block.norm1, bank), AdaIn(block.norm2, bank)
        self.conv1, self.conv2 = Conv.of(block.conv1), Conv.of(block.conv2)
        self.shortcut = Conv.of(block.conv1x1) if block.learned_sc else None
        self.doubles = block.upsample_type != "none"
        if self.doubles:
            self.pool_weight = _parameter(folded_weight(block.pool)[:, 0].T)
            self.pool_bias = _parameter(block.pool.bias)

    def forward(self, x: Tensor, lengths: Tensor, affine: Tensor) -> tuple[Tensor, Tensor]:
        """Rows [B, T, C] and lengths to rows [B, T or 2T, C'] and their lengths."""
        coef = self.norm1(x, lengths, affine)
        if self.doubles:
            pooled = ops.depthwise_upsample(x, lengths, coef, self.pool_weight, self.pool_bias, self.SLOPE)
            out_lengths = lengths * 2
            h = self.conv1(pooled, out_lengths)
        else:
            out_lengths = lengths
            h = self.conv1(x, lengths, coef=coef, prologue="leaky", slope=self.SLOPE)
        # A 1x1 convolution commutes with nearest-neighbour up-sampling: it runs at the lower rate and the sum reads it twice.
        shortcut = x if self.shortcut is None else self.shortcut(x, lengths)
        coef = self.norm2(h, out_lengths, affine)
        y = self.conv2(
            h, out_lengths, coef=coef, prologue="leaky", slope=self.SLOPE, residual=shortcut,
            residual_shift=int(self.doubles), scale=_HALF_ROOT,
        )  # fmt: skip
        return y, out_lengths


class SnakeBlock(nn.Module):
    """``AdaINResBlock1``: three pairs of AdaIN + Snake + dilated convolution, each with a residual."""

    def __init__(self, block: AdaINResBlock1, bank: StyleBank) -> None:
        super().__init__()
        pairs = zip(block.adain1, block.convs1, block.adain2, block.convs2, strict=True)
        self.pairs = nn.ModuleList(
            nn.ModuleList([AdaIn(n1, bank), Conv.of(c1), AdaIn(n2, bank), Conv.of(c2)]) for n1, c1, n2, c2 in pairs
        )
        self.alphas = nn.ParameterList(
            _parameter(torch.stack([a.detach().flatten(), 1 / a.detach().flatten()]))
            for pair in zip(block.alpha1, block.alpha2, strict=True)
            for a in pair
        )

    def forward(
        self, x: Tensor, lengths: Tensor, affine: Tensor, total: Tensor | None = None, scale: float = 1.0
    ) -> Tensor:
        """[B, T, C] to ``(block(x) + total) * scale``, [B, T, C]."""
        last = len(self.pairs) - 1
        for i, (norm1, conv1, norm2, conv2) in enumerate(self.pairs):
            h = conv1(x, lengths, coef=norm1(x, lengths, affine), alpha=self.alphas[2 * i], prologue="snake")
            coef = norm2(h, lengths, affine)
            end = {"residual2": total, "scale": scale} if i == last else {}
            x = conv2(h, lengths, coef=coef, alpha=self.alphas[2 * i + 1], prologue="snake", residual=x, **end)
        return x


class Bert(nn.Module):
    """ALBERT and the projection behind it: input_ids [B, N], lengths [B] to d_en [B, 512, N]."""

    def __init__(self, model: KModel) -> None:
        super().__init__()
        bert = model.bert
        embeddings = bert.embeddings
        layer = bert.encoder.albert_layer_groups[0].albert_layers[0]
        attention = layer.attention
        self.table = _parameter(embeddings.word_embeddings.weight)
        # Every token is of type 0, so its embedding is part of the position's.
        self.positions = _parameter(embeddings.position_embeddings.weight + embeddings.token_type_embeddings.weight[0])
        self.norm = embeddings.LayerNorm
        self.widen = Conv.of(bert.encoder.embedding_hidden_mapping_in)
        projections = (attention.query, attention.key, attention.value)
        self.qkv = Conv(torch.cat([p.weight for p in projections]), torch.cat([p.bias for p in projections]))
        self.dense, self.attention_norm = Conv.of(attention.dense), attention.LayerNorm
        self.ffn, self.ffn_output, self.ffn_norm = Conv.of(layer.ffn), Conv.of(layer.ffn_output), layer.full_layer_layer_norm
        self.encoder = Conv.of(model.bert_encoder)
        self.layers = bert.config.num_hidden_layers
        self.heads = bert.config.num_attention_heads

    @staticmethod
    def _normalise(norm: nn.LayerNorm, x: Tensor, lengths: Tensor) -> Tensor:
        return ops.layer_norm(x, lengths, norm.weight, norm.bias, norm.eps, 1.0)

    def forward(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        """See the class."""
        x = ops.embed(input_ids, lengths, self.table, self.positions)
        x = self.widen(self._normalise(self.norm, x, lengths), lengths)
        for _ in range(self.layers):
            context = ops.attention(self.qkv(x, lengths), lengths, self.heads)
            x = self._normalise(self.attention_norm, self.dense(context, lengths, residual=x), lengths)
            h = self.ffn(x, lengths, epilogue="gelu")
            x = self._normalise(self.ffn_norm, self.ffn_output(h, lengths, residual=x), lengths)
        return ops.to_columns(self.encoder(x, lengths), lengths)


class Duration(nn.Module):
    """Prosody encoder and duration head: d_en [B, 512, N], style [B, 128], lengths to d [B, N, 640] and duration [B, N]."""

    EPSILON = 1e-5

    def __init__(self, model: KModel) -> None:
        super().__init__()
        predictor = model.predictor
        self.bank = StyleBank()
        blocks = list(predictor.text_encoder.lstms)
        self.lstms = nn.ModuleList(BiLstm(lstm) for lstm in blocks[0::2])
        self.offsets = [self.bank.add(norm.fc) for norm in blocks[1::2]]
        self.bank.seal()
        self.lstm = BiLstm(predictor.lstm)
        self.head = Conv.of(predictor.duration_proj.linear_layer)

    def forward(self, d_en: Tensor, style: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """See the class."""
        affine = self.bank(style)
        d = ops.append_style(ops.to_rows(d_en, lengths), lengths, style)
        for lstm, offset in zip(self.lstms, self.offsets, strict=True):
            d = ops.ada_layer_norm(lstm(d, lengths), lengths, affine, style, offset, self.EPSILON)
        logits = self.head(self.lstm(d, lengths), lengths)
        return ops.mask_rows(d, lengths), ops.sigmoid_sum(logits, lengths)


class TextEncoder(nn.Module):
    """Convolutions and a biLSTM over phonemes: input_ids [B, N], lengths to t_en [B, 512, N]."""

    def __init__(self, model: KModel) -> None:
        super().__init__()
        encoder = model.text_encoder
        self.table = _parameter(encoder.embedding.weight)
        self.convs = nn.ModuleList(Conv.of(c[0]) for c in encoder.cnn)
        self.gammas = nn.ParameterList(_parameter(c[1].gamma) for c in encoder.cnn)
        self.betas = nn.ParameterList(_parameter(c[1].beta) for c in encoder.cnn)
        self.norms = [(c[1].eps, c[2].negative_slope) for c in encoder.cnn]
        self.lstm = BiLstm(encoder.lstm)

    def forward(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        """See the class."""
        x = ops.embed(input_ids, lengths, self.table, None)
        for conv, gamma, beta, (eps, slope) in zip(self.convs, self.gammas, self.betas, self.norms, strict=True):
            x = ops.layer_norm(conv(x, lengths), lengths, gamma, beta, eps, slope)
        return ops.to_columns(self.lstm(x, lengths), lengths)


class F0N(nn.Module):
    """Pitch and energy: en [B, 640, M], style [B, 128], frame_lengths to f0 [B, 2M] (Hz) and n [B, 2M]."""

    def __init__(self, model: KModel) -> None:
        super().__init__()
        predictor = model.predictor
        self.bank = StyleBank()
        self.shared = BiLstm(predictor.shared)
        self.f0 = nn.ModuleList(ResidualBlock(b, self.bank) for b in predictor.F0)
        self.n = nn.ModuleList(ResidualBlock(b, self.bank) for b in predictor.N)
        self.f0_head, self.n_head = Conv.of(predictor.F0_proj), Conv.of(predictor.N_proj)
        self.bank.seal()

    def _curve(self, blocks: nn.ModuleList, head: Conv, x: Tensor, lengths: Tensor, affine: Tensor) -> Tensor:
        for block in blocks:
            x, lengths = block(x, lengths, affine)
        return ops.mask_rows(head(x, lengths), lengths).squeeze(-1)

    def forward(self, en: Tensor, style: Tensor, frame_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """See the class."""
        affine = self.bank(style)
        x = self.shared(ops.to_rows(en, frame_lengths), frame_lengths)
        f0 = self._curve(self.f0, self.f0_head, x, frame_lengths, affine)
        return f0, self._curve(self.n, self.n_head, x, frame_lengths, affine)


class Source(nn.Module):
    """F0 to the magnitude and phase of the harmonic source."""

    def __init__(self, generator: nn.Module) -> None:
        super().__init__()
        source = generator.m_source
        sines = source.l_sin_gen
        self.weight, self.bias = _parameter(source.l_linear.weight[0]), _parameter(source.l_linear.bias)
        self.settings = (int(generator.f0_upsamp.scale_factor), sines.sampling_rate, sines.sine_amp, sines.noise_std)
        self.threshold = float(sines.voiced_threshold)
        self.n_fft, self.hop = generator.stft.filter_length, generator.stft.hop_length

    def forward(self, f0: Tensor, lengths: Tensor, noise: Tensor) -> Tensor:
        """f0 [B, 2M], noise [B, 600M, 9] to [B, 120M + 1, 22]."""
        samples = ops.harmonic_source(f0, lengths, noise, self.weight, self.bias, *self.settings, self.threshold)
        return ops.stft(samples, lengths * self.settings[0], self.n_fft, self.hop)


class Generator(nn.Module):
    """ISTFTNet: rows [B, 2M, 512] and the source's spectrum to audio [B, 600M]."""

    UP_SLOPE, POST_SLOPE = 0.1, 0.01

    def __init__(self, generator: nn.Module, bank: StyleBank) -> None:
        super().__init__()
        self.noise_convs = nn.ModuleList(Conv.of(c) for c in generator.noise_convs)
        self.noise_blocks = nn.ModuleList(SnakeBlock(b, bank) for b in generator.noise_res)
        self.up_weights = nn.ParameterList(_parameter(folded_weight(u)) for u in generator.ups)
        self.up_biases = nn.ParameterList(_parameter(u.bias) for u in generator.ups)
        self.up_steps = [(u.stride[0], u.padding[0]) for u in generator.ups]
        self.blocks = nn.ModuleList(SnakeBlock(b, bank) for b in generator.resblocks)
        self.post = Conv.of(generator.conv_post)
        self.kernels = generator.num_kernels
        self.n_fft, self.hop = generator.stft.filter_length, generator.stft.hop_length

    def forward(self, x: Tensor, lengths: Tensor, har: Tensor, har_lengths: Tensor, affine: Tensor) -> Tensor:
        """See the class; ``lengths`` counts rows of ``x``, ``har_lengths`` rows of ``har`` [B, 120M + 1, 22]."""
        last = len(self.up_steps) - 1
        for i, (stride, padding) in enumerate(self.up_steps):
            out_lengths = lengths * stride + int(i == last)
            source = self.noise_convs[i](har, har_lengths)
            source = self.noise_blocks[i](source, out_lengths, affine)
            x = ops.conv_transpose1d(
                x, lengths, self.up_weights[i], self.up_biases[i], source, stride, padding, int(i == last), self.UP_SLOPE
            )
            lengths = out_lengths
            total = None
            for j in range(self.kernels):
                scale = 1 / self.kernels if j == self.kernels - 1 else 1.0
                total = self.blocks[i * self.kernels + j](x, lengths, affine, total, scale)
            x = total
        x = self.post(x, lengths, prologue="leaky", slope=self.POST_SLOPE)
        return ops.istft(x, lengths, self.n_fft, self.hop)


class Decoder(nn.Module):
    """asr [B, 512, M], f0 and n [B, 2M], style [B, 128], frame_lengths, noise [B, 600M, 9] to audio [B, 600M]."""

    def __init__(self, model: KModel) -> None:
        super().__init__()
        decoder = model.decoder
        self.bank = StyleBank()
        self.f0_conv, self.n_conv = Conv.of(decoder.F0_conv), Conv.of(decoder.N_conv)
        self.encode = ResidualBlock(decoder.encode, self.bank)
        self.decode = nn.ModuleList(ResidualBlock(b, self.bank) for b in decoder.decode)
        self.asr_res = Conv.of(decoder.asr_res[0])
        self.source = Source(decoder.generator)
        self.generator = Generator(decoder.generator, self.bank)
        self.bank.seal()

    def trunk(
        self, asr: Tensor, f0: Tensor, n: Tensor, affine: Tensor, frame_lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The blocks before the generator: rows [B, 2M, 512] and their lengths."""
        curve_lengths = frame_lengths * 2
        asr = ops.to_rows(asr, frame_lengths)
        f0 = self.f0_conv(f0.unsqueeze(-1), curve_lengths)
        n = self.n_conv(n.unsqueeze(-1), curve_lengths)
        x, lengths = self.encode(ops.concat([asr, f0, n], frame_lengths), frame_lengths, affine)
        asr_res = self.asr_res(asr, frame_lengths)
        for block in self.decode:
            # The reference stops concatenating behind the doubling block, which is the last one.
            x, lengths = block(ops.concat([x, asr_res, f0, n], lengths), lengths, affine)
        return x, lengths

    def forward(self, asr: Tensor, f0: Tensor, n: Tensor, style: Tensor, frame_lengths: Tensor, noise: Tensor) -> Tensor:
        """See the class."""
        affine = self.bank(style)
        har = self.source(f0, frame_lengths * 2, noise)
        x, lengths = self.trunk(asr, f0, n, affine, frame_lengths)
        return self.generator(x, lengths, har, frame_lengths * 120 + 1, affine)


COMPONENTS: dict[str, type[nn.Module]] = {
    "bert": Bert,
    "duration": Duration,
    "text_encoder": TextEncoder,
    "f0n": F0N,
    "decoder": Decoder,
}
"""Component name (``kokoro_tvm.stages``) to its module."""
