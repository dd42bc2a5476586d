"""bfloat16 products: rounding, packing, the Winograd kernel against a twin that rounds as the instructions do, and its code."""

import copy
import re
from dataclasses import replace

import numpy as np
import pytest
import tvm

from kokoro_tvm.kernels import bf16, conv1d, winograd
from kokoro_tvm.kernels import tile as tiles
from kokoro_tvm.kernels.conv1d import Conv1d
from kokoro_tvm.kernels.packing import pack
from kokoro_tvm.runtime import cpu
from kokoro_tvm.validate import tolerances
from kokoro_tvm.validate.metrics import compare
from kokoro_tvm.validate.tolerances import operator_tolerance

TARGET = {"kind": "llvm", "mcpu": "znver4", "mtriple": "x86_64-unknown-linux-gnu"}
RUNS = pytest.mark.skipif(
    cpu.machine() != "x86_64" or bool(cpu.missing_features((bf16.FEATURE,))), reason=f"this CPU has no {bf16.FEATURE}"
)
PLAIN = Conv1d(64, 64, 3, padding_left=1, padding_right=1, products="bfloat16")
CASES = {
    "three": PLAIN,
    "seven": replace(PLAIN, taps=7, padding_left=3, padding_right=3),
    "eleven_dilated": replace(PLAIN, taps=11, dilation=3, padding_left=15, padding_right=15),
    "odd_channels": replace(PLAIN, c_in=71, c_out=50, bias=False),
    "tail_of_channels": replace(PLAIN, c_in=90, affine=True, prologue="leaky", slope=0.2),
    "generator": Conv1d(
        128, 128, 11, padding_left=5, padding_right=5, affine=True, prologue="snake", residuals=1, products="bfloat16"
    ),
    "transposed_reflect": Conv1d(
        64, 64, 2, padding_left=1, padding_right=1, phases=6, crop=3, reflect=1, prologue="leaky", slope=0.1, residuals=1,
        products="bfloat16",
    ),
    "two_residuals": replace(PLAIN, taps=7, padding_left=3, padding_right=3, residuals=2, scale=1 / 3),
}


WHOLE = winograd.Scheme(winograd.F32_44.inner, winograd._level(2, 3, "0", "1", "-1"))
"""For 11 taps, with an input transform that is exact on whole numbers, as those of 3 and 7 taps are."""


def _scheme(conv):
    return {2: winograd.F32, 3: winograd.F43, 7: winograd.F32_44, 11: winograd.F33_44}[conv.taps]


def _packed(weight, scheme):
    return bf16.pack_pairs(winograd.pack_weight(weight, scheme, tiles.AVX512.width))


@pytest.mark.parametrize("taps", [3, 7, 11])
def test_layout(taps):
    conv = replace(PLAIN, taps=taps)
    scheme = winograd.scheme_for(conv)
    weight = np.random.default_rng(0).standard_normal((20, 7, taps)).astype(np.float32)
    np.testing.assert_array_equal(pack(winograd.layout(conv, scheme), weight, tiles.AVX512), _packed(weight, scheme))
    assert scheme == _scheme(conv)


@pytest.fixture
def wide(host_harness):
    """The harness with the CPU that has the instructions."""
    other = copy.copy(host_harness)
    other.tile, other._target = tiles.AVX512, TARGET
    return other


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.0, 1.0),
        (1 + 2**-8, 1.0),  # a tie goes to the even neighbour
        (1 + 3 * 2**-8, 1 + 2**-6),
        (1 + 2**-8 + 2**-20, 1 + 2**-7),
        (-(1 + 2**-8 + 2**-20), -(1 + 2**-7)),
        (255.5, 256.0),
        (1e-39, 0.0),  # subnormal
        (2.0**-126, 2.0**-126),
        (-0.0, -0.0),
    ],
)
def test_rounding(value, expected):
    (found,) = bf16.values(bf16.rounded(np.array([value], np.float32)))
    assert found == np.float32(expected)
    assert np.signbit(found) == np.signbit(np.float32(expected))


def test_error_of_rounding():
    x = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    error = np.abs(bf16.values(bf16.rounded(x)) - x) / np.abs(x)
    assert bf16.UNIT_ROUNDOFF / 2 < error.max() <= bf16.UNIT_ROUNDOFF


