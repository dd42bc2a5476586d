import numpy as np
import pytest

from kokoro_tvm.kernels import tile as tiles
from kokoro_tvm.kernels.packing import pack
from kokoro_tvm.kernels.tile import Tile

WEIGHT = np.random.default_rng(0).standard_normal((20, 6, 4)).astype(np.float32)


@pytest.mark.parametrize("tile", [tiles.AVX2, tiles.AVX512, tiles.NEON, tiles.SSE])
def test_convolution_panels(tile):
    packed = pack("conv1d", WEIGHT, tile)
    assert packed.shape == (-(-20 // tile.width), 4, 6, tile.width)
    flat = packed.transpose(0, 3, 2, 1).reshape(-1, 6, 4)
    assert np.array_equal(flat[:20], WEIGHT)
    assert not flat[20:].any()


def test_transposed_panels_hold_every_tap_once():
    width = tiles.AVX2.width
    weight = np.arange(3 * width * 6, dtype=np.float32).reshape(3, width, 6)
    packed = pack("transposed:3", weight, tiles.AVX2)
    assert packed.shape == (3, 2, 3, width)
    assert sorted(packed.ravel()) == sorted(weight.ravel())
    # Row q * 3 + r of the output takes tap r from input q and tap r + 3 from input q - 1, which the kernel reads first.
    assert np.array_equal(packed[1, 0].T, weight[:, :, 4].T)
    assert np.array_equal(packed[1, 1].T, weight[:, :, 1].T)


def test_bias_is_padded():
    assert pack("bias", np.ones(22, np.float32), tiles.AVX2).tolist() == [1.0] * 22 + [0.0] * 10


def test_unknown_layout():
    with pytest.raises(KeyError):
        pack("sideways", WEIGHT, tiles.AVX2)


def test_tile_refuses_a_block_of_broken_tiles():
    with pytest.raises(ValueError, match="multiple"):
        Tile(lanes=8, vectors=2, rows=5, block=96)
