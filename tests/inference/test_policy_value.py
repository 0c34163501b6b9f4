"""The interval of a policy value at any level, one- and two-sided."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import valuefit as vf
from helpers.small_mdp import SmallMDP
from valuefit.inference.policy_value import PolicyValue

VALUE = PolicyValue(2.0, 0.5, (0.9, 3.1), 0.95, 40, solver_error=0.1, effective_episodes=11.0)


def test_intervals_are_those_of_students_t_and_the_solver_error():
    half = stats.t.ppf(0.95, 10) * 0.5 + 0.1  # 90% two-sided, 95% one-sided
    assert VALUE.interval_at(0.9) == pytest.approx((2 - half, 2 + half))
    assert VALUE.interval_at(0.95, "lower") == pytest.approx((2 - half, np.inf))
    assert VALUE.interval_at(0.95, side="upper") == pytest.approx((-np.inf, 2 + half))
    assert VALUE.interval_at(0.95) == VALUE.interval


@pytest.mark.parametrize("side", ["both", "lower", "upper"])
@pytest.mark.parametrize("level", [1e-320, 1e-9, 1 - 1e-12, 1 - 2**-53])
def test_intervals_at_extreme_levels_are_those_of_students_t(level, side):
    for value in (VALUE, replace(VALUE, effective_episodes=2.0), replace(VALUE, standard_error=0.0)):
        tail = min((1 - level) / (2 if side == "both" else 1), 1 - 2**-53)
        half = stats.t.isf(tail, value.effective_episodes - 1) * value.standard_error + 0.1
        expected = -np.inf if side == "upper" else 2 - half, np.inf if side == "lower" else 2 + half
        assert value.interval_at(level, side) == pytest.approx(expected, rel=1e-9)


def test_an_unknown_standard_error_has_no_interval():
    assert replace(VALUE, standard_error=None, interval=None).interval_at(0.9, "lower") is None


@pytest.mark.parametrize("level", [0, 1, 95, -0.5, np.nan, "high", True])
def test_a_level_is_a_probability(level):
    for function in (VALUE.interval_at, lambda level: vf.evaluate({}, level=level)):
        with pytest.raises(ValueError, match=r"level is .*; it must be between 0 and 1, for example 0.95"):
            function(level)


def test_a_side_is_one_of_three():
    for side, text in (("two", "'two'"), (np.zeros((2, 2)), "array.*"), (["both"], r"\['both'\]")):
        with pytest.raises(ValueError, match=rf'side is {text}; it must be "both", "lower" or "upper"'):
            VALUE.interval_at(0.9, side)


def test_the_level_of_an_evaluation_is_that_of_all_its_intervals(tmp_path):
    mdp = SmallMDP()
    log = mdp.log(50)
    usual, other = (vf.evaluate(log, features="one-hot", discount=0.9, **level) for level in ({}, {"level": 0.8}))
    assert other.policy_value.level == 0.8
    assert other.policy_value.interval == pytest.approx(usual.policy_value.interval_at(0.8))
    assert other.policy_value.interval_at(0.95) == pytest.approx(usual.policy_value.interval)
    widths = [np.subtract(*one.weights[0]["interval"][::-1]) for one in (usual, other)]
    assert widths[1] < 0.7 * widths[0]
    assert "[80%" in other.summary()
    loaded = vf.Evaluation.load(other.save(tmp_path / "saved.npz"))
    assert loaded.policy_value.interval_at(0.95, "lower") == usual.policy_value.interval_at(0.95, "lower")
