"""States and actions without data: the interval allows for what they could change."""

import numpy as np
import pytest
from scipy import stats

import valuefit as vf
from helpers.missing_pair import POLICY, moves, true_pairs, true_value
from valuefit.inference import adjoints
from valuefit.inference.policy_value import PolicyValue

OTHER = np.array([[0.4, 0.6], [0.4, 0.6], [0.95, 0.05]])


def evaluated(log, policy=POLICY, **options):
    return vf.evaluate(log, features="one-hot", policy=policy, values="state-action", discount=0.9, **options)


def test_the_interval_without_noise_contains_the_truth_if_a_pair_has_no_data():
    log = moves(np.random.default_rng(0))
    evaluation, truth = evaluated(log), true_value(log)
    value = evaluation.policy_value
    assert abs(value.estimate - truth) > 1e6 * value.standard_error  # rounding
    assert value.interval[0] <= truth <= value.interval[1]
    assert value.interval == pytest.approx((value.estimate + value.unseen[0], value.estimate + value.unseen[1]))
    assert f"longer by {-value.unseen[0]:.3g} below and {value.unseen[1]:.3g} above" in " ".join(evaluation.notes)
    assert evaluation.verdict.level == "caution"


def test_nothing_is_allowed_for_if_all_pairs_have_data():
    log = moves(np.random.default_rng(0), missing=False)
    value = evaluated(log).policy_value
    assert value.estimate == pytest.approx(true_value(log), rel=1e-9)
    assert value.unseen == (0, 0)
    assert "longer by" not in " ".join(evaluated(log).notes)


def test_intervals_at_all_levels_are_longer_by_the_same():
    value = PolicyValue(3.0, 0.5, (2.0, 4.0), 0.95, 10, effective_episodes=11.0).allowing_for((-0.3, 0.1))
    assert value.interval == (1.7, 4.1)
    half = stats.t.ppf(0.95, 10) * 0.5
    assert value.interval_at(0.9) == pytest.approx((3 - half - 0.3, 3 + half + 0.1))
    assert value.interval_at(0.95, "lower") == pytest.approx((3 - half - 0.3, np.inf))
    assert value.interval_at(0.95, "upper") == pytest.approx((-np.inf, 3 + half + 0.1))
    unknown = PolicyValue(3.0, None, None, 0.95, 10)
    assert unknown.allowing_for((-0.3, 0.1)) is unknown


def test_saved_evaluations_have_the_same_interval(tmp_path):
    here = evaluated(moves(np.random.default_rng(1), noise=0.1))
    assert here.policy_value.unseen[0] < 0
    path = here.save(tmp_path / "evaluation.npz")
    assert vf.Evaluation.load(path).policy_value == here.policy_value


def test_values_of_states_have_intervals_that_allow_for_them():
    log = moves(np.random.default_rng(0))
    evaluation, truth = evaluated(log), (POLICY * true_pairs()).sum(axis=1)
    found = evaluation.value_interval([0, 1])
    assert ((found[:, 0] <= truth[:2]) & (truth[:2] <= found[:, 1])).all()
    assert found[0] == pytest.approx(evaluation.policy_value.interval)  # all episodes start in state 0
    assert np.isinf(evaluation.value_interval([2])).all()
    complete = evaluated(moves(np.random.default_rng(0), missing=False))
    assert np.ptp(complete.value_interval([0, 1]), axis=1).max() < 1e-9


def test_with_a_ridge_the_value_of_a_pair_without_data_is_not_0():
    evaluation = evaluated(moves(np.random.default_rng(0)), ridge=1e-6)
    low, high = evaluation.value_interval([2], actions=[1])[0]
    assert evaluation.value([2], [1]) == 0
    assert low <= true_pairs()[2, 1] <= high


def test_they_are_allowed_for_where_the_adjoint_is_iterated(monkeypatch):
    log = moves(np.random.default_rng(1), noise=0.1)
    expected = evaluated(log).policy_value
    monkeypatch.setattr(adjoints, "ALWAYS_DIRECT_FEATURES", 0)
    monkeypatch.setattr(adjoints, "MAX_DIRECT_PASSES", 0)
    found = evaluated(log, solver="krylov", tol=1e-14)
    assert found.policy_value.method == "cr1"
    assert found.policy_value.unseen == pytest.approx(expected.unseen, rel=1e-6)


def test_the_difference_of_two_policies_without_noise_contains_the_truth():
    log = moves(np.random.default_rng(0))
    found = vf.compare(evaluated(log), evaluated(log, OTHER))
    truth = true_value(log) - true_value(log, OTHER)
    assert abs(found.estimate - truth) > 1e6 * found.standard_error
    assert found.interval[0] <= truth <= found.interval[1]
    assert (found.interval[0] <= 0 <= found.interval[1]) == (found.p_value == 1)
    assert "a target policy leads to states and actions that no logged step has" in found.notes[0]
    assert "The standard error is 0 up to rounding" in found.notes[1]
    assert repr(found).endswith("; see notes)")


def test_a_difference_without_noise_says_so():
    log = moves(np.random.default_rng(0), missing=False)
    compared = vf.compare([evaluated(log), evaluated(log, OTHER)])
    (found,) = compared.pairs
    assert found.estimate == pytest.approx(true_value(log) - true_value(log, OTHER))
    assert found.p_value == 0
    assert len(found.notes) == 1
    assert "The standard error is 0 up to rounding" in " ".join(compared.summary().split())
