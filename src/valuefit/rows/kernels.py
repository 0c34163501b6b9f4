"""Compiled loops shared by all storages and solvers: operations on one row, and products with all rows.

A kernel takes rows either as a 2-d array (dense) or as a tuple `(data, indices, indptr)` (CSR). The type selects the
implementation of `dot`, `axpy` and their fused forms at compile time, so each solver has one kernel.
Rows may be float32; iterates and sums are always float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from valuefit.rows.compile import by_storage, compiled, prefetch

# ---- one row: declarations; the implementations by storage follow ------------------------------------------


def dot(rows: Any, i: int, x: Any) -> Any:
    """row_i' x."""


def dot2(rows: Any, i: int, x: Any, y: Any) -> Any:
    """(row_i' x, row_i' y)."""


def dotv(rows: Any, i: int, j: int, discount: float, x: Any) -> Any:
    """v' x with v = row_i - discount * row_j."""


def dot2v(rows: Any, i: int, j: int, discount: float, x: Any, y: Any) -> Any:
    """(v' x, v' y) with v = row_i - discount * row_j."""


def axpy(rows: Any, i: int, a: float, x: Any) -> Any:
    """x += a * row_i."""


def axpy4(rows: Any, i: int, j: int, k: int, m: int, a: float, b: float, c: float, d: float, x: Any) -> Any:
    """x += a * row_i + b * row_j + c * row_k + d * row_m; see `Rows.short`."""


def set_row(rows: Any, i: int, a: float, x: Any) -> Any:
    """x = a * row_i."""


def axpyv(rows: Any, i: int, j: int, discount: float, a: float, x: Any) -> Any:
    """x += a * v with v = row_i - discount * row_j."""


def axpy2(rows: Any, i: int, a: float, x: Any, b: float, y: Any) -> Any:
    """x += a * row_i and y += b * row_i."""


def axpy2v(rows: Any, i: int, j: int, discount: float, a: float, x: Any, b: float, y: Any) -> Any:
    """x += a * v and y += b * v with v = row_i - discount * row_j."""


def axpy_step(rows: Any, i: int, j: int, discount: float, a: float, x: Any, b: float, y: Any) -> Any:
    """x += a * row_i and y += b * v with v = row_i - discount * row_j."""


def prefetch_row(rows: Any, i: int) -> Any:
    """Prefetch row i into the cache."""


def times(P: Any, x: Any) -> Any:
    """P x for a preconditioner P: a matrix, or diag(scale) + sides core sides' as `(scale, sides, core)`.

    `sides` has two columns or none.
    """


def _dense_dot(rows, i, x):
    row = rows[i]
    s = 0.0
    for c in range(x.shape[0]):
        s += row[c] * x[c]
    return s


def _sparse_dot(rows, i, x):
    data, indices, indptr = rows
    s = 0.0
    for e in range(indptr[i], indptr[i + 1]):
        s += data[e] * x[indices[e]]
    return s


def _dense_dotv(rows, i, j, discount, x):
    row = rows[i]
    after = rows[j]
    s = 0.0
    for c in range(x.shape[0]):
        s += (row[c] - discount * after[c]) * x[c]
    return s


def _sparse_dotv(rows, i, j, discount, x):
    return dot(rows, i, x) - discount * dot(rows, j, x)  # a branch would cost more than the product


def _dense_dot2(rows, i, x, y):
    row = rows[i]
    s = 0.0
    t = 0.0
    for c in range(x.shape[0]):
        s += row[c] * x[c]
        t += row[c] * y[c]
    return s, t


def _sparse_dot2(rows, i, x, y):
    data, indices, indptr = rows
    s = 0.0
    t = 0.0
    for e in range(indptr[i], indptr[i + 1]):
        c = indices[e]
        s += data[e] * x[c]
        t += data[e] * y[c]
    return s, t


def _dense_dot2v(rows, i, j, discount, x, y):
    row = rows[i]
    after = rows[j]
    s = 0.0
    t = 0.0
    for c in range(x.shape[0]):
        v = row[c] - discount * after[c]
        s += v * x[c]
        t += v * y[c]
    return s, t


def _sparse_dot2v(rows, i, j, discount, x, y):
    s, t = dot2(rows, i, x, y)
    if discount != 0.0:
        s_after, t_after = dot2(rows, j, x, y)
        s -= discount * s_after
        t -= discount * t_after
    return s, t


def _dense_axpy(rows, i, a, x):
    row = rows[i]
    for c in range(x.shape[0]):
        x[c] += a * row[c]


def _sparse_axpy(rows, i, a, x):
    data, indices, indptr = rows
    for e in range(indptr[i], indptr[i + 1]):
        x[indices[e]] += a * data[e]


