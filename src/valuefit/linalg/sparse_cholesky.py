"""A sparse Cholesky factor of a semi-definite matrix, by nested dissection and dense fronts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg as linalg
import scipy.linalg.blas as blas
import scipy.sparse as sparse

from valuefit.linalg.cholesky import CLEAR_PIVOT, pivoted_cholesky
from valuefit.rows.kernels import compiled
from valuefit.typing import Array

LEAF = 48  # largest part that is not dissected further


class SymbolicFactor(NamedTuple):
    """The structure of a factor: `order` of the columns; front i has columns starts[i] to starts[i + 1].

    below: for each front, the later columns with an entry in it. parent: the front that its Schur complement is
    added to, -1 for none. flops: operations. peak: most numbers stored at a time.
    """

    order: Array
    starts: Array
    below: list[Array]
    parent: Array
    flops: float
    peak: float


@dataclass(frozen=True)
class SparseFactor:
    """L with L L' = S on the columns `kept`; the others depend on them and are left out.

    clear: whether the rank is beyond doubt. size: entries stored.
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

    def solve(self, r: Array) -> Array:
        """(L L')^-1 r, zero where columns depend on others."""
        fronts = self.starts, self.ranks, self.rows, self.offsets, self.places, self.values
        y = (r * self.scale)[self.order]
        half_fronts(*fronts, y)
        back_fronts(*fronts, y)
        out = np.empty(len(y))
        out[self.order] = y
        return out * self.scale


def symbolic_factor(S: Any, *, flops: float, numbers: float) -> SymbolicFactor | None:
    """Nested dissection of the graph of S, or None where the factor would exceed these operations or numbers."""
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
    return SymbolicFactor(order, starts, below, parent, work, peak)


def numeric_factor(S: Any, structure: SymbolicFactor) -> SparseFactor:
    """Multifrontal: dense Cholesky with pivots in each front; its Schur complement is added to the parent.

    The Schur complement of a semi-definite matrix is semi-definite, so a column whose diagonal entry is zero is zero.
    """
    n = S.shape[0]
    diagonal = S.diagonal()
    scale = np.where(diagonal > 0, 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0)), 0.0)
    order, starts = structure.order.copy(), structure.starts
    T = sparse.csr_array(sparse.diags_array(scale) @ S @ sparse.diags_array(scale))[order][:, order]
    ranks = np.zeros(len(structure.parent), np.int64)
    heights = np.diff(starts) + [len(part) for part in structure.below]
    offsets = np.concatenate([[0], np.cumsum(heights)]).astype(np.int64)
    places = np.concatenate([[0], np.cumsum(np.diff(starts) * heights)]).astype(np.int64)
    rows = np.empty(offsets[-1], np.int64)
    values = np.zeros(places[-1])
    left: dict[int, list[tuple[Array, Array]]] = {}  # Schur complements of the children, below their diagonals
    position, moved = np.zeros(n, np.int64), np.empty(n, np.int64)
    clear = True
    for front, below in enumerate(structure.below):
        first, end = int(starts[front]), int(starts[front + 1])
        s = end - first
        mine = np.concatenate([np.arange(first, end), below])
        position[mine] = np.arange(len(mine))
        F = np.zeros((len(mine), len(mine)), order="F")
        part = T[first:end].tocoo()
        inside = part.col >= first
        F[position[part.col[inside]], part.row[inside]] = part.data[inside]
        for where, rest in left.pop(front, []):
            add_lower(F, position[where], rest)
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
            rest = np.asfortranarray(F[s:, s:])
            if r:
                rest = blas.dsyrk(-1.0, F[s:, :r], beta=1.0, c=rest, lower=1, overwrite_c=1)
            left.setdefault(int(structure.parent[front]), []).append((below, rest))
    return SparseFactor(order, scale, starts, ranks, moved[rows], offsets, places, values, clear)


@compiled
def add_lower(F, at, rest):
    """Add the part of `rest` below its diagonal to rows and columns `at` of F, which ascend; both are column-major."""
    for j in range(len(at)):
        for i in range(j, len(at)):
            F[at[i], at[j]] += rest[i, j]


def _pivot(F: Array, s: int) -> tuple[Array, int]:
    """Cholesky of the first s columns of F in place, with pivots if necessary: their order and rank."""
    lower, order, rank, pivoted = pivoted_cholesky(np.tril(F[:s, :s]), zero=1e-13)
    if pivoted:
        F[s:, :s] = F[s:, order]
    F[:s, :s] = lower
    F[s:, rank:s] = 0.0
    if rank and len(F) > s:
        F[s:, :rank] = linalg.solve_triangular(lower[:rank, :rank], F[s:, :rank].T, lower=True, check_finite=False).T
    return order, rank


