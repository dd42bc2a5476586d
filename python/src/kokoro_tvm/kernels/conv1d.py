"""Length-aware 1-D convolution in [time, channel] layout, with fused prologue and epilogue.

What it is: the kernel that does 90 % of the model's arithmetic. A linear layer is the case K = 1; a transposed convolution is
the case ``phases`` > 1 (polyphase). What it is not: aware of where it stands in the model.

Shapes: x [B, T, C_in], y [B, T', C_out], lengths [B] int64 = valid rows of x. Rows beyond the valid length are never read
(they may hold NaN) and count as zeros *after* the prologue, as PyTorch's zero padding of a normalised signal does. Output rows
beyond the valid output length are not written: nothing downstream reads them.

Each parallel task packs the rows it needs, prologue applied, into a buffer of its own; a row of the register tile is then a
shifted row of that buffer, so there is no im2col and no bounds check in the inner loop. Every output value is
the sum, in the order (k, c_in), of sums of at most CHUNK products, whatever the thread count, capacity or batch.

``accumulate="compensated"`` is for layers whose rounding the listener would hear. Sums of CHUNK_COMPENSATED products join the
total, and what is rounded off there begins the next such sum (Kahan). What remains is the rounding of the result and that within
the short sums, in variance two and a half times as much. It takes little longer than plain sums; float64 takes twice as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels import vector_math
from kokoro_tvm.kernels.prune import keep_parameters
from kokoro_tvm.kernels.tile import Tile
from kokoro_tvm.kernels.vector_math import Expr

TOLERANCE = 2e-6
"""Largest error relative to the largest output, prologue included: float32 sums of CHUNK products, at most 48 of them."""

TOLERANCE_COMPENSATED = 7e-7
"""The same for compensated sums: ten float32 roundings at most in the prologue and behind the sum (residuals, factor, GELU), and
less than two for those within the short sums."""

PACKED_BYTES = 160 * 1024
"""Most that one task packs: with a weight panel beside it, this stays in a level-2 cache of 512 KiB."""


CHUNK = 128
"""Products that are summed up at most before the sum joins the total: the error grows with the length of a running sum."""

CHUNK_COMPENSATED = 4
"""The same for compensated sums, which round only here: by half of CHUNK_COMPENSATED + 1 roundings of the result, in variance."""

Accumulate = Literal["float32", "compensated"]


@dataclass(frozen=True)
class Conv1d:
    """What one convolution is specialised to.

    Attributes:
        c_in: Input channels.
        c_out: Output channels.
        taps: Kernel size K (of one phase).
        stride: Time step of the output.
        dilation: Time step between taps.
        padding_left: Zero rows before the first.
        padding_right: Zero rows after the last valid one.
        phases: Output rows made by one step of a transposed convolution (its stride); 1 otherwise.
        crop: Output rows a transposed convolution drops at each end (its padding).
        reflect: 1 if row 1 is repeated before row 0 (``ReflectionPad1d((1, 0))``), else 0.
        affine: A per-sample, per-channel ``coef`` [B, 2, C_in] (scale, shift) is applied to the input first (AdaIN).
        prologue: Activation of the input: none, leaky ReLU of ``slope``, or Snake with ``alpha`` [2, C_in] (alpha, 1/alpha).
        slope: Of the leaky ReLU.
        bias: A bias [C_out] is added.
        residuals: Number of tensors [B, T', C_out] added to the result, 0 to 2.
        residual_shift: The first residual is read at row ``t >> residual_shift`` (nearest-neighbour up-sampling).
        scale: Factor on the sum of all the above.
        epilogue: Activation of the output.
        accumulate: How products are summed up.
        products: Type that inputs and weights are rounded to before they are multiplied (``kernels.winograd`` alone rounds).
    """

    c_in: int
    c_out: int
    taps: int
    stride: int = 1
    dilation: int = 1
    padding_left: int = 0
    padding_right: int = 0
    phases: int = 1
    crop: int = 0
    reflect: int = 0
    affine: bool = False
    prologue: Literal["none", "leaky", "snake"] = "none"
    slope: float = 0.0
    bias: bool = True
    residuals: int = 0
    residual_shift: int = 0
    scale: float = 1.0
    epilogue: Literal["none", "gelu"] = "none"
    accumulate: Accumulate = "float32"
    products: Literal["float32", "bfloat16"] = "float32"

    @property
    def span(self) -> int:
        """Input rows that one output row sees."""
        return (self.taps - 1) * self.dilation + 1

    def steps(self, rows: Expr) -> Expr:
        """Positions of the kernel over ``rows`` valid input rows."""
        return (rows + (self.padding_left + self.padding_right - self.span)) // self.stride + 1

    def output_rows(self, rows: Expr) -> Expr:
        """Valid output rows for ``rows`` valid input rows."""
        return self.steps(rows) * self.phases - 2 * self.crop + self.reflect


def pack_weight(weight: np.ndarray, width: int) -> np.ndarray:
    """[C_out, C_in, K] to panels [ceil(C_out / width), K, C_in, width], zero beyond C_out."""
    c_out, c_in, taps = weight.shape
    panels = -(-c_out // width)
    padded = np.zeros((panels * width, c_in, taps), weight.dtype)
    padded[:c_out] = weight
    return np.ascontiguousarray(padded.reshape(panels, width, c_in, taps).transpose(0, 3, 2, 1))


def pack_transposed_weight(weight: np.ndarray, stride: int, width: int) -> np.ndarray:
    """[C_in, C_out, K] of a transposed convolution to panels [stride * C_out / width, K / stride, C_in, width].

    Phase r of the output, rows q * stride + r, is an ordinary convolution with the taps r, r + stride, ... in reverse.
    """
    c_in, c_out, taps = weight.shape
    phases = weight.reshape(c_in, c_out, taps // stride, stride)[:, :, ::-1]
    return pack_weight(phases.transpose(3, 1, 0, 2).reshape(stride * c_out, c_in, taps // stride), width)


def pack_bias(bias: np.ndarray, width: int) -> np.ndarray:
    """[C_out] padded with zeros to a multiple of ``width``."""
    return np.pad(bias, (0, -len(bias) % width))


def activate(conv: Conv1d, x: Expr, scale: Expr, shift: Expr, alpha: Expr, inverse_alpha: Expr) -> Expr:
    """The prologue."""
    if conv.affine:
        x = T.fma(x, scale, shift)
    if conv.prologue == "leaky":
        return vector_math.leaky_relu(x, conv.slope)
    if conv.prologue == "snake":
        return T.fma(vector_math.sin_squared(alpha * x), inverse_alpha, x)
    return x


def finish(conv: Conv1d, value: Expr, residual: Expr, residual2: Expr) -> Expr:
    """The epilogue, of the sum with its bias."""
    if conv.residuals > 0:
        value = value + residual
    if conv.residuals > 1:
        value = value + residual2
    if conv.scale != 1.0:
        value = value * T.float32(conv.scale)
    return vector_math.gelu(value) if conv.epilogue == "gelu" else value


def _block(conv: Conv1d, tile: Tile) -> int:
    """Kernel positions per task: a multiple of the tile's rows whose packed input respects PACKED_BYTES."""
    for block in range(tile.block, tile.rows, -tile.rows):
        if ((block - 1) * conv.stride + conv.span) * conv.c_in * 4 <= PACKED_BYTES:
            return block
    return tile.rows


def panel_group(panels: int, tile: Tile) -> int:
    """Weight panels that one task works through: few enough that a short input still makes several tasks."""
    most = max(1, tile.columns // tile.width)
    return next(n for n in range(min(panels, most), 0, -1) if panels % n == 0)


def kernel(conv: Conv1d, tile: Tile) -> PrimFunc:
    """Builds the PrimFunc.

    Returns:
        ``f(x, lengths, weight, [bias], [coef], [alpha], [residual, [residual2]], y)``; weight and bias packed by
        ``pack_weight`` (or ``pack_transposed_weight``) and ``pack_bias`` for ``tile.width``. A bias is one panel row per output
        channel and phase.

    Raises:
        ValueError: The channels of a transposed convolution are no multiple of the tile's width.
    """
    c_in, c_out, taps, dilation, stride = conv.c_in, conv.c_out, conv.taps, conv.dilation, conv.stride
    phases, crop, reflect, shift = conv.phases, conv.crop, conv.reflect, conv.residual_shift
    lanes, vectors, rows, width = tile.lanes, tile.vectors, tile.rows, tile.width
    compensated = conv.accumulate == "compensated"
    chunk = CHUNK_COMPENSATED if compensated else CHUNK
    chunks = -(-c_in // chunk)
    if phases > 1 and c_out % width:
        raise ValueError(f"transposed convolution: {c_out} channels are no multiple of the tile width {width}")
    panels = -(-c_out // width)
    group = panel_group(panels * phases, tile)
    groups = panels * phases // group
    block = _block(conv, tile)
    span = conv.span
    packed_rows = (block - 1) * stride + span
    pitch = c_in if c_in % 1024 else c_in + lanes  # else all rows of a tile meet in one set of the level-1 cache
    body = c_in // lanes
    tail = c_in % lanes
    whole = c_out % width == 0
    has_bias, has_alpha = conv.bias, conv.prologue == "snake"
    padding = conv.padding_left
    halves = compensated and rows >= 8  # the last rows may fill only half of so tall a tile, which then takes its own code

    @T.macro
    def multiply(count, b, q, q0, m, n_out, panel, S, W, bias, R, R2, Y):
        """The tile of ``count`` positions from ``q`` on, of the block that begins at ``q0`` and is packed in ``S``."""
        phase: T.int64 = panel // panels
        column: T.int64 = panel % panels * width
        total = T.alloc_buffer((count * width,), "float32", scope="local")
        acc = T.alloc_buffer((count * width,), "float32", scope="local")
        for r in T.unroll(count):
            for v in T.unroll(vectors):
                for j in T.vectorized(lanes):
                    if has_bias:
                        total[r * width + v * lanes + j] = bias[column + v * lanes + j]
                    else:
                        total[r * width + v * lanes + j] = T.float32(0)
                for j in T.vectorized(lanes):
                    acc[r * width + v * lanes + j] = T.float32(0)
        for k in range(taps):
            for part in range(chunks):
                for c in range(T.min(c_in - part * chunk, chunk)):
                    for r in T.unroll(count):
                        for v in T.unroll(vectors):
                            for j in T.vectorized(lanes):
                                acc[r * width + v * lanes + j] = T.fma(
                                    S[((q - q0 + r) * stride + k * dilation) * pitch + part * chunk + c],
                                    W[panel, k, part * chunk + c, v * lanes + j],
                                    acc[r * width + v * lanes + j],
                                )
                for r in T.unroll(count):
                    for v in T.unroll(vectors):
                        more = T.alloc_buffer((lanes,), "float32", scope="local")
                        for j in T.vectorized(lanes):
                            more[j] = total[r * width + v * lanes + j] + acc[r * width + v * lanes + j]
                        for j in T.vectorized(lanes):
                            if compensated:
                                acc[r * width + v * lanes + j] = acc[r * width + v * lanes + j] - (
                                    more[j] - total[r * width + v * lanes + j]
                                )
                            else:
                                acc[r * width + v * lanes + j] = T.float32(0)
                        for j in T.vectorized(lanes):
                            total[r * width + v * lanes + j] = more[j]
        for r in T.unroll(count):
            t: T.int64 = (q + r) * phases + phase - crop
            if q + r < m and t >= 0 and t < n_out:
                if compensated:
                    for v in T.unroll(vectors):
                        for j in T.vectorized(lanes):
                            total[r * width + v * lanes + j] = (
                                total[r * width + v * lanes + j] + acc[r * width + v * lanes + j]
                            )
                if whole:
                    for v in T.unroll(vectors):
                        for j in T.vectorized(lanes):
                            Y[b, t + reflect, column + v * lanes + j] = finish(
                                conv, total[r * width + v * lanes + j],
                                R[b, (t + reflect) >> shift, column + v * lanes + j],
                                R2[b, t + reflect, column + v * lanes + j],
                            )
                    if reflect == 1:
                        if t == 1:
                            for v in T.unroll(vectors):
                                for j in T.vectorized(lanes):
                                    Y[b, 0, column + v * lanes + j] = finish(
                                        conv, total[r * width + v * lanes + j],
                                        R[b, 0, column + v * lanes + j], R2[b, 0, column + v * lanes + j],
                                    )
                else:
                    for j in range(T.min(c_out - column, width)):
                        Y[b, t, column + j] = finish(
                            conv, total[r * width + j], R[b, t >> shift, column + j], R2[b, t, column + j]
                        )

    @T.prim_func
    def conv1d(
        x_h: T.handle, lengths_h: T.handle, weight_h: T.handle, bias_h: T.handle, coef_h: T.handle, alpha_h: T.handle,
        residual_h: T.handle, residual2_h: T.handle, y_h: T.handle,
    ):
        T.func_attr({"tirx.noalias": True})
        B = T.int64()
        T_in = T.int64()
        T_out = T.int64()
        T_res = T.int64()
        X = T.match_buffer(x_h, (B, T_in, c_in), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        W = T.match_buffer(weight_h, (panels * phases, taps, c_in, width), "float32")
        bias = T.match_buffer(bias_h, (panels * width,), "float32")
        coef = T.match_buffer(coef_h, (B, 2, c_in), "float32")
        alpha = T.match_buffer(alpha_h, (2, c_in), "float32")
        R = T.match_buffer(residual_h, (B, T_res, c_out), "float32")
        R2 = T.match_buffer(residual2_h, (B, T_out, c_out), "float32")
        Y = T.match_buffer(y_h, (B, T_out, c_out), "float32")
        for b in range(B):
            n: T.int64 = L[b]
            m: T.int64 = conv.steps(n)
            n_out: T.int64 = conv.output_rows(n) - reflect
            blocks: T.int64 = (m + block - 1) // block
            even: T.int64 = (m + blocks * rows - 1) // (blocks * rows) * rows  # rows of each: threads get equal shares
            for task in T.parallel(blocks * groups):
                q0: T.int64 = task // groups * even
                S = T.alloc_buffer((packed_rows * pitch,), "float32")
                for r in range((even - 1) * stride + span):
                    row: T.int64 = q0 * stride + r - padding
                    if row >= 0 and row < n:
                        for c in range(body):
                            for j in T.vectorized(lanes):
                                S[r * pitch + c * lanes + j] = activate(
                                    conv, X[b, row, c * lanes + j], coef[b, 0, c * lanes + j], coef[b, 1, c * lanes + j],
                                    alpha[0, c * lanes + j], alpha[1, c * lanes + j],
                                )
                        for j in range(tail):
                            S[r * pitch + body * lanes + j] = activate(
                                conv, X[b, row, body * lanes + j], coef[b, 0, body * lanes + j], coef[b, 1, body * lanes + j],
                                alpha[0, body * lanes + j], alpha[1, body * lanes + j],
                            )
                    else:
                        for c in range(body):
                            for j in T.vectorized(lanes):
                                S[r * pitch + c * lanes + j] = T.float32(0)
                        for j in range(tail):
                            S[r * pitch + body * lanes + j] = T.float32(0)
                for g in range(group):
                    panel: T.int64 = task % groups * group + g
                    for tile_row in range(even // rows):
                        q: T.int64 = q0 + tile_row * rows
                        if q < m:
                            if halves and q + rows // 2 >= m:
                                multiply(rows // 2, b, q, q0, m, n_out, panel, S, W, bias, R, R2, Y)
                            else:
                                multiply(rows, b, q, q0, m, n_out, panel, S, W, bias, R, R2, Y)

    used = {"bias": has_bias, "coef": conv.affine, "alpha": has_alpha, "R": conv.residuals > 0, "R2": conv.residuals > 1}
    return keep_parameters(conv1d, lambda name: used.get(name, True))


def reference(
    conv: Conv1d,
    x: np.ndarray,
    lengths: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None = None,
    coef: np.ndarray | None = None,
    alpha: np.ndarray | None = None,
    residuals: tuple[np.ndarray, ...] = (),
) -> list[np.ndarray]:
    """The kernel in NumPy float64, one array [valid rows, C_out] per sample; ``weight`` [phases * C_out, C_in, K] unpacked."""
    outputs = []
    for b, n in enumerate(lengths):
        v = x[b, :n].astype(np.float64)
        if conv.affine:
            v = v * coef[b, 0] + coef[b, 1]
        if conv.prologue == "leaky":
            v = np.where(v > 0, v, conv.slope * v)
        if conv.prologue == "snake":
            v = v + alpha[1] * np.sin(alpha[0] * v) ** 2
        v = np.pad(v, ((conv.padding_left, conv.padding_right), (0, 0)))
        m = int(conv.steps(int(n)))
        rows = np.arange(m)[:, None] * conv.stride + np.arange(conv.taps) * conv.dilation
        z = np.einsum("mkc,dck->md", v[rows], weight.astype(np.float64))
        y = z.reshape(m * conv.phases, conv.c_out)[conv.crop :][: int(conv.output_rows(int(n))) - conv.reflect]
        y = np.concatenate([y[1 : 1 + conv.reflect], y])
        y = y + (0.0 if bias is None else bias.astype(np.float64))
        for i, residual in enumerate(residuals):
            y = y + residual[b, np.arange(len(y)) >> (conv.residual_shift if i == 0 else 0)]
        y = y * conv.scale
        if conv.epilogue == "gelu":
            y = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
        outputs.append(y)
    return outputs
