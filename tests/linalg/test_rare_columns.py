"""Rare columns: what is eliminated, and that C and its solutions are the same as without elimination."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sparse

import valuefit as vf
from valuefit.linalg.moments import sparse_second_moment
from valuefit.linalg.rare_columns import _eliminate, eliminate_rare_columns
from valuefit.precondition import preconditioner as module
from valuefit.problem.cost import Cost
from valuefit.problem.exact import Exact
from valuefit.rows.storage import Rows


def rare(n=60, d=50, seed=0, density=0.03, ones=False):
    """Rows so sparse that many columns have one row or two, at first or after eliminations."""
    rng = np.random.default_rng(seed)
    sampler = np.ones if ones else rng.standard_normal
    rows = sparse.random_array((n, d), density=density, rng=rng, format="csr", data_sampler=lambda size: sampler(size))
    return Rows(rows, "features"), rng.integers(0, 3, n) / n


def whole(matrix, weights):
    return matrix.T @ (weights[:, None] * matrix)


def plainly_eliminated(X, weights):
    """The columns and rows that remain after columns with a single row, by repeated search."""
    rows, eliminated = weights > 0, np.zeros(X.shape[1], bool)
    while True:
        counts = np.count_nonzero(X[rows], axis=0)
        single = np.flatnonzero(counts == 1)
        if not len(single):
            return counts > 0, rows, eliminated
        column = single[0]
        rows &= X[:, column] == 0
        eliminated[column] = True


def schur_complement(X, weights, columns):
    """Of these columns of X' diag(weights) X, one after another, in rational numbers."""
    X, weights = np.vectorize(Fraction, otypes=[object])(X), [Fraction(weight) for weight in weights]
    S = X.T @ (np.array(weights)[:, None] * X)
    for j in columns:
        S = S - np.outer(S[:, j], S[j]) / S[j, j]
    return S.astype(float)


@pytest.mark.parametrize("seed", range(5))
def test_without_pairs_the_rows_and_columns_that_remain_are_those_of_a_plain_search(seed):
    rows, weights = rare(seed=seed)
    used = weights > 0
    found = _eliminate(rows.matrix[used], weights[used], rows.column_squares(weights), pairs=False)
    X = rows.matrix.toarray()
    columns_left, rows_left, eliminated = plainly_eliminated(X, weights)
    assert len(found.columns) == eliminated.sum() > 3
    np.testing.assert_array_equal(found.rest.toarray(), X[rows_left])
    np.testing.assert_array_equal(found.rest_weights, weights[rows_left])
    left = np.any(found.rest.toarray() != 0, axis=0)
    np.testing.assert_array_equal(left, columns_left)
    assert not left[found.columns].any()


@pytest.mark.parametrize("seed", range(10))
def test_the_rest_is_the_schur_complement_of_the_eliminated_columns(seed):
    rng = np.random.default_rng(seed)
    X, weights = rng.integers(0, 3, (40, 30)) * (rng.random((40, 30)) < 0.1), rng.integers(0, 4, 40)
    found = eliminate_rare_columns(Rows(sparse.csr_array(X.astype(float)), "features"), weights.astype(float))
    expected = schur_complement(X.astype(int), weights, found.columns)
    np.testing.assert_allclose(whole(found.rest.toarray(), found.rest_weights), expected, atol=1e-9)
    np.testing.assert_allclose(found.rows.toarray()[np.arange(len(found.columns)), found.columns], 1.0, rtol=1e-15)
    counts = np.count_nonzero(found.rest.toarray(), axis=0)
    assert not counts[found.columns].any()
    assert not (counts == 1).any()
    assert found.rest.has_sorted_indices


@pytest.mark.parametrize(("size", "rank"), [(7, 7), (8, 7)])
def test_a_cycle_of_pairs_is_eliminated(size, rank):
    """Row i uses columns i and i + 1: no column has a single row, and an even number of them is dependent."""
    cycle = sparse.csr_array(np.eye(size) + np.roll(np.eye(size), 1, axis=1))
    found = eliminate_rare_columns(Rows(cycle, "features"), np.arange(1.0, size + 1))
    assert len(found.columns) == rank
    assert found.rest.nnz == 0


