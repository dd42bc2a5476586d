from dataclasses import replace

import numpy as np
import pytest

from kokoro_tvm.kernels import conv1d
from kokoro_tvm.kernels.conv1d import Conv1d
from kokoro_tvm.kernels.tile import Tile

CASES = {
    "most_products": Conv1d(2048, 32, 3, padding_left=1, padding_right=1),
    "one_tap": Conv1d(22, 50, 1),
    "one_channel": Conv1d(1, 1, 3, padding_left=1, padding_right=1),
    "no_bias": Conv1d(22, 50, 3, padding_left=1, padding_right=1, bias=False),
    "many_channels": Conv1d(1090, 64, 3, padding_left=1, padding_right=1, affine=True, prologue="leaky", slope=0.2),
    "dilated": Conv1d(22, 64, 11, dilation=5, padding_left=25, padding_right=25),
    "leaky": Conv1d(22, 50, 7, padding_left=3, padding_right=3, prologue="leaky", slope=0.1),
    "affine": Conv1d(22, 64, 3, padding_left=1, padding_right=1, affine=True),
    "snake": Conv1d(22, 64, 3, padding_left=1, padding_right=1, prologue="snake"),
    "affine_snake": Conv1d(22, 50, 7, dilation=3, padding_left=9, padding_right=9, affine=True, prologue="snake", residuals=1),
    "gelu": Conv1d(64, 50, 1, epilogue="gelu"),
    "residual": Conv1d(22, 64, 3, padding_left=1, padding_right=1, residuals=1, scale=0.5**0.5),
    "two_residuals": Conv1d(22, 50, 3, padding_left=1, padding_right=1, residuals=2, scale=1 / 3),
    "shifted_residual": Conv1d(22, 64, 3, padding_left=1, padding_right=1, residuals=1, residual_shift=1),
    "strided_6": Conv1d(22, 64, 12, stride=6, padding_left=3, padding_right=3),
    "strided_2": Conv1d(1, 1, 3, stride=2, padding_left=1, padding_right=1),
    "transposed_10": Conv1d(22, 64, 2, padding_left=1, padding_right=1, phases=10, crop=5, prologue="leaky", slope=0.1),
    "transposed_6_reflect": Conv1d(22, 64, 2, padding_left=1, padding_right=1, phases=6, crop=3, reflect=1, residuals=1),
}


TOLERANCES = {"float32": conv1d.TOLERANCE, "compensated": conv1d.TOLERANCE_COMPENSATED}


COMPENSATED = ("one_channel", "many_channels", "gelu", "two_residuals", "strided_6", "transposed_6_reflect")
"""How sums are made is the micro-kernel's business alone: these have all of its loops, but not every prologue."""


@pytest.mark.parametrize(
    ("name", "accumulate"), [*((name, "float32") for name in CASES), *((name, "compensated") for name in COMPENSATED)]
)
def test_agrees_with_twin(harness, name, accumulate):
    conv, tile = replace(CASES[name], accumulate=accumulate), harness.tile.best("", accumulate == "compensated")
    rows, block = tile.rows, tile.block
    # A strided kernel needs some rows; its tile boundaries lie at multiples of the stride.
    lengths = [max(n * conv.stride, conv.stride) for n in (1, rows - 1, rows, 2, rows + 1, block + 1)]
    kernel = conv1d.kernel(conv, tile)
    harness.check_convolution(conv, lengths, kernel, lambda w: conv1d.pack_weight(w, tile.width), TOLERANCES[accumulate], tile)


@pytest.mark.parametrize("joined", [1, 3, 8, 32])
def test_compensated_sums_round_little_more_than_their_result(harness, joined):
    """Every rounding is at most 2**-24 / sqrt(3) of its value, root mean square, and at least half as much."""
    tile = replace(harness.tile, rows=4, block=8, vectors=1, joined=joined)
    rows, c_in, taps = 96, 1024, 3
    conv = Conv1d(c_in, tile.width, taps, padding_left=1, padding_right=1, bias=False, accumulate="compensated")
    x, weight = harness.normal(1, rows, c_in), harness.normal(conv.c_out, c_in, taps)
    (truth,) = conv1d.reference(conv, x, [rows], weight)
    # In units of the result's own rounding: those within the sums that join, those where these add up, and the result's.
    chunks = taps * c_in // conv1d.CHUNK
    variance = {
        "compensated": (joined + 1) / 2 + 1,
        "float32": (conv1d.CHUNK + 1) / 2 + (chunks + 1) / 2,
    }
    for accumulate, roundings in variance.items():
        kernel = harness.build(conv1d.kernel(replace(conv, accumulate=accumulate), tile))
        packed = conv1d.pack_weight(weight, tile.width)
        y = harness.run(kernel, x, np.array([rows]), packed, np.zeros((1, rows, conv.c_out), np.float32))[0]
        error = np.sqrt(np.mean((y - truth) ** 2) / np.mean(truth**2))
        most = 2**-24 * np.sqrt(roundings / 3)
        assert most / 2 <= error <= most


