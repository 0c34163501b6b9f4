"""The estimating equations at some weights, and the adjoint systems of linear functions c'theta.

Estimating equations: (theta, w) solves mean m_t = 0, m_t = (v_t (u_t'w) - ridge theta, u_t delta_t - psi_t (psi_t'w)),
with the TD error delta_t = reward_t - v_t'theta and the dual feature row psi_t (C = I: w in place of psi_t (psi_t'w)).
Jacobian of mean m_t in (theta, w): J = [-ridge I, A'; -A, -C].
Influence function: (theta, w) deviates from the fixed point (what this estimator would give with infinite data drawn
like this log) by -J^-1 mean m_t to first order, so step t adds g'm_t / n to the error of c'theta.
Adjoint system: J'g = -(c, 0), that is ridge g_theta + A'g_w = c and A g_theta - C g_w = 0.

The equations are linear, so the same g gives the error of a solver that stopped before the minimiser theta* of this
log, for any w: c'(theta - theta*) = -g'mean m_t = g_theta'(ridge theta - A'w) + g_w'(A theta - b + C w).
Nothing here reads single steps: products and moments are those of the problem, wherever its rows are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from valuefit.inference.error_estimate import ErrorEstimate
from valuefit.inference.jackknife_basis import Basis, InverseBasis, jackknife_basis
from valuefit.inference.saddle_iterations import ITERATIVE_RESIDUAL_TOL, MAX_ITERATIONS, gmres, minres
from valuefit.linalg.scaled_lu import ScaledLU, scaled_lu
from valuefit.memory import memory_limit
from valuefit.problem.exact import Exact
from valuefit.typing import Array

ALWAYS_DIRECT_FEATURES = 1500  # up to this many dual features the moments are always formed and factorised
MAX_DIRECT_PASSES = 500  # above that, only where forming and factorising them cost at most this many passes
DIRECT_RESIDUAL_TOL = 1e-6  # relative residual of a direct solution; above it the data do not determine c'theta
ATTAINED = 1e-12  # F* over F(0) - F*, below which A theta = b counts as solvable


class AdjointMethod(Enum):
    """How the adjoint system is solved."""

    LU = "LU factorisation of A where it is square and there is no ridge, else of the saddle matrix"
    PSEUDO_INVERSE = "pseudo-inverse of the Hessian, where that matrix is nearly singular"
    ITERATIVE = "GMRES or MINRES over products with the log, where the moments are too expensive"


class Adjoint(NamedTuple):
    """The solution g of the adjoint system of some c: its parts g_theta, (d,), and g_w, (k,)."""

    theta: Array
    w: Array


class AdjointSolver:
    """Solves the adjoint systems of a problem, whatever the weights; factors and solutions are kept."""

    def __init__(self, problem: Any) -> None:
        self.problem = problem
        self._adjoints: dict[bytes, Adjoint | ErrorEstimate] = {}

    @cached_property
    def method(self) -> AdjointMethod:
        """How the adjoint system is solved."""
        if not self.forms_moments:
            return AdjointMethod.ITERATIVE
        return AdjointMethod.LU if self._lu is not None else AdjointMethod.PSEUDO_INVERSE

    def adjoint(self, c: Array) -> Adjoint | ErrorEstimate:
        """The adjoint of c; an estimate without standard error where it cannot be solved for."""
        if not c.any():
            return Adjoint(np.zeros(self.problem.d), np.zeros(self.problem.k))
        key = c.tobytes()
        if key not in self._adjoints:
            self._adjoints[key] = self._solve_adjoint(c)
        return self._adjoints[key]

    def respond(self, above: Array, below: Array) -> Array:
        """Changes of theta, (d, m), where mean m_t changes by (above, below), (d, m) and (k, m): -J^-1 of them.

        Not with the iterative method.
        """
        problem = self.problem
        if self.method is AdjointMethod.LU and self._square:  # A^-1 (below + C A'^-1 above)
            if above.any():
                below = below + problem.C @ self._factor.solve_transposed(above)
            return self._factor.solve(below)
        if self.method is AdjointMethod.LU:
            return self._factor.solve(np.vstack([above, below]))[: problem.d]
        whitened = problem.C_root @ (problem.C_root.T @ below)
        return self.exact.inverse_hessian(above + problem.A.T @ whitened)

    def determines(self, rows: Array) -> Array:
        """Whether the data determine the product of theta with each of these rows, (m,)."""
        if self.problem.ridge:
            return np.ones(len(rows), bool)
        inside = np.asarray(~rows[:, self.problem.dead].any(axis=1))
        if self.method is AdjointMethod.PSEUDO_INVERSE:
            outside = np.linalg.norm(self.exact.outside(rows.T), axis=0)
            inside &= outside <= DIRECT_RESIDUAL_TOL * np.linalg.norm(rows, axis=1)
        return inside

    @property
    def factor_of_A(self) -> ScaledLU | None:
        """None where A is nearly singular, or the adjoint needs another matrix."""
        return self._lu if self._square and self.method is AdjointMethod.LU else None

    @cached_property
    def exact(self) -> Exact:
        """The exact solution from the moments, for the pseudo-inverse."""
        return Exact(self.problem)

    @cached_property
    def dual_weights(self) -> Array:
        """w at the minimiser, (k,); not by pseudo-inverse, whose w depends on theta."""
        problem = self.problem
        if self._square:
            return np.zeros(problem.k)  # A is regular with these methods
        if self.method is AdjointMethod.LU:
            return -self._factor.solve(np.concatenate([np.zeros(problem.d), problem.b]))[problem.d :]
        return self._iterative_minimiser[1]

    # ---- ridge g_theta + A' g_w = c and A g_theta - C g_w = 0 -----------------------------------------------

    @property
    def _square(self) -> bool:
        """Whether the adjoint is that of A theta = b: A'g_w = c."""
        return bool(self.problem.k == self.problem.d and not self.problem.ridge)

    @property
    def forms_moments(self) -> bool:
        """Whether the moments exist already, or are cheap enough to form and factorise."""
        problem, needed = self.problem, {"A"} if self._square else {"A", "C"}
        if problem.k <= ALWAYS_DIRECT_FEATURES or needed <= vars(problem).keys():
            return True
        size = problem.d if self._square else problem.d + problem.k
        cost = problem.cost.A if self._square else problem.cost.moments
        passes = cost + problem.cost.flops(2 / 3 * size**3)
        return bool(passes <= MAX_DIRECT_PASSES and 24 * size**2 <= memory_limit())

    @cached_property
    def _lu(self) -> ScaledLU | None:
        """LU factors of A or of the saddle matrix; None where it is nearly singular."""
        problem = self.problem
        if self._square:
            return scaled_lu(problem.completed(problem.A))
        if len(problem.dead) and not problem.ridge:
            return None
        return scaled_lu(np.block([[problem.ridge * np.eye(problem.d), problem.A.T], [problem.A, -problem.C]]))

    @property
    def _factor(self) -> ScaledLU:
        assert self._lu is not None  # with the method LU
        return self._lu

    @cached_property
    def _iterative_minimiser(self) -> tuple[Array, Array]:
        """(theta*, w*) by MINRES."""
        d = self.problem.d
        solution = minres(self.problem, np.concatenate([np.zeros(d), self.problem.b]))
        return solution[:d], -solution[d:]

    def _solve_adjoint(self, c: Array) -> Adjoint | ErrorEstimate:
        problem = self.problem
        undetermined = ErrorEstimate(None, determined=False, reason="The data do not determine this value.")
        if problem.ridge == 0 and c[problem.dead].any():
            return undetermined
        solve: Callable[[Array], Adjoint] = {
            AdjointMethod.LU: self._solve_lu,
            AdjointMethod.PSEUDO_INVERSE: self._solve_pseudo_inverse,
            AdjointMethod.ITERATIVE: self._solve_iterative,
        }[self.method]
        adjoint, size = solve(c), float(np.linalg.norm(c)) or 1.0  # it underflows for tiny rows
        iterative = self.method is AdjointMethod.ITERATIVE
        product = problem.At_dot(adjoint.w) if iterative else problem.A.T @ adjoint.w
        residual = np.linalg.norm(problem.ridge * adjoint.theta + product - c) / size
        if iterative and adjoint.theta.any():
            image = problem.C_dot(adjoint.w)
            residual = max(residual, np.linalg.norm(problem.A_dot(adjoint.theta) - image) / np.linalg.norm(image))
            # influences also depend on w*, which was computed by iteration too
            gradient = np.linalg.norm(np.concatenate(problem.B(*self._iterative_minimiser)))
            residual = max(residual, gradient / np.linalg.norm(problem.b)) if gradient else residual
        if residual <= (ITERATIVE_RESIDUAL_TOL if iterative else DIRECT_RESIDUAL_TOL):
            return adjoint
        if self.method is AdjointMethod.PSEUDO_INVERSE:
            return undetermined
        reason = (
            "The standard error needs the solution of a linear system with the transposed moments, which did not "
            f"converge in {MAX_ITERATIONS} passes. Solve with 'lstd', which forms the moments: with them it is exact, "
            "or the data are seen not to determine the value."
        )
        return ErrorEstimate(None, reason=reason)

    def _solve_lu(self, c: Array) -> Adjoint:
        if self._square:  # w = 0, so g_theta is not needed
            return Adjoint(np.zeros(self.problem.d), self._factor.solve_transposed(c))
        solution = self._factor.solve(np.concatenate([c, np.zeros(self.problem.k)]))
        return Adjoint(solution[: self.problem.d], solution[self.problem.d :])

    def _solve_pseudo_inverse(self, c: Array) -> Adjoint:
        problem = self.problem
        g_theta = self.exact.inverse_hessian(c)
        return Adjoint(g_theta, problem.C_root @ (problem.C_root.T @ (problem.A @ g_theta)))

    def _solve_iterative(self, c: Array) -> Adjoint:
        problem = self.problem
        if self._square:
            # w = 0, so g_theta is not needed, and A' g_w = c is half the system with a far better condition
            return Adjoint(np.zeros(problem.d), gmres(problem, c, self._combined_adjoints(c)))
        solution = minres(problem, np.concatenate([c, np.zeros(problem.k)]))
        return Adjoint(solution[: problem.d], solution[problem.d :])

    def _combined_adjoints(self, c: Array) -> Array | None:
        """g_w of the combination of vectors with known adjoints that is closest to c; None where there are none.

        The mean return depends on theta nearly as the mean value over the starts does.
        """
        known = [(np.frombuffer(key), one.w) for key, one in self._adjoints.items() if isinstance(one, Adjoint)]
        if not known:
            return None
        vectors, solutions = map(np.array, zip(*known, strict=True))
        return np.asarray(np.linalg.lstsq(vectors.T, c)[0] @ solutions)


