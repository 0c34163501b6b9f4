"""Iterative solutions of the adjoint systems: against dense ones."""

import numpy as np
import pytest

from helpers.problems import problem_of
from helpers.small_log import VARIANTS, small_log
from valuefit.inference.saddle_iterations import gmres, minres


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: "+".join(variant) or "plain")
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
