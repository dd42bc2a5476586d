"""Comparisons and gates, where they are easily got wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest

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


def test_every_tolerance_has_a_name_and_a_reason():
    tolerances = [t for s in STAGES for _, t in s.tensors] + [t for _, t in CHAINED.values()]
    assert all(t.name and t.reason and t.floor_db > 0 for t in tolerances)
