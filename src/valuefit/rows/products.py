"""Full-batch products that read dense rows once: each row is used for Phi x and for Phi' a while it is in cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from valuefit.rows.kernels import axpy, axpy2, compiled, dot, dot2
from valuefit.threads import parts_of, share_out
from valuefit.typing import Array

CACHED_BLOCKS = 2  # a row is assumed to be in cache while at most this many further blocks are read


class StepColumns(NamedTuple):
    """Rows, discounts, ratios and rewards of the steps of a log."""

    now: Array
    next: Array
    discount: Array
    ratio: Array
    reward: Array


class Schedule(NamedTuple):
    """Steps sorted by their `now` row (starts, order) and by their `next` row (back_starts, back_order), and groups.

    The weight of a row in A theta needs the values of its neighbours, the rows that its steps lead to or come from.
    Group g = ready[ready_starts[g]:ready_starts[g + 1]] holds the rows that are added after block g has been read:
    they are still in cache, and all their neighbours have been read. Parts of `span` blocks are independent of each
    other and can run on different threads. Rows with a neighbour in another part or far away are in the last groups,
    one per part, and are read a second time. Parts depend on the rows alone, so sums do not depend on the threads.
    """

    starts: Array
    order: Array
    back_starts: Array
    back_order: Array
    ready: Array
    ready_starts: Array
    block: int
    blocks: int
    span: int

    @property
    def parts(self) -> int:
        return len(self.ready_starts) - 1 - self.blocks


def schedule(now: Array, next: Array, rows: int, row_bytes: float) -> Schedule:
    """The schedule of a log with this many rows of `row_bytes` bytes each."""
    # a few blocks of 96 kB stay in the inner caches
    block = int(np.clip((96 << 10) / max(row_bytes, 1.0), 8, 64))
    starts, order = _sorted(now, rows)
    back_starts, back_order = _sorted(next, rows)
    blocks = -(-rows // block)
    span = max(-(-blocks // parts_of(rows * row_bytes)), 1)
    group = np.empty(rows, np.int64)
    _assign_groups(now, next, block, blocks, span, group)
    ready_starts, ready = _sorted(group, blocks + -(-blocks // span))
    return Schedule(starts, order, back_starts, back_order, ready, ready_starts, block, blocks, span)


@compiled
def _sorted(keys, count):
    """Counting sort: the positions of key i, ascending, are order[starts[i]:starts[i + 1]]."""
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
def _assign_groups(now, next, block, blocks, span, group):
    """group[i]: the block after which row i is added, or blocks + part if a neighbour is too far away."""
    for i in range(group.shape[0]):
        group[i] = i
    for t in range(now.shape[0]):
        group[now[t]] = max(group[now[t]], next[t])
        group[next[t]] = max(group[next[t]], now[t])
    part_rows = block * span
    for i in range(group.shape[0]):
        part = i // part_rows
        late = group[i] - i > CACHED_BLOCKS * block or group[i] >= (part + 1) * part_rows
        group[i] = blocks + part if late else group[i] // block
    for t in range(now.shape[0]):  # an earlier neighbour has been read too, unless it is in another part
        last = max(now[t], next[t])
        part = last // part_rows
        if min(now[t], next[t]) < part * part_rows:
            group[last] = blocks + part


def sweep(rows: Array, plan: Schedule, steps: StepColumns, theta: Array) -> Array:
    """sum_t u_t (v_t' theta - r_t) with u_t = ratio_t row, reading the rows once."""
    p = np.empty(len(rows))
    out = np.zeros((plan.parts, rows.shape[1]))
    _in_parts(plan, lambda part, first, last: _sweep(rows, plan, first, last, steps, theta, p, out[part]))
    return out.sum(axis=0)


def step_sweep(rows: Array, steps: StepColumns, theta: Array) -> Array:
    """`sweep` in the order of the steps, without a schedule: for trajectories, where mostly next[t] = now[t + 1]."""
    parts = parts_of(rows.nbytes)
    ends = np.linspace(0, len(steps.now), parts + 1).astype(np.int64)
    out = np.zeros((parts, rows.shape[1]))
    share_out(lambda part: _step_sweep(rows, ends[part], ends[part + 1], steps, theta, out[part]), parts)
    return out.sum(axis=0)


def sweep_both(
    rows: Array, plan: Schedule, steps: StepColumns, theta: Array, w: Array, *, identity: bool
) -> tuple[Array, Array]:
    """sum_t v_t (u_t' w) and sum_t u_t (v_t' theta - r_t) + phi_t phi_t' w, reading the rows once.

    identity: leave out phi_t phi_t' w.
    """
    products = np.empty(len(rows)), np.empty(len(rows))
    out = np.zeros((2, plan.parts, rows.shape[1]))

    def work(part: int, first: int, last: int) -> None:
        _sweep_both(rows, plan, first, last, steps, identity, (theta, w), products, (out[0, part], out[1, part]))

    _in_parts(plan, work)
    of_theta, of_w = out.sum(axis=1)
    return of_theta, of_w


def _in_parts(plan: Schedule, work: Callable[[int, int, int], Any]) -> None:
    """Call work(part, first group, end of groups) for all parts, then for the last groups when all rows are read."""
    parts, blocks, span = plan.parts, plan.blocks, plan.span
    share_out(lambda part: work(part, part * span, min((part + 1) * span, blocks)), parts)
    if plan.ready_starts[blocks] < len(plan.ready):
        share_out(lambda part: work(part, blocks + part, blocks + part + 1), parts)


@compiled
def _step_sweep(rows, start, stop, steps, theta, out):
    """out += sum of u_t (v_t' theta - r_t) over start <= t < stop."""
    now, next, discount, ratio, reward = steps
    known, value = -1, 0.0
    for t in range(start, stop):
        here = value if now[t] == known else dot(rows, now[t], theta)
        known, value = next[t], dot(rows, next[t], theta)
        axpy(rows, now[t], ratio[t] * (here - discount[t] * value - reward[t]), out)


@compiled
def _sweep(rows, plan, first, last, steps, theta, p, out):
    """out += sum of u_t (v_t' theta - r_t) over the rows of groups first to last - 1."""
    _, next, discount, ratio, reward = steps
    m = p.shape[0]
    for g in range(first, last):
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


@compiled
def _sweep_both(rows, plan, first, last, steps, identity, iterate, products, out):
    """Both sums of `sweep_both` over the rows of groups first to last - 1; products: of the rows with the iterate."""
    now, next, discount, ratio, reward = steps
    (theta, w), (p, q), (of_theta, of_w) = iterate, products, out
    m = p.shape[0]
    for g in range(first, last):
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
