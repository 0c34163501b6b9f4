"""Recursive LSTD: the inverse of the saddle-point matrix, kept up to date step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from valuefit.memory import require_memory
from valuefit.problem.exact import correction_gap
from valuefit.problem.problem import Problem
from valuefit.rows.kernels import axpy, axpyv, compiled
from valuefit.solvers.solver import Info, Solver, State
from valuefit.typing import Array


@dataclass(frozen=True)
class RecursiveLSTD(Solver):
    """LSTD by rank-one updates (Sherman-Morrison-Woodbury), one step of the log at a time.

    Keeps P = S^-1 with S = sum_t [[0, -v u'], [u v', psi psi']] + diag(n ridge + e, e), whose solution
    S x = sum_t (0, r u) is the saddle point. S has a positive semi-definite symmetric part, so no partial sum
    is singular, off-policy and with ridge too, where the textbook recursion on A alone can break down. Later
    epochs are passes of refinement that remove the traces of e. O((d + k)^2) a step. Prefer it when steps
    arrive one by one and an exact answer is wanted after each.

    initial: e, as a part of n mean |psi|^2.

    Nedic and Bertsekas 2003.
    """

    name: ClassVar[str] = "recursive-lstd"
    summary: ClassVar[str] = "exact, by rank-one updates of the inverse, step by step"
    order: ClassVar[int] = 8

    initial: float = 1e-8

    def __post_init__(self) -> None:
        if not 0 < self.initial < 1:
            raise ValueError(f"initial is {self.initial}; it must lie strictly between 0 and 1.")

    def init(self, problem: Problem, theta: Array, w: Array) -> tuple[State, Info]:
        size = problem.d + problem.k
        require_memory(size**2, f"The inverse of {size} x {size} that recursive LSTD keeps", "Use 'svrg' or 'saga'.")
        return State(theta, w), Info(0.0)

    def epoch(self, problem: Problem, state: State, rng: np.random.Generator) -> tuple[State, Info]:
        passes = 0.0
        if state.memory is not None:
            P = state.memory[0]
        else:
            P = self._start(problem)
            sweep(
                problem.phi.kernel, problem.psi.kernel, problem.now, problem.next, problem.discount, problem.ratio,
                problem.begins, problem.trace, problem.identity, problem.d, P,
            )  # fmt: skip
            passes = 1 + problem.cost.flops(12 * problem.n * len(P) ** 2)
        # P approximates the inverse of n times the saddle-point matrix; correct by the true residual
        theta, w = state.theta, state.w
        change = -problem.n * (P @ np.concatenate(problem.B(theta, w)))
        theta, w = theta + change[: problem.d], w + change[problem.d :]
        gradient = problem.B(theta, w)
        correction = -problem.n * (P @ np.concatenate(gradient))[: problem.d]
        # The correction tells the distance only where corrections shrink: a direction that e swamps hardly moves.
        bound = correction_gap(problem, theta, correction)
        before = np.inf if bound == 0 else (state.memory[1] if state.memory else 0.0)
        shrink = np.sqrt(bound / before) if before > 0 else 1.0
        gap = float(bound / (1 - shrink) ** 2) if shrink < 0.9 else None
        return State(theta, w, gradient=gradient, memory=(P, bound)), Info(passes + 5, gap)

    def _start(self, problem: Problem) -> Array:
        e = self.initial * problem.n * (float(problem.psi_squared.mean()) or 1.0)
        diagonal = np.full(problem.d + problem.k, e)
        diagonal[: problem.d] += problem.n * problem.ridge
        diagonal[problem.d :] += problem.n if problem.identity else 0
        return np.diag(1 / diagonal)


@compiled
def sweep(phi, psi, now, next, discount, ratio, begins, trace, identity, d, P):
    """P := (P^-1 + sum_t left right')^-1 in place, by Woodbury's formula for the rank three of each step.

    left has the columns (0, u), (-v, 0), (0, psi) and right the rows (v, 0), (0, u), (0, psi); psi is 0 when C = I.
    """
    size = P.shape[0]
    u, v, own = np.zeros(size - d), np.zeros(d), np.zeros(size - d)
    K, R, small = np.zeros((size, 3)), np.zeros((3, size)), np.zeros((3, 3))
    for t in range(now.shape[0]):
        u *= 0.0 if begins[t] else ratio[t] * trace * discount[t - 1]
        axpy(psi, now[t], ratio[t], u)
        v[:] = 0.0
        axpyv(phi, now[t], next[t], discount[t], 1.0, v)
        if not identity:
            own[:] = 0.0
            axpy(psi, now[t], 1.0, own)
        R[:] = 0.0
        for i in range(size):  # K = P left and R = right P, reading P once
            row = P[i]
            of_u, of_v, of_own = 0.0, 0.0, 0.0
            for c in range(d):
                of_v -= row[c] * v[c]
            for c in range(size - d):
                of_u += row[d + c] * u[c]
                of_own += row[d + c] * own[c]
            K[i, 0], K[i, 1], K[i, 2] = of_u, of_v, of_own
            if i < d:
                for c in range(size):
                    R[0, c] += v[i] * row[c]
            else:
                for c in range(size):
                    R[1, c] += u[i - d] * row[c]
                    R[2, c] += own[i - d] * row[c]
        for e in range(3):
            small[0, e], small[1, e], small[2, e] = 0.0, 0.0, 0.0
            for c in range(d):
                small[0, e] += v[c] * K[c, e]
            for c in range(size - d):
                small[1, e] += u[c] * K[d + c, e]
                small[2, e] += own[c] * K[d + c, e]
            small[e, e] += 1.0
        eliminate(small, R)
        for i in range(size):
            row = P[i]
            for c in range(size):
                row[c] -= K[i, 0] * R[0, c] + K[i, 1] * R[1, c] + K[i, 2] * R[2, c]


@compiled
def eliminate(S, R):
    """R := S^-1 R for a small S, by Gaussian elimination with row exchanges; S is used up."""
    size = S.shape[0]
    for i in range(size):
        best = i
        for k in range(i + 1, size):
            if abs(S[k, i]) > abs(S[best, i]):
                best = k
        for c in range(size):
            S[i, c], S[best, c] = S[best, c], S[i, c]
        for c in range(R.shape[1]):
            R[i, c], R[best, c] = R[best, c], R[i, c]
        for k in range(size):
            factor = S[k, i] / S[i, i] if k != i else 0.0
            for c in range(size):
                S[k, c] -= factor * S[i, c]
            for c in range(R.shape[1]):
                R[k, c] -= factor * R[i, c]
    for i in range(size):
        for c in range(R.shape[1]):
            R[i, c] /= S[i, i]
