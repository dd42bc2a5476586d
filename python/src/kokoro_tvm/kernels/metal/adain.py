"""``kernels.adain`` for Metal: statistics of chunks of ``CHUNK`` rows, then their combination: two GPU kernels, one function.

The first kernel takes mean and squared deviations of a chunk in two passes over it; the second one combines them per channel,
relative to the first chunk's mean: the differences are small, so float32 keeps the digits that float64 keeps on the CPU.
"""

from __future__ import annotations

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels.adain import CHUNK, EPSILON
from kokoro_tvm.kernels.metal.tile import GROUPS, SIMD, THREADS, Tile
from kokoro_tvm.kernels.script import macro


def kernel(channels: int, tile: Tile) -> PrimFunc:
    """Builds the PrimFunc.

    Returns:
        ``f(x [B, T, C], lengths [B], affine [B, S], weight [C], bias [C], offset, coef [B, 2, C])``, see the CPU's.
    """

    @macro
    def total(S, group, lane, value):
        """``value[0]`` becomes its sum over the groups, the same in all of them."""
        S[group * SIMD + lane] = value[0]
        T.tvm_storage_sync("shared")
        value[0] = S[lane]
        for g in T.unroll(GROUPS - 1):
            value[0] = value[0] + S[(g + 1) * SIMD + lane]
        T.tvm_storage_sync("shared")

    @T.prim_func
    def adain(
        x_h: T.handle, lengths_h: T.handle, affine_h: T.handle, weight_h: T.handle, bias_h: T.handle, offset: T.int64,
        coef_h: T.handle,
    ):
        T.func_attr({"tirx.noalias": True})
        B = T.int32()
        T_in = T.int32()
        S_all = T.int32()
        X = T.match_buffer(x_h, (B, T_in, channels), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        affine = T.match_buffer(affine_h, (B, S_all), "float32")
        weight = T.match_buffer(weight_h, (channels,), "float32")
        bias = T.match_buffer(bias_h, (channels,), "float32")
        coef = T.match_buffer(coef_h, (B, 2, channels), "float32")
        # Mean and sum of squared deviations of every chunk.
        moments = T.alloc_buffer((B, (T_in + CHUNK - 1) // CHUNK, 2, channels), "float32")
        with (
            T.launch_thread("blockIdx.x", (T_in + CHUNK - 1) // CHUNK) as chunk,
            T.launch_thread("blockIdx.y", (channels + SIMD - 1) // SIMD) as column,
            T.launch_thread("blockIdx.z", B) as b,
            T.launch_thread("threadIdx.x", SIMD) as lane,
            T.launch_thread("threadIdx.y", GROUPS) as group,
        ):
            S = T.alloc_buffer((THREADS,), "float32", scope="shared")
            value = T.alloc_buffer((1,), "float32", scope="local")
            mean = T.alloc_buffer((1,), "float32", scope="local")
            c: T.int32 = column * SIMD + lane
            rows: T.int32 = T.min(T.cast(L[b], "int32") - chunk * CHUNK, CHUNK)
            if rows > 0:
                value[0] = T.float32(0)
                if c < channels:
                    for i in range((rows - group + GROUPS - 1) // GROUPS):
                        value[0] = value[0] + X[b, chunk * CHUNK + i * GROUPS + group, c]
                total(S, group, lane, value)
                mean[0] = value[0] / T.cast(rows, "float32")
                value[0] = T.float32(0)
                if c < channels:
                    for i in range((rows - group + GROUPS - 1) // GROUPS):
                        value[0] = T.fma(
                            X[b, chunk * CHUNK + i * GROUPS + group, c] - mean[0],
                            X[b, chunk * CHUNK + i * GROUPS + group, c] - mean[0],
                            value[0],
                        )
                total(S, group, lane, value)
                if group == 0 and c < channels:
                    moments[b, chunk, 0, c] = mean[0]
                    moments[b, chunk, 1, c] = value[0]
        with (
            T.launch_thread("blockIdx.x", (channels + SIMD - 1) // SIMD) as column,
            T.launch_thread("blockIdx.y", B) as b,
            T.launch_thread("threadIdx.x", SIMD) as lane,
        ):
            c: T.int32 = column * SIMD + lane
            n: T.int32 = T.cast(L[b], "int32")
            # Mean relative to the first chunk's, and the whole spread.
            whole = T.alloc_buffer((2,), "float32", scope="local")
            if c < channels:
                whole[0] = T.float32(0)
                for i in range((n + CHUNK - 1) // CHUNK):
                    whole[0] = T.fma(
                        moments[b, i, 0, c] - moments[b, 0, 0, c], T.cast(T.min(n - i * CHUNK, CHUNK), "float32"), whole[0]
                    )
                whole[0] = whole[0] / T.cast(n, "float32")
                whole[1] = T.float32(0)
                for i in range((n + CHUNK - 1) // CHUNK):
                    off: T.float32 = (moments[b, i, 0, c] - moments[b, 0, 0, c]) - whole[0]
                    whole[1] = whole[1] + T.fma(
                        off * off, T.cast(T.min(n - i * CHUNK, CHUNK), "float32"), moments[b, i, 1, c]
                    )
                first: T.int32 = T.cast(offset, "int32")
                gain: T.float32 = T.float32(1) + affine[b, first + c]
                scale: T.float32 = gain * weight[c] / T.sqrt(whole[1] / T.cast(n, "float32") + T.float32(EPSILON))
                coef[b, 0, c] = scale
                coef[b, 1, c] = T.fma(
                    -scale, moments[b, 0, 0, c] + whole[0], T.fma(gain, bias[c], affine[b, first + channels + c])
                )

    return adain
