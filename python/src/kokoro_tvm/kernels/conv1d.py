"""Length-aware 1-D convolution in [time, channel] layout, with fused prologue and epilogue.

What it is: the kernel that does 90 % of the model's arithmetic. A linear layer is the case K = 1; a transposed convolution is
the case ``phases`` > 1 (polyphase). What it is not: aware of where it stands in the model.

Shapes: x [B, T, C_in], y [B, T', C_out], lengths [B] int64 = valid rows of x. Rows beyond the valid length are never read
(they may hold NaN) and count as zeros *after* the prologue, as PyTorch's zero padding of a normalised signal does. Output rows
beyond the valid output length are not written: nothing downstream reads them.

Each parallel task packs the rows it needs, prologue applied, into a buffer of its own; a row of the register tile is then a
shifted row of that buffer, so there is no im2col and no bounds check in the inner loop. Every output value is
the sum, in the order (k, c_in), of sums of at most CHUNK products, whatever the thread count, capacity or batch.

``accumulate="compensated"`` is for layers whose rounding the listener would hear. Sums of ``Tile.joined`` products join the
total, and what is rounded off there is left for the next one (Kahan). What remains is the rounding of the result and that within
the sums that join; where they begin depends on a row's place in its register tile. It takes hardly longer than plain sums;
float64 takes twice as long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels import vector_math
from kokoro_tvm.kernels.prefetch import AHEAD, fetch, fetch_row
from kokoro_tvm.kernels.prune import keep_parameters
from kokoro_tvm.kernels.registers import each, registers
from kokoro_tvm.kernels.script import macro
from kokoro_tvm.kernels.shares import LLVM, RUNS, block_begin, block_count, block_step, parallel_tasks
from kokoro_tvm.kernels.stream import llvm, stream
from kokoro_tvm.kernels.tile import Tile
from kokoro_tvm.kernels.vector_math import Expr

TOLERANCE = 2e-6
"""Largest error relative to the largest output, prologue included: float32 sums of CHUNK products, at most 48 of them."""

TOLERANCE_COMPENSATED = 7.5e-7
"""The same for compensated sums: ten float32 roundings at most in the prologue and behind the sum (residuals, factor, GELU), and
less than two and a half for those within the sums that join."""

LINE = 16
"""float32 values of a cache line."""

CHUNK = 128
"""Products that are summed up at most before the sum joins the total: the error grows with the length of a running sum."""

STREAMED = 64
"""Products of an output value up to which a kernel writes faster than memory does, so that its results go past the caches."""

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
        products: Type that inputs and weights are rounded to before they are multiplied: ``kernels.winograd`` rounds to bfloat16,
            ``kernels.metal.conv1d`` to float16, this kernel not at all.
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
    products: Literal["float32", "bfloat16", "float16"] = "float32"

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


def phase_weights(weight: np.ndarray, stride: int) -> np.ndarray:
    """[C_in, C_out, K] of a transposed convolution to [stride * C_out, C_in, K / stride].

    Phase r of the output, rows q * stride + r, is an ordinary convolution with the taps r, r + stride, ... in reverse.
    """
    c_in, c_out, taps = weight.shape
    phases = weight.reshape(c_in, c_out, taps // stride, stride)[:, :, ::-1]
    return phases.transpose(3, 1, 0, 2).reshape(stride * c_out, c_in, taps // stride)


def pack_transposed_weight(weight: np.ndarray, stride: int, width: int) -> np.ndarray:
    """[C_in, C_out, K] of a transposed convolution to panels [stride * C_out / width, K / stride, C_in, width]."""
    return pack_weight(phase_weights(weight, stride), width)


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
    """Kernel positions per task: a multiple of the tile's rows whose packed input respects the tile's limit."""
    for block in range(tile.block, tile.rows, -tile.rows):
        if ((block - 1) * conv.stride + conv.span) * conv.c_in * 4 <= tile.packed:
            return block
    return tile.rows


def panel_group(panels: int, tile: Tile) -> int:
    """Weight panels that one task works through: few enough that a short input still makes several tasks."""
    most = max(1, tile.columns // tile.width)
    return next(n for n in range(min(panels, most), 0, -1) if panels % n == 0)


Factor = Callable[..., Expr]


def _add_products(
    sums: list[Any], lanes: int, vectors: int, count: Expr, x: Factor, weight: Factor, prepare: Callable[[Expr], None]
) -> None:
    """Adds ``count`` products, ``x(row, c) * weight(vector, c, lane)``, to the sums of some rows, one after the other.

    ``prepare(c)`` goes before each.
    """
    with T.serial(0, count) as c:
        prepare(c)
        each(sums, lanes, lambda i, j: T.fma(x(i // vectors, c), weight(i % vectors, c, j), sums[i][j]))


def _add_compensated(total: list[Any], sums: list[Any], tile: Tile, count: int, x: Factor, weight: Factor) -> None:
    """Adds ``count`` products to what the last joins left, and joins these sums to their totals on the way.

    One row joins after the other. It keeps its own next products waiting; the CPU multiplies for the others meanwhile.
    """
    lanes, vectors = tile.lanes, tile.vectors
    for c in range(count):
        each(sums, lanes, lambda i, j, c=c: T.fma(x(i // vectors, c), weight(i % vectors, c, j), sums[i][j]))
        for i in range(len(sums)):
            if i // vectors * count // tile.rows == c:
                _join(total[i], sums[i], lanes)


def _join(total: Any, added: Any, lanes: int) -> None:
    """Adds a sum to its total and leaves in it what the total rounded off."""
    (more,) = registers(1, lanes)
    each([more], lanes, lambda _, j: total[j] + added[j])
    each([added], lanes, lambda _, j: added[j] - (more[j] - total[j]))
    each([total], lanes, lambda _, j: more[j])


def _streamed(conv: Conv1d, tile: Tile) -> bool:
    """Whether the results go past the caches."""
    return conv.c_in * conv.taps <= STREAMED and conv.epilogue == "none" and conv.c_out % tile.width == 0


def _fetch_output(conv: Conv1d, tile: Tile, b: Expr, q: Expr, phase: Expr, column: Expr, y: Any) -> None:
    """Asks for the lines that ``_store`` will write: half a cache line or two of each row, as no CPU expects by itself."""
    if _streamed(conv, tile):
        return
    for r in range(tile.rows):
        t = (q + r) * conv.phases + phase - conv.crop + conv.reflect
        for first in range(0, tile.width, LINE):
            fetch(y[b, t, column + first], write=True)


def _store(
    conv: Conv1d, tile: Tile, total: list[Any], b: Expr, q: Expr, m: Expr, n_out: Expr, phase: Expr, column: Expr,
    residual: Any, residual2: Any, y: Any,
) -> None:
    """Stores what there is of a tile's rows from position ``q`` on and its channels from ``column`` on, epilogue applied."""
    lanes, vectors = tile.lanes, tile.vectors
    streamed = _streamed(conv, tile)

    def result(value: Expr, t: Expr, channel: Expr) -> Expr:
        return finish(conv, value, residual[b, t >> conv.residual_shift, channel], residual2[b, t, channel])

    def write(row: list[Any], t: Expr) -> None:
        for v, sums in enumerate(row):
            first = column + v * lanes

            def whole(sums: Any = sums, first: Expr = first) -> None:
                if streamed:
                    stream(lanes, y[b, t, first], result(sums[T.ramp(0, 1, lanes)], t, T.ramp(first, 1, lanes)))
                    return
                with T.vectorized(lanes) as j:
                    T.buffer_store(y, result(sums[j], t, first + j), [b, t, first + j])

            if conv.c_out % tile.width == 0:
                whole()
                continue
            with T.If(first + lanes <= conv.c_out):
                with T.Then():
                    whole()
                with T.Else():
                    (edge,) = registers(1, lanes)
                    each([edge], lanes, lambda _, j, sums=sums: sums[j])
                    with T.serial(0, T.max(conv.c_out - first, 0)) as j:
                        T.buffer_store(y, result(edge[j], t, first + j), [b, t, first + j])

    for r in range(tile.rows):
        t = (q + r) * conv.phases + phase - conv.crop
        with T.If(T.And(q + r < m, T.And(t >= 0, t < n_out)) if conv.phases > 1 else q + r < m):
            with T.Then():
                row = total[r * vectors : (r + 1) * vectors]
                write(row, t + conv.reflect)
                if conv.reflect:
                    with T.If(t == 1):
                        with T.Then():
                            write(row, T.int64(0))


