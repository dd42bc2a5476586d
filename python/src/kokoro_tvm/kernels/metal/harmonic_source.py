"""``kernels.harmonic_source`` for Metal: the phase is an integer, as there is no float64.

F0 becomes a whole number of 2^-24 Hz and its running sum stays exact, in whatever order it is added. A phase is a whole number of
2^-48 turns, then of 2^-32 turns in 32 bits, where whole turns drop out by themselves and the phase of harmonic h is h times that
of the first. Only the last step, at most half a turn, is a float32. No fast-math mode can touch any of this.
What the CPU's kernel keeps beyond float32 of every sample is zero here.

Two GPU kernels in one function: the first has one thread group per sample, adds up F0 in blocks and leaves phase and frequency of
every frame; the second has one thread per audio sample.
"""

from __future__ import annotations

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from kokoro_tvm.kernels.harmonic_source import Source
from kokoro_tvm.kernels.metal import vector_math
from kokoro_tvm.kernels.metal.tile import THREADS, Tile
from kokoro_tvm.kernels.vector_math import Expr

MOST_HZ = 16384.0
"""F0 is limited to this: its products have to fit into 64 bits. It is beyond half the sampling rate."""

_F0_BITS = 24
"""F0 in 2^-24 Hz: exact from 1 Hz on; below, the error of a frame's phase is 2^-32 turns."""

_PHASE_BITS = 48

_START, _SLOPE, _PARITY = 0, 1, 2
"""What the first kernel leaves for a frame: the phase at its centre and the phase step of its F0, in 2^-48 turns, and a bit per
harmonic: whether the whole turns that ``frac`` drops (see the CPU module) are odd."""


def _fixed(f0: Expr) -> Expr:
    limited = T.min(T.max(f0, T.float32(-MOST_HZ)), T.float32(MOST_HZ))
    return T.cast(T.nearbyint(limited * T.float32(2**_F0_BITS)), "int64")