def dissect(indptr: Any, indices: Any, *, leaf: int, largest: float = np.inf) -> tuple[Any, Any, Any] | None:
    """The order of the vertices, where fronts start, children before parents, and the parent of each.

    None where a front would have more than `largest` columns.
    """
    n = len(indptr) - 1
    order, bounds = np.empty(n, np.int64), np.empty((n, 3), np.int64)
    fronts = dissect_graph(indptr, indices, leaf, float(largest), order, bounds)
    if fronts < 0:
        return None
    bounds = bounds[:fronts][np.argsort(bounds[:fronts, 0])]
    parent = np.where(bounds[:, 2] < 0, -1, np.searchsorted(bounds[:, 0], bounds[:, 2]))
    return order, np.append(bounds[:, 0], n), parent


@compiled
def dissect_graph(indptr, indices, leaf, largest, order, bounds):
    """Nested dissection: `order` of the vertices and, in `bounds`, (first, end, first of the parent) of every front.

    A part is searched breadth-first from a peripheral vertex; the smallest level near its middle, without vertices
    that have no neighbour in the next level, is its separator and comes last. Returns the number of fronts, or -1 as
    soon as a front has more than `largest` columns.
    """
    n = order.shape[0]
    graph = indptr, indices, np.zeros(n, np.int64)  # the last: labels of the parts
    level, queue = np.full(n, -1, np.int64), np.empty(n, np.int64)
    order[:] = np.arange(n)
    stack = [(0, n, -1)]
    fronts = part = 0
    while len(stack):
        first, end, parent = stack.pop()
        size = end - first
        if size == 0:
            continue
        part += 1
        for i in range(first, end):
            graph[2][order[i]] = part
            level[order[i]] = -1
        cut = -1
        if size > leaf:
            count, depth = peripheral_search(graph, part, order[first], size, queue, level)
            if count < size:  # disconnected
                set_apart(order, first, end, count, queue, level)
                stack.append((first, first + count, parent))
                stack.append((first + count, end, parent))
                continue
            cut = middle_level(queue, level, size, depth)
        if cut >= 0:
            left, separator = divide(graph, part, cut, order, first, size, queue, level)
        else:
            left = separator = first
        if end - separator > largest:
            return -1
        bounds[fronts, 0], bounds[fronts, 1], bounds[fronts, 2] = separator, end, parent
        fronts += 1
        if cut >= 0:
            stack.append((first, left, separator))
            stack.append((left, separator, separator))
    return fronts


@compiled
def peripheral_search(graph, part, root, size, queue, level):
    """A breadth-first search of this part from a peripheral vertex: vertices reached, and the largest level."""
    start, best = root, -1
    for _ in range(3):
        count, depth = breadth_first(graph, part, root, queue, level)
        if depth <= best or count < size:
            break
        best, root = depth, queue[count - 1]
        for i in range(count):
            level[queue[i]] = -1
    if level[start] < 0:  # cleared for another search that was not made
        count, depth = breadth_first(graph, part, root, queue, level)
    return count, depth


@compiled
def set_apart(order, first, end, count, queue, level):
    """Order the `count` vertices that a search reached first, and then the others."""
    high = end
    for i in range(first, end):
        if level[order[i]] < 0:
            high -= 1
            queue[high - first] = order[i]
    for i in range(end - first):
        order[first + i] = queue[i]


@compiled
def middle_level(queue, level, size, depth):
    """The level that is the best separator, small and near the middle; -1 where none divides the part."""
    sizes = np.zeros(depth + 1, np.int64)
    for i in range(size):
        sizes[level[queue[i]]] += 1
    best, below, cut = np.inf, 0, -1
    for m in range(1, depth):
        below += sizes[m - 1]
        smaller = min(below, size - below - sizes[m])
        cost = sizes[m] * (1.0 if smaller >= 0.3 * size else 0.3 * size / smaller)
        if cost < best and smaller >= 0.02 * size:  # or the recursion would be too deep
            best, cut = cost, m
    return cut


