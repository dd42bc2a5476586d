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
    "eight_taps": Conv1d(22, 50, 8, padding_left=4, padding_right=3),
    "twelve_taps": Conv1d(22, 50, 12, dilation=2, padding_left=12, padding_right=10),
    "two_taps": Conv1d(22, 50, 2, padding_left=1),
    "leaky": Conv1d(22, 50, 7, padding_left=3, padding_right=3, prologue="leaky", slope=0.1),
    "affine_snake": Conv1d(22, 50, 7, dilation=3, padding_left=9, padding_right=9, affine=True, prologue="snake", residuals=1),
    "gelu": Conv1d(64, 50, 3, padding_left=1, padding_right=1, epilogue="gelu"),
    "residual": Conv1d(22, 64, 3, padding_left=1, padding_right=1, residuals=1, scale=0.5**0.5),
    "two_residuals": Conv1d(22, 50, 11, padding_left=5, padding_right=5, residuals=2, scale=1 / 3),
    "transposed_10": Conv1d(22, 64, 2, padding_left=1, padding_right=1, phases=10, crop=5, prologue="leaky", slope=0.1),
    "transposed_6_reflect": Conv1d(22, 64, 2, padding_left=1, padding_right=1, phases=6, crop=3, reflect=1, residuals=1),
    "transposed_many": Conv1d(300, 64, 2, padding_left=1, padding_right=1, phases=4, crop=2, bias=False),
    "shifted_residual": Conv1d(22, 64, 3, padding_left=1, padding_right=1, residuals=1, residual_shift=1),
}  # fmt: skip


def _scheme(conv):
    if conv.phases > 1:
        return winograd.F32
    return winograd.F63 if conv.taps <= 3 else winograd.F42_44 if conv.taps <= 8 else winograd.F43_44


OTHERS = {
    "F43": (Conv1d(22, 64, 3, dilation=3, padding_left=3, padding_right=3), winograd.F43),
    "F32_44": (Conv1d(22, 50, 7, dilation=2, padding_left=6, padding_right=6), winograd.F32_44),
    "F33_44": (Conv1d(22, 50, 11, padding_left=5, padding_right=5, residuals=1), winograd.F33_44),
}
"""Schemes that are not the default."""


def _product(stages):
    matrix = np.array(stages[0], np.float64)
    for stage in stages[1:]:
        matrix = np.array(stage, np.float64) @ matrix
    return matrix


LEVELS = sorted({level for s in winograd.SCHEMES.values() for level in (s.inner, s.outer)}, key=str)


@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_transforms_make_a_convolution(level):
    rng = np.random.default_rng(0)
    rows, taps = rng.standard_normal(level.size), rng.standard_normal(level.taps)
    points = np.array(level.weight_transform, np.float64) @ taps * (_product(level.input_stages) @ rows)
    np.testing.assert_allclose(_product(level.output_stages) @ points, np.correlate(rows, taps, "valid"), atol=1e-13)


@pytest.mark.parametrize("level", [x for x in LEVELS if x.size >= 5], ids=str)
def test_mirrored_points_share_their_parts(level):
    """A sum of n terms takes n - 1 operations; of those of the dense transform sharing saves a quarter."""
    counts = [
        sum(sum(c != 0 for c in row) - 1 for row in matrix) for matrix in (_product(level.input_stages), *level.input_stages)
    ]
    assert sum(counts[1:]) <= 3 / 4 * counts[0]


@pytest.mark.parametrize("scheme", winograd.SCHEMES.values(), ids=lambda s: s.name)
def test_levels_make_a_convolution(scheme):
    """One tile by NumPy: blocks of rows through the inner level, then through the outer one, and back."""
    rng = np.random.default_rng(0)
    inner, outer = scheme.inner, scheme.outer
    rows, taps = rng.standard_normal(scheme.outputs + scheme.taps - 1), rng.standard_normal(scheme.taps)
    assert scheme.blocks(1) == outer.size
    blocks = np.stack([rows[k * inner.outputs :][: inner.size] for k in range(outer.size)])
    values = np.einsum("ik,po,ok->ip", _product(inner.input_stages), _product(outer.input_stages), blocks).ravel()
    values = (values * (scheme.weight_transform @ taps)).reshape(inner.size, outer.size)
    result = np.einsum("ji,qp,ip->qj", _product(inner.output_stages), _product(outer.output_stages), values).ravel()
    np.testing.assert_allclose(result, np.correlate(rows, taps, "valid"), atol=1e-13)


