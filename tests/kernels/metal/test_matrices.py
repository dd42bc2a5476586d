"""Convolutions, linear layers, attention and the LSTM."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kokoro_tvm.kernels import attention as cpu_attention
from kokoro_tvm.kernels import bilstm as cpu_bilstm
from kokoro_tvm.kernels import conv1d as cpu_conv1d
from kokoro_tvm.kernels import style_linear as cpu_style_linear
from kokoro_tvm.kernels.conv1d import Conv1d
from kokoro_tvm.kernels.metal import attention, bilstm, conv1d, style_linear
from kokoro_tvm.kernels.packing import pack

CONVOLUTIONS = {
    "many_products": Conv1d(192, 70, 3, padding_left=1, padding_right=1),
    "one_tap": Conv1d(22, 50, 1),
    "one_channel": Conv1d(1, 1, 3, padding_left=1, padding_right=1),
    "no_bias": Conv1d(22, 50, 3, padding_left=1, padding_right=1, bias=False),
    "affine_leaky": Conv1d(34, 64, 3, padding_left=1, padding_right=1, affine=True, prologue="leaky", slope=0.2),
    "dilated": Conv1d(22, 64, 11, dilation=5, padding_left=25, padding_right=25),
    "affine_snake": Conv1d(22, 50, 7, dilation=3, padding_left=9, padding_right=9, affine=True, prologue="snake", residuals=1),
    "gelu": Conv1d(64, 50, 1, epilogue="gelu"),
    "two_residuals": Conv1d(22, 130, 3, padding_left=1, padding_right=1, residuals=2, scale=1 / 3),
    "shifted_residual": Conv1d(22, 64, 3, padding_left=1, padding_right=1, residuals=1, residual_shift=1),
    "strided_6": Conv1d(22, 64, 12, stride=6, padding_left=3, padding_right=3),
    "strided_2": Conv1d(1, 1, 3, stride=2, padding_left=1, padding_right=1),
    "transposed_10": Conv1d(22, 64, 2, padding_left=1, padding_right=1, phases=10, crop=5, prologue="leaky", slope=0.1),
    "transposed_6_reflect": Conv1d(22, 50, 2, padding_left=1, padding_right=1, phases=6, crop=3, reflect=1, residuals=1),
}
HALF = Conv1d(80, 70, 3, padding_left=1, padding_right=1, products="float16")
HALVES = {
    "half": HALF,
    "half_snake": Conv1d(
        70, 80, 11, dilation=5, padding_left=25, padding_right=25, affine=True, prologue="snake", residuals=1, products="float16"
    ),
    "half_transposed": replace(HALF, taps=2, phases=6, crop=3, reflect=1, prologue="leaky", slope=0.1, residuals=1),
}
"""With float16 products, for ``--dtype fp16``."""


@pytest.mark.parametrize("name", [*CONVOLUTIONS, *HALVES])
def test_convolution(harness, name):
    conv = (CONVOLUTIONS | HALVES)[name]
    half = conv.products == "float16"
    lengths = [max(n * conv.stride, conv.stride) for n in (1, 2, harness.tile.rows - 1, harness.tile.rows, harness.tile.rows + 1)]

    def pack_weight(weight):
        phases = weight.reshape(conv.phases, conv.c_out, conv.c_in, conv.taps)
        packed = np.concatenate([conv1d.pack_weight(w, harness.tile) for w in phases])
        return conv1d.halves(packed) if half else packed

    tolerance = conv1d.TOLERANCE_HALF if half else harness.bound
    harness.check_convolution(conv, lengths, conv1d.kernel(conv, harness.tile), pack_weight, tolerance)


def test_half_rounds_the_factors_and_nothing_else(harness):
    """As float16 arithmetic foretells, with sums of float32; what is larger than the largest float16 becomes that."""
    conv = replace(HALF, bias=False)
    x, weight = harness.normal(1, 70, conv.c_in), harness.normal(conv.c_out, conv.c_in, conv.taps)
    packed = conv1d.halves(conv1d.pack_weight(weight, harness.tile))
    assert packed.dtype == np.float16
    kernel = harness.build(conv1d.kernel(conv, harness.tile))

    def call(rows: np.ndarray) -> np.ndarray:
        return harness.run(kernel, rows, np.array([70]), packed, np.zeros((1, 70, conv.c_out), np.float32))

    def rounded(values: np.ndarray) -> np.ndarray:
        return values.astype(np.float16).astype(np.float64)

    y = call(x)
    assert harness.error(y, cpu_conv1d.reference(conv, rounded(x), [70], rounded(weight))) <= harness.bound
    assert harness.bound < harness.error(y, cpu_conv1d.reference(conv, x, [70], weight)) <= conv1d.TOLERANCE_HALF
    x[0, 7, 3], x[0, 40, 5] = 1e6, -1e30
    y = call(x)
    expected = cpu_conv1d.reference(conv, rounded(np.clip(x, -conv1d.LARGEST_HALF, conv1d.LARGEST_HALF)), [70], rounded(weight))
    assert harness.error(y, expected) <= harness.bound


@pytest.mark.parametrize(("c_in", "c_out", "rounds"), [(128, 22, False), (22, 256, False), (64, 64, True), (1, 1, False)])
def test_narrow_convolutions_stay_float32(harness, c_in, c_out, rounds):
    """conv_post writes logarithms and angles, the source's spectrum has 22 channels, F0 one."""
    assert conv1d.rounds(Conv1d(c_in, c_out, 3), harness.tile) is rounds


