"""Influences of the steps of a shard on linear functions c'theta, to first order, and their sums over clusters.

Step t adds g'm_t / n to the error of c'theta, with the adjoint g of c and the estimating equations m_t of `adjoints`.
Steps of one episode are dependent, episodes are not, so influences are summed by episode, then squared: the sandwich
covariance CR1 is G/(G-1) times the sum of these squares over G episodes.
An interval covers the fixed point, not the policy's true value: the difference between them depends on the features.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from valuefit.inference.adjoints import Adjoint, Equations
from valuefit.inference.cluster_products import u_squares
from valuefit.inference.error_estimate import LinearFunction
from valuefit.inference.shards import Shard
from valuefit.inference.signs import random_signs
from valuefit.rows.storage import Rows
from valuefit.typing import Array


class Influences:
    """The equations of a log at the steps of one of its shards; products with its rows are kept."""

    def __init__(self, equations: Equations, shard: Shard) -> None:
        self.equations, self.shard, self.problem = equations, shard, shard.problem
        self.n, self.ridge = equations.problem.n, equations.problem.ridge
        self._last: tuple[Adjoint, tuple[list[Array], list[Array]]] | None = None  # of one number

    @cached_property
    def values(self) -> Array:
        """Phi theta."""
        return self.problem.phi.dot(self.equations.theta)

    @cached_property
    def td_errors(self) -> Array:
        """The TD error of each step, (n,)."""
        problem, value = self.problem, self.values
        return np.asarray(problem.reward - value[problem.now] + problem.discount * value[problem.next])

    def of_steps(self, adjoints: Sequence[Adjoint]) -> tuple[list[Array], list[Array]]:
        """g'm_t / n of every step, (n,), for each adjoint g, and its square.

        Where w = 0 the square is that of g_w'u_t / n, to be multiplied by the mean of the squared TD errors, which is
        less noisy than each of them. Of a single adjoint both are kept until another is asked for.
        """
        if len(adjoints) == 1 and self._last is not None and self._last[0] is adjoints[0]:
            return self._last[1]
        problem, w, psi_g = self.problem, self.equations.w, self._psi_products(adjoints)
        dual, delta = w.any(), self.td_errors
        if dual:
            phi_g, psi_w = problem.phi.matmul(np.column_stack([g.theta for g in adjoints])), problem.psi.dot(w)
            u_w = self._u_products(psi_w)
        influences, squares = [], []
        for column, (g, q) in enumerate(zip(adjoints, psi_g.T, strict=True)):
            u_g = self._u_products(q)
            total = u_g * delta
            if dual:
                total += (phi_g[problem.now, column] - problem.discount * phi_g[problem.next, column]) * u_w
                total -= float(g.w @ w) if problem.identity else q[problem.now] * psi_w[problem.now]
            total -= self.ridge * float(g.theta @ self.equations.theta)
            influences.append(np.asarray(total / self.n))
            squares.append((influences[-1] if dual else u_g / self.n) ** 2)
        if len(adjoints) == 1:
            self._last = adjoints[0], (influences, squares)
        return influences, squares

    def expected_sums(self, adjoints: Sequence[Adjoint]) -> Array:
        """Sums over clusters of the squares of `of_steps`, up to a common factor, (adjoints, clusters).

        Cheaper than `of_steps`, where w = 0.
        """
        problem, clusters, g_w = self.problem, self.shard.clusters, _dual_parts(adjoints)
        if self.equations.w.any():
            squares = self.of_steps(adjoints)[1]
        elif problem.large and problem.psi.on_device is None:
            return u_squares(problem, clusters.of_step, clusters.count, g_w)
        else:
            squares = [self._u_products(q) ** 2 for q in np.ascontiguousarray(problem.psi.matmul(g_w).T)]
        return np.array([clusters.sums(square) for square in squares])

    def occupancy(self, adjoint: Adjoint) -> Array:
        """The weight of each step in c'theta as a sum of the rewards, (n,)."""
        return np.asarray(self._u_products(np.ascontiguousarray(self._psi_products([adjoint])[:, 0])) / self.n)

    def start_deviations(self, function: LinearFunction) -> Array:
        """The values at the starts minus their mean, over the number of starts of the log."""
        theta = self.equations.theta
        values = np.asarray(function.rows @ theta).ravel()
        mean = values.mean() if function.total is None else float(function.c @ theta)
        return np.asarray((values - mean) / function.starts)

    def changes(self, weight: Array, error: Array | None = None) -> Array:
        """First-order changes of theta, (clusters, d), by the sums of weight_t m_t / n with these TD errors, (n,).

        error: the TD errors at theta if None.
        """
        problem, w, theta = self.problem, self.equations.w, self.equations.theta
        weights = self.shard.clusters.sums(weight)
        above = -self.ridge * np.outer(theta, weights)
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
        return self.equations.solver.respond(above / self.n, total / self.n).T

    def sign_changes(self, draws: int) -> Array:
        """`changes` by steps with random signs, (draws, clusters, d).

        The expected square of their product with any c is that of the parts of the clusters in c'theta if steps were
        independent, up to a common factor.
        """
        first, steps = self.shard.first_step, len(self.problem.now)
        error = None if self.equations.w.any() else np.ones(steps)
        signs = (random_signs((0, draw), first, first + steps)[:, 0] for draw in range(draws))
        return np.array([self.changes(sign, error) for sign in signs])

    def _sums(self, rows: Rows, index: Array, weights: Array) -> Array:
        """The sum of weighted rows over each cluster, (columns, clusters)."""
        clusters = self.shard.clusters
        return rows.group_sums(index, weights, clusters.of_step, clusters.count).T

    def _psi_products(self, adjoints: Sequence[Adjoint]) -> Array:
        """Psi g_w, (m, columns); values that are not known yet share its pass."""
        g_w, known = _dual_parts(adjoints), self.shard.products
        if (key := g_w.tobytes()) not in known:
            shares = self.problem.shared and "values" not in vars(self)
            products = self.problem.psi.matmul(np.column_stack([self.equations.theta, g_w]) if shares else g_w)
            if shares:
                self.values, products = np.ascontiguousarray(products[:, 0]), products[:, 1:]
            known.clear()
            known[key] = products
        return known[key]

    def _u_products(self, psi_x: Array) -> Array:
        """u_t'x of every step, from Psi x."""
        return self.problem.forward(psi_x[self.problem.now])


def _dual_parts(adjoints: Sequence[Adjoint]) -> Array:
    """g_w of each adjoint, (k, adjoints)."""
    return np.column_stack([g.w for g in adjoints])