@pytest.mark.parametrize("name", [*CASES, *OTHERS])
def test_agrees_with_twin(harness, name):
    conv, scheme = OTHERS[name] if name in OTHERS else (CASES[name], _scheme(CASES[name]))
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
    conv, scheme = Conv1d(22, 11, 7, dilation=dilation, padding_left=3 * dilation, padding_right=3 * dilation), winograd.F42_44
    tile = replace(harness.tile, rows=6, vectors=1, block=48, scheme=None)
    lengths = [n * scheme.outputs * dilation - 1 for n in (*range(1, 8), 13, 15, 17)]
    kernels = {}
    for near in (winograd.NEAR, 1):  # as far as these few channels are concerned: without and with smaller tiles
        monkeypatch.setattr(winograd, "NEAR", near)
        kernels[near] = winograd.kernel(conv, tile, scheme)
    pack_weight = lambda w: winograd.pack_weight(w, scheme, tile.width)  # noqa: E731
    harness.check_convolution(conv, lengths, kernels[1], pack_weight, winograd.tolerance(scheme), tile)
    weight = pack_weight(harness.normal(conv.c_out, conv.c_in, conv.taps))
    bias = pack("bias", harness.normal(conv.c_out), tile)
    large, small = map(harness.build, kernels.values())
    for n in lengths:
        x, y = harness.normal(1, n, conv.c_in), np.zeros((1, n, conv.c_out), np.float32)
        first, second = (harness.run(k, x, np.array([n]), weight, bias, y) for k in (large, small))
        assert np.any(first)
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("taps", [3, 7, 11, 8])
def test_packed_weight_is_the_transform_rounded_once(harness, taps):
    scheme = {3: winograd.F63, 7: winograd.F42_44, 11: winograd.F43_44, 8: winograd.F32_44}[taps]
    weight = harness.normal(20, 6, taps)
    packed = pack(scheme.name, weight, harness.tile)
    width = harness.tile.width
    assert packed.shape == (-(-20 // width), scheme.products(taps), 6, width)
    assert packed.dtype == np.float32
    padded = np.pad(weight.astype(np.float64), ((0, 0), (0, 0), (0, scheme.taps - taps)))
    segments = padded.reshape(20, 6, scheme.outer.taps, scheme.inner.taps)
    for product in range(scheme.products(taps)):
        point, outer_point = divmod(product, scheme.outer.size)
        within = segments @ np.array(scheme.inner.weight_transform[point], np.float64)
        exact = within @ np.array(scheme.outer.weight_transform[outer_point], np.float64)
        panels = packed[:, product].transpose(0, 2, 1).reshape(-1, 6)
        np.testing.assert_allclose(panels[:20], exact, rtol=6e-8, atol=1e-12)
        assert not panels[20:].any()


@pytest.mark.parametrize("stride", [2, 3])
def test_packed_weight_of_a_transposed_convolution(harness, stride):
    """Phase r of the output has the taps r, r + stride, ... in reverse."""
    weight = harness.normal(6, 32, 2 * stride)
    packed = pack(f"winograd:3,2/{stride}", weight, harness.tile)
    for r in range(stride):
        taps = weight[:, :, r::stride][:, :, ::-1].transpose(1, 0, 2)
        panels = -(-32 // harness.tile.width)
        expected = winograd.pack_weight(np.ascontiguousarray(taps), winograd.F32, harness.tile.width)
        np.testing.assert_array_equal(packed[r * panels : (r + 1) * panels], expected)


def test_multiplications_saved():
    schemes = (
        (winograd.F32, 2), (winograd.F43, 3), (winograd.F63, 3), (winograd.F32_44, 7), (winograd.F42_44, 7),
        (winograd.F33_44, 11), (winograd.F43_44, 11), (winograd.F43_44, 12),
    )  # fmt: skip
    assert [s.products(k) / s.outputs for s, k in schemes] == [4 / 3, 6 / 4, 8 / 6, 27 / 12, 34 / 16, 34 / 12, 41 / 16, 42 / 16]


@pytest.mark.parametrize("scheme", winograd.SCHEMES.values(), ids=lambda s: s.name)
def test_amplification_is_what_rounded_products_show(scheme):
    """Products with independent relative errors: the power of the outputs' errors, to that of a direct sum's."""
    rng = np.random.default_rng(0)
    runs, error = 4000, 1e-6
    rows, taps = rng.standard_normal((runs, scheme.outputs + scheme.taps - 1)), rng.standard_normal((runs, scheme.taps))
    inner, outer = scheme.inner, scheme.outer
    blocks = np.stack([rows[:, k * inner.outputs :][:, : inner.size] for k in range(outer.size)], axis=1)
    values = np.einsum("ik,po,rok->rip", _product(inner.input_stages), _product(outer.input_stages), blocks, optimize=True)
    products = values.reshape(runs, -1) * (taps @ scheme.weight_transform.T)
    wrong = (products * error * rng.standard_normal(products.shape)).reshape(values.shape)
    back = np.einsum("ji,qp,rip->rqj", _product(inner.output_stages), _product(outer.output_stages), wrong, optimize=True)
    power = np.square(back.reshape(runs, -1)).mean(axis=0) / (error**2 * scheme.taps)
    assert power.max() == pytest.approx(winograd.amplification(scheme) ** 2, rel=0.2)
    expected = np.outer(winograd.power(outer), winograd.power(inner)).ravel()
    np.testing.assert_allclose(power, expected, rtol=0.25)


def test_what_it_cannot_do_is_refused(harness):
    plain = Conv1d(64, 64, 3, padding_left=1, padding_right=1)
    for conv in (replace(plain, stride=2), replace(plain, accumulate="compensated")):
        with pytest.raises(ValueError, match="strided"):
            winograd.kernel(conv, harness.tile, winograd.F63)
    with pytest.raises(ValueError, match="no multiple of the tile width"):
        winograd.kernel(replace(plain, taps=2, c_out=50, phases=2), harness.tile, winograd.F32)
    with pytest.raises(ValueError, match="for 11 or 12 taps, not 7"):
        winograd.kernel(replace(plain, taps=7), harness.tile, winograd.F43_44)


def test_blocks_as_long_as_segments():
    with pytest.raises(ValueError, match="blocks of 6 rows"):
        winograd.Scheme(winograd.F63.inner, winograd.F43_44.outer)


@pytest.mark.parametrize(
    ("conv", "scheme"),
    [
        (Conv1d(256, 256, 3, dilation=5), winograd.F63),
        (Conv1d(1024, 256, 3), winograd.F43),
        (Conv1d(128, 128, 7), winograd.F42_44),
        (Conv1d(128, 128, 11), winograd.F43_44),
        (Conv1d(128, 128, 11, accumulate="compensated"), None),
        (Conv1d(128, 128, 1), None),
        (Conv1d(512, 512, 5), None),
        (Conv1d(512, 512, 15), None),
        (Conv1d(128, 22, 7), winograd.F32_44),
        (Conv1d(128, 22, 7, products="bfloat16"), None),
        (Conv1d(128, 128, 7, products="bfloat16"), winograd.F32_44),
        (Conv1d(128, 128, 11, products="bfloat16"), winograd.F33_44),
        (Conv1d(256, 1, 7), None),
        (Conv1d(512, 256, 2, phases=10), winograd.F32),
        (Conv1d(512, 256, 2, phases=10, products="bfloat16"), winograd.F32),
        (Conv1d(512, 256, 4, phases=5), None),
        (Conv1d(22, 256, 12, stride=6), None),
    ],
)
def test_choice(conv, scheme):
    assert winograd.scheme_for(conv) == scheme