@pytest.mark.parametrize(("stride", "reflect"), [(10, 0), (6, 1)])
def test_transposed_is_pytorch(harness, stride, reflect):
    """The packing of the phases: a kernel of 2 * stride taps and padding stride / 2, as the generator's up-sampling has."""
    torch = pytest.importorskip("torch")
    c_in, c_out, n = 22, 64, 31
    conv = Conv1d(c_in, c_out, 2, padding_left=1, padding_right=1, phases=stride, crop=stride // 2, reflect=reflect)
    x, bias = harness.normal(1, n, c_in), harness.normal(c_out)
    weight = harness.normal(c_in, c_out, 2 * stride)
    columns, w, shift = (torch.tensor(a).double() for a in (x.transpose(0, 2, 1), weight, bias))
    expected = torch.nn.functional.conv_transpose1d(columns, w, shift, stride, stride // 2)
    expected = torch.nn.functional.pad(expected, (reflect, 0), "reflect")[0].numpy().T
    packed = pack(f"transposed:{stride}", weight, harness.tile), pack("bias", bias, harness.tile)
    kernel = harness.build(conv1d.kernel(conv, harness.tile))
    y = harness.run(kernel, x, np.array([n]), *packed, np.zeros((1, *expected.shape), np.float32))
    assert harness.error(y, expected[None]) <= harness.bound


def test_rows_that_do_not_fit_are_refused(harness):
    with pytest.raises(ValueError, match="input rows of a tile exceed"):
        conv1d.kernel(Conv1d(16, 64, 40, stride=20), harness.tile)


@pytest.mark.parametrize("c_in", [1, 128])
@pytest.mark.parametrize("c_out", [1, 22, 300])
def test_style_linear(harness, c_in, c_out):
    style, weight, bias = harness.normal(3, c_in), harness.normal(c_out, c_in), harness.normal(c_out)
    kernel = harness.build(style_linear.kernel(c_in, c_out, harness.tile))
    packed = pack("style_linear", weight, harness.tile), pack("bias", bias, harness.tile)

    def call(rows: np.ndarray) -> np.ndarray:
        return harness.run(kernel, rows, *packed, np.zeros((len(rows), c_out), np.float32))

    y = call(style)
    assert harness.error(y, cpu_style_linear.reference(style, weight, bias)) <= harness.bound
    assert y.tobytes() == np.concatenate([call(style[b : b + 1]) for b in range(3)]).tobytes()


def _attention(harness, heads, head_dim, lengths, scale=1.0):
    embedding = heads * head_dim
    x = harness.Ragged([harness.normal(n, 3 * embedding) * np.float32(scale) for n in lengths])
    harness.check(
        attention.kernel(heads, head_dim, harness.tile),
        [x, harness.LENGTHS],
        lengths,
        harness.Output(lambda n: (n, embedding)),
        [cpu_attention.reference(s[None], [len(s)], heads)[0] for s in x.samples],
        harness.bound * max(1.0, scale**2 / 10),
    )


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 16), (2, 32), (2, 64)])
def test_attention(harness, heads, head_dim):
    _attention(harness, heads, head_dim, [1, 2, 31, 32, 33, 65])


def test_sharp_scores(harness):
    """Scores up to several hundred: one key takes all the weight, and nothing overflows."""
    _attention(harness, 2, 32, [40], scale=6.0)


def test_head_that_does_not_fit_is_refused(harness):
    with pytest.raises(ValueError, match="queries, keys and values exceed"):
        attention.kernel(1, 128, harness.tile)


@pytest.mark.parametrize("hidden", [32, 64])
def test_bilstm(harness, hidden):
    lengths = [1, 9, 2, 17]
    gates = harness.ragged(lengths, 8 * hidden)
    w_hh = harness.rng.uniform(-1, 1, (2, 4 * hidden, hidden)).astype(np.float32) * np.float32(hidden**-0.5)
    harness.check(
        bilstm.kernel(hidden, harness.tile),
        [gates, harness.LENGTHS, bilstm.pack_recurrent(w_hh)],
        lengths,
        harness.Output(lambda n: (n, 2 * hidden), zero=True),
        [cpu_bilstm.reference(s[None], [len(s)], w_hh)[0] for s in gates.samples],
        harness.bound,
    )


def test_bilstm_of_the_model(harness):
    """256 hidden units: as many threads as a group has."""
    gates = harness.normal(1, 12, 8 * 256)
    w_hh = harness.rng.uniform(-1, 1, (2, 4 * 256, 256)).astype(np.float32) / np.float32(16)
    kernel = harness.build(bilstm.kernel(256, harness.tile))
    y = harness.run(kernel, gates, np.array([12]), bilstm.pack_recurrent(w_hh), np.zeros((1, 12, 512), np.float32))
    assert np.abs(y - cpu_bilstm.reference(gates, [12], w_hh)).max() <= harness.bound


def test_saturated_gates(harness):
    gates = harness.normal(1, 20, 8 * 32) * np.float32(1000)
    w_hh = harness.normal(2, 4 * 32, 32)
    kernel = harness.build(bilstm.kernel(32, harness.tile))
    y = harness.run(kernel, gates, np.array([20]), bilstm.pack_recurrent(w_hh), np.zeros((1, 20, 64), np.float32))
    assert np.abs(y - cpu_bilstm.reference(gates, [20], w_hh)).max() <= harness.bound


@pytest.mark.parametrize("hidden", [30, 264])
def test_hidden_size_that_does_not_fit_is_refused(harness, hidden):
    with pytest.raises(ValueError, match=f"hidden size {hidden}"):
        bilstm.kernel(hidden, harness.tile)
