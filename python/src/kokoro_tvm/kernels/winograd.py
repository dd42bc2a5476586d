"""The convolution of ``conv1d`` with fewer multiplications: Toom-Cook (Winograd) along time.

What it is: another kernel for the same ``Conv1d``, with the same promises about lengths, threads and batches; more than twice as
fast where the arithmetic counts, at the price of some accuracy (see ``tolerance``). What it is not: for strided convolutions,
single taps, or compensated sums.

F(m, r) computes m output rows of r taps from n = m + r - 1 input rows d with n products: y = A' [(G g) * (B' d)], where B' d are
the values of a polynomial at n points. Every value is a vector over channels, so at each point the product is a matrix product
over input channels, done by the register tile of ``conv1d``; transforms cost one vector operation where it costs hundreds.

7 and 11 taps take two levels. With a kernel cut into segments of r taps and rows into blocks of r, the products of F(r, r) at
each point are a convolution of its own, along the blocks, whose taps are the segments. F(M, R) takes fewer products for that one
too (Agarwal and Burrus 1974; Mou and Duhamel 1991). F(4, 3) over F(4, 4) computes 16 rows of 12 taps with 6 * 7 products, 2.6 a
row; ten points of one level take 3.8, and amplify rounding more: what levels amplify multiplies, and few points do little of it.
A kernel may be one tap short. Its value at infinity at each level, the coefficient of the missing tap, is zero and is left out.

Most of what the output transform amplifies is the rounding of the sums over input channels. So these are sums of sums of sums: of
``Scheme.chunk`` products, of ``conv1d.CHUNK``, of all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels import bf16
from kokoro_tvm.kernels.conv1d import CHUNK, TOLERANCE, Conv1d, activate, finish, panel_group, smallest
from kokoro_tvm.kernels.prefetch import AHEAD, fetch, fetch_row
from kokoro_tvm.kernels.prune import keep_parameters
from kokoro_tvm.kernels.registers import each, registers, save
from kokoro_tvm.kernels.script import macro
from kokoro_tvm.kernels.shares import LLVM, RUNS, block_begin, block_count, block_step, parallel_tasks
from kokoro_tvm.kernels.stream import llvm, stream
from kokoro_tvm.kernels.tile import Tile
from kokoro_tvm.kernels.vector_math import Expr

PACKED_BYTES = 768 * 1024
"""Most that the transformed input of one task takes. Beyond the level-2 cache it costs less than reading weights more often."""
NEAR = 256
"""Input channels above which weights are so many that reading them seldom is worth more than a transformed input nearby."""
ENDS = (2, 4)
"""Tiles of the smaller register tiles, one of which ends a block; above NEAR only. Below it tasks have tiles enough."""

LINE = 16
"""float32 values of a cache line."""

Matrix = list[list[Fraction]]


def _polynomial(roots: Sequence[Fraction], size: int) -> list[Fraction]:
    """Coefficients of the monic polynomial with these roots, constant first, filled up with zeros."""
    coefficients = [Fraction(1)]
    for root in roots:
        coefficients = [a - root * b for a, b in zip([Fraction(0), *coefficients], [*coefficients, Fraction(0)], strict=True)]
    return coefficients + [Fraction(0)] * (size - len(coefficients))


def _transposed(matrix: Matrix) -> Matrix:
    return [list(column) for column in zip(*matrix, strict=True)]


def _shared(matrix: Matrix) -> tuple[Matrix, Matrix]:
    """(parts, joins) with ``joins @ parts == matrix``: rows of points p and -p share their even and their odd part.

    Mirrored rows are equal or opposite to one another's, as the number of points has it.
    """
    parts: Matrix = []
    joins: dict[int, dict[int, Fraction]] = {}
    for i, row in enumerate(matrix):
        if i in joins:
            continue
        mirrored = [-c if k % 2 else c for k, c in enumerate(row)]
        negated = [-c for c in mirrored]
        alone = (row, [-c for c in row])
        partner = next((other for other in (mirrored, negated) if other in matrix and other not in alone), None)
        if partner is None:
            joins[i] = {len(parts): Fraction(1)}
            parts.append(row)
            continue
        even, odd = ([c if k % 2 == parity else Fraction(0) for k, c in enumerate(row)] for parity in (0, 1))
        scale, sign = next(c for c in reversed(odd) if c), Fraction(1 if partner is mirrored else -1)
        joins[i] = {len(parts): Fraction(1), len(parts) + 1: scale}
        joins[matrix.index(partner)] = {len(parts): sign, len(parts) + 1: -sign * scale}
        parts += [even, [c / scale for c in odd]]
    return parts, [[joins[i].get(k, Fraction(0)) for k in range(len(parts))] for i in range(len(matrix))]


@dataclass(frozen=True)
class Level:
    """F(m, r): which points the polynomials are evaluated at.

    Attributes:
        outputs: m.
        taps: r.
        points: The m + r - 2 finite points; infinity is the last one.
    """

    outputs: int
    taps: int
    points: tuple[Fraction, ...]

    @property
    def size(self) -> int:
        """n, points and inputs."""
        return self.outputs + self.taps - 1

    @cached_property
    def input_stages(self) -> list[Matrix]:
        """B' [n, n] as a product of sparse matrices, the first to be applied first.

        The row of a point is the polynomial whose roots are the other points; that of infinity has them all.
        """
        size, first = self.size, []
        symmetric = [p for p in self.points if -p in self.points]
        if len(symmetric) < len(self.points):
            # One point x has no mirror image. All rows but its own share the factor (z - x).
            (single,) = (p for p in self.points if p not in symmetric)
            place = self.points.index(single)
            shift = [[Fraction(0)] * k + _polynomial([single], size - k) for k in range(size - 1)]
            first = [[*shift, _polynomial(symmetric, size)]]
            size -= 1
        rows = [_polynomial([p for p in symmetric if p != point], size) for point in symmetric] + [_polynomial(symmetric, size)]
        if first:
            rows = [[*row, Fraction(0)] for row in rows]
            rows.insert(place, [Fraction(0)] * size + [Fraction(1)])
        return [*first, *_shared(rows)]

    @cached_property
    def weight_transform(self) -> Matrix:
        """G [n, r]."""
        rows = []
        for point in self.points:
            norm = Fraction(1)
            for other in self.points:
                norm *= point - other if other != point else 1
            rows.append([point**k / norm for k in range(self.taps)])
        return [*rows, [Fraction(int(k == self.taps - 1)) for k in range(self.taps)]]

    @cached_property
    def output_stages(self) -> list[Matrix]:
        """A' [m, n] as a product of sparse matrices, the first to be applied first."""
        powers = [[p**j for j in range(self.outputs)] for p in self.points]
        parts, joins = _shared([*powers, [Fraction(int(j == self.outputs - 1)) for j in range(self.outputs)]])
        return [_transposed(joins), _transposed(parts)]


