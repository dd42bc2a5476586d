"""Comparisons and gates, where they are easily got wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kokoro_tvm.reference import components
from kokoro_tvm.reference.synthetic import synthetic_voice
from kokoro_tvm.reference.trace import trace
from kokoro_tvm.validate import published
from kokoro_tvm.validate.metrics import branch_flips, compare, compare_phase, missing, snr_db
from kokoro_tvm.validate.tolerances import CHAINED, EXACT, STAGES, Tolerance

FLOOR = Tolerance("test", 60.0, "for this test")


def test_a_known_error_has_its_known_ratio():
    truth = np.array([3.0, 4.0])
    assert snr_db(truth + np.array([0.0, 0.005]), truth) == pytest.approx(60.0)
    found = compare(np.array([3.0, 4.5], np.float32), truth)
    assert (found.max_abs, found.where, found.max_rel) == (0.5, (1,), 0.125)
    assert (found.actual_range, found.expected_range) == ((3.0, 4.5), (3.0, 4.0))
    assert (found.actual_dtype, found.expected_dtype) == ("float32", "float64")


def test_equal_is_infinite_and_silence_is_no_excuse():
    assert snr_db(np.ones(3), np.ones(3)) == math.inf
    assert snr_db(np.zeros(3), np.zeros(3)) == math.inf
    assert snr_db(np.ones(3), np.zeros(3)) == -math.inf


@pytest.mark.parametrize("bad", [np.array([1.0, np.nan]), np.array([1.0, np.inf]), np.ones(3), np.ones((1, 2)), np.empty(0)])
def test_what_cannot_be_compared_passes_no_gate(bad):
    found = compare(bad, np.ones(2))
    assert math.isnan(found.snr_db)
    assert not found.comparable
    assert not any(t.passes(found) for t in (FLOOR, EXACT, Tolerance("lowest", -math.inf, "")))


def test_nan_in_the_truth_passes_no_gate():
    assert not Tolerance("lowest", -math.inf, "").passes(compare(np.ones(2), np.array([1.0, np.nan])))


def test_what_is_missing_passes_no_gate():
    assert not FLOOR.passes(None)
    assert not Tolerance("lowest", -math.inf, "").passes(missing(np.ones(2)))


def test_exact_asks_for_equality():
    counts = np.array([1, 2, 3])
    assert EXACT.passes(compare(counts, counts))
    assert not EXACT.passes(compare(counts, counts + np.array([0, 0, 1])))


def test_phases_are_compared_on_the_circle_and_by_magnitude():
    truth, magnitude = np.array([math.pi, 0.5, 1.0]), np.array([1.0, 1.0, 1e-9])
    assert compare_phase(np.array([-math.pi, 0.5, 1.0]), truth, magnitude).snr_db > 250
    assert compare_phase(np.array([math.pi, 0.5, -2.0]), truth, magnitude).snr_db > 150
    assert compare_phase(np.array([math.pi - 0.1, 0.5, 1.0]), truth, magnitude).snr_db < 25


def test_a_turn_is_counted():
    assert branch_flips(np.array([-3.14, 1.0]), np.array([3.14, 1.0])) == 1


def test_who_lies_behind_pytorch_fails():
    """Compared with twice its error; never asked for more than one rounding leaves, nor for less than the floor."""
    truth = np.linspace(1, 2, 1000)

    def off(snr: float):
        return compare(truth + np.sqrt(np.mean(truth**2)) * 10 ** (-snr / 20) * np.resize([1.0, -1.0], 1000), truth)

    floor = Tolerance("test", 90.0, "for this test")
    assert floor.passes(off(118), off(120))
    assert not floor.passes(off(116), off(120))
    assert floor.passes(off(148), off(200))
    assert not floor.passes(off(89), off(60))
    assert floor.passes(off(91), missing(truth))
    assert not floor.passes(missing(truth), off(60))
    assert Tolerance("test", 90.0, "for this test", behind_db=math.inf).passes(off(91), off(120))
    assert not Tolerance("test", 90.0, "for this test", behind_db=-5.0).passes(off(124), off(120))


def _published(loss: float):
    """Every floor on the published weights, and a tensor that lost so many dB of the least that was measured."""
    for stage in STAGES:
        for pattern, least in published.ISOLATED[stage.name]:
            tensor = pattern.replace("*", "0")
            tolerance = published.on_published_weights(stage.name, tensor, "isolated", stage.tolerance(tensor))
            yield tensor, tolerance, least - loss
    for tensor, least in published.CHAINED.items():
        stage, tolerance = CHAINED[tensor]
        yield tensor, published.on_published_weights(stage, tensor, "chained", tolerance), least - loss


@pytest.mark.parametrize(("loss", "passes"), [(0.0, True), (10.0, False)])
def test_a_loss_of_10_db_fails_on_published_weights(loss, passes):
    found = list(_published(loss))
    assert len(found) > 40
    assert {name: snr >= tolerance.floor(None) for name, tolerance, snr in found} == {name: passes for name, *_ in found}


def test_every_tensor_has_a_floor_on_published_weights(tiny64):
    """And a higher one than with any weights."""
    ids = components.token_ids(tiny64, "hˈO")
    names = list(trace(tiny64, ids, components.style_row(synthetic_voice(0), ids), components.seeded_noise(0)))
    for stage in STAGES:
        expected = [n for n in stage.expected(names) if not n.startswith("ups.")]
        assert expected
        for tensor in expected:
            raised = published.on_published_weights(stage.name, tensor, "isolated", stage.tolerance(tensor))
            assert raised.floor_db > stage.tolerance(tensor).floor_db
    for tensor, (stage, tolerance) in CHAINED.items():
        raised = published.on_published_weights(stage, tensor, "chained", tolerance)
        assert (raised is tolerance) if tolerance is EXACT else (raised.floor_db > tolerance.floor_db)


def test_every_tolerance_has_a_name_and_a_reason():
    tolerances = [t for s in STAGES for _, t in s.tensors] + [t for _, t in CHAINED.values()]
    assert all(t.name and t.reason and t.floor_db > 0 for t in tolerances)
