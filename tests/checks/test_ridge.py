"""What the ridge does to the reported value: measured, never silent, and what tests and cross-checks do with it."""

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

import valuefit as vf
from helpers.cartpole import CARTPOLE, SETTINGS, cartpole_log, covers
from helpers.fits import fit_of
from helpers.problems import wide_log
from helpers.small_mdp import SmallMDP
from helpers.streamed import in_shards
from valuefit.checks.ridge import ridge_change
from valuefit.inference import adjoints
from valuefit.inference.policy_value import PolicyValue

ROUTES = {"state": {**SETTINGS, "features": "kernel:landmarks=150"},
          "state-action": {**SETTINGS, "features": "kernel:landmarks=80", "values": "state-action"}}  # fmt: skip
FOURIER = {"features": "fourier:order=2", "discount": 0.9}


def checks_of(log, **settings):
    return {check.name: check for check in vf.evaluate(log, **settings).checks}


@pytest.mark.parametrize("route", ROUTES)
def test_a_ridge_that_shrinks_the_value_is_not_used_and_its_advice_leads_to_the_true_value(route):
    found = vf.evaluate(cartpole_log(), ridge=1e-4, **ROUTES[route])
    check = next(check for check in found.checks if check.name == "ridge")
    assert found.policy_value.interval[1] < CARTPOLE.truth / 2
    assert (found.verdict.level, check.outcome) == ("do not use", "fail")
    assert "Evaluate with `ridge=0`" in check.message
    followed = vf.evaluate(cartpole_log(), ridge=0, **ROUTES[route])
    assert covers(followed)
    assert "ridge" not in {check.name for check in followed.checks}
    assert check.statistic == pytest.approx(followed.policy_value.estimate - found.policy_value.estimate, rel=1e-4)


@pytest.mark.parametrize("solver", ["auto", "krylov"])
@pytest.mark.parametrize("route", ROUTES)
def test_it_is_not_used_in_shards(route, solver, tmp_path):
    sharded = in_shards(cartpole_log(), tmp_path, "native", steps=2000)
    found = vf.evaluate(sharded, ridge=1e-4, solver=solver, **ROUTES[route])
    expected = checks_of(cartpole_log(), ridge=1e-4, solver="lstd", **ROUTES[route])["ridge"]
    check = next(check for check in found.checks if check.name == "ridge")
    assert found.verdict.level == "do not use"
    assert check.statistic == pytest.approx(expected.statistic, rel=1e-3)


def test_the_change_in_shards_is_computed_by_iteration_where_moments_are_too_expensive(tmp_path, monkeypatch):
    expected = checks_of(wide_log(), ridge=0.01, solver="lstd", **FOURIER)["ridge"]
    monkeypatch.setattr(adjoints.AdjointSolver, "forms_moments", False)
    sharded = in_shards(wide_log(), tmp_path, "native", steps=100)
    found = checks_of(sharded, ridge=0.01, solver="krylov", tol=1e-12, **FOURIER)["ridge"]
    assert found.statistic == pytest.approx(expected.statistic, rel=1e-3)


def squares(x):
    return np.column_stack([np.ones(len(x)), x, x**2])


def test_the_change_in_shards_is_that_of_all_steps_not_of_the_sample(tmp_path):
    settings = {**SETTINGS, "features": squares, "ridge": 1e-2}
    found = vf.evaluate(in_shards(cartpole_log(), tmp_path, "native", limit=1 << 20), **settings)
    assert found.sampled
    check = next(check for check in found.checks if check.name == "ridge")
    assert check.statistic == pytest.approx(checks_of(cartpole_log(), **settings)["ridge"].statistic, rel=1e-6)
    assert check.statistic != pytest.approx(checks_of(found.log, **settings)["ridge"].statistic, rel=1e-2)


@pytest.mark.parametrize("route", ROUTES)
def test_a_negligible_ridge_passes_and_changes_no_other_check(route):
    found, plain = (checks_of(cartpole_log(), ridge=ridge, **ROUTES[route]) for ridge in (1e-12, 0.0))
    assert found.pop("ridge").outcome == "pass"
    assert {name: check.outcome for name, check in found.items()} == {
        name: check.outcome for name, check in plain.items()
    }