def _level(outputs: int, taps: int, *points: str) -> Level:
    return Level(outputs, taps, tuple(Fraction(p) for p in points))


@dataclass(frozen=True)
class Scheme:
    """One or two levels, and how long sums are.

    Attributes:
        inner: Computes blocks of rows from rows.
        outer: Computes tiles of blocks from blocks; F(1, 1) for none.
        chunk: Products that are summed up at most before the sum joins the next longer one: fewer where more is at stake.
    """

    inner: Level
    outer: Level = Level(1, 1, ())
    chunk: int = 64

    def __post_init__(self) -> None:
        if self.nested and self.inner.outputs != self.inner.taps:
            raise ValueError(f"blocks of {self.inner.outputs} rows are no taps apart from segments of {self.inner.taps}")

    @property
    def nested(self) -> bool:
        """Whether there are two levels."""
        return self.outer.size > 1

    @property
    def outputs(self) -> int:
        """Output rows of a tile."""
        return self.inner.outputs * self.outer.outputs

    @property
    def taps(self) -> int:
        """Taps of the longest kernel."""
        return self.inner.taps * self.outer.taps

    @property
    def size(self) -> int:
        """Points: for each inner one all outer ones."""
        return self.inner.size * self.outer.size

    @property
    def name(self) -> str:
        """The layout of its weights."""
        outer = f"{self.outer.outputs},{self.outer.taps}x" if self.nested else ""
        return f"winograd:{outer}{self.inner.outputs},{self.inner.taps}"

    def computes(self, taps: int) -> bool:
        """Whether a kernel has as many taps, or one less."""
        return self.taps - taps in (0, 1)

    def products(self, taps: int) -> int:
        """Matrix products per tile for a kernel of ``taps`` taps."""
        return self.size - (self.taps - taps)

    def blocks(self, tiles: Expr) -> Expr:
        """Input blocks of consecutive tiles; one begins ``inner.outputs`` rows after the other."""
        return tiles * self.outer.outputs + self.outer.taps - 1

    @property
    def weight_transform(self) -> np.ndarray:
        """G [points, taps], float64."""
        inner, outer = (np.array(level.weight_transform, np.float64) for level in (self.inner, self.outer))
        return np.einsum("ir,os->iosr", inner, outer).reshape(self.size, self.taps)


