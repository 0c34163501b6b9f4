"""Iterative solutions of the adjoint systems: against dense ones."""

import numpy as np
import pytest

import valuefit as vf
from helpers.problems import problem_of
from helpers.small_log import VARIANTS, small_log
from valuefit.inference.saddle_iterations import gmres, minres
from valuefit.precondition import preconditioner

NOT_SQUARE = [variant for variant in VARIANTS if variant.keys() & {"ridge", "dual"}]


@pytest.mark.parametrize("variant", NOT_SQUARE, ids="+".join)
def test_minres_solves_the_saddle_system(variant):
    problem = problem_of(small_log(**variant))
    A, _, C = problem.moments()
    saddle = np.block([[problem.ridge * np.eye(problem.d), A.T], [A, -C]])
    expected = np.arange(1.0, len(saddle) + 1)
    np.testing.assert_allclose(minres(problem, saddle @ expected), expected, rtol=1e-3)


def test_gmres_solves_with_the_transposed_moments():
    problem = problem_of(small_log(trace=0.7, off_policy=True))
    expected = np.array([1.0, -2.0, 3.0])
    np.testing.assert_allclose(gmres(problem, problem.A.T @ expected), expected, rtol=1e-3)


def test_adjoints_take_few_products_with_the_preconditioner_of_the_solver(monkeypatch):
    n, tilings, bins, rng = 4000, 8, 50, np.random.default_rng(0)
    x = np.cumsum(rng.normal(0, 0.02, n + 1))[:, None]
    columns = ((x * bins + np.arange(tilings) / tilings) % bins).astype(int) + bins * np.arange(tilings)
    problem = vf.Problem.from_rows(
        columns, np.arange(n), np.arange(1, n + 1), rng.standard_normal(n), 0.95, columns=tilings * bins
    )
    vf.solve(problem, "krylov")
    with monkeypatch.context() as patched:
        patched.setattr(preconditioner, "_best", None)  # none is made again
        products, product = [], problem.At_dot
        patched.setattr(problem, "At_dot", lambda w: products.append(w) or product(w))
        c = np.asarray(problem.phi.matrix[:20].mean(axis=0)).ravel()
        g = gmres(problem, c)
    assert np.linalg.norm(problem.At_dot(g) - c) < 1e-3 * np.linalg.norm(c)
    assert len(products) < 100  # 430 with the diagonal of C
