"""Hypothesis tests as checks: Holm's correction, and rejections that hardly matter."""

import numpy as np

from valuefit.checks.check import HypothesisTest, holm, judge


def test_holm_multiplies_by_the_number_of_tests_left():
    assert np.allclose(holm([0.04, 0.01, 0.03]), [0.06, 0.03, 0.06])
    assert np.allclose(holm([0.9, 0.8]), [1.0, 1.0])
    assert len(holm([])) == 0


def test_tests_warn_after_correction_for_their_number():
    tests = [HypothesisTest(name, 1.0, p, "No.", "Yes.") for name, p in (("a", 0.02), ("b", 0.03), ("c", 0.2))]
    assert [check.outcome for check in judge(tests)] == ["pass", "pass", "pass"]
    assert [check.message for check in judge(tests[:1])] == ["Yes."]


def test_a_rejection_that_hardly_matters_for_the_value_does_not_warn():
    def judged(size):
        return judge([HypothesisTest("features suffice", 9.0, 1e-3, "No.", "They do not.", size)])[0]

    assert judged(0.4).outcome == "pass"
    assert judged(0.4).message == "They do not. It matters little for the policy value: 0.4 of its standard errors."
    assert [judged(size).outcome for size in (0.6, None)] == ["warn", "warn"]


def test_a_change_within_chance_of_zero_does_not_warn():
    def outcome(size, error):
        return judge([HypothesisTest("a", 9.0, 1e-3, "No.", "Yes.", size, error)])[0].outcome

    assert [outcome(size, 0.4) for size in (0.4, 0.7, 0.9)] == ["pass", "pass", "warn"]
    assert outcome(0.7, None) == outcome(None, None) == "warn"