F43 = Scheme(_level(4, 3, "0", "1/2", "-1/2", "3/2", "-3/2"))
"""For 3 taps of many channels, where reading weights costs as much as multiplying them."""
F32 = Scheme(_level(3, 2, "0", "1", "-1"))
"""For 2 taps, which each phase of a transposed convolution has."""
F63 = Scheme(_level(6, 3, "0", "1", "-1", "2", "-2", "1/2", "-1/2"))
"""For 3 taps."""
# Points are, from here on, those of all eighths or sixteenths that amplify least in the mean over the rows of a tile.
_F44 = _level(4, 4, "1/4", "-1/4", "7/8", "-7/8", "7/4", "-7/4")
F32_44 = Scheme(_F44, F32.inner)
"""For 7 taps in bfloat16, and of few output channels."""
F42_44 = Scheme(_F44, _level(4, 2, "3/8", "-3/8", "5/4", "-5/4"))
"""For 7 taps."""
F33_44 = Scheme(_F44, _level(3, 3, "3/8", "-3/8", "5/4", "-5/4"))
"""For 11 taps in bfloat16."""
F43_44 = Scheme(_F44, _level(4, 3, "0", "11/16", "-11/16", "3/2", "-3/2"))
"""For 11 taps."""

SCHEMES = {s.name: s for s in (F32, F43, F63, F32_44, F42_44, F33_44, F43_44)}


def _rows(stages: list[Matrix]) -> np.ndarray:
    """The product of matrices, the first to be applied first."""
    product = np.array(stages[0], np.float64)
    for stage in stages[1:]:
        product = np.array(stage, np.float64) @ product
    return product


def power(level: Level) -> np.ndarray:
    """How much larger than in a direct sum the power of a rounding error is in each output [m].

    Each product at point p is about ``|B'_p| |G_p|`` large where inputs and taps are uncorrelated, weighs ``A'_jp`` in row j, and
    carries relative errors like those of a direct product; a direct sum of r products is about ``sqrt(r)`` large.
    """
    inputs, weights = _rows(level.input_stages), np.array(level.weight_transform, np.float64)
    products = np.linalg.norm(inputs, axis=1) * np.linalg.norm(weights, axis=1)
    return np.square(_rows(level.output_stages) * products).sum(axis=1) / level.taps


def amplification(scheme: Scheme) -> float:
    """``power`` of all levels in the worst row of a tile, as a ratio of standard deviations."""
    return float(np.sqrt(power(scheme.inner).max() * power(scheme.outer).max()))


def tolerance(scheme: Scheme, products: str = "float32") -> float:
    """Largest error relative to the largest output: that of the direct kernel, amplified.

    The variance of a sum's error grows with the length of its running sums: n/2 roundings of the result. With bfloat16
    products the rounding of the factors stands in the place of the rounding of sums.
    """
    if products == "bfloat16":
        return bf16.TOLERANCE * amplification(scheme)
    return TOLERANCE * amplification(scheme) * math.sqrt((scheme.chunk + CHUNK / scheme.chunk) / CHUNK)


