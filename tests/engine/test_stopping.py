"""tol="statistical" with reported numbers: solvers stop once their error is negligible, or a warning says it is not."""

import json
from dataclasses import replace

import numpy as np
import pytest

import valuefit as vf
from helpers.small_mdp import SmallMDP
from valuefit.datasets.ar1 import ar1_log, fourier_features
from valuefit.engine.stopping import FINEST_GAP, MAX_CHECKS
from valuefit.inference.adjoints import AdjointSolver, Equations
from valuefit.inference.error_estimate import LinearFunction
from valuefit.inference.policy_value import Reported
from valuefit.inference.shards import Shard

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


def test_listed_weights_have_a_negligible_solver_error():
    mdp = SmallMDP(features=4)
    early = vf.evaluate(mdp.log(6, seed=3), features=mdp.rows, discount=0.9, solver="svrg")
    best = vf.evaluate(mdp.log(6, seed=3), features=mdp.rows, discount=0.9, solver="lstd").weights
    assert early.result.gap > FINEST_GAP
    for weight, exact in zip(early.weights, best, strict=True):
        assert weight["solver_error"] == pytest.approx(abs(weight["estimate"] - exact["estimate"]), rel=1e-6)
        assert weight["solver_error"] <= 0.1 * weight["standard_error"]


# ---- repeated checks -------------------------------------------------------------------------------------------


def problem_of_a_short_log():
    return vf.Problem(episodes(), FEATURES, discount=0.95)


@pytest.mark.parametrize("solver", ["svrg", "pdbg"])
def test_a_failed_check_continues_the_solve(solver):
    problem, errors = problem_of_a_short_log(), []
    best = vf.solve(problem, "lstd").theta

    def reported(theta):
        errors.append(float(np.linalg.norm(theta - best)))
        return (3.0 if len(errors) == 1 else 0.5), 1.0

    found = vf.solve(problem, solver, tol="statistical", reported=reported)
    assert found.status == "converged"
    assert len(errors) <= 2
    assert found.gap <= FINEST_GAP or (len(errors) == 2 and errors[1] < errors[0])
    assert found.gap < vf.solve(problem, solver, tol="statistical", reported=lambda theta: (0.5, 1.0)).gap
    assert (np.diff(found.history["passes"]) > 0).all()  # one run, never restarted


@pytest.mark.parametrize("solver", ["svrg", "saga", "pdbg"])
def test_an_infinite_error_continues_to_1e_6(solver):
    problem, checks = problem_of_a_short_log(), []

    def reported(theta):
        checks.append(1.0)
        return np.inf, 1.0

    found = vf.solve(problem, solver, tol="statistical", reported=reported)
    full = vf.solve(problem, solver, tol=1e-6)
    assert found.status == full.status == "converged"
    assert found.gap <= FINEST_GAP
    assert len(checks) == 1  # after an infinite error the finest gap is asked for
    assert "What is reported" not in found.message
    assert vf.solve(problem, solver, tol=1e-6, reported=reported).passes == full.passes
    assert len(checks) == 1  # only tol="statistical" checks the numbers


def test_the_passes_of_a_check_count():
    problem = problem_of_a_short_log()
    free, expensive = (
        vf.solve(problem, "svrg", tol="statistical", reported=lambda theta, cost=cost: (0.0, cost)).passes
        for cost in (0.0, 7.0)
    )
    assert expensive == pytest.approx(free + 7)


@pytest.mark.parametrize("solver", ["svrg", "saga", "pdbg"])
def test_the_number_of_failed_checks_is_bounded(solver):
    """The error stays just above the limit at every check."""
    problem, checks = problem_of_a_short_log(), []

    def reported(theta):
        checks.append(1.0)
        return 1.01, 1.0

    found, full = (vf.solve(problem, solver, tol=tol, reported=reported) for tol in ("statistical", 1e-6))
    assert 1 <= len(checks) <= MAX_CHECKS
    assert found.passes == pytest.approx(full.passes + len(checks))


