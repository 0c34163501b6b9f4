"""The moments A and C as matrices: blocks of rows that fit in cache are formed and multiplied by BLAS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.linalg.blas as blas
import scipy.sparse as sparse

from valuefit.linalg.sparse_cholesky import sparse_gram
from valuefit.rows.compile import worth_compiling
from valuefit.rows.kernels import combine_rows, cross_sparse, step_rows
from valuefit.rows.storage import TEMPORARY_BYTES, ColumnRanges, Rows
from valuefit.rows.traces import keep_forward, recurrence, trace_block
from valuefit.threads import one_blas_thread, parts_of, share_out
from valuefit.typing import Array

PRODUCT_BYTES = 1 << 20  # of the two blocks of rows in one matrix product, so that they stay in the second-level cache
MIN_PRODUCT_ROWS = 512  # in one matrix product; with fewer rows, reading and writing the result dominates
TRANSPOSED_COLUMNS = 128  # of a block that is transposed: it stays in the second-level cache
CACHED_MATRIX_BYTES = 32 << 20  # up to it, products of sparse rows are added entry by entry: the sum stays in cache


def pieces(index: Array, width: int, *, min_size: int = 1, size_bytes: int = TEMPORARY_BYTES) -> list[Array]:
    """Consecutive pieces of `index`: at most `size_bytes` each, at `width` float64 per entry, or `min_size` entries."""
    size = max(min_size, size_bytes // (8 * width))
    return [index[start : start + size] for start in range(0, len(index), size)]


def second_moment(psi: Rows, visits: Array) -> Array:
    """sum over rows of visits * psi psi'."""
    k = psi.shape[1]
    if psi.sparse:
        rows = np.flatnonzero(visits)
        return _sparse_product(psi, psi, rows, np.arange(len(rows) + 1), rows, visits[rows])
    C = np.zeros((k, k))
    for index in pieces(np.flatnonzero(visits), 2 * k, min_size=max(MIN_PRODUCT_ROWS, k), size_bytes=PRODUCT_BYTES):
        weight = visits[index]
        block = _rows(psi, index) if (weight == 1).all() else psi.take(index) * np.sqrt(weight)[:, None]
        C += block.T @ block  # NumPy computes half of a product of a matrix with itself
    return C


def sparse_second_moment(rows: Any, weights: Array) -> Any:
    """sum over the rows of a CSR matrix, with sorted indices, of weight * row row', as such a matrix too."""
    columns = rows.T.tocsr()
    triangle = sparse_gram(rows.data, rows.indices, rows.indptr, columns.data, columns.indices, columns.indptr, weights)
    below = sparse.csr_array(triangle, shape=(rows.shape[1], rows.shape[1]))
    C = below + sparse.tril(below, -1).T.tocsr()
    C.sort_indices()
    return C


def count_product(
    psi: Rows, phi: Rows, now: Array, next: Array, discount: Array, ratio: Array, weights: Sequence[Array] = (), *,
    second: bool = False,
) -> tuple[Array, Array | None, Array | None]:  # fmt: skip
    """sum of ratio_t psi_t v_t' = Psi' M Phi, with M the sparse matrix of weighted transition counts between rows.

    If few rows repeat, M is not formed, and the sums of weight_t psi_t for each of `weights`, (weights, k), and, with
    `second`, of psi_t psi_t' are returned too; otherwise those are None.
    """
    m = phi.shape[0]
    if not phi.sparse and 2 * _distinct(now, m) >= len(now):
        return _step_product(psi, phi, now, next, discount, ratio, weights, second)
    counts = np.concatenate([ratio, -ratio * discount])
    coordinates = (np.concatenate([now, now]), np.concatenate([now, next]))
    M = sparse.csr_array((counts, coordinates), shape=(m, m))
    rows = np.flatnonzero(np.diff(M.indptr))
    starts = np.append(M.indptr[rows], M.indptr[-1])
    if phi.sparse:
        return _sparse_product(psi, phi, rows, starts, M.indices, M.data), None, None
    A = np.zeros((psi.shape[1], phi.shape[1]))
    combined = np.empty((0, phi.shape[1]))
    done = 0
    for index in pieces(rows, phi.shape[1] + psi.shape[1], min_size=MIN_PRODUCT_ROWS, size_bytes=PRODUCT_BYTES):
        if len(combined) != len(index):
            combined = np.empty((len(index), phi.shape[1]))
        if worth_compiling(M.nnz * phi.shape[1]):
            combine_rows(phi.kernel, starts[done : done + len(index) + 1], M.indices, M.data, combined)
        else:
            combined[:] = M[index] @ phi.matrix
        done += len(index)
        _add_product(A, _rows(psi, index), combined)
    return A, None, None


