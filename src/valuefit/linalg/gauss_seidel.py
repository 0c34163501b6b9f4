"""Conjugate gradients on a sparse C that is too dear to factorise, with a sweep over the features forth and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from valuefit.rows.kernels import compiled
from valuefit.typing import Array


@dataclass(frozen=True)
class Relaxation:
    """(I + N)(I + N'), where C scaled to a unit diagonal is N + I + N': symmetric Gauss-Seidel.

    It is never below C, and one product with it or C reads C once. `solve` gives C^-1 r better by some steps of
    conjugate gradients in its coordinates, where a step is a sweep back and one forth (Eisenstat 1981).
    """

    scale: Array
    indptr: Array
    indices: Array
    data: Array
    middle: Array  # where the diagonal stands in each row

    @property
    def size(self) -> int:
        return len(self.data)

    def half(self, r: Array) -> Array:
        """(I + N)^-1 r."""
        return sweep_forth(self.indptr, self.indices, self.data, self.middle, r * self.scale)

    def back(self, y: Array) -> Array:
        """(I + N')^-1 y."""
        return sweep_back(self.indptr, self.indices, self.data, self.middle, y.copy()) * self.scale

    def solve(self, y: Array, steps: int) -> Array:
        """C^-1 r, nearly, from y = (I + N)^-1 r."""
        found = conjugate_sweeps(self.indptr, self.indices, self.data, self.middle, y.copy(), steps)
        return np.asarray(found * self.scale)


def relax(C: Any) -> Relaxation:
    """From C in CSR with sorted indices and a positive diagonal."""
    scale = 1 / np.sqrt(C.diagonal())
    rows = np.repeat(np.arange(C.shape[0]), np.diff(C.indptr))
    data = C.data * scale[rows] * scale[C.indices]
    return Relaxation(scale, C.indptr, C.indices, data, np.flatnonzero(C.indices == rows))


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
