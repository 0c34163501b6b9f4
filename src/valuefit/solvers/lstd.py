"""LSTD: compute the moments, then solve by one factorisation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import scipy.linalg as linalg

from valuefit.linalg.moments import CACHED_MATRIX_BYTES
from valuefit.linalg.scaled_lu import lu_solve
from valuefit.problem.exact import Exact
from valuefit.problem.gap import correction_gap, moments_gap
from valuefit.problem.saddle_point import SaddlePoint
from valuefit.solvers.solver import Estimate, Info, Solver, State, check_choice
from valuefit.typing import Array

MIN_FACTOR_RECIPROCAL_CONDITION = 1e-11  # the factorisation of a worse conditioned matrix is not used


@dataclass(frozen=True)
class LSTD(Solver):
    """Least-squares TD: form A, b, C and solve exactly.

    A theta = b by LU if A is square and ridge is 0; else (A'C^-1A + ridge I) theta = A'C^-1 b by two Cholesky
    factorisations; both with one step of iterative refinement. If a matrix is nearly singular, an eigendecomposition
    of C and an SVD give the minimiser of smallest norm, and the message reports the rank. O(n d^2 + d^3), or less if
    rows repeat. Prefer it for up to a few hundred dense features, or if there are few distinct rows.

    gram: precision of the product that gives A. On a GPU "float32" takes a fraction of the time; A theta = b is then
    solved by iterative refinement with float64 residuals. If that does not converge, the product is computed again in
    "float64", and the message reports it. Needs ridge 0 and as many dual features as features. In memory and with
    traces products are in float64 anyway.

    Bradtke and Barto 1996; Boyan 2002.
    """

    name: ClassVar[str] = "lstd"
    summary: ClassVar[str] = "direct: form the moments, factorise once"
    order: ClassVar[int] = 0

    gram: Literal["float64", "float32"] = "float64"

    def __post_init__(self) -> None:
        check_choice(self, "gram", "float64", "float32")

    def cost(self, problem: SaddlePoint, gap: float) -> Estimate:
        cost, n, d, k = problem.cost, problem.n, problem.d, problem.k
        memory = 8.0 * (k * d + k * k + 2 * d * d)
        if cost.sparse:
            # columns are usually dependent (those of a tiling sum to one), which takes eigenvalues and an SVD
            row = cost.row
            moments = cost.seconds("sparse_square") * n * row**2 * (0.2 if 8 * k * d <= CACHED_MATRIX_BYTES else 1.0)
            if problem.trace:
                moments += cost.seconds("gram_flop") * 2 * n * k * d
            factors = cost.seconds("factor_flop") * 15 * float(max(d, k)) ** 3
            return Estimate(cost.fixed_seconds + moments + factors, memory, moments)
        flops = cost.A_flops + (0.0 if cost.square or problem.identity else cost.C_flops)
        moments = cost.seconds("gram_flop") * flops
        factors = cost.seconds("factor_flop") * cost.solve_flops
        return Estimate(cost.fixed_seconds + moments + factors + cost.pass_seconds, memory, moments)

    def init(self, problem: SaddlePoint, theta: Array, w: Array) -> tuple[State, Info]:
        if self.gram == "float32" and problem.traits & {"ridge", "more dual features"}:
            raise ValueError(
                'gram="float32" refines the solution of A theta = b, which is not the minimiser with a ridge or more '
                'dual features. Use gram="float64".'
            )
        # forming A also gives b, which the loop needs before the epoch; the epoch counts the passes of both
        return State(theta, w, memory=None if self._refines(problem) else problem.A), Info(0.0)

    def _refines(self, problem: SaddlePoint) -> bool:
        return self.gram == "float32" and "device" in problem.traits and not problem.trace

    def epoch(self, problem: SaddlePoint, state: State, rng: np.random.Generator) -> tuple[State, Info]:
        work = problem.cost.flops(2 * problem.d**3 / 3)
        spent, note = 0.0, ""
        if self._refines(problem):
            refined, info = _refined(problem)
            if refined is not None:
                return refined, info._replace(passes=info.passes + work)
            spent = info.passes
            note = "Products in float32 were not precise enough; they were computed again in float64."
        square = not problem.traits & {"ridge", "more dual features"}
        factors = _fixed_point(problem, problem.A) if square else None
        spent += problem.cost.A + work
        if factors is None:
            factors = _normal_equations(problem)
            spent += (0.0 if problem.identity else problem.cost.C) + 3 * work
        if factors is None:
            spent += problem.cost.flops(10 * problem.k**3 + 20 * problem.d**2 * problem.k)
            state, info = _minimum_norm(problem)
            return state, info._replace(passes=spent, note=f"{note} {info.note}".strip())
        theta = factors.correct(problem.b, np.zeros(problem.d))
        theta = theta + factors.correct(problem.b - problem.A @ theta, theta)
        residual = problem.b - problem.A @ theta
        gap = moments_gap(problem, theta, residual, factors.inverse)
        state = State(theta, np.zeros(problem.k), gradient=(np.zeros(problem.d), -residual), memory=factors)
        if gap <= 1e-6:  # else passes over the rows compute it at once
            return state, Info(spent, gap, 0.0, finished=True, loose=True, note=note)
        state, info = self.verify(problem, state)
        return state, info._replace(passes=spent + info.passes, note=note)

    def verify(self, problem: SaddlePoint, state: State) -> tuple[State, Info]:
        """Return the same theta with its residual and gap from passes over the rows."""
        factors: Factors = state.memory
        theta = state.theta
        residual = problem.residual(theta)
        w = factors.dual(residual)
        gap = correction_gap(problem, theta, factors.correct(residual, theta), residual)
        objective = 0.5 * float(w @ residual) + 0.5 * problem.ridge * float(theta @ theta)
        gradient = problem.ridge * theta - problem.A.T @ w, -residual
        if w.any():
            gradient = gradient[0], problem.C @ w - residual
        return State(theta, w, gradient=gradient), Info(2.0, gap, objective, finished=True)


def _refined(problem: Any) -> tuple[State | None, Info]:
    """Solve A theta = b by iterative refinement: A from float32 products, residuals in float64.

    It stops when a correction is not at least 10 times smaller than the last. The state is None if the corrections
    are still large then: A is too ill-conditioned for single precision.
    """
    factors = _fixed_point(problem, problem.A_in_float32())
    passes = 1 + 0.5 * (problem.cost.A - 1)
    if factors is None:
        return None, Info(passes)
    theta, residual, last = np.zeros(problem.d), problem.b, np.inf
    while True:
        correction = factors.correct(residual, theta)
        size = float(np.linalg.norm(correction))
        small = size <= 1e-13 * float(np.linalg.norm(theta))
        if small or not size <= 0.1 * last:
            break
        theta, last = theta + correction, size
        residual = problem.residual(theta)
        passes += 1
    if not small and last > 1e-9 * float(np.linalg.norm(theta)):
        return None, Info(passes)
    gap = correction_gap(problem, theta, correction, residual)
    gradient = np.zeros(problem.d), -residual
    return State(theta, np.zeros(problem.k), gradient=gradient), Info(passes + 0.5, gap, 0.0, finished=True)


def _minimum_norm(problem: SaddlePoint) -> tuple[State, Info]:
    """The minimiser of smallest norm, by an eigendecomposition of C and an SVD."""
    exact = Exact(problem)
    note = ""
    if exact.rank < problem.d:
        note = f"A has rank {exact.rank} of {problem.d}; this is the minimiser of smallest norm."
    theta, w = exact.theta, exact.w
    gradient = problem.ridge * theta - problem.A.T @ w, problem.A @ theta - problem.b + problem.C @ w
    gap, objective = exact.gap(theta), exact.objective(theta)
    return State(theta, w, gradient=gradient), Info(0.0, gap, objective, finished=True, note=note)


class Factors(NamedTuple):
    """What a factorisation gives: (b - A theta, theta) -> correction of theta, b - A theta -> w, a bound of |A^-1|."""

    correct: Callable[[Array, Array], Array]
    dual: Callable[[Array], Array]
    inverse: float = np.inf


def _fixed_point(problem: SaddlePoint, A: Array) -> Factors | None:
    """Solutions by LU of A, or None if A is nearly singular. The dual weights are zero, because A theta = b."""
    A = problem.completed(A)
    lu, pivots, info = linalg.lapack.dgetrf(A)
    norms = np.abs(A).sum(axis=0).max(), np.abs(A).sum(axis=1).max()
    if info != 0:
        return None
    condition = linalg.lapack.dgecon(lu, norms[0], norm="1")[0], linalg.lapack.dgecon(lu, norms[1], norm="I")[0]
    if not condition[0] >= MIN_FACTOR_RECIPROCAL_CONDITION:
        return None
    # |A^-1|^2 <= |A^-1|_1 |A^-1|_inf, of which LAPACK gives estimates, nearly always within a factor of 3
    return Factors(
        lambda residual, theta: lu_solve((lu, pivots), residual),
        lambda residual: np.zeros(problem.k),
        1 / np.sqrt(condition[0] * norms[0] * condition[1] * norms[1]),
    )


def _normal_equations(problem: SaddlePoint) -> Factors | None:
    """Solutions by Cholesky factors of C and H = A'C^-1A + ridge I, or None if one of them is nearly singular."""
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

    return Factors(correct, lambda residual: np.asarray(linalg.cho_solve((L, True), residual, check_finite=False)))


def _cholesky(S: Array) -> Array | None:
    """The lower Cholesky factor of S, or None if S is nearly singular."""
    factor, info = linalg.lapack.dpotrf(S, lower=True, clean=True)
    if info != 0:
        return None
    condition = linalg.lapack.dpocon(factor, np.abs(S).sum(axis=0).max(), uplo="L")[0]
    if not condition >= MIN_FACTOR_RECIPROCAL_CONDITION:  # or NaN, where S is not finite
        return None
    return np.asarray(factor)