def kernel(source: Source, tile: Tile) -> PrimFunc:
    """Builds the PrimFunc.

    Returns:
        ``f(f0, lengths, noise, weight, bias, y)`` with ``weight`` [harmonics] and ``bias`` [1] of ``l_linear``.
    """
    upsample, harmonics, sampling_rate = source.upsample, source.harmonics, source.sampling_rate
    half = upsample // 2
    whole = sampling_rate << _F0_BITS
    per_frame = 3

    @T.prim_func
    def harmonic_source(
        f0_h: T.handle, lengths_h: T.handle, noise_h: T.handle, weight_h: T.handle, bias_h: T.handle, y_h: T.handle
    ):
        T.func_attr({"tirx.noalias": True})
        B = T.int32()
        F = T.int32()
        f0 = T.match_buffer(f0_h, (B, F), "float32")
        L = T.match_buffer(lengths_h, (B,), "int64")
        noise = T.match_buffer(noise_h, (B, F * upsample, harmonics), "float32")
        weight = T.match_buffer(weight_h, (harmonics,), "float32")
        bias = T.match_buffer(bias_h, (1,), "float32")
        Y = T.match_buffer(y_h, (B, F * upsample, 2), "float32")
        frames = T.alloc_buffer((B, F, per_frame), "int64")
        with T.launch_thread("blockIdx.x", B) as b, T.launch_thread("threadIdx.x", THREADS) as position:
            # Every thread adds up a stretch of F0, then starts from the sum of the stretches before its own.
            sums = T.alloc_buffer((THREADS,), "int64", scope="shared")
            total = T.alloc_buffer((1,), "int64", scope="local")
            parity = T.alloc_buffer((1,), "int64", scope="local")
            n: T.int32 = T.cast(L[b], "int32")
            stretch: T.int32 = (n + THREADS - 1) // THREADS
            count: T.int32 = T.max(T.min(n - position * stretch, stretch), 0)
            total[0] = T.int64(0)
            for i in range(count):
                total[0] = total[0] + _fixed(f0[b, position * stretch + i])
            sums[position] = total[0]
            T.tvm_storage_sync("shared")
            total[0] = T.int64(0)
            for i in range(position):
                total[0] = total[0] + sums[i]
            for i in range(count):
                fixed: T.int64 = _fixed(f0[b, position * stretch + i])
                total[0] = total[0] + fixed
                rest: T.int64 = T.floormod(T.floormod(total[0], T.int64(whole)) * T.int64(upsample), T.int64(whole))
                frames[b, position * stretch + i, _START] = T.floordiv(
                    T.shift_left(rest, T.int64(_PHASE_BITS - _F0_BITS)), T.int64(sampling_rate)
                )
                frames[b, position * stretch + i, _SLOPE] = T.floordiv(
                    T.shift_left(fixed, T.int64(_PHASE_BITS - _F0_BITS)), T.int64(sampling_rate)
                )
                parity[0] = T.int64(0)
                for h in range(harmonics):
                    dropped: T.int64 = T.floordiv(fixed * T.cast(h + 1, "int64"), T.int64(whole))
                    parity[0] = T.bitwise_or(
                        parity[0], T.shift_left(T.bitwise_and(dropped, T.int64(1)), T.cast(h, "int64"))
                    )
                frames[b, position * stretch + i, _PARITY] = parity[0]
        with (
            T.launch_thread("blockIdx.x", (F * upsample + THREADS - 1) // THREADS) as block,
            T.launch_thread("blockIdx.y", B) as b,
            T.launch_thread("threadIdx.x", THREADS) as position,
        ):
            n: T.int32 = T.cast(L[b], "int32")
            t: T.int32 = block * THREADS + position
            i: T.int32 = t // upsample
            if i < n:
                # Half a frame: from its start to its centre, or from its centre to its end.
                second: T.int32 = t % upsample // half
                before: T.int32 = T.max(i - 1 + second, 0)
                after: T.int32 = T.min(i + second, n - 1)
                slope = T.alloc_buffer((2,), "int64", scope="local")
                value = T.alloc_buffer((3,), "float32", scope="local")
                # Before the first centre and after the last one the phase stands still (clamped interpolation).
                slope[0] = T.int64(0)
                slope[1] = T.int64(0)
                if before < after:
                    slope[0] = frames[b, after, _SLOPE]
                    slope[1] = frames[b, after, _PARITY]
                # Twice the samples since the centre: sample j lies at j + 1/2. Hence the unit of 2^-49 turns.
                since: T.int32 = 2 * (t % upsample - second * half + (1 - second) * half) + 1
                phase49: T.int64 = frames[b, before, _START] * T.int64(2) + T.cast(since, "int64") * slope[0]
                phase: T.uint32 = T.cast(
                    T.bitwise_and(T.shift_right(phase49, T.int64(_PHASE_BITS + 1 - 32)), T.int64(0xFFFFFFFF)), "uint32"
                )
                amplitude: T.float32 = T.float32(0)
                spread: T.float32 = T.float32(source.sine_amplitude / 3)
                if f0[b, i] > T.float32(source.voiced_threshold):
                    amplitude = T.float32(source.sine_amplitude)
                    spread = T.float32(source.noise_std)
                value[0] = bias[0]
                for h in range(harmonics):
                    half_turn: T.uint32 = T.shift_left(
                        T.cast(T.bitwise_and(T.shift_right(slope[1], T.cast(h, "int64")), T.int64(1)), "uint32"), T.uint32(31)
                    )
                    angle: T.uint32 = phase * T.cast(h + 1, "uint32") + half_turn
                    vector_math.sin_cos_turns(
                        value, 1, value, 2, T.cast(T.reinterpret("int32", angle), "float32") * T.float32(2**-32)
                    )
                    value[0] = T.fma(weight[h], T.fma(amplitude, value[1], spread * noise[b, t, h]), value[0])
                vector_math.tanh(value, 0, value[0])
                Y[b, t, 0] = value[0]
                Y[b, t, 1] = T.float32(0)

    return harmonic_source
