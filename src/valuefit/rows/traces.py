"""Eligibility traces of a log; products with them are recurrences over scalars, without trace rows.

u_t = ratio_t (psi_t + trace * discount_{t-1} * u_{t-1}), with u_{t-1} = 0 at the first step of an episode.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from valuefit.rows.kernels import axpy, compiled
from valuefit.typing import Array


def recurrence(x: Array, keep: Array) -> Array:
    """y_t = x_t + keep_t * y_{t-1} in NumPy, for numbers or rows x_t; keep is 0 where an episode begins.

    Recursive doubling: after round k, y_t is the sum of its last 2^k terms. It stops after the longest episode, or
    when all products of `keep` are 0.
    """
    y, keep = x.astype(np.float64), keep.copy()
    if y.ndim > 1:
        keep = keep[:, None]
    span = 1
    while span < len(y) and keep[span:].any():
        y[span:] += keep[span:] * y[:-span]
        keep[span:] *= keep[:-span]
        span *= 2
    return y


def keep_forward(discount: Array, ratio: Array, begins: Array, trace: float) -> Array:
    """The factor of u_{t-1} in u_t: ratio_t * trace * discount_{t-1}, and 0 at the first step of an episode."""
    keep = ratio * trace
    keep[1:] *= discount[:-1]
    keep[begins] = 0.0
    return keep


def keep_backward(discount: Array, ratio: Array, begins: Array, trace: float) -> Array:
    """The factor of z_{t+1} in z_t: ratio_t * trace * discount_t, and 0 at the last step of an episode."""
    keep = ratio * trace * discount
    keep[:-1][begins[1:]] = 0.0
    keep[-1:] = 0.0
    return keep


def forward(x: Array, discount: Array, ratio: Array, begins: Array, trace: float, *, large: bool) -> Array:
    """`trace_forward`, compiled if the problem is large, else in NumPy."""
    if not trace:
        return ratio * x
    if large:
        return np.asarray(trace_forward(x, discount, ratio, begins, trace))
    return recurrence(ratio * x, keep_forward(discount, ratio, begins, trace))


def backward(x: Array, discount: Array, ratio: Array, begins: Array, trace: float, *, large: bool) -> Array:
    """`trace_backward`, compiled if the problem is large, else in NumPy."""
    if not trace:
        return ratio * x
    if large:
        return np.asarray(trace_backward(x, discount, ratio, begins, trace))
    return recurrence((ratio * x)[::-1], keep_backward(discount, ratio, begins, trace)[::-1])[::-1]


@compiled
def trace_backward(x, discount, ratio, begins, trace):
    """z_t = ratio_t (x_t + trace * discount_t * z_{t+1}) within an episode: sum u_t x_t = sum psi_t z_t."""
    z = np.empty_like(x)
    after = 0.0
    for t in range(x.shape[0] - 1, -1, -1):
        if t + 1 == x.shape[0] or begins[t + 1]:
            after = 0.0
        after = ratio[t] * (x[t] + trace * discount[t] * after)
        z[t] = after
    return z


@compiled
def batch_weights(now, next, discount, ratio, begins, trace, reward, p, q):
    """Row weights a, c of one full-batch product, given p = Phi theta and q = Psi w.

    Phi' a = sum_t v_t (u_t' w) by the forward recurrence of u_t' w, and Psi' c = sum_t u_t (v_t' theta - r_t) by the
    backward recurrence of `trace_backward`.
    """
    a = np.zeros_like(p)
    c = np.zeros_like(q)
    uw = 0.0
    for t in range(now.shape[0]):
        carried = 0.0 if begins[t] else trace * discount[t - 1] * uw
        uw = ratio[t] * (q[now[t]] + carried)
        a[now[t]] += uw
        a[next[t]] -= discount[t] * uw
    td = np.empty_like(reward)
    for t in range(now.shape[0]):
        td[t] = p[now[t]] - discount[t] * p[next[t]] - reward[t]
    z = trace_backward(td, discount, ratio, begins, trace)
    for t in range(now.shape[0]):
        c[now[t]] += z[t]
    return a, c


@compiled
def trace_forward(x, discount, ratio, begins, trace):
    """y_t = ratio_t (x_t + trace * discount_{t-1} * y_{t-1}) within an episode: u_t'w from psi_t'w."""
    y = np.empty_like(x)
    for t in range(x.shape[0]):
        carried = 0.0 if begins[t] else trace * discount[t - 1] * y[t - 1]
        y[t] = ratio[t] * (x[t] + carried)
    return y


@compiled
def trace_block(rows, now, ratio, keep, u, out):
    """Write the rows u_t of consecutive steps to `out`; `u` holds the last one between blocks. keep: `keep_forward`."""
    for t in range(now.shape[0]):
        for c in range(u.shape[0]):
            u[c] *= keep[t]
        axpy(rows, now[t], ratio[t], u)
        out[t] = u


def trace_rows_dense(
    rows: Any, now: Array, discount: Array, ratio: Array, begins: Array, trace: float, width: int
) -> Array:
    """The rows u_t, (n, width)."""
    U = np.empty((len(now), width))
    trace_block(rows, now, ratio, keep_forward(discount, ratio, begins, trace), np.zeros(width), U)
    return U


@compiled
def trace_row_sizes(indices, indptr, now, begins, width):
    """Number of stored entries of each u_t: the columns with entries in its episode so far."""
    sizes = np.empty(now.shape[0], np.int64)
    seen = np.full(width, -1, np.int64)
    episode = -1
    count = 0
    for t in range(now.shape[0]):
        if begins[t]:
            episode += 1
            count = 0
        for e in range(indptr[now[t]], indptr[now[t] + 1]):
            if seen[indices[e]] != episode:
                seen[indices[e]] = episode
                count += 1
        sizes[t] = count
    return sizes


@compiled
def trace_rows_sparse(rows, now, discount, ratio, begins, trace, width, indptr):
    """Values and column indices of the rows u_t in CSR, with `indptr` from `trace_row_sizes`."""
    data, columns, starts = rows
    values = np.empty(indptr[-1])
    indices = np.empty(indptr[-1], np.int32)
    u = np.zeros(width)
    active = np.empty(width, np.int64)
    is_active = np.zeros(width, np.bool_)
    count = 0
    for t in range(now.shape[0]):
        if begins[t]:
            for e in range(count):
                is_active[active[e]] = False
                u[active[e]] = 0.0
            count = 0
        else:
            for e in range(count):
                u[active[e]] *= ratio[t] * trace * discount[t - 1]
        for e in range(starts[now[t]], starts[now[t] + 1]):
            c = columns[e]
            if not is_active[c]:
                is_active[c] = True
                active[count] = c
                count += 1
            u[c] += ratio[t] * data[e]
        for e in range(count):
            indices[indptr[t] + e] = active[e]
            values[indptr[t] + e] = u[active[e]]
    return values, indices
