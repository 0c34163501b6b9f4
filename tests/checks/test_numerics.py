"""Checks of the solver, the standard error, conditioning and the stability of the fixed point."""

from unittest.mock import Mock, patch

import numpy as np
import pytest

import valuefit as vf
from helpers.problems import wide_log
from helpers.small_mdp import SmallMDP
from valuefit.checks.numerics import small_sample_bias
from valuefit.inference import adjoints
from valuefit.inference.error_estimate import ErrorEstimate
from valuefit.inference.policy_value import with_errors
from valuefit.problem.problem import Problem
from valuefit.rows import compile


def checks_of(log, **settings):
    return {check.name: check for check in vf.evaluate(log, **settings).checks}


def smallest_singular_value(problem):
    values, vectors = np.linalg.eigh(problem.C)
    root = vectors / np.sqrt(values)
    return np.linalg.svd(root.T @ problem.A @ root, compute_uv=False)[-1]


@pytest.mark.parametrize("trace", [0.0, 0.5])
@pytest.mark.parametrize("off_policy", [False, True])
def test_stability_is_the_smallest_singular_value(off_policy, trace):
    mdp = SmallMDP(off_policy=off_policy)
    evaluation = vf.evaluate(mdp.log(100), discount=0.9, trace=trace)
    found = next(check for check in evaluation.checks if check.name == "fixed point is stable")
    assert found.statistic == pytest.approx(smallest_singular_value(evaluation.problem), rel=1e-6)
    assert found.outcome == "pass"


@pytest.mark.parametrize("off_policy", [False, True])
def test_a_sketch_of_C_gives_nearly_the_same(off_policy):
    """With two sums for each feature: the rank, a condition number within a factor of 5, the stability within 10%."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 3))
    x[1:] += 0.8 * x[:-1]
    ratio = rng.choice([0.5, 1.5], 3000) if off_policy else None
    log = vf.Transitions.from_arrays(x, x[:, 0], terminated=np.arange(3000) % 30 == 29, ratio=ratio)
    settings = {"features": "fourier:order=3", "discount": 0.9, "solver": "lstd"}
    exact = checks_of(log, **settings)
    with (
        patch.object(compile, "MIN_COMPILED_NUMBERS", 0),
        patch.object(Problem, "sketched_moments", autospec=True, side_effect=Problem.sketched_moments) as sketched,
    ):
        found = checks_of(log, **settings)
    assert sketched.call_count == 1
    assert found["conditioning"].message.split(",")[0] == exact["conditioning"].message.split(",")[0]
    assert 0.5 < found["conditioning"].statistic / exact["conditioning"].statistic < 5
    name = "fixed point is stable"
    assert 1 - 1e-3 < found[name].statistic / exact[name].statistic < 1.1


def test_a_nearly_singular_fixed_point_is_unstable():
    """Two states with features 1 and x, as in Kolter's example: A changes its sign between two values of x."""
    discount, n = 0.99, 4000

    def smallest(x, share):
        state = (np.arange(n) % 100 < 100 * share).astype(int)  # 1: features x
        after = np.ones(n, int)
        reward = np.random.default_rng(0).normal(size=n)
        log = vf.Transitions.from_arrays(
            state, reward, truncated=np.ones(n), episode=np.arange(n), next_observation=after
        )
        return checks_of(log, features=lambda s: np.where(s == 0, 1.0, x)[:, None], discount=discount)[
            "fixed point is stable"
        ]  # fmt: skip

    # A = (1 - share) (1 - discount x) + share x^2 (1 - discount) is 0 near x = 1 / discount for a small share
    root = max(np.roots([0.02 * (1 - discount), -0.98 * discount, 0.98]).real)
    stable, unstable = smallest(0.5, 0.5), smallest(1 / discount + 0.0002, 0.02)
    assert root > 1
    assert stable.outcome == "pass"
    assert unstable.outcome == "warn"
    assert unstable.statistic < 0.1 * (1 - discount)
    assert "Use other features, or a log whose policy is closer to the target policy." in unstable.message