def _dense_axpy4(rows, i, j, k, m, a, b, c, d, x):
    first, second, third, fourth = rows[i], rows[j], rows[k], rows[m]
    for e in range(x.shape[0]):
        x[e] += a * first[e] + b * second[e] + c * third[e] + d * fourth[e]


def _sparse_axpy4(rows, i, j, k, m, a, b, c, d, x):
    axpy(rows, i, a, x)
    axpy(rows, j, b, x)
    axpy(rows, k, c, x)
    axpy(rows, m, d, x)


def _dense_set_row(rows, i, a, x):
    row = rows[i]
    for c in range(x.shape[0]):
        x[c] = a * row[c]


def _sparse_set_row(rows, i, a, x):
    x[:] = 0.0
    axpy(rows, i, a, x)


def _dense_axpyv(rows, i, j, discount, a, x):
    row = rows[i]
    after = rows[j]
    for c in range(x.shape[0]):
        x[c] += a * (row[c] - discount * after[c])


def _sparse_axpyv(rows, i, j, discount, a, x):
    axpy(rows, i, a, x)
    if discount != 0.0:
        axpy(rows, j, -discount * a, x)


def _dense_axpy2(rows, i, a, x, b, y):
    row = rows[i]
    for c in range(x.shape[0]):
        x[c] += a * row[c]
        y[c] += b * row[c]


def _sparse_axpy2(rows, i, a, x, b, y):
    data, indices, indptr = rows
    for e in range(indptr[i], indptr[i + 1]):
        c = indices[e]
        x[c] += a * data[e]
        y[c] += b * data[e]


def _dense_axpy2v(rows, i, j, discount, a, x, b, y):
    row = rows[i]
    after = rows[j]
    for c in range(x.shape[0]):
        v = row[c] - discount * after[c]
        x[c] += a * v
        y[c] += b * v


def _sparse_axpy2v(rows, i, j, discount, a, x, b, y):
    axpy2(rows, i, a, x, b, y)
    if discount != 0.0:
        axpy2(rows, j, -discount * a, x, -discount * b, y)


def _dense_axpy_step(rows, i, j, discount, a, x, b, y):
    row = rows[i]
    after = rows[j]
    for c in range(x.shape[0]):
        x[c] += a * row[c]
        y[c] += b * (row[c] - discount * after[c])


def _sparse_axpy_step(rows, i, j, discount, a, x, b, y):
    axpy2(rows, i, a, x, b, y)
    if discount != 0.0:
        axpy(rows, j, -discount * b, y)


def _dense_times(P, x):
    return np.dot(P, x)


def _diagonal_times(P, x):
    scale, sides, core = P
    out = scale * x
    if sides.shape[1] == 0:
        return out
    first, second = 0.0, 0.0
    for c in range(x.shape[0]):
        first += sides[c, 0] * x[c]
        second += sides[c, 1] * x[c]
    a = core[0, 0] * first + core[0, 1] * second
    b = core[1, 0] * first + core[1, 1] * second
    for c in range(x.shape[0]):
        out[c] += a * sides[c, 0] + b * sides[c, 1]
    return out


