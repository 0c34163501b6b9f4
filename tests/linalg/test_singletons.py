"""Column singletons: what is eliminated, and that C and its solutions are the same as without elimination."""

import numpy as np
import pytest
import scipy.sparse as sparse

import valuefit as vf
from valuefit.linalg.singletons import column_singletons
from valuefit.problem import preconditioner as module
from valuefit.problem.exact import Exact
from valuefit.rows.storage import Rows


def rare(n=60, d=50, seed=0, density=0.03):
    """Rows so sparse that many columns have one row, at first or after eliminations."""
    rng = np.random.default_rng(seed)
    rows = sparse.random_array((n, d), density=density, rng=rng, format="csr", data_sampler=rng.standard_normal)
    return Rows(rows, "features"), rng.integers(0, 3, n) / n


def plainly_eliminated(X, weights):
    """The columns and rows that remain, by repeated search."""
    rows, eliminated = weights > 0, np.zeros(X.shape[1], bool)
    while True:
        counts = np.count_nonzero(X[rows], axis=0)
        single = np.flatnonzero(counts == 1)
        if not len(single):
            return counts > 0, rows, eliminated
        column = single[0]
        rows &= X[:, column] == 0
        eliminated[column] = True


@pytest.mark.parametrize("seed", range(5))
def test_the_rows_and_columns_that_remain_are_those_of_a_plain_search(seed):
    rows, weights = rare(seed=seed)
    found = column_singletons(rows, weights)
    columns_left, rows_left, eliminated = plainly_eliminated(rows.matrix.toarray(), weights)
    assert len(found.columns) == eliminated.sum() > 3
    np.testing.assert_array_equal(found.remaining & (weights > 0), rows_left)
    left = np.any(rows.matrix.toarray()[found.remaining & (weights > 0)] != 0, axis=0)
    np.testing.assert_array_equal(left, columns_left)
    assert not left[found.columns].any()


@pytest.mark.parametrize("seed", range(5))
def test_elimination_solves_and_multiplies_as_the_whole_matrix(seed):
    rows, weights = rare(seed=seed)
    X = rows.matrix.toarray()
    found = column_singletons(rows, weights)
    S, rest = X.T @ (weights[:, None] * X), X.T @ ((weights * found.remaining)[:, None] * X)
    x = np.random.default_rng(1).standard_normal(len(S))
    np.testing.assert_allclose(found @ x + rest @ x, S @ x, atol=1e-14)
    products, left = found.forward(S @ x)
    solution = found.backward(products, np.linalg.pinv(rest) @ left)
    np.testing.assert_allclose(S @ solution, S @ x, atol=1e-10)
    np.testing.assert_allclose(products, found.weights * (found.rows @ solution), atol=1e-10)


def test_stored_zeros_do_not_count_as_data():
    matrix = sparse.csr_array((np.array([1.0, 0.0, 2.0]), np.array([0, 1, 0]), np.array([0, 2, 3])), shape=(2, 2))
    assert len(column_singletons(Rows(matrix, "features"), np.ones(2)).columns) == 0


def test_a_column_that_rounding_could_hide_is_left():
    matrix = sparse.csr_array([[1.0, 1e-7], [1.0, 0.0]])
    assert len(column_singletons(Rows(matrix, "features"), np.ones(2)).columns) == 0


@pytest.mark.parametrize("kind", ["factor", "sweeps"])
@pytest.mark.parametrize("d", [40, 400])
def test_krylov_with_singletons_reaches_the_exact_solution(monkeypatch, kind, d):
    monkeypatch.setattr(module, "affordable", lambda problem, **limits: False)
    if kind == "sweeps":
        monkeypatch.setattr(module, "MAX_SPARSE_PASSES", 0.0)
    rng = np.random.default_rng(0)
    rows = sparse.csr_array(np.eye(d)[rng.integers(0, d, 301)] + np.eye(d)[rng.integers(0, d, 301)])
    problem = vf.Problem.from_rows(rows, np.arange(300), np.arange(1, 301), rng.standard_normal(300), 0.9)
    found = module.precondition(problem)
    assert len(found.matrix.singletons.columns) >= (100 if d == 400 else 0)
    result = vf.solve(problem, "krylov", tol=1e-8, max_passes=5000)
    assert result.status == "converged"
    assert Exact(problem).gap(result.theta) <= 1e-8


@pytest.mark.parametrize("kind", ["factor", "sweeps"])
def test_nothing_may_be_left(monkeypatch, kind):
    monkeypatch.setattr(module, "affordable", lambda problem, **limits: False)
    if kind == "sweeps":
        monkeypatch.setattr(module, "MAX_SPARSE_PASSES", 0.0)
    problem = vf.Problem.from_rows(
        sparse.eye_array(31, format="csr"), np.arange(30), np.arange(1, 31), np.ones(30), 0.5
    )
    found = module.precondition(problem)
    assert found.matrix.inside.shape == (0, 0)
    r = problem.C @ np.arange(31.0)
    np.testing.assert_allclose(found.dual(r)[:30], np.arange(30.0), rtol=1e-12)
    assert vf.solve(problem, "krylov", tol=1e-8).status == "converged"
