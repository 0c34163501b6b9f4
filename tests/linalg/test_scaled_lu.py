"""LU factors with scaled rows and columns: solutions in any units, and what counts as singular."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from valuefit.linalg.scaled_lu import scaled_lu


@pytest.mark.parametrize("unit", [1.0, 1e-9])
def test_solutions_do_not_depend_on_units(unit):
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(6, 6))
    rows, columns = np.array([1, 1, unit, 1, 1, 1]), np.array([1, unit, 1, 1, 1, 1])
    factor = scaled_lu(rows[:, None] * matrix * columns)
    for x in (rng.normal(size=6), rng.normal(size=(6, 3))):
        found = factor.solve(((matrix @ x).T * rows).T).T
        np.testing.assert_allclose((found * columns).T, x, rtol=1e-10)
        found = factor.solve_transposed(((matrix.T @ x).T * columns).T).T
        np.testing.assert_allclose((found * rows).T, x, rtol=1e-10)


@pytest.mark.parametrize("difference", [0.0, 1e-14])
def test_nearly_dependent_columns_are_singular(difference):
    matrix = np.random.default_rng(0).normal(size=(6, 6))
    matrix[:, 1] = matrix[:, 0] * (1 + difference * np.arange(6))
    assert scaled_lu(matrix) is None


def test_a_column_of_zeros_is_singular():
    assert scaled_lu(np.diag([1.0, 0.0, 2.0])) is None


def test_threads_solve_with_the_same_factors():
    """SciPy changes pivots during a call: two threads, each with thousands of solutions, had hundreds of wrong ones."""
    rng = np.random.default_rng(0)
    factor = scaled_lu(rng.normal(size=(60, 60)))
    right = rng.normal(size=(60, 50))
    expected = factor.solve(right)

    def wrong(_):
        return sum(not np.allclose(factor.solve(right), expected, rtol=1e-6) for _ in range(1000))

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(wrong, range(2))) == [0, 0]