@pytest.mark.parametrize("accumulate", ["float32", "compensated"])
def test_smaller_tiles_at_the_end(harness, accumulate):
    """Every number of rows left, in one block and behind others; in plain sums the smaller tiles round as the larger one does."""
    tile = Tile(lanes=8, vectors=1, rows=6, block=12, ends=(2, 4))
    assert [size.rows for size in tile.sizes] == [2, 4, 6]
    assert [size.rows for size in replace(tile, rows=4, block=4).sizes] == [2, 4]
    conv = Conv1d(22, 11, 3, dilation=2, padding_left=2, padding_right=2, bias=False, residuals=1, accumulate=accumulate)
    lengths = [*range(1, 7), 10, 13, 15, 17]
    pack = lambda w: conv1d.pack_weight(w, tile.width)  # noqa: E731
    harness.check_convolution(conv, lengths, conv1d.kernel(conv, tile), pack, TOLERANCES[accumulate])
    if accumulate == "compensated":
        return
    weight = conv1d.pack_weight(harness.normal(conv.c_out, conv.c_in, conv.taps), tile.width)
    small, large = (harness.build(conv1d.kernel(conv, t)) for t in (tile, replace(tile, ends=())))
    for n in lengths:
        x, residual = harness.normal(1, n, conv.c_in), harness.normal(1, n, conv.c_out)
        first, second = (harness.run(k, x, np.array([n]), weight, residual, np.zeros_like(residual)) for k in (small, large))
        np.testing.assert_array_equal(first, second)


def test_transposed_channels_must_fill_the_tile(harness):
    with pytest.raises(ValueError, match="no multiple of the tile width"):
        conv1d.kernel(Conv1d(22, 50, 2, phases=2), harness.tile)


@pytest.mark.parametrize(
    ("conv", "options"),
    [
        (Conv1d(5, 4, 7, dilation=3, padding_left=9, padding_right=9), {"padding": 9, "dilation": 3}),
        (Conv1d(5, 4, 12, stride=6, padding_left=3, padding_right=3), {"padding": 3, "stride": 6}),
    ],
)
def test_twin_is_pytorch(conv, options):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    x, bias = rng.standard_normal((1, 24, 5)), rng.standard_normal(4)
    weight = rng.standard_normal((4, 5, conv.taps))
    columns = torch.tensor(x.transpose(0, 2, 1))
    expected = torch.nn.functional.conv1d(columns, torch.tensor(weight), torch.tensor(bias), **options)[0].numpy().T
    np.testing.assert_allclose(conv1d.reference(conv, x, [24], weight, bias)[0], expected, atol=1e-12)


@pytest.mark.parametrize(("stride", "reflect"), [(10, 0), (6, 1)])
def test_transposed_is_pytorch(harness, stride, reflect):
    """The polyphase packing: a kernel of 2 * stride taps and padding stride / 2, as the generator's up-sampling has."""
    torch = pytest.importorskip("torch")
    c_in, c_out, n = 22, 64, 31
    conv = Conv1d(c_in, c_out, 2, padding_left=1, padding_right=1, phases=stride, crop=stride // 2, reflect=reflect)
    x, bias = harness.normal(1, n, c_in), harness.normal(c_out)
    weight = harness.normal(c_in, c_out, 2 * stride)
    columns, w, shift = (torch.tensor(a).double() for a in (x.transpose(0, 2, 1), weight, bias))
    expected = torch.nn.functional.conv_transpose1d(columns, w, shift, stride, stride // 2)
    expected = torch.nn.functional.pad(expected, (reflect, 0), "reflect")[0].numpy().T
    assert len(expected) == conv.output_rows(n)
    width = harness.tile.width
    y = harness.run(
        harness.build(conv1d.kernel(conv, harness.tile)),
        x,
        np.array([n]),
        conv1d.pack_transposed_weight(weight, stride, width),
        conv1d.pack_bias(bias, width),
        np.zeros((1, *expected.shape), np.float32),
    )
    assert harness.error(y, expected[None]) <= conv1d.TOLERANCE
