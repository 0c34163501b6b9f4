"""Adaptive steps: rejected epochs are undone, bad starts recover, sketches grow, and gaps are certified."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import naive
import valuefit as vf
from helpers.adaptive import ADAPTIVE, SOLVERS, controller_of, run, zeros
from helpers.problems import KINDS, Oracle, logs, make, problem_of, sparse_of, tiled, without_dead
from valuefit.precondition.diagonal_preconditioner import DiagonalPlusRankTwo
from valuefit.precondition.stochastic_preconditioner import (
    GROWTH,
    StochasticPreconditioner,
    sketch_passes,
    sketched_preconditioner,
)
from valuefit.problem.exact import Exact
from valuefit.solvers import adaptive_steps
from valuefit.solvers.adaptive_steps import (
    LEVEL_RATIO,
    MAX_LEVEL_CHANGE,
    MIN_DECADES_PER_PASS,
    StepController,
    start_controller,
)
from valuefit.solvers.saga import Adaptive, GradientTable
from valuefit.solvers.solver import State


def with_controller(state: State, controller: StepController) -> State:
    memory: Any = state.memory._replace(controller=controller) if isinstance(state.memory, Adaptive) else controller
    return replace(state, memory=memory, steps=controller.steps)


def with_longer_steps(state: State, factor: float) -> State:
    """The state with its steps multiplied by `factor`."""
    controller = controller_of(state)
    return with_controller(
        state, replace(controller, base_steps=(factor * controller.base_steps[0], factor * controller.base_steps[1]))
    )


def flat(table: GradientTable) -> tuple[np.ndarray, ...]:
    return table.entries, *table.mean


# ---- one epoch ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1e3, 1e150], ids=["too long", "out of range"])
@pytest.mark.parametrize("name", ADAPTIVE)
def test_an_epoch_that_made_the_gradient_larger_is_undone(name: str, factor: float) -> None:
    problem = make("random MDP")
    start, _ = SOLVERS[name].init(problem, *zeros(problem))
    start, _ = run(name, problem, start, 3)
    before = with_longer_steps(start, factor)
    after, costs = run(name, problem, before, 1)
    assert after.theta is before.theta
    assert after.w is before.w
    assert controller_of(after).level < controller_of(before).level
    assert controller_of(after).max_level < controller_of(before).level
    assert after.steps[0] < before.steps[0]
    assert after.steps[1] < before.steps[1]
    assert after.steps == controller_of(after).steps
    assert costs[0] >= 1  # the passes of a rejected epoch count
    for found, true in zip(after.gradient, problem.B(after.theta, after.w), strict=True):
        np.testing.assert_allclose(found, true, atol=1e-12)


def test_the_table_of_saga_is_that_of_the_restored_iterate() -> None:
    problem = make("trace 0.8")
    state, _ = SOLVERS["saga"].init(problem, *zeros(problem))
    state, _ = run("saga", problem, state, 2)
    after, costs = run("saga", problem, with_longer_steps(state, 1e3), 1)
    fresh, info = SOLVERS["saga"].init(problem, state.theta, state.w)
    assert costs[0] == pytest.approx(1 + info.passes - controller_of(fresh).preconditioner.cost)
    for found, expected in zip(flat(after.memory.table), flat(fresh.memory.table), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_saga_recovers_from_a_table_whose_mean_is_small_by_chance() -> None:
    """Compared with it every epoch would be rejected if the table were not computed again."""
    problem = make("float32")
    state, _ = SOLVERS["saga"].init(problem, *zeros(problem))
    state, _ = run("saga", problem, state, 1)
    controller = controller_of(state)
    state = with_controller(state, replace(controller, merit=1e-9 * controller.merit))
    end, _ = run("saga", problem, state, 80)
    assert Exact(problem).gap(end.theta) < 1e-6


def test_the_change_of_the_gradient_determines_the_level() -> None:
    """If the gradient is P^-1 x, one step of size 1 is exact, and the Barzilai-Borwein step is 1."""
    problem = make("random MDP")
    controller = start_controller(problem, problem.B(*zeros(problem)))
    rng = np.random.default_rng(0)
    x = rng.normal(size=problem.d), rng.normal(size=problem.k)

    def gradient(x: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        chosen = controller.preconditioner
        return np.linalg.solve(chosen.theta, x[0]), np.linalg.solve(chosen.w, x[1])

    def proposed(base_step: float, *, part: float = 0.5, sign: float = 1.0) -> int:
        moved = -part * x[0], -part * x[1]
        before, after = gradient(x), gradient(((1 - sign * part) * x[0], (1 - sign * part) * x[1]))
        return replace(controller, base_steps=(base_step, base_step)).secant_level(before, after, moved, 4.0)

    assert proposed(0.25) == 0  # four steps of 0.25 are one of 1
    assert proposed(0.25 * LEVEL_RATIO) == -1
    assert proposed(0.25 / LEVEL_RATIO) == 1
    assert proposed(0.25 / LEVEL_RATIO**9) == MAX_LEVEL_CHANGE
    assert proposed(0.25 * LEVEL_RATIO**9) == -MAX_LEVEL_CHANGE
    assert proposed(0.25 / LEVEL_RATIO, part=0.1, sign=-1.0) == 0  # the gradient grew along the step: no change


def test_longer_steps_that_converge_slower_are_undone() -> None:
    problem = make("random MDP")
    gradient = problem.B(*zeros(problem))
    controller = start_controller(problem, gradient)

    def after(controller: StepController, rate: float, level: int) -> StepController:
        """The controller after an epoch of one pass that multiplies the squared gradient by 10 ** -rate."""
        scale = np.sqrt(controller.merit * 10**-rate / start_controller(problem, gradient).merit)
        end = scale * gradient[0], scale * gradient[1]
        return controller.after_epoch(problem, gradient, end, 1.0, level)[0]

    longer = after(controller, 0.5, 2)
    assert longer.level == 2
    assert longer.steps[0] == pytest.approx(LEVEL_RATIO**2 * controller.steps[0])
    assert longer.steps[1] == pytest.approx(LEVEL_RATIO**2 * controller.steps[1])
    assert after(longer, 0.6, 4).level == 4  # faster: raised
    assert after(longer, 0.5, 4).level == 4  # equal up to rounding: raised
    slower = after(longer, 0.4, 4)
    assert slower.level == 1
    assert after(slower, 0.3, 3).level == 3  # not longer than before: the proposal is taken
    rejected = after(longer, -1.0, 4)
    assert (rejected.level, rejected.max_level, rejected.merit) == (0, 1, longer.merit)
    assert after(rejected, 0.5, 2).level == 1  # level 2 was rejected
    assert after(longer, -3.0, 4).level == -3  # much larger gradient: five levels


# ---- a whole run -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [100.0, 10.0])
@pytest.mark.parametrize("name", ADAPTIVE)
def test_solvers_recover_from_steps_that_are_far_too_long(name: str, factor: float) -> None:
    problem = make("badly scaled columns")
    state, _ = SOLVERS[name].init(problem, *zeros(problem))
    end, _ = run(name, problem, with_longer_steps(state, factor), 120)
    assert Exact(problem).gap(end.theta) < 1e-6


@pytest.mark.parametrize("name", ADAPTIVE)
def test_solvers_recover_from_a_preconditioner_a_hundred_times_too_large(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bad(problem: vf.Problem, count: int, *, drawn: bool) -> StochasticPreconditioner:
        good = sketched_preconditioner(problem, count, drawn=drawn)
        return replace(good, theta=100 * good.theta, w=100 * good.w)

    monkeypatch.setattr(adaptive_steps, "sketched_preconditioner", bad)
    problem = make("discount 0.99")
    result = vf.solve(problem, name, tol=1e-6, max_passes=200)
    assert result.status == "converged"
    assert Exact(problem).gap(result.theta) <= 1e-6


@pytest.mark.parametrize("name", ADAPTIVE)
def test_a_sketch_that_is_too_small_grows_and_its_cost_is_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts_used: list[int] = []

    def recorded(problem: vf.Problem, count: int, *, drawn: bool) -> StochasticPreconditioner:
        counts_used.append(count)
        return sketched_preconditioner(problem, count, drawn=drawn)

    monkeypatch.setattr(adaptive_steps, "sketched_preconditioner", recorded)
    monkeypatch.setattr(adaptive_steps, "first_sketch_size", lambda problem: 6)
    problem = make("badly scaled columns")
    state, info = SOLVERS[name].init(problem, *zeros(problem))
    assert info.passes == 1 + sketch_passes(problem, 6)
    rng, counts = np.random.default_rng(0), [6]
    for _ in range(150):
        before = state
        state, info = SOLVERS[name].epoch(problem, state, rng)
        count = controller_of(state).preconditioner.count
        if count != counts[-1]:
            assert count == min(problem.n, GROWTH * counts[-1])
            assert controller_of(before).passes > 6 - 4  # not before enough passes with the current one
            assert info.passes >= sketch_passes(problem, count) + 1
            assert controller_of(state).passes == 0
            counts.append(count)
        else:
            assert info.passes < sketch_passes(problem, 6) + 5
    assert counts == counts_used
    assert len(counts) > 1
    assert Exact(problem).gap(state.theta) < 1e-6


def test_a_sketch_that_converges_fast_enough_is_kept() -> None:
    problem = make("random MDP")
    controller = replace(start_controller(problem, problem.B(*zeros(problem)), count=200), passes=50.0)
    assert (
        replace(controller, first_merit=controller.merit * 10 ** (MIN_DECADES_PER_PASS * 51))._larger_sample(problem)
        == 0
    )
    assert (
        replace(controller, first_merit=controller.merit * 10 ** (MIN_DECADES_PER_PASS * 49))._larger_sample(problem)
        == 200 * GROWTH
    )
    assert replace(controller, passes=5.0)._larger_sample(problem) == 0
    whole = replace(start_controller(problem, problem.B(*zeros(problem)), count=problem.n), passes=50.0)
    assert whole._larger_sample(problem) == 0


# ---- given steps -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given", [{"step_theta": 0.01, "step_w": 0.02}, {"step_theta": 0.01}, {"step_w": 0.02}], ids=str
)
@pytest.mark.parametrize("name", ADAPTIVE)
def test_steps_that_are_given_are_used_as_given(name: str, given: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object, **settings: object) -> None:
        raise AssertionError("a preconditioner was computed")

    monkeypatch.setattr(adaptive_steps, "sketched_preconditioner", never)
    problem = Oracle(0).problem()
    solver = type(SOLVERS[name])(**given)
    state, _ = solver.init(problem, *zeros(problem))
    rng, first = np.random.default_rng(0), state.steps
    assert all(first[("step_theta", "step_w").index(key)] == value for key, value in given.items())
    for _ in range(5):
        state, _ = solver.epoch(problem, state, rng)
        assert state.steps == first
    assert vf.solve(problem, solver, max_passes=20).status in ("budget", "converged")
    with pytest.raises(AssertionError, match="a preconditioner was computed"):
        vf.solve(problem, name)


@pytest.mark.parametrize("storage", ["csr", "dense"])
@pytest.mark.parametrize("name", ADAPTIVE)
def test_theorem_steps_use_no_preconditioner_and_sparse_rows_a_diagonal_one(name: str, storage: str) -> None:
    problem = Oracle(0).problem(storage)
    for solver in (SOLVERS[name], type(SOLVERS[name])(steps="theorem", **({"inner": 100} if name == "svrg" else {}))):
        state, _ = solver.init(problem, *zeros(problem))
        parts = state.memory if isinstance(state.memory, tuple) else (state.memory,)
        controllers = [part for part in parts if isinstance(part, StepController)]
        assert bool(controllers) == (solver is SOLVERS[name])
        assert all(
            isinstance(one.preconditioner.theta, DiagonalPlusRankTwo) == (storage == "csr") for one in controllers
        )


# ---- convergence -------------------------------------------------------------------------------------------

PASSES = 150  # the maximum was 126 when the defaults were chosen


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ADAPTIVE)
def test_defaults_reach_a_certified_gap_of_1e_6(name: str, kind: str) -> None:
    problem = make(kind)
    exact = Exact(problem)
    for seed in range(3):
        result = vf.solve(problem, name, tol=1e-6, max_passes=PASSES, seed=seed)
        assert result.status == "converged", result.message
        assert exact.gap(result.theta) <= 1e-6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ADAPTIVE)
def test_a_first_sketch_of_three_rows_per_feature_reaches_it_too(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adaptive_steps, "first_sketch_size", lambda problem: 3 * problem.k)
    problem = make(kind)
    result = vf.solve(problem, name, tol=1e-6, max_passes=2 * PASSES)
    assert result.status == "converged", result.message
    assert Exact(problem).gap(result.theta) <= 1e-6


@settings(max_examples=80)
@given(logs(), st.sampled_from(["dense", "float32"]), st.sampled_from(ADAPTIVE), st.integers(0, 3))
def test_no_run_ends_above_its_start(log: naive.Log, storage: str, name: str, seed: int) -> None:
    problem = problem_of(log, storage)
    result = vf.solve(problem, name, max_passes=100, seed=seed)
    assert np.isfinite(result.theta).all()
    assert np.isfinite(result.w).all()
    assert result.status != "diverged"
    log = without_dead(log)
    start = naive.objective(log, np.zeros(problem.d))
    assert naive.objective(log, result.theta) <= start + 1e-9 * max(1.0, start)


def test_pdbg_uses_the_diagonal_preconditioner_if_rows_are_sparse_or_matrices_do_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiles, dense = tiled(), make("badly scaled columns")
    monkeypatch.setattr("valuefit.precondition.stochastic_preconditioner.fits", lambda count: False)
    for problem, better in ((tiles, 0.5), (dense, 1e-2), (sparse_of(dense), 1e-2)):
        exact, solver = Exact(problem), vf.solvers.PDBG()
        state, _ = solver.init(problem, *zeros(problem))
        assert isinstance(state.memory.preconditioner.theta, DiagonalPlusRankTwo)
        assert state.steps[1] == 1 / state.memory.preconditioner.spread
        raw = vf.solve(problem, vf.solvers.PDBG(*solver.auto_steps(problem)), tol=0, max_passes=100)
        own = vf.solve(problem, solver, tol=0, max_passes=100)
        assert exact.gap(own.theta) < better * exact.gap(raw.theta)
