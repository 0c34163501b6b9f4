"""Agreement with the 16 problems solved by plain loops, in every storage."""

import numpy as np
import pytest

import valuefit as vf


@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_moments_agree(oracle, storage):
    A, b, C = oracle.problem(storage).moments()
    np.testing.assert_allclose(A, oracle.A, atol=1e-10)
    np.testing.assert_allclose(b, oracle.b, atol=1e-10)
    np.testing.assert_allclose(C, oracle.C, atol=1e-10)


@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_lstd_agrees(oracle, storage):
    result = vf.solve(oracle.problem(storage), "lstd")
    assert result.status == "converged"
    np.testing.assert_allclose(result.theta, oracle.theta, atol=1e-10)
    np.testing.assert_allclose(result.w, oracle.w, atol=1e-10)
    assert abs(result.objective - oracle.objective_at_theta) < 1e-12


ITERATIVE = {
    "recursive-lstd": vf.solvers.RecursiveLSTD(),
    "pdbg (I)": vf.solvers.PDBG(),
    "pdbg (II)": vf.solvers.PDBG(precompute=True),
    "svrg": vf.solvers.SVRG(),
    "saga": vf.solvers.SAGA(),
}


@pytest.mark.parametrize("storage", ["dense", "csr"])
@pytest.mark.parametrize("name", ITERATIVE)
def test_iterative_solvers_agree(oracle, storage, name):
    result = vf.solve(oracle.problem(storage), ITERATIVE[name], tol=1e-14, max_passes=60_000)
    assert result.status == "converged", result.message
    np.testing.assert_allclose(result.theta, oracle.theta, atol=1e-6)


@pytest.mark.parametrize("name", ["svrg", "saga"])
def test_float32_rows_are_solved_to_float64_accuracy(oracle, name):
    problem = oracle.problem("float32")
    exact = vf.solve(problem, "lstd")
    result = vf.solve(problem, name, tol=1e-14, max_passes=60_000)
    np.testing.assert_allclose(result.theta, exact.theta, atol=1e-6)
    assert 0 < np.abs(exact.theta - oracle.theta).max() < 1e-4


@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_objective_gradient_and_gap_agree(oracle, storage):
    problem = oracle.problem(storage)
    assert problem.objective(np.zeros(7)) == pytest.approx(oracle.objective_at_zero, rel=1e-10)
    assert problem.objective(oracle.theta) == pytest.approx(oracle.objective_at_theta, rel=1e-10, abs=1e-14)
    np.testing.assert_allclose(problem.gradient(oracle.theta), 0, atol=1e-10)
    theta, direction = np.linspace(-1, 1, 7), np.cos(np.arange(7.0))
    slope = (problem.objective(theta + 1e-5 * direction) - problem.objective(theta - 1e-5 * direction)) / 2e-5
    assert slope == pytest.approx(problem.gradient(theta) @ direction, rel=1e-6)
    history = vf.solve(problem, "saga", tol=0, max_passes=3, reference=oracle.theta).history
    assert history["gap"][0] == pytest.approx(1.0, abs=1e-10)  # theta = 0 has gap 1 by definition
