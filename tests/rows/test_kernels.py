"""Sums by cluster equal plain loops, for rows of every storage and clusters in any order."""

import numpy as np
import pytest
import scipy.sparse as sparse

from valuefit.rows.kernels import squares_by_cluster, sums_by_cluster
from valuefit.rows.storage import Rows

STEPS, CLUSTERS = 103, 5


def rows_of(kind):
    """Random rows; "long" ones are not summed four at a time."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((STEPS + 1, 70 if kind == "long" else 6))
    if kind == "sparse":
        return Rows(sparse.csr_array(X * (rng.random(X.shape) < 0.5)))
    return Rows(X.astype(np.float32) if kind == "float32" else X)


@pytest.fixture(params=["dense", "float32", "long", "sparse"])
def rows(request):
    return rows_of(request.param)


def dense_rows(rows):
    return (rows.matrix.toarray() if rows.sparse else rows.matrix).astype(np.float64)


@pytest.mark.parametrize("order", ["sorted", "shuffled"])
@pytest.mark.parametrize("both", [False, True])
def test_sums_by_cluster_equal_plain_loops(rows, order, both):
    rng = np.random.default_rng(1)
    cluster = np.sort(rng.integers(CLUSTERS, size=STEPS))
    cluster = rng.permutation(cluster) if order == "shuffled" else cluster
    now, next = rng.integers(STEPS + 1, size=(2, STEPS))
    discount, a, c = rng.random((3, STEPS))
    steps = np.flatnonzero(cluster != 2)
    d = rows.shape[1]
    X, Y = np.zeros((CLUSTERS if both else 0, d)), np.zeros((CLUSTERS, d))
    kernel = rows.kernel
    sums_by_cluster(kernel, kernel, now, next, discount, cluster, steps, a, c, X, Y, rows.short)
    of_v, of_psi, Phi = np.zeros((CLUSTERS, d)), np.zeros((CLUSTERS, d)), dense_rows(rows)
    for t in steps:
        of_v[cluster[t]] += a[t] * (Phi[now[t]] - discount[t] * Phi[next[t]])
        of_psi[cluster[t]] += c[t] * Phi[now[t]]
    np.testing.assert_allclose(Y, of_psi, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(X, of_v if both else X, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("trace", [0.0, 0.7])
def test_squares_by_cluster_equal_plain_loops(rows, trace):
    rng = np.random.default_rng(2)
    begins = rng.random(STEPS) < 0.2
    begins[0] = True
    cluster = np.minimum(np.cumsum(begins) - 1, CLUSTERS - 1)
    now = rng.integers(STEPS + 1, size=STEPS)
    discount, ratio = rng.random((2, STEPS))
    G, found = rng.standard_normal((3, rows.shape[1])), np.zeros((CLUSTERS, 3))
    squares_by_cluster(rows.kernel, now, discount, ratio, begins, trace, cluster, G, found)
    expected, Phi, u = np.zeros((CLUSTERS, 3)), dense_rows(rows), np.zeros(rows.shape[1])
    for t in range(STEPS):
        u = ratio[t] * (Phi[now[t]] + (0.0 if begins[t] else trace * discount[t - 1]) * u)
        expected[cluster[t]] += (G @ u) ** 2
    np.testing.assert_allclose(found, expected, rtol=1e-10)
