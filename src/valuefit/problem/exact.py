"""The exact solution from the moments, for A and C of any rank: the reference for the gap."""

from __future__ import annotations

import numpy as np
import scipy.linalg as linalg

from valuefit.problem.problem import Problem
from valuefit.typing import Array


class Exact:
    """Minimum-norm minimiser of F and exact excesses F(theta) - F*, by eigenvalues of C and the SVD of C^(+1/2) A.

    With M = C^(+1/2) A and y = C^(+1/2) b: F(theta) = 1/2 |M theta - y|^2 + ridge/2 |theta|^2. In the singular
    basis of M the excess is a sum of squares, which avoids cancellation near the minimum.
    start: the starting point, which sets the scale of the gap where theta = 0 is optimal.
    """

    def __init__(self, problem: Problem, start: Array | None = None) -> None:
        self.ridge = problem.ridge
        values, _ = problem.C_spectrum
        root = problem.C_root
        M, self._y = root.T @ problem.A, root.T @ problem.b
        if M.shape[0] == 0:  # all features are zero
            M, self._y = np.zeros((1, problem.d)), np.zeros(1)
        condition = values[-1] / values[0] if len(values) else 1.0
        try:
            U, sigma, Vt = linalg.svd(M, full_matrices=False, check_finite=False)
        except linalg.LinAlgError:  # gesdd can fail to converge where the slower gesvd does not
            U, sigma, Vt = linalg.svd(M, full_matrices=False, check_finite=False, lapack_driver="gesvd")
        # Rounding in A is magnified by C^(+1/2), up to the square root of the condition number of C.
        cutoff = np.finfo(float).eps * max(M.shape) * np.sqrt(condition) * sigma[0]
        self.rank = int((sigma > cutoff).sum())
        self._M, self._Vt = M, Vt[: self.rank]
        self._sigma, self._target = sigma[: self.rank], (U.T @ self._y)[: self.rank]
        curvature = self._sigma**2 + self.ridge
        self.theta: Array = self._Vt.T @ (self._sigma * self._target / curvature)
        self.theta[problem.dead] = 0.0  # zero up to rounding before
        self.w: Array = root @ (root.T @ (problem.b - problem.A @ self.theta))
        self.scale = 0.5 * float(np.sum((self._sigma * self._target) ** 2 / curvature))
        if self.scale <= 1e-15 * max(M.shape) * 0.5 * float(self._y @ self._y):
            # theta = 0 is optimal up to rounding, so F(start) - F* is the scale of the gap instead
            self.scale = 0.0 if start is None else self.excess(start)

    def objective(self, theta: Array) -> float:
        """F(theta)."""
        error = self._M @ theta - self._y
        return 0.5 * float(error @ error) + 0.5 * self.ridge * float(theta @ theta)

    def excess(self, theta: Array) -> float:
        """F(theta) - F*, as 1/2 g' H^+ g in the singular basis."""
        inside = self._Vt @ theta
        curvature = self._sigma**2 + self.ridge
        gradient = self._sigma * (self._sigma * inside - self._target) + self.ridge * inside
        outside = theta - self._Vt.T @ inside
        return 0.5 * float(np.sum(gradient**2 / curvature)) + 0.5 * self.ridge * float(outside @ outside)

    def inverse_hessian(self, c: Array) -> Array:
        """H^+ c with H = A'C^+A + ridge I, the second derivative of F; c is (d,) or (d, m)."""
        inside = self._Vt @ c
        found = self._Vt.T @ (inside.T / (self._sigma**2 + self.ridge)).T
        return found + self.outside(c) / self.ridge if self.ridge else found

    def outside(self, c: Array) -> Array:
        """The part of c, (d,) or (d, m), whose product with theta F does not determine, but for the ridge."""
        return c - self._Vt.T @ (self._Vt @ c)

    def gap(self, theta: Array) -> float:
        """(F(theta) - F*) / (F(0) - F*); over F(start) - F* where theta = 0 is optimal, and 0 if start is too."""
        return self.excess(theta) / self.scale if self.scale > 0 else 0.0


def correction_gap(problem: Problem, theta: Array, correction: Array, *, residual: Array | None = None) -> float:
    """An upper bound of the gap at theta where `correction` (d,) is a good estimate of theta* - theta.

    The excess is 1/2 c' H c with c the correction, and F(0) - F* is 1/2 theta' H theta at the minimum. As
    A = mean psi z' with z the trace of v run backwards, A'C^+A <= mean z z', which bounds the first from above;
    y'C^+y >= (y'y)^2 / y'Cy with y = A theta bounds the second from below. It costs half a pass given `residual`,
    b - A theta, and a pass more without it, with other dual features, or with the identity metric.
    """
    y = problem.A_dot(theta) if residual is None else problem.b - residual
    if problem.psi is problem.phi:
        p, q = problem.phi.dot2(correction, y)
    else:
        p, q = problem.phi.dot(correction), problem.psi.dot(y)
    if problem.identity:
        upper = float(np.sum(problem.A_dot(correction) ** 2))
    else:
        vc = p[problem.now] - problem.discount * p[problem.next]
        upper = float(np.mean(problem.backward(vc) ** 2))
    upper += problem.ridge * float(correction @ correction)
    square = float(y @ y)
    lower = problem.ridge * float(theta @ theta)
    if square > 0:
        lower += square if problem.identity else square * (square / (float(problem.visits @ q**2) / problem.n))
    if lower > 0:
        return upper / lower
    return 0.0 if upper == 0 else np.inf
