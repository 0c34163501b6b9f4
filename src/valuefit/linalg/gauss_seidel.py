"""Symmetric Gauss-Seidel sweeps over a sparse matrix that is too expensive to factorise, and conjugate gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from valuefit.rows.kernels import compiled
from valuefit.typing import Array


class Triangle(NamedTuple):
    """The entries on one side of the diagonal of a matrix, row by row in the order of a sweep.

    In a row, entries of the rows that the sweep visited last come last, so that a processor can begin with the others
    before these are known. Indices are unsigned, because numba tests signed ones for being negative.
    """

    starts: Array
    columns: Array
    values: Array


@dataclass(frozen=True)
class GaussSeidel:
    """K = (I + N)(I + N'), where S scaled to a unit diagonal is N + I + N'; K >= S.

    A product with K^-1 reads S once, as one with S does. Conjugate gradients on S preconditioned by K take a forward
    and a backward sweep for each step, and no product with S (Eisenstat 1981).
    """

    scale: Array
    lower: Triangle  # N
    upper: Triangle  # N', from the last row to the first

    def solve(self, r: Array) -> Array:
        """K^-1 r."""
        return np.asarray(backward_sweep(self.upper, self._half(r)) * self.scale)

    def conjugate_gradients(self, r: Array, steps: int) -> Array:
        """S^-1 r, approximately."""
        return np.asarray(conjugate_sweeps(self.lower, self.upper, self._half(r), steps) * self.scale)

    def _half(self, r: Array) -> Array:
        """(I + N)^-1 r, scaled."""
        return np.asarray(forward_sweep(self.lower, r * self.scale))


def symmetric_gauss_seidel(S: Any) -> GaussSeidel:
    """From S in CSR with sorted indices and a positive diagonal."""
    scale = 1 / np.sqrt(S.diagonal())
    rows = np.repeat(np.arange(S.shape[0], dtype=S.indices.dtype), np.diff(S.indptr))

    def triangle(inside: Array, step: int) -> Triangle:
        values = (S.data[inside] * scale[rows[inside]] * scale[S.indices[inside]])[::step]
        sizes = np.bincount(rows[inside], minlength=S.shape[0])[::step]
        columns = S.indices[inside][::step].astype(np.uint32)
        return Triangle(np.concatenate([[0], np.cumsum(sizes)]), columns, np.ascontiguousarray(values))

    return GaussSeidel(scale, triangle(S.indices < rows, 1), triangle(S.indices > rows, -1))


@compiled
def forward_sweep(triangle, y):
    """y = (I + N)^-1 y, in place."""
    starts, columns, values = triangle
    for i in range(len(y)):
        at, entries = columns[starts[i] : starts[i + 1]], values[starts[i] : starts[i + 1]]
        x = 0.0
        for e in range(len(at)):
            x += entries[e] * y[at[e]]
        y[i] -= x
    return y


@compiled
def backward_sweep(triangle, y):
    """y = (I + N')^-1 y, in place."""
    starts, columns, values = triangle
    last = len(y) - 1
    for i in range(len(y)):
        at, entries = columns[starts[i] : starts[i + 1]], values[starts[i] : starts[i + 1]]
        x = 0.0
        for e in range(len(at)):
            x += entries[e] * y[at[e]]
        y[last - i] -= x
    return y


@compiled
def conjugate_sweeps(lower, upper, r, steps):
    """(I + N')^-1 times the solution of K y = r with K = (I + N)^-1 S (I + N')^-1, by `steps` steps; r is overwritten.

    K p = t + (I + N)^-1 (p - t) with t = (I + N')^-1 p, as S = (I + N) + (I + N') - I. It ends early where the residual
    has reached the rounding level of the first one: S may be singular, and further steps would only amplify rounding
    errors along its null space.
    """
    x, p = np.zeros(len(r)), r.copy()
    left = r @ r
    rounding = (len(r) * np.finfo(np.float64).eps) ** 2 * left
    for _ in range(steps):
        t = backward_sweep(upper, p.copy())
        image = t + forward_sweep(lower, p - t)
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
