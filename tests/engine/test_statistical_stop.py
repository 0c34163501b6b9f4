"""tol="statistical" with numbers to report: solvers go on until they are near enough, or say that they are not."""

import json
from dataclasses import replace

import numpy as np
import pytest

import valuefit as vf
from helpers.small_mdp import SmallMDP
from valuefit.datasets.ar1 import ar1_log, fourier_features
from valuefit.engine.stopping import FINEST_GAP, MAX_CHECKS
from valuefit.evaluation.policy_value import Reported, Starts
from valuefit.evaluation.sandwich import Sandwich

FEATURES = fourier_features(40, spread=1.5)


def episodes(n=2000, **columns):
    log = ar1_log(n, seed=0)
    return replace(log, episode=np.arange(n) // 50, **columns)


SETTINGS = {
    "plain": {},
    "trace": {"trace": 0.8},
    "ridge": {"ridge": 0.1},
    "ratios": {"ratio": np.exp(np.random.default_rng(1).standard_normal(2000) - 0.5)},
}


@pytest.mark.parametrize("solver", ["svrg", "saga"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_evaluate_stops_where_the_value_is_within_a_tenth_of_its_standard_error(setting, solver):
    given = dict(SETTINGS[setting])
    log = episodes(**{name: given.pop(name) for name in ("ratio",) if name in given})
    early = vf.evaluate(log, features=FEATURES, discount=0.95, solver=solver, **given)
    value = early.policy_value
    wanted = vf.evaluate(log, features=FEATURES, discount=0.95, solver="lstd", **given).policy_value
    assert early.result.status == "converged"
    assert early.result.gap > FINEST_GAP
    assert "What is reported is within a tenth of its standard error" in early.result.message
    assert value.solver_error == pytest.approx(abs(value.estimate - wanted.estimate), rel=1e-5)
    assert 0 < value.solver_error <= 0.1 * value.standard_error
    assert wanted.solver_error <= 1e-12
    assert not any("stopped early" in warning for warning in early.warnings)
    low, high = value.interval
    assert low < wanted.estimate < high


def test_weights_that_are_listed_are_near_enough_too():
    mdp = SmallMDP(features=4)
    early = vf.evaluate(mdp.log(6, seed=3), features=mdp.rows, discount=0.9, solver="svrg")
    best = vf.evaluate(mdp.log(6, seed=3), features=mdp.rows, discount=0.9, solver="lstd").weights
    assert early.result.gap > FINEST_GAP
    for weight, exact in zip(early.weights, best, strict=True):
        assert weight["solver_error"] == pytest.approx(abs(weight["estimate"] - exact["estimate"]), rel=1e-6)
        assert weight["solver_error"] <= 0.1 * weight["standard_error"]


# ---- going on --------------------------------------------------------------------------------------------------


def problem_of_a_short_log():
    return vf.Problem(episodes(), FEATURES, discount=0.95)


@pytest.mark.parametrize("solver", ["svrg", "pdbg"])
def test_what_is_not_near_enough_is_solved_further(solver):
    problem, looks = problem_of_a_short_log(), []
    best = vf.solve(problem, "lstd").theta

    def reported(theta):
        looks.append(float(np.linalg.norm(theta - best)))
        return (3.0 if len(looks) == 1 else 0.5), 1.0

    found = vf.solve(problem, solver, tol="statistical", reported=reported)
    assert found.status == "converged"
    assert len(looks) <= 2
    assert found.gap <= FINEST_GAP or (len(looks) == 2 and looks[1] < looks[0])
    assert found.gap < vf.solve(problem, solver, tol="statistical", reported=lambda theta: (0.5, 1.0)).gap
    assert (np.diff(found.history["passes"]) > 0).all()  # one run, never started anew


@pytest.mark.parametrize("solver", ["svrg", "saga", "pdbg"])
def test_what_never_is_near_enough_ends_where_1e_6_would(solver):
    problem, spent = problem_of_a_short_log(), []

    def reported(theta):
        spent.append(1.0)
        return np.inf, 1.0

    found = vf.solve(problem, solver, tol="statistical", reported=reported)
    full = vf.solve(problem, solver, tol=1e-6)
    assert found.status == full.status == "converged"
    assert found.gap <= FINEST_GAP
    assert len(spent) == 1  # after an infinite error only the finest gap is left
    assert "What is reported" not in found.message
    assert vf.solve(problem, solver, tol=1e-6, reported=reported).passes == full.passes
    assert len(spent) == 1  # numbers are looked at for tol="statistical" only


def test_a_look_counts():
    problem = problem_of_a_short_log()
    cheap, dear = (
        vf.solve(problem, "svrg", tol="statistical", reported=lambda theta, cost=cost: (0.0, cost)).passes
        for cost in (0.0, 7.0)
    )
    assert dear == pytest.approx(cheap + 7)


@pytest.mark.parametrize("solver", ["svrg", "saga", "pdbg"])
def test_looks_that_fail_are_few(solver):
    """Nearly near enough, again and again: the passes that this costs are bounded."""
    problem, looks = problem_of_a_short_log(), []

    def reported(theta):
        looks.append(1.0)
        return 1.01, 1.0

    found, full = (vf.solve(problem, solver, tol=tol, reported=reported) for tol in ("statistical", 1e-6))
    assert 1 <= len(looks) <= MAX_CHECKS
    assert found.passes == pytest.approx(full.passes + len(looks))


def test_a_fast_method_is_not_held_up_by_looks():
    """krylov gains a digit a pass: by the time that a look could tell, the gap is 1e-6."""
    problem = problem_of_a_short_log()
    early, full = (
        vf.solve(problem, "krylov", tol=tol, reported=lambda theta: (2.0, 1.0)).passes for tol in ("statistical", 1e-6)
    )
    assert early == full


def test_standard_errors_of_an_earlier_look_save_another_one():
    log = episodes()
    problem = vf.Problem(log, FEATURES, discount=0.95)
    best = vf.solve(problem, "lstd").theta
    sandwich = Sandwich(problem, np.zeros(problem.d), log.episode)
    rows = FEATURES(log.observations[:5])
    reported = Reported(sandwich, Starts(rows, rows.mean(axis=0), None))
    everywhere = np.linalg.lstsq(problem.phi.matrix, np.ones(len(problem.phi.matrix)))[0]  # values off by as much
    far, cost = reported(best + everywhere)
    assert far > 1.5
    assert cost > 0
    nearer, nothing = reported(best + 0.9 * everywhere)
    assert nearer == pytest.approx(0.9 * far, rel=1e-6)  # against the same standard error
    assert nothing == 0
    assert reported(best) == (pytest.approx(0, abs=1e-6), cost)


@pytest.mark.parametrize("trace", [0.0, 0.8])
@pytest.mark.parametrize("ridge", [0.0, 0.1])
@pytest.mark.parametrize("solver", ["svrg", "saga", "pdbg", "krylov", "auto"])
def test_at_most_three_passes_later_than_1e_6(solver, ridge, trace):
    """Logs of all lengths; a look or a measurement that failed is all that may come on top."""
    for n in (300, 1000, 4000):
        given = {"features": FEATURES, "discount": 0.95, "solver": solver, "ridge": ridge, "trace": trace}
        early, full = (vf.evaluate(episodes(n), tol=tol, **given).result for tol in ("statistical", 1e-6))
        assert early.status == full.status
        assert early.passes <= full.passes + 3


def test_an_exact_solver_is_not_asked():
    def never(theta):
        raise AssertionError

    problem = problem_of_a_short_log()
    assert vf.solve(problem, "lstd", tol="statistical", reported=never).status == "converged"
    assert vf.solve(problem, "lstd", tol="statistical").passes == vf.solve(problem, "lstd", tol=1e-6).passes


@pytest.mark.parametrize("solver", ["svrg", "saga", "krylov", "auto"])
def test_a_long_log_takes_the_very_same_passes_as_1e_6(solver):
    problem = vf.Problem(episodes(30_000), fourier_features(15, spread=1.5), discount=0.95)
    early, full = (vf.solve(problem, solver, tol=tol) for tol in ("statistical", 1e-6))
    assert early.passes == full.passes
    np.testing.assert_array_equal(early.theta, full.theta)


# ---- when it cannot be reached ---------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["gtd2", "svrg"])
def test_a_value_that_may_still_move_is_told_and_its_interval_wider(solver, tmp_path):
    found = vf.evaluate(episodes(), features=FEATURES, discount=0.95, solver=solver, max_passes=2)
    value = found.policy_value
    exact = vf.evaluate(episodes(), features=FEATURES, discount=0.95).policy_value.estimate
    assert value.solver_error == pytest.approx(abs(value.estimate - exact))
    assert value.solver_error > 0.1 * value.standard_error
    text = f"at full convergence the policy value would change by {value.solver_error:.2g}"
    assert any(text in warning for warning in found.warnings)
    assert "at full convergence" in " ".join(found.summary().split())
    low, high = value.interval
    assert low <= exact <= high
    assert (high - low) / 2 > 1.96 * value.standard_error + value.solver_error
    assert json.loads(json.dumps(found.to_dict()))["policy_value"]["solver_error"] == value.solver_error
    path = found.save(tmp_path / "found.npz")
    assert vf.Evaluation.load(path, features=FEATURES).policy_value == value


def test_a_planted_fault_would_hide_it(monkeypatch):
    monkeypatch.setattr(Sandwich, "_saddle_residual", (np.zeros(40), np.zeros(40)))
    found = vf.evaluate(episodes(), features=FEATURES, discount=0.95, solver="gtd2", max_passes=2)
    assert not any("at full convergence" in warning for warning in found.warnings)


def test_where_no_standard_error_is_known_the_finest_gap_is_asked_for():
    log = vf.Transitions.from_arrays(
        np.random.default_rng(0).normal(size=(20, 2)), np.ones(20), terminated=np.arange(20) == 19
    )
    found = vf.evaluate(log, features="identity", solver="svrg")
    assert found.policy_value.solver_error is None
    assert found.result.gap <= FINEST_GAP
