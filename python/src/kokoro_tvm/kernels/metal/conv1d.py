"""``kernels.conv1d`` for Metal: one matrix kernel for every convolution, transposed convolution and linear layer.

A thread group makes a tile of ``tile.rows`` time rows by ``tile.width`` channels with the 8 x 8 matrix units of its SIMD groups.
It stages ``tile.chunk`` input channels of all the rows that the tile sees in thread-group memory, prologue applied and zero where
there is no valid row; a tap is then a shift of the rows, so there is no im2col. Weights come straight from device memory: they
are packed so that each 8 x 8 block is eight whole lines, and SIMD groups side by side share them in the cache.

Every output value is summed in the order (chunk, k, channel) whatever the capacity or batch.

With float16 products (``--dtype fp16``) weights and staged rows are rounded to float16; everything else, the sums first of all,
stays float32.
"""

from __future__ import annotations

import numpy as np
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels import bf16
from kokoro_tvm.kernels import conv1d as cpu
from kokoro_tvm.kernels.conv1d import Conv1d, pack_bias
from kokoro_tvm.kernels.metal import vector_math
from kokoro_tvm.kernels.metal.tile import SHARED_BYTES, SIMD, Tile
from kokoro_tvm.kernels.prune import keep_parameters
from kokoro_tvm.kernels.script import macro
from kokoro_tvm.kernels.vector_math import Expr

__all__ = ["Conv1d", "kernel", "pack_bias", "pack_transposed_weight", "pack_weight"]

_MATRIX = 8
"""Rows and columns of a matrix that a SIMD group multiplies at once."""

_SPLIT = 2
"""A tile is shared by 2 x 2 SIMD groups."""

_PAD = {"float32": 4, "float16": 8}
"""Values by which a staged row is longer than it needs to be, so that matrix loads touch all memory banks."""

LARGEST_HALF = 65504.0
"""Larger values become this before they are rounded to float16: no infinity comes from finite input."""

TOLERANCE_HALF = bf16.TOLERANCE * 2.0**-11 / bf16.UNIT_ROUNDOFF
"""Largest error relative to the largest output with float16 products: that of bfloat16, with factors of 11 bits instead of 8."""


def pack_weight(weight: np.ndarray, tile: Tile) -> np.ndarray:
    """[C_out, C_in, K] to panels [ceil(C_out / width), K, C_in', width], zero beyond C_out and C_in, C_in' = whole chunks."""
    padded = np.pad(weight, ((0, 0), (0, -weight.shape[1] % tile.chunk), (0, 0)))
    return cpu.pack_weight(padded, tile.width)


