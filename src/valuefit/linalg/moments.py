"""A and C as dense matrices, at the speed of BLAS: rows are put together in cache and multiplied there."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg.blas as blas
import scipy.sparse as sparse

from valuefit.linalg.sparse_cholesky import gram
from valuefit.rows.compile import worth_compiling
from valuefit.rows.kernels import cross_sparse, mixed_rows
from valuefit.rows.storage import BLOCK_BYTES, Rows
from valuefit.rows.traces import keep_forward, recurrence, trace_block
from valuefit.threads import one_blas_thread, parts_of, share_out
from valuefit.typing import Array

PRODUCT_BYTES = 3 << 20  # of rows that are written and multiplied at once
FACTORS = 512  # rows in a product at least, or reading and writing the result would outweigh them
STEP_BYTES, STEP_ROWS = 1 << 19, 512  # of the rows v_t that are formed and multiplied at once, and how many at least
SMALL = 32 << 20  # bytes of a matrix into which sparse rows are added entry by entry; beyond, it would miss the cache


def pieces(index: Array, width: int, *, fewest: int = 1, size_bytes: int = BLOCK_BYTES) -> list[Array]:
    """Consecutive pieces of `index` such that a piece times `width` float64 fits in cache, or has `fewest` entries."""
    size = max(fewest, size_bytes // (8 * width))
    return [index[start : start + size] for start in range(0, len(index), size)]


def second_moment(psi: Rows, visits: Array) -> Array:
    """sum over rows of visits * psi psi'."""
    k = psi.shape[1]
    if psi.sparse:
        rows = np.flatnonzero(visits)
        return _sparse_product(psi, psi, rows, np.arange(len(rows) + 1), rows, visits[rows])
    C = np.zeros((k, k), order="F")
    for index in pieces(np.flatnonzero(visits), 2 * k, fewest=FACTORS, size_bytes=PRODUCT_BYTES):
        weight = visits[index]
        block = _rows(psi, index) if (weight == 1).all() else psi.take(index) * np.sqrt(weight)[:, None]
        C = blas.dsyrk(1.0, block.T, beta=1.0, c=C, lower=1, overwrite_c=1)
    above = np.triu_indices(k, 1)
    C[above] = C.T[above]
    return np.ascontiguousarray(C)


def sparse_second_moment(psi: Rows, visits: Array) -> Any:
    """The same as a sparse matrix with sorted indices, for sparse rows."""
    columns = psi.matrix.T.tocsr()
    found = gram(*psi.kernel, columns.data, columns.indices, columns.indptr, visits)
    C = sparse.csr_array(found, shape=(psi.shape[1], psi.shape[1]))
    C.sort_indices()
    return C


def count_product(
    psi: Rows, phi: Rows, now: Array, next: Array, discount: Array, ratio: Array, reward: Array, *,
    dtype: Any = np.float64,
) -> tuple[Array, Array | None]:  # fmt: skip
    """sum of ratio_t psi_t v_t' = Psi' M Phi with M the sparse matrix of counted, weighted transitions between rows.

    Where rows hardly repeat they are read step by step, and the sum of ratio_t r_t psi_t comes along; else it is None.
    """
    m = phi.shape[0]
    if not phi.sparse and 2 * np.count_nonzero(np.bincount(now, minlength=m)) >= len(now):
        return _step_product(psi, phi, now, next, discount, ratio, reward, dtype)
    weights = np.concatenate([ratio, -ratio * discount])
    places = (np.concatenate([now, now]), np.concatenate([now, next]))
    M = sparse.csr_array((weights, places), shape=(m, m))
    rows = np.flatnonzero(np.diff(M.indptr))
    starts = np.append(M.indptr[rows], M.indptr[-1])
    if phi.sparse:
        return _sparse_product(psi, phi, rows, starts, M.indices, M.data), None
    A = np.zeros((psi.shape[1], phi.shape[1]), dtype)
    mixed = np.empty((0, phi.shape[1]), dtype)
    done = 0
    for index in pieces(rows, phi.shape[1] + psi.shape[1], fewest=FACTORS, size_bytes=PRODUCT_BYTES):
        if len(mixed) != len(index):
            mixed = np.empty((len(index), phi.shape[1]), dtype)
        if worth_compiling(M.nnz * phi.shape[1]):
            mixed_rows(phi.kernel, starts[done : done + len(index) + 1], M.indices, M.data, mixed)
        else:
            mixed[:] = M[index] @ phi.matrix
        done += len(index)
        _add_product(A, _rows(psi, index, dtype), mixed)
    return A.astype(np.float64, copy=False), None


def trace_product(
    psi: Rows, phi: Rows, now: Array, next: Array, discount: Array, ratio: Array, begins: Array, trace: float
) -> Array:
    """sum u_t v_t' with blocks of u made by its recurrence."""
    k, d = psi.shape[1], phi.shape[1]
    if not worth_compiling(len(now) * max(k, d)):
        psi_now = psi.take(now).toarray() if psi.sparse else psi.take(now)
        U = recurrence(ratio[:, None] * psi_now, keep_forward(discount, ratio, begins, trace))
        return np.asarray((_differences(phi, now, next, discount).T @ U).T)
    A = np.zeros((k, d))
    u = np.zeros(k)
    for steps in pieces(np.arange(len(now)), k + d, fewest=FACTORS, size_bytes=PRODUCT_BYTES):
        U = np.empty((len(steps), k))
        trace_block(psi.kernel, now, discount, ratio, begins, trace, steps[0], steps[-1] + 1, u, U)
        if phi.sparse:
            A += (_differences(phi, now[steps], next[steps], discount[steps]).T @ U).T
            continue
        V = np.empty((len(steps), d))
        pairs = np.column_stack([now[steps], next[steps]]).ravel()
        weights = np.column_stack([np.ones(len(steps)), -discount[steps]]).ravel()
        mixed_rows(phi.kernel, 2 * np.arange(len(steps) + 1), pairs, weights, V)
        _add_product(A, U, V)
    return A


