"""Symmetric Gauss-Seidel sweeps over a sparse matrix that is too expensive to factorise, and conjugate gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from valuefit.rows.kernels import compiled
from valuefit.typing import Array


@dataclass(frozen=True)
class GaussSeidel:
    """K = (I + N)(I + N'), where S scaled to a unit diagonal is N + I + N'; K >= S.

    A product with K^-1 reads S once, as one with S does. Conjugate gradients on S preconditioned by K take a forward
    and a backward sweep for each step, and no product with S (Eisenstat 1981).
    """

    scale: Array
    indptr: Array
    indices: Array
    data: Array
    middle: Array  # place of the diagonal entry in each row

    def solve(self, r: Array) -> Array:
        """K^-1 r."""
        y = self._half(r)
        return np.asarray(backward_sweep(self.indptr, self.indices, self.data, self.middle, y) * self.scale)

    def conjugate_gradients(self, r: Array, steps: int) -> Array:
        """S^-1 r, approximately."""
        found = conjugate_sweeps(self.indptr, self.indices, self.data, self.middle, self._half(r), steps)
        return np.asarray(found * self.scale)

    def _half(self, r: Array) -> Array:
        """(I + N)^-1 r, scaled."""
        return np.asarray(forward_sweep(self.indptr, self.indices, self.data, self.middle, r * self.scale))


def symmetric_gauss_seidel(S: Any) -> GaussSeidel:
    """From S in CSR with sorted indices and a positive diagonal."""
    scale = 1 / np.sqrt(S.diagonal())
    rows = np.repeat(np.arange(S.shape[0]), np.diff(S.indptr))
    data = S.data * scale[rows] * scale[S.indices]
    return GaussSeidel(scale, S.indptr, S.indices, data, np.flatnonzero(S.indices == rows))


@compiled
def forward_sweep(indptr, indices, data, middle, y):
    """y = (I + N)^-1 y, in place, with N the part left of the diagonal."""
    for i in range(len(y)):
        x = y[i]
        for e in range(indptr[i], middle[i]):
            x -= data[e] * y[indices[e]]
        y[i] = x
    return y


@compiled
def backward_sweep(indptr, indices, data, middle, y):
    """y = (I + N')^-1 y, in place."""
    for i in range(len(y) - 1, -1, -1):
        x = y[i]
        for e in range(middle[i] + 1, indptr[i + 1]):
            x -= data[e] * y[indices[e]]
        y[i] = x
    return y


@compiled
def conjugate_sweeps(indptr, indices, data, middle, r, steps):
    """(I + N')^-1 times the solution of K y = r with K = (I + N)^-1 S (I + N')^-1, by `steps` steps; r is overwritten.

    K p = t + (I + N)^-1 (p - t) with t = (I + N')^-1 p, as S = (I + N) + (I + N') - I. It ends early where the residual
    has reached the rounding level of the first one: S may be singular, and further steps would only amplify rounding
    errors along its null space.
    """
    x, p = np.zeros(len(r)), r.copy()
    left = r @ r
    rounding = (len(r) * np.finfo(np.float64).eps) ** 2 * left
    for _ in range(steps):
        t = backward_sweep(indptr, indices, data, middle, p.copy())
        image = t + forward_sweep(indptr, indices, data, middle, p - t)
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
