"""Steps that adapt while running: setbacks are undone, bad starts recover, samples grow, and gaps are certified."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import naive
import valuefit as vf
from helpers.adaptive import SOLVERS, STEERED, course_of, run, zeros
from helpers.problems import KINDS, Oracle, logs, make, problem_of, sparse_of, tiled, without_dead
from valuefit.problem import preconditioner as metric
from valuefit.problem.diagonal_preconditioner import Balanced
from valuefit.problem.exact import Exact
from valuefit.problem.preconditioner import GROWTH, Metric, metric_cost, mixed_metric
from valuefit.solvers import adaptive_steps as steering
from valuefit.solvers.adaptive_steps import SLOW, STRIDE, Course, begin
from valuefit.solvers.saga import Steered
from valuefit.solvers.solver import State


def with_course(state: State, course: Course) -> State:
    memory: Any = state.memory._replace(course=course) if isinstance(state.memory, Steered) else course
    return replace(state, memory=memory, steps=course.steps)


def stretched(state: State, factor: float) -> State:
    course = course_of(state)
    return with_course(state, replace(course, single=(factor * course.single[0], factor * course.single[1])))


# ---- one epoch ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1e3, 1e150], ids=["too long", "out of range"])
@pytest.mark.parametrize("name", STEERED)
def test_an_epoch_that_made_the_gradient_larger_is_undone(name: str, factor: float) -> None:
    problem = make("random MDP")
    start, _ = SOLVERS[name].init(problem, *zeros(problem))
    start, _ = run(name, problem, start, 3)
    before = stretched(start, factor)
    after, costs = run(name, problem, before, 1)
    assert after.theta is before.theta
    assert after.w is before.w
    assert course_of(after).size < course_of(before).size
    assert course_of(after).longest < course_of(before).size
    assert after.steps[0] < before.steps[0]
    assert after.steps[1] < before.steps[1]
    assert after.steps == course_of(after).steps
    assert costs[0] >= 1  # passes that led nowhere were passes all the same
    for found, true in zip(after.gradient, problem.B(after.theta, after.w), strict=True):
        np.testing.assert_allclose(found, true, atol=1e-12)


def test_sagas_table_is_that_of_the_restored_iterate() -> None:
    problem = make("trace 0.8")
    state, _ = SOLVERS["saga"].init(problem, *zeros(problem))
    state, _ = run("saga", problem, state, 2)
    after, costs = run("saga", problem, stretched(state, 1e3), 1)
    fresh, info = SOLVERS["saga"].init(problem, state.theta, state.w)
    assert costs[0] == pytest.approx(1 + info.passes - course_of(fresh).metric.cost)
    for found, expected in zip(after.memory[:3], fresh.memory[:3], strict=True):
        np.testing.assert_array_equal(found, expected)


def test_saga_goes_on_from_a_table_whose_mean_is_small_by_chance() -> None:
    """Next to it every epoch looks like a setback, were the table not filled anew."""
    problem = make("float32")
    state, _ = SOLVERS["saga"].init(problem, *zeros(problem))
    state, _ = run("saga", problem, state, 1)
    course = course_of(state)
    state = with_course(state, replace(course, merit=1e-9 * course.merit))
    end, _ = run("saga", problem, state, 80)
    assert Exact(problem).gap(end.theta) < 1e-6


def test_a_course_moves_between_neighbouring_sizes() -> None:
    problem = make("random MDP")
    gradient = problem.B(*zeros(problem))
    course = begin(problem, gradient)

    def after(course: Course, factor: float) -> Course:
        scale = np.sqrt(factor * course.merit / begin(problem, gradient).merit)
        new, _, _ = course.judge(problem, gradient, (scale * gradient[0], scale * gradient[1]), 1.0)
        return new

    longer = after(course, 10**-0.1)
    assert longer.size == 1
    assert longer.steps[0] == pytest.approx(STRIDE * course.steps[0])
    assert longer.steps[1] == pytest.approx(STRIDE * course.steps[1])
    assert after(longer, 10**-0.12).size == 2  # better still: further
    back = after(longer, 10**-0.05)
    assert back.size == -1  # worse: shorter
    assert after(back, 10**-0.02).size == 0  # worse too: the best of them
    failed = after(longer, 3.0)
    assert (failed.size, failed.longest) == (-1, 0)
    assert failed.merit == longer.merit
    assert after(failed, 10**-0.3).size == 0
    assert after(after(failed, 10**-0.3), 10**-0.4).size == 0  # 1 has failed and stays out
    assert after(longer, 1000.0).size == -4


def test_the_change_of_the_gradient_tells_the_size_of_the_steps() -> None:
    """Where gradients are P^-1 x, so that one step of 1 would end it, the advice is 1."""
    problem = make("random MDP")
    course = begin(problem, problem.B(*zeros(problem)))
    rng = np.random.default_rng(0)
    x = rng.normal(size=problem.d), rng.normal(size=problem.k)

    def gradient(x: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        return np.linalg.solve(course.metric.theta, x[0]), np.linalg.solve(course.metric.w, x[1])

    def advice(single: float, *, part: float = 0.5, sign: float = 1.0) -> int:
        moved = -part * x[0], -part * x[1]
        before, after = gradient(x), gradient(((1 - sign * part) * x[0], (1 - sign * part) * x[1]))
        here = replace(course, single=(single, single), merit=course.metric.merit(before))
        new, kept, _ = here.judge(problem, before, after, 1.0, moved=moved, per_step=4.0)
        assert kept
        return new.size

    assert advice(0.25) == 0  # four of them are 1 already
    assert advice(0.25 * STRIDE) == -1
    assert advice(0.25 / STRIDE) == 1
    assert advice(0.25 / STRIDE**9) == 2  # not further at a time
    assert advice(0.25 * STRIDE**9) == -2
    assert advice(0.25 / STRIDE, part=0.1, sign=-1.0) == 0  # the gradient grew along the way: no advice


def test_longer_steps_that_brought_less_are_taken_back() -> None:
    problem = make("random MDP")
    gradient = problem.B(*zeros(problem))
    course = begin(problem, gradient)
    merit = course.merit

    def after(course: Course, rate: float) -> Course:
        """An epoch after which the squared gradient is 10 ** -rate of what it was, and advice always is: longer."""
        old, new = (np.sqrt(value / merit) for value in (course.merit, course.merit * 10**-rate))
        before, end = ((scale * gradient[0], scale * gradient[1]) for scale in (old, new))
        metric = course.metric
        moved = tuple(-1e6 * P @ g for P, g in zip((metric.theta, metric.w), before, strict=True))
        return course.judge(problem, before, end, 1.0, moved=(moved[0], moved[1]))[0]

    first = after(course, 0.5)
    assert first.size == 2
    assert after(first, 0.6).size == 4
    worse = after(first, 0.4)
    assert (worse.size, worse.longest) == (1, course.longest)
    assert after(worse, 0.3).size == 3  # shorter than before: advice is free again
    fast = after(course, 1.0)
    much_worse = after(fast, 0.2)
    assert (much_worse.size, much_worse.longest) == (1, 1)
    assert after(much_worse, 0.5).size == 1
    assert after(after(much_worse, 0.1), 0.1).size == 3  # slow: a size more with every epoch


# ---- a whole run -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [100.0, 10.0])
@pytest.mark.parametrize("name", STEERED)
def test_steps_far_too_long_recover(name: str, factor: float) -> None:
    problem = make("badly scaled columns")
    state, _ = SOLVERS[name].init(problem, *zeros(problem))
    end, _ = run(name, problem, stretched(state, factor), 120)
    assert Exact(problem).gap(end.theta) < 1e-6


@pytest.mark.parametrize("name", STEERED)
def test_a_metric_a_hundred_times_too_large_recovers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(problem: vf.Problem, count: int) -> Metric:
        good = mixed_metric(problem, count)
        return replace(good, theta=100 * good.theta, w=100 * good.w)

    monkeypatch.setattr(steering, "mixed_metric", bad)
    problem = make("discount 0.99")
    result = vf.solve(problem, name, tol=1e-6, max_passes=200)
    assert result.status == "converged"
    assert Exact(problem).gap(result.theta) <= 1e-6


@pytest.mark.parametrize("name", STEERED)
def test_a_sample_that_is_too_small_grows_and_its_cost_is_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def noted(problem: vf.Problem, count: int) -> Metric:
        taken.append(count)
        return mixed_metric(problem, count)

    monkeypatch.setattr(steering, "mixed_metric", noted)
    monkeypatch.setattr(steering, "first_count", lambda problem: 6)
    problem = make("badly scaled columns")
    state, info = SOLVERS[name].init(problem, *zeros(problem))
    assert info.passes == 1 + metric_cost(problem, 6)
    rng, counts = np.random.default_rng(0), [6]
    for _ in range(150):
        before = state
        state, info = SOLVERS[name].epoch(problem, state, rng)
        count = course_of(state).metric.count
        if count != counts[-1]:
            assert count == min(problem.n, GROWTH * counts[-1])
            assert course_of(before).spent > 6 - 4  # not before it had its chance
            assert info.passes >= metric_cost(problem, count) + 1
            assert course_of(state).spent == 0
            counts.append(count)
        else:
            assert info.passes < metric_cost(problem, 6) + 5
    assert counts == taken
    assert len(counts) > 1
    assert Exact(problem).gap(state.theta) < 1e-6


def test_a_sample_that_does_is_kept() -> None:
    problem = make("random MDP")
    course = replace(begin(problem, problem.B(*zeros(problem)), count=200), spent=50.0)
    assert replace(course, first=course.merit * 10 ** (SLOW * 51))._due(problem) == (0, 0.0)
    assert replace(course, first=course.merit * 10 ** (SLOW * 49))._due(problem)[0] == 200 * GROWTH
    assert replace(course, spent=5.0)._due(problem) == (0, 0.0)
    whole = replace(begin(problem, problem.B(*zeros(problem)), count=problem.n), spent=50.0)
    assert whole._due(problem) == (0, 0.0)


# ---- what is asked for is done -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given", [{"step_theta": 0.01, "step_w": 0.02}, {"step_theta": 0.01}, {"step_w": 0.02}], ids=str
)
@pytest.mark.parametrize("name", STEERED)
def test_steps_that_are_given_are_used_as_given(name: str, given: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("a metric was asked for")

    monkeypatch.setattr(steering, "mixed_metric", never)
    monkeypatch.setattr(metric, "_moments", never)
    problem = Oracle(0).problem()
    solver = type(SOLVERS[name])(**given)
    state, _ = solver.init(problem, *zeros(problem))
    rng, first = np.random.default_rng(0), state.steps
    assert all(first[("step_theta", "step_w").index(key)] == value for key, value in given.items())
    for _ in range(5):
        state, _ = solver.epoch(problem, state, rng)
        assert state.steps == first
    assert vf.solve(problem, solver, max_passes=20).status in ("budget", "converged")
    with pytest.raises(AssertionError, match="a metric was asked for"):
        vf.solve(problem, name)


@pytest.mark.parametrize("storage", ["csr", "dense"])
@pytest.mark.parametrize("name", STEERED)
def test_the_theorems_steps_have_no_metric_and_sparse_rows_one_without_matrices(name: str, storage: str) -> None:
    problem = Oracle(0).problem(storage)
    for solver in (SOLVERS[name], type(SOLVERS[name])(steps="theorem", **({"inner": 100} if name == "svrg" else {}))):
        state, _ = solver.init(problem, *zeros(problem))
        parts = state.memory if isinstance(state.memory, tuple) else (state.memory,)
        courses = [part for part in parts if isinstance(part, Course)]
        assert bool(courses) == (solver is SOLVERS[name])
        assert all(isinstance(course.metric.theta, Balanced) == (storage == "csr") for course in courses)


# ---- it arrives --------------------------------------------------------------------------------------------

PASSES = 150  # at most 126 were seen while choosing the settings


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", STEERED)
def test_defaults_reach_a_certified_gap_of_1e_6(name: str, kind: str) -> None:
    problem = make(kind)
    exact = Exact(problem)
    for seed in range(3):
        result = vf.solve(problem, name, tol=1e-6, max_passes=PASSES, seed=seed)
        assert result.status == "converged", result.message
        assert exact.gap(result.theta) <= 1e-6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", STEERED)
def test_a_first_sample_of_three_rows_a_feature_does_too(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "first_count", lambda problem: 3 * problem.k)
    problem = make(kind)
    result = vf.solve(problem, name, tol=1e-6, max_passes=2 * PASSES)
    assert result.status == "converged", result.message
    assert Exact(problem).gap(result.theta) <= 1e-6


@pytest.mark.parametrize("name", STEERED)
def test_the_same_seed_gives_the_same_bits(name: str) -> None:
    one, other = (vf.solve(make("lognormal ratios"), name, tol=0, max_passes=40, seed=3) for _ in range(2))
    assert one.theta.tobytes() == other.theta.tobytes()
    assert one.passes == other.passes


@settings(max_examples=80)
@given(logs(), st.sampled_from(["dense", "float32"]), st.sampled_from(STEERED), st.integers(0, 3))
def test_no_run_ends_above_its_start(log: naive.Log, storage: str, name: str, seed: int) -> None:
    problem = problem_of(log, storage)
    result = vf.solve(problem, name, max_passes=100, seed=seed)
    assert np.isfinite(result.theta).all()
    assert np.isfinite(result.w).all()
    assert result.status != "diverged"
    log = without_dead(log)
    start = naive.objective(log, np.zeros(problem.d))
    assert naive.objective(log, result.theta) <= start + 1e-9 * max(1.0, start)


def test_pdbg_steps_in_balanced_coordinates_where_rows_are_sparse_or_matrices_have_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiles, dense = tiled(), make("badly scaled columns")
    monkeypatch.setattr("valuefit.problem.preconditioner.fits", lambda count: False)
    for problem, better in ((tiles, 0.5), (dense, 1e-2), (sparse_of(dense), 1e-2)):
        exact, solver = Exact(problem), vf.solvers.PDBG()
        state, _ = solver.init(problem, *zeros(problem))
        assert isinstance(state.memory.metric.theta, Balanced)
        assert state.steps[1] == 1 / state.memory.metric.spread
        raw = vf.solve(problem, vf.solvers.PDBG(*solver.auto_steps(problem)), tol=0, max_passes=100)
        own = vf.solve(problem, solver, tol=0, max_passes=100)
        assert exact.gap(own.theta) < better * exact.gap(raw.theta)