def test_without_features_that_depend_on_others_weights_are_unique():
    log = wide_log()
    x = log.observations
    settings = {"discount": 0.9, "solver": "lstd"}
    dependent = vf.evaluate(log, features=lambda x: np.column_stack([np.ones(len(x)), x, 2 * x[:, :1]]), **settings)
    found = next(check for check in dependent.checks if check.name == "conditioning")
    assert found.outcome == "warn"
    assert "Leave out features that depend on others." in found.message
    assert next(check for check in dependent.checks if check.name == "value is determined").outcome == "pass"
    fewer = vf.evaluate(log, features=lambda x: np.column_stack([np.ones(len(x)), x]), **settings)
    assert next(check for check in fewer.checks if check.name == "conditioning").outcome == "pass"
    np.testing.assert_allclose(fewer.value(x), dependent.value(x), rtol=1e-6, atol=1e-8)
    assert all(weight["interval"] for weight in fewer.weights)


def test_dependent_features_are_counted():
    found = checks_of(wide_log(), features=lambda x: np.column_stack([x, x.sum(axis=1)]), discount=0.9)["conditioning"]
    assert found.outcome == "warn"
    assert "C has rank 2 of 3 features" in found.message
    many = checks_of(wide_log(), features=lambda x: np.column_stack([x, *[x[:, :1] * k for k in range(2, 25)]]))
    assert many["conditioning"].outcome == "pass"  # single weights are not reported
    ridge = checks_of(wide_log(), features=lambda x: np.column_stack([x, x.sum(axis=1)]), ridge=0.01)
    assert ridge["conditioning"].outcome == "pass"


def test_the_condition_number_does_not_depend_on_units():
    plain, scaled = (checks_of(wide_log(), features=lambda x, u=u: x * [1.0, u])["conditioning"] for u in (1.0, 1e-6))
    assert plain.statistic == pytest.approx(scaled.statistic, rel=1e-6)


def test_the_optimisation_error_is_in_standard_errors():
    settings = {"features": "fourier", "solver": "gtd2", "max_passes": 2}
    value = vf.evaluate(wide_log(), **settings).policy_value
    found = checks_of(wide_log(), **settings)
    assert found["solver"].outcome == "warn"
    assert found["optimisation error"].outcome == "warn"
    assert found["optimisation error"].size == pytest.approx(value.solver_error / value.standard_error)


def test_a_solver_that_diverged_fails():
    found = checks_of(wide_log(), solver=vf.solvers.GTD2(step_theta=1e6, step_w=1e6))
    assert found["solver"].outcome in ("fail", "warn")


def few_steps_for_each_state(states, seed=0, steps=1200):
    """Steps with ratios, in which every state and action is drawn anew; the policy is right with 0.9, not 0.5."""
    rng = np.random.default_rng(seed)
    n, good = steps, rng.integers(2, size=states)
    state, action = rng.integers(states, size=n), rng.integers(2, size=n)
    right, ends = action == good[state], rng.random(n) < 0.05
    ends[-1] = True
    return vf.Transitions.from_arrays(
        state, right + 0.1 * rng.normal(size=n), terminated=ends, action=action, behaviour_prob=np.full(n, 0.5),
        target_prob=np.where(right, 0.9, 0.1), episode=np.cumsum(np.append(0, ends[:-1])),
    )  # fmt: skip


def evaluate_table(states, seed=0):
    return vf.evaluate(few_steps_for_each_state(states, seed), discount=0.9, features="one-hot")


