"""GTD2 and TDC with steps of their own: updates, draws, setbacks undone, and better ends than along raw rows."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import naive
import valuefit as vf
from helpers.adaptive import matrix_of
from helpers.batches import axpy, axpyv
from helpers.problems import KINDS, logs, make, problem_of, sparse_of, tiled, without_dead
from helpers.twins import CASES, Case, apart, start_of
from valuefit.problem.diagonal_preconditioner import Balanced
from valuefit.problem.exact import Exact
from valuefit.problem.preconditioner import balanced_metric, mixed_metric
from valuefit.solvers import averaged as plain
from valuefit.solvers.averaged import FAR, SETBACK, SETTLED, Half, Walk
from valuefit.solvers.solver import State

NAMES = ["gtd2", "tdc"]
STEPS = 0.02, 0.05


def zeros(problem: vf.Problem) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(problem.d), np.zeros(problem.k)


def start(name: str, problem: vf.Problem) -> State:
    return vf.solvers.find(name).init(problem, *zeros(problem))[0]


def epochs(name: str, problem: vf.Problem, state: State, count: int) -> State:
    rng = np.random.default_rng(0)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(count):
            state, _ = vf.solvers.find(name).epoch(problem, state, rng)
    return state


# ---- the updates, against the paper in plain loops ---------------------------------------------------------


class Updates:
    """A problem in one storage, the matrices and weights of its metric, and draws with repeats."""

    def __init__(self, case: Case, correction: float = 0.0, seed: int = 3) -> None:
        self.log, self.correction = case.log(seed), correction
        self.problem = problem_of(self.log, case.storage)
        n = self.problem.n
        self.metric = balanced_metric(self.problem) if case.storage == "csr" else mixed_metric(self.problem, n)
        self.draws = np.random.default_rng(5).integers(0, n, n + 3)

    def twin(self, count: int, batch: int) -> tuple[np.ndarray, ...]:
        """theta, w, the mean iterate and the mean gradient: one row after the other, matrices written out."""
        data, (theta, w) = naive.steps(self.log), start_of(self.log)
        P, Q = (matrix_of(m) if isinstance(m, Balanced) else m for m in (self.metric.theta, self.metric.w))
        means = [np.zeros_like(part) for part in (theta, w, theta, w)]
        for first in range(0, count, batch):
            together = [np.zeros_like(theta), np.zeros_like(w)]
            for t in self.draws[first : min(first + batch, count)]:
                u, v, psi, reward = data[t]
                g_theta = self.metric.weight[t] * -v * (u @ w) + self.log.ridge * theta
                g_w = self.metric.weight[t] * u * (v @ theta - reward)
                g_w = g_w + (w if self.log.identity else self.metric.weight[t] * psi * (psi @ w))
                for mean, value in zip(means, (theta, w, g_theta, g_w), strict=True):
                    mean += value / count
                together[0] += g_theta
                together[1] += g_w
            along = together[0] + (self.correction * together[1] if self.correction else 0.0)
            theta, w = theta - STEPS[0] * P @ along, w - STEPS[1] * Q @ together[1]
        return theta, w, *means

    def fast(self, count: int, batch: int, kernel: Any = None) -> tuple[np.ndarray, ...]:
        p, draws = self.problem, self.draws[:count]
        theta, w = (part.copy() for part in start_of(self.log))
        half = Half(np.zeros(p.d), np.zeros(p.k), np.zeros(p.d), np.zeros(p.k))
        (kernel or plain.batches)(
            p.phi.kernel, p.psi.kernel, p.u.kernel, *p.steps(draws), p.reward[draws], self.metric.weight[draws],
            self.metric.theta, self.metric.w, theta, w, *half, batch, *STEPS, self.correction, p.ridge, p.identity,
        )  # fmt: skip
        return theta, w, *half

    def apart(self, batch: int, kernel: Any = None) -> float:
        counts = (1, 2, 5, len(self.draws))
        return max(apart(self.fast(count, batch, kernel), self.twin(count, batch)) for count in counts)


@settings(max_examples=120)
@given(st.sampled_from(CASES), st.sampled_from([0.0, 0.4]), st.sampled_from([1, 3, 1000]), st.integers(0, 5))
def test_every_update_equals_that_of_the_twin(case: Case, correction: float, batch: int, seed: int) -> None:
    updates = Updates(case, 0.0 if case.more else correction, seed)
    expected = updates.twin(len(updates.draws), batch)
    scale = max(1.0, *(float(np.abs(part).max()) for part in expected))
    assert updates.apart(batch) <= 1e-9 * scale
    assert apart(expected[:1], start_of(updates.log)[:1]) > 1e-3, "the twin stood still, so this compares nothing"


@pytest.mark.parametrize(
    ("right", "wrong", "seen"),
    [
        ("", "", False),
        ("count * ridge * theta[c]", "ridge * theta[c]", True),
        ("-weight[j] * u_w", "-u_w", True),
        ("weight[j] * psi_w", "psi_w", True),
        ("correction * g_w[c]", "g_w[c]", True),
        ("times(metric_theta, g_theta)", "g_theta", True),
        ("of_w += g_w / draws", "of_w += g_w", True),
        ("count / draws * w[c]", "w[c] / draws", True),
    ],
)
def test_a_planted_fault_in_the_kernel_is_seen(right: str, wrong: str, seen: bool) -> None:
    source = inspect.getsource(plain.batches.py_func).split("\n", 1)[1]
    assert right in source
    space: dict = {
        "np": np, "axpy": axpy, "axpyv": axpyv, "dot": lambda rows, i, x: rows[i] @ x,
        "dotv": lambda rows, i, j, discount, x: (rows[i] - discount * rows[j]) @ x,
        "fetch": lambda rows, i: None, "times": lambda matrix, x: matrix @ x,
    }  # fmt: skip
    exec(source.replace(right, wrong), space)
    updates = Updates(Case(ratio=True, ridge=0.1), 0.4)
    assert (updates.apart(3, space["batches"]) > 1e-6) == seen


@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_weighted_gradients_are_those_of_the_log_in_the_mean(storage: str) -> None:
    """Every step taken as often as it is drawn: the sum is B, ridge and all."""
    log = Case(storage, ratio=True, trace=0.7, ridge=0.1).log()
    problem = problem_of(log, storage)
    metric = balanced_metric(problem) if storage == "csr" else mixed_metric(problem, problem.n)
    assert metric.weight.std() > 0.01
    theta, w = start_of(log)
    found = np.zeros(problem.d), np.zeros(problem.k)
    for t in range(problem.n):
        half = Half(np.zeros(problem.d), np.zeros(problem.k), np.zeros(problem.d), np.zeros(problem.k))
        draws = np.array([t])
        plain.batches(
            problem.phi.kernel, problem.psi.kernel, problem.u.kernel, *problem.steps(draws), problem.reward[draws],
            metric.weight[draws], metric.theta, metric.w, theta.copy(), w.copy(), *half, 1, 0.0, 0.0, 0.0,
            problem.ridge, problem.identity,
        )  # fmt: skip
        for total, part in zip(found, (half.of_theta, half.of_w), strict=True):
            total += part / (problem.n * metric.weight[t])
    assert apart(found, naive.B(log, theta, w)) <= 1e-10


# ---- one epoch ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1e3, 1e150], ids=["too long", "out of range"])
@pytest.mark.parametrize("name", NAMES)
def test_an_epoch_whose_gradients_grew_is_undone(name: str, factor: float) -> None:
    problem = make("random MDP")
    before = epochs(name, problem, start(name, problem), 4)
    walk: Walk = before.memory
    single = factor * walk.course.single[0], factor * walk.course.single[1]
    planted = replace(before, memory=walk._replace(course=replace(walk.course, single=single)))
    after = epochs(name, problem, planted, 1)
    assert after.theta is walk.kept_theta
    assert after.w is walk.kept_w
    assert after.memory.theta is walk.kept_theta
    assert after.memory.course.size < walk.course.size
    assert after.memory.course.longest < walk.course.size
    assert after.memory.correction < walk.correction or name == "gtd2"
    assert after.steps == after.memory.course.steps
    end = epochs(name, problem, after, 60)
    assert Exact(problem).gap(end.theta) < 0.03


def halves(problem: vf.Problem, first: float, second: float, sign: float = 1.0) -> tuple[Half, Half]:
    """Two halves of an epoch around theta = 1, whose squared gradients are so many times that of the start."""
    gradient = problem.B(*zeros(problem))
    at = np.ones(problem.d), np.ones(problem.k)
    one, two = math.sqrt(first), sign * math.sqrt(second)
    return Half(*at, one * gradient[0], one * gradient[1]), Half(*at, two * gradient[0], two * gradient[1])


@pytest.mark.parametrize(
    ("first", "second", "sign", "size"),
    [(0.1, 0.1, 1.0, 1), (0.1, 0.1, -1.0, 0), (3.0, 4.5, 1.0, 1), (6.0, 11.0, -1.0, -2), (1.0, 300.0, 1.0, -5)],
)
def test_steps_grow_where_halves_agree_and_shrink_where_gradients_grow(
    first: float, second: float, sign: float, size: int
) -> None:
    problem = make("random MDP")
    state = start("gtd2", problem)
    state = replace(state, memory=state.memory._replace(epochs=2, fresh=False))
    after = state.memory.judge(state, *zeros(problem), *halves(problem, first, second, sign))
    assert after.memory.course.size == size
    assert (after.theta is state.theta) == (0.5 * (first + second) > SETBACK)
    assert after.memory.epochs == (2 if size < 0 else 1 if size else 3)


def test_the_answer_is_the_mean_iterate_and_starts_anew_while_the_gradient_is_clear() -> None:
    problem = make("random MDP")
    state, shown = start("gtd2", problem), []
    for k in range(1, SETTLED + 1):
        half = halves(problem, 0.1, 0.1, -1.0)
        half = tuple(part._replace(theta=k * part.theta) for part in half)
        state = state.memory.judge(state, *zeros(problem), *half)
        shown.append(state.theta[0])
    np.testing.assert_allclose(shown, [1, 5 / 3, 14 / 6, 30 / 10])  # the k-th weighs k
    late = state.memory.judge(state, *zeros(problem), *halves(problem, 0.1, 0.1))
    assert late.memory.epochs == SETTLED + 1  # by then it is chance
    assert late.memory.course.size == 0
    soon = replace(state, memory=state.memory._replace(epochs=SETTLED - 1))
    anew = soon.memory.judge(soon, *zeros(problem), *halves(problem, 0.1, 0.1))
    np.testing.assert_allclose(anew.theta, 1.0)
    assert (anew.memory.epochs, anew.memory.course.size) == (1, 1)


def test_slow_growth_is_undone_as_well_and_leads_back_to_a_calm_answer() -> None:
    problem = make("random MDP")
    state = start("gtd2", problem)
    state = state.memory.judge(state, *zeros(problem), *halves(problem, 0.01, 0.01, -1.0))
    unit = start("gtd2", problem).memory.usual
    calm, size = state, 0.01
    state = replace(state, memory=state.memory._replace(usual=0.01 * unit, least=0.01 * unit))
    while state.memory.course.size == 0:
        size *= 2.2
        assert size * unit <= SETBACK * state.memory.usual  # never much at once
        state = state.memory.judge(state, *zeros(problem), *halves(problem, size, size, -1.0))
    assert FAR * 0.01 < size < 3 * FAR * 0.01
    assert state.theta is calm.memory.kept_theta


# ---- a whole run -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_steps_of_their_own_end_nearer_than_those_along_raw_rows(name: str, kind: str) -> None:
    if name == "tdc" and kind == "dual features":
        kind = "ridge"  # it takes none
    problem = make(kind)
    exact, cls = Exact(problem), type(vf.solvers.find(name))
    raw, own = (
        np.mean([exact.gap(vf.solve(problem, solver, tol=0, max_passes=60, seed=s).theta) for s in range(3)])
        for solver in (cls(decay=10.0), cls())
    )
    assert own < 0.7 * raw


@pytest.mark.parametrize("given", [{}, {"trace": 0.5}, {"ridge": 0.01}, {"metric": "identity"}], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_so_they_do_on_sparse_rows(name: str, given: dict) -> None:
    problem = tiled(**given)
    exact, cls = Exact(problem), type(vf.solvers.find(name))
    raw = vf.solve(problem, cls(decay=10.0), tol=0, max_passes=60)
    own = vf.solve(problem, name, tol=0, max_passes=60)
    assert isinstance(start(name, problem).memory.course.metric.theta, Balanced)
    assert exact.gap(own.theta) < (0.9 if problem.identity else 0.4) * exact.gap(raw.theta)


@pytest.mark.parametrize("name", NAMES)
def test_a_start_at_the_answer_stays_there(name: str) -> None:
    """Its gradient is far below the noise of an epoch, which is no setback."""
    problem = make("discount 0.99")
    exact = Exact(problem)
    result = vf.solve(problem, name, tol=0, max_passes=60, init=(exact.theta, exact.w))
    assert exact.gap(result.theta) < 0.05
    state, _ = vf.solvers.find(name).init(problem, exact.theta, exact.w)
    assert epochs(name, problem, state, 20).memory.course.size > -3


@settings(max_examples=80)
@given(logs(), st.sampled_from(["dense", "float32", "csr"]), st.sampled_from(NAMES), st.integers(0, 3))
def test_no_run_ends_above_its_start(log: naive.Log, storage: str, name: str, seed: int) -> None:
    problem = problem_of(log, storage)
    if name == "tdc" and problem.k != problem.d:
        name = "gtd2"
    result = vf.solve(problem, name, tol=0, max_passes=100, seed=seed)
    assert np.isfinite(result.theta).all()
    assert np.isfinite(result.w).all()
    assert result.status != "diverged"
    log = without_dead(log)
    before = naive.objective(log, np.zeros(problem.d))
    assert naive.objective(log, result.theta) <= before + 1e-9 * max(1.0, before)


# ---- what is asked for is done -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given", [{"step_theta": 0.01, "step_w": 0.02}, {"step_theta": 0.01}, {"decay": 5.0}, {"decay": math.inf}], ids=str
)
@pytest.mark.parametrize("name", NAMES)
def test_given_steps_or_decay_go_along_raw_rows(name: str, given: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, cls = make("random MDP"), type(vf.solvers.find(name))

    def never(*arguments: object) -> None:
        raise AssertionError("a metric was asked for")

    monkeypatch.setattr("valuefit.solvers.averaged.begin", never)
    state, cost = cls(**given).init(problem, *zeros(problem))
    assert (state.memory, cost) == (None, 0.0)
    assert vf.solve(problem, cls(**given), tol=0, max_passes=5).status == "budget"


@pytest.mark.parametrize("name", NAMES)
def test_given_steps_halve_after_ten_passes_unless_told_otherwise(name: str) -> None:
    problem, cls = make("random MDP"), type(vf.solvers.find(name))
    one, other = (
        vf.solve(problem, cls(step_theta=0.01, step_w=0.02, **more), tol=0, max_passes=20)
        for more in ({}, {"decay": 10.0})
    )
    assert one.theta.tobytes() == other.theta.tobytes()


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
