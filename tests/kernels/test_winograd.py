from dataclasses import replace

import numpy as np
import pytest

from kokoro_tvm.kernels import winograd
from kokoro_tvm.kernels.conv1d import Conv1d
from kokoro_tvm.kernels.packing import pack

CASES = {
    "one_channel": Conv1d(1, 1, 3, padding_left=1, padding_right=1),
    "no_bias": Conv1d(22, 50, 3, padding_left=1, padding_right=1, bias=False),
    "most_products": Conv1d(2048, 32, 3, padding_left=1, padding_right=1),
    "many_channels": Conv1d(1090, 64, 3, padding_left=1, padding_right=1, affine=True, prologue="leaky", slope=0.2),
    "generator": Conv1d(256, 256, 11, padding_left=5, padding_right=5, affine=True, prologue="snake", residuals=1),
    "dilated_3": Conv1d(22, 64, 3, dilation=5, padding_left=5, padding_right=5),
    "dilated_7": Conv1d(22, 50, 7, dilation=3, padding_left=9, padding_right=9),
    "dilated_11": Conv1d(22, 64, 11, dilation=5, padding_left=25, padding_right=25),
    "uneven_padding": Conv1d(22, 64, 7, dilation=2, padding_left=11, padding_right=3),
    "all_segments_full": Conv1d(22, 50, 8, padding_left=4, padding_right=3),
    "two_taps_short": Conv1d(22, 50, 6, padding_left=3, padding_right=2),
    "two_taps": Conv1d(22, 50, 2, padding_left=1),
    "leaky": Conv1d(22, 50, 7, padding_left=3, padding_right=3, prologue="leaky", slope=0.1),
    "affine": Conv1d(22, 64, 3, padding_left=1, padding_right=1, affine=True),
    "snake": Conv1d(22, 64, 3, padding_left=1, padding_right=1, prologue="snake"),
    "affine_snake": Conv1d(22, 50, 7, dilation=3, padding_left=9, padding_right=9, affine=True, prologue="snake", residuals=1),
    "gelu": Conv1d(64, 50, 3, padding_left=1, padding_right=1, epilogue="gelu"),
    "residual": Conv1d(22, 64, 3, padding_left=1, padding_right=1, residuals=1, scale=0.5**0.5),
    "two_residuals": Conv1d(22, 50, 11, padding_left=5, padding_right=5, residuals=2, scale=1 / 3),
    "shifted_residual": Conv1d(22, 64, 3, padding_left=1, padding_right=1, residuals=1, residual_shift=1),
}  # fmt: skip


def _scheme(conv):
    return winograd.F63 if conv.taps <= 3 else winograd.F47 if conv.taps <= 8 else winograd.F56


SHARED_GRID = {
    "shared_grid_3": (Conv1d(22, 64, 3, dilation=3, padding_left=3, padding_right=3), winograd.F43),
    "shared_grid_11": (Conv1d(22, 50, 11, dilation=2, padding_left=10, padding_right=10), winograd.F44),
    "two_of_three_grids": (Conv1d(22, 50, 11, padding_left=5, padding_right=5), winograd.F63),
}
"""Schemes that are not the default, m = r among them; 11 taps by F(6, 3) have more segments than grids."""


def _product(stages):
    matrix = np.array(stages[0], np.float64)
    for stage in stages[1:]:
        matrix = np.array(stage, np.float64) @ matrix
    return matrix


@pytest.mark.parametrize("scheme", winograd.SCHEMES.values(), ids=str)
def test_transforms_make_a_convolution(scheme):
    rng = np.random.default_rng(0)
    rows, taps = rng.standard_normal(scheme.size), rng.standard_normal(scheme.taps)
    points = np.array(scheme.weight_transform, np.float64) @ taps * (_product(scheme.input_stages) @ rows)
    np.testing.assert_allclose(_product(scheme.output_stages) @ points, np.correlate(rows, taps, "valid"), atol=1e-13)


@pytest.mark.parametrize("name", [*CASES, *SHARED_GRID])
def test_agrees_with_twin(harness, name):
    conv, scheme = SHARED_GRID[name] if name in SHARED_GRID else (CASES[name], _scheme(CASES[name]))
    width = harness.tile.width
    # A tile is m rows of one of the interleaved sequences; a register tile and a task are so many tiles.
    tile, d = scheme.outputs, conv.dilation
    register_tile = tile * harness.tile.rows * d
    task = winograd.block_tiles(conv, harness.tile, scheme) * tile * d
    around = (1, tile * d, register_tile, task)
    shortest = max(1, conv.span - conv.padding_left - conv.padding_right)
    lengths = sorted({max(shortest, n + delta) for n in around for delta in (-1, 0, 1)}, key=lambda n: (n * 7919) % 1009)
    kernel = winograd.kernel(conv, harness.tile, scheme)
    harness.check_convolution(
        conv, lengths, kernel, lambda w: winograd.pack_weight(w, scheme, width), winograd.tolerance(scheme)
    )