def test_the_interval_allows_for_the_bias_of_few_steps_for_each_state(tmp_path):
    """A state that is seen once has the value of the logged policy, 3.45; that of the target policy is 6.21."""
    evaluation = evaluate_table(150)
    (found,) = (check for check in evaluation.checks if check.name == "small-sample bias")
    value = evaluation.policy_value
    assert (found.outcome, found.statistic) == ("pass", value.bias)
    assert value.bias < -0.5 * value.standard_error
    low, high = value.interval
    assert high - value.estimate == pytest.approx(value.estimate - low - value.bias)
    assert value.interval_at(0.95) == value.interval
    assert value.interval_at(0.95, "upper")[1] > value.estimate - value.bias
    note = f"The interval is longer by {-value.bias:.3g} on one side"
    assert any(note in entry for entry in evaluation.notes)
    assert note in evaluation.report(tmp_path / "report.html").read_text()
    plain = evaluate_table(20).policy_value
    assert plain.bias == 0
    assert plain.interval[1] - plain.estimate == pytest.approx(plain.estimate - plain.interval[0])


def test_a_longer_log_has_enough_steps_for_each_state():
    settings = {"discount": 0.9, "features": "one-hot"}
    few, longer = (vf.evaluate(few_steps_for_each_state(300, steps=steps), **settings) for steps in (1200, 12_000))
    checks = [{check.name: check for check in found.checks}["small-sample bias"] for found in (few, longer)]
    assert [check.outcome for check in checks] == ["warn", "pass"]
    assert checks[0].message.endswith("Use a longer log.")
    low, high = longer.policy_value.interval
    assert low < 0.9 / (1 - 0.9 * 0.95) < high


def test_lstd_gives_the_standard_error_that_iterations_do_not(monkeypatch):
    log = SmallMDP().log(100)
    settings = {"features": SmallMDP().rows, "discount": 0.9}
    expected = vf.evaluate(log, solver="lstd", **settings).policy_value.standard_error
    monkeypatch.setattr(adjoints, "ALWAYS_DIRECT_FEATURES", 0)
    monkeypatch.setattr(adjoints, "MAX_DIRECT_PASSES", 0)
    monkeypatch.setattr(adjoints, "ITERATIVE_RESIDUAL_TOL", 0.0)
    check = checks_of(log, solver="gtd2", max_passes=2, **settings)["standard error"]
    assert "Solve with 'lstd'" in check.message
    assert vf.evaluate(log, solver="lstd", **settings).policy_value.standard_error == pytest.approx(expected)


def test_the_estimate_without_the_bias_is_closer_to_the_truth():
    values = [evaluate_table(300, seed).policy_value for seed in range(12)]
    errors = np.array([(value.estimate, value.estimate - value.bias) for value in values]) - 0.9 / (1 - 0.9 * 0.95)
    plain, corrected = np.abs(errors.mean(axis=0))
    assert corrected < 0.5 * plain


@pytest.mark.parametrize(("bias", "outcome"), [(0.4, "pass"), (-1.5, "pass"), (2.5, "warn")])
def test_a_bias_of_more_than_two_standard_errors_warns(bias, outcome):
    error = ErrorEstimate(1.0, 40.0, bias=bias)
    value = with_errors(5.0, 3, error, 0.95, None, "cr3")
    found = small_sample_bias(Mock(theta=np.ones(1), dead=()), value, error)
    assert (found.outcome, found.size) == (outcome, abs(bias))
    assert ("The interval allows for both" in found.message) == (abs(bias) > 0.5)


@pytest.mark.parametrize(("steps", "outcome"), [(None, "pass"), (20.0, "pass"), (11.0, "warn")])
def test_fewer_than_three_effective_steps_for_each_live_feature_warn(steps, outcome):
    """Of five features, one without data; None: without ratios."""
    error = ErrorEstimate(1.0, 40.0, bias=0.1)
    value = with_errors(5.0, 3, error, 0.95, steps, "cr3")
    found = small_sample_bias(Mock(theta=np.ones(5), dead=(2,)), value, error)
    assert found.outcome == outcome
    assert ("worth 11 steps for 4 features" in found.message) == (outcome == "warn")
