"""The bidirectional LSTM extern against ``torch.nn.LSTM`` with packing, through tvm-ffi and through NumPy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from kokoro_tvm.native import load_externs, load_native

if TYPE_CHECKING:
    from collections.abc import Callable

load_externs()
BILSTM = tvm_ffi.get_global_func("kokoro_tvm.bilstm")
BILSTM_STATEFUL = tvm_ffi.get_global_func("kokoro_tvm.bilstm_stateful")

TOLERANCE = 2e-6
"""Largest absolute difference from ``nn.LSTM``, whose own float32 error is about half of it."""


@dataclass(frozen=True)
class Problem:
    """Inputs in the order of the extern; the padding of ``x`` is NaN."""

    x: torch.Tensor
    lengths: torch.Tensor
    w_ih: torch.Tensor
    w_hh: torch.Tensor
    b_ih: torch.Tensor
    b_hh: torch.Tensor
    h0: torch.Tensor
    c0: torch.Tensor
    lstm: torch.nn.LSTM

    @staticmethod
    def make(lengths: list[int], *, input_size: int, hidden: int, steps: int | None = None, seed: int = 0) -> Problem:
        torch.manual_seed(seed)
        batch, steps = len(lengths), steps or max(lengths)
        lstm = torch.nn.LSTM(input_size, hidden, bidirectional=True, batch_first=True).requires_grad_(False)
        weights = [
            torch.stack([getattr(lstm, f"{name}_l0"), getattr(lstm, f"{name}_l0_reverse")])
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        ]
        x = torch.randn(batch, steps, input_size)
        for b, length in enumerate(lengths):
            x[b, length:] = torch.nan
        h0, c0 = torch.randn(2, 2, batch, hidden).clamp(-1, 1)
        return Problem(x, torch.tensor(lengths), *weights, h0, c0, lstm)

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        return self.x, self.lengths, self.w_ih, self.w_hh, self.b_ih, self.b_hh

    def outputs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Fresh y, h_n and c_n, full of NaN."""
        batch, steps, _ = self.x.shape
        hidden = self.w_hh.shape[2]
        return (
            torch.full((batch, steps, 2 * hidden), torch.nan),
            torch.full((2, batch, hidden), torch.nan),
            torch.full((2, batch, hidden), torch.nan),
        )

    def expected(self, *, states: bool = False, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
        """y, h_n and c_n of ``nn.LSTM``."""
        lstm = torch.nn.LSTM(self.x.shape[2], self.w_hh.shape[2], bidirectional=True, batch_first=True, dtype=dtype)
        lstm.load_state_dict(self.lstm.state_dict())
        packed = pack_padded_sequence(self.x.to(dtype), self.lengths, batch_first=True, enforce_sorted=False)
        with torch.inference_mode():
            y, (h_n, c_n) = lstm(packed, (self.h0.to(dtype), self.c0.to(dtype)) if states else None)
            y, _ = pad_packed_sequence(y, batch_first=True, total_length=self.x.shape[1])
        return y, h_n, c_n


def call(function: tvm_ffi.Function, *tensors: torch.Tensor) -> None:
    function(*(tvm_ffi.from_dlpack(t) for t in tensors))


def max_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """NaN anywhere makes it NaN, which no comparison passes."""
    assert got.shape == want.shape
    return (got.double() - want.double()).abs().max().item()


def assert_zero_padding(y: torch.Tensor, lengths: torch.Tensor) -> None:
    for b, length in enumerate(lengths.tolist()):
        assert torch.equal(y[b, length:], torch.zeros_like(y[b, length:])), f"sample {b}"


@pytest.fixture(scope="module")
def model_size() -> Problem:
    """Kokoro's sizes: ragged, unsorted, with the shortest and the longest length."""
    return Problem.make([300, 512, 1, 64, 511, 63, 128, 257], input_size=640, hidden=256)


def test_matches_torch_at_model_size(model_size: Problem) -> None:
    y, *_ = model_size.outputs()
    call(BILSTM, *model_size.inputs, y)
    assert max_error(y, model_size.expected()[0]) <= TOLERANCE
    assert_zero_padding(y, model_size.lengths)


def test_is_no_less_accurate_than_torch(model_size: Problem) -> None:
    y, *_ = model_size.outputs()
    call(BILSTM, *model_size.inputs, y)
    truth = model_size.expected(dtype=torch.float64)[0]
    torch_y = model_size.expected()[0]

    def rms(got: torch.Tensor) -> float:
        return (got.double() - truth).square().mean().sqrt().item()

    assert rms(y) <= rms(torch_y)
    assert max_error(y, truth) <= 1.2e-6


def test_states_match_torch_at_model_size(model_size: Problem) -> None:
    outputs = model_size.outputs()
    call(BILSTM_STATEFUL, *model_size.inputs, model_size.h0, model_size.c0, *outputs)
    for got, want in zip(outputs, model_size.expected(states=True), strict=True):
        assert max_error(got, want) <= TOLERANCE


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=9),
    spare=st.integers(0, 5),
    input_size=st.integers(1, 40),
    hidden=st.integers(1, 40),
    seed=st.integers(0, 2**31),
)
def test_any_shape_matches_torch(lengths: list[int], spare: int, input_size: int, hidden: int, seed: int) -> None:
    p = Problem.make(lengths, input_size=input_size, hidden=hidden, steps=max(lengths) + spare, seed=seed)
    y, *_ = p.outputs()
    call(BILSTM, *p.inputs, y)
    assert max_error(y, p.expected()[0]) <= TOLERANCE
    assert_zero_padding(y, p.lengths)
    outputs = p.outputs()
    call(BILSTM_STATEFUL, *p.inputs, p.h0, p.c0, *outputs)
    for got, want in zip(outputs, p.expected(states=True), strict=True):
        assert max_error(got, want) <= TOLERANCE