@pytest.mark.parametrize(
    ("change", "outcome"), [(0.49, "pass"), (-0.51, "warn"), (1.9, "warn"), (-2.1, "fail"), (1e-12, "pass")]
)
def test_more_than_half_a_standard_error_warns_and_more_than_two_fail(change, outcome):
    value = PolicyValue(5.0, 1.0, (3.0, 7.0), 0.95, 10)
    found = ridge_change(0.1, Mock(to_minimum=lambda c: change), value, np.ones(2))
    assert found.outcome == outcome
    assert found.size == pytest.approx(abs(change), abs=1e-9)
    assert ("ridge=0" in found.message) == (outcome != "pass")


def test_without_a_standard_error_or_without_noise_a_change_is_not_silent():
    function, changed = np.ones(2), Mock(to_minimum=lambda c: 0.5)
    unknown = ridge_change(0.1, changed, PolicyValue(5.0, None, None, 0.95, 10), function)
    exact = ridge_change(0.1, changed, PolicyValue(5.0, 0.0, (5.0, 5.0), 0.95, 10), function)
    assert unknown.outcome == "warn"
    assert "no standard error" in unknown.message
    assert exact.outcome == "fail"


@pytest.mark.parametrize("trace", [0.0, 0.5])
@pytest.mark.parametrize("iterative", [False, True])
def test_the_change_is_that_to_the_solution_without_the_ridge(iterative, trace, monkeypatch):
    expected = vf.evaluate(wide_log(), trace=trace, solver="lstd", **FOURIER).policy_value.estimate
    if iterative:
        monkeypatch.setattr(adjoints.AdjointSolver, "forms_moments", False)
    found = vf.evaluate(wide_log(), ridge=0.01, trace=trace, solver="krylov", tol=1e-12, **FOURIER)
    check = next(check for check in found.checks if check.name == "ridge")
    assert found.policy_value.estimate + check.statistic == pytest.approx(expected, rel=1e-5)
    assert any("Cross-checks were left out" in note for note in found.notes) == iterative


def test_a_change_that_cannot_be_computed_warns(monkeypatch):
    monkeypatch.setattr(adjoints.AdjointSolver, "forms_moments", False)
    monkeypatch.setattr(adjoints, "gmres", lambda problem, c, start: np.zeros(problem.d))
    check = checks_of(wide_log(), ridge=0.01, solver="krylov", **FOURIER)["ridge"]
    assert check.outcome == "warn"
    assert "is not known, because the equations without it were not solved" in check.message


def test_a_value_that_the_ridge_alone_decides_is_not_used_and_its_advice_gives_one():
    """State 2 has no step, so its value without a ridge is not determined."""
    state = np.arange(40) % 2
    log = vf.Transitions.from_arrays(
        state, np.ones(40), next_observation=2 * state, truncated=state == 1, episode=np.arange(40) // 2
    )
    settings = {"features": "one-hot", "discount": 0.9}
    found = vf.evaluate(log, ridge=0.01, starts=np.array([2]), **settings)
    check = next(check for check in found.checks if check.name == "ridge")
    assert (found.verdict.level, check.outcome) == ("do not use", "fail")
    assert "If you gave starts, give some that the log has visited." in check.message
    visited = vf.evaluate(log, starts=np.array([0]), **settings)
    assert visited.policy_value.estimate == pytest.approx(10)


def test_a_ridge_that_hides_the_uncertainty_warns_although_the_value_hardly_moves():
    """All values shrink to 0, which is the policy value here."""
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(600, 1)), rng.normal(size=600)
    last = np.arange(600) % 10 == 9
    flat, ones = (vf.Transitions.from_arrays(x, reward, terminated=last) for reward in (noise, np.ones(600)))
    shift = np.divide(*(vf.evaluate(log, **FOURIER).policy_value.estimate for log in (flat, ones)))
    log = replace(flat, reward=noise - shift)
    found, plain = (vf.evaluate(log, ridge=ridge, **FOURIER).policy_value for ridge in (1.0, 0.0))
    check, weak = (checks_of(log, ridge=ridge, **FOURIER)["ridge"] for ridge in (1.0, 1e-3))
    assert (check.outcome, weak.outcome) == ("warn", "pass")
    assert check.size < 0.5
    assert found.standard_error < 0.1 * plain.standard_error
    assert f"the ridge hides {1 - found.standard_error / plain.standard_error:.0%} of the uncertainty" in check.message
    low, high = plain.interval  # as the message says: without the ridge
    assert low < 0 < high