def pack_transposed_weight(weight: np.ndarray, stride: int, tile: Tile) -> np.ndarray:
    """[C_in, C_out, K] of a transposed convolution to the panels of its phases, [stride * panels, K / stride, C_in', width]."""
    c_in, c_out, taps = weight.shape
    # Phase r of the output, rows q * stride + r, is an ordinary convolution with the taps r, r + stride, ... in reverse.
    phases = weight.reshape(c_in, c_out, taps // stride, stride)[:, :, ::-1]
    return np.concatenate([pack_weight(phases[..., r].transpose(1, 0, 2), tile) for r in range(stride)])


def halves(weight: np.ndarray) -> np.ndarray:
    """A packed weight in float16."""
    return np.clip(weight, -LARGEST_HALF, LARGEST_HALF).astype(np.float16)


def rounds(conv: Conv1d, tile: Tile) -> bool:
    """Whether a convolution may have float16 products.

    Narrow ones gain nothing, and may not: the last one, which writes logarithms and angles, and those that read F0 and the
    source's spectrum.
    """
    return min(conv.c_in, conv.c_out) >= tile.width


def _half(value: Expr) -> Expr:
    return T.cast(T.max(T.min(value, T.float32(LARGEST_HALF)), T.float32(-LARGEST_HALF)), "float16")


def kernel(conv: Conv1d, tile: Tile) -> PrimFunc:
    """Builds the PrimFunc.

    Returns:
        ``f(x, lengths, weight, [bias], [coef], [alpha], [residual, [residual2]], y)``, see the CPU's; weight and bias packed by
        ``pack_weight`` (or ``pack_transposed_weight``) and ``pack_bias`` for ``tile``, weight in ``halves`` for float16 products.

    Raises:
        ValueError: The input rows of a tile do not fit into thread-group memory.
    """
    c_in, c_out, taps, dilation, stride = conv.c_in, conv.c_out, conv.taps, conv.dilation, conv.stride
    phases, crop, reflect, shift = conv.phases, conv.crop, conv.reflect, conv.residual_shift
    rows, width, chunk = tile.rows, tile.width, tile.chunk
    panels = -(-c_out // width)
    chunks = -(-c_in // chunk)
    staged_rows = (rows - 1) * stride + conv.span
    half = conv.products == "float16"
    products = "float16" if half else "float32"
    pitch = chunk + _PAD[products]
    # Floats: the staged rows, and in their place the tile of results.
    shared = max(staged_rows * pitch // (2 if half else 1), rows * width)
    if 4 * shared > SHARED_BYTES:
        raise ValueError(f"{conv}: {staged_rows} input rows of a tile exceed {SHARED_BYTES} bytes")
    threads = SIMD * _SPLIT * _SPLIT
    # 8 x 8 matrices per SIMD group.
    down, across = rows // _SPLIT // _MATRIX, width // _SPLIT // _MATRIX
    block = _MATRIX * _MATRIX
    has_bias, has_alpha = conv.bias, conv.prologue == "snake"
    padding = conv.padding_left

    @macro
    def activate(value, coef, alpha, b, c):
        """The prologue of ``value[0]``, channel c; ``value[1]`` is scratch."""
        if conv.affine:
            value[0] = T.fma(value[0], coef[b, 0, c], coef[b, 1, c])
        if conv.prologue == "leaky":
            value[0] = T.max(value[0], T.float32(conv.slope) * value[0])
        if has_alpha:
            vector_math.sin_squared(value, 1, alpha[0, c] * value[0])
            value[0] = T.fma(value[1], alpha[1, c], value[0])

    @macro
    def finish(value, i, R, R2, b, t, column):
        """The epilogue of ``value[i]``, output row t."""
        if conv.residuals > 0:
            value[i] = value[i] + R[b, T.shift_right(t, shift), column]
        if conv.residuals > 1:
            value[i] = value[i] + R2[b, t, column]
        if conv.scale != 1.0:
            value[i] = value[i] * T.float32(conv.scale)
        if conv.epilogue == "gelu":
            vector_math.gelu(value, i, value[i])

    @T.prim_func
    def conv1d(
        x_h: T.handle, lengths_h: T.handle, weight_h: T.handle, bias_h: T.handle, coef_h: T.handle, alpha_h: T.handle,
        residual_h: T.handle, residual2_h: T.handle, y_h: T.handle,
    ):
        T.func_attr({"tirx.noalias": True})
        B = T.int32()
        T_in = T.int32()
        T_out = T.int32()
        T_res = T.int32()
        X = T.match_buffer(x_h, (B, T_in, c_in), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        W = T.match_buffer(weight_h, (panels * phases, taps, chunks * chunk, width), products)
        bias = T.match_buffer(bias_h, (panels * width,), "float32")
        coef = T.match_buffer(coef_h, (B, 2, c_in), "float32")
        alpha = T.match_buffer(alpha_h, (2, c_in), "float32")
        R = T.match_buffer(residual_h, (B, T_res, c_out), "float32")
        R2 = T.match_buffer(residual2_h, (B, T_out, c_out), "float32")
        Y = T.match_buffer(y_h, (B, T_out, c_out), "float32")
        q_tile = T.launch_thread("blockIdx.x", (conv.steps(T_in) + rows - 1) // rows)
        panel = T.launch_thread("blockIdx.y", panels * phases)
        b = T.launch_thread("blockIdx.z", B)
        lane = T.launch_thread("threadIdx.x", SIMD)
        group = T.launch_thread("threadIdx.y", _SPLIT * _SPLIT)
        S = T.alloc_buffer((shared,), "float32", scope="shared")
        staged = T.decl_buffer((staged_rows * pitch,), products, data=S.data, scope="shared")
        left = T.alloc_buffer((down * block,), products, scope="metal.simdgroup")
        right = T.alloc_buffer((across * block,), products, scope="metal.simdgroup")
        acc = T.alloc_buffer((down * across * block,), "float32", scope="metal.simdgroup")
        value = T.alloc_buffer((2,), "float32", scope="local")
        position: T.int32 = group * SIMD + lane
        # Where this SIMD group's share of the tile begins.
        top: T.int32 = group // _SPLIT * (down * _MATRIX)
        side: T.int32 = group % _SPLIT * (across * _MATRIX)
        n: T.int32 = T.cast(L[b], "int32")
        m: T.int32 = conv.steps(n)
        q0: T.int32 = q_tile * rows
        if q0 < m:
            for i in T.unroll(down * across):
                T.evaluate(T.metal.make_filled_simdgroup_matrix(acc.data, i, T.float32(0), _MATRIX, _MATRIX))
            for part in range(chunks):
                T.tvm_storage_sync("shared")
                for i in range((staged_rows * chunk + threads - 1) // threads):
                    r: T.int32 = (i * threads + position) // chunk
                    c: T.int32 = part * chunk + position % chunk
                    row: T.int32 = q0 * stride + r - padding
                    if r < staged_rows:
                        value[0] = T.float32(0)
                        if row >= 0 and row < n and c < c_in:
                            value[0] = X[b, row, c]
                            activate(value, coef, alpha, b, c)
                        staged[r * pitch + position % chunk] = _half(value[0]) if half else value[0]
                T.tvm_storage_sync("shared")
                for k in range(taps):
                    s_at: T.int32 = top * (stride * pitch) + k * (dilation * pitch)
                    w_at: T.int32 = ((panel * taps + k) * (chunks * chunk) + part * chunk) * width + side
                    for e in T.unroll(chunk // _MATRIX):
                        for i in T.unroll(down):
                            T.evaluate(
                                T.metal.simdgroup_load(
                                    left.data, i,
                                    T.address_of(staged[s_at + i * (_MATRIX * stride * pitch) + e * _MATRIX]),
                                    stride * pitch, _MATRIX, _MATRIX, False,
                                )
                            )
                        for j in T.unroll(across):
                            T.evaluate(
                                T.metal.simdgroup_load(
                                    right.data, j, W.access_ptr("r", offset=w_at + e * (_MATRIX * width) + j * _MATRIX),
                                    width, _MATRIX, _MATRIX, False,
                                )
                            )
                        for i in T.unroll(down):
                            for j in T.unroll(across):
                                T.evaluate(
                                    T.metal.simdgroup_multiply_accumulate(
                                        acc.data, i * across + j, left.data, i, right.data, j, acc.data, i * across + j
                                    )
                                )
            T.tvm_storage_sync("shared")
            for i in T.unroll(down):
                for j in T.unroll(across):
                    T.evaluate(
                        T.metal.simdgroup_store(
                            acc.data, i * across + j,
                            S.access_ptr("w", offset=top * width + side + i * (_MATRIX * width) + j * _MATRIX),
                            width, _MATRIX, _MATRIX, False,
                        )
                    )
            T.tvm_storage_sync("shared")
            n_out: T.int32 = conv.output_rows(n) - reflect
            for i in range(rows * width // threads):
                q: T.int32 = q0 + (i * threads + position) // width
                c_panel: T.int32 = (i * threads + position) % width
                column: T.int32 = panel % panels * width + c_panel
                t: T.int32 = q * phases + panel // panels - crop
                if q < m and t >= 0 and t < n_out and column < c_out:
                    value[0] = S[i * threads + position]
                    if has_bias:
                        value[0] = value[0] + bias[column]
                    if reflect == 1:
                        if t == 1:
                            value[1] = value[0]
                            finish(value, 1, R, R2, b, 0, column)
                            Y[b, 0, column] = value[1]
                    finish(value, 0, R, R2, b, t + reflect, column)
                    Y[b, t + reflect, column] = value[0]

    used = {"bias": has_bias, "coef": conv.affine, "alpha": has_alpha, "R": conv.residuals > 0, "R2": conv.residuals > 1}
    return keep_parameters(conv1d, lambda name: used.get(name, True))
