"""A sparse Cholesky factor of a semi-definite matrix, by nested dissection and dense fronts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg as linalg
import scipy.sparse as sparse

from valuefit.linalg.cholesky import CLEAR_PIVOT, pivoted_cholesky
from valuefit.linalg.fronts import back_fronts, dissect, half_fronts
from valuefit.typing import Array

LEAF = 48  # vertices that are not parted any further
ZERO_PIVOT = 1e-13  # a column of unit length with a smaller pivot depends on the others but for rounding


class Plan(NamedTuple):
    """How a matrix will be factorised: `order` of its columns; front i has columns starts[i] to starts[i + 1].

    below: for each front, the later columns that it touches. parent: the front that takes its remainder in, -1 for
    none. numbers: how many the factor will hold. flops: what it will cost. peak: numbers kept on the way.
    """

    order: Array
    starts: Array
    below: list[Array]
    parent: Array
    numbers: float
    flops: float
    peak: float


@dataclass(frozen=True)
class SparseFactor:
    """L with L L' = S on the columns `kept`; the others depend on them and take no part.

    clear: whether the rank is beyond doubt. numbers: how many it holds.
    """

    order: Array
    scale: Array
    starts: Array
    ranks: Array
    rows: Array  # of all fronts, one after another
    offsets: Array  # of the rows of each front
    places: Array  # of the values of each front
    values: Array  # each front: (columns + below) x columns, by columns
    clear: bool

    @property
    def size(self) -> int:
        return len(self.values)

    @property
    def rank(self) -> int:
        return int(self.ranks.sum())

    def half(self, r: Array) -> Array:
        """L^-1 r, zero where columns depend on others."""
        y = (r * self.scale)[self.order]
        return half_fronts(self.starts, self.ranks, self.rows, self.offsets, self.places, self.values, y)

    def back(self, y: Array) -> Array:
        """L^-T y, zero where columns depend on others."""
        x = back_fronts(self.starts, self.ranks, self.rows, self.offsets, self.places, self.values, y.copy())
        out = np.empty(len(x))
        out[self.order] = x
        return out * self.scale


def plan(S: Any, *, flops: float, numbers: float) -> Plan | None:
    """Nested dissection of the graph of S, or None where the factor would cost more than this."""
    n = S.shape[0]
    parts = dissect(S.indptr, S.indices, leaf=LEAF, largest=(3 * flops) ** (1 / 3))
    if parts is None:
        return None
    order, starts, parent = parts
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    graph = sparse.csr_array((np.ones(S.nnz, np.int8), S.indices, S.indptr), shape=S.shape)
    children: list[list[int]] = [[] for _ in parent]
    for front, above in enumerate(parent):
        if above >= 0:
            children[above].append(front)
    below: list[Array] = []
    held = work = waiting = peak = 0.0
    for front in range(len(parent)):
        first, end = starts[front], starts[front + 1]
        touched = place[graph[order[first:end]].indices]
        joined = np.unique(np.concatenate([touched, *(below[child] for child in children[front])]))
        below.append(joined[joined >= end])
        s, m = float(end - first), float(len(below[-1]))
        held += s * (s + m)
        work += s**3 / 3 + s * s * m + s * m * m
        waiting += m * m
        peak = max(peak, held + waiting + (s + m) ** 2)
        waiting -= sum(float(len(below[child])) ** 2 for child in children[front])
        if work > flops or peak > numbers:
            return None
    return Plan(order, starts, below, parent, held, work, peak)


def factorise(S: Any, plan: Plan) -> SparseFactor:
    """Front by front: dense Cholesky with pivots among its columns, the rest handed on to the next front.

    As the remainder of a semi-definite matrix is semi-definite, a column whose own entry there is zero is zero.
    """
    n = S.shape[0]
    diagonal = S.diagonal()
    scale = np.where(diagonal > 0, 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0)), 0.0)
    order, starts = plan.order.copy(), plan.starts
    T = sparse.csr_array(sparse.diags_array(scale) @ S @ sparse.diags_array(scale))[order][:, order]
    ranks = np.zeros(len(plan.parent), np.int64)
    offsets = np.concatenate([[0], np.cumsum(np.diff(starts) + [len(part) for part in plan.below])]).astype(np.int64)
    sizes = np.diff(starts) * np.diff(offsets)
    places = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    rows = np.empty(offsets[-1], np.int64)
    values = np.zeros(places[-1])
    left: dict[int, list[tuple[Array, Array]]] = {}  # what children hand on
    position, moved = np.zeros(n, np.int64), np.empty(n, np.int64)
    clear = True
    for front, below in enumerate(plan.below):
        first, end = int(starts[front]), int(starts[front + 1])
        s = end - first
        mine = np.concatenate([np.arange(first, end), below])
        position[mine] = np.arange(len(mine))
        F = np.zeros((len(mine), len(mine)), order="F")
        part = T[first:end].tocoo()
        inside = part.col >= first
        F[position[part.col[inside]], part.row[inside]] = part.data[inside]
        for where, rest in left.pop(front, []):
            at = position[where]
            F[np.ix_(at, at)] += rest
        pivots, ranks[front] = _pivot(F, s)
        order[first:end] = order[first:end][pivots]
        if ranks[front]:
            kept = np.diag(F)[: ranks[front]] ** 2
            lengths = diagonal[order[first : first + ranks[front]]]
            clear = (
                clear
                and kept.min() > CLEAR_PIVOT
                and float((kept * lengths).min()) > CLEAR_PIVOT * float(diagonal.max())
            )
        moved[first + pivots] = np.arange(first, end)
        r = int(ranks[front])
        rows[offsets[front] : offsets[front + 1]] = mine
        values[places[front] : places[front + 1]] = F[:, :s].ravel(order="F")
        if len(below):
            L21 = F[s:, :r]
            rest = F[s:, s:] - L21 @ L21.T if r else F[s:, s:]
            left.setdefault(int(plan.parent[front]), []).append((below, rest))
    return SparseFactor(order, scale, starts, ranks, moved[rows], offsets, places, values, clear)


def _pivot(F: Array, s: int) -> tuple[Array, int]:
    """Cholesky of the first s columns of F in place, pivoted if it must be: their order and rank."""
    lower, order, rank, pivoted = pivoted_cholesky(np.tril(F[:s, :s]), zero=ZERO_PIVOT)
    if pivoted:
        F[s:, :s] = F[s:, order]
    F[:s, :s] = lower
    F[s:, rank:s] = 0.0
    if rank and len(F) > s:
        F[s:, :rank] = linalg.solve_triangular(lower[:rank, :rank], F[s:, :rank].T, lower=True, check_finite=False).T
    return order, rank
