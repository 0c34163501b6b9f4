"""Sparse second moments and their factors: products, dissection, dense fronts, sweeps, all against dense algebra."""

import numpy as np
import pytest
import scipy.sparse as sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from valuefit.linalg import sparse_cholesky as dissection
from valuefit.linalg.gauss_seidel import symmetric_gauss_seidel
from valuefit.linalg.moments import second_moment, sparse_second_moment
from valuefit.linalg.sparse_cholesky import dissect, symbolic_factor
from valuefit.rows.storage import Rows


def tiles(seed=0, n=600, bins=9, tilings=3, dimensions=2):
    """Rows of tile coding, every tiling of which sums to one: columns that depend on one another."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 1, (n, dimensions))
    columns = []
    for tiling in range(tilings):
        cell = np.floor((x + tiling / (tilings * bins)) * bins).astype(int).clip(0, bins - 1)
        columns.append(tiling * bins**dimensions + cell @ bins ** np.arange(dimensions))
    indices = np.stack(columns, axis=1).ravel()
    shape = (n, tilings * bins**dimensions)
    return sparse.csr_array((np.ones(len(indices)), indices, tilings * np.arange(n + 1)), shape=shape)


def gram_of(rows):
    """Phi'Phi of the columns that have data."""
    S = sparse.csr_array(rows.T @ rows)
    kept = np.flatnonzero(S.diagonal())
    S = S[kept][:, kept]
    S.sort_indices()
    return S


def factor_of(S):
    structure = symbolic_factor(S, flops=np.inf, numbers=np.inf)
    assert structure is not None
    return dissection.numeric_factor(S, structure)


def test_the_sparse_second_moment_is_the_dense_one():
    rng = np.random.default_rng(0)
    rows = Rows(sparse.random_array((200, 40), density=0.1, rng=rng, format="csr"))
    visits = rng.integers(0, 3, 200).astype(float)
    found = sparse_second_moment(rows.matrix, visits)
    np.testing.assert_allclose(found.toarray(), second_moment(rows, visits), atol=1e-13)
    assert found.has_sorted_indices


def test_many_entries_outgrow_the_first_room(monkeypatch):
    rows = Rows(sparse.csr_array(np.random.default_rng(0).standard_normal((3, 400))))
    found = sparse_second_moment(rows.matrix, np.ones(3))
    assert found.nnz == 400 * 400
    assert 400 * 401 // 2 > 1 << 16
    np.testing.assert_allclose(found.toarray(), rows.matrix.toarray().T @ rows.matrix.toarray(), atol=1e-13)


@pytest.mark.parametrize("leaf", [1, 5, 48, 10_000])
def test_parts_touch_nothing_but_what_separates_them(monkeypatch, leaf):
    S = gram_of(tiles())
    n = S.shape[0]
    order, starts, parent = dissect(S.indptr, S.indices, leaf=leaf)
    assert np.array_equal(np.sort(order), np.arange(n))
    assert starts[0] == 0
    assert starts[-1] == n
    assert (len(parent) == 1) == (leaf > n)
    front = np.repeat(np.arange(len(parent)), np.diff(starts))
    above = [set() for _ in parent]
    for place in range(len(parent) - 1, -1, -1):  # children come before parents
        assert parent[place] == -1 or parent[place] > place
        above[place] = {place} | (above[parent[place]] if parent[place] >= 0 else set())
    for i, j in zip(*S[order][:, order].nonzero(), strict=True):
        low, high = min(front[i], front[j]), max(front[i], front[j])
        assert high in above[low]