def _dense_prefetch_row(rows, i):
    for c in range(0, rows.shape[1], 64 // rows.itemsize):
        prefetch(rows, i, c)


def _sparse_prefetch_row(rows, i):
    pass  # a sparse row is one or two cache lines, so prefetching it costs as much as a cache miss


by_storage(dot, _dense_dot, _sparse_dot)
by_storage(dotv, _dense_dotv, _sparse_dotv)
by_storage(dot2, _dense_dot2, _sparse_dot2)
by_storage(dot2v, _dense_dot2v, _sparse_dot2v)
by_storage(axpy, _dense_axpy, _sparse_axpy)
by_storage(axpy4, _dense_axpy4, _sparse_axpy4)
by_storage(set_row, _dense_set_row, _sparse_set_row)
by_storage(axpyv, _dense_axpyv, _sparse_axpyv)
by_storage(axpy2, _dense_axpy2, _sparse_axpy2)
by_storage(axpy2v, _dense_axpy2v, _sparse_axpy2v)
by_storage(axpy_step, _dense_axpy_step, _sparse_axpy_step)
by_storage(prefetch_row, _dense_prefetch_row, _sparse_prefetch_row)
by_storage(times, _dense_times, _diagonal_times)


@compiled
def materialise(y, G, scale, along):
    """y = scale * y + along * G: materialise the lazily scaled iterate of SVRG and SAGA."""
    for c in range(y.shape[0]):
        y[c] = scale * y[c] + along * G[c]


# ---- all rows ----------------------------------------------------------------------------------------------


@compiled
def rows_dot(rows, x, p):
    """p = rows x."""
    for i in range(p.shape[0]):
        p[i] = dot(rows, i, x)
    return p


@compiled
def rows_dot2(rows, x, y, p, q):
    """p = rows x and q = rows y."""
    for i in range(p.shape[0]):
        p[i], q[i] = dot2(rows, i, x, y)
    return p, q


@compiled
def rows_tdot(rows, a, x):
    """x += rows' a."""
    for i in range(a.shape[0]):
        if a[i] != 0.0:
            axpy(rows, i, a[i], x)
    return x


@compiled
def rows_tdot2(rows, a, c, x, y):
    """x += rows' a and y += rows' c."""
    for i in range(a.shape[0]):
        if a[i] != 0.0 or c[i] != 0.0:
            axpy2(rows, i, a[i], x, c[i], y)
    return x, y


@compiled
def rows_gram_dot(rows, weights, x, out):
    """out += rows' diag(weights) rows x."""
    for i in range(weights.shape[0]):
        if weights[i] != 0.0:
            axpy(rows, i, weights[i] * dot(rows, i, x), out)
    return out


@compiled
def combine_rows(rows, starts, indices, weights, out):
    """out_i = sum of weights[e] * rows[indices[e]] over starts[i] <= e < starts[i + 1]."""
    for i in range(out.shape[0]):
        first = starts[i]
        set_row(rows, indices[first], weights[first], out[i])
        for e in range(first + 1, starts[i + 1]):
            axpy(rows, indices[e], weights[e], out[i])


@compiled
def step_rows(phi, psi, now, next, discount, ratio, U, V):
    """U_t = psi_t and V_t = ratio_t v_t of every step; dense rows."""
    for t in range(now.shape[0]):
        dual, row, after, u, v = psi[now[t]], phi[now[t]], phi[next[t]], U[t], V[t]
        weight, factor = ratio[t], ratio[t] * discount[t]
        for c in range(u.shape[0]):
            u[c] = dual[c]
        for c in range(v.shape[0]):
            v[c] = weight * row[c] - factor * after[c]


@compiled
def dots_by_cluster(phi, psi, now, next, discount, cluster, steps, X, Y, p, q):
    """p_t = v_t'X[cluster_t] and q_t = psi_t'Y[cluster_t] of these steps; q only if Y has rows."""
    for t in steps:
        p[t] = dotv(phi, now[t], next[t], discount[t], X[cluster[t]])
        if Y.shape[0]:
            q[t] = dot(psi, now[t], Y[cluster[t]])


@compiled
def in_one_cluster(cluster, steps):
    """Whether these are four steps of one cluster."""
    if steps.shape[0] < 4:
        return False
    first = cluster[steps[0]]
    return cluster[steps[1]] == first and cluster[steps[2]] == first and cluster[steps[3]] == first


@compiled
def sums_by_cluster(phi, psi, now, next, discount, cluster, steps, a, c, X, Y, short):
    """X[cluster_t] += a_t v_t and Y[cluster_t] += c_t psi_t over these steps; X only if it has rows.

    short: whether rows of psi are, so that four are summed at a time where no sum X is asked for.
    """
    i, count = 0, steps.shape[0]
    while i < count:
        t = steps[i]
        if X.shape[0]:
            axpyv(phi, now[t], next[t], discount[t], a[t], X[cluster[t]])
        if short and X.shape[0] == 0 and in_one_cluster(cluster, steps[i : i + 4]):
            t1, t2, t3 = steps[i + 1], steps[i + 2], steps[i + 3]
            axpy4(psi, now[t], now[t1], now[t2], now[t3], c[t], c[t1], c[t2], c[t3], Y[cluster[t]])
            i += 4
        else:
            axpy(psi, now[t], c[t], Y[cluster[t]])
            i += 1


@compiled
def squares_by_cluster(psi, now, discount, ratio, begins, trace, cluster, G, out):
    """out[cluster_t, j] += (u_t'G[j])^2 over all steps, u_t'g by the recurrence of traces."""
    u = np.zeros(G.shape[0])
    for t in range(now.shape[0]):
        keep = 0.0 if t == 0 or begins[t] else trace * discount[t - 1]
        for j in range(G.shape[0]):
            u[j] = ratio[t] * (dot(psi, now[t], G[j]) + keep * u[j])
            out[cluster[t], j] += u[j] * u[j]


@compiled
def cross_sparse(psi, phi, rows, starts, indices, weights, out):
    """out += sum over i and starts[i] <= e < starts[i + 1] of weights[e] * outer(psi[rows[i]], phi[indices[e]])."""
    left, left_columns, left_starts = psi
    right, right_columns, right_starts = phi
    for i in range(rows.shape[0]):
        for e in range(starts[i], starts[i + 1]):
            for f in range(right_starts[indices[e]], right_starts[indices[e] + 1]):
                value = weights[e] * right[f]
                for g in range(left_starts[rows[i]], left_starts[rows[i] + 1]):
                    out[left_columns[g], right_columns[f]] += value * left[g]
    return out
