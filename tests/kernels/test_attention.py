import numpy as np
import pytest

from kokoro_tvm.kernels import attention


def _check(harness, heads, head_dim, lengths, scale=1.0):
    embedding = heads * head_dim
    x = harness.Ragged([harness.normal(n, 3 * embedding) * np.float32(scale) for n in lengths])
    harness.check(
        attention.kernel(heads, head_dim, harness.tile, max_tokens=max(lengths)),
        [x, harness.LENGTHS],
        lengths,
        harness.Output(lambda n: (n, embedding)),
        [attention.reference(s[None], [len(s)], heads)[0] for s in x.samples],
        attention.TOLERANCE,
    )


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 32), (3, 64), (12, 64)])
def test_agrees_with_twin(harness, heads, head_dim):
    width = harness.tile.width
    _check(harness, heads, head_dim, [*harness.lengths(), width - 1, width, width + 1])


def test_longest_text(harness):
    _check(harness, 2, 64, [512, 509, 3])


def test_sharp_scores(harness):
    """Scores up to several hundred: one key takes all the weight, and nothing overflows."""
    _check(harness, 2, 32, [40], scale=6.0)


def test_head_must_fill_the_tile(harness):
    with pytest.raises(ValueError, match="no multiple of"):
        attention.kernel(2, 50, harness.tile)


def test_twin_is_pytorch():
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(1).standard_normal((1, 9, 3 * 12))
    q, k, v = torch.tensor(x).view(1, 9, 3, 2, 6).permute(2, 0, 3, 1, 4)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(9, 12).numpy()
    np.testing.assert_allclose(attention.reference(x, [9], 2)[0], expected, rtol=1e-12)
