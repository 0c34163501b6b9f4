"""`solve`: history, budgets, warm starts, interruptions, divergence, and results on disk."""

import math
import os
import signal
import threading
import time

import numpy as np
import pytest

import valuefit as vf
from helpers.problems import Oracle, cosines, raw
from valuefit.datasets.baird import CLASSIC_WEIGHTS, baird_features, baird_log

ALL = vf.solvers.names()


@pytest.mark.parametrize("name", ALL)
def test_every_solver_fills_in_the_result(name):
    result = vf.solve(Oracle(0).problem(), name, max_passes=30)
    assert result.status in ("converged", "budget")
    assert result.solver == ("lstd" if name == "auto" else name)
    assert result.solver in repr(result)
    assert "\n" not in repr(result)
    assert result.message.endswith(".")
    assert result.passes > 0
    assert result.seconds >= 0
    assert np.isfinite(result.theta).all()
    assert np.isfinite(result.w).all()


@pytest.mark.parametrize("tol", ["0.014", "1e-06", "0.00251"])
def test_messages_state_the_tolerance_as_it_was_given(tol):
    done = vf.solve(Oracle(0).problem(), "svrg", tol=float(tol), max_passes=200)
    assert done.status == "converged"
    assert f"; tol = {tol} was asked." in done.message
    stopped = vf.solve(cosines(2000, 20), raw("pdbg", cosines(2000, 20)), tol=float(tol), max_passes=2)
    assert f"A gap below tol = {tol} is not shown yet" in stopped.message


@pytest.mark.parametrize("name", ALL)
def test_same_seed_same_bits_other_seed_other_path(name):
    problem = Oracle(4).problem()
    first, second, third = (vf.solve(problem, name, tol=0, max_passes=5, seed=seed) for seed in (1, 1, 2))
    assert first.theta.tobytes() == second.theta.tobytes()
    stochastic = name not in ("auto", "lstd", "krylov", "pdbg", "recursive-lstd", "ilstd")
    assert (first.theta.tobytes() != third.theta.tobytes()) == stochastic


@pytest.mark.parametrize("name", ALL)
def test_the_budget_is_kept(name):
    problem = cosines(400, 10)
    result = vf.solve(problem, name, tol=1e-30, max_passes=20)
    direct = name in ("lstd", "recursive-lstd", "ilstd")  # one epoch of these may cost more than the budget
    most = 22 if name == "catalyst" else 20  # an epoch of catalyst may set up another inner problem
    assert direct or result.passes <= most
    assert result.status == "budget"
    assert name != "lstd" or "rounding" in result.message


def test_a_certified_gap_is_not_confirmed_by_the_solver(monkeypatch):
    epoch = vf.solvers.Krylov.epoch

    def without_gap(self, problem, state, rng):
        after, info = epoch(self, problem, state, rng)
        return after, info._replace(gap=None, provisional=True, finished=False)

    def unwanted(self, problem, state):
        raise AssertionError("the certificate evaluates the true residual, so nothing is left to verify")

    monkeypatch.setattr(vf.solvers.Krylov, "epoch", without_gap)
    monkeypatch.setattr(vf.solvers.Krylov, "verify", unwanted)
    problem = cosines(2000, 20)
    result = vf.solve(problem, "krylov", tol=1e-6)
    assert result.status == "converged"
    exact = vf.solve(problem, "lstd")
    assert problem.objective(result.theta) - exact.objective <= 1e-6 * (
        problem.objective(0 * exact.theta) - exact.objective
    )


def test_history_is_a_table_with_the_gap_only_when_a_reference_is_given():
    problem = Oracle(0).problem()
    exact = vf.solve(problem, "lstd")
    plain = vf.solve(problem, "saga", max_passes=20, tol=0).history
    rich = vf.solve(problem, "saga", max_passes=20, tol=0, reference=exact).history
    assert plain.dtype.names == ("passes", "seconds", "residual")
    assert rich.dtype.names == ("passes", "seconds", "residual", "gap")
    assert (np.diff(plain["passes"]) > 0).all()
    assert (np.diff(plain["seconds"]) >= 0).all()
    assert (plain["passes"] == rich["passes"]).all()  # computing the gap from a reference is free
    assert rich["gap"][0] == pytest.approx(1)


