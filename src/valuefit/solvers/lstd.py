"""LSTD: the moments, then one factorisation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.linalg as linalg

from valuefit.exact import Exact, correction_gap
from valuefit.problem import Problem
from valuefit.solver import Solver, State
from valuefit.transitions import Array

TRUST = 1e-11  # reciprocal condition number below which a factorisation is not relied on


@dataclass(frozen=True)
class LSTD(Solver):
    """Least-squares TD: form A, b, C and solve exactly.

    A theta = b by LU where A is square and ridge is 0; else (A'C^-1A + ridge I) theta = A'C^-1 b by two Cholesky
    factorisations; one step of refinement each. Where these are nearly singular, eigenvalues of C and an SVD give
    the minimiser of smallest norm, and the message tells the rank. O(n d^2 + d^3); rows that repeat are counted
    first. Prefer it up to a few hundred dense features, or whenever distinct rows are few.

    Bradtke and Barto 1996; Boyan 2002.
    """

    name: ClassVar[str] = "lstd"
    summary: ClassVar[str] = "direct: form the moments, factorise once"
    order: ClassVar[int] = 0

    def init(self, problem: Problem, theta: Array, w: Array) -> tuple[State, float]:
        return State(theta, w), 0.0

    def epoch(self, problem: Problem, state: State, rng: np.random.Generator) -> tuple[State, float]:
        passes = problem.moment_passes + problem.passes(2 * problem.d**3)
        square = not problem.traits & {"ridge", "more dual features"}
        factors = (_fixed_point(problem) if square else None) or _normal_equations(problem)
        if factors is None:
            return _of_smallest_norm(problem), passes + problem.passes(
                10 * problem.k**3 + 20 * problem.d**2 * problem.k
            )
        correct, dual = factors
        theta = correct(problem.b, np.zeros(problem.d))
        theta = theta + correct(problem.b - problem.A @ theta, theta)
        residual = problem.residual(theta)
        w = dual(residual)
        gap = correction_gap(problem, theta, correct(residual, theta))
        objective = 0.5 * float(w @ residual) + 0.5 * problem.ridge * float(theta @ theta)
        return State(theta, w, gap=gap, objective=objective, finished=True), passes + 4


def _of_smallest_norm(problem: Problem) -> State:
    exact = Exact(problem)
    note = ""
    if exact.rank < problem.d:
        note = (
            f"A has rank {exact.rank} of {problem.d}; this is the minimiser of smallest norm. "
            "Features whose scales differ by more than a million look dependent: rescale such."
        )
    theta = exact.theta
    return State(theta, exact.w, gap=exact.gap(theta), objective=exact.objective(theta), finished=True, note=note)


# What a factorisation offers: (b - A theta, theta) -> correction of theta, and b - A theta -> w.
Factors = tuple[Callable[[Array, Array], Array], Callable[[Array], Array]]


def _fixed_point(problem: Problem) -> Factors | None:
    """LU of A, or None where A is nearly singular. At A theta = b the dual weights are zero."""
    lu, pivots, info = linalg.lapack.dgetrf(problem.A)
    if info != 0 or linalg.lapack.dgecon(lu, np.abs(problem.A).sum(axis=0).max())[0] < TRUST:
        return None
    return (
        lambda residual, theta: linalg.lu_solve((lu, pivots), residual, check_finite=False),
        lambda residual: np.zeros(problem.k),
    )


def _normal_equations(problem: Problem) -> Factors | None:
    """Cholesky of C and of H = A'C^-1A + ridge I, or None where either is nearly singular."""
    L = _cholesky(problem.C)
    if L is None:
        return None
    M = linalg.solve_triangular(L, problem.A, lower=True, check_finite=False)
    H = M.T @ M
    H[np.diag_indices_from(H)] += problem.ridge
    R = _cholesky(H)
    if R is None:
        return None

    def correct(residual: Array, theta: Array) -> Array:
        whitened = linalg.solve_triangular(L, residual, lower=True, check_finite=False)
        gradient = M.T @ whitened - problem.ridge * theta
        return np.asarray(linalg.cho_solve((R, True), gradient, check_finite=False))

    return correct, lambda residual: np.asarray(linalg.cho_solve((L, True), residual, check_finite=False))


def _cholesky(S: Array) -> Array | None:
    factor, info = linalg.lapack.dpotrf(S, lower=True, clean=True)
    if info != 0 or linalg.lapack.dpocon(factor, np.abs(S).sum(axis=0).max(), uplo="L")[0] < TRUST:
        return None
    return np.asarray(factor)
