"""`block=` of SVRG and SAGA: single-row steps on a shuffled copy of the rows, read in the order of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from valuefit.memory import require_memory
from valuefit.problem.problem import Problem
from valuefit.rows.draws import Draws, RowSets
from valuefit.rows.kernels import compiled, prefetch_row
from valuefit.rows.storage import Rows
from valuefit.typing import Array

CACHE_LINE = 64  # bytes
STEPS_PER_SUM = 32  # steps after which sums in the type of the rows are added to the float64 iterates


@dataclass(frozen=True, eq=False)
class Blocks:
    """A copy of the rows in shuffled order, both rows of a step next to each other, and how to draw from it.

    Reading single rows at random waits for memory at each row. After shuffling, neighbours are as random as any
    others, so a draw takes `size` consecutive steps from a random place on. Places wrap around from the last step to
    the first, so every step has probability 1/n at every draw.
    """

    size: int
    order: Array  # the step at each place
    rows: RowSets
    place: Draws  # the step at each place, with indices into the copy
    fused: bool  # whether the fused kernels apply: dense rows, psi = u = phi, sums within the range of the type

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """`count` places, in runs of `size` from random places on."""
        n = len(self.order)
        starts = rng.integers(0, n, -(-count // self.size))
        places = (starts[:, None] + np.arange(self.size)).ravel()[:count]
        return np.where(places < n, places, places - n)

    def steps(self, places: Array) -> Draws:
        """`Problem.steps` for places in this copy."""
        return Draws(*(part[places] for part in self.place))

    def fused_arguments(self, places: Array, vectors: int) -> tuple[Any, ...]:
        """The first arguments of the fused kernels, with scratch space for so many vectors."""
        rows = self.rows.phi
        scratch = aligned(vectors, rows.shape[1], rows.dtype)
        return rows, places, self.place.discount, self.place.u_factor, scratch


def shuffled(problem: Problem, size: int) -> Blocks:
    """The copy, which costs a pass; the same problem gives the same bits."""
    n, shared = problem.n, problem.psi is problem.phi
    _require_room(problem)
    order = np.random.default_rng(n).permutation(n)
    each = np.arange(n)
    if shared:
        now, next = 2 * each, 2 * each + 1
        phi = psi = _shuffled_rows(problem.phi, np.stack([problem.now[order], problem.next[order]], axis=1).ravel())
    else:
        now, next = each, each + n
        phi = _shuffled_rows(problem.phi, np.concatenate([problem.now[order], problem.next[order]]))
        psi = _shuffled_rows(problem.psi, problem.now[order])
    u, u_row, u_factor = psi, now, problem.ratio[order]
    if problem.trace:
        u, u_row, u_factor = _shuffled_rows(problem.u, order), each, np.ones(n)
    fused = shared and not problem.trace and not problem.phi.sparse and _sums_fit(problem)
    place = Draws(now, next, problem.discount[order], u_row, u_factor)
    return Blocks(min(size, n), order, RowSets(phi, psi, u), place, fused)


def _require_room(problem: Problem) -> None:
    """Raise if the copy would not fit into memory."""
    numbers = 2 * problem.n * problem.phi.stored / problem.phi.shape[0] * problem.phi.dtype.itemsize / 8
    if problem.psi is not problem.phi:
        numbers += problem.n * problem.psi.stored / problem.psi.shape[0] * problem.psi.dtype.itemsize / 8
    if problem.trace:
        numbers += problem.u.stored
    require_memory(
        int(numbers), f"A shuffled copy of the rows of {problem.n} steps", "Leave block at 1, which needs no copy."
    )


def _shuffled_rows(rows: Rows, index: Array) -> Any:
    """These rows in the form that kernels take; dense rows are aligned to cache lines."""
    if rows.sparse:
        chosen = rows.matrix[index]
        return chosen.data, chosen.indices.astype(np.int32), chosen.indptr.astype(np.int64)
    return copied_rows(rows.kernel, index, aligned(len(index), rows.shape[1], rows.dtype))


def aligned(count: int, width: int, dtype: np.dtype[Any]) -> Array:
    """Rows of zeros, padded so that each begins at a cache line."""
    padded = -(-width * dtype.itemsize // CACHE_LINE) * CACHE_LINE
    room = np.zeros(count * padded + CACHE_LINE, np.uint8)
    begin = -room.ctypes.data % CACHE_LINE
    return room[begin : begin + count * padded].view(dtype).reshape(count, -1)


def _sums_fit(problem: Problem) -> bool:
    """Whether sums stay within the range of the type of the rows."""
    if problem.phi.dtype == np.float64:
        return True
    peaks = [max(float(x.max()), -float(x.min())) for x in (problem.phi.matrix, problem.reward, problem.ratio)]
    # sums of such numbers stay within the range of float32
    return all(peak == 0 or 1 / 1e4 <= peak <= 1e4 for peak in peaks)


@compiled
def copied_rows(rows: Any, index: Any, out: Any) -> Any:
    """Copy these dense rows into the first columns of `out`."""
    for i in range(index.shape[0]):
        prefetch_row(rows, index[min(i + 4, index.shape[0] - 1)])
        for c in range(rows.shape[1]):
            out[i, c] = rows[index[i], c]
    return out


@compiled
def first_dots(now: Any, next: Any, discount: Any, theta: Any, w: Any) -> Any:
    """(v' theta, now' w) in the type of the row."""
    s = now.dtype.type(0.0)
    t = now.dtype.type(0.0)
    for c in range(now.shape[0]):
        s += (now[c] - discount * next[c]) * theta[c]
        t += now[c] * w[c]
    return s, t


@compiled
def svrg_fused(rows, places, discount, u_factor, scratch, gradient, deviation, step):
    """`svrg.single_rows` for psi = phi without traces, with both rows of a step next to each other.

    One loop over the columns ends a step and computes the products of the next. Its sums have the type of the rows,
    over STEPS_PER_SUM steps, relative to x at their beginning: float32 then rounds the change of x, not x.
    """
    (G_theta, G_w), (theta, w) = gradient, deviation
    step_theta, step_w, ridge, identity = step.theta, step.w, step.ridge, step.identity
    d, width = theta.shape[0], rows.shape[1]
    number = rows.dtype.type
    shrink_theta, shrink_w = number(1.0 - step_theta * ridge), number(1.0 - step_w if identity else 1.0)
    # x at the beginning, its change since, and the part of a step that is not along the row
    from_theta, by_theta, add_theta = scratch[0], scratch[1], scratch[2]
    from_w, by_w, add_w = scratch[3], scratch[4], scratch[5]
    start = 0
    while start < places.shape[0]:
        stop = min(start + STEPS_PER_SUM, places.shape[0])
        for c in range(d):
            from_theta[c] = theta[c]
            add_theta[c] = step_theta * (G_theta[c] + ridge * theta[c])
            by_theta[c] = 0.0
            from_w[c] = w[c]
            add_w[c] = step_w * (G_w[c] + (w[c] if identity else 0.0))
            by_w[c] = 0.0
        i = places[start]
        v_theta, psi_w = first_dots(rows[2 * i], rows[2 * i + 1], number(discount[i]), from_theta, from_w)
        for j in range(start, stop):
            ahead = places[min(j + 5, places.shape[0] - 1)]
            prefetch_row(rows, 2 * ahead)
            prefetch_row(rows, 2 * ahead + 1)
            i = places[j]
            now, next, gamma = rows[2 * i], rows[2 * i + 1], number(discount[i])
            a = number(step_theta * u_factor[i] * psi_w)
            b = number(-step_w * (u_factor[i] * v_theta + (0.0 if identity else psi_w)))
            i = places[min(j + 1, places.shape[0] - 1)]
            now_after, next_after, gamma_after = rows[2 * i], rows[2 * i + 1], number(discount[i])
            v_theta, psi_w = number(0.0), number(0.0)
            for c in range(width):
                moved = shrink_theta * by_theta[c] + a * (now[c] - gamma * next[c]) - add_theta[c]
                by_theta[c] = moved
                v_theta += (now_after[c] - gamma_after * next_after[c]) * (from_theta[c] + moved)
                moved = shrink_w * by_w[c] + b * now[c] - add_w[c]
                by_w[c] = moved
                psi_w += now_after[c] * (from_w[c] + moved)
        for c in range(d):
            theta[c] += by_theta[c]
            w[c] += by_w[c]
        start = stop


@compiled
def saga_fused(rows, places, discount, u_factor, scratch, table, mean, iterate, step):
    """`saga.single_rows` for psi = phi without traces, as `svrg_fused`; B changes relative to its beginning too."""
    (B_theta, B_w), (theta, w) = mean, iterate
    step_theta, step_w, ridge, identity = step.theta, step.w, step.ridge, step.identity
    n = table.shape[0]
    d, width = theta.shape[0], rows.shape[1]
    number = rows.dtype.type
    shrink_theta, shrink_w = number(1.0 - step_theta * ridge), number(1.0 - step_w if identity else 1.0)
    # x at the beginning, its change since, the part of a step that is not along the row, and step * change of B
    from_theta, by_theta, add_theta, mean_theta = scratch[0], scratch[1], scratch[2], scratch[3]
    from_w, by_w, add_w, mean_w = scratch[4], scratch[5], scratch[6], scratch[7]
    start = 0
    while start < places.shape[0]:
        stop = min(start + STEPS_PER_SUM, places.shape[0])
        for c in range(d):
            from_theta[c] = theta[c]
            add_theta[c] = step_theta * (B_theta[c] + ridge * theta[c])
            by_theta[c] = 0.0
            mean_theta[c] = 0.0
            from_w[c] = w[c]
            add_w[c] = step_w * (B_w[c] + (w[c] if identity else 0.0))
            by_w[c] = 0.0
            mean_w[c] = 0.0
        i = places[start]
        v_theta, psi_w = first_dots(rows[2 * i], rows[2 * i + 1], number(discount[i]), from_theta, from_w)
        for j in range(start, stop):
            ahead = places[min(j + 5, places.shape[0] - 1)]
            prefetch_row(rows, 2 * ahead)
            prefetch_row(rows, 2 * ahead + 1)
            i = places[j]
            now, next, gamma = rows[2 * i], rows[2 * i + 1], number(discount[i])
            change_v, change_psi = v_theta - table[i, 0], psi_w - table[i, 1]
            table[i, 0], table[i, 1] = v_theta, psi_w
            change_u = u_factor[i] * change_psi
            change = u_factor[i] * change_v + (0.0 if identity else change_psi)
            a, a_mean = number(step_theta * change_u), number(-step_theta * change_u / n)
            b, b_mean = number(-step_w * change), number(step_w * change / n)
            i = places[min(j + 1, places.shape[0] - 1)]
            now_after, next_after, gamma_after = rows[2 * i], rows[2 * i + 1], number(discount[i])
            v_theta, psi_w = number(0.0), number(0.0)
            for c in range(width):
                v = now[c] - gamma * next[c]
                moved = shrink_theta * by_theta[c] + a * v - mean_theta[c] - add_theta[c]
                by_theta[c] = moved
                mean_theta[c] += a_mean * v
                v_theta += (now_after[c] - gamma_after * next_after[c]) * (from_theta[c] + moved)
                moved = shrink_w * by_w[c] + b * now[c] - mean_w[c] - add_w[c]
                by_w[c] = moved
                mean_w[c] += b_mean * now[c]
                psi_w += now_after[c] * (from_w[c] + moved)
        for c in range(d):
            theta[c] += by_theta[c]
            B_theta[c] += mean_theta[c] / step_theta
            w[c] += by_w[c]
            B_w[c] += mean_w[c] / step_w
        start = stop