@pytest.mark.parametrize("dilation", [1, 3])
def test_smaller_tiles_at_the_end(harness, monkeypatch, dilation):
    """Every number of tiles left, in one block and behind others; the smaller ones give the larger one's samples."""
    conv, scheme = Conv1d(22, 11, 7, dilation=dilation, padding_left=3 * dilation, padding_right=3 * dilation), winograd.F47
    tile = replace(harness.tile, rows=6, vectors=1, block=48, scheme=None)
    lengths = [n * scheme.outputs * dilation - 1 for n in (*range(1, 8), 13, 15, 17)]
    kernels = {}
    for near in (winograd.NEAR, 1):  # as far as these few channels are concerned: without and with smaller tiles
        monkeypatch.setattr(winograd, "NEAR", near)
        kernels[near] = winograd.kernel(conv, tile, scheme)
    pack = lambda w: winograd.pack_weight(w, scheme, tile.width)  # noqa: E731
    harness.check_convolution(conv, lengths, kernels[1], pack, winograd.tolerance(scheme), tile)
    weight, bias = pack(harness.normal(conv.c_out, conv.c_in, conv.taps)), harness.normal(tile.width)
    large, small = map(harness.build, kernels.values())
    for n in lengths:
        x, y = harness.normal(1, n, conv.c_in), np.zeros((1, n, conv.c_out), np.float32)
        first, second = (harness.run(k, x, np.array([n]), weight, bias, y) for k in (large, small))
        assert np.any(first)
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("taps", [3, 7, 11, 8])
def test_packed_weight_is_the_transform_rounded_once(harness, taps):
    scheme = {3: winograd.F63, 7: winograd.F47, 11: winograd.F56, 8: winograd.F44}[taps]
    weight = harness.normal(20, 6, taps)
    packed = pack(scheme.name, weight, harness.tile)
    width = harness.tile.width
    assert packed.shape == (-(-20 // width), scheme.products(taps), 6, width)
    assert packed.dtype == np.float32
    segments = scheme.segments(taps)
    padded = np.pad(weight.astype(np.float64), ((0, 0), (0, 0), (0, segments * scheme.taps - taps)))
    for product in range(scheme.products(taps)):
        point, segment = divmod(product, segments)
        part = padded[:, :, segment * scheme.taps : (segment + 1) * scheme.taps]
        exact = part @ np.array(scheme.weight_transform[point], np.float64)
        panels = packed[:, product].transpose(0, 2, 1).reshape(-1, 6)
        np.testing.assert_allclose(panels[:20], exact, rtol=6e-8, atol=1e-12)
        assert not panels[20:].any()


def test_multiplications_saved():
    schemes = (winograd.F43, 3), (winograd.F63, 3), (winograd.F44, 7), (winograd.F47, 7), (winograd.F44, 11), (winograd.F56, 11)
    assert [s.products(k) / s.outputs for s, k in schemes] == [1.5, 8 / 6, 3.25, 2.5, 5.0, 3.8]


def test_segments_read_the_rows_they_need():
    for scheme in winograd.SCHEMES.values():
        for taps in (3, 7, 8, 11):
            grids = scheme.grids(taps)
            starts = [s * scheme.taps for s in range(scheme.segments(taps))]
            within = [s % grids * scheme.taps % scheme.outputs for s in range(len(starts))]
            assert [row + start // scheme.outputs * scheme.outputs for row, start in zip(within, starts, strict=True)] == starts
            assert scheme.ahead(taps) == starts[-1] // scheme.outputs


def test_what_it_cannot_do_is_refused(harness):
    plain = Conv1d(64, 64, 3, padding_left=1, padding_right=1)
    for conv in (replace(plain, stride=2), replace(plain, phases=2), replace(plain, accumulate="compensated")):
        with pytest.raises(ValueError, match="strided"):
            winograd.kernel(conv, harness.tile, winograd.F63)


@pytest.mark.parametrize(
    ("conv", "scheme"),
    [
        (Conv1d(256, 256, 3, dilation=5), winograd.F63),
        (Conv1d(1024, 256, 3), winograd.F43),
        (Conv1d(128, 128, 7), winograd.F47),
        (Conv1d(128, 128, 11), winograd.F56),
        (Conv1d(128, 128, 11, accumulate="compensated"), None),
        (Conv1d(128, 128, 1), None),
        (Conv1d(512, 512, 5), None),
        (Conv1d(512, 512, 15), None),
        (Conv1d(128, 22, 7), winograd.F44),
        (Conv1d(128, 22, 7, products="bfloat16"), None),
        (Conv1d(128, 128, 7, products="bfloat16"), winograd.F44),
        (Conv1d(256, 1, 7), None),
        (Conv1d(22, 256, 12, stride=6), None),
    ],
)
def test_choice(conv, scheme):
    assert winograd.scheme_for(conv) == scheme
