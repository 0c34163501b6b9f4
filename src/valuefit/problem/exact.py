"""The problem solved exactly from its moments, whatever their rank: what others are measured against."""

from __future__ import annotations

import numpy as np
import scipy.linalg as linalg

from valuefit.problem.problem import Problem
from valuefit.typing import Array


class Exact:
    """Minimum-norm minimiser of F and exact excesses F(theta) - F*, by eigenvalues of C and the SVD of C^(+1/2) A.

    With M = C^(+1/2) A and y = C^(+1/2) b: F(theta) = 1/2 |M theta - y|^2 + ridge/2 |theta|^2. In the singular
    basis of M the excess is a sum of squares, so nothing cancels near the minimum.
    """

    def __init__(self, problem: Problem, start: Array | None = None) -> None:
        self.ridge = problem.ridge
        values, _ = problem.C_spectrum
        root = problem.C_root
        M, self._y = root.T @ problem.A, root.T @ problem.b
        if M.shape[0] == 0:  # no feature is ever nonzero
            M, self._y = np.zeros((1, problem.d)), np.zeros(1)
        condition = values[-1] / values[0] if len(values) else 1.0
        try:
            U, sigma, Vt = linalg.svd(M, full_matrices=False, check_finite=False)
        except linalg.LinAlgError:  # the fast method gave up; the slow one does not
            U, sigma, Vt = linalg.svd(M, full_matrices=False, check_finite=False, lapack_driver="gesvd")
        # Rounding in A is magnified by C^(+1/2), up to the square root of the condition number of C.
        cutoff = np.finfo(float).eps * max(M.shape) * np.sqrt(condition) * sigma[0]
        self.rank = int((sigma > cutoff).sum())
        self._M, self._Vt = M, Vt[: self.rank]
        self._sigma, self._target = sigma[: self.rank], (U.T @ self._y)[: self.rank]
        curvature = self._sigma**2 + self.ridge
        self.theta: Array = self._Vt.T @ (self._sigma * self._target / curvature)
        self.theta[problem.dead] = 0.0  # it is, but for rounding
        self.w: Array = root @ (root.T @ (problem.b - problem.A @ self.theta))
        self.scale = 0.5 * float(np.sum((self._sigma * self._target) ** 2 / curvature))
        if self.scale <= 1e-15 * max(M.shape) * 0.5 * float(self._y @ self._y):
            # theta = 0 is optimal but for rounding: the starting point is the unit of the gap instead
            self.scale = 0.0 if start is None else self.excess(start)

    def objective(self, theta: Array) -> float:
        """F(theta)."""
        off = self._M @ theta - self._y
        return 0.5 * float(off @ off) + 0.5 * self.ridge * float(theta @ theta)

    def excess(self, theta: Array) -> float:
        """F(theta) - F*, as 1/2 g' H^+ g in the singular basis."""
        inside = self._Vt @ theta
        curvature = self._sigma**2 + self.ridge
        gradient = self._sigma * (self._sigma * inside - self._target) + self.ridge * inside
        outside = theta - self._Vt.T @ inside
        return 0.5 * float(np.sum(gradient**2 / curvature)) + 0.5 * self.ridge * float(outside @ outside)

    def inverse_hessian(self, c: Array) -> Array:
        """H^+ c with H = A'C^+A + ridge I, the second derivative of F."""
        inside = self._Vt @ c
        found = self._Vt.T @ (inside / (self._sigma**2 + self.ridge))
        return found + (c - self._Vt.T @ inside) / self.ridge if self.ridge else found

    def gap(self, theta: Array) -> float:
        """(F(theta) - F*) / (F(0) - F*), or over F(start) - F* where theta = 0 is optimal; zero if that is too."""
        return self.excess(theta) / self.scale if self.scale > 0 else 0.0


def correction_gap(problem: Problem, theta: Array, correction: Array, *, residual: Array | None = None) -> float:
    """An upper bound of the gap where `correction` is a good estimate of theta* - theta.

    The excess is 1/2 c' H c with c the correction, and F(0) - F* is 1/2 theta' H theta at the minimum. As
    A = mean psi z' with z the trace of v run backwards, A'C^+A <= mean z z', which bounds the first from above;
    |y|^2 in C^+ is at least (y'y)^2 / y'Cy, which bounds the second from below. Half a pass reads the rows for both,
    given `residual`, b - A theta; a pass more without it, or with dual features of their own or the identity metric.
    """
    y = problem.A_dot(theta) if residual is None else problem.b - residual
    if problem.psi is problem.phi:
        p, q = problem.phi.dot2(correction, y)
    else:
        p, q = problem.phi.dot(correction), problem.psi.dot(y)
    if problem.identity:
        above = float(np.sum(problem.A_dot(correction) ** 2))
    else:
        vc = p[problem.now] - problem.discount * p[problem.next]
        above = float(np.mean(problem.backward(vc) ** 2))
    above += problem.ridge * float(correction @ correction)
    square = float(y @ y)
    below = problem.ridge * float(theta @ theta)
    if square > 0:
        below += square if problem.identity else square * (square / (float(problem.visits @ q**2) / problem.n))
    if below > 0:
        return above / below
    return 0.0 if above == 0 else np.inf