def test_numpy_entry_gives_the_same_bits_for_any_thread_count(model_size: Problem) -> None:
    outputs = model_size.outputs()
    call(BILSTM_STATEFUL, *model_size.inputs, model_size.h0, model_size.c0, *outputs)
    arrays = [t.numpy() for t in (*model_size.inputs, model_size.h0, model_size.c0)]
    for threads in (1, 2, 5):
        for got, want in zip(load_native().bilstm(*arrays, num_threads=threads), outputs, strict=True):
            np.testing.assert_array_equal(got, want.numpy(), strict=True)


def test_numpy_entry_defaults_to_zero_states() -> None:
    p = Problem.make([3, 9], input_size=7, hidden=5)
    y, *_ = p.outputs()
    call(BILSTM, *p.inputs, y)
    got, h_n, c_n = load_native().bilstm(*(t.numpy() for t in p.inputs))
    np.testing.assert_array_equal(got, y.numpy(), strict=True)
    assert max_error(torch.from_numpy(h_n), p.expected()[1]) <= TOLERANCE
    assert max_error(torch.from_numpy(c_n), p.expected()[2]) <= TOLERANCE


# ---- errors: each says what it got and what it expected, and leaves the outputs alone ----


def small() -> Problem:
    return Problem.make([3, 4], input_size=6, hidden=5)


def transposed(t: torch.Tensor) -> torch.Tensor:
    """The same shape and values, other strides."""
    return t.transpose(-1, -2).contiguous().transpose(-1, -2)