def test_a_fast_method_is_not_slowed_down_by_checks():
    """krylov gains a digit a pass, so reaching 1e-6 costs less than a check."""
    problem = problem_of_a_short_log()
    early, full = (
        vf.solve(problem, "krylov", tol=tol, reported=lambda theta: (2.0, 1.0)).passes for tol in ("statistical", 1e-6)
    )
    assert early == full


def test_standard_errors_of_an_earlier_check_are_reused():
    log = episodes()
    problem = vf.Problem(log, FEATURES, discount=0.95)
    best = vf.solve(problem, "lstd").theta
    rows = FEATURES(log.observations[:5])
    solver, shard = AdjointSolver(problem), Shard.of_log(problem, log.episode)
    reported = Reported(solver, shard, LinearFunction(rows.mean(axis=0), rows))
    shift = np.linalg.lstsq(problem.phi.matrix, np.ones(len(problem.phi.matrix)))[0]  # changes all values by about 1
    error, cost = reported(best + shift)
    assert error > 1.5
    assert cost > 0
    smaller_error, no_cost = reported(best + 0.9 * shift)
    assert smaller_error == pytest.approx(0.9 * error, rel=1e-6)  # relative to the same standard error
    assert no_cost == 0
    assert reported(best) == (pytest.approx(0, abs=1e-6), cost)


@pytest.mark.parametrize("trace", [0.0, 0.8])
@pytest.mark.parametrize("ridge", [0.0, 0.1])
@pytest.mark.parametrize("solver", ["svrg", "saga", "pdbg", "krylov", "auto"])
def test_at_most_three_passes_later_than_1e_6(solver, ridge, trace):
    """For logs of several lengths; only failed checks or measurements may cost more."""
    for n in (300, 1000, 4000):
        given = {"features": FEATURES, "discount": 0.95, "solver": solver, "ridge": ridge, "trace": trace}
        early, full = (vf.evaluate(episodes(n), tol=tol, **given).result for tol in ("statistical", 1e-6))
        assert early.status == full.status
        assert early.passes <= full.passes + 3


def test_an_exact_solver_is_not_checked():
    def never(theta):
        raise AssertionError

    problem = problem_of_a_short_log()
    assert vf.solve(problem, "lstd", tol="statistical", reported=never).status == "converged"
    assert vf.solve(problem, "lstd", tol="statistical").passes == vf.solve(problem, "lstd", tol=1e-6).passes


@pytest.mark.parametrize("solver", ["svrg", "saga", "krylov", "auto"])
def test_without_reported_numbers_the_gap_is_1e_6(solver):
    problem = vf.Problem(episodes(30_000), fourier_features(15, spread=1.5), discount=0.95)
    early, full = (vf.solve(problem, solver, tol=tol) for tol in ("statistical", 1e-6))
    assert early.passes == full.passes
    np.testing.assert_array_equal(early.theta, full.theta)


# ---- when the budget ends first --------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["gtd2", "svrg"])
def test_an_early_stop_gives_a_warning_and_a_wider_interval(solver, tmp_path):
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


def test_the_warning_depends_on_the_saddle_residual(monkeypatch):
    """A planted fault, a residual of zero, hides the solver error."""
    monkeypatch.setattr(Equations, "residual", (np.zeros(40), np.zeros(40)))
    found = vf.evaluate(episodes(), features=FEATURES, discount=0.95, solver="gtd2", max_passes=2)
    assert not any("at full convergence" in warning for warning in found.warnings)


def test_without_a_standard_error_the_finest_gap_is_asked_for():
    log = vf.Transitions.from_arrays(
        np.random.default_rng(0).normal(size=(20, 2)), np.ones(20), terminated=np.arange(20) == 19
    )
    found = vf.evaluate(log, features="identity", solver="svrg")
    assert found.policy_value.solver_error is None
    assert found.result.gap <= FINEST_GAP
