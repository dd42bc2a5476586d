"""``kernels.style_linear`` for Metal: one thread per output, the threads of a SIMD group side by side in a panel of weights."""

from __future__ import annotations

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels.metal.tile import THREADS, Tile


def kernel(c_in: int, c_out: int, tile: Tile) -> PrimFunc:
    """Builds the PrimFunc for D = ``c_in`` and S = ``c_out``.

    Returns:
        ``f(style, weight, bias, y)``; weight and bias packed as for the CPU, for ``tile.width``.
    """
    width = tile.width
    panels = -(-c_out // width)

    @T.prim_func
    def style_linear(style_h: T.handle, weight_h: T.handle, bias_h: T.handle, y_h: T.handle):
        T.func_attr({"tirx.noalias": True})
        B = T.int32()
        X = T.match_buffer(style_h, (B, c_in), "float32")
        W = T.match_buffer(weight_h, (panels, c_in, width), "float32")
        bias = T.match_buffer(bias_h, (panels * width,), "float32")
        Y = T.match_buffer(y_h, (B, c_out), "float32")
        block = T.launch_thread("blockIdx.x", (c_out + THREADS - 1) // THREADS)
        b = T.launch_thread("blockIdx.y", B)
        position = T.launch_thread("threadIdx.x", THREADS)
        o: T.int32 = block * THREADS + position
        total = T.alloc_buffer((1,), "float32", scope="local")
        if o < c_out:
            total[0] = bias[o]
            for c in range(c_in):
                total[0] = T.fma(X[b, c], W[o // width, c, o % width], total[0])
            Y[b, o] = total[0]

    return style_linear