@compiled
def divide(graph, part, cut, order, first, size, queue, level):
    """Order the vertices below the cut, those above, and the separator: the ends of the first two."""
    indptr, indices, label = graph
    kind = np.zeros(size, np.int8)
    counts = np.zeros(3, np.int64)
    for i in range(size):
        v = queue[i]
        if level[v] > cut:
            kind[i] = 1
        elif level[v] == cut:
            for e in range(indptr[v], indptr[v + 1]):
                if label[indices[e]] == part and level[indices[e]] > cut:
                    kind[i] = 2
                    break
        counts[kind[i]] += 1
    left, separator = first + counts[0], first + counts[0] + counts[1]
    place = np.array([first, left, separator])
    for i in range(size):
        order[place[kind[i]]] = queue[i]
        place[kind[i]] += 1
    return left, separator


@compiled
def breadth_first(graph, part, root, queue, level):
    """Vertices of this part that `root` reaches, by distance, into `queue`: how many, and the largest distance."""
    indptr, indices, label = graph
    queue[0], level[root] = root, 0
    count, done = 1, 0
    while done < count:
        v = queue[done]
        done += 1
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            if label[u] == part and level[u] < 0:
                level[u] = level[v] + 1
                queue[count] = u
                count += 1
    return count, level[queue[count - 1]]


@compiled
def subtract(column, x, y):
    """y -= column * x; on whole slices, because numba vectorises no loop whose indices might be negative."""
    for i in range(len(y)):
        y[i] -= column[i] * x


@compiled
def product(column, y):
    """column' y."""
    x = 0.0
    for i in range(len(y)):
        x += column[i] * y[i]
    return x


@compiled
def half_fronts(starts, ranks, rows, offsets, places, values, y):
    """y = L^-1 y, in place."""
    for front in range(len(ranks)):
        first, end, o, height = starts[front], starts[front + 1], offsets[front], offsets[front + 1] - offsets[front]
        s, r = end - first, ranks[front]
        below = np.empty(height - s)
        for i in range(height - s):
            below[i] = y[rows[o + s + i]]
        for c in range(r):
            at = places[front] + c * height
            x = y[first + c] / values[at + c]
            y[first + c] = x
            subtract(values[at + c + 1 : at + s], x, y[first + c + 1 : end])
            subtract(values[at + s : at + height], x, below)
        for c in range(r, s):
            y[first + c] = 0.0
        for i in range(height - s):
            y[rows[o + s + i]] = below[i]


@compiled
def back_fronts(starts, ranks, rows, offsets, places, values, y):
    """y = L^-T y, in place."""
    for front in range(len(ranks) - 1, -1, -1):
        first, end, o, height = starts[front], starts[front + 1], offsets[front], offsets[front + 1] - offsets[front]
        s, r = end - first, ranks[front]
        below = np.empty(height - s)
        for i in range(height - s):
            below[i] = y[rows[o + s + i]]
        for c in range(r, s):
            y[first + c] = 0.0
        for c in range(r - 1, -1, -1):
            at = places[front] + c * height
            x = y[first + c] - product(values[at + c + 1 : at + s], y[first + c + 1 : end])
            y[first + c] = (x - product(values[at + s : at + height], below)) / values[at + c]


@compiled
def sparse_gram(data, indices, indptr, tdata, tindices, tindptr, weights):
    """Phi' diag(weights) Phi on and below its diagonal, in CSR, from Phi by rows, indices ascending, and by columns."""
    d = len(tindptr) - 1
    starts, sums, seen = np.zeros(d + 1, np.int64), np.zeros(d), np.full(d, -1, np.int64)
    room, count = 1 << 16, 0
    columns, values = np.empty(room, np.int32), np.empty(room)
    for i in range(d):
        for e in range(tindptr[i], tindptr[i + 1]):
            row = tindices[e]
            weight = weights[row] * tdata[e]
            if weight == 0:
                continue
            if count + indptr[row + 1] - indptr[row] > room:
                room = 2 * room + indptr[row + 1] - indptr[row]
                more, others = np.empty(room, np.int32), np.empty(room)
                more[:count], others[:count] = columns[:count], values[:count]
                columns, values = more, others
            for f in range(indptr[row], indptr[row + 1]):
                j = indices[f]
                if j > i:
                    break
                if seen[j] != i:
                    seen[j], sums[j] = i, 0.0
                    columns[count] = j
                    count += 1
                sums[j] += weight * data[f]
        for e in range(starts[i], count):
            values[e] = sums[columns[e]]
        starts[i + 1] = count
    return values[:count].copy(), columns[:count].copy(), starts
