"""LSTD: moments by BLAS equal naive ones, and the gap is bounded."""

import numpy as np
import pytest
import scipy.sparse as sparse

import naive
import valuefit as vf
from helpers.problems import cosines, problem_of, slow_process
from valuefit.linalg import moments
from valuefit.problem.exact import Exact
from valuefit.problem.gap import ROUNDINGS, correction_gap, moments_gap
from valuefit.solvers.lstd import LSTD

SETTINGS = {"plain": {}, "ratio": {"ratio": True}, "more dual features": {"k": 6}, "trace": {"trace": 0.6}}


@pytest.mark.parametrize("storage", ["dense", "csr", "float32"])
@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("small", [0, moments.CACHED_MATRIX_BYTES], ids=["out of cache", "in cache"])
def test_moments_equal_the_naive_ones(monkeypatch, storage, kind, small):
    monkeypatch.setattr(moments, "CACHED_MATRIX_BYTES", small)
    monkeypatch.setattr(moments, "TEMPORARY_BYTES", 500)
    log = naive.random_log(np.random.default_rng(1), n=60, d=4, **SETTINGS[kind])
    tolerance = 1e-5 if storage == "float32" else 1e-12
    for found, expected in zip(problem_of(log, storage).moments(), naive.moments(log), strict=True):
        np.testing.assert_allclose(found, expected, atol=tolerance)


def test_C_is_not_formed_where_it_is_not_needed():
    problem = cosines(500, 10)
    assert vf.solve(problem, "lstd").status == "converged"
    assert "second_moment" not in vars(problem)
    assert "C" not in vars(problem)


def test_passes_count_the_operations():
    plain, ridged = cosines(3000, 40), cosines(3000, 40, ridge=1e-3)
    without_C, with_C = (LSTD().epoch(problem, _start(problem), None)[1].passes for problem in (plain, ridged))
    products = 2 * 40 / 32  # 2 n d^2 operations; a pass reads n d numbers, each in the time of 32 operations
    assert products + 1 <= without_C <= products + 2
    assert 2 + 0.5 * products <= with_C - without_C <= 2 + 0.5 * products + 3 * 40**2 / 32 / 3000 * 2


def _start(problem):
    return LSTD().init(problem, np.zeros(problem.d), np.zeros(problem.k))[0]


def test_float32_products_are_refused_where_they_cannot_be_refined():
    with pytest.raises(ValueError, match=r'A theta = b, which is not the minimiser with a ridge.* Use gram="float64"'):
        vf.solve(cosines(300, 5, ridge=0.1), LSTD(gram="float32"))
    with pytest.raises(ValueError, match="gram is 'half'"):
        LSTD(gram="half")


# ---- the bound of the gap --------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"ridge": 0.1}, {"trace": 0.5}, {"metric": "identity"}])
def test_the_correction_bounds_the_gap(settings):
    problem = cosines(900, 12, **settings)
    exact = Exact(problem)
    theta = exact.theta * 1.01
    bound = correction_gap(problem, theta, exact.theta - theta, problem.residual(theta))
    assert 0.9 * exact.gap(theta) <= bound <= 1000 * exact.gap(theta)


def test_no_pass_follows_where_the_moments_bound_the_gap(monkeypatch):
    problem = cosines(3000, 10)
    with monkeypatch.context() as patched:
        patched.setattr(problem, "products", None)
        patched.setattr(problem, "mean_squares", None)
        loose = vf.solve(problem, "lstd", tol=1e-6)
    tight = vf.solve(problem, "lstd", tol=1e-25)
    assert loose.status == tight.status == "converged"
    assert np.array_equal(loose.theta, tight.theta)
    assert Exact(problem).gap(loose.theta) <= loose.gap <= 1e-6
    assert tight.gap <= 1e-25
    assert tight.passes == loose.passes + 2


def test_a_pass_follows_where_A_is_nearly_singular():
    problem = cosines(3000, 25, spread=0.1)
    assert np.linalg.cond(problem.A) > 1e8
    assert _moments_gap(problem, Exact(problem).theta) > 1
    result = vf.solve(problem, "lstd", tol=1e-6)
    assert result.status == "converged"
    assert Exact(problem).gap(result.theta) <= result.gap <= 1e-6


@pytest.mark.parametrize("storage", ["dense", "csr"])
@pytest.mark.parametrize("kind", ["chain", "repeated rows", "ratio"])
def test_errors_of_the_moments_are_within_their_bounds(storage, kind):
    problem = _moment_case(storage, kind)
    dense = problem.phi.matrix.toarray() if storage == "csr" else problem.phi.matrix
    rows = dense.astype(np.longdouble)
    u = problem.ratio[:, None] * rows[problem.now]
    v = rows[problem.now] - problem.discount[:, None].astype(np.longdouble) * rows[problem.next]
    psi, z, reward = problem.row_sizes()
    rounding = np.finfo(float).eps * ROUNDINGS * np.sqrt(problem.n) * psi
    assert np.linalg.norm((problem.A - u.T @ v / problem.n).astype(float)) <= 0.1 * rounding * z
    assert np.linalg.norm((problem.b - u.T @ problem.reward / problem.n).astype(float)) <= 0.1 * rounding * reward
    for bound, sizes in ((psi, rows[problem.now]), (z, problem.ratio[:, None] * v)):
        mean = float(np.mean(np.sum(sizes**2, axis=1))) ** 0.5
        assert mean <= bound <= 30 * mean


@pytest.mark.parametrize("storage", ["dense", "csr"])
@pytest.mark.parametrize("kind", ["chain", "repeated rows", "ratio"])
def test_the_moments_bound_the_gap_with_errors_as_large_as_their_bounds(storage, kind):
    problem = _moment_case(storage, kind)
    exact, A = Exact(problem), problem.A
    psi, z, _ = problem.row_sizes()
    error = np.finfo(float).eps * ROUNDINGS * np.sqrt(problem.n) * psi * z
    U, _, Vt = np.linalg.svd(A)  # an error in A along its smallest singular vectors changes theta most
    problem.A = A + error * np.outer(U[:, -1], Vt[-1])
    theta = np.linalg.solve(problem.A, problem.b)
    assert 0 < exact.gap(theta) <= _moments_gap(problem, theta) < 1e-6


@pytest.mark.parametrize("settings", [{"trace": 0.5}, {"metric": "identity"}])
def test_the_moments_say_nothing_of_the_gap_with_traces_or_the_identity_metric(settings):
    problem = cosines(900, 12, **settings)
    assert _moments_gap(problem, Exact(problem).theta) == np.inf


def _moment_case(storage, kind):
    rng = np.random.default_rng(0)
    rows = slow_process(rng, 600, 5)
    now, next = np.arange(600), np.arange(1, 601)
    if kind == "repeated rows":
        now, next = rng.integers(0, 40, 600), rng.integers(0, 60, 600)
    ratio = rng.exponential(size=600) if kind == "ratio" else None
    rows = sparse.csr_array(rows) if storage == "csr" else rows
    return vf.Problem.from_rows(rows, now, next, rng.standard_normal(600), 0.9, ratio)


def _moments_gap(problem, theta):
    inverse = np.linalg.norm(np.linalg.inv(problem.A), 2)
    return moments_gap(problem, theta, problem.b - problem.A @ theta, inverse)