def _differences(phi: Rows, now: Array, next: Array, discount: Array) -> Any:
    """The rows v_t = phi_t - discount_t phi'_t."""
    if phi.sparse:
        return phi.take(now) - sparse.diags_array(discount) @ phi.take(next)
    return phi.take(now) - discount[:, None] * phi.take(next)


def _step_product(
    psi: Rows, phi: Rows, now: Array, next: Array, discount: Array, ratio: Array, reward: Array, dtype: Any
) -> tuple[Array, Array]:
    """sum of ratio_t psi_t v_t' and of ratio_t r_t psi_t step by step, in parts that threads share.

    Each product runs on one thread of BLAS: OpenBLAS does not divide the inner dimension, which is the long one here.
    """
    n, k, d = len(now), psi.shape[1], phi.shape[1]
    size = int(np.clip(STEP_BYTES // (8 * d), STEP_ROWS, n))
    count = min(parts_of(n * d * phi.dtype.itemsize), max(1, n // (2 * max(k, d))))  # sums must be short next to rows
    ends = np.linspace(0, n, count + 1).astype(np.int64)
    sums, of_rewards = np.zeros((count, k, d), dtype), np.zeros((count, k))
    breaks = [np.flatnonzero(index[1:] - index[:-1] != 1) for index in (now, next)]  # after these, rows are elsewhere
    weighted = bool((ratio != 1).any())
    loss, gain = -discount, ratio * reward if weighted else reward

    def add(part: int) -> None:
        buffer, product = np.empty((size, d), dtype), np.empty((k, d), dtype)
        for start in range(ends[part], ends[part + 1], size):
            stop = min(start + size, ends[part + 1])
            after = _step_rows(phi, next, breaks[1], start, stop)
            factor = loss[start:stop, None]
            if (factor == factor[0]).all():
                factor = factor[0]  # one number for all rows makes one long loop
            V = np.multiply(after, factor, out=buffer[: stop - start], casting="same_kind")
            here = _step_rows(phi, now, breaks[0], start, stop)
            V += here
            if weighted:
                V *= ratio[start:stop, None]
            U = here if psi is phi else _step_rows(psi, now, breaks[0], start, stop)
            sums[part] += np.matmul(U.T, V, out=product) if U.dtype == V.dtype else U.T.astype(dtype) @ V
            of_rewards[part] += gain[start:stop] @ U

    with one_blas_thread():
        share_out(add, count)
    return sums.sum(axis=0).astype(np.float64, copy=False), of_rewards.sum(axis=0)


def _step_rows(rows: Rows, index: Array, breaks: Array, start: int, stop: int) -> Array:
    """Rows of consecutive steps, without a copy where they are neighbours: no break is between them."""
    first, last = np.searchsorted(breaks, (start, stop - 1))
    if first == last:
        return np.asarray(rows.matrix[index[start] : index[start] + stop - start])
    return np.asarray(rows.matrix[index[start:stop]])


def _sparse_product(psi: Rows, phi: Rows, rows: Array, starts: Array, indices: Array, weights: Array) -> Array:
    """sum over i and e of weight_e * psi row_i' * phi index_e, with e from starts_i to starts_{i+1}."""
    k, d = psi.shape[1], phi.shape[1]
    if 8 * k * d <= SMALL and worth_compiling(len(indices) * psi.stored / psi.shape[0] * phi.stored / phi.shape[0]):
        return np.asarray(cross_sparse(psi.kernel, phi.kernel, rows, starts, indices, weights, np.zeros((k, d))))
    counts = np.zeros(psi.shape[0] + 1, np.int64)
    counts[rows + 1] = np.diff(starts)
    M = sparse.csr_array((weights, indices, np.cumsum(counts)), shape=(psi.shape[0], phi.shape[0]))
    return np.asarray((psi.matrix.T @ (M @ phi.matrix)).toarray(), dtype=np.float64)


def _rows(rows: Rows, index: Array, dtype: Any = np.float64) -> Array:
    """Dense rows, without a copy where they lie side by side in this precision."""
    if len(index) and index[-1] - index[0] == len(index) - 1:
        return np.asarray(rows.matrix[index[0] : index[-1] + 1], dtype=dtype)
    return np.asarray(rows.matrix[index], dtype=dtype)


def _add_product(A: Array, X: Array, Y: Array) -> None:
    """A += X'Y, in place; rows of ours are columns of BLAS, so it forms Y'X into A'."""
    gemm = blas.sgemm if A.dtype == np.float32 else blas.dgemm
    gemm(1.0, Y.T, X.T, beta=1.0, c=A.T, trans_b=True, overwrite_c=True)
