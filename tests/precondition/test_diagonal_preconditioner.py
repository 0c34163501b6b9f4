"""The diagonal preconditioner: its matrix is that of the change of basis, steps are exact, sparse rows converge."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import naive
import valuefit as vf
from helpers.adaptive import SOLVERS, controller_of, matrix_of, run, zeros
from helpers.batches import CASES, STEPS, Setting
from helpers.problems import KINDS, logs, make, problem_of, sparse_of, tiled, without_dead
from valuefit.precondition.diagonal_preconditioner import balance, squared_row_norms
from valuefit.precondition.stochastic_preconditioner import scaling_preconditioner, sketch_passes
from valuefit.problem.exact import Exact
from valuefit.solvers.adaptive_steps import start_controller
from valuefit.solvers.solver import row_steps

NAMES = ["svrg", "saga"]


# ---- the matrix --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", ["csr", "dense", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_the_matrices_are_those_of_the_change_of_basis(case: str, storage: str) -> None:
    """Written down as phi~ = (D (phi - m a'phi), kappa a'phi): the first column of the naive logs is the constant."""
    log = CASES[case].log()
    of_theta, of_w = balance(problem_of(log, storage))
    data = naive.steps(log)
    n, first = len(data), np.eye(log.Phi.shape[1])[0]
    mean = sum(log.Phi[now] for now in log.now) / n
    V = [v - mean * (first @ v) for _, v, _, _ in data]
    scale = 1.0
    if log.identity:
        np.testing.assert_allclose(matrix_of(of_w), np.eye(log.Psi.shape[1]), atol=1e-15)
        scale = sum(psi @ psi for _, _, psi, _ in data) / n
    else:
        centre = sum(psi for _, _, psi, _ in data) / n
        spread = sum((psi - centre) ** 2 for _, _, psi, _ in data) / n
        spread[0] = 1.0
        T = np.vstack([(np.eye(len(centre)) - np.outer(centre, np.eye(len(centre))[0])) / np.sqrt(spread)[:, None],
                       np.eye(len(centre))[0]])  # fmt: skip
        np.testing.assert_allclose(matrix_of(of_w), T.T @ T, rtol=1e-5, atol=1e-5)
    spread = scale * sum(r * v**2 for r, v in zip(log.ratio, V, strict=True)) / n
    spread[0] = scale
    weight = scale * sum(r * (first @ v) ** 2 for r, (_, v, _, _) in zip(log.ratio, data, strict=True)) / n
    T = np.vstack([(np.eye(len(mean)) - np.outer(mean, first)) / np.sqrt(spread + log.ridge)[:, None],
                   first / np.sqrt(weight + log.ridge)])  # fmt: skip
    np.testing.assert_allclose(matrix_of(of_theta), T.T @ T, rtol=1e-5, atol=1e-5 * np.abs(T.T @ T).max())


@settings(max_examples=60)
@given(logs(), st.sampled_from(["csr", "dense"]))
def test_the_matrices_are_symmetric_and_positive_and_know_the_rows_lengths(log: naive.Log, storage: str) -> None:
    problem = problem_of(log, storage)
    found = balance(problem)
    for balanced, columns in zip(found, (problem.phi, problem.psi), strict=True):
        P = matrix_of(balanced)
        size = np.abs(P).max()
        np.testing.assert_allclose(P, P.T, atol=1e-12 * size)
        assert np.linalg.eigvalsh(P).min() >= -1e-9 * size
        assert P.shape == (columns.shape[1],) * 2
    theta, w = (matrix_of(balanced) for balanced in found)
    sizes = squared_row_norms(problem, *found)
    for t, (u, v, psi, _) in enumerate(naive.steps(without_dead(log))):
        for size, row, P in zip(sizes, (psi, u, v), (w, w, theta), strict=True):
            unit = float(np.abs(row) @ np.abs(P) @ np.abs(row))
            assert size[t] == pytest.approx(row @ P @ row, abs=1e-9 * unit + 1e-300)


def test_a_constant_in_the_span_is_found_and_columns_without_data_stay_out_of_it() -> None:
    problem = tiled()
    empty = problem.psi.column_squares(problem.visits) == 0
    assert empty.any()
    for balanced in balance(problem):
        a = balanced.sides[:, 0]
        assert not a[empty].any()
        np.testing.assert_allclose(problem.phi.dot(np.ascontiguousarray(a))[problem.now], 1.0, rtol=1e-12)
        assert not balanced.scale[empty].any()


def test_where_there_is_no_constant_only_scales_are_left() -> None:
    rng = np.random.default_rng(0)
    rows = sparse.csr_array(rng.normal(size=(51, 3)) * [1.0, 1e-3, 1e3])
    problem = vf.Problem.from_rows(rows, np.arange(50), np.arange(1, 51), rng.normal(size=50), 0.9)
    theta, w = balance(problem)
    assert theta.sides.shape == w.sides.shape == (3, 0)
    np.testing.assert_allclose(w.scale, 1 / np.mean(rows.toarray()[:-1] ** 2, axis=0))


# ---- the steps, against the twins --------------------------------------------------------------------------


class Balancing(Setting):
    """The setting of `test_batches` with sparse rows, whose metric is a diagonal with two sides."""

    def __init__(self, case: str) -> None:
        super().__init__(CASES[case])
        self.problem = problem_of(self.log, "csr")
        chosen = scaling_preconditioner(self.problem)
        assert chosen.theta.sides.shape[1] == 2
        self.weight, self.theta, self.w = chosen.weight, chosen.theta, chosen.w

    def twin(self, name: str, batch: int) -> list[tuple[np.ndarray, ...]]:
        naive_batches = {"svrg": naive.svrg_batches, "saga": naive.saga_batches}[name]
        theta, w = matrix_of(self.theta), matrix_of(self.w)
        return naive_batches(self.log, *self.start, [self.draws], batch, self.weight, theta, w, *STEPS)


@pytest.mark.parametrize("batch", [1, 3, 1000])
@pytest.mark.parametrize("case", [case for case in CASES if "float32" not in case and case != "all but identity"])
@pytest.mark.parametrize("name", NAMES)
def test_every_update_equals_that_of_the_twin(name: str, case: str, batch: int) -> None:
    assert Balancing(case).apart(name, batch) <= 1e-9


# ---- the step controller --------------------------------------------------------------------------------------------


def test_where_balance_is_slow_and_matrices_are_affordable_they_follow_and_are_paid_for() -> None:
    problem = sparse_of(make("nearly collinear bumps"))
    cost = sketch_passes(problem, problem.n)
    state, _ = SOLVERS["svrg"].init(problem, *zeros(problem))
    controller = replace(controller_of(state), passes=cost + 6, first_merit=controller_of(state).merit)
    new, _, paid = controller.after_epoch(problem, state.gradient, state.gradient, 1.0, 0)
    assert new.preconditioner.count == problem.n
    assert paid == cost
    assert replace(controller, passes=1.0)._larger_sample(problem) == 0


def test_products_with_the_metric_are_counted_on_sparse_rows() -> None:
    problem = tiled()
    controller = start_controller(problem, problem.B(*zeros(problem)))
    batches = int(np.ceil(problem.n / controller.batch(problem.d)))
    assert controller.product_passes(problem.n, problem.d) == pytest.approx(
        batches * problem.cost.flops(10 * (problem.k + problem.d))
    )
    state, _ = SOLVERS["saga"].init(problem, *zeros(problem))
    _, costs = run("saga", problem, state, 1)
    assert costs[0] == pytest.approx(1 + controller.product_passes(problem.n, problem.d))


def test_dense_rows_whose_matrices_find_no_room_are_balanced_too(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make("random MDP")
    assert start_controller(problem, problem.B(*zeros(problem))).preconditioner.count > 0
    monkeypatch.setattr("valuefit.precondition.stochastic_preconditioner.fits", lambda count: False)
    assert start_controller(problem, problem.B(*zeros(problem))).preconditioner.count == 0
    result = vf.solve(problem, "svrg", tol=1e-6, max_passes=300)
    assert result.status == "converged", result.message
    assert Exact(problem).gap(result.theta) <= 1e-6


@pytest.mark.parametrize("name", ["svrg", "saga"])
def test_few_steps_for_their_features_are_balanced_and_end_nearer_than_along_raw_rows(name: str) -> None:
    rng = np.random.default_rng(0)
    n, d = 60, 40
    rows = rng.normal(size=(n + 1, d)) * np.exp(2 * rng.normal(size=d))
    problem = vf.Problem.from_rows(rows, np.arange(n), np.arange(1, n + 1), rng.normal(size=n), 0.9, ridge=0.01)
    raw = replace(SOLVERS[name], **dict(zip(("step_theta", "step_w"), row_steps(problem), strict=True)))
    ours, theirs = (
        Exact(problem).gap(vf.solve(problem, solver, tol=1e-10, max_passes=200).theta) for solver in (name, raw)
    )
    assert ours < 0.1 * theirs


# ---- it arrives --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_sparse_rows_reach_a_certified_gap_in_the_users_coordinates(name: str, kind: str) -> None:
    problem = sparse_of(make(kind))
    result = vf.solve(problem, name, tol=1e-6, max_passes=400)
    assert result.status == "converged", result.message
    assert Exact(problem).gap(result.theta) <= 1e-6
    if problem.ridge or problem.k > problem.d:
        residual = problem.B(result.theta, result.w)
        assert np.linalg.norm(np.concatenate(residual)) <= 0.05 * np.linalg.norm(problem.b)


@pytest.mark.parametrize("given", [{}, {"trace": 0.5}], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_tiles_get_where_raw_rows_do_not(name: str, given: dict) -> None:
    """A small ridge is left out: raw steps never leave the span of the rows, outside which only it pulls back."""
    problem = tiled(**given)
    exact = Exact(problem)
    raw = SOLVERS[name].auto_steps(problem)
    plain = vf.solve(problem, type(SOLVERS[name])(*raw), tol=0, max_passes=120)
    balanced = vf.solve(problem, name, tol=0, max_passes=120)
    assert exact.gap(balanced.theta) < 0.5 * exact.gap(plain.theta)


@settings(max_examples=60)
@given(logs(), st.sampled_from(NAMES), st.integers(0, 3))
def test_no_run_on_sparse_rows_ends_far_above_its_start(log: naive.Log, name: str, seed: int) -> None:
    """The squared gradient in (theta, w), which may double, is bounded; F, at most about twice that, may oscillate."""
    problem = problem_of(log, "csr")
    result = vf.solve(problem, name, max_passes=100, seed=seed)
    assert np.isfinite(result.theta).all()
    assert np.isfinite(result.w).all()
    assert result.status != "diverged"
    log = without_dead(log)
    start = naive.objective(log, np.zeros(problem.d))
    assert naive.objective(log, result.theta) <= 4.0 * start + 1e-9 * max(1.0, start)


def test_oscillations_of_saga_on_dependent_columns_do_not_add_up() -> None:
    """Two equal steps: each epoch increased the squared gradient less than it may, up to a gap of 140."""
    rows = sparse.csr_array([[-2.0, -2.0]] * 4 + [[-2.0, 0.0]])
    problem = vf.Problem.from_rows(rows, [0, 0], [0, 0], [-2.0, -2.0], 0.0)
    result = vf.solve(problem, "saga", max_passes=100)
    assert result.status == "converged"
    assert problem.objective(result.theta) < 1e-6
