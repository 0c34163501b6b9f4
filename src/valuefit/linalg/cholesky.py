"""Dense Cholesky factors of matrices that rounding or dependent columns leave without one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg as linalg

from valuefit.linalg.scaled_lu import MIN_RECIPROCAL_CONDITION
from valuefit.typing import Array

FIRST_JITTER = 1e-12  # multiple of the diagonal
MIN_DIAGONAL = 1e-12  # part of the largest diagonal entry that a smaller one is raised to before it is scaled
CLEAR_PIVOT = 1e-11  # a column of unit length whose pivot is larger is certainly independent of the others
OUT_OF_RANGE = "Products of the features leave the range of numbers, so no steps can be found. Rescale the features."


def jittered_cholesky(S: Array) -> Array:
    """Lower triangular L with L L' = S + jitter * diag(S), for the smallest of 0, 1e-12, 1e-11, ... that has one."""
    jitter = 0.0
    diagonal = np.diag(S)
    largest = diagonal.max(initial=0.0)
    scale = np.diag(np.maximum(diagonal, MIN_DIAGONAL * largest)) if largest > 0 else np.eye(len(S))
    # any finite matrix has a factor at a jitter of 1e3
    while np.isfinite(S).all() and jitter < 1e3:
        lower, info = linalg.lapack.dpotrf(S + jitter * scale, lower=True, clean=True)
        if info == 0 and np.isfinite(lower).all():
            return np.asarray(lower)
        jitter = max(10 * jitter, FIRST_JITTER)
    raise ValueError(OUT_OF_RANGE)


class PivotedFactor(NamedTuple):
    """S[order][:, order] = lower lower' but for rounding; columns of `lower` beyond `rank` are zero."""

    lower: Array
    order: Array
    rank: int
    pivoted: bool


def pivoted_cholesky(S: Array, *, zero: float) -> PivotedFactor:
    """The factor of a semi-definite S with a diagonal of about 1, with pivots where columns are nearly dependent.

    zero: a pivot at most this large means that the column depends on the others but for rounding.
    """
    size = len(S)
    lower, info = linalg.lapack.dpotrf(S, lower=True, clean=True)
    if size == 0 or (info == 0 and (np.diag(lower) ** 2).min() > CLEAR_PIVOT):
        return PivotedFactor(np.asarray(lower), np.arange(size), size, False)
    lower, order, rank, _ = linalg.lapack.dpstrf(S, tol=zero, lower=True)
    rank = int(rank) if np.diag(S).max() > zero else 0  # LAPACK accepts any first pivot
    lower = np.tril(lower)
    lower[:, rank:] = 0.0
    return PivotedFactor(lower, order - 1, rank, True)


class ScaledFactor(NamedTuple):
    """S = diag(lengths) upper'upper diag(lengths) at the columns `kept`, a mask; the other columns are zero.

    condition: of S at these columns with a unit diagonal, so that units do not matter.
    """

    upper: Array
    lengths: Array
    kept: Array
    condition: float

    def inverse_forms(self, rows: Array) -> Array:
        """x'S^+x of each row x, (m,), of its part at the columns `kept`."""
        right = (rows[:, self.kept] / self.lengths).T
        return np.asarray((linalg.solve_triangular(self.upper, right, trans=1, check_finite=False) ** 2).sum(axis=0))


def scaled_cholesky(S: Array) -> ScaledFactor | None:
    """None where the columns of S that are not zero are nearly dependent."""
    lengths = np.sqrt(np.diag(S))
    kept = lengths > 0
    if not kept.all():
        S, lengths = S[np.ix_(kept, kept)], lengths[kept]
    scaled = (S if S.flags.f_contiguous else S.T) / lengths  # in the order of LAPACK
    scaled /= lengths[:, None]
    upper, info = linalg.lapack.dpotrf(scaled, clean=False)
    if info != 0 or not len(scaled):
        return None
    reciprocal = float(linalg.lapack.dpocon(upper, linalg.lapack.dlange("1", scaled))[0])
    return ScaledFactor(upper, lengths, kept, 1 / reciprocal) if reciprocal > MIN_RECIPROCAL_CONDITION else None
