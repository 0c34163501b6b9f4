"""The evidence behind the word "converged": an upper bound of the gap, and what it cost."""

from __future__ import annotations

import numpy as np
import scipy.linalg as linalg

from valuefit.exact import Exact
from valuefit.problem import Problem
from valuefit.rows import memory_limit
from valuefit.transitions import Array

SAMPLE = 8  # rows a column that the preconditioner of C is made from
EASY = 5.0  # passes for which the moments are formed without asking
SLACK = 5.0  # how far the sampled factor may be off when it bounds what conjugate gradients left over


class Certificate:
    """Upper bounds of gap = (F(theta) - F*) / (F(0) - F*).

    Where forming the moments is cheap the gap is computed exactly. Otherwise, with e = b - A theta - C w:
    for a square A at ridge 0, F* is 0 unless A is singular and F(theta) = 1/2 r' C^+ r with r = b - A theta;
    for ridge > 0, any w bounds F* from below, and F(theta) - F* <= |ridge theta - A' w|^2 / (2 ridge)
    + 1/2 e' C^+ e. The energies come from conjugate gradients on C, preconditioned by the Cholesky factor of a
    sample. What remains (rectangular or singular A at ridge 0) needs the moments, if `allowance` permits.
    """

    def __init__(self, problem: Problem, start: Array) -> None:
        self.problem, self.start = problem, start
        self.passes = 0.0
        self._allowance = 0.0
        self.objective: float | None = None
        self._exact: Exact | None = None
        self._factor: tuple[Array, bool] | Array | None = None
        self._b_energy: float | None = None
        self._unit: float | None = None
        self.exact_cost = _exact_cost(problem)

    @property
    def cheap(self) -> bool:
        """Whether another look costs next to nothing."""
        return self._exact is not None or self.exact_cost <= EASY

    def gap(self, theta: Array, w: Array, *, allowance: float) -> float | None:
        """An upper bound of the gap at theta, or None where it would cost more than `allowance` passes."""
        problem, self._allowance = self.problem, allowance
        if self._exact is not None or self.exact_cost <= min(EASY, allowance):
            return self._exact_gap(theta)
        if allowance < 2:
            return None
        if problem.ridge == 0 and problem.k == problem.d:
            excess = self._fixed_point_excess(theta)
        elif problem.ridge > 0:
            excess = self._saddle_excess(theta, w)
        else:
            excess = None
        if excess is None:
            return self._exact_gap(theta) if self.exact_cost <= allowance else None
        if not problem.b.any():  # theta = 0 is optimal: the starting point is the unit of the gap instead
            scale = self._start_excess()
            return excess / scale if scale > 0 else 0.0
        assert self.objective is not None
        scale = 0.5 * self._energy_of_b() - self.objective
        return excess / scale if scale > 0 else np.inf

    def _exact_gap(self, theta: Array) -> float:
        if self._exact is None:
            self._exact = Exact(self.problem, self.start)
            self.passes += self.exact_cost
        self.objective = self._exact.objective(theta)
        return self._exact.gap(theta)

    def _fixed_point_excess(self, theta: Array) -> float | None:
        r = self.problem.residual(theta)
        self.passes += 1
        _, upper = self._energy(r)
        self.objective = None if upper is None else 0.5 * upper
        return self.objective

    def _saddle_excess(self, theta: Array, w: Array) -> float | None:
        problem = self.problem
        g_theta, g_w = problem.B(theta, w)
        r = problem.residual(theta)
        self.passes += 2
        _, upper = self._energy(-g_w)
        if upper is None:
            return None
        # r = e + C w, so 1/2 r' C^+ r = 1/2 e' C^+ e + 1/2 w' (r + e)
        self.objective = 0.5 * upper + 0.5 * float(w @ (r - g_w)) + 0.5 * problem.ridge * float(theta @ theta)
        return 0.5 * upper + 0.5 * float(g_theta @ g_theta) / problem.ridge

    def _start_excess(self) -> float:
        """F(start), from below, with b = 0 and hence F* = 0."""
        if self._unit is None:
            self._unit = 0.5 * self._energy(self.problem.residual(self.start))[0]
            self._unit += 0.5 * self.problem.ridge * float(self.start @ self.start)
        return self._unit

    def _energy_of_b(self) -> float:
        if self._b_energy is None:
            self._b_energy = self._energy(self.problem.b)[0]
        return self._b_energy

    def _energy(self, r: Array) -> tuple[float, float | None]:
        """r' C^+ r from below, and from above if the iteration settled, by preconditioned conjugate gradients."""
        if self.problem.identity:
            return float(r @ r), float(r @ r)
        x_energy, settled = 0.0, None
        z = self._precondition(r)
        p, rz = z.copy(), float(r @ z)
        if rz == 0:
            return 0.0, 0.0
        for _ in range(min(60, int(self._allowance))):
            Cp = self.problem.C_dot(p)
            self.passes += 1
            alpha = rz / float(p @ Cp)
            x_energy += alpha * rz
            r = r - alpha * Cp
            z = self._precondition(r)
            rz_next = float(r @ z)
            if rz_next <= 0.02 * x_energy:
                settled = x_energy + SLACK * rz_next
                break
            p = z + rz_next / rz * p
            rz = rz_next
        return x_energy, settled

    def _precondition(self, r: Array) -> Array:
        if self._factor is None:
            self._factor = self._sampled_factor()
        if isinstance(self._factor, tuple):
            return np.asarray(linalg.cho_solve(self._factor, r, check_finite=False))
        return r / self._factor

    def _sampled_factor(self) -> tuple[Array, bool] | Array:
        """Cholesky factor of C over sampled steps, or the diagonal of C where that factor would be too large."""
        problem = self.problem
        # A direction that the sample missed gets the weight of one visit, so it is over- and not underrated.
        shift = float(problem.psi_squared.mean()) / problem.n
        if 8 * problem.k**2 > min(memory_limit(), 2 << 30) or (problem.psi.sparse and problem.k > 2000):
            self.passes += 1
            return problem.psi.column_squares(problem.visits) / problem.n + shift
        count = min(problem.n, SAMPLE * problem.k)
        chosen = np.random.default_rng(0).choice(problem.n, count, replace=False)
        rows = problem.psi.take(problem.now[chosen])
        gram = rows.T @ rows
        gram = np.asarray(gram.toarray() if problem.psi.sparse else gram) / count
        gram[np.diag_indices_from(gram)] += shift
        self.passes += count / problem.n + problem.passes(2 * count * problem.k**2 + problem.k**3)
        lower: tuple[Array, bool] = linalg.cho_factor(gram, lower=True, check_finite=False)
        return lower


def _exact_cost(problem: Problem) -> float:
    """Passes that forming and decomposing the moments is worth; infinite where they do not fit."""
    k, d = problem.k, problem.d
    if 16 * k * (k + d) > memory_limit():
        return np.inf
    return problem.moment_passes + problem.passes(10 * k**3 + 20 * d**2 * k)