def test_the_factor_of_tiles_has_their_rank_and_gives_energies_in_the_pseudo_inverse():
    S = gram_of(tiles())
    factor = factor_of(S)
    dense = S.toarray()
    assert factor.ranks.sum() == np.linalg.matrix_rank(dense) < S.shape[0]
    assert factor.clear
    r = dense @ np.random.default_rng(0).standard_normal(S.shape[0])
    x = factor.solve(r)
    assert np.count_nonzero(x) <= factor.ranks.sum()
    assert r @ x == pytest.approx(r @ np.linalg.pinv(dense, hermitian=True) @ r, rel=1e-9)
    np.testing.assert_allclose(dense @ x, r, atol=1e-10 * np.abs(r).max())


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10_000), n=st.integers(1, 40), d=st.integers(1, 60), density=st.floats(0.02, 0.5),
    leaf=st.integers(1, 20),
)  # fmt: skip
def test_factors_of_any_sparse_rows(seed, n, d, density, leaf):
    """Rows fewer than columns, columns that fall apart, columns alone: L^-T L^-1 is an inverse on the range."""
    rng = np.random.default_rng(seed)
    rows = sparse.random_array((n, d), density=density, rng=rng, format="csr")
    rows.data = rng.integers(1, 4, rows.nnz).astype(float)
    S = gram_of(rows)
    if S.shape[0] == 0:
        return
    before, dissection.LEAF = dissection.LEAF, leaf
    try:
        factor = factor_of(S)
    finally:
        dissection.LEAF = before
    r = S @ rng.standard_normal(S.shape[0])
    np.testing.assert_allclose(S @ factor.solve(r), r, atol=1e-7 * max(1.0, np.abs(r).max()))


def test_columns_that_nearly_depend_on_others_leave_the_rank_in_doubt():
    rng = np.random.default_rng(0)
    one = sparse.random_array((300, 40), density=0.05, rng=rng, format="csr")
    one.data[:] = 1.0
    other = one + 1e-6 * sparse.random_array((300, 40), density=0.05, rng=rng, format="csr")
    assert not factor_of(gram_of(sparse.hstack([one, other]).tocsr())).clear


def test_what_would_cost_too_much_is_refused():
    S = gram_of(tiles())
    structure = symbolic_factor(S, flops=np.inf, numbers=np.inf)
    assert symbolic_factor(S, flops=0.99 * structure.flops, numbers=np.inf) is None
    assert symbolic_factor(S, flops=np.inf, numbers=0.99 * structure.peak) is None
    assert symbolic_factor(S, flops=structure.flops, numbers=structure.peak) is not None
    widest = int(np.diff(structure.starts).max())
    assert dissect(S.indptr, S.indices, leaf=dissection.LEAF, largest=widest - 1) is None
    assert dissect(S.indptr, S.indices, leaf=dissection.LEAF, largest=widest) is not None
    full = gram_of(sparse.csr_array(np.ones((2, 200))))
    assert dissect(full.indptr, full.indices, leaf=5, largest=199) is None
    assert factor_of(S).size < structure.peak


# ---- sweeps ----------------------------------------------------------------------------------------


def test_sweeps_are_triangular_solves_and_never_below_C():
    S = gram_of(tiles())
    sweeps, dense = symmetric_gauss_seidel(S), S.toarray()
    scale = np.sqrt(np.diag(dense))
    lower = np.tril(dense / np.outer(scale, scale))
    K = lower @ lower.T * np.outer(scale, scale)
    r = np.random.default_rng(0).standard_normal(len(dense))
    np.testing.assert_allclose(K @ sweeps.solve(r), r, atol=1e-10)
    assert np.linalg.eigvalsh(K - dense)[0] >= -1e-12 * np.abs(dense).max()


def test_conjugate_gradients_find_the_solution():
    S = gram_of(tiles(bins=5))
    sweeps = symmetric_gauss_seidel(S)
    r = S @ np.random.default_rng(0).standard_normal(S.shape[0])
    errors = []
    for steps in (1, 10, 200):
        left = r - S @ sweeps.conjugate_gradients(r, steps)
        errors.append(np.linalg.norm(left) / np.linalg.norm(r))
    assert errors[0] < 1
    values = np.linalg.eigvalsh(S.toarray())
    condition = values[-1] / values[values > 1e-10 * values[-1]][0]
    assert errors[2] < 100 * np.finfo(float).eps * condition < errors[1] < errors[0]
    assert not sweeps.conjugate_gradients(np.zeros(S.shape[0]), 5).any()