BAD_INPUTS: dict[str, tuple[Callable[[Problem], Problem], type[Exception], str]] = {
    "x dtype": (lambda p: replace(p, x=p.x.double()), TypeError, r"x has dtype float64, expected float32"),
    "x rank": (lambda p: replace(p, x=p.x[0]), ValueError, r"x has shape \[4, 6\], expected 3 dimensions"),
    "x strides": (lambda p: replace(p, x=transposed(p.x)), ValueError, r"x has strides \[24, 1, 4\] .* contiguous"),
    "x empty batch": (lambda p: replace(p, x=p.x[:0]), ValueError, r"x has shape \[0, 4, 6\], .* no empty"),
    "x empty steps": (lambda p: replace(p, x=p.x[:, :0]), ValueError, r"x has shape \[2, 0, 6\], .* no empty"),
    "lengths dtype": (
        lambda p: replace(p, lengths=p.lengths.int()),
        TypeError,
        r"lengths has dtype int32, expected int64",
    ),
    "lengths shape": (
        lambda p: replace(p, lengths=p.lengths[:1]),
        ValueError,
        r"lengths has shape \[1\], expected \[2\]",
    ),
    "length 0": (
        lambda p: replace(p, lengths=torch.tensor([3, 0])),
        ValueError,
        r"lengths\[1\] is 0, expected 1 to 4",
    ),
    "length negative": (lambda p: replace(p, lengths=torch.tensor([-1, 4])), ValueError, r"lengths\[0\] is -1"),
    "length too large": (
        lambda p: replace(p, lengths=torch.tensor([3, 5])),
        ValueError,
        r"lengths\[1\] is 5, expected 1 to 4",
    ),
    "w_ih shape": (
        lambda p: replace(p, w_ih=p.w_ih[:, :, :4].contiguous()),
        ValueError,
        r"w_ih has shape \[2, 20, 4\], expected \[2, 20, 6\]",
    ),
    "w_ih dtype": (lambda p: replace(p, w_ih=p.w_ih.half()), TypeError, r"w_ih has dtype float16"),
    "w_hh directions": (
        lambda p: replace(p, w_hh=p.w_hh[:1]),
        ValueError,
        r"w_hh has shape \[1, 20, 5\], expected \[2, 20, 5\]",
    ),
    "w_hh strides": (lambda p: replace(p, w_hh=transposed(p.w_hh)), ValueError, r"w_hh has strides"),
    "b_ih shape": (
        lambda p: replace(p, b_ih=p.b_ih[:, :19].contiguous()),
        ValueError,
        r"b_ih has shape \[2, 19\], expected \[2, 20\]",
    ),
    "b_hh rank": (lambda p: replace(p, b_hh=p.b_hh[0]), ValueError, r"b_hh has shape \[20\], expected 2 dimensions"),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input_is_refused(name: str) -> None:
    change, error, message = BAD_INPUTS[name]
    good = small()
    bad = change(good)
    y, h_n, c_n = good.outputs()
    with pytest.raises(error, match=message):
        call(BILSTM, *bad.inputs, y)
    with pytest.raises(error, match=message):
        call(BILSTM_STATEFUL, *bad.inputs, bad.h0, bad.c0, y, h_n, c_n)
    for output in (y, h_n, c_n):
        assert output.isnan().all()


@pytest.mark.parametrize("index", range(5), ids=["h0", "c0", "y", "h_n", "c_n"])
@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda t: t.double(), TypeError),
        (lambda t: torch.full((t.shape[0], t.shape[1] + 1, t.shape[2]), torch.nan), ValueError),
        (transposed, ValueError),
    ],
    ids=["dtype", "shape", "strides"],
)
def test_bad_state_or_output_is_refused(
    index: int, change: Callable[[torch.Tensor], torch.Tensor], error: type[Exception]
) -> None:
    p = small()
    tensors = [p.h0, p.c0, *p.outputs()]
    tensors[index] = change(tensors[index])
    with pytest.raises(error, match=rf"bilstm: {('h0', 'c0', 'y', 'h_n', 'c_n')[index]} has"):
        call(BILSTM_STATEFUL, *p.inputs, *tensors)
    for output in tensors[2:]:
        assert output.isnan().all()


def test_overlapping_outputs_are_refused() -> None:
    p = Problem.make([4, 4], input_size=10, hidden=5)
    with pytest.raises(ValueError, match="output y overlaps x"):
        call(BILSTM, *p.inputs, p.x)
    y, h_n, _ = p.outputs()
    with pytest.raises(ValueError, match="output h_n overlaps c_n"):
        call(BILSTM_STATEFUL, *p.inputs, p.h0, p.c0, y, h_n, h_n)
    with pytest.raises(ValueError, match="output h_n overlaps h0"):
        call(BILSTM_STATEFUL, *p.inputs, p.h0, p.c0, y, p.h0, h_n)
    assert y.isnan().all()
    assert h_n.isnan().all()