@pytest.mark.parametrize("c_in", [6, 7])
def test_pairs_are_neighbouring_inputs_of_one_output(c_in):
    panels = np.random.default_rng(0).standard_normal((2, 3, c_in, 16)).astype(np.float32)
    pairs = bf16.values(bf16.pack_pairs(panels)).reshape(2, 3, -1, 16, 2)
    assert pairs.shape[2] == -(-c_in // 2)
    expected = bf16.values(bf16.rounded(panels))
    for c in range(c_in):
        np.testing.assert_array_equal(pairs[:, :, c // 2, :, c % 2], expected[:, :, c])
    if c_in % 2:
        assert not pairs[:, :, -1, :, 1].any()


def _emulated(conv, scheme, x, weight, add=np.matmul):
    """The convolution of ``x`` [rows, C_in]: factors rounded, the rest in float64; ``add`` sums up products over channels."""
    rows, inner, outer = conv.steps(len(x)), scheme.inner, scheme.outer
    count = -(-rows // scheme.outputs)
    padded = np.zeros(((count + 2) * scheme.outputs + scheme.taps, conv.c_in))
    padded[conv.padding_left :][: len(x)] = x
    blocks = np.stack([padded[k * inner.outputs :][: inner.size] for k in range(scheme.blocks(count))])
    windows = np.stack([blocks[i * outer.outputs :][: outer.size] for i in range(count)])
    to_points, from_points = ([winograd._rows(getattr(x, s)) for x in (inner, outer)] for s in ("input_stages", "output_stages"))
    points = np.einsum("pk,qj,ijkc->ipqc", *to_points, windows, optimize=True).reshape(count, scheme.size, -1)
    points = bf16.values(bf16.rounded(points.astype(np.float32))).astype(np.float64)
    packed = bf16.values(_packed(weight, scheme)).astype(np.float64)
    packed = packed.reshape(*packed.shape[:3], -1, 2).transpose(0, 3, 1, 2, 4)  # [panel, width, product, word, 2]
    factors = packed.reshape(-1, packed.shape[2], packed.shape[3] * 2)[: conv.c_out, :, : conv.c_in]
    sums = np.zeros((count, scheme.size, conv.c_out))
    for p in range(scheme.products(conv.taps)):
        sums[:, p] = add(points[:, p], factors[:, p].T)
    sums = sums.reshape(count, inner.size, outer.size, -1)
    return np.einsum("rp,jq,ipqd->ijrd", *from_points, sums, optimize=True).reshape(-1, conv.c_out)[:rows]


@RUNS
@pytest.mark.parametrize("taps", [3, 7, 11])
def test_rounds_as_its_twin_does(wide, taps):
    """On whole numbers the input transform is exact, so every rounding can be foretold; what is left is that of float32 sums."""
    conv = Conv1d(38, 64, taps, padding_left=taps // 2, padding_right=taps // 2, bias=False, products="bfloat16")
    scheme = WHOLE if taps == 11 else _scheme(conv)
    x = wide.rng.integers(-8, 9, (1, 150, conv.c_in)).astype(np.float32)
    weight = wide.normal(conv.c_out, conv.c_in, taps)
    kernel = wide.build(winograd.kernel(conv, wide.tile, scheme))
    y = wide.run(kernel, x, np.array([150]), _packed(weight, scheme), np.zeros((1, 150, conv.c_out), np.float32))
    twin = _emulated(conv, scheme, x[0], weight)
    assert wide.error(y, [twin]) <= winograd.tolerance(scheme)
    # The twin does round: the exact convolution is much farther away.
    exact = conv1d.reference(conv, x, [150], weight)
    assert winograd.tolerance(scheme) < wide.error(y, exact) <= winograd.tolerance(scheme, "bfloat16")


def _sums_in_bfloat16(a, b):
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for k in range(len(b)):
        total = bf16.values(bf16.rounded(total + np.outer(a[:, k], b[k]).astype(np.float32)))
    return total


@pytest.mark.parametrize("taps", [2, 3, 7, 11])
def test_validators_allow_for_the_rounding_of_factors_alone(taps):
    """Data without structure, for which the floor of a convolution was worked out."""
    conv = replace(PLAIN, taps=taps, padding_left=taps // 2, padding_right=taps // 2, bias=False)
    rng = np.random.default_rng(taps)
    x, weight = (rng.standard_normal(s).astype(np.float32) for s in ((200, conv.c_in), (conv.c_out, conv.c_in, taps)))
    (exact,) = conv1d.reference(conv, x[None], [len(x)], weight)
    floor = operator_tolerance("conv_transpose1d" if taps == 2 else "conv1d", "bf16")
    assert floor.passes(compare(_emulated(conv, _scheme(conv), x, weight), exact))
    assert not floor.passes(compare(_emulated(conv, _scheme(conv), x, weight, _sums_in_bfloat16), exact))


@pytest.mark.parametrize("taps", [2, 3, 7, 11])
def test_validators_know_the_transforms(taps):
    scheme = _scheme(replace(PLAIN, taps=taps))
    mean = winograd.power(scheme.inner).mean() * winograd.power(scheme.outer).mean()
    assert tolerances._AMPLIFICATION_BF16[taps] == pytest.approx(mean, rel=0.01)


@RUNS
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_direct_twin_at_any_length(wide, name):
    conv = CASES[name]
    scheme = _scheme(conv)
    tile = scheme.outputs * conv.dilation
    task = winograd.block_tiles(conv, wide.tile, scheme) * tile
    lengths = [tile + 1, 1, task + 1, tile * wide.tile.rows, tile - 1]
    kernel = winograd.kernel(conv, wide.tile, scheme)
    wide.check_convolution(conv, lengths, kernel, lambda w: _packed(w, scheme), winograd.tolerance(scheme, "bfloat16"))


def test_code_is_the_instruction_without_spills():
    """Compiled on any machine: the loop over pairs loads weights and multiplies; sums stay in registers."""
    kernel = winograd.kernel(replace(PLAIN, c_in=128, c_out=128), tiles.AVX512, winograd.F43)
    module = tvm.IRModule({"kernel": kernel.with_attr("global_symbol", "kernel")})
    assembly = tvm.compile(module, target=TARGET).mod.inspect_source("s")
    (loop,) = (b for b in re.split(r"^\.L\w+:|\tj\w+\t.*", assembly, flags=re.MULTILINE) if "vdpbf16ps" in b)
    products = re.findall(r"vdpbf16ps\t.*", loop)
    assert len(products) % (tiles.AVX512.rows * tiles.AVX512.vectors) == 0
    stack = ["%rsp"] + ["%rbp"] * ("movq\t%rsp, %rbp" in assembly)  # else %rbp is a register like others
    assert not any(register in loop for register in stack)
    assert not re.search(r"\t(call|vmovups\t%zmm\d+, )", loop)
    assert "vcvtneps2bf16" in assembly


def test_other_vectors_are_refused():
    with pytest.raises(ValueError, match="vectors of 16 float32, not 8"):
        winograd.kernel(PLAIN, tiles.AVX2, winograd.F43)
