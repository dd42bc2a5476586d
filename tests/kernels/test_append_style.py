import pytest

from kokoro_tvm.kernels import append_style


@pytest.mark.parametrize(("channels", "style_dim"), [(1, 1), (512, 128), (50, 3)])
def test_agrees_with_twin(host_harness, channels, style_dim):
    lengths = host_harness.lengths()
    x, style = host_harness.ragged(lengths, channels), host_harness.normal(len(lengths), style_dim)
    host_harness.check(
        append_style.kernel(channels, style_dim),
        [x, host_harness.LENGTHS, host_harness.PerSample(style)],
        lengths,
        host_harness.Output(lambda n: (n, channels + style_dim)),
        [append_style.reference(s[None], [len(s)], style[i : i + 1])[0] for i, s in enumerate(x.samples)],
        append_style.TOLERANCE,
    )
