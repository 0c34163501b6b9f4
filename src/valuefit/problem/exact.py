"""The exact solution from the moments, for A and C of any rank: the reference for the gap."""

from __future__ import annotations

import numpy as np
import scipy.linalg as linalg

from valuefit.problem.saddle_point import SaddlePoint
from valuefit.typing import Array


class Exact:
    """Minimum-norm minimiser of F and exact excesses F(theta) - F*, by eigenvalues of C and one SVD.

    With M = R'A, y = R'b and R R' = C^+: F(theta) = 1/2 |M theta - y|^2 + ridge/2 |theta|^2. In the singular basis of
    K = [M; sqrt(ridge) I], its columns scaled to unit length, the excess is a sum of squares, which avoids
    cancellation near the minimum, and the rank does not depend on the units of the features.
    start: the starting point, which sets the scale of the gap where theta = 0 is optimal.
    """

    def __init__(self, problem: SaddlePoint, start: Array | None = None) -> None:
        self.ridge = problem.ridge
        root = problem.C_root
        self._M, self._y = root.T @ problem.A, root.T @ problem.b
        if self._M.shape[0] == 0:  # all features are zero
            self._M, self._y = np.zeros((1, problem.d)), np.zeros(1)
        K = self._M
        if self.ridge:
            K = np.vstack([K, np.sqrt(self.ridge) * np.eye(problem.d)])
        lengths = np.linalg.norm(K, axis=0)
        self._lengths = np.where(lengths > 0, lengths, 1.0)
        U, sigma, Vt = _svd(K / self._lengths)
        # Rounding in A is magnified by C^(+1/2), up to the square root of the condition number of C.
        rounding = np.finfo(float).eps * max(K.shape) * np.sqrt(problem.C_whitening[1])
        self.rank = int((sigma > rounding * sigma[0]).sum())
        self._Vt, self._sigma = Vt[: self.rank], sigma[: self.rank]
        # U'y has an error of eps |y|; M V / sigma in place of U has less where a large ridge leaves little of M in K
        M = self._M / self._lengths
        part = np.linalg.norm(M) / self._sigma
        accurate = (self._Vt @ (M.T @ self._y)) / self._sigma
        self._target = np.where(part < 1, accurate, (U[: len(M)].T @ self._y)[: self.rank])
        self.theta: Array = self._nearest(np.zeros(problem.d))
        if self.rank < problem.d:
            null, _ = np.linalg.qr(_complement(self._Vt).T / self._lengths[:, None])
            self.theta = self._nearest(self.theta - null @ (null.T @ self.theta))
        self.theta[problem.dead] = 0.0  # zero up to rounding before
        self.w: Array = root @ (root.T @ (problem.b - problem.A @ self.theta))
        self.scale = 0.5 * float(self._target @ self._target)
        noise = 100 * rounding * np.minimum(part, 1.0) * np.linalg.norm(self._y)
        if self.scale <= 0.5 * float(noise @ noise):
            # theta = 0 is optimal up to rounding, so F(start) - F* is the scale of the gap instead
            self.scale = 0.0 if start is None else self.excess(start)

    def _nearest(self, theta: Array) -> Array:
        """The minimiser that is nearest to theta with features scaled to equal length."""
        correction = self._Vt.T @ ((self._target - self._inside(theta)) / self._sigma)
        return theta + correction / self._lengths

    def _inside(self, theta: Array) -> Array:
        """K theta in the singular basis."""
        return self._sigma * (self._Vt @ (self._lengths * theta))

    def objective(self, theta: Array) -> float:
        """F(theta)."""
        error = self._M @ theta - self._y
        return 0.5 * float(error @ error) + 0.5 * self.ridge * float(theta @ theta)

    def excess(self, theta: Array) -> float:
        """F(theta) - F*."""
        error = self._inside(theta) - self._target
        return 0.5 * float(error @ error)

    def inverse_hessian(self, c: Array) -> Array:
        """A solution x of H x = c with H = A'C^+A + ridge I, the second derivative of F, where there is one.

        c is (d,) or (d, m).
        """
        inside = self._Vt @ (c.T / self._lengths).T
        return np.asarray(((self._Vt.T @ (inside.T / self._sigma**2).T).T / self._lengths).T)

    def outside(self, c: Array) -> Array:
        """The part of c, (d,) or (d, m), whose product with theta is not determined."""
        scaled = (c.T / self._lengths).T
        return np.asarray(((scaled - self._Vt.T @ (self._Vt @ scaled)).T * self._lengths).T)

    def gap(self, theta: Array) -> float:
        """(F(theta) - F*) / (F(0) - F*); over F(start) - F* where theta = 0 is optimal, and 0 if start is too."""
        return self.excess(theta) / self.scale if self.scale > 0 else 0.0


def _svd(K: Array) -> tuple[Array, Array, Array]:
    try:
        U, sigma, Vt = linalg.svd(K, full_matrices=False, check_finite=False)
    except linalg.LinAlgError:  # gesdd can fail to converge where the slower gesvd does not
        U, sigma, Vt = linalg.svd(K, full_matrices=False, check_finite=False, lapack_driver="gesvd")
    return U, sigma, Vt


def _complement(Vt: Array) -> Array:
    """Orthonormal rows that are orthogonal to the orthonormal rows of Vt."""
    rank, d = Vt.shape
    Q, _ = linalg.qr(Vt.T, check_finite=False) if rank else (np.eye(d), None)
    return np.asarray(Q[:, rank:].T)
