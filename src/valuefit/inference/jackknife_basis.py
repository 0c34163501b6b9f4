"""Coordinates in which the equations of the jackknife are solved: those of the moments of the whole log."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg as linalg
import scipy.sparse as sparse

from valuefit.linalg.scaled_lu import ScaledLU, lengths
from valuefit.problem.saddle_point import SaddlePoint
from valuefit.typing import Array

MIN_SINGULAR_VALUE = 1e-10  # relative; directions below it are not determined


@dataclass(frozen=True)
class Basis:
    """theta = primal x and w = dual y, such that sums over the log have C = I and A = diag(sigma) (zero beyond it).

    Where w = 0 only dual' A primal = I is needed.
    """

    primal: Array
    dual: Array | None
    sigma: Array

    @property
    def size(self) -> int:
        """Number of coordinates of theta."""
        return int(self.primal.shape[1])

    def weights(self, x: Array) -> Array:
        """Weights (m, d) of coordinates (m, size)."""
        return np.asarray(x @ self.primal.T)

    def coordinates(self, rows: Any) -> Array:
        """Coordinates of feature rows (m, d), (m, size)."""
        return np.asarray(rows @ self.primal)


@dataclass(frozen=True)
class InverseBasis:
    """theta = A^-1 x / n and w = y, where w = 0 and A is regular: the sum of A over the log is the identity."""

    factor: ScaledLU
    n: int
    dual: None = None

    @property
    def size(self) -> int:
        return len(self.factor.pivots)

    def weights(self, x: Array) -> Array:
        return x @ self._inverse.T if len(x) > self.size else self.factor.solve(x.T / self.n).T

    def coordinates(self, rows: Any) -> Array:
        if sparse.issparse(rows):
            return np.asarray(rows @ self._inverse)
        return self.factor.solve_transposed(rows.T / self.n).T

    @cached_property
    def _inverse(self) -> Array:
        """Products with it take less time than solving for more rows than there are weights, and for sparse rows."""
        return self.factor.solve(np.eye(self.size) / self.n)


def jackknife_basis(problem: SaddlePoint, w: Array, factor: ScaledLU | None) -> Basis | InverseBasis:
    """The coordinates of `replicates`, from the moments of the log. w: dual weights. factor: of A, if it is regular."""
    if w.any() or problem.ridge:
        return _singular_vectors(problem)
    if factor is not None:
        return InverseBasis(factor, problem.n)
    basis = _singular_vectors(problem)
    assert basis.dual is not None
    return Basis(basis.primal / basis.sigma, basis.dual[:, : len(basis.sigma)], basis.sigma)


def _singular_vectors(problem: SaddlePoint) -> Basis:
    """From the singular value decomposition of C^-1/2 A; without a ridge its null space is left out of theta."""
    root = np.eye(problem.k) if problem.identity else problem.C_root
    M, size = root.T @ problem.A, np.ones(problem.d)
    if not problem.ridge:  # columns of equal length, so that no unit hides a feature
        size = lengths(M, axis=0)
    left, sigma, right = linalg.svd(M / size, check_finite=False)
    if not problem.ridge:
        sigma = sigma[sigma > MIN_SINGULAR_VALUE * sigma.max(initial=0.0)]
        right = right[: len(sigma)]
    scale = np.sqrt(problem.n)
    return Basis((right / size).T / scale, root @ left / scale, sigma)