def scheme_for(conv: Conv1d) -> Scheme | None:
    """The scheme that pays for a convolution, None where the direct one is as fast or more exact sums are asked for."""
    if conv.stride != 1 or conv.accumulate != "float32" or conv.c_in < 64 or conv.c_out < 16:
        return None
    if conv.phases > 1:
        return F32 if conv.taps == 2 else None
    rounded = conv.products == "bfloat16"
    if conv.c_out < 64:
        # The last layer: more transforms than products, so fewer points cost little, and no later layer dilutes its errors.
        return F32_44 if conv.taps == 7 and not rounded else None
    if rounded:
        # Products cost half, transforms what they did, and rounding is magnified less by fewer points.
        return {3: F43, 7: F32_44, 11: F33_44}.get(conv.taps)
    return {3: F63 if conv.c_in <= NEAR else F43, 7: F42_44, 11: F43_44}.get(conv.taps)


def candidates(conv: Conv1d) -> list[Scheme]:
    """Every scheme for a convolution that this kernel can compute."""
    if conv.stride != 1 or conv.accumulate != "float32" or conv.taps < 2:
        return []
    return [s for s in SCHEMES.values() if s.computes(conv.taps)]


def choice(conv: Conv1d, tile: Tile) -> Scheme | None:
    """The scheme that a tile names if it names any, else ``scheme_for``; None is the direct kernel.

    Raises:
        ValueError: The tile names none of the convolution's.
    """
    if tile.scheme in (None, "direct"):
        return None if tile.scheme else scheme_for(conv)
    for scheme in candidates(conv):
        if scheme.name == tile.scheme:
            return scheme
    raise ValueError(f"no scheme {tile.scheme} for {conv}")


def layout(conv: Conv1d, scheme: Scheme) -> str:
    """The layout (``kernels.packing``) of a convolution's weight."""
    name = scheme.name.replace("winograd", "winograd-bf16") if conv.products == "bfloat16" else scheme.name
    return f"{name}/{conv.phases}" if conv.phases > 1 else name