def fill_upper(C: Array) -> None:
    """Copy the lower triangle of a square matrix to the upper one, in blocks that stay in cache while transposed."""
    for start in range(0, len(C), TRANSPOSED_COLUMNS):
        stop = start + TRANSPOSED_COLUMNS
        here, inside = slice(start, stop), C[start:stop, start:stop]
        inside[:] = np.tril(inside) + np.tril(inside, -1).T
        for first in range(stop, len(C), TRANSPOSED_COLUMNS):
            C[here, first : first + TRANSPOSED_COLUMNS] = C[first : first + TRANSPOSED_COLUMNS, here].T


def _distinct(now: Array, rows: int) -> int:
    """How many rows of so many occur."""
    ascending = bool((now[1:] > now[:-1]).all())  # the rule in long logs, and known in a tenth of the time
    return len(now) if ascending else int(np.count_nonzero(np.bincount(now, minlength=rows)))


def trace_product(
    psi: Rows, phi: Rows, now: Array, next: Array, discount: Array, ratio: Array, begins: Array, trace: float
) -> Array:
    """sum of u_t v_t', with u_t computed by its recurrence in blocks."""
    k, d = psi.shape[1], phi.shape[1]
    if not worth_compiling(len(now) * max(k, d)):
        psi_now = psi.take(now).toarray() if psi.sparse else psi.take(now)
        U = recurrence(ratio[:, None] * psi_now, keep_forward(discount, ratio, begins, trace))
        return np.asarray((_differences(phi, now, next, discount).T @ U).T)
    A, u, keep = np.zeros((k, d)), np.zeros(k), keep_forward(discount, ratio, begins, trace)
    for steps in pieces(np.arange(len(now)), k + d, min_size=MIN_PRODUCT_ROWS, size_bytes=PRODUCT_BYTES):
        U = np.empty((len(steps), k))
        trace_block(psi.kernel, now[steps], ratio[steps], keep[steps], u, U)
        if phi.sparse:
            A += (_differences(phi, now[steps], next[steps], discount[steps]).T @ U).T
            continue
        V = np.empty((len(steps), d))
        pairs = np.column_stack([now[steps], next[steps]]).ravel()
        weights = np.column_stack([np.ones(len(steps)), -discount[steps]]).ravel()
        combine_rows(phi.kernel, 2 * np.arange(len(steps) + 1), pairs, weights, V)
        _add_product(A, U, V)
    return A


def difference_product(Z: Array, phi: Rows, now: Array, next: Array, discount: Array, ratio: Array) -> Array:
    """sum of ratio_t z_t v_t', (k, d), for rows z_t, (n, k), of steps that may be some of the log."""
    (n, k), d = Z.shape, phi.shape[1]
    pairs, weights = np.column_stack([now, next]).ravel(), np.column_stack([ratio, -ratio * discount]).ravel()
    starts, A = 2 * np.arange(n + 1), np.zeros((k, d))
    if phi.sparse or not worth_compiling(n * d):
        V = sparse.csr_array((weights, pairs, starts), shape=(n, phi.shape[0])) @ phi.matrix
        return np.asarray((V.T @ Z).T)
    for steps in pieces(np.arange(n), k + d, min_size=MIN_PRODUCT_ROWS, size_bytes=PRODUCT_BYTES):
        here, V = slice(steps[0], steps[-1] + 1), np.empty((len(steps), d))
        combine_rows(phi.kernel, starts[here.start : here.stop + 1], pairs, weights, V)
        _add_product(A, Z[here], V)
    return A


def _differences(phi: Rows, now: Array, next: Array, discount: Array) -> Any:
    """The rows v_t = phi_t - discount_t phi'_t."""
    if phi.sparse:
        return phi.take(now) - sparse.diags_array(discount) @ phi.take(next)
    return phi.take(now) - discount[:, None] * phi.take(next)


def step_pairs(
    psi: Rows, phi: Rows, now: Array, next: Array, discount: Array, *, compiled: bool
) -> tuple[Any, Any]:  # fmt: skip
    """The rows psi_t and v_t of steps; compiled: by a compiled loop, if they are dense."""
    if phi.sparse or not compiled:
        return psi.take(now), _differences(phi, now, next, discount)
    U, V = np.empty((len(now), psi.shape[1])), np.empty((len(now), phi.shape[1]))
    step_rows(phi.matrix, psi.matrix, now, next, discount, np.ones(len(now)), U, V)
    return U, V


