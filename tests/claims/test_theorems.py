"""Theorems 1 to 3 hold for the solvers: P = |Q^-1 Delta|^2 decreases at least as fast as proved.

The theorems bound Omega, but their proofs bound P (erratum 9), so the tests use P. An update of a stochastic method is
a random linear map, so the expectation of P follows exactly from a matrix power. This gives two tests of each theorem:
the inequality of the proof for all starting points at once, and the mean of the solver over seeds against the exact
value.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

import naive
import valuefit as vf
from helpers.brute import Brute
from helpers.problems import problem_of

SETTINGS = {
    "on-policy": {},
    "off-policy": {"ratio": True},
    "traces": {"trace": 0.5},
    "ridge": {"ridge": 0.5},
    "all": {"ratio": True, "trace": 0.5, "ridge": 0.2},
    "identity": {"identity": True, "ridge": 0.1},
}


def tame_log(
    d: int = 2, n: int = 12, ratio: bool = False, trace: float = 0.0, ridge: float = 0.0, identity: bool = False
) -> naive.Log:
    """Nearly orthonormal features and a short horizon, so that the theorems need only about ten thousand steps."""
    rng = np.random.default_rng(0)
    Phi = np.vstack([np.eye(d), -np.eye(d)])
    Phi = Phi + 0.05 * rng.normal(size=Phi.shape)
    ratios = rng.uniform(0.8, 1.2, n) if ratio else np.ones(n)
    now, after, episode = np.arange(n) % (2 * d), rng.integers(0, 2 * d, n), np.arange(n) // 4
    return naive.Log(Phi, Phi, now, after, rng.normal(size=n), np.full(n, 0.1), ratios, episode, trace, ridge, identity)


def far_start(log: naive.Log) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return 3 * rng.normal(size=log.Phi.shape[1]), 3 * rng.normal(size=log.Psi.shape[1])


# ---- Theorem 1 ---------------------------------------------------------------------------------------------

RANDOM = {
    "on-policy": {},
    "off-policy": {"ratio": True},
    "traces": {"trace": 0.7},
    "ridge": {"ridge": 0.3},
    "all": {"ratio": True, "trace": 0.7, "ridge": 0.3},
    "more dual features": {"k": 5},
    "identity": {"identity": True},
}


@pytest.mark.parametrize("fastest", [False, True], ids=["theorem", "fastest"])
@pytest.mark.parametrize("name", RANDOM)
def test_theorem_1_potential_contracts_at_every_iteration(name: str, fastest: bool) -> None:
    for seed in range(4):
        log = naive.random_log(np.random.default_rng(seed), **{"n": 40, "d": 3, **RANDOM[name]})
        problem, brute = problem_of(log), Brute(log)
        solver = vf.solvers.PDBG(steps="theorem", fastest=fastest)
        plan = vf.Theory(problem).pdbg_fastest() if fastest else vf.Theory(problem).pdbg()
        state, _ = solver.init(problem, *far_start(log))
        assert state.steps == (plan.step_theta, plan.step_w)
        assert plan.contraction < 1
        before = brute.P(state.theta, state.w)
        floor = 1e-14 * before
        for _ in range(150):
            state, _ = solver.epoch(problem, state, None)
            after = brute.P(state.theta, state.w)
            assert after <= plan.contraction * before * (1 + 1e-9) + floor
            before = after


@pytest.mark.parametrize("name", RANDOM)
def test_theorem_1_predicts_enough_iterations(name: str) -> None:
    log = tame_log(**{key: value for key, value in RANDOM[name].items() if key != "k"})
    problem, brute = problem_of(log), Brute(log)
    solver = vf.solvers.PDBG(steps="theorem")
    state, _ = solver.init(problem, *far_start(log))
    first = brute.P(state.theta, state.w)
    needed = math.ceil(vf.Theory(problem).predicted_iterations(1e-6)["pdbg"])
    for _ in range(needed):
        state, _ = solver.epoch(problem, state, None)
    assert brute.P(state.theta, state.w) <= 1e-6 * first


def test_theorem_1_fails_for_steps_that_are_too_long() -> None:
    log = tame_log()
    problem, brute = problem_of(log), Brute(log)
    fastest = vf.Theory(problem).pdbg_fastest()
    solver = vf.solvers.PDBG(step_theta=1.1 * fastest.step_theta, step_w=1.1 * fastest.step_w)
    state, _ = solver.init(problem, *far_start(log))
    values = [brute.P(state.theta, state.w)]
    for _ in range(50):
        state, _ = solver.epoch(problem, state, None)
        values.append(brute.P(state.theta, state.w))
    assert max(b / a for a, b in pairwise(values)) > fastest.contraction


# ---- Second moments of the stochastic methods --------------------------------------------------------------


def second_moment(maps: list[np.ndarray], count: int) -> np.ndarray:
    """The matrix that maps vec(E z z') to its value after `count` updates z -> F_t z with uniform t."""
    return np.linalg.matrix_power(sum(np.kron(F, F) for F in maps) / len(maps), count)


def expected_form(maps: list[np.ndarray], count: int, H: np.ndarray, lift: np.ndarray) -> np.ndarray:
    """K with E[P after `count` updates] = Delta' K Delta, for z_0 = lift Delta and P = z'Hz on the first part of z."""
    size, full = len(H), len(maps[0])
    weight = np.zeros((full, full))
    weight[:size, :size] = H
    back = (weight.ravel() @ second_moment(maps, count)).reshape(full, full)
    K = lift.T @ back @ lift
    return (K + K.T) / 2


def worst_ratio(K: np.ndarray, H: np.ndarray) -> float:
    """The largest Delta' K Delta / Delta' H Delta over all starting points."""
    root = np.linalg.inv(np.linalg.cholesky(H))
    return float(np.linalg.eigvalsh(root @ K @ root.T)[-1])


def svrg_form(brute: Brute, step: float, inner: int) -> np.ndarray:
    """K with E[P_1] = Delta_0' K Delta_0 after one outer iteration, from the dynamics in appendix C."""
    eye, G = np.eye(len(brute.H)), brute.G
    maps = [np.block([[eye - step * G_t, step * (G_t - G)], [0 * eye, eye]]) for G_t in brute.G_t]
    return expected_form(maps, inner, brute.H, np.vstack([eye, eye]))


def saga_form(brute: Brute, step: float, updates: int) -> np.ndarray:
    """K with E[P_m] = Delta_0' K Delta_0 after m updates, from the dynamics in appendix D.

    z contains Delta and, for each row, the Delta at which its gradient was stored. The part of G_t that all rows
    share, ridge theta (and w if C = I), is exact and not in the table.
    """
    size, n = len(brute.H), brute.n
    shared = np.diag([brute.ridge] * brute.d + [brute.beta if brute.log.identity else 0.0] * brute.k)
    own = [G_t - shared for G_t in brute.G_t]
    maps = []
    for t in range(n):
        F = np.eye(size * (n + 1))
        F[:size, :size] -= step * (shared + own[t])
        for s in range(n):
            column = slice(size * (s + 1), size * (s + 2))
            F[:size, column] -= step * own[s] / n
            if s == t:
                F[:size, column] += step * own[t]
                F[column, column] = 0.0
                F[column, :size] = np.eye(size)
        maps.append(F)
    return expected_form(maps, updates, brute.H, np.vstack([np.eye(size)] * (n + 1)))


# ---- Theorem 2 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", ["4/5", "3/4"])
@pytest.mark.parametrize("name", SETTINGS)
def test_theorem_2_holds_in_expectation_from_every_start(name: str, rate: str) -> None:
    log = tame_log(**SETTINGS[name])
    brute, plan = Brute(log), vf.Theory(problem_of(log)).svrg(rate)
    assert plan.inner <= 2e5
    worst = worst_ratio(svrg_form(brute, plan.step_theta, int(plan.inner)), brute.H)
    assert 0 < worst <= plan.contraction


def mean_potentials(
    brute: Brute, problem: vf.Problem, solver: vf.solvers.SVRG | vf.solvers.SAGA, epochs: int, seeds: int
) -> tuple[np.ndarray, np.ndarray]:
    """P / P_0 after each epoch: the mean over seeds and its standard error."""
    start = far_start(brute.log)
    first, _ = solver.init(problem, *start)
    ratios = np.empty((seeds, epochs))
    for seed in range(seeds):
        rng, state = np.random.default_rng(seed), first
        for epoch in range(epochs):
            state, _ = solver.epoch(problem, state, rng)
            ratios[seed, epoch] = brute.P(state.theta, state.w)
    ratios /= brute.P(*start)
    return ratios.mean(axis=0), ratios.std(axis=0, ddof=1) / math.sqrt(seeds)


def check_theorem_2(name: str, rate: str, seeds: int) -> None:
    log = tame_log(**SETTINGS[name])
    problem, brute = problem_of(log), Brute(log)
    plan = vf.Theory(problem).svrg(rate)
    solver = vf.solvers.SVRG(steps="theorem", rate=rate)
    mean, error = mean_potentials(brute, problem, solver, 4, seeds)
    assert (mean <= plan.contraction ** np.arange(1, 5) + 3 * error).all()
    start = brute.Delta(*far_start(log))
    exact = start @ svrg_form(brute, plan.step_theta, int(plan.inner)) @ start / (start @ brute.H @ start)
    assert abs(mean[0] - exact) <= 4 * error[0]
    assert 4 * error[0] <= 0.5 * exact


@pytest.mark.parametrize("rate", ["4/5", "3/4"])
@pytest.mark.parametrize("name", ["on-policy", "all"])
def test_theorem_2_holds_for_the_solver_in_the_mean_over_seeds(name: str, rate: str) -> None:
    check_theorem_2(name, rate, seeds=24)


@pytest.mark.slow
@pytest.mark.parametrize("rate", ["4/5", "3/4"])
@pytest.mark.parametrize("name", SETTINGS)
def test_theorem_2_holds_for_the_solver_in_the_mean_over_many_seeds(name: str, rate: str) -> None:
    check_theorem_2(name, rate, seeds=400)


# ---- Theorem 3 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETTINGS)
def test_theorem_3_holds_in_expectation_from_every_start(name: str) -> None:
    log = tame_log(d=1, n=4, **SETTINGS[name])
    brute, plan = Brute(log), vf.Theory(problem_of(log)).saga()
    for updates in (1, 4, 16, 256, 4096, 2**15):
        worst = worst_ratio(saga_form(brute, plan.step_theta, updates), brute.H)
        assert 0 < worst <= 2 * plan.contraction**updates


def check_theorem_3(name: str, seeds: int) -> None:
    log = tame_log(d=1, n=4, **SETTINGS[name])
    problem, brute = problem_of(log), Brute(log)
    plan, inner = vf.Theory(problem).saga(), 2000
    mean, error = mean_potentials(brute, problem, vf.solvers.SAGA(steps="theorem", inner=inner), 10, seeds)
    updates = inner * np.arange(1, 11)
    assert (mean <= 2 * plan.contraction**updates + 3 * error).all()
    start = brute.Delta(*far_start(log))
    for epoch in (0, 4, 9):
        K = saga_form(brute, plan.step_theta, int(updates[epoch]))
        exact = start @ K @ start / (start @ brute.H @ start)
        assert abs(mean[epoch] - exact) <= 4 * error[epoch]
        assert 4 * error[epoch] <= 0.5 * exact


@pytest.mark.parametrize("name", ["on-policy", "all"])
def test_theorem_3_holds_for_the_solver_in_the_mean_over_seeds(name: str) -> None:
    check_theorem_3(name, seeds=30)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_theorem_3_holds_for_the_solver_in_the_mean_over_many_seeds(name: str) -> None:
    check_theorem_3(name, seeds=600)


def test_theorem_3_bound_on_a_larger_problem_holds_in_the_mean_over_seeds() -> None:
    log = tame_log(ratio=True)
    problem, brute = problem_of(log), Brute(log)
    plan = vf.Theory(problem).saga()
    mean, error = mean_potentials(brute, problem, vf.solvers.SAGA(steps="theorem", inner=5000), 8, 24)
    assert (mean <= 2 * plan.contraction ** (5000 * np.arange(1, 9)) + 3 * error).all()
    assert mean[-1] < 0.1