@dataclass(frozen=True, eq=False)
class Equations:
    """The estimating equations of a problem at some weights: the minimiser, or an iterate of a solver."""

    solver: AdjointSolver
    theta: Array

    @classmethod
    def of(cls, problem: Any, theta: Array) -> Equations:
        """The equations of a problem, with a solver of their own."""
        return cls(AdjointSolver(problem), theta)

    def at(self, theta: Array) -> Equations:
        """Return these equations at other weights."""
        return Equations(self.solver, theta)

    def without_ridge(self) -> Equations:
        """The equations of the problem without its ridge, at these weights."""
        return Equations.of(self.problem.with_ridge(0.0), self.theta)

    @property
    def problem(self) -> Any:
        return self.solver.problem

    @property
    def iterative(self) -> bool:
        """Whether adjoints are iterated: moments are not formed, and nothing else can be solved for."""
        return self.solver.method is AdjointMethod.ITERATIVE

    @cached_property
    def w(self) -> Array:
        """The dual weights at the minimiser, C^+ (b - A theta); zero where A theta = b."""
        solver, problem = self.solver, self.problem
        if solver.method is not AdjointMethod.PSEUDO_INVERSE:
            return solver.dual_weights
        exact = solver.exact
        if not problem.ridge and exact.objective(exact.theta) <= ATTAINED * exact.scale:
            return np.zeros(problem.k)
        return np.asarray(problem.C_root @ (problem.C_root.T @ (problem.b - problem.A @ self.theta)))

    @cached_property
    def residual(self) -> tuple[Array, Array]:
        """-mean m_t at (theta, w): (ridge theta - A'w, A theta - b + C w)."""
        problem, theta, w = self.problem, self.theta, self.w
        if self.iterative:
            above, below = problem.B(theta, w)
            return above, below
        below = problem.A @ theta - problem.b
        if not w.any():
            return problem.ridge * theta, below
        return problem.ridge * theta - problem.A.T @ w, below + problem.C @ w

    def excess(self, adjoint: Adjoint) -> float:
        """c'(theta - theta*)."""
        return float(adjoint.theta @ self.residual[0] + adjoint.w @ self.residual[1])

    def to_minimum(self, c: Array) -> float | ErrorEstimate:
        """c'(theta* - theta); an estimate without standard error where it is unknown."""
        adjoint = self.solver.adjoint(c)
        return -self.excess(adjoint) if isinstance(adjoint, Adjoint) else adjoint

    def solver_errors(self, vectors: list[Array]) -> list[float | None]:
        """|c'(theta - theta*)| of each c, without standard errors; None where it is unknown."""
        adjoints = [self.solver.adjoint(c) for c in vectors]
        return [abs(self.excess(adjoint)) if isinstance(adjoint, Adjoint) else None for adjoint in adjoints]

    @cached_property
    def basis(self) -> Basis | InverseBasis:
        """The coordinates of the jackknife. Not with the iterative method."""
        return jackknife_basis(self.problem, self.w, self.solver.factor_of_A)

    @property
    def to_minimiser(self) -> Array:
        """theta* - theta, (d,). Not with the iterative method."""
        return self.solver.respond(*(-part[:, None] for part in self.residual))[:, 0]