def test_residuals_of_methods_without_a_gradient_count_unless_a_reference_is_given():
    problem = Oracle(0).problem()
    exact = vf.solve(problem, "lstd")
    gtd2 = vf.solvers.GTD2(decay=10.0)
    free = vf.solve(problem, gtd2, tol=0, max_passes=50, reference=exact)
    counted = vf.solve(problem, gtd2, tol=0, max_passes=50)
    assert len(free.history) == 51
    assert len(counted.history) < 25
    residuals = len(counted.history)
    assert counted.passes == pytest.approx(50, abs=2)
    same = vf.solve(problem, gtd2, tol=0, max_passes=50 - residuals, reference=exact)
    assert np.array_equal(same.theta, counted.theta)


def test_a_warm_start_on_a_grown_log_costs_a_few_passes():
    whole = cosines(4000, 12)
    columns = (whole.now, whole.next, whole.reward, whole.discount)
    most = vf.Problem.from_rows(whole.phi.matrix, *(column[:3900] for column in columns))
    earlier = vf.solve(most, "saga", tol=1e-8)
    saga = raw("saga", whole)
    cold = vf.solve(whole, saga, tol=1e-4)
    warm = vf.solve(whole, saga, tol=1e-4, init=earlier)
    assert warm.status == cold.status == "converged"
    assert warm.passes < 0.5 * cold.passes
    assert warm.passes <= 12
    cold, warm = (vf.solve(whole, "saga", tol=1e-4, init=init) for init in (None, earlier))
    assert warm.status == cold.status == "converged"
    assert warm.passes <= cold.passes - 2  # both pay for the preconditioner


def test_init_takes_a_result_a_pair_or_a_theta_and_pads_new_features():
    problem = Oracle(0).problem()
    exact = vf.solve(problem, "lstd")
    for start in (exact, (exact.theta, exact.w), exact.theta, list(exact.theta)):
        assert vf.solve(problem, raw("svrg", problem), init=start, tol=1e-6).passes < 8
    shorter = vf.solve(problem, "svrg", tol=0, max_passes=0.1, init=exact.theta[:3], reference=exact)
    assert shorter.history["gap"][0] > 1e-3


@pytest.mark.parametrize("name", ["pdbg", "svrg", "saga"])
def test_the_answer_does_not_depend_on_the_starting_point(name):
    oracle = Oracle(2)
    rng = np.random.default_rng(0)
    start = (rng.standard_normal(7), rng.standard_normal(7))
    result = vf.solve(oracle.problem(), name, init=start, tol=1e-14, max_passes=30_000)
    np.testing.assert_allclose(result.theta, oracle.theta, atol=1e-5)


def test_a_callback_receives_progress_and_can_stop():
    seen = []

    def watch(progress):
        seen.append(progress)
        return progress.passes >= 5

    problem = Oracle(0).problem()
    result = vf.solve(problem, raw("saga", problem), tol=0, callback=watch)
    assert result.status == "interrupted"
    assert [step.passes for step in seen] == [1, 2, 3, 4, 5]
    assert np.array_equal(seen[-1].theta, result.theta)
    assert "callback" in result.message