def test_tests_and_cross_checks_are_those_without_the_ridge_and_say_so():
    mdp = SmallMDP(off_policy=True)
    log, settings = mdp.log(100, propensities=True), {"policy": mdp.policy, "discount": 0.9}
    found, plain = (vf.evaluate(log, ridge=ridge, solver="lstd", checks="all", **settings) for ridge in (0.05, 0.0))
    tests, expected = ({c.name: c for c in e.checks if c.p_value is not None} for e in (found, plain))
    assert tests.keys() == expected.keys() >= {"returns", "observations are Markov", "trace 0.5"}
    for name, test in tests.items():
        assert test.statistic == pytest.approx(expected[name].statistic, rel=1e-5, abs=1e-8), name
        assert test.p_value == expected[name].p_value or name.startswith("trace"), name
        assert ("without the ridge" in test.message) == (not name.startswith("trace")), name
    assert len(found.cross_checks) == len(plain.cross_checks) > 2
    for one, other in zip(found.cross_checks, plain.cross_checks, strict=True):
        assert one.estimate == pytest.approx(other.estimate, rel=1e-6)
        assert "without the ridge" in one.note
    assert plain.verdict.level == "sound"
    assert found.policy_value.estimate < 0.8 * plain.policy_value.estimate
    assert any(entry.agrees is False for entry in found.cross_checks)


@pytest.mark.parametrize("ridge", [0.0, 0.1])
@pytest.mark.parametrize("settings", [{}, {"trace": 0.5}, {"values": "state-action"}], ids=str)
def test_values_are_affine_in_the_rewards(settings, ridge):
    mdp = SmallMDP(off_policy=True)
    log = mdp.log(40, propensities=True)

    def value(rewards):
        found = vf.evaluate(
            replace(log, reward=rewards), policy=mdp.policy, discount=0.9, ridge=ridge, solver="lstd", **settings
        )
        return found.policy_value.estimate

    for constant in (1e3, -1e6):
        expected = value(log.reward) + constant * value(np.ones(len(log)))
        assert value(log.reward + constant) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("ridge", [0.0, 1e-12])
def test_no_check_changes_its_mind_when_a_constant_is_added_to_all_rewards(ridge):
    """In a log that goes on, with features that contain a constant, which only a negligible ridge does not shrink."""
    rng = np.random.default_rng(0)
    x = np.cumsum(rng.normal(size=(60, 41)), axis=1) * 0.2
    log = vf.Transitions.from_arrays(
        x[:, :-1].reshape(-1, 1), np.sin(x[:, :-1]).ravel() + rng.normal(size=2400), episode=np.arange(2400) // 40,
        next_observation=x[:, 1:].reshape(-1, 1), truncated=np.arange(2400) % 40 == 39,
    )  # fmt: skip

    def outcomes(constant):
        moved = replace(log, reward=log.reward + constant)
        return {name: check.outcome for name, check in checks_of(moved, ridge=ridge, **FOURIER).items()}

    assert outcomes(0.0) == outcomes(100.0) == outcomes(-100.0)


def test_select_rejects_a_ridge_that_its_check_rejects():
    mdp = SmallMDP()
    candidates = [{"features": "one-hot", "ridge": ridge} for ridge in (10.0, 0.0)]
    found = vf.select(mdp.log(60), candidates, discount=0.9)
    assert [evaluation.ridge for evaluation in found.evaluations] == [0.0, 0.0]
    alone = vf.select(mdp.log(60), candidates[:1], discount=0.9)
    assert alone.verdict.level == "do not use"
    assert "Without the ridge of 10 the policy value would be" in " ".join(alone.verdict.reasons)


def test_a_fit_without_a_ridge_shares_its_errors():
    fit = fit_of(wide_log(), **FOURIER)
    assert fit.without_ridge is fit.errors
