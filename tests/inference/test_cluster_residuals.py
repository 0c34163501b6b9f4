"""Systems of many clusters, solved together: against direct solutions of each."""

import itertools

import numpy as np
import pytest

from valuefit.inference.cluster_residuals import solve_by_cluster
from valuefit.inference.clusters import Clusters


def systems(size=0.5):
    """Matrices of seven clusters of unequal size, one of them empty, whose steps are not in order."""
    rng = np.random.default_rng(0)
    cluster = rng.permutation(np.repeat(np.arange(7), [4, 9, 1, 0, 6, 3, 8]))
    matrices = [size * rng.normal(size=(2 * m, 2 * m)) / np.sqrt(2 * m) for m in np.bincount(cluster, minlength=7)]

    def operator(y, chosen):
        found = np.zeros_like(y)
        for one in chosen:
            own = cluster == one
            found[:, own] = (matrices[one] @ y[:, own].ravel()).reshape(2, -1)
        return found

    return operator, matrices, rng.normal(size=(2, len(cluster))), cluster


@pytest.mark.parametrize("size", [0.5, 3.0])
def test_solutions_are_those_of_each_cluster(size):
    operator, matrices, right, cluster = systems(size)
    applied = []

    def recorded(y, chosen):
        applied.append(y.copy())
        return operator(y, chosen)

    y, combination, converged = solve_by_cluster(recorded, right, Clusters(cluster, 7), tol=1e-12, iterations=20)
    assert converged.all()
    np.testing.assert_allclose(sum(c[cluster] * x for c, x in zip(combination, applied, strict=True)), y, atol=1e-10)
    for one, matrix in enumerate(matrices):
        own = cluster == one
        expected = np.linalg.solve(np.eye(len(matrix)) - matrix, right[:, own].ravel())
        np.testing.assert_allclose(y[:, own].ravel(), expected, rtol=1e-8, atol=1e-9)


def test_the_residual_of_converged_clusters_is_below_the_limit_and_only_they_are_left_out():
    operator, _, right, cluster = systems()
    asked = []

    def recorded(y, chosen):
        asked.append(set(chosen.tolist()))
        return operator(y, chosen)

    y, _, converged = solve_by_cluster(recorded, right, Clusters(cluster, 7), tol=1e-3, iterations=4)
    residual = right - y + operator(y, np.arange(7))
    for one in range(7):
        own = cluster == one
        small = np.linalg.norm(residual[:, own]) <= 1e-3 * np.linalg.norm(right[:, own])
        assert small == converged[one]
    assert 0 < converged.sum() < 7
    assert all(after <= before for before, after in itertools.pairwise(asked))
    assert len(asked[-1]) < 6  # the empty cluster and that of one step have converged


@pytest.mark.parametrize("rounding", [0.0, 2e-16])
def test_a_singular_system_does_not_converge(rounding):
    cluster, right = np.repeat([0, 1], 3), np.ones((1, 6))

    def operator(y, chosen):
        return (1 + rounding) * y * (cluster == 0) * np.isin(cluster, chosen)

    y, _, converged = solve_by_cluster(operator, right, Clusters(cluster, 2), tol=1e-6, iterations=5)
    assert converged.tolist() == [False, True]
    np.testing.assert_allclose(y[0, 3:], 1.0)
