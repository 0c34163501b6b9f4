"""The paper's constants, step sizes, inner loop lengths and predicted iterations, with its errata corrected."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg as linalg

from valuefit.linalg.moments import pieces
from valuefit.problem.problem import Problem
from valuefit.typing import Array


class SvrgPlan(NamedTuple):
    """Theorem 2: step sizes, inner loop length, and the factor by which P shrinks in one outer iteration."""

    step_theta: float
    step_w: float
    inner: float
    contraction: float


class SagaPlan(NamedTuple):
    """Theorem 3: step sizes, and the rate at which the potential T shrinks in one update."""

    step_theta: float
    step_w: float
    rate: float

    @property
    def contraction(self) -> float:
        """T is multiplied by at most this."""
        return 1 - self.rate


class PdbgPlan(NamedTuple):
    """Theorem 1: step sizes, and the rate at which the error shrinks in one iteration."""

    step_theta: float
    step_w: float
    rate: float

    @property
    def contraction(self) -> float:
        """P, a squared error, is multiplied by at most this."""
        return (1 - self.rate) ** 2


class Theory:
    """Constants of a problem in the paper's theorems (sections 4 to 6, appendices A to D).

    Where C or A is singular, condition numbers are taken over the nonzero eigenvalues, because the iterates stay in
    that subspace. All constants but `L_G` are computed from the moments, at the cost of LSTD.
    """

    def __init__(self, problem: Any) -> None:
        self.problem = problem

    @property
    def _C_values(self) -> Array:
        values, _ = self.problem.C_spectrum
        if len(values) == 0:
            raise ValueError("Every feature is zero wherever a step started, so C = 0 and no theorem applies.")
        return values

    @cached_property
    def _coupling_values(self) -> Array:
        """Eigenvalues of A' C^+ A, ascending."""
        sigma = np.zeros(self.problem.d)
        values = linalg.svdvals(self.problem.C_root.T @ self.problem.A)
        sigma[: len(values)] = values
        return sigma[::-1] ** 2

    @property
    def lambda_max_C(self) -> float:
        return float(self._C_values[-1])

    @property
    def lambda_min_C(self) -> float:
        return float(self._C_values[0])

    @property
    def kappa_C(self) -> float:
        return self.lambda_max_C / self.lambda_min_C

    @property
    def L_rho(self) -> float:
        """lambda_max(ridge I + A' C^-1 A), equation (11)."""
        return self.problem.ridge + float(self._coupling_values[-1])

    @property
    def mu_rho(self) -> float:
        """lambda_min(ridge I + A' C^-1 A), equation (12)."""
        values = self._coupling_values
        if self.problem.ridge > 0:
            return self.problem.ridge + float(values[0])
        nonzero = values[values > 1e-13 * values[-1]]
        if len(nonzero) == 0:
            raise ValueError("A is zero and ridge is 0, so no theorem applies.")
        return float(nonzero[0])

    @property
    def kappa(self) -> float:
        """kappa(ridge I + A' C^-1 A)."""
        return self.L_rho / self.mu_rho

    @property
    def beta(self) -> float:
        """sigma_w / sigma_theta = 8 (ridge + L) / lambda_min(C): G is then diagonalisable with positive eigenvalues."""
        return 8 * self.L_rho / self.lambda_min_C

    @property
    def kappa_G(self) -> float:
        return self.L_G / self.mu_rho

    @cached_property
    def L_G(self) -> float:
        """sqrt(|mean G_t' G_t|), by power iterations at one pass each; no G_t is formed."""
        problem, rng = self.problem, np.random.default_rng(0)
        if not isinstance(problem, Problem):
            raise ValueError(
                "The step sizes of the theorems for single rows need all rows in memory. Give step_theta and step_w, "
                'or use steps="auto".'
            )
        x, y = rng.standard_normal(problem.d), rng.standard_normal(problem.k)
        value = 0.0
        for _ in range(2000):
            norm = math.sqrt(x @ x + y @ y)
            x, y = self._mean_GtG(x / norm, y / norm)
            before, value = value, math.sqrt(x @ x + y @ y)
            if abs(value - before) <= 1e-9 * value:
                break
        return math.sqrt(value)

    def _mean_GtG(self, x: Array, y: Array) -> tuple[Array, Array]:
        """mean G_t' G_t (x, y) with G_t = [[ridge I, -sqrt(beta) A_t'], [sqrt(beta) A_t, beta C_t]]."""
        problem, beta = self.problem, self.beta
        _, _, _, row, factor = problem.steps(np.arange(problem.n))
        vx = problem.differences(x)
        uy = factor * problem.u.dot(y)[row]
        on_v = beta * problem.u_squared * vx
        on_u = beta * problem.v_squared * uy
        if problem.identity:
            on_v, on_u, on_psi = on_v + beta**1.5 * uy, on_u + beta**1.5 * vx, np.zeros(problem.n)
        else:
            py = problem.psi.dot(y)[problem.now]
            on_v = on_v + beta**1.5 * self._u_psi * py
            on_psi = beta**1.5 * self._u_psi * vx + beta**2 * problem.psi_squared * py
        m, n = problem.phi.shape[0], problem.n
        to_phi = np.bincount(problem.now, on_v, m) - np.bincount(problem.next, problem.discount * on_v, m)
        to_psi = np.bincount(problem.now, on_psi, m)
        to_u = np.bincount(row, factor * on_u, problem.u.shape[0])
        cross = problem.ridge * math.sqrt(beta)
        new_x = problem.ridge**2 * x + problem.phi.tdot(to_phi) / n
        new_y = (problem.psi.tdot(to_psi) + problem.u.tdot(to_u)) / n
        if problem.identity:
            new_y = new_y + beta**2 * y
        if cross:
            new_x, new_y = new_x - cross * problem.At_dot(y), new_y - cross * problem.A_dot(x)
        return new_x, new_y

    @cached_property
    def _u_psi(self) -> Array:
        """u_t' psi_t of every step, (n,)."""
        problem = self.problem
        if not problem.trace:
            return problem.ratio * problem.psi_squared
        out = np.empty(problem.n)
        for steps in pieces(np.arange(problem.n), 2 * problem.k):
            u, psi = problem.u.take(steps), problem.psi.take(problem.now[steps])
            if problem.psi.sparse:
                out[steps] = np.asarray(psi.multiply(u).sum(axis=1)).ravel()
            else:
                out[steps] = np.einsum("ij,ij->i", u, psi)
        return out

    def G_spectrum(self) -> Array:
        """Eigenvalues of G at this beta (appendix A): real and positive under the paper's assumption."""
        A, _, C = self.problem.moments()
        root = math.sqrt(self.beta)
        G = np.block([[self.problem.ridge * np.eye(self.problem.d), -root * A.T], [root * A, self.beta * C]])
        return linalg.eigvals(G)

    def pdbg(self) -> PdbgPlan:
        """Theorem 1."""
        step = 1 / (9 * self.L_rho * self.kappa_C)
        rate = 8 / (81 * self.kappa_C * self.kappa)
        return PdbgPlan(step, 8 / (9 * self.lambda_max_C), rate)

    def pdbg_fastest(self) -> PdbgPlan:
        """The step 2 / (lambda_max(G) + lambda_min(G)) of appendix B, over the nonzero eigenvalues of G."""
        values = np.sort(self.G_spectrum().real)
        values = values[values > 1e-13 * values[-1]]
        step = 2 / (values[-1] + values[0])
        return PdbgPlan(step, self.beta * step, float(step * values[0]))

    def svrg(self, rate: str = "4/5") -> SvrgPlan:
        """Theorem 2, with kappa(C) in N as in the proof, not its square; "3/4" is the second choice of appendix C."""
        ratio = self.kappa_C * self.L_G**2 / self.mu_rho**2
        divisor, length, contraction = {"4/5": (48, 51, 0.8), "3/4": (27, 92, 0.75)}[rate]
        step = 1 / (divisor * ratio * self.mu_rho)
        return SvrgPlan(step, self.beta * step, math.ceil(length * ratio), contraction)

    def saga(self) -> SagaPlan:
        """Theorem 3, with kappa(C) as in the proof."""
        denominator = 8 * self.kappa_C * self.L_G**2 + self.problem.n * self.mu_rho**2
        step = self.mu_rho / (3 * denominator)
        return SagaPlan(step, self.beta * step, self.mu_rho**2 / (9 * denominator))

    def predicted_iterations(self, epsilon: float) -> dict[str, float]:
        """Iterations (PDBG), outer iterations (SVRG) and updates (SAGA) until P has shrunk by the factor `epsilon`."""
        return {
            # log1p, because 1 - rate rounds to 1 for rates below 1e-16
            "pdbg": math.log(epsilon) / (2 * math.log1p(-self.pdbg().rate)),
            "svrg": math.log(epsilon) / math.log(self.svrg().contraction),
            "saga": math.log(epsilon / 2) / math.log1p(-self.saga().rate),
        }

    def table1(self, epsilon: float) -> dict[str, float]:
        """The operation counts of table 1, without constants. GTD2 is omitted: the paper does not define its kappa'."""
        n, d, log = self.problem.n, self.problem.d, math.log(1 / epsilon)
        batch = self.kappa_C * self.kappa * log
        return {
            "svrg/saga": n * d * (1 + self.kappa_C * self.kappa_G**2 / n) * log,
            "pdbg (I)": n * d * batch,
            "pdbg (II)": n * d**2 + d**2 * batch,
            "lstd": float(n * d**2 + d**3),
        }

    def beats_lstd_from_d(self, epsilon: float) -> float:
        """Section 6: SVRG and SAGA cost less than LSTD where d exceeds this."""
        return (1 + self.kappa_C * self.kappa_G**2 / self.problem.n) * math.log(1 / epsilon)

    def beats_pdbg_from_n(self) -> float:
        """Section 6: SVRG and SAGA cost less than PDBG (I) where n exceeds this."""
        excess = self.kappa_C * self.kappa - 1
        return self.kappa_C * self.kappa_G**2 / excess if excess > 0 else math.inf