def smallest(sizes: list[tuple[int, Callable[..., None]]], left: Expr, *arguments: Any) -> None:
    """Calls the micro-kernel of the fewest rows that are as many as are left, else that of the most."""
    (rows, multiply), *larger = sizes
    if not larger:
        multiply(*arguments)
        return
    with T.If(left <= rows):
        with T.Then():
            multiply(*arguments)
        with T.Else():
            smallest(larger, left, *arguments)


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
    phases, reflect = conv.phases, conv.reflect
    lanes, vectors, rows, width = tile.lanes, tile.vectors, tile.rows, tile.width
    compensated = conv.accumulate == "compensated"
    chunk = tile.joined if compensated else CHUNK
    chunks, rest = -(-c_in // chunk), c_in % chunk
    if phases > 1 and c_out % width:
        raise ValueError(f"transposed convolution: {c_out} channels are no multiple of the tile width {width}")
    panels = -(-c_out // width)
    group = panel_group(panels * phases, tile)
    groups = panels * phases // group
    block = _block(conv, tile)
    span = conv.span
    packed_rows = (block - 1) * stride + span
    pitch = (-(-c_in // LINE) | 1) * LINE  # an odd number of lines: rows of a register tile meet in no set of a cache
    some = lanes if c_in >= lanes else 1  # channels packed at a time; the last ones again where they are no whole vector
    parts = -(-c_in // some)
    has_rest, has_bias, has_alpha = rest > 0, conv.bias, conv.prologue == "snake"
    padding = conv.padding_left
    imported = LLVM + llvm(lanes) if _streamed(conv, tile) else LLVM
    together = max(1, chunk // c_in)  # taps of few channels share a sum
    starts = -(-taps // together)

    def micro_kernel(tile):
        """What computes a register tile of ``tile``'s rows."""
        rows = tile.rows

        def add_compensated(total, sums, row, panel, k, channel, count, coming, S, W):
            """Adds ``count`` products for the tile at ``row`` of the block, and asks for some of the next panel's weights."""
            joins = ((row + block_rows - 1) // block_rows * taps + k) * chunks + channel // chunk
            with T.serial(0, coming) as i:
                fetch_row(W, width, panel + 1, 0, joins * coming + i)
            _add_compensated(
                total, sums, tile, count,
                lambda r, c: S[((row + r) * stride + k * dilation) * pitch + channel + c],
                lambda v, c, j: W[panel, k, channel + c, v * lanes + j],
            )  # fmt: skip

        @macro
        def multiply(b, q, q0, m, n_out, panel, coming, S, W, bias, R, R2, Y):
            """The tile from position ``q`` on, of the block that begins at ``q0`` and is packed in ``S``."""
            phase: T.let[T.int64] = panel // panels
            column: T.let[T.int64] = panel % panels * width
            _fetch_output(conv, tile, b, q, phase, column, Y)
            total = registers(rows * vectors, lanes)
            if has_bias:
                each(total, lanes, lambda i, j: bias[column + i % vectors * lanes + j])
            if compensated:
                sums = registers(rows * vectors, lanes)
                for k in range(taps):
                    for part in range(c_in // chunk):
                        add_compensated(total, sums, q - q0, panel, k, part * chunk, chunk, coming, S, W)
                    if has_rest:
                        add_compensated(total, sums, q - q0, panel, k, c_in - rest, rest, coming, S, W)
                each(total, lanes, lambda i, j: total[i][j] + sums[i][j])
            else:
                for start in range(starts):
                    for part in range(chunks):
                        acc = registers(rows * vectors, lanes)
                        for tap in range(T.min(taps - start * together, together)):
                            k: T.let[T.int32] = start * together + tap
                            _add_products(
                                acc, lanes, vectors, T.min(c_in - part * chunk, chunk),
                                lambda r, c: S[((q - q0 + r) * stride + k * dilation) * pitch + part * chunk + c],
                                lambda v, c, j: W[panel, k, part * chunk + c, v * lanes + j],
                                lambda c: fetch_row(W, width, panel, k, part * chunk + c + AHEAD),
                            )
                        each(total, lanes, lambda i, j: total[i][j] + acc[i][j])
            _store(conv, tile, total, b, q, m, n_out, phase, column, R, R2, Y)

        return multiply

    block_rows = tile.rows
    sizes = [(size.rows, micro_kernel(size)) for size in tile.sizes]
    second = sizes[-2][0] if len(sizes) > 1 else 0  # two such tiles are faster than the largest and a much smaller one

    @macro
    def block_of(task, b, n, m, n_out, shares, X, W, bias, coef, alpha, R, R2, Y):
        """All outputs of one block of rows in some panels."""
        blocks: T.let[T.int64] = shares[0]
        step: T.let[T.int64] = shares[1]
        part: T.let[T.int64] = task // blocks
        first: T.let[T.int64] = block_begin(task % blocks, blocks, step, part)
        tile_rows: T.let[T.int64] = block_begin(task % blocks + 1, blocks, step, part) - first
        q0: T.let[T.int64] = first * rows
        S = T.alloc_buffer((packed_rows * pitch,), "float32")
        for r in range((tile_rows * rows - 1) * stride + span):
            row: T.let[T.int64] = q0 * stride + r - padding
            if row >= 0 and row < n:
                for part_of_row in range(parts):
                    c: T.let[T.int32] = T.min(part_of_row * some, c_in - some)
                    for j in T.vectorized(some):
                        S[r * pitch + c + j] = activate(
                            conv, X[b, row, c + j], coef[b, 0, c + j], coef[b, 1, c + j], alpha[0, c + j], alpha[1, c + j]
                        )
            else:
                for part_of_row in range(parts):
                    c: T.let[T.int32] = T.min(part_of_row * some, c_in - some)
                    for j in T.vectorized(some):
                        S[r * pitch + c + j] = T.float32(0)
        place = T.alloc_buffer((2,), "int64")  # of a tile, and rows from there on; the simplifier takes forever if it sees them
        last_two: T.let[T.int64] = m - q0 - (tile_rows - 2) * rows
        even: T.let[T.bool] = tile_rows > 1 and last_two > rows and last_two <= 2 * second
        for g in range(group):
            panel: T.let[T.int64] = part * group + g
            for tile_row in range(tile_rows):
                place[0] = q0 + tile_row * rows
                if even and tile_row == tile_rows - 1:
                    place[0] = m - (last_two - second)
                place[1] = m - place[0]
                if even and tile_row == tile_rows - 2:
                    place[1] = T.int64(second)
                q: T.let[T.int64] = place[0]
                smallest(sizes, place[1], b, q, q0, m, n_out, panel, shares[2], S, W, bias, R, R2, Y)

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
        T.attr(0, "pragma_import_llvm", imported)
        shares = T.alloc_buffer((3,), "int64")
        taken = T.alloc_buffer((RUNS + 1,), "int64")
        for b in range(B):
            n: T.let[T.int64] = L[b]
            m: T.let[T.int64] = conv.steps(n)
            n_out: T.let[T.int64] = conv.output_rows(n) - reflect
            units: T.let[T.int64] = (m + rows - 1) // rows
            shares[0] = block_count(units, block // rows, groups)
            shares[1] = block_step(units, shares[0])
            # Rows of the next panel's weights that each join asks for, so that they arrive while this panel's tiles are computed.
            joins: T.let[T.int64] = T.max(units // T.max(shares[0], 1), 1) * taps * chunks
            shares[2] = (taps * c_in + joins - 1) // joins
            parallel_tasks(
                groups * shares[0], taken,
                lambda task: block_of(task, b, n, m, n_out, shares, X, W, bias, coef, alpha, R, R2, Y),
            )  # fmt: skip

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
