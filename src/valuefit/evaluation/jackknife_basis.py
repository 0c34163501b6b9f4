"""Coordinates in which the equations of the jackknife are solved: those of the moments of the whole log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg as linalg
import scipy.sparse as sparse

from valuefit.problem.saddle_point import SaddlePoint
from valuefit.typing import Array

MIN_RECIPROCAL_CONDITION = 1e-12  # an LU factorisation of a worse conditioned matrix is not used
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
        """Of feature rows (m, d), (m, size)."""
        return np.asarray(rows @ self.primal)


@dataclass(frozen=True)
class InverseBasis:
    """theta = A^-1 x and w = y, with sums over the log, by LU factors of A with rows and columns of equal length.

    Enough where w = 0 and A is regular.
    """

    lu: Array
    pivots: Array
    row_lengths: Array
    column_lengths: Array
    dual: None = None

    @property
    def size(self) -> int:
        return len(self.pivots)

    def weights(self, x: Array) -> Array:
        right = (x / self.row_lengths).T
        found = linalg.lu_solve((self.lu, self.pivots), right, overwrite_b=True, check_finite=False)
        return np.asarray((found / self.column_lengths[:, None]).T)

    def coordinates(self, rows: Any) -> Array:
        right = (np.asarray(rows.toarray() if sparse.issparse(rows) else rows) / self.column_lengths).T
        found = linalg.lu_solve((self.lu, self.pivots), right, trans=1, overwrite_b=True, check_finite=False)
        return np.asarray((found / self.row_lengths[:, None]).T)


def jackknife_basis(problem: SaddlePoint, w: Array) -> Basis | InverseBasis:
    """The coordinates of `replicates`, from the moments of the log and the dual weights."""
    if w.any() or problem.ridge:
        return _singular_vectors(problem)
    inverse = _inverse(problem) if problem.d == problem.k else None
    if inverse is not None:
        return inverse
    basis = _singular_vectors(problem)
    assert basis.dual is not None
    return Basis(basis.primal / basis.sigma, basis.dual[:, : len(basis.sigma)], basis.sigma)


def _inverse(problem: SaddlePoint) -> InverseBasis | None:
    """None where A is nearly singular."""
    rows = _lengths(problem.A, axis=1)
    scaled = problem.A / rows[:, None]  # rows and columns of equal length, so that no unit hides a feature
    columns = _lengths(scaled, axis=0)
    scaled /= columns
    lu, pivots, info = linalg.lapack.dgetrf(scaled)
    norm = np.abs(scaled).sum(axis=0).max()
    if info != 0 or linalg.lapack.dgecon(lu, norm)[0] < MIN_RECIPROCAL_CONDITION:
        return None
    return InverseBasis(lu, pivots, problem.n * rows, columns)


def _lengths(matrix: Array, axis: int) -> Array:
    """Norms of the columns (axis 0) or rows; 1 where they are zero."""
    lengths = np.linalg.norm(matrix, axis=axis)
    return np.where(lengths > 0, lengths, 1.0)


def _singular_vectors(problem: SaddlePoint) -> Basis:
    """From the singular value decomposition of C^-1/2 A; without a ridge its null space is left out of theta."""
    root = np.eye(problem.k) if problem.identity else problem.C_root
    M, lengths = root.T @ problem.A, np.ones(problem.d)
    if not problem.ridge:  # columns of equal length, so that no unit hides a feature
        lengths = _lengths(M, axis=0)
    left, sigma, right = linalg.svd(M / lengths, check_finite=False)
    if not problem.ridge:
        sigma = sigma[sigma > MIN_SINGULAR_VALUE * sigma.max(initial=0.0)]
        right = right[: len(sigma)]
    scale = np.sqrt(problem.n)
    return Basis((right / lengths).T / scale, root @ left / scale, sigma)
