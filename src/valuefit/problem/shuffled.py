"""The steps once more in shuffled order, so that those drawn one after the other lie one after the other in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from valuefit.memory import require_memory
from valuefit.problem.problem import Problem
from valuefit.rows.kernels import compiled, fetch
from valuefit.rows.storage import Rows
from valuefit.typing import Array

LINE = 64  # bytes that memory hands out together
TAME = 1e4  # single precision has room for what steps make of numbers between this and its inverse


@dataclass(frozen=True, eq=False)
class Blocks:
    """A copy of the rows, one set a step, in shuffled order, and how to draw from it.

    Single rows drawn at random are waited for one by one. Shuffled once, neighbours are as random as any others,
    so a draw may bring the `size` steps from a random place on, which memory delivers at full speed. Places go
    round from the last step to the first, so each step has a chance of 1/n at every draw, whatever n and size.
    """

    size: int
    order: Array  # the step at each place
    phi: Any
    psi: Any
    u: Any
    now: Array  # at each place, as in a Problem: rows of phi and psi, row of phi, row of u
    next: Array
    u_row: Array
    discount: Array
    u_factor: Array
    fused: bool  # dense rows, those of psi and u being those of phi, and nothing too large for its type

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """`count` places, in runs of `size` from random places on."""
        n = len(self.order)
        starts = rng.integers(0, n, -(-count // self.size))
        places = (starts[:, None] + np.arange(self.size)).ravel()[:count]
        return np.where(places < n, places, places - n)

    def steps(self, place: Array) -> tuple[Array, Array, Array, Array, Array]:
        """What `Problem.steps` says of steps, for places in this copy."""
        return self.now[place], self.next[place], self.discount[place], self.u_row[place], self.u_factor[place]

    def scratch(self, count: int) -> Array:
        """So many vectors as wide as the copied rows and of their type, each at the beginning of a cache line."""
        return aligned(count, self.phi.shape[1], self.phi.dtype)


def shuffled(problem: Problem, size: int) -> Blocks:
    """The copy, at the price of a pass; the same problem gives the same bits."""
    n, shared = problem.n, problem.psi is problem.phi
    _require_room(problem)
    order = np.random.default_rng(n).permutation(n)
    each = np.arange(n)
    if shared:  # both rows of a step side by side
        now, next = 2 * each, 2 * each + 1
        phi = psi = _rows(problem.phi, np.stack([problem.now[order], problem.next[order]], axis=1).ravel())
    else:
        now, next = each, each + n
        phi = _rows(problem.phi, np.concatenate([problem.now[order], problem.next[order]]))
        psi = _rows(problem.psi, problem.now[order])
    u, u_row, u_factor = psi, now, problem.ratio[order]
    if problem.trace:
        u, u_row, u_factor = _rows(problem.u, order), each, np.ones(n)
    fused = shared and not problem.trace and not problem.phi.sparse and _tame(problem)
    return Blocks(min(size, n), order, phi, psi, u, now, next, u_row, problem.discount[order], u_factor, fused)


def _require_room(problem: Problem) -> None:
    """Refuse a copy that would not fit, in a sentence."""
    numbers = 2 * problem.n * problem.phi.stored / problem.phi.shape[0] * problem.phi.dtype.itemsize / 8
    if problem.psi is not problem.phi:
        numbers += problem.n * problem.psi.stored / problem.psi.shape[0] * problem.psi.dtype.itemsize / 8
    if problem.trace:
        numbers += problem.u.stored
    require_memory(
        int(numbers), f"A shuffled copy of the rows of {problem.n} steps", "Leave block at 1, which needs no copy."
    )


def _rows(rows: Rows, index: Array) -> Any:
    """These rows in the form that kernels take; dense ones begin at the beginning of a cache line."""
    if rows.sparse:
        chosen = rows.matrix[index]
        return chosen.data, chosen.indices.astype(np.int32), chosen.indptr.astype(np.int64)
    return copied_rows(rows.kernel, index, aligned(len(index), rows.shape[1], rows.dtype))


def aligned(count: int, width: int, dtype: np.dtype[Any]) -> Array:
    """Rows of zeros, made a little wider so that each begins at the beginning of a cache line."""
    padded = -(-width * dtype.itemsize // LINE) * LINE
    room = np.zeros(count * padded + LINE, np.uint8)
    begin = -room.ctypes.data % LINE
    return room[begin : begin + count * padded].view(dtype).reshape(count, -1)


def _tame(problem: Problem) -> bool:
    """Whether sums may be taken in the type of the rows."""
    if problem.phi.dtype == np.float64:
        return True
    peaks = [max(float(x.max()), -float(x.min())) for x in (problem.phi.matrix, problem.reward, problem.ratio)]
    return all(peak == 0 or 1 / TAME <= peak <= TAME for peak in peaks)


@compiled
def copied_rows(rows: Any, index: Any, out: Any) -> Any:
    """These dense rows, at the beginning of those of `out`."""
    for i in range(index.shape[0]):
        fetch(rows, index[min(i + 4, index.shape[0] - 1)])
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
