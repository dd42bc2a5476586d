import numpy as np
import pytest

from kokoro_tvm.kernels import bilstm


@pytest.mark.parametrize("hidden", [32, 256])
def test_agrees_with_twin(harness, hidden):
    lengths = [1, 9, 2, 33]
    gates = harness.ragged(lengths, 8 * hidden)
    w_hh = harness.rng.uniform(-1, 1, (2, 4 * hidden, hidden)).astype(np.float32) * np.float32(hidden**-0.5)
    reference = [bilstm.reference(s[None], [len(s)], w_hh)[0] for s in gates.samples]
    harness.check(
        bilstm.kernel(hidden, harness.tile),
        [gates, harness.LENGTHS, bilstm.pack_recurrent(w_hh)],
        lengths,
        harness.Output(lambda n: (n, 2 * hidden), zero=True),
        reference,
        bilstm.TOLERANCE / max(np.abs(r).max() for r in reference),
    )


def test_saturated_gates(harness):
    gates = harness.normal(1, 20, 8 * 32) * np.float32(1000)
    w_hh = harness.normal(2, 4 * 32, 32)
    kernel = harness.build(bilstm.kernel(32, harness.tile))
    y = harness.run(kernel, gates, np.array([20]), bilstm.pack_recurrent(w_hh), np.zeros((1, 20, 64), np.float32))
    assert np.abs(y - bilstm.reference(gates, [20], w_hh)).max() <= bilstm.TOLERANCE


def test_hidden_must_fill_vectors(harness):
    with pytest.raises(ValueError, match="hidden size 30"):
        bilstm.kernel(30, harness.tile)


def test_code_does_not_grow_with_the_sequence(harness):
    """The length is a symbol: one kernel, of a few hundred lines of TIR, serves every sequence."""
    assert len(bilstm.kernel(256, harness.tile).script().splitlines()) < 200


def test_packed_sequence_of_pytorch(harness):
    """Kernel and twin against nn.LSTM with packing, at the model's size and longest text."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    hidden, lengths = 256, [512, 1, 77]
    lstm = torch.nn.LSTM(512, hidden, batch_first=True, bidirectional=True).double()
    x = torch.randn(len(lengths), max(lengths), 512, dtype=torch.float64)
    with torch.no_grad():
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
        expected = torch.nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True)[0].numpy()
        gates = torch.cat(
            [
                x @ getattr(lstm, f"weight_ih_l0{d}").T + getattr(lstm, f"bias_ih_l0{d}") + getattr(lstm, f"bias_hh_l0{d}")
                for d in ("", "_reverse")
            ],
            dim=-1,
        ).numpy()
        w_hh = np.stack([lstm.weight_hh_l0.numpy(), lstm.weight_hh_l0_reverse.numpy()])
    np.testing.assert_allclose(bilstm.reference(gates[1:], lengths[1:], w_hh), expected[1:], atol=1e-7)
    kernel = harness.build(bilstm.kernel(hidden, harness.tile))
    packed_w = bilstm.pack_recurrent(w_hh.astype(np.float32))
    y = harness.run(kernel, gates.astype(np.float32), np.array(lengths), packed_w, np.zeros(expected.shape, np.float32))
    assert np.abs(y - expected).max() <= bilstm.TOLERANCE
