"""``kernels.attention`` for Metal: blocks of queries against tiles of keys, softmax on the way.

A thread group takes one head and 32 queries, four per SIMD group. Keys and values pass through thread-group memory 32 at a time;
each thread scores one key, then owns a column of the values. A running maximum rescales what has been summed, so memory does not
grow with the tokens.
"""

from __future__ import annotations

import math

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels.attention import MASKED
from kokoro_tvm.kernels.metal import vector_math
from kokoro_tvm.kernels.metal.intrinsics import shuffle, simd_max, simd_sum
from kokoro_tvm.kernels.metal.tile import GROUPS, SHARED_BYTES, SIMD, THREADS, Tile

_QUERIES = 4
"""Queries per SIMD group: so many products for one load of a key."""


def kernel(heads: int, head_dim: int, tile: Tile) -> PrimFunc:
    """Builds the PrimFunc.

    Returns:
        ``f(qkv, lengths, y)``, see the CPU's.

    Raises:
        ValueError: The tiles exceed thread-group memory.
    """
    embedding = heads * head_dim
    columns = -(-head_dim // SIMD)
    padded = columns * SIMD
    queries = GROUPS * _QUERIES
    pitch = padded + 1
    scale = T.float32(1 / math.sqrt(head_dim))
    if 4 * (queries + 2 * SIMD) * pitch > SHARED_BYTES:
        raise ValueError(f"head dimension {head_dim}: queries, keys and values exceed {SHARED_BYTES} bytes")

    @T.prim_func
    def attention(qkv_h: T.handle, lengths_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        B = T.int32()
        N = T.int32()
        X = T.match_buffer(qkv_h, (B, N, 3 * embedding), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        Y = T.match_buffer(y_h, (B, N, embedding), "float32")
        block = T.launch_thread("blockIdx.x", (N + queries - 1) // queries)
        head = T.launch_thread("blockIdx.y", heads)
        b = T.launch_thread("blockIdx.z", B)
        lane = T.launch_thread("threadIdx.x", SIMD)
        group = T.launch_thread("threadIdx.y", GROUPS)
        Q = T.alloc_buffer((queries * pitch,), "float32", scope="shared")
        K = T.alloc_buffer((SIMD * pitch,), "float32", scope="shared")
        V = T.alloc_buffer((SIMD * pitch,), "float32", scope="shared")
        score = T.alloc_buffer((_QUERIES,), "float32", scope="local")
        most = T.alloc_buffer((_QUERIES,), "float32", scope="local")
        tile_most = T.alloc_buffer((_QUERIES,), "float32", scope="local")
        total = T.alloc_buffer((_QUERIES,), "float32", scope="local")
        acc = T.alloc_buffer((_QUERIES * columns,), "float32", scope="local")
        position: T.int32 = group * SIMD + lane
        n: T.int32 = T.cast(L[b], "int32")
        q0: T.int32 = block * queries
        if q0 < n:
            for i in range(queries * padded // THREADS):
                r: T.int32 = (i * THREADS + position) // padded
                c: T.int32 = (i * THREADS + position) % padded
                if q0 + r < n and c < head_dim:
                    Q[r * pitch + c] = X[b, q0 + r, head * head_dim + c]
                else:
                    Q[r * pitch + c] = T.float32(0)
            for i in T.unroll(_QUERIES):
                most[i] = T.float32(MASKED)
                total[i] = T.float32(0)
            for i in T.unroll(_QUERIES * columns):
                acc[i] = T.float32(0)
            for key_tile in range((n + SIMD - 1) // SIMD):
                T.tvm_storage_sync("shared")
                for i in range(SIMD * padded // THREADS):
                    r: T.int32 = (i * THREADS + position) // padded
                    c: T.int32 = (i * THREADS + position) % padded
                    if key_tile * SIMD + r < n and c < head_dim:
                        K[r * pitch + c] = X[b, key_tile * SIMD + r, embedding + head * head_dim + c]
                        V[r * pitch + c] = X[b, key_tile * SIMD + r, 2 * embedding + head * head_dim + c]
                    else:
                        K[r * pitch + c] = T.float32(0)
                        V[r * pitch + c] = T.float32(0)
                T.tvm_storage_sync("shared")
                for i in T.unroll(_QUERIES):
                    score[i] = T.float32(0)
                for c in range(head_dim):
                    for i in T.unroll(_QUERIES):
                        score[i] = T.fma(Q[(group * _QUERIES + i) * pitch + c], K[lane * pitch + c], score[i])
                for i in T.unroll(_QUERIES):
                    score[i] = score[i] * scale
                    if key_tile * SIMD + lane >= n:
                        score[i] = T.float32(MASKED)
                    tile_most[i] = score[i]
                    simd_max(tile_most, i)
                    tile_most[i] = T.max(tile_most[i], most[i])
                    vector_math.exp(score, i, score[i] - tile_most[i])
                    vector_math.exp(most, i, most[i] - tile_most[i])
                    total[i] = T.fma(total[i], most[i], score[i])
                    for c in T.unroll(columns):
                        acc[i * columns + c] = acc[i * columns + c] * most[i]
                    most[i] = tile_most[i]
                for r in range(SIMD):
                    for i in T.unroll(_QUERIES):
                        weight: T.float32 = shuffle(score[i], r)
                        for c in T.unroll(columns):
                            acc[i * columns + c] = T.fma(weight, V[r * pitch + c * SIMD + lane], acc[i * columns + c])
            for i in T.unroll(_QUERIES):
                simd_sum(total, i)
                if q0 + group * _QUERIES + i < n:
                    for c in T.unroll(columns):
                        if c * SIMD + lane < head_dim:
                            Y[b, q0 + group * _QUERIES + i, head * head_dim + c * SIMD + lane] = acc[i * columns + c] / total[i]

    return attention
