"""Full-batch products that read every row once: what a row is multiplied by is known while it is still in cache."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from valuefit.kernels import axpy, axpy2, compiled, dot, dot2
from valuefit.transitions import Array

BLOCK_BYTES = 96 << 10  # of rows that are read, and multiplied again while they are in the nearer caches
FAR = 2  # blocks within which a row is still there


class Schedule(NamedTuple):
    """Steps by the row they start from and by the row they lead to, and when each row's weight is known.

    A row's weight in A theta needs the values of the rows that its steps lead to. After block g of rows, those of
    `ready` from ready_starts[g] on are due: rows in sight whose neighbours have been read by then. The last group holds
    the rows that wait for one far away; they are read a second time.
    """

    starts: Array
    order: Array
    back_starts: Array
    back_order: Array
    ready: Array
    ready_starts: Array
    block: int


def schedule(now: Array, next: Array, rows: int, row_bytes: float) -> Schedule:
    """The schedule of a log over this many rows."""
    block = int(np.clip(BLOCK_BYTES / max(row_bytes, 1.0), 8, 64))
    starts, order = _sorted(now, rows)
    back_starts, back_order = _sorted(next, rows)
    groups = -(-rows // block)
    group = np.empty(rows, np.int64)
    _due(now, next, block, groups, group)
    ready_starts, ready = _sorted(group, groups + 1)
    return Schedule(starts, order, back_starts, back_order, ready, ready_starts, block)


@compiled
def _sorted(keys, count):
    """Places of each key in ascending order: those of key i are order[starts[i]:starts[i + 1]]."""
    starts = np.zeros(count + 1, np.int64)
    for key in keys:
        starts[key + 1] += 1
    for i in range(count):
        starts[i + 1] += starts[i]
    filled = starts.copy()
    order = np.empty(keys.shape[0], np.int64)
    for t in range(keys.shape[0]):
        order[filled[keys[t]]] = t
        filled[keys[t]] += 1
    return starts, order


@compiled
def _due(now, next, block, groups, group):
    """The block after which each row is due; `groups` where that is too late to find it in cache."""
    for i in range(group.shape[0]):
        group[i] = i
    for t in range(now.shape[0]):
        group[now[t]] = max(group[now[t]], next[t])
        group[next[t]] = max(group[next[t]], now[t])
    for i in range(group.shape[0]):
        group[i] = group[i] // block if group[i] - i <= FAR * block else groups


@compiled
def sweep(rows, plan, next, discount, ratio, reward, theta, out):
    """out += sum_t u_t (v_t' theta - r_t) with u_t = ratio_t row, reading the rows once."""
    m = plan.starts.shape[0] - 1
    p = np.empty(m)
    groups = plan.ready_starts.shape[0] - 1
    for g in range(groups):
        for i in range(g * plan.block, min((g + 1) * plan.block, m)):
            p[i] = dot(rows, i, theta)
        for e in range(plan.ready_starts[g], plan.ready_starts[g + 1]):
            i = plan.ready[e]
            weight = 0.0
            for f in range(plan.starts[i], plan.starts[i + 1]):
                t = plan.order[f]
                weight += ratio[t] * (p[i] - discount[t] * p[next[t]] - reward[t])
            if weight != 0.0:
                axpy(rows, i, weight, out)
    return out


@compiled
def sweep_both(rows, plan, now, next, discount, ratio, reward, identity, theta, w, of_theta, of_w):
    """of_theta += sum_t v_t (u_t' w) and of_w += sum_t u_t (v_t' theta - r_t) + row row' w, reading the rows once."""
    m = plan.starts.shape[0] - 1
    p, q = np.empty(m), np.empty(m)
    groups = plan.ready_starts.shape[0] - 1
    for g in range(groups):
        for i in range(g * plan.block, min((g + 1) * plan.block, m)):
            p[i], q[i] = dot2(rows, i, theta, w)
        for e in range(plan.ready_starts[g], plan.ready_starts[g + 1]):
            i = plan.ready[e]
            a, c = 0.0, 0.0
            for f in range(plan.starts[i], plan.starts[i + 1]):
                t = plan.order[f]
                a += ratio[t] * q[i]
                c += ratio[t] * (p[i] - discount[t] * p[next[t]] - reward[t])
                if not identity:
                    c += q[i]
            for f in range(plan.back_starts[i], plan.back_starts[i + 1]):
                t = plan.back_order[f]
                a -= discount[t] * ratio[t] * q[now[t]]
            if a != 0.0 or c != 0.0:
                axpy2(rows, i, a, of_theta, c, of_w)
    return of_theta, of_w
