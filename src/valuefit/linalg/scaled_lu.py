"""LU factors of a matrix whose rows and columns were scaled to equal length, so that no unit hides a direction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg as linalg

from valuefit.typing import Array

MIN_RECIPROCAL_CONDITION = 1e-12  # an LU factorisation of a worse conditioned matrix is not used


@dataclass(frozen=True)
class ScaledLU:
    """M = diag(rows) L U diag(columns), L with permuted rows; made by `scaled_lu`."""

    lu: Array
    pivots: Array
    rows: Array
    columns: Array

    def solve(self, right: Array) -> Array:
        """M^-1 right, of a vector or of columns."""
        return self._solve(right, self.rows, self.columns, 0)

    def solve_transposed(self, right: Array) -> Array:
        """M'^-1 right."""
        return self._solve(right, self.columns, self.rows, 1)

    def _solve(self, right: Array, before: Array, after: Array, transposed: int) -> Array:
        scaled = (right.T / before).T
        solution = lu_solve((self.lu, self.pivots), scaled, transposed, overwrite=True)
        return np.asarray((solution.T / after).T)


def scaled_lu(matrix: Array) -> ScaledLU | None:
    """None where the matrix is nearly singular."""
    rows = lengths(matrix, axis=1)
    scaled = matrix / rows[:, None]
    columns = lengths(scaled, axis=0)
    scaled /= columns
    norm = np.abs(scaled).sum(axis=0).max()
    lu, pivots, info = linalg.lapack.dgetrf(scaled)
    if info != 0 or linalg.lapack.dgecon(lu, norm)[0] < MIN_RECIPROCAL_CONDITION:
        return None
    return ScaledLU(lu, pivots, rows, columns)


def lu_solve(factors: tuple[Array, Array], right: Array, transposed: int = 0, *, overwrite: bool = False) -> Array:
    """The solution with LU factors and pivots as LAPACK gives them, of a vector or of columns.

    During a call SciPy adds 1 to the pivots that it is given, in place. Another thread that solved with the same ones,
    or sent them to another process, would have the wrong ones, so each call has a copy.
    """
    lu, pivots = factors
    return np.asarray(
        linalg.lu_solve((lu, pivots.copy()), right, transposed, overwrite_b=overwrite, check_finite=False)
    )


def lengths(matrix: Array, axis: int) -> Array:
    """Norms of the columns (axis 0) or rows; 1 where they are zero."""
    lengths = np.linalg.norm(matrix, axis=axis)
    return np.where(lengths > 0, lengths, 1.0)