def pack_weight(weight: np.ndarray, scheme: Scheme, width: int) -> np.ndarray:
    """[C_out, C_in, K] to panels [ceil(C_out / width), products, C_in, width], point by point.

    Transformed in float64, rounded once.
    """
    c_out, c_in, taps = weight.shape
    panels = -(-c_out // width)
    padded = np.zeros((panels * width, c_in, scheme.taps))
    padded[:c_out, :, :taps] = weight
    values = np.einsum("nr,pwcr->pncw", scheme.weight_transform, padded.reshape(panels, width, c_in, scheme.taps), optimize=True)
    return np.ascontiguousarray(values[:, : scheme.products(taps)], weight.dtype)


def _combine(coefficients: list[Fraction], value: Callable[[int], Expr]) -> Expr:
    """Sum of ``coefficients[k] * value(k)``."""
    terms = sorted(((c, k) for k, c in enumerate(coefficients) if c), key=lambda term: term[0] != 1)
    c, k = terms[0]
    total = value(k) if c == 1 else value(k) * T.float32(float(c))
    for c, k in terms[1:]:
        total = total + value(k) if c == 1 else total - value(k) if c == -1 else T.fma(value(k), T.float32(float(c)), total)
    return total


Source = Callable[[int, Expr], Expr]
"""Lane j of vector k."""


def _emit(stages: list[Matrix], lanes: int, source: Source, store: Callable[[int, Expr, Expr], None]) -> None:
    """Emits the product of matrices with a vector of vectors: ``store(i, lane, value)`` takes the result."""
    for number, matrix in enumerate(stages):
        last = number + 1 == len(stages)
        values = None if last else registers(len(matrix), lanes)
        for i, row in enumerate(matrix):
            with T.vectorized(lanes) as j:
                value = _combine(row, lambda k, j=j, source=source: source(k, j))
                if last:
                    store(i, j, value)
                else:
                    T.buffer_store(values[i], value, [j])
        source = lambda k, j, values=values: values[k][j]  # noqa: E731


def _dots(found: list[Any], lanes: int, pair: Callable[[int], Expr], weights: Callable[[int], Expr]) -> None:
    """Adds the products of ``pair(i)`` and ``weights(i)`` to each register i; see ``bf16.dot``."""
    everything = T.ramp(0, 1, lanes)
    for i, register in enumerate(found):
        T.buffer_store(register, bf16.dot(register[everything], pair(i), weights(i)), [everything])


def _extent(total: int, begin: Expr, most: int) -> Expr:
    """Length of a part of ``total`` that begins at ``begin``: ``most``, or what is left."""
    return T.min(total - begin, most) if total % most else T.int64(most)


def block_tiles(conv: Conv1d, tile: Tile, scheme: Scheme) -> int:
    """Tiles per task, a multiple of the register tile's rows: PACKED_BYTES, or many where weights come from far away.

    A tile that names its scheme was measured with it, and says itself how many.
    """
    if tile.scheme:
        return tile.block
    size = 2 if conv.products == "bfloat16" else 4
    most = PACKED_BYTES // (scheme.size * conv.c_in * size)
    most = min(most, tile.block // 8) if conv.c_in <= NEAR else tile.block // 4
    return max(most // tile.rows, 1) * tile.rows


def _rounded(sizes: list[tuple[int, Any]], left: Expr) -> Expr:
    """Tiles that the register tile for ``left`` of them has: see ``conv1d.smallest``."""
    *smaller, largest = (rows for rows, _ in sizes)
    found: Expr = T.int64(largest)
    for rows in reversed(smaller):
        found = T.if_then_else(left <= rows, T.int64(rows), found)
    return found


def kernel(conv: Conv1d, tile: Tile, scheme: Scheme) -> PrimFunc:
    """Builds the PrimFunc, with the parameters of ``conv1d.kernel``; the weight packed by this module's ``pack_weight``.

    With bfloat16 products the transformed input is rounded, and the weight goes through ``bf16.pack_pairs`` as well.

    Raises:
        ValueError: The convolution is none that this kernel computes.
    """
    if conv.products == "bfloat16" and tile.lanes != bf16.LANES:
        raise ValueError(f"bfloat16 products need vectors of {bf16.LANES} float32, not {tile.lanes}")
    if conv.stride != 1 or conv.accumulate != "float32":
        raise ValueError(f"no such scheme for strided convolutions or compensated sums: {conv}")
    if conv.phases > 1 and conv.c_out % tile.width:
        raise ValueError(f"transposed convolution: {conv.c_out} channels are no multiple of the tile width {tile.width}")
    if not scheme.computes(conv.taps):
        raise ValueError(f"{scheme.name} is for {scheme.taps - 1} or {scheme.taps} taps, not {conv.taps}")
    c_in, c_out, dilation, padding, shift = conv.c_in, conv.c_out, conv.dilation, conv.padding_left, conv.residual_shift
    lanes, vectors, rows, width = tile.lanes, tile.vectors, tile.rows, tile.width
    lines = -(-width // LINE)
    inner, outer, nested = scheme.inner, scheme.outer, scheme.nested
    outputs, size, products = scheme.outputs, scheme.size, scheme.products(conv.taps)
    chunks, run = -(-c_in // CHUNK), scheme.chunk
    panels = -(-c_out // width)
    phases, crop, reflect = conv.phases, conv.crop, conv.reflect
    group = panel_group(panels * phases, tile)
    groups = panels * phases // group
    block = block_tiles(conv, tile, scheme)
    body, tail = c_in // lanes, c_in % lanes
    channels = -(-c_in // lanes)
    half, wide = conv.products == "bfloat16", 2 * lanes
    stored = channels * lanes // 2 if half else channels * lanes  # words of a transformed row
    words, columns = (-(-c_in // 2), 2 * width) if half else (c_in, width)  # of a point's weights
    pitch = (-(-stored // LINE) | 1) * LINE  # an odd number of lines: rows of a register tile meet in no set of a cache
    ring = 1 << (inner.size - 1).bit_length()  # rows; a block's rows and those of the next
    shelf = 1 << (outer.size - 1).bit_length()  # blocks; a tile's blocks and those of the next
    whole = c_out % width == 0
    has_bias, has_alpha = conv.bias, conv.prologue == "snake"

    def micro_kernel(rows):
        """What computes a register tile of so many rows."""

        @macro
        def multiply(b, p, tile_of, start, m, panel, V, W, R, R2, Y, P):
            """Of the products at point ``p``, those of the tiles from ``tile_of`` on."""
            column: T.let[T.int64] = panel % panels * width
            if p < outputs:
                for r in T.unroll(rows):
                    position: T.let[T.int64] = start[tile_of + r] + p * dilation
                    t: T.let[T.int64] = position * phases + panel // panels - crop + reflect
                    if position < m:
                        for line in T.unroll(lines):
                            if conv.residuals > 0:
                                fetch(R[b, t >> shift, column + line * LINE])
                            if conv.residuals > 1:
                                fetch(R2[b, t, column + line * LINE])
            total = registers(rows * vectors, lanes)
            if p < products:
                if half:
                    for c in range(words):
                        fetch_row(W, columns, panel, p, c + AHEAD)
                        _dots(
                            total, lanes, lambda i: V[p, tile_of + i // vectors, c],
                            lambda i: W[panel, p, c, T.ramp(i % vectors * wide, 1, wide)],
                        )
                else:
                    for chunk in range(T.int64(chunks)):
                        part = registers(rows * vectors, lanes)
                        for short in range((_extent(c_in, chunk * CHUNK, CHUNK) + run - 1) // run):
                            acc = registers(rows * vectors, lanes)
                            begin: T.let[T.int64] = chunk * CHUNK + short * run
                            for c in range(_extent(c_in, begin, run)):
                                fetch_row(W, columns, panel, p, begin + c + AHEAD)
                                each(acc, lanes, lambda i, j: T.fma(
                                    V[p, tile_of + i // vectors, begin + c],
                                    W[panel, p, begin + c, i % vectors * lanes + j],
                                    acc[i][j],
                                ))
                            each(part, lanes, lambda i, j: part[i][j] + acc[i][j])
                        each(total, lanes, lambda i, j: total[i][j] + part[i][j])
            save(total, lanes, lambda i, j, value: T.buffer_store(
                P, value, [p, tile_of + i // vectors, i % vectors * lanes + j]
            ))

        return multiply

    sizes = [(size.rows, micro_kernel(size.rows)) for size in (replace(tile, ends=ENDS) if c_in > NEAR else tile).sizes]

    def transform(level, source, point, i, c, V):
        """Stores a level's values at its points, from ``point`` on."""
        if half:
            values = registers(level.size, lanes)
            _emit(level.input_stages, lanes, source, lambda p, j, value: T.buffer_store(values[p], value, [j]))
            for p, value in enumerate(values):
                words = bf16.round_pairs(value[T.ramp(0, 1, lanes)])
                T.buffer_store(V, words, [point + p, i, T.ramp(c * (lanes // 2), 1, lanes // 2)])
        else:
            _emit(
                level.input_stages, lanes, source,
                lambda p, j, value: T.buffer_store(V, value, [point + p, i, c * lanes + j]),
            )  # fmt: skip

    def result(value, b, t, channel, R, R2):
        return finish(conv, value, R[b, t >> shift, channel], R2[b, t, channel])

    @macro
    def write_row(y, q, b, t, column, R, R2, Y):
        """Row ``q`` of ``y``, epilogue applied, as output row ``t``."""
        if whole:
            for v in T.unroll(vectors):
                place: T.let[T.int64] = column + v * lanes
                values = y[T.ramp(q * width + v * lanes, 1, lanes)]
                stream(lanes, Y[b, t, place], result(values, b, t, T.ramp(place, 1, lanes), R, R2))
        else:
            for j in range(T.min(c_out - column, width)):
                Y[b, t, column + j] = result(y[q * width + j], b, t, column + j, R, R2)

    @macro
    def write(values, b, position, m, n_out, panel, bias, R, R2, Y):
        """Output rows from ``position`` on, of one block of a tile, whose values at the points of the inner level these are."""
        column: T.let[T.int64] = panel % panels * width
        y = T.alloc_buffer((inner.outputs * width,), "float32")
        for v in T.unroll(vectors):
            _emit(
                inner.output_stages, lanes, lambda p, j: values(p, v * lanes + j),
                lambda q, j, value: T.buffer_store(y, value, [q * width + v * lanes + j]),
            )
        for q in T.unroll(inner.outputs):
            step: T.let[T.int64] = position + q * dilation
            t: T.let[T.int64] = step * phases + panel // panels - crop
            if step < m and t >= 0 and t < n_out:
                if has_bias:
                    for v in T.unroll(vectors):
                        for j in T.vectorized(lanes):
                            y[q * width + v * lanes + j] = y[q * width + v * lanes + j] + bias[column + v * lanes + j]
                write_row(y, q, b, t + reflect, column, R, R2, Y)
                if reflect > 0:
                    if t == 1:
                        write_row(y, q, b, 0, column, R, R2, Y)

    @macro
    def take(b, row, n, slot, S, X, coef, alpha):
        """One input row with its prologue, zeros beyond the input's ends."""
        if row >= 0 and row < n:
            for c in range(body):
                for j in T.vectorized(lanes):
                    S[slot, c * lanes + j] = activate(
                        conv, X[b, row, c * lanes + j], coef[b, 0, c * lanes + j], coef[b, 1, c * lanes + j],
                        alpha[0, c * lanes + j], alpha[1, c * lanes + j],
                    )
            for j in range(tail):
                S[slot, body * lanes + j] = activate(
                    conv, X[b, row, body * lanes + j], coef[b, 0, body * lanes + j], coef[b, 1, body * lanes + j],
                    alpha[0, body * lanes + j], alpha[1, body * lanes + j],
                )
        else:
            for c in range(channels):
                for j in T.vectorized(lanes):
                    S[slot, c * lanes + j] = T.float32(0)

    @macro
    def block_of(task, b, n, m, n_out, shares, X, W, bias, coef, alpha, R, R2, Y):
        """All outputs of one block of tiles, in some panels."""
        blocks: T.let[T.int64] = shares[0]
        step_of: T.let[T.int64] = shares[1]
        per_sequence: T.let[T.int64] = shares[2]
        place = T.alloc_buffer((5,), "int64")  # numbers that TVM's simplifier takes twice as long for where it sees what they are
        place[0] = block_begin(task % blocks, blocks, step_of, 0) * rows
        first: T.let[T.int64] = place[0]
        place[1] = T.min(block_begin(task % blocks + 1, blocks, step_of, 0) * rows, per_sequence * dilation) - first
        tiles: T.let[T.int64] = place[1]
        register_tiles: T.let[T.int64] = (tiles + rows - 1) // rows
        full: T.let[T.int64] = (register_tiles - 1) * rows
        place[2] = first + full + _rounded(sizes, tiles - full)
        end: T.let[T.int64] = place[2]
        start = T.alloc_buffer((block,), "int64")  # the first output row of each tile
        S = T.alloc_buffer((ring, channels * lanes), "float32")
        U = T.alloc_buffer((shelf, inner.size, channels * lanes), "float32")
        V = T.alloc_buffer((size, block, pitch), "int32" if half else "float32")
        P = T.alloc_buffer((size, block, width), "float32")
        Q = T.alloc_buffer((inner.size, outer.outputs, width), "float32")
        if tail > 0:
            for r in range(ring):
                for j in T.vectorized(lanes):
                    S[r, body * lanes + j] = T.float32(0)
        for sequence in range(first // per_sequence, (end + per_sequence - 1) // per_sequence):
            # Tiles of one of the interleaved sequences follow those of another; behind the last are some that no one needs.
            place[3] = T.max(first, sequence * per_sequence)
            place[4] = T.min(end, (sequence + 1) * per_sequence) - place[3]
            begin: T.let[T.int64] = place[3]
            top: T.let[T.int64] = sequence + (begin - sequence * per_sequence) * outputs * dilation
            at: T.let[T.int64] = begin - first
            for i in range(place[4]):
                start[at + i] = top + i * outputs * dilation
            for r in range((scheme.blocks(place[4]) - 1) * inner.outputs + inner.size):
                row: T.let[T.int64] = top + r * dilation - padding
                take(b, row, n, r % ring, S, X, coef, alpha)
                oldest: T.let[T.int64] = r + 1 - inner.size
                k: T.let[T.int64] = oldest // inner.outputs
                if oldest == k * inner.outputs and k >= 0:
                    for c in range(channels):
                        found = registers(inner.size, lanes)
                        each(found, lanes, lambda q, j: S[(oldest + q) % ring, c * lanes + j])
                        if nested:
                            _emit(
                                inner.input_stages, lanes, lambda q, j: found[q][j],
                                lambda p, j, value: T.buffer_store(U, value, [k % shelf, p, c * lanes + j]),
                            )
                        else:
                            transform(inner, lambda q, j: found[q][j], 0, at + k, c, V)
                    if nested:
                        head: T.let[T.int64] = k + 1 - outer.size
                        i: T.let[T.int64] = head // outer.outputs
                        if head == i * outer.outputs and i >= 0:
                            for p in range(inner.size):
                                for c in range(channels):
                                    transform(
                                        outer, lambda q, j: U[(head + q) % shelf, p, c * lanes + j],
                                        p * outer.size, at + i, c, V,
                                    )  # fmt: skip
        for g in range(group):
            panel: T.let[T.int64] = task // blocks * group + g
            for p in range(size):
                for register_tile in range(register_tiles):
                    tile_of: T.let[T.int64] = register_tile * rows
                    smallest(sizes, tiles - tile_of, b, p, tile_of, start, m, panel, V, W, R, R2, Y, P)
            for i in range(tiles):
                if nested:
                    for p in range(inner.size):
                        for v in T.unroll(vectors):
                            _emit(
                                outer.output_stages, lanes, lambda q, j: P[p * outer.size + q, i, v * lanes + j],
                                lambda q, j, value: T.buffer_store(Q, value, [p, q, v * lanes + j]),
                            )
                    for q in range(outer.outputs):
                        position: T.let[T.int64] = start[i] + q * inner.outputs * dilation
                        write(lambda p, j: Q[p, q, j], b, position, m, n_out, panel, bias, R, R2, Y)
                else:
                    write(lambda p, j: P[p, i, j], b, start[i], m, n_out, panel, bias, R, R2, Y)

    @T.prim_func
    def winograd(
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
        W = T.match_buffer(weight_h, (panels * phases, products, words, columns), "uint16" if half else "float32")
        bias = T.match_buffer(bias_h, (panels * width,), "float32")
        coef = T.match_buffer(coef_h, (B, 2, c_in), "float32")
        alpha = T.match_buffer(alpha_h, (2, c_in), "float32")
        R = T.match_buffer(residual_h, (B, T_res, c_out), "float32")
        R2 = T.match_buffer(residual2_h, (B, T_out, c_out), "float32")
        Y = T.match_buffer(y_h, (B, T_out, c_out), "float32")
        if half:
            T.attr(0, "pragma_import_llvm", bf16.LLVM)
        T.attr(0, "pragma_import_llvm", LLVM + llvm(lanes))
        shares = T.alloc_buffer((3,), "int64")
        taken = T.alloc_buffer((RUNS + 1,), "int64")
        for b in range(B):
            n: T.let[T.int64] = L[b]
            m: T.let[T.int64] = conv.steps(n)
            n_out: T.let[T.int64] = conv.output_rows(n) - reflect
            longest: T.let[T.int64] = (m + dilation - 1) // dilation
            shares[2] = T.max((longest + outputs - 1) // outputs, 1)
            units: T.let[T.int64] = (shares[2] * dilation + rows - 1) // rows
            shares[0] = block_count(units, block // rows, groups)
            shares[1] = block_step(units, shares[0])
            parallel_tasks(
                groups * shares[0], taken,
                lambda task: block_of(task, b, n, m, n_out, shares, X, W, bias, coef, alpha, R, R2, Y),
            )  # fmt: skip

    used = {"bias": has_bias, "coef": conv.affine, "alpha": has_alpha, "R": conv.residuals > 0, "R2": conv.residuals > 1}
    return keep_parameters(winograd, lambda name: used.get(name, True))
