"""Certificates of convergence: upper bounds of the gap, and their cost in passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import scipy.linalg as linalg

from valuefit.memory import memory_limit
from valuefit.precondition.preconditioner import Preconditioner, precondition
from valuefit.problem.exact import Exact
from valuefit.problem.gap import gap_above, unit
from valuefit.problem.saddle_point import SaddlePoint
from valuefit.typing import Array

FREE_PASSES = 5.0  # the moments are formed without further conditions where that costs at most this


class Certificate:
    """Upper bounds of gap = (F(theta) - F*) / (F(0) - F*).

    Where forming the moments is cheap the gap is computed exactly. Otherwise, with e = b - A theta - C w:
    for a square A at ridge 0, F* is 0 unless A is singular and F(theta) = 1/2 r' C^+ r with r = b - A theta;
    for ridge > 0, any w bounds F* from below, and F(theta) - F* <= |ridge theta - A' w|^2 / (2 ridge)
    + 1/2 e' C^+ e. The energies come from conjugate gradients on C; their error is bounded by the `excess` of the
    preconditioner, or where that is not known, estimated by Ritz values. What remains (rectangular or singular A at
    ridge 0) needs the moments, if `allowance` permits.
    """

    def __init__(self, problem: SaddlePoint, start: Array) -> None:
        self.problem, self.start = problem, start
        self.passes = 0.0
        self._allowance = 0.0
        self.objective: float | None = None
        self._exact: Exact | None = None
        self._used: Preconditioner | None = None
        self._ritz = 1.0  # the smallest Ritz value of C~^+ C so far
        self._b_energy: float | None = None
        self._scale_from_theta = 0.0  # a lower bound of F(0) - F* from theta
        self._start_value: float | None = None
        self._moments_known = False  # whether the solver has formed and counted them
        self._offered: Preconditioner | None = None

    def offer(self, *, moments: bool, preconditioner: Preconditioner | None) -> None:
        """Use the moments or the preconditioner of C that a solver has made and counted."""
        self._moments_known = self._moments_known or moments
        self._offered = preconditioner or self._offered

    @property
    def exact_cost(self) -> float:
        """Passes to form and decompose the moments; infinite where they do not fit into memory."""
        problem, k, d = self.problem, self.problem.k, self.problem.d
        if 16 * k * (k + d) > memory_limit():
            return np.inf
        return (0.0 if self._moments_known else problem.cost.moments) + problem.cost.flops(10 * k**3 + 20 * d**2 * k)

    @property
    def cheap(self) -> bool:
        """Whether an evaluation costs next to nothing."""
        return self._exact is not None or self.exact_cost <= FREE_PASSES

    def gap(self, theta: Array, w: Array, *, tol: float, allowance: float) -> float | None:
        """An upper bound of the gap at theta, or None where it would cost more than `allowance` passes.

        It may be loose where the gap is not near `tol`, and is infinite where the gap is certainly larger, or, with a
        ridge, at least ten times that.
        """
        problem, self._allowance = self.problem, allowance
        if self._exact is not None or self.exact_cost <= min(FREE_PASSES, allowance):
            return self._exact_gap(theta)
        if allowance < 2:
            return None
        gap = None
        if problem.ridge > 0:
            gap = self._saddle_gap(theta, w, tol)
        elif problem.k == problem.d:
            gap = self._fixed_point_gap(theta, tol)
        if gap is None and self.exact_cost <= allowance:
            return self._exact_gap(theta)
        return gap

    def _exact_gap(self, theta: Array) -> float:
        if self._exact is None:
            self._exact = Exact(self.problem, self.start)
            self.passes += self.exact_cost
        self.objective = self._exact.objective(theta)
        return self._exact.gap(theta)

    def _fixed_point_gap(self, theta: Array, tol: float) -> float | None:
        r = self.problem.residual(theta)
        self.passes += 1
        beyond, enough = np.inf, 0.0
        if self.problem.b.any() and tol > 0:
            beyond = tol * self.problem.reward_squares()[0]  # b' C^+ b is at most this mean square
            enough = 0.99 * tol / (1 + tol) * self._energy_of_b()  # the gap is then at most 0.99 tol
        below, upper = self._energy(r, beyond=beyond, enough=enough)
        if upper is None:
            return np.inf if below > beyond else None
        self.objective = 0.5 * upper
        return self._relative(self.objective)

    def _saddle_gap(self, theta: Array, w: Array, tol: float) -> float | None:
        problem = self.problem
        g_theta, g_w = problem.B(theta, w)
        r = problem.residual(theta)
        self.passes += 2
        below, upper = self._energy(-g_w, beyond=self._excessive_energy(tol))
        if upper is None and below > self._excessive_energy(tol):
            return np.inf
        if upper is None or not self._preconditioner.clear:  # F then depends on which directions of C count as zero
            return None
        # F(0) - F(theta) = 1/2 theta' H theta - theta' grad F, without the cancellation at a large ridge
        y, size = unit(problem.b - r)
        own = problem.ridge * float(theta @ theta)
        if size > 0:
            own += size * size * float(y @ y) * (float(y @ y) / float(y @ self._C_dot(y)))
        self._scale_from_theta = 0.25 * own if abs(float(g_theta @ theta)) <= 0.1 * own else 0.0
        # r = e + C w, so 1/2 r' C^+ r = 1/2 e' C^+ e + 1/2 w' (r + e)
        self.objective = 0.5 * upper + 0.5 * float(w @ (r - g_w)) + 0.5 * problem.ridge * float(theta @ theta)
        excess = 0.5 * upper + 0.5 * float(g_theta @ g_theta) / problem.ridge
        gap = self._relative(excess)
        if tol < gap <= 100 * tol:
            gap = self._relative(excess - self._dual_excess(g_theta, -g_w, excess))
        return gap

    def _dual_excess(self, g_theta: Array, e: Array, excess: float) -> float:
        """The reduction of the bound by the best w, from below: 1/2 h' K^-1 h, K = C + A A' / ridge, h = b - K w."""
        problem = self.problem

        def K_dot(x: Array) -> Array:
            g_x, C_x = problem.B(np.zeros(problem.d), x)
            self.passes += 2
            return C_x + problem.b - problem.A_dot(g_x) / problem.ridge

        energy = 0.0
        self.passes += 1
        for grown, *_ in self._conjugate_gradients(K_dot, e + problem.A_dot(g_theta) / problem.ridge, 12):
            gained, energy = grown - energy, grown
            if gained < 0.1 * (2 * excess - energy):
                break
        return 0.5 * energy

    def _relative(self, excess: float) -> float:
        """This excess over a lower bound of F(0) - F*, or of F(start) - F* where theta = 0 is optimal."""
        if not self.problem.b.any():
            scale = self._start_excess()
            return excess / scale if scale > 0 else 0.0
        assert self.objective is not None
        return gap_above(excess, self._energy_of_b(), self.objective, self._scale_from_theta)

    def _excessive_energy(self, tol: float) -> float:
        """An energy that is certainly too large: F(theta) - F* would be ten times what `tol` allows."""
        return 10 * tol * self._energy_of_b() if self.problem.b.any() and tol > 0 else np.inf

    def _start_excess(self) -> float:
        """F(start), from below, with b = 0 and hence F* = 0."""
        if self._start_value is None:
            self._start_value = 0.5 * self._energy(self.problem.residual(self.start))[0]
            self._start_value += 0.5 * self.problem.ridge * float(self.start @ self.start)
        return self._start_value

    def _energy_of_b(self) -> float:
        """b' C^+ b from below, by conjugate gradients until a step adds less than a twentieth."""
        if self._b_energy is None:
            b, energy = self.problem.b, 0.0
            if self.problem.identity:
                energy = float(b @ b)
            else:
                for grown, *_ in self._conjugate_gradients(self._C_dot, b, 20):
                    gained, energy = grown - energy, grown
                    if gained <= 0.05 * energy:
                        break
            self._b_energy = energy
        return self._b_energy

    def _energy(self, r: Array, beyond: float = np.inf, enough: float = 0.0) -> tuple[float, float | None]:
        """r' C^+ r from below, and from above if the iteration converged, by preconditioned conjugate gradients.

        Where `excess` is not known, it ends without the second as soon as the first exceeds `beyond`, and with a loose
        one that is at most `enough`.
        """
        if self.problem.identity:
            return float(r @ r), float(r @ r)
        energy, certain = 0.0, np.isfinite(self._preconditioner.excess)
        # without `excess`, C~^+ C may have smaller eigenvalues than its Ritz values show: the residual must be smaller
        small = 1e-5
        for energy, left, ritz in self._conjugate_gradients(self._C_dot, r, 60 if certain else 1000):
            # the error is |residual|^2 in C^+, at most that in C~^+ over the smallest eigenvalue of C~^+ C
            self._ritz = min(self._ritz, ritz)
            # and the smallest Ritz value is assumed to be at most twice the smallest eigenvalue
            above = left * (self._preconditioner.excess if certain else 2.0 / self._ritz)
            if above <= 0.2 * energy and (certain or left <= small * energy):
                return energy, energy + above
            if not certain and energy + above <= enough and left <= small * enough:
                return energy, energy + above
            if not certain and energy > beyond:
                return energy, None
        return energy, None if energy > 0 or r.any() else 0.0

    def _C_dot(self, x: Array) -> Array:
        matrix = None if self._used is None else self._used.matrix
        if matrix is None:
            self.passes += 1
            return self.problem.C_dot(x)
        self.passes += self.problem.cost.sparse_product(matrix.stored)
        return matrix @ x

    def _conjugate_gradients(
        self, product: Callable[[Array], Array], r: Array, most: int
    ) -> Iterator[tuple[float, float, float]]:
        """Energies of the solution so far (rising to r' S^+ r), preconditioned residuals, smallest Ritz values."""
        energy, z = 0.0, self._preconditioner.dual(r)
        p, left = z, float(r @ z)
        diagonal: list[float] = []  # of the Lanczos matrix
        off_diagonal: list[float] = []
        alpha = beta = 0.0
        for _ in range(min(most, int(self._allowance))):
            Sp = product(p)
            curvature = float(p @ Sp)
            if not (curvature > 0 and left > 0):
                return
            diagonal.append(curvature / left + (beta / alpha if alpha else 0.0))
            alpha = left / curvature
            energy += left * alpha
            r = r - alpha * Sp
            z = self._preconditioner.dual(r)
            before, left = left, max(float(r @ z), 0.0)
            beta = left / before
            ritz = linalg.eigvalsh_tridiagonal(
                np.array(diagonal), np.array(off_diagonal), select="i", select_range=(0, 0)
            )[0]
            yield energy, left, float(max(ritz, 1e-300))
            off_diagonal.append(np.sqrt(beta) / alpha)
            p = z + beta * p

    @property
    def _preconditioner(self) -> Preconditioner:
        if self._used is None:
            self._used = self._offered
            if self._used is None or self.problem.identity:
                own = precondition(self.problem, limit=0.5 * self._allowance, with_A=False)
                self._used, self.passes = own, self.passes + own.passes
            if not np.isfinite(self._used.excess):
                probe = np.random.default_rng(1).standard_normal(self.problem.k)
                for *_, ritz in self._conjugate_gradients(self._C_dot, self._C_dot(probe), 8):
                    self._ritz = min(self._ritz, ritz)
        return self._used
