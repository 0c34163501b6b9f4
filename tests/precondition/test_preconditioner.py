"""Preconditioners of the saddle point: each is the inverse that it says, and the choice follows memory and passes."""

import numpy as np
import pytest
import scipy.sparse as sparse

from helpers.problems import chain, cosines, small
from valuefit.precondition import preconditioner as module
from valuefit.precondition.factor import DenseFactor
from valuefit.precondition.preconditioner import (
    Diagonal,
    GaussSeidelSweeps,
    SparseCholesky,
    precondition,
    sparse_moment,
    sparse_preconditioner,
)
from valuefit.precondition.stochastic_preconditioner import scaling_preconditioner, sketched_preconditioner
from valuefit.problem.gap import energy_below


def tiles(**settings):
    rng = np.random.default_rng(0)
    rows = sparse.random_array((801, 30), density=0.15, rng=rng, format="csr")
    return chain(rows, rng.standard_normal(800), **settings)


def images(function, size):
    return np.column_stack([function(column) for column in np.eye(size)])


def saddle_inverse(found, k, d):
    """The matrix of `saddle`."""
    return images(lambda x: np.concatenate(found.saddle(x[:d], x[d:], found.dual(x[d:]))), d + k)


def saddle_matrix(A, C, ridge):
    return np.block([[ridge * np.eye(A.shape[1]), -A.T], [A, C]])


def sparse_one(problem, kind):
    moment = sparse_moment(problem, limit=np.inf, ridge=problem.ridge)
    assert moment is not None
    return sparse_preconditioner(
        problem, moment if kind == "factor" else moment._replace(plan=None), ridge=problem.ridge
    )


@pytest.mark.parametrize("settings", [{"ridge": 0.1}, {"k": 6}, {"k": 6, "ridge": 0.1}, {"identity": True, "k": 6}])
def test_the_dense_factor_of_all_rows_inverts_the_saddle_point(settings):
    problem = small(0, **settings)
    found = precondition(problem)
    assert isinstance(found, DenseFactor)
    A, _, C = problem.moments()
    K = saddle_matrix(A, C, problem.ridge)
    np.testing.assert_allclose(saddle_inverse(found, problem.k, problem.d) @ K, np.eye(len(K)), atol=1e-8)
    H = A.T @ np.linalg.solve(C, A) + problem.ridge * np.eye(problem.d)
    np.testing.assert_allclose(images(found.primal, problem.d) @ H, np.eye(problem.d), atol=1e-8)
    np.testing.assert_allclose(images(found.dual, problem.k) @ C, np.eye(problem.k), atol=1e-8)


@pytest.mark.parametrize("identity", [False, True])
def test_at_ridge_0_it_inverts_A(identity):
    problem = small(0, identity=identity)
    found = precondition(problem)
    r = np.arange(1.0, 5.0)
    np.testing.assert_allclose(problem.A @ found.fixed_point(r, found.dual(r)), r, rtol=1e-8)
    np.testing.assert_allclose(problem.C @ found.dual(r), r, rtol=1e-8)


def test_sparse_factors_have_C_in_place_of_A():
    problem = tiles(ridge=0.01)
    found = sparse_one(problem, "factor")
    assert isinstance(found, SparseCholesky)
    assert found.excess == found.likely == 1.0
    C = problem.C
    K = saddle_matrix(C, C, 0.01)
    np.testing.assert_allclose(saddle_inverse(found, 30, 30) @ K, np.eye(60), atol=1e-8)
    np.testing.assert_allclose(images(found.matrix.__matmul__, 30), C, atol=1e-12)
    r = C @ np.ones(30)
    np.testing.assert_allclose(found.fixed_point(r, found.dual(r)), np.ones(30), atol=1e-8)


def test_sweeps_have_C_in_place_of_A():
    problem = tiles(ridge=0.01)
    found = sparse_one(problem, "sweeps")
    assert isinstance(found, GaussSeidelSweeps)
    dual = images(found.dual, 30)
    np.testing.assert_allclose(dual, dual.T, atol=1e-9)
    assert np.linalg.eigvals(dual @ problem.C).real.max() <= 1 + 1e-9  # C~ >= C
    C = problem.C
    x = np.random.default_rng(0).standard_normal(60)
    g, r = np.split(saddle_matrix(C, C, 0.01) @ x, 2)
    theta, w = found.saddle(g, r, found.dual(r))
    np.testing.assert_allclose(np.concatenate([theta, w]), x, atol=1e-4)


@pytest.mark.parametrize("settings", [{}, {"ridge": 0.1}, {"metric": "identity", "ridge": 0.1}])
def test_diagonals_are_those_of_the_moments(settings):
    problem = tiles(**settings)
    found = module.diagonal_preconditioner(problem)
    size = np.diag(problem.second_moment)
    C = np.eye(30) if problem.identity else np.diag(size)
    K = saddle_matrix(np.diag(size), C, problem.ridge)
    np.testing.assert_allclose(saddle_inverse(found, 30, 30) @ K, np.eye(60), atol=1e-9)
    assert found.excess == (1.0 if problem.identity else np.inf)


def test_the_choice_follows_passes_and_memory(monkeypatch):
    problem = tiles(ridge=0.01)
    assert isinstance(precondition(problem), DenseFactor)
    monkeypatch.setattr(module, "MAX_DENSE_PASSES", 0.0)
    assert isinstance(precondition(problem), SparseCholesky)
    assert isinstance(precondition(problem, with_A=False), SparseCholesky)
    monkeypatch.setattr(module, "MAX_SPARSE_PASSES", 0.0)
    assert isinstance(precondition(problem), GaussSeidelSweeps)
    assert isinstance(precondition(problem, limit=0.5), Diagonal)
    assert isinstance(precondition(cosines(300, 10), limit=0.5), Diagonal)
    identity = precondition(small(0, identity=True), with_A=False)
    assert (identity.excess, identity.passes) == (1.0, 0.0)


def test_stochastic_steps_multiply_by_the_inverses_of_the_factor_that_a_certificate_gets():
    problem = cosines(800, 10)
    chosen, r = sketched_preconditioner(problem, 200), np.arange(10.0)
    np.testing.assert_allclose(chosen.factor.dual(r), chosen.w @ r)
    np.testing.assert_allclose(chosen.factor.primal(r), chosen.theta @ r)
    energy, _ = energy_below(problem, chosen.factor, problem.b)
    assert 0 < energy <= problem.b @ np.linalg.solve(problem.C, problem.b)
    slack = chosen.factor.excess * problem.C - np.linalg.inv(chosen.w)
    assert np.linalg.eigvalsh(slack)[0] >= -1e-9 * np.abs(problem.C).max()
    assert scaling_preconditioner(problem).factor is None