@pytest.mark.parametrize(
    ("index", "change", "error", "message"),
    [
        (0, lambda a: a.astype(np.float64), TypeError, "x has dtype float64, expected float32"),
        (0, lambda a: a.transpose(0, 2, 1), ValueError, "x is not C-contiguous"),
        (0, lambda a: a[0], ValueError, r"x has shape \(4, 6\), expected \(batch, steps, input\)"),
        (1, lambda a: a.astype(np.int32), TypeError, "lengths has dtype int32, expected int64"),
        (1, lambda a: a + 1, ValueError, r"lengths\[1\] is 5, expected 1 to 4"),
        (2, lambda a: a[:, :5].copy(), ValueError, r"w_ih has shape \(2, 5, 6\), expected \(2, 20, 6\)"),
    ],
)
def test_numpy_entry_refuses_bad_arrays(
    index: int, change: Callable[[np.ndarray], np.ndarray], error: type[Exception], message: str
) -> None:
    arrays = [t.numpy() for t in small().inputs]
    arrays[index] = change(arrays[index])
    with pytest.raises(error, match=message):
        load_native().bilstm(*arrays)


def test_numpy_entry_refuses_negative_threads() -> None:
    with pytest.raises(ValueError, match="num_threads is -1"):
        load_native().bilstm(*(t.numpy() for t in small().inputs), num_threads=-1)


def _gates(problem: Problem) -> torch.Tensor:
    """The projection in float64, rounded once; NaN in the padding."""
    x = problem.x.double()
    gates = [x @ problem.w_ih[d].double().T + problem.b_ih[d].double() + problem.b_hh[d].double() for d in (0, 1)]
    return torch.cat(gates, -1).float()


@pytest.mark.parametrize("lengths", [[1], [7, 1, 20], [64, 65, 63, 2]])
def test_recurrence_alone_is_the_lstm_behind_its_projection(lengths: list[int]) -> None:
    problem = Problem.make(lengths, input_size=40, hidden=24)
    y = torch.full((len(lengths), max(lengths), 48), torch.nan)
    tvm_ffi.get_global_func("kokoro_tvm.bilstm_recurrence")(_gates(problem), problem.lengths, problem.w_hh, y)
    packed = pack_padded_sequence(problem.x.double(), problem.lengths, batch_first=True, enforce_sorted=False)
    expected, _ = pad_packed_sequence(problem.lstm.double()(packed)[0], batch_first=True)
    torch.testing.assert_close(y.double(), expected, atol=1e-6, rtol=0)
    for b, length in enumerate(lengths):
        assert not y[b, length:].any()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda g, n, w, y: (g.double(), n, w, y), TypeError, "gates has dtype float64, expected float32"),
        (lambda g, n, w, y: (g[..., 1:].contiguous(), n, w, y), ValueError, r"gates has shape \[2, 5, 63\], expected"),
        (lambda g, n, w, y: (g, n + 5, w, y), ValueError, r"lengths\[0\] is 10, expected 1 to 5 \(the steps of gates\)"),
        (lambda g, n, w, y: (g, n, w[:1], y), ValueError, r"w_hh has shape \[1, 32, 8\], expected \[2, 32, 8\]"),
        (lambda g, n, w, y: (g, n, w, g[..., :16].contiguous()[:, :4]), ValueError, "y has"),
    ],
)
def test_recurrence_refuses_what_does_not_fit(change: Callable, error: type[Exception], message: str) -> None:
    problem = Problem.make([5, 3], input_size=4, hidden=8)
    y = torch.full((2, 5, 16), 7.0)
    with pytest.raises(error, match=message):
        tvm_ffi.get_global_func("kokoro_tvm.bilstm_recurrence")(*change(_gates(problem), problem.lengths, problem.w_hh, y))
    assert bool((y == 7).all())
