"""Influence functions of linear functions c'theta, and their sandwich covariance (CR1), clustered by episode.

Estimating equations: (theta, w) solves mean m_t = 0, m_t = (v_t (u_t'w) - ridge theta, u_t delta_t - psi_t (psi_t'w)),
with the TD error delta_t = reward_t - v_t'theta and the dual feature row psi_t (C = I: w in place of psi_t (psi_t'w)).
Jacobian of mean m_t in (theta, w): J = [-ridge I, A'; -A, -C].
Influence function: (theta, w) deviates from the fixed point (what this estimator would give with infinite data drawn
like this log) by -J^-1 mean m_t to first order, so step t adds g'm_t / n to the error of c'theta.
Adjoint system: J'g = -(c, 0), that is ridge g_theta + A'g_w = c and A g_theta - C g_w = 0.
Cluster sums: steps of one episode are dependent, episodes are not, so influences are summed by episode, then squared.

An interval covers the fixed point, not the policy's true value: the difference between them depends on the features.
The equations are linear, so the same g gives the error of a solver that stopped before the minimiser theta* of this
log, for any w: c'(theta - theta*) = -g'mean m_t = g_theta'(ridge theta - A'w) + g_w'(A theta - b + C w).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np

from valuefit.data.validation import episode_starts
from valuefit.inference.cluster_products import u_squares
from valuefit.inference.clusters import MIN_BLOCK_STEPS, clusters
from valuefit.inference.errors import ErrorEstimate, Influence, LinearFunction
from valuefit.inference.saddle_iterations import ITERATIVE_RESIDUAL_TOL, MAX_ITERATIONS, gmres, minres
from valuefit.inference.signs import random_signs
from valuefit.linalg.scaled_lu import ScaledLU, scaled_lu
from valuefit.memory import memory_limit
from valuefit.problem.exact import Exact
from valuefit.problem.problem import Problem
from valuefit.rows.storage import Rows
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


class Sandwich:
    """Influences and clustered standard errors (CR1) of linear functions c'theta for one log.

    The variance is G/(G-1) times the sum over the G episodes of (sum of g'm_t / n over the episode)^2. Each c needs one
    adjoint system; the influences of all steps then take O(n d). A log of one episode is cut into about sqrt(n)
    consecutive blocks that are treated as independent (batch means), which is valid if correlations decay within
    a block; `blocks` is then True.

    problem: what was solved. theta: its minimiser, or an iterate of a solver. episode: the episode of each step, (n,).
    group: of each step, if episodes of one group are dependent; groups are then the clusters, and are never cut.
    """

    def __init__(self, problem: Any, theta: Array, episode: Array, group: Array | None = None) -> None:
        self.problem, self.theta, self.episode, self.grouped = problem, theta, episode, group is not None
        self.cluster, self.clusters, self.blocks = clusters(episode if group is None else group)
        self._adjoints: dict[bytes, tuple[Array, Array] | ErrorEstimate] = {}  # they do not depend on theta
        self._dual_products: tuple[bytes, Array] | None = None  # g_w and Psi g_w of the last influences; nor do they

    def with_clusters(self, cluster: Array, *, blocks: bool) -> Sandwich:
        """Return the sandwich for other clusters of steps, (n,), numbered from 0."""
        other = copy.copy(self)
        other.cluster, other.clusters, other.blocks = cluster, int(cluster.max()) + 1, blocks
        return other

    def without_ridge(self) -> Sandwich:
        """The sandwich of the problem without its ridge, at these weights and for these clusters."""
        other = Sandwich(self.problem.with_ridge(0.0), self.theta, self.episode)
        return other.with_clusters(self.cluster, blocks=self.blocks)

    def at(self, theta: Array) -> Sandwich:
        """Return the sandwich for other weights; factorisations and adjoints are shared."""
        method, other = self.method, copy.copy(self)  # the method first, so that the copy has its factorisation
        other.theta = theta
        for name in ("saddle_residual", "values", "td_errors"):
            other.__dict__.pop(name, None)
        if method is AdjointMethod.PSEUDO_INVERSE:
            other.__dict__["_exact"] = self._exact
            other.__dict__.pop("w", None)
        return other

    def error(self, function: LinearFunction) -> ErrorEstimate:
        """The errors of one number, by CR1."""
        return self.errors([function])[0]

    def errors(self, functions: list[LinearFunction]) -> list[ErrorEstimate]:
        """`error` of each; the rows are read once for all of them."""
        found = []
        for influence in self.influences(functions):
            if isinstance(influence, ErrorEstimate):
                found.append(influence)
                continue
            sums = self.contributions(influence)
            size = float(np.linalg.norm(sums))
            found.append(ErrorEstimate(size, influence.effective_clusters, solver_error=influence.solver_error))
        return found

    def contributions(self, influence: Influence) -> Array:
        """The part of each cluster in the error, (clusters,); the norm of this vector is the standard error."""
        sums = np.bincount(self.cluster, weights=influence.steps, minlength=self.clusters)
        return np.asarray(np.sqrt(self.clusters / (self.clusters - 1)) * sums)

    def influences(self, functions: list[LinearFunction]) -> list[Influence | ErrorEstimate]:
        """The influences of each; an estimate without standard error where they are unknown."""
        if self.clusters < 2:
            reason = (
                f"One episode of {self.problem.n} steps is too short to cut into blocks: "
                f"at least {MIN_BLOCK_STEPS} steps, or a second episode, are needed."
            )
            return [ErrorEstimate(None, reason=reason) for _ in functions]
        adjoints = [self._adjoint(function.c) for function in functions]
        solved = [adjoint for adjoint in adjoints if not isinstance(adjoint, ErrorEstimate)]
        if not solved:
            return [adjoint for adjoint in adjoints if isinstance(adjoint, ErrorEstimate)]
        steps, squares = self._influences(*(np.column_stack(part) for part in zip(*solved, strict=True)))
        scale = 1.0 if self.w.any() else float(np.mean(self.td_errors**2))
        found: list[Influence | ErrorEstimate] = []
        for adjoint, function in zip(adjoints, functions, strict=True):
            if isinstance(adjoint, ErrorEstimate):
                found.append(adjoint)
                continue
            influence = steps.pop(0)
            expected = scale * np.bincount(self.cluster, weights=squares.pop(0), minlength=self.clusters)
            if function.first is not None:
                deviation = self.start_deviations(function)
                influence[function.first] += deviation
                starts = np.bincount(self.cluster[function.first], minlength=self.clusters)
                expected = expected + starts * (float(deviation @ deviation) / function.starts)
            found.append(Influence(influence, expected, self._solver_error(adjoint)))
        return found

    def start_deviations(self, function: LinearFunction) -> Array:
        """The values at the starts minus their mean, over the number of starts."""
        values = np.asarray(function.rows @ self.theta).ravel()
        mean = values.mean() if function.total is None else float(function.c @ self.theta)
        return np.asarray((values - mean) / function.starts)

    def of_part(self, problem: Problem, episode: Array) -> Sandwich:
        """Return the sandwich of one shard; `problem` has its steps, but the number of steps and moments of the log.

        Factorisations, adjoints and dual weights are shared.
        """
        other = copy.copy(self)
        other.problem, other.episode, other.blocks, other._dual_products = problem, episode, False, None
        other.cluster = np.cumsum(episode_starts(episode)) - 1
        other.clusters = int(other.cluster[-1]) + 1
        return other

    def solver_errors(self, vectors: list[Array]) -> list[float | None]:
        """|c'(theta - theta*)| of each c, without standard errors; None where it is unknown."""
        adjoints = [self._adjoint(c) for c in vectors]
        return [None if isinstance(adjoint, ErrorEstimate) else self._solver_error(adjoint) for adjoint in adjoints]

    def to_minimum(self, c: Array) -> float | ErrorEstimate:
        """c'(theta* - theta); an estimate without standard error where it is unknown."""
        adjoint = self._adjoint(c)
        return adjoint if isinstance(adjoint, ErrorEstimate) else -self._excess(adjoint)

    def passes(self, count: int) -> tuple[float, float]:
        """The cost in passes of this many solver errors, and the additional cost of their standard errors.

        Adjoint systems and moments are not counted, because the final intervals need them anyway.
        """
        columns = 1 + count * (2 if self.w.any() else 1)
        each = 0.25 if self.problem.phi.sparse else self.problem.cost.flops(2.0 * self.problem.phi.stored)
        return (1.0 if self.method is AdjointMethod.ITERATIVE else 0.0), 0.5 + each * columns

    def _solver_error(self, adjoint: tuple[Array, Array]) -> float:
        return abs(self._excess(adjoint))

    def _excess(self, adjoint: tuple[Array, Array]) -> float:
        """c'(theta - theta*)."""
        return float(adjoint[0] @ self.saddle_residual[0] + adjoint[1] @ self.saddle_residual[1])

    @cached_property
    def saddle_residual(self) -> tuple[Array, Array]:
        """-mean m_t at (theta, w): (ridge theta - A'w, A theta - b + C w)."""
        problem, theta, w = self.problem, self.theta, self.w
        if self.method is AdjointMethod.ITERATIVE:
            return problem.B(theta, w)
        below = problem.A @ theta - problem.b
        if not w.any():
            return problem.ridge * theta, below
        return problem.ridge * theta - problem.A.T @ w, below + problem.C @ w

    @property
    def to_minimiser(self) -> Array:
        """theta* - theta, (d,). Not with the iterative method."""
        return self.respond(*(-part[:, None] for part in self.saddle_residual))[:, 0]

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
        return self._exact.inverse_hessian(above + problem.A.T @ whitened)

    def determines(self, rows: Array) -> Array:
        """Whether the data determine the product of theta with each of these rows, (m,)."""
        if self.problem.ridge:
            return np.ones(len(rows), bool)
        inside = np.asarray(~rows[:, self.problem.dead].any(axis=1))
        if self.method is AdjointMethod.PSEUDO_INVERSE:
            outside = np.linalg.norm(self._exact.outside(rows.T), axis=0)
            inside &= outside <= DIRECT_RESIDUAL_TOL * np.linalg.norm(rows, axis=1)
        return inside

    def changes(self, weight: Array, error: Array | None = None) -> Array:
        """First-order changes of theta, (clusters, d), by the sums of weight_t m_t / n with these TD errors, (n,).

        error: the TD errors at theta if None.
        """
        problem, w = self.problem, self.w
        weights = np.bincount(self.cluster, weight, self.clusters)
        above = -problem.ridge * np.outer(self.theta, weights)
        below = problem.backward(weight * (self.td_errors if error is None else error))
        if w.any():
            psi_w = problem.psi.dot(w)[problem.now]
            u_w = weight * problem.forward(psi_w)
            above += self._sums(problem.phi, problem.now, u_w)
            above -= self._sums(problem.phi, problem.next, problem.discount * u_w)
            below = below if problem.identity else below - weight * psi_w
        total = self._sums(problem.psi, problem.now, below)
        if problem.identity:
            total -= np.outer(w, weights)
        return self.respond(above / problem.n, total / problem.n).T

    def sign_changes(self, draws: int, first_step: int = 0) -> Array:
        """`changes` by steps with random signs, (draws, clusters, d). first_step: its number, if this is a part.

        The expected square of their product with any c is its `Influence.expected`, up to a common factor.
        """
        steps = len(self.cluster)
        error = None if self.w.any() else np.ones(steps)
        signs = (random_signs((0, draw), first_step, first_step + steps)[:, 0] for draw in range(draws))
        return np.array([self.changes(sign, error) for sign in signs])

    @cached_property
    def values(self) -> Array:
        """Phi theta."""
        return self.problem.phi.dot(self.theta)

    @cached_property
    def td_errors(self) -> Array:
        problem, value = self.problem, self.values
        return np.asarray(problem.reward - value[problem.now] + problem.discount * value[problem.next])

    def _sums(self, rows: Rows, index: Array, weights: Array) -> Array:
        """The sum of weighted rows over each cluster, (columns, clusters)."""
        return rows.group_sums(index, weights, self.cluster, self.clusters).T

    def _influences(self, g_theta: Array, g_w: Array) -> tuple[list[Array], list[Array]]:
        """g'm_t / n of every step, (n,), for each column of g_theta (d, columns) and g_w (k, columns), and its square.

        Where w = 0 the square is that of g_w'u_t / n, to be multiplied by the mean of the squared TD errors, which is
        less noisy than each of them.
        """
        problem, w, psi_g = self.problem, self.w, self._psi_products(g_w)
        dual, delta = w.any(), self.td_errors
        if dual:
            phi_g, psi_w = problem.phi.matmul(g_theta), problem.psi.dot(w)
            u_w = self._u_products(psi_w)
        influences, squares = [], []
        for column, q in enumerate(psi_g.T):
            u_g = self._u_products(q)
            total = u_g * delta
            if dual:
                total += (phi_g[problem.now, column] - problem.discount * phi_g[problem.next, column]) * u_w
                total -= float(g_w[:, column] @ w) if problem.identity else q[problem.now] * psi_w[problem.now]
            total -= problem.ridge * float(g_theta[:, column] @ self.theta)
            influences.append(np.asarray(total / problem.n))
            squares.append((influences[-1] if dual else u_g / problem.n) ** 2)
        return influences, squares

    def expected_sums(self, g_theta: Array, g_w: Array) -> Array:
        """`Influence.expected` for each column of g_theta (d, columns) and g_w (k, columns), up to a factor of its own.

        (columns, clusters). Cheaper than `_influences`, where w = 0; without starts.
        """
        if self.w.any():
            squares = self._influences(g_theta, g_w)[1]
        elif self.problem.large and self.problem.psi.on_device is None:
            return u_squares(self.problem, self.cluster, self.clusters, g_w)
        else:
            squares = [self._u_products(q) ** 2 for q in np.ascontiguousarray(self.problem.psi.matmul(g_w).T)]
        return np.array([np.bincount(self.cluster, square, self.clusters) for square in squares])

    def _psi_products(self, g_w: Array) -> Array:
        """Psi g_w, (m, columns), kept until another is asked for; values that are not known yet share its pass."""
        key, shares = g_w.tobytes(), self.problem.shared and "values" not in vars(self)
        if self._dual_products is None or self._dual_products[0] != key:
            found = self.problem.psi.matmul(np.column_stack([self.theta, g_w]) if shares else g_w)
            if shares:
                self.values, found = np.ascontiguousarray(found[:, 0]), found[:, 1:]
            self._dual_products = key, found
        return self._dual_products[1]

    def _u_products(self, psi_x: Array) -> Array:
        """u_t'x of every step, from Psi x."""
        return self.problem.forward(psi_x[self.problem.now])

    # ---- the adjoint: ridge g_theta + A' g_w = c and A g_theta - C g_w = 0 ----------------------------------

    @cached_property
    def method(self) -> AdjointMethod:
        """How the adjoint system is solved."""
        if not self.forms_moments:
            return AdjointMethod.ITERATIVE
        return AdjointMethod.LU if self._lu is not None else AdjointMethod.PSEUDO_INVERSE

    @property
    def _square(self) -> bool:
        """Whether the adjoint is that of A theta = b: A'g_w = c."""
        return self.problem.k == self.problem.d and not self.problem.ridge

    @property
    def forms_moments(self) -> bool:
        """Whether the moments exist already, or are cheap enough to form and factorise."""
        problem, needed = self.problem, {"A"} if self._square else {"A", "C"}
        if problem.k <= ALWAYS_DIRECT_FEATURES or needed <= vars(problem).keys():
            return True
        size = problem.d if self._square else problem.d + problem.k
        cost = problem.cost.A if self._square else problem.cost.moments
        return cost + problem.cost.flops(2 / 3 * size**3) <= MAX_DIRECT_PASSES and 24 * size**2 <= memory_limit()

    @cached_property
    def w(self) -> Array:
        """The dual weights at the minimiser, C^+ (b - A theta); zero where A theta = b."""
        problem = self.problem
        if self.method is AdjointMethod.PSEUDO_INVERSE:
            if not problem.ridge and self._exact.objective(self._exact.theta) <= ATTAINED * self._exact.scale:
                return np.zeros(problem.k)
            return np.asarray(problem.C_root @ (problem.C_root.T @ (problem.b - problem.A @ self.theta)))
        if self._square:
            return np.zeros(problem.k)  # A is regular with these methods
        if self.method is AdjointMethod.LU:
            return -self._factor.solve(np.concatenate([np.zeros(problem.d), problem.b]))[problem.d :]
        return self._iterative_minimiser[1]

    @cached_property
    def _iterative_minimiser(self) -> tuple[Array, Array]:
        """(theta*, w*) by MINRES."""
        d = self.problem.d
        solution = minres(self.problem, np.concatenate([np.zeros(d), self.problem.b]))
        return solution[:d], -solution[d:]

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

    @property
    def factor_of_A(self) -> ScaledLU | None:
        """None where A is nearly singular, or the adjoint needs another matrix."""
        return self._lu if self._square and self.method is AdjointMethod.LU else None

    @cached_property
    def _exact(self) -> Exact:
        return Exact(self.problem)

    def _adjoint(self, c: Array) -> tuple[Array, Array] | ErrorEstimate:
        """(g_theta, g_w) of c, cached; an estimate without standard error where it cannot be solved for."""
        if not c.any():
            return np.zeros(self.problem.d), np.zeros(self.problem.k)
        key = c.tobytes()
        if key not in self._adjoints:
            self._adjoints[key] = self._solve_adjoint(c)
        return self._adjoints[key]

    def _solve_adjoint(self, c: Array) -> tuple[Array, Array] | ErrorEstimate:
        problem = self.problem
        undetermined = ErrorEstimate(None, determined=False, reason="The data do not determine this value.")
        if problem.ridge == 0 and c[problem.dead].any():
            return undetermined
        solve: Callable[[Array], tuple[Array, Array]] = {
            AdjointMethod.LU: self._solve_lu,
            AdjointMethod.PSEUDO_INVERSE: self._solve_pseudo_inverse,
            AdjointMethod.ITERATIVE: self._solve_iterative,
        }[self.method]
        (g_theta, g_w), size = solve(c), float(np.linalg.norm(c)) or 1.0  # it underflows for tiny rows
        product = problem.At_dot(g_w) if self.method is AdjointMethod.ITERATIVE else problem.A.T @ g_w
        residual = np.linalg.norm(problem.ridge * g_theta + product - c) / size
        if self.method is AdjointMethod.ITERATIVE and g_theta.any():
            image = problem.C_dot(g_w)
            residual = max(residual, np.linalg.norm(problem.A_dot(g_theta) - image) / np.linalg.norm(image))
            # influences also depend on w*, which was computed by iteration too
            gradient = np.linalg.norm(np.concatenate(problem.B(*self._iterative_minimiser)))
            residual = max(residual, gradient / np.linalg.norm(problem.b)) if gradient else residual
        if residual <= (ITERATIVE_RESIDUAL_TOL if self.method is AdjointMethod.ITERATIVE else DIRECT_RESIDUAL_TOL):
            return g_theta, g_w
        if self.method is AdjointMethod.PSEUDO_INVERSE:
            return undetermined
        reason = (
            "The standard error needs the solution of a linear system with the transposed moments, which did not "
            f"converge in {MAX_ITERATIONS} passes. Solve with 'lstd', which forms the moments: with them it is exact, "
            "or the data are seen not to determine the value."
        )
        return ErrorEstimate(None, reason=reason)

    def _solve_lu(self, c: Array) -> tuple[Array, Array]:
        if self._square:  # w = 0, so g_theta is not needed
            return np.zeros(self.problem.d), self._factor.solve_transposed(c)
        solution = self._factor.solve(np.concatenate([c, np.zeros(self.problem.k)]))
        return solution[: self.problem.d], solution[self.problem.d :]

    def _solve_pseudo_inverse(self, c: Array) -> tuple[Array, Array]:
        problem = self.problem
        g_theta = self._exact.inverse_hessian(c)
        return g_theta, problem.C_root @ (problem.C_root.T @ (problem.A @ g_theta))

    def _solve_iterative(self, c: Array) -> tuple[Array, Array]:
        problem = self.problem
        if self._square:
            # w = 0, so g_theta is not needed, and A' g_w = c is half the system with a far better condition
            return np.zeros(problem.d), gmres(problem, c, self._combined_adjoints(c))
        solution = minres(problem, np.concatenate([c, np.zeros(problem.k)]))
        return solution[: problem.d], solution[problem.d :]

    def _combined_adjoints(self, c: Array) -> Array | None:
        """g_w of the combination of vectors with known adjoints that is closest to c; None where there are none.

        The mean return depends on theta nearly as the mean value over the starts does.
        """
        known = [(np.frombuffer(key), one[1]) for key, one in self._adjoints.items() if isinstance(one, tuple)]
        if not known:
            return None
        vectors, solutions = map(np.array, zip(*known, strict=True))
        return np.asarray(np.linalg.lstsq(vectors.T, c)[0] @ solutions)
