"""Recursive LSTD: the inverse of the saddle-point matrix, updated after each step of the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from valuefit.memory import require_memory
from valuefit.problem.problem import Problem
from valuefit.rows.kernels import axpy, compiled
from valuefit.solvers.in_order import LogInOrder, read_step
from valuefit.solvers.solver import SINGLE_ROWS, Info, Solver, State, check_number
from valuefit.typing import Array


@dataclass(frozen=True)
class RecursiveLSTD(Solver):
    """LSTD by updates of rank three (Sherman-Morrison-Woodbury), one for each step of the log.

    It keeps P = S^-1 with S = sum_t [[0, -v u'], [u v', psi psi']] + diag(n ridge + e, e); the solution of
    S x = sum_t (0, r u) is the saddle point. The symmetric part of S is positive definite, so no partial sum is
    singular, off-policy and with ridge too, where the textbook recursion on A alone can fail. Later epochs are
    iterative refinement, which removes the effect of e. O((d + k)^2) a step. Prefer it when steps arrive one by one
    and an exact solution is needed after each.

    initial: e / (n mean |psi|^2).

    Nedic and Bertsekas 2003.
    """

    name: ClassVar[str] = "recursive-lstd"
    summary: ClassVar[str] = "exact, by low-rank updates of the inverse after each step"
    order: ClassVar[int] = 8
    refusals: ClassVar[dict[str, str]] = SINGLE_ROWS

    initial: float = 1e-8

    def __post_init__(self) -> None:
        check_number(self, "initial", "it must lie strictly between 0 and 1", lambda x: 0 < x < 1)

    def init(self, problem: Problem, theta: Array, w: Array) -> tuple[State, Info]:
        size = problem.d + problem.k
        require_memory(size**2, f"The {size} x {size} inverse of recursive LSTD", "Use 'svrg' or 'saga'.")
        return State(theta, w, gradient=problem.B(theta, w)), Info(1.0)

    def epoch(self, problem: Problem, state: State, rng: np.random.Generator) -> tuple[State, Info]:
        """One step of iterative refinement; `solve` certifies the gap, since P cannot show what e hides."""
        assert state.gradient is not None
        P, passes = state.memory, 1.0
        if P is None:
            P = self._initial_inverse(problem)
            read_log(LogInOrder.of(problem), problem.identity, problem.d, P)
            passes += 1 + problem.cost.flops(12 * problem.n * len(P) ** 2)
        # P approximates the inverse of n times the saddle-point matrix
        change = -problem.n * (P @ np.concatenate(state.gradient))
        theta, w = state.theta + change[: problem.d], state.w + change[problem.d :]
        return State(theta, w, gradient=problem.B(theta, w), memory=P), Info(passes + problem.cost.reads(P.size))

    def _initial_inverse(self, problem: Problem) -> Array:
        e = self.initial * problem.n * (float(problem.psi_squared.mean()) or 1.0)
        diagonal = np.full(problem.d + problem.k, e)
        diagonal[: problem.d] += problem.n * problem.ridge
        diagonal[problem.d :] += problem.n if problem.identity else 0
        return np.diag(1 / diagonal)


@compiled
def read_log(log, identity, d, P):
    """P := (P^-1 + sum_t left right)^-1 in place, by Woodbury's formula for each step, whose matrix has rank three.

    left has the columns (0, u), (-v, 0), (0, psi) and right the rows (v, 0), (0, u), (0, psi); psi is 0 when C = I.
    """
    size = P.shape[0]
    u, v, psi_t = np.zeros(size - d), np.zeros(d), np.zeros(size - d)
    K, R, capacitance = np.zeros((size, 3)), np.zeros((3, size)), np.zeros((3, 3))
    for t in range(log.now.shape[0]):
        read_step(log, t, u, v)
        if not identity:
            psi_t[:] = 0.0
            axpy(log.psi, log.now[t], 1.0, psi_t)
        R[:] = 0.0
        for i in range(size):  # K = P left and R = right P, reading P once
            row = P[i]
            row_u, row_v, row_psi = 0.0, 0.0, 0.0
            for c in range(d):
                row_v -= row[c] * v[c]
            for c in range(size - d):
                row_u += row[d + c] * u[c]
                row_psi += row[d + c] * psi_t[c]
            K[i, 0], K[i, 1], K[i, 2] = row_u, row_v, row_psi
            if i < d:
                for c in range(size):
                    R[0, c] += v[i] * row[c]
            else:
                for c in range(size):
                    R[1, c] += u[i - d] * row[c]
                    R[2, c] += psi_t[i - d] * row[c]
        for e in range(3):
            capacitance[0, e], capacitance[1, e], capacitance[2, e] = 0.0, 0.0, 0.0
            for c in range(d):
                capacitance[0, e] += v[c] * K[c, e]
            for c in range(size - d):
                capacitance[1, e] += u[c] * K[d + c, e]
                capacitance[2, e] += psi_t[c] * K[d + c, e]
            capacitance[e, e] += 1.0
        eliminate(capacitance, R)
        for i in range(size):
            row = P[i]
            for c in range(size):
                row[c] -= K[i, 0] * R[0, c] + K[i, 1] * R[1, c] + K[i, 2] * R[2, c]


@compiled
def eliminate(S, R):
    """R := S^-1 R for a small S, by Gaussian elimination with partial pivoting; S is overwritten."""
    size = S.shape[0]
    for i in range(size):
        pivot = i
        for k in range(i + 1, size):
            if abs(S[k, i]) > abs(S[pivot, i]):
                pivot = k
        for c in range(size):
            S[i, c], S[pivot, c] = S[pivot, c], S[i, c]
        for c in range(R.shape[1]):
            R[i, c], R[pivot, c] = R[pivot, c], R[i, c]
        for k in range(size):
            factor = S[k, i] / S[i, i] if k != i else 0.0
            for c in range(size):
                S[k, c] -= factor * S[i, c]
            for c in range(R.shape[1]):
                R[k, c] -= factor * R[i, c]
    for i in range(size):
        for c in range(R.shape[1]):
            R[i, c] /= S[i, i]
