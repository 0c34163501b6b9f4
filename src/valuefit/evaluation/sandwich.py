"""Standard errors from the log itself: the sandwich covariance of the minimiser, clustered by episode.

theta and w solve mean psi_t = 0 with psi_t = (v_t (u_t'w) - ridge theta, u_t delta_t - psi_t (psi_t'w)), delta_t the TD
error, so theta moves with the log as -J^-1 mean psi_t, where J is the derivative of that mean. Its saddle matrix holds
A and C, so that their own noise counts: ridge, dual features and metric need no formula each. Steps of an
episode depend on one another; episodes do not. Hence influences are summed by episode before they are squared.

What such an interval covers is the fixed point: the answer of the same features, trace and ridge on endless data
drawn as this log was. How far that lies from the policy's true value is a matter of the features, and not covered.

The system being linear, the same adjoint (g_theta, g_w) also tells what a solver that stopped early left undone:
c'(theta - theta*) = g_theta'(ridge theta - A'w) + g_w'(A theta - b + C w), whatever w.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg as linalg
import scipy.sparse.linalg as iterative
from scipy.special import stdtrit

from valuefit.engine.statistical_tolerance import ENOUGH_STEPS, PART, clusters
from valuefit.memory import memory_limit
from valuefit.problem.exact import Exact
from valuefit.problem.problem import Problem
from valuefit.rows.storage import Rows
from valuefit.typing import Array

DENSE = 1500  # features up to which the saddle matrix is always factorised
DENSE_PASSES = 200  # beyond, where forming and factorising it is worth no more than this
TRUST = 1e-12  # reciprocal condition number below which a factorisation is not relied on
SOLVED = 1e-6  # relative defect up to which a direct solution counts as one: above, the data leave the value open
NEAR = 1e-2  # and an iterative one: standard errors were within 1% of the exact ones at that, wherever compared
PRODUCTS = 600  # with the log that an iterative solution may take

LU = "factorised"
SPECTRUM = "by singular values"
ITERATION = "iterated"


@dataclass(frozen=True)
class Spread:
    """How far c'theta may be off: `standard_error` (None where it cannot be told, and then `reason` says why).

    degrees: of freedom of Student's t, one less than there are clusters. determined: False where the data leave
    c'theta open, so that its value is a convention (the smallest weights) and no error bar applies. solver_error:
    |c'(theta - theta*)|, how far the solver is from where it would end; None where it cannot be told.
    """

    standard_error: float | None
    degrees: int
    determined: bool = True
    reason: str = ""
    solver_error: float | None = None

    def interval(self, estimate: float, level: float) -> tuple[float, float] | None:
        """estimate -+ (t * standard_error + solver_error), two-sided at this level."""
        if self.standard_error is None:
            return None
        reach = float(stdtrit(self.degrees, 0.5 + level / 2)) * self.standard_error + (self.solver_error or 0.0)
        return estimate - reach, estimate + reach

    @property
    def allowed(self) -> float | None:
        """The solver error that does not matter yet, a tenth of the standard error; None where that is unknown."""
        return None if self.standard_error is None else PART * self.standard_error

    @property
    def unfinished(self) -> float:
        """solver_error over what is allowed: up to 1 it does not matter; 0 where either is unknown."""
        if not self.solver_error or self.allowed is None:
            return 0.0
        return self.solver_error / self.allowed if self.allowed else np.inf


class Sandwich:
    """Standard errors of linear functions c'theta of the minimiser, for one log.

    The variance is G/(G-1) times the sum over the G episodes of (sum of the episode's influences)^2. One adjoint
    system is solved for each c; all influences then follow in O(n d). A log of one episode is cut into about sqrt(n)
    consecutive blocks that are taken as independent (batch means), which holds when the process forgets
    within a block; `blocks` tells.

    problem: what was solved. theta: its minimiser, or where a solver is on the way to it. episode: an id for every
    step.
    """

    def __init__(self, problem: Problem, theta: Array, episode: Array) -> None:
        self.problem, self.theta = problem, theta
        self.cluster, self.clusters, self.blocks = clusters(episode)
        self._known: dict[bytes, tuple[Array, Array] | Spread] = {}  # adjoints, which do not depend on theta

    def at(self, theta: Array) -> Sandwich:
        """The same at other weights; what was factorised or solved for is shared."""
        other = copy.copy(self)
        other.theta = theta
        other.__dict__.pop("_left", None)
        if self.way == SPECTRUM:
            other.__dict__["_exact"] = self._exact
            other.__dict__.pop("w", None)
        return other

    def error(self, c: Array, starts: Array | None = None) -> Spread:
        """The spread of c'theta, c (d,). starts: what every step adds by being part of the sample behind c, (n,)."""
        return self.errors([(c, starts)])[0]

    def errors(self, numbers: list[tuple[Array, Array | None]]) -> list[Spread]:
        """`error` of each (c, starts), the rows being read once for all of them."""
        if self.clusters < 2:
            reason = (
                f"One episode of {self.problem.n} steps is too short to cut into blocks: "
                f"at least {ENOUGH_STEPS} steps, or a second episode, are needed."
            )
            return [Spread(None, 0, reason=reason) for _ in numbers]
        adjoints = [self._known_adjoint(c) for c, _ in numbers]
        solved = [adjoint for adjoint in adjoints if not isinstance(adjoint, Spread)]
        influences = self._influence(*(np.column_stack(part) for part in zip(*solved, strict=True))) if solved else []
        found, place = [], 0
        for adjoint, (_, starts) in zip(adjoints, numbers, strict=True):
            if isinstance(adjoint, Spread):
                found.append(adjoint)
                continue
            influence = influences[place] if starts is None else influences[place] + starts
            place += 1
            sums = np.bincount(self.cluster, weights=influence, minlength=self.clusters)
            variance = self.clusters / (self.clusters - 1) * float(sums @ sums)
            found.append(Spread(float(np.sqrt(variance)), self.clusters - 1, solver_error=self._off(adjoint)))
        return found

    def solver_errors(self, numbers: list[Array]) -> list[float | None]:
        """|c'(theta - theta*)| of each c, without its standard error; None where it cannot be told."""
        adjoints = [self._known_adjoint(c) for c in numbers]
        return [None if isinstance(adjoint, Spread) else self._off(adjoint) for adjoint in adjoints]

    def passes(self, numbers: int) -> tuple[float, float]:
        """Passes that solver errors of this many numbers are worth, and standard errors besides.

        Adjoint systems are not counted: intervals need their solutions anyway, and the moments with them.
        """
        columns = 1 + numbers * (2 if self.w.any() else 1)
        each = 0.25 if self.problem.phi.sparse else self.problem.cost.flops(2.0 * self.problem.phi.stored)
        return (1.0 if self.way == ITERATION else 0.0), 0.5 + each * columns

    def _off(self, adjoint: tuple[Array, Array]) -> float:
        return abs(float(adjoint[0] @ self._left[0] + adjoint[1] @ self._left[1]))

    @cached_property
    def _left(self) -> tuple[Array, Array]:
        """What is left of the saddle equations at (theta, w): (ridge theta - A'w, A theta - b + C w)."""
        problem, theta, w = self.problem, self.theta, self.w
        if self.way == ITERATION:
            return problem.B(theta, w)
        A, b, C = problem.moments()
        return problem.ridge * theta - A.T @ w, A @ theta - b + C @ w

    def _influence(self, g_theta: Array, g_w: Array) -> list[Array]:
        """(g_theta, g_w)'psi_t / n for every step and each column: scalars a step, by the recurrence of the trace."""
        problem, w = self.problem, self.w
        p, dual = problem.phi.dot(self.theta), w.any()
        delta = problem.reward - p[problem.now] + problem.discount * p[problem.next]
        seen = _products(problem.psi, g_w)
        if dual:
            x, y = _products(problem.phi, g_theta), problem.psi.dot(w)
            along = self._along_u(y)
        found = []
        for column, q in enumerate(seen.T):
            total = self._along_u(q) * delta
            if dual:
                total += (x[problem.now, column] - problem.discount * x[problem.next, column]) * along
                total -= float(g_w[:, column] @ w) if problem.identity else q[problem.now] * y[problem.now]
            total -= problem.ridge * float(g_theta[:, column] @ self.theta)
            found.append(np.asarray(total / problem.n))
        return found

    def _along_u(self, values: Array) -> Array:
        """u_t'x of every step, from Psi x."""
        return self.problem.forward(values[self.problem.now])

    # ---- the adjoint: ridge g_theta + A' g_w = c and A g_theta - C g_w = 0 ----------------------------------

    @cached_property
    def way(self) -> str:
        """How the adjoint is solved."""
        if not self._dense:
            return ITERATION
        return LU if self._factors is not None else SPECTRUM

    @property
    def _dense(self) -> bool:
        """Whether the moments are there already, or cheap enough to be made."""
        problem, size = self.problem, self.problem.d + self.problem.k
        if problem.k <= DENSE or {"A", "C"} <= vars(problem).keys():
            return True
        cost = problem.cost.moments + problem.cost.flops(2.0 * size**3)
        return cost <= DENSE_PASSES and 24 * size**2 <= memory_limit()

    @cached_property
    def w(self) -> Array:
        """The dual weights at the minimiser, C^+ (b - A theta); zero at a fixed point."""
        problem = self.problem
        if self.way == SPECTRUM:
            return np.asarray(problem.C_root @ (problem.C_root.T @ (problem.b - problem.A @ self.theta)))
        if problem.k == problem.d and not problem.ridge:
            return np.zeros(problem.k)  # A is square and, here, regular
        if self.way == LU:
            right = np.concatenate([np.zeros(problem.d), problem.b])
            return np.asarray(-linalg.lu_solve(self._factors, right, check_finite=False)[problem.d :])
        return self._iterated[1]

    @cached_property
    def _iterated(self) -> tuple[Array, Array]:
        """theta* and w* by iteration."""
        d = self.problem.d
        found = _minres(self.problem, np.concatenate([np.zeros(d), self.problem.b]))
        return found[:d], -found[d:]

    @cached_property
    def _factors(self) -> tuple[Array, Array] | None:
        """LU of the saddle matrix, or None where it is nearly singular."""
        if len(self.problem.dead) and not self.problem.ridge:
            return None
        A, _, C = self.problem.moments()
        saddle = np.block([[self.problem.ridge * np.eye(self.problem.d), A.T], [A, -C]])
        lu, pivots, info = linalg.lapack.dgetrf(saddle)
        if info != 0 or linalg.lapack.dgecon(lu, np.abs(saddle).sum(axis=0).max())[0] < TRUST:
            return None
        return lu, pivots

    @cached_property
    def _exact(self) -> Exact:
        return Exact(self.problem)

    def _known_adjoint(self, c: Array) -> tuple[Array, Array] | Spread:
        if not c.any():
            return np.zeros(self.problem.d), np.zeros(self.problem.k)
        key = c.tobytes()
        if key not in self._known:
            self._known[key] = self._adjoint(c)
        return self._known[key]

    def _adjoint(self, c: Array) -> tuple[Array, Array] | Spread:
        problem = self.problem
        open_ = Spread(None, self.clusters - 1, determined=False, reason="The data do not determine this value.")
        if problem.ridge == 0 and c[problem.dead].any():
            return open_
        solve: Callable[[Array], tuple[Array, Array]] = {
            LU: self._by_factors, SPECTRUM: self._by_spectrum, ITERATION: self._by_iteration,
        }[self.way]  # fmt: skip
        g_theta, g_w = solve(c)
        defect = np.linalg.norm(problem.ridge * g_theta + problem.At_dot(g_w) - c) / np.linalg.norm(c)
        if self.way == ITERATION and g_theta.any():
            image = problem.C_dot(g_w)
            defect = max(defect, np.linalg.norm(problem.A_dot(g_theta) - image) / np.linalg.norm(image))
            off = np.linalg.norm(np.concatenate(problem.B(*self._iterated)))  # of w*, which influences rest on
            defect = max(defect, off / np.linalg.norm(problem.b)) if off else defect
        if defect <= (NEAR if self.way == ITERATION else SOLVED):
            return g_theta, g_w
        if self.way == SPECTRUM:
            return open_
        reason = (
            "The standard error needs a linear system with the transposed moments, and its solution was not reached "
            f"in {PRODUCTS} passes: the data may leave the value open. Use fewer features, or solve with 'lstd'."
        )
        return Spread(None, self.clusters - 1, reason=reason)

    def _by_factors(self, c: Array) -> tuple[Array, Array]:
        d = self.problem.d
        solution = linalg.lu_solve(self._factors, np.concatenate([c, np.zeros(self.problem.k)]), check_finite=False)
        return solution[:d], solution[d:]

    def _by_spectrum(self, c: Array) -> tuple[Array, Array]:
        problem = self.problem
        g_theta = self._exact.inverse_hessian(c)
        return g_theta, problem.C_root @ (problem.C_root.T @ (problem.A @ g_theta))

    def _by_iteration(self, c: Array) -> tuple[Array, Array]:
        problem = self.problem
        if problem.k == problem.d and not problem.ridge:
            # w = 0, so g_theta is not looked at, and A' g_w = c is half the system at a far better condition
            return np.zeros(problem.d), _gmres(problem, c)
        solution = _minres(problem, np.concatenate([c, np.zeros(problem.k)]))
        return solution[: problem.d], solution[problem.d :]


def _diagonal(problem: Problem, columns: int) -> Array:
    """The diagonal of C, 1 where it is zero: tiles and the like are nearly orthogonal."""
    if problem.identity:
        return np.ones(columns)
    rows = problem.psi if columns == problem.k else problem.phi
    found = rows.column_squares(problem.visits) / problem.n
    return np.where(found > 0, found, 1.0)


def _products(rows: Rows, vectors: Array) -> Array:
    """Rows times each column, the rows being read once."""
    out = np.empty((rows.shape[0], vectors.shape[1]))
    for start, block in rows.blocks():
        out[start : start + block.shape[0]] = block @ vectors
    return out


def _operator(size: int, product: Callable[[Array], Array]) -> Any:
    return iterative.LinearOperator((size, size), matvec=lambda x: product(np.ravel(x)), dtype=np.float64)


def _gmres(problem: Problem, c: Array) -> Array:
    """A'^-1 c by GMRES over products with the log, scaled by the diagonal of C."""
    scale = _diagonal(problem, problem.k)
    restart = 60
    solution, _ = iterative.gmres(
        _operator(problem.k, problem.At_dot), c, rtol=NEAR / 100, restart=restart, maxiter=max(1, PRODUCTS // restart),
        M=_operator(problem.k, lambda x: x / scale),
    )  # fmt: skip
    return np.asarray(solution)


def _minres(problem: Problem, right: Array) -> Array:
    """The symmetric saddle system [ridge, A'; A, -C] x = right by MINRES over products with the log."""
    d = problem.d
    scale = np.concatenate([_diagonal(problem, d) + problem.ridge, _diagonal(problem, problem.k)])

    def product(x: Array) -> Array:
        above = problem.ridge * x[:d] + problem.At_dot(x[d:])
        return np.concatenate([above, problem.A_dot(x[:d]) - problem.C_dot(x[d:])])

    solution, _ = iterative.minres(
        _operator(len(right), product), right, rtol=NEAR / 1e5, maxiter=PRODUCTS,
        M=_operator(len(right), lambda x: x / scale),
    )  # fmt: skip
    return np.asarray(solution)
