"""LSTD: moments by BLAS equal naive ones, float32 products are refined, and the gap is bounded."""

import numpy as np
import pytest
import scipy.sparse as sparse

import naive
import valuefit as vf
from helpers.problems import chain, cosines, problem_of, slow_process
from valuefit.linalg import moments
from valuefit.problem.exact import Exact, correction_gap
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


def test_moments_with_repeated_rows_and_rows_that_no_step_starts_from():
    rng = np.random.default_rng(0)
    rows, now = rng.standard_normal((30, 3)), rng.integers(5, 12, 400)
    next, reward = rng.integers(0, 30, 400), rng.standard_normal(400)
    problem = vf.Problem.from_rows(rows, now, next, reward, 0.9)
    v = rows[now] - 0.9 * rows[next]
    np.testing.assert_allclose(problem.A, rows[now].T @ v / 400, atol=1e-13)
    np.testing.assert_allclose(problem.C, rows[now].T @ rows[now] / 400, atol=1e-13)
    assert np.array_equal(problem.C, problem.C.T)


def test_C_is_not_formed_where_it_is_not_needed():
    problem = cosines(500, 10)
    assert vf.solve(problem, "lstd").status == "converged"
    assert "second_moment" not in vars(problem)
    assert "C" not in vars(problem)


def test_passes_count_the_operations():
    plain, ridged = cosines(3000, 40), cosines(3000, 40, ridge=1e-3)
    without_C, with_C = (LSTD().epoch(problem, _start(problem), None)[1].passes for problem in (plain, ridged))
    products = 2 * 40 / 32  # 2 n d^2 operations; a pass reads n d numbers, each in the time of 32 operations
    assert products + 3 <= without_C <= products + 4
    assert 0.5 * products <= with_C - without_C <= 0.5 * products + 3 * 40**2 / 32 / 3000 * 2


def _start(problem):
    return LSTD().init(problem, np.zeros(problem.d), np.zeros(problem.k))[0]


# ---- float32 products ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "ratio"])
def test_float32_products_are_refined_to_the_same_answer(kind):
    problem = cosines(3000, 25, spread=1.0, ratio=kind == "ratio")
    single = vf.solve(problem, LSTD(gram="float32"), tol=1e-12)
    assert "A" not in vars(problem)
    double = vf.solve(problem, LSTD(), tol=1e-12)
    assert single.status == double.status == "converged"
    assert "float64" not in single.message
    np.testing.assert_allclose(single.theta, double.theta, rtol=1e-9, atol=1e-11)
    assert Exact(problem).gap(single.theta) <= 1e-20


def test_imprecise_float32_products_are_repeated_in_float64_and_the_message_says_so():
    problem = cosines(3000, 25, spread=0.1)
    assert np.linalg.cond(problem.A) > 1e8
    result = vf.solve(problem, LSTD(gram="float32"), tol=1e-10)
    assert result.status == "converged"
    assert "not precise enough; they were computed again in float64" in result.message
    assert Exact(problem).gap(result.theta) <= 1e-10


def test_float32_products_are_refused_where_they_cannot_be_refined():
    with pytest.raises(ValueError, match=r'A theta = b, which is not the minimiser with a ridge.* Use gram="float64"'):
        vf.solve(cosines(300, 5, ridge=0.1), LSTD(gram="float32"))
    with pytest.raises(ValueError, match="gram is 'half'"):
        LSTD(gram="half")


@pytest.mark.parametrize("settings", [{"trace": 0.5}, {}], ids=["trace", "sparse"])
def test_float32_products_are_done_in_float64_with_traces_and_sparse_rows(settings):
    rng = np.random.default_rng(0)
    rows = slow_process(rng, 300, 5)
    problem = chain(rows if settings else sparse.csr_array(rows), rng.standard_normal(300), **settings)
    assert vf.solve(problem, LSTD(gram="float32"), tol=1e-12).status == "converged"


# ---- the bound of the gap --------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"ridge": 0.1}, {"trace": 0.5}, {"metric": "identity"}])
def test_the_correction_bounds_the_gap(settings):
    problem = cosines(900, 12, **settings)
    exact = Exact(problem)
    theta = exact.theta * 1.01
    bound = correction_gap(problem, theta, exact.theta - theta)
    assert 0.9 * exact.gap(theta) <= bound <= 1000 * exact.gap(theta)
    again = correction_gap(problem, theta, exact.theta - theta, residual=problem.residual(theta))
    assert again == pytest.approx(bound)