def test_ctrl_c_returns_the_iterate_so_far():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs start with SIGINT ignored
    problem = cosines(3000, 30)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    vf.solve(problem, "svrg", tol=0, max_passes=3)  # compiled before the clock starts
    timer.start()
    start = time.monotonic()
    try:
        result = vf.solve(problem, "svrg", tol=0, max_passes=1e9, max_seconds=60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.status == "interrupted"
    assert time.monotonic() - start < 30
    assert len(result.history) > 3
    assert result.history["residual"][-1] < result.history["residual"][0]
    assert np.isfinite(result.theta).all()


def test_max_seconds_ends_a_solve():
    result = vf.solve(cosines(3000, 30), "gtd2", tol=0, max_passes=1e9, max_seconds=0.2)
    assert result.status == "budget"
    assert "max_seconds" in result.message


def test_automatic_steps_that_diverge_are_shortened(monkeypatch):
    oracle = Oracle(0)
    monkeypatch.setattr(vf.solvers.PDBG, "auto_steps", lambda self, problem: (3.0, 3.0))
    pdbg = vf.solvers.PDBG(precompute=True)  # without preconditioner; test_adaptive_steps.py tests the other case
    result = vf.solve(oracle.problem("csr"), pdbg, tol=1e-8, max_passes=5000)
    assert result.status == "converged", result.message
    assert "shortened" in result.message


@pytest.mark.parametrize("name", ["SVRG", "SAGA", "PDBG", "GTD2", "TDC"])
def test_given_steps_that_diverge_are_reported(name):
    solver = getattr(vf.solvers, name)(step_theta=50.0, step_w=50.0)
    result = vf.solve(Oracle(0).problem(), solver, max_passes=2000)
    assert result.status == "diverged"
    assert np.isfinite(result.theta).all()
    assert "smaller steps" in result.message


@pytest.mark.parametrize("name", ["svrg", "saga"])
def test_bairds_star_converges_where_td_diverges(name):
    problem = vf.Problem(baird_log(), baird_features, discount=0.99)
    good = vf.solve(problem, name, init=CLASSIC_WEIGHTS, tol=1e-6, max_passes=4000)
    assert good.status == "converged", good.message
    td = vf.solvers.FLSTDSA(step=0.01, decay=math.inf)
    bad = vf.solve(problem, td, init=CLASSIC_WEIGHTS, tol=1e-6, max_passes=4000)
    assert bad.status == "diverged"
    assert problem.objective(good.theta) < 2e-6 * problem.objective(CLASSIC_WEIGHTS)
    grown = vf.solve(problem, td, init=CLASSIC_WEIGHTS, tol=0, max_passes=10)
    assert np.abs(grown.theta).max() > 100


def test_the_gap_is_measured_from_the_start_where_zero_is_optimal():
    """All rewards are 0, so F(0) = F*, and a gap relative to F(0) - F* is undefined."""
    problem = vf.Problem(baird_log(), baird_features, discount=0.99)
    short = vf.solve(problem, "svrg", init=CLASSIC_WEIGHTS, tol=1e-2, max_passes=1)
    assert short.status == "budget"
    assert vf.solve(problem, "svrg", tol=1e-2).status == "converged"


def test_more_inner_steps_than_a_theorem_can_ask_for_are_refused():
    with pytest.raises(ValueError, match="inner steps on this problem"):
        vf.solve(cosines(2000, 20, spread=0.1), vf.solvers.SVRG(steps="theorem"))


@pytest.mark.parametrize("solver", [vf.solvers.SAGA(), vf.solvers.GTD2(decay=math.inf), vf.solvers.LSTD()])
def test_a_result_is_the_same_after_saving_and_loading(tmp_path, solver):
    problem = Oracle(1).problem()
    result = vf.solve(problem, solver, max_passes=30, seed=3)
    back = vf.Result.load(result.save(tmp_path / "result.npz"))
    assert back.theta.tobytes() == result.theta.tobytes()
    assert back.history.tobytes() == result.history.tobytes()
    assert back.history.dtype == result.history.dtype
    for name in ("status", "message", "passes", "objective", "gap", "settings", "seed", "tol", "dead", "solver"):
        assert getattr(back, name) == getattr(result, name)
    assert vf.solve(problem, "svrg", init=back, tol=1e-3).status == "converged"
    assert [path.name for path in tmp_path.iterdir()] == ["result.npz"]