@pytest.mark.parametrize("ones", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_elimination_solves_and_multiplies_as_the_whole_matrix(seed, ones):
    rows, weights = rare(seed=seed, density=0.08, ones=ones)
    found = eliminate_rare_columns(rows, weights)
    S, rest = whole(rows.matrix.toarray(), weights), whole(found.rest.toarray(), found.rest_weights)
    x = np.random.default_rng(1).standard_normal(len(S))
    np.testing.assert_allclose(found @ x + rest @ x, S @ x, atol=1e-14)
    np.testing.assert_allclose(sparse_second_moment(found.rest, found.rest_weights).toarray(), rest, atol=1e-15)
    products, left = found.forward(S @ x)
    solution = found.backward(products, np.linalg.pinv(rest) @ left)
    np.testing.assert_allclose(S @ solution, S @ x, atol=1e-8)
    np.testing.assert_allclose(products, found.weights * (found.rows @ solution), atol=1e-8)


def test_two_equal_rows_leave_nothing():
    rows = Rows(sparse.csr_array([[1.0, 2.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]), "features")
    found = eliminate_rare_columns(rows, np.array([1.0, 2.0, 3.0, 4.0]))
    assert found.rest.shape[0] == 0
    assert len(found.columns) == 2
    np.testing.assert_allclose(np.sort(found.weights), [3.0, 7.0])


def test_differences_do_not_fill_the_rest():
    """A column for each edge of a random graph: merging its nodes would end in rows with thousands of edges."""
    edges = np.random.default_rng(0).integers(0, 1000, (4000, 2))
    edges = edges[edges[:, 0] != edges[:, 1]]
    column = np.repeat(np.arange(len(edges)), 2)
    matrix = sparse.csr_array((np.ones(len(column)), (edges.ravel(), column)), shape=(1000, len(edges)))
    found = eliminate_rare_columns(Rows(matrix, "features"), np.ones(1000))
    products = (np.diff(matrix.indptr) ** 2).sum()
    assert (np.diff(found.rest.indptr) ** 2).sum() <= products
    assert 1 < len(found.columns) < 900  # of a rank of almost 1000


def test_differences_that_rounding_could_hide_are_not_taken():
    """Two rows that differ by 1e-7 in a column of length 1: its Schur complement would be 1e-14."""
    matrix = sparse.csr_array([[1.0, 1.0, 0.0], [1.0, 1.0 + 1e-7, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    found = eliminate_rare_columns(Rows(matrix, "features"), np.ones(4))
    assert len(found.columns) == 0
    assert found.rest.shape == (4, 3)


def test_stored_zeros_do_not_count_as_data():
    matrix = sparse.csr_array((np.array([1.0, 0.0, 2.0]), np.array([0, 1, 0]), np.array([0, 2, 3])), shape=(2, 2))
    assert 1 not in eliminate_rare_columns(Rows(matrix, "features"), np.ones(2)).columns


def test_a_column_that_rounding_could_hide_is_left():
    matrix = sparse.csr_array([[1.0, 1e-7], [1.0, 0.0], [1.0, 0.0]])
    assert len(eliminate_rare_columns(Rows(matrix, "features"), np.ones(3)).columns) == 0


@pytest.mark.parametrize("kind", ["factor", "sweeps"])
@pytest.mark.parametrize("trace", [0.0, 0.7])
@pytest.mark.parametrize("d", [40, 400])
def test_krylov_with_rare_columns_reaches_the_exact_solution(monkeypatch, kind, trace, d):
    monkeypatch.setattr(Cost, "affords_factor", lambda *sizes, **limits: False)
    if kind == "sweeps":
        monkeypatch.setattr(module, "MAX_SPARSE_PASSES", 0.0)
    rng = np.random.default_rng(0)
    rows = sparse.csr_array(np.eye(d)[rng.integers(0, d, 301)] + np.eye(d)[rng.integers(0, d, 301)])
    problem = vf.Problem.from_rows(
        rows, np.arange(300), np.arange(1, 301), rng.standard_normal(300), 0.9, trace=trace,
        ratio=rng.uniform(0.5, 1.5, 300),
    )  # fmt: skip
    found = module.precondition(problem)
    assert len(found.matrix.rare.columns) >= (100 if d == 400 else 0)
    result = vf.solve(problem, "krylov", tol=1e-8, max_passes=5000)
    assert result.status == "converged"
    assert Exact(problem).gap(result.theta) <= 1e-8


@pytest.mark.parametrize("kind", ["factor", "sweeps"])
def test_nothing_may_be_left(monkeypatch, kind):
    monkeypatch.setattr(Cost, "affords_factor", lambda *sizes, **limits: False)
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
