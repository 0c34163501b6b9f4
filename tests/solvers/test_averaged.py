"""GTD2 and TDC with automatic steps: constant steps and averaged iterates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import naive
import valuefit as vf
from helpers.problems import logs, make, problem_of
from helpers.twins import CASES, TOLERANCE, Case, Preset, apart, start_of
from valuefit.problem.exact import Exact

NAMES = ["gtd2", "tdc"]
TWINS = {"gtd2": naive.gtd2, "tdc": naive.tdc}


@pytest.mark.parametrize(
    ("name", "case"),
    [(name, case) for name in NAMES for case in CASES if name == "gtd2" or not case.more],
    ids=lambda value: getattr(value, "label", value),
)
def test_the_result_is_the_mean_of_iterates_weighted_by_epoch(name: str, case: Case) -> None:
    log = case.log()
    problem, start = problem_of(log, case.storage), start_of(log)
    draws = [np.random.default_rng(seed).integers(0, problem.n, problem.n) for seed in range(3)]
    solver = vf.solvers.find(name)
    state, info = solver.init(problem, *start)
    assert info.passes == 0
    interval = math.ceil(8 * problem.d * problem.phi.shape[0] / problem.phi.stored)
    interval = min(interval, problem.n)
    trajectory = TWINS[name](log, *start, draws, *state.steps, math.inf)
    preset = Preset(draws, problem.n)
    total, weights = [np.zeros(problem.d), np.zeros(problem.k)], 0
    for epoch in range(1, 4):
        state, info = solver.epoch(problem, state, preset)
        assert info.passes == 1
        path = trajectory[(epoch - 1) * problem.n : epoch * problem.n]
        averaged = path[interval - 1 :: interval]
        weights += epoch
        for part in (0, 1):
            total[part] += epoch * np.mean([iterate[part] for iterate in averaged], axis=0)
        assert apart((state.theta, state.w), (total[0] / weights, total[1] / weights)) <= TOLERANCE[case.storage]
        assert apart((state.memory.theta, state.memory.w), path[-1]) <= TOLERANCE[case.storage]


@pytest.mark.parametrize("name", NAMES)
def test_the_mean_has_a_smaller_gap_than_the_last_iterate(name: str) -> None:
    problem = make("random MDP")
    exact, solver = Exact(problem), vf.solvers.find(name)
    state, _ = solver.init(problem, np.zeros(problem.d), np.zeros(problem.k))
    rng = np.random.default_rng(0)
    for _ in range(40):
        state, _ = solver.epoch(problem, state, rng)
    assert exact.gap(state.theta) < 0.5 * exact.gap(state.memory.theta)


@settings(max_examples=80)
@given(logs(), st.sampled_from(["dense", "float32", "csr"]), st.sampled_from(NAMES), st.integers(0, 3))
def test_automatic_steps_never_end_as_diverged(log: naive.Log, storage: str, name: str, seed: int) -> None:
    problem = problem_of(log, storage)
    if name == "tdc" and problem.k != problem.d:
        name = "gtd2"
    result = vf.solve(problem, name, tol=0, max_passes=60, seed=seed)
    assert np.isfinite(result.theta).all()
    assert np.isfinite(result.w).all()
    assert result.status != "diverged"


@pytest.mark.parametrize(
    "given", [{"step_theta": 0.01, "step_w": 0.02}, {"step_theta": 0.01}, {"decay": 5.0}, {"decay": math.inf}], ids=str
)
@pytest.mark.parametrize("name", NAMES)
def test_with_given_steps_or_decay_the_result_is_the_last_iterate(name: str, given: dict) -> None:
    problem, solver = make("random MDP"), type(vf.solvers.find(name))(**given)
    state, _ = solver.init(problem, np.zeros(problem.d), np.zeros(problem.k))
    state, _ = solver.epoch(problem, state, np.random.default_rng(0))
    assert state.theta is state.memory.theta
    assert vf.solve(problem, solver, tol=0, max_passes=5).status == "budget"


@pytest.mark.parametrize("name", NAMES)
def test_given_steps_halve_after_ten_passes_by_default(name: str) -> None:
    problem, cls = make("random MDP"), type(vf.solvers.find(name))
    one, other = (
        vf.solve(problem, cls(step_theta=0.01, step_w=0.02, **more), tol=0, max_passes=20)
        for more in ({}, {"decay": 10.0})
    )
    assert one.theta.tobytes() == other.theta.tobytes()
