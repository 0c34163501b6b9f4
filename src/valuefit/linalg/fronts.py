"""Loops that numba compiles for sparse second moments and their factors: products, dissection, triangular solves."""

from __future__ import annotations

from typing import Any

import numpy as np

from valuefit.rows.kernels import compiled


@compiled
def gram(data, indices, indptr, tdata, tindices, tindptr, weights):
    """Phi' diag(weights) Phi in CSR, from Phi by rows and by columns."""
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
                if seen[j] != i:
                    seen[j], sums[j] = i, 0.0
                    columns[count] = j
                    count += 1
                sums[j] += weight * data[f]
        for e in range(starts[i], count):
            values[e] = sums[columns[e]]
        starts[i + 1] = count
    return values[:count].copy(), columns[:count].copy(), starts


@compiled
def breadth_first(indptr, indices, label, mark, root, queue, level):
    """Vertices with label `mark` that `root` reaches, by distance, into `queue`: how many, and the largest distance."""
    queue[0], level[root] = root, 0
    count, done = 1, 0
    while done < count:
        v = queue[done]
        done += 1
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            if label[u] == mark and level[u] < 0:
                level[u] = level[v] + 1
                queue[count] = u
                count += 1
    return count, level[queue[count - 1]]


@compiled
def dissect_graph(indptr, indices, n, leaf, largest, order, bounds):
    """Nested dissection: `order` of the vertices and, in `bounds`, (first, end, first of the parent) of every front.

    A part is searched breadth-first from a vertex at its rim; the smallest level in its middle, as far as it touches
    the next, is what separates it, and comes last. -1 as soon as a front has more than `largest` columns.
    """
    label, level, queue = np.zeros(n, np.int64), np.full(n, -1, np.int64), np.empty(n, np.int64)
    order[:] = np.arange(n)
    stack = [(0, n, -1)]
    fronts = marks = 0
    while len(stack):
        first, end, parent = stack.pop()
        size = end - first
        if size == 0:
            continue
        marks += 1
        for i in range(first, end):
            label[order[i]] = marks
            level[order[i]] = -1
        whole = size <= leaf
        if not whole:
            root, depth = order[first], -1
            for _ in range(3):  # towards the rim
                count, reached = breadth_first(indptr, indices, label, marks, root, queue, level)
                if reached <= depth or count < size:
                    break
                depth, root = reached, queue[count - 1]
                for i in range(count):
                    level[queue[i]] = -1
            if level[order[first]] < 0:  # it was wiped for another search that did not come
                count, reached = breadth_first(indptr, indices, label, marks, root, queue, level)
            if count < size:  # parts that do not touch
                low, high = first, end
                for i in range(first, end):
                    v = order[i]
                    if level[v] < 0:
                        high -= 1
                        queue[size - (end - high)] = v
                for i in range(size):
                    order[first + i] = queue[i]
                low = first + count
                stack.append((first, low, parent))
                stack.append((low, end, parent))
                continue
            sizes = np.zeros(reached + 1, np.int64)
            for i in range(size):
                sizes[level[queue[i]]] += 1
            best, below, cut = np.inf, 0, -1
            for m in range(1, reached):
                below += sizes[m - 1]
                smaller = min(below, size - below - sizes[m])
                cost = sizes[m] * (1.0 if smaller >= 0.3 * size else 0.3 * size / smaller)
                if cost < best and smaller >= 0.02 * size:  # less would be parted too often
                    best, cut = cost, m
            whole = cut < 0
        if whole and size > largest:
            return -1
        if whole:
            bounds[fronts, 0], bounds[fronts, 1], bounds[fronts, 2] = first, end, parent
            fronts += 1
            continue
        left = right = apart = 0
        kind = np.empty(size, np.int8)
        for i in range(size):
            v = queue[i]
            kind[i] = 0
            if level[v] > cut:
                kind[i] = 1
            elif level[v] == cut:
                for e in range(indptr[v], indptr[v + 1]):
                    u = indices[e]
                    if label[u] == marks and level[u] > cut:
                        kind[i] = 2
                        break
            left += kind[i] == 0
            right += kind[i] == 1
        here = np.array([first, first + left, first + left + right])
        for i in range(size):
            order[here[kind[i]]] = queue[i]
            here[kind[i]] += 1
        apart = first + left + right
        if end - apart > largest:
            return -1
        bounds[fronts, 0], bounds[fronts, 1], bounds[fronts, 2] = apart, end, parent
        fronts += 1
        stack.append((first, first + left, apart))
        stack.append((first + left, apart, apart))
    return fronts


def dissect(indptr: Any, indices: Any, *, leaf: int, largest: float = np.inf) -> tuple[Any, Any, Any] | None:
    """The order of the vertices, where fronts start, children before parents, and the parent of each.

    None where a front would have more than `largest` columns.
    """
    n = len(indptr) - 1
    order, bounds = np.empty(n, np.int64), np.empty((n, 3), np.int64)
    fronts = dissect_graph(indptr, indices, n, leaf, float(largest), order, bounds)
    if fronts < 0:
        return None
    bounds = bounds[:fronts][np.argsort(bounds[:fronts, 0])]
    parent = np.where(bounds[:, 2] < 0, -1, np.searchsorted(bounds[:, 0], bounds[:, 2]))
    return order, np.append(bounds[:, 0], n), parent


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
            for i in range(c + 1, s):
                y[first + i] -= values[at + i] * x
            for i in range(height - s):
                below[i] -= values[at + s + i] * x
        for c in range(r, s):
            y[first + c] = 0.0
        for i in range(height - s):
            y[rows[o + s + i]] = below[i]
    return y


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
            x = y[first + c]
            for i in range(c + 1, s):
                x -= values[at + i] * y[first + i]
            for i in range(height - s):
                x -= values[at + s + i] * below[i]
            y[first + c] = x / values[at + c]
    return y


@compiled
def sweep_forth(indptr, indices, data, middle, y):
    """y = (I + N)^-1 y, in place, N being what stands left of the diagonal."""
    for i in range(len(y)):
        x = y[i]
        for e in range(indptr[i], middle[i]):
            x -= data[e] * y[indices[e]]
        y[i] = x
    return y


@compiled
def sweep_back(indptr, indices, data, middle, y):
    """y = (I + N')^-1 y, in place."""
    for i in range(len(y) - 1, -1, -1):
        x = y[i]
        for e in range(middle[i] + 1, indptr[i + 1]):
            x -= data[e] * y[indices[e]]
        y[i] = x
    return y


@compiled
def conjugate_sweeps(indptr, indices, data, middle, r, steps):
    """(I + N')^-1 times the solution of K y = r with K = (I + N)^-1 S (I + N')^-1, by so many steps; r is spent.

    K p = t + (I + N)^-1 (p - t) with t = (I + N')^-1 p, as S = (I + N) + (I + N') - I. It ends early where the residual
    has reached the rounding level of the first one: S may be singular, and further steps would only amplify rounding
    errors along its null space.
    """
    x, p = np.zeros(len(r)), r.copy()
    left = r @ r
    rounding = (len(r) * np.finfo(np.float64).eps) ** 2 * left
    for _ in range(steps):
        t = sweep_back(indptr, indices, data, middle, p.copy())
        image = t + sweep_forth(indptr, indices, data, middle, p - t)
        curvature = p @ image
        if not curvature > 0:
            break
        alpha = left / curvature
        x += alpha * t
        r -= alpha * image
        before, left = left, r @ r
        if not left > rounding:
            break
        p = r + left / before * p
    return x