def _step_product(
    psi: Rows, phi: Rows, now: Array, next: Array, discount: Array, ratio: Array, weights: Sequence[Array],
    second: bool,
) -> tuple[Array, Array, Array | None]:  # fmt: skip
    """The sums of `count_product` over blocks of steps, on all threads.

    Each product uses one BLAS thread: OpenBLAS does not split the inner dimension, which is the long one here.
    """
    n, k, d = len(now), psi.shape[1], phi.shape[1]
    size = int(np.clip(PRODUCT_BYTES // (8 * (k + d)), min(MIN_PRODUCT_ROWS, n), n))
    # few parts, so that partial sums are small next to the rows
    count = min(parts_of(n * d * phi.dtype.itemsize), max(1, n // (2 * max(k, d))))
    ends = np.linspace(0, n, count + 1).astype(np.int64)
    A, C = np.zeros((count, k, d)), np.zeros((count, k, k) if second else (count, 0, 0))
    sums, compiled = np.zeros((count, len(weights), k)), worth_compiling(n * d)

    def add(part: int) -> None:
        U, V = np.empty((size, k)), np.empty((size, d))
        for start in range(ends[part], ends[part + 1], size):
            stop = min(start + size, ends[part + 1])
            here, u, v = slice(start, stop), U[: stop - start], V[: stop - start]
            if compiled:
                step_rows(phi.matrix, psi.matrix, now[here], next[here], discount[here], ratio[here], u, v)
            else:
                u[:] = psi.matrix[now[here]]
                v[:] = ratio[here, None] * _differences(phi, now[here], next[here], discount[here])
            A[part] += u.T @ v
            for number, weight in enumerate(weights):  # one by one: OpenBLAS is slower with both as a matrix
                sums[part, number] += weight[here] @ u
            if second:
                C[part] += u.T @ u

    with one_blas_thread():
        share_out(add, count)
    return _sum_of_parts(A), sums.sum(axis=0), _sum_of_parts(C) if second else None


def _sum_of_parts(parts: Array) -> Array:
    """The sum over the first axis, (rows, columns), in float64: with wide features it takes as long as a block."""
    total = np.empty(parts.shape[1:])
    ends = np.linspace(0, len(total), parts_of(parts.nbytes) + 1).astype(np.int64)

    def add(stripe: int) -> None:
        here = slice(ends[stripe], ends[stripe + 1])
        np.sum(parts[:, here], axis=0, out=total[here])

    share_out(add, len(ends) - 1)
    return total


def _sparse_product(psi: Rows, phi: Rows, rows: Array, starts: Array, indices: Array, weights: Array) -> Array:
    """sum over i and starts[i] <= e < starts[i + 1] of weights[e] * outer(psi[rows[i]], phi[indices[e]])."""
    k, d = psi.shape[1], phi.shape[1]
    if psi.ranges is not None and phi.ranges is not None:
        return _range_product(psi.ranges, phi.ranges, np.repeat(rows, np.diff(starts)), indices, weights, (k, d))
    additions = len(indices) * psi.stored / psi.shape[0] * phi.stored / phi.shape[0]
    if 8 * k * d <= CACHED_MATRIX_BYTES and worth_compiling(additions):
        return np.asarray(cross_sparse(psi.kernel, phi.kernel, rows, starts, indices, weights, np.zeros((k, d))))
    counts = np.zeros(psi.shape[0] + 1, np.int64)
    counts[rows + 1] = np.diff(starts)
    M = sparse.csr_array((weights, indices, np.cumsum(counts)), shape=(psi.shape[0], phi.shape[0]))
    return np.asarray((psi.matrix.T @ (M @ phi.matrix)).toarray(), dtype=np.float64)


def _range_product(
    psi: ColumnRanges, phi: ColumnRanges, left: Array, right: Array, weights: Array, shape: tuple[int, int]
) -> Array:
    """sum over e of weights[e] * outer(psi[left[e]], phi[right[e]]), by dense products for each pair of ranges."""
    u, entry = psi.entries_of(left)
    v, pair = phi.entries_of(right[entry])
    u, weights = u[pair], weights[entry[pair]]
    k, d = psi.values.shape[1], phi.values.shape[1]
    out, columns = np.zeros(shape), shape[1] // d
    key = psi.number[u] * columns + phi.number[v]
    order = np.argsort(key, kind="stable")
    ends = np.searchsorted(key[order], np.arange(shape[0] // k * columns + 1))

    def add(number: int) -> None:
        i, j = divmod(number, columns)
        total = np.zeros((k, d))
        for here in pieces(order[ends[number] : ends[number + 1]], k + d, min_size=MIN_PRODUCT_ROWS):
            total += (weights[here, None] * psi.values[u[here]]).T @ phi.values[v[here]].astype(np.float64, copy=False)
        out[i * k : (i + 1) * k, j * d : (j + 1) * d] = total

    with one_blas_thread():
        share_out(add, len(ends) - 1)
    return out


def _rows(rows: Rows, index: Array) -> Array:
    """Dense rows in float64, as a view if they are consecutive and float64 already."""
    if len(index) and index[-1] - index[0] == len(index) - 1:
        return np.asarray(rows.matrix[index[0] : index[-1] + 1], dtype=np.float64)
    return np.asarray(rows.matrix[index], dtype=np.float64)


def _add_product(A: Array, X: Array, Y: Array) -> None:
    """A += X'Y in place. BLAS is column-major, so it computes A' += Y'X."""
    blas.dgemm(1.0, Y.T, X.T, beta=1.0, c=A.T, trans_b=True, overwrite_c=True)
