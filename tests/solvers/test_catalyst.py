"""Catalyst: inner problems and outer loop equal naive ones, and it saves passes on badly conditioned problems."""

import math

import numpy as np
import pytest

import naive
import valuefit as vf
from helpers.problems import Oracle, cosines, problem_of
from valuefit.problem.exact import Exact
from valuefit.solvers.catalyst import Catalyst

PDBG, SAGA, SVRG = vf.solvers.PDBG, vf.solvers.SAGA, vf.solvers.SVRG

SETTINGS = {
    "plain": {},
    "everything": {"ratio": True, "trace": 0.5, "ridge": 0.2},
    "more dual features": {"k": 6, "ratio": True},
    "identity": {"identity": True, "ridge": 0.1},
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_the_proximal_problem_is_F_plus_the_proximal_term(kind):
    log = naive.random_log(np.random.default_rng(0), n=40, d=4, **SETTINGS[kind])
    problem = problem_of(log)
    rng = np.random.default_rng(1)
    y, weight = rng.standard_normal(4), 0.3
    inner, shift = problem.proximal(y, weight)
    one, two = rng.standard_normal((2, 4))
    expected = [problem.objective(x) + 0.5 * weight * np.sum((x - y) ** 2) for x in (one, two)]
    found = [inner.objective(x - shift) for x in (one, two)]
    assert found[0] - found[1] == pytest.approx(expected[0] - expected[1])
    assert problem.ridge == log.ridge
    np.testing.assert_array_equal(problem.reward, log.reward)
    assert "ridge" in inner.traits


# ---- the naive twin: moments, plain loops ---------------------------------------------------------


def naive_catalyst(log, epochs, step_theta, step_w):
    """theta after every epoch, with full-gradient (PDBG) steps as inner epochs."""
    A, b, C = naive.moments(log)
    weight = 1 / (10 * step_theta)
    theta, w, before, y = np.zeros(A.shape[1]), np.zeros(len(b)), np.zeros(A.shape[1]), np.zeros(A.shape[1])
    momentum, count, path = 1.0, 0, []

    def gradient():
        return log.ridge * theta - A.T @ w + weight * (theta - y), A @ theta - b + C @ w

    def size():
        of_theta, of_w = gradient()
        return step_theta * of_theta @ of_theta + step_w * of_w @ of_w

    first = size()
    for _ in range(epochs):
        of_theta, of_w = gradient()
        theta, w, count = theta - step_theta * of_theta, w - step_w * of_w, count + 1
        path.append(theta)
        if size() > 0.01 * first and count < 20:
            continue
        after = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        uphill = (y - theta) @ (theta - before) > 0
        y = theta if uphill else theta + (momentum - 1) / after * (theta - before)
        momentum, before, count = 1.0 if uphill else after, theta, 0
        first = size()
    return path


@pytest.mark.parametrize("kind", SETTINGS)
def test_the_outer_loop_equals_the_naive_one(kind):
    log = naive.random_log(np.random.default_rng(2), n=30, d=3, **{**SETTINGS[kind], "k": None})
    problem = problem_of(log)
    solver = Catalyst(PDBG(step_theta=0.05, step_w=0.1))
    state, _ = solver.init(problem, np.zeros(problem.d), np.zeros(problem.k))
    restarts = set()
    for theta in naive_catalyst(log, 150, 0.05, 0.1):
        state, _ = solver.epoch(problem, state, np.random.default_rng(0))
        np.testing.assert_allclose(state.theta, theta, rtol=1e-8, atol=1e-10)
        for found, true in zip(state.gradient, problem.B(state.theta, state.w), strict=True):
            np.testing.assert_allclose(found, true, atol=1e-12)
        restarts.add(state.memory.momentum)
    assert len(restarts) > 2


# ---- with each inner solver ---------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [SVRG, SAGA])
@pytest.mark.parametrize("number", [0, 3, 7])
def test_oracles(inner, number):
    problem = Oracle(number).problem()
    result = vf.solve(problem, Catalyst(inner()), tol=1e-10, max_passes=5000)
    assert result.status == "converged", result.message
    assert Exact(problem).gap(result.theta) <= 1e-9


@pytest.mark.parametrize("inner", [SVRG, SAGA])
def test_it_saves_passes_where_the_condition_number_is_far_above_n(inner):
    problem = cosines(600, 16, discount=0.99)
    exact = Exact(problem)
    plain = inner(*inner().auto_steps(problem))

    def passes(solver):
        history = vf.solve(problem, solver, tol=0, max_passes=6000, reference=exact.theta).history
        return history["passes"][history["gap"] <= 1e-5].min(initial=np.inf)

    assert passes(Catalyst(plain)) < 0.8 * passes(plain)


def test_inner_problems_count_as_passes():
    problem = cosines(600, 8)
    solver = Catalyst(SVRG())
    state, info = solver.init(problem, np.zeros(8), np.zeros(8))
    assert info.passes == 1.5  # the shifted rewards, and SVRG's first snapshot
    costs = set()
    for _ in range(12):
        state, info = solver.epoch(problem, state, np.random.default_rng(0))
        costs.add(info.passes)
    assert costs == {2.0, 3.5}


def test_shortened_steps_reach_the_inner_solver(monkeypatch):
    monkeypatch.setattr(SVRG, "auto_steps", lambda self, problem: (3.0, 3.0))
    result = vf.solve(Oracle(0).problem(), Catalyst(SVRG()), tol=1e-4, max_passes=5000)
    assert result.status == "converged", result.message
    assert "shortened" in result.message


def test_settings_name_the_inner_solver(tmp_path):
    result = vf.solve(Oracle(0).problem(), Catalyst(SAGA(inner=50), proximal=0.1), max_passes=20)
    assert result.settings["solver"]["name"] == "saga"
    assert result.settings["solver"]["inner"] == 50
    assert vf.Result.load(result.save(tmp_path / "result.npz")).settings == result.settings


def test_other_inner_solvers_are_refused():
    with pytest.raises(ValueError, match=r"accelerates PDBG, SVRG or SAGA, as in Catalyst\(SVRG\(\)\), not lstd"):
        Catalyst(vf.solvers.LSTD())
    with pytest.raises(ValueError, match="not 'svrg'"):
        Catalyst("svrg")
    with pytest.raises(ValueError, match="proximal is -1; it must be a positive number"):
        Catalyst(SVRG(), proximal=-1)
