"""Sums of instruments times TD errors, corrected for the fit of theta, and their wild bootstrap.

With instruments z_t, functions of what was known before the outcome of step t, M = sum ratio_t z_t delta_t has mean
zero at the true value. theta was fitted to the same log, and M changes by -B dtheta with B = sum ratio_t z_t v_t'.
To first order, the part of cluster g in M is sum_{t in g} ratio_t z_t delta_t - B change_g, where change_g is its part
in theta. By the jackknife it is M - M_(-g), where M_(-g) is the sum over the other clusters with theta fitted to them:
sum_{t in g} ratio_t z_t delta_t(theta_(-g)) + B (theta_(-g) - theta). With a leverage h of the cluster the first is too
small by a factor of sqrt(1 - h), the second too large by as much; their mean, which is used, is right up to h^2 / 8.
With a ridge the fit without one is tested (`Fit.without_ridge`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import scipy.sparse as sparse

from valuefit.checks.instruments import MAX_GROUPS
from valuefit.checks.numerics import MIN_STEPS_PER_WEIGHT
from valuefit.inference.adjoints import Adjoint, AdjointMethod
from valuefit.inference.fit import Fit
from valuefit.inference.influence import Influences
from valuefit.linalg.moments import difference_product
from valuefit.tolerances import ROUNDING
from valuefit.typing import Array

DRAWS = 399  # of random signs
NEGLIGIBLE_MOVE = 1e-8  # to the minimiser, in the TD errors, relative; where A is nearly singular it takes many digits


@dataclass(frozen=True)
class Sums:
    """`total`, (k,), and the part of each cluster in it, (clusters, k), whose mean is zero under the hypothesis."""

    total: Array
    parts: Array

    @property
    def statistic(self) -> float:
        """|total|^2 over its expectation under the hypothesis."""
        return float(self.total @ self.total) / float(np.sum(self.parts**2))

    def scaled(self) -> Sums:
        """With an expectation of |total|^2 of 1 under the hypothesis."""
        scale = float(np.linalg.norm(self.parts))
        return Sums(self.total / scale, self.parts / scale)

    def p_value(self, seed: int) -> float:
        """P-value of |total|^2 against |sum of signs_g parts_g|^2 with random signs (wild bootstrap)."""
        parts, (group, signs) = self.parts, _random_signs(seed, len(self.parts))
        if group is not None:
            parts = cluster_sums(parts, group, MAX_GROUPS)
        drawn = np.sum((signs @ parts) ** 2, axis=1)
        observed = float(self.total @ self.total) * (1 - 1e-12)  # equal signs for all give the same up to rounding
        return (1 + int((drawn >= observed).sum())) / (DRAWS + 1)


@lru_cache(maxsize=1)  # all tests of an evaluation use the same
def _random_signs(seed: int, clusters: int) -> tuple[Array | None, Array]:
    """The group of each cluster, (clusters,), None where each has its own sign, and signs, (DRAWS, groups)."""
    rng = np.random.default_rng([seed, 7])
    group = rng.permutation(clusters) % MAX_GROUPS if clusters > MAX_GROUPS else None
    return group, rng.choice([-1.0, 1.0], (DRAWS, min(clusters, MAX_GROUPS)))


def cluster_sums(rows: Array, cluster: Array, count: int, weights: Array | None = None) -> Array:
    """The sum of these rows, (m, k), times their weights, (m,), in each cluster, (count, k)."""
    order, weights = np.arange(len(cluster)), np.ones(len(cluster)) if weights is None else weights
    return np.asarray(sparse.csr_array((weights, (cluster, order)), shape=(count, len(order))) @ rows)


class Terms(NamedTuple):
    """Sums over some steps, before the correction for the fit of theta; those of disjoint steps add up.

    total: of ratio_t z_t delta_t, (k,). squares: of the squares of these. parts: of each cluster in the total, where
    half of the change of theta without the cluster is included, (clusters, k). B: (k, d).
    """

    total: Array
    squares: Array
    parts: Array
    B: Array

    def columns(self, chosen: slice) -> Terms:
        """Return the terms of some instruments."""
        return Terms(self.total[chosen], self.squares[chosen], self.parts[:, chosen], self.B[chosen])

    def plus(self, other: Terms, *, own: float = 1.0, factor: float = 1.0) -> Terms:
        """With instruments that are `own` times these at the steps of these, and `factor` times those of the other."""
        return Terms(
            own * self.total + factor * other.total,
            own**2 * self.squares + factor**2 * other.squares,
            own * self.parts + factor * other.parts,
            own * self.B + factor * other.B,
        )


class TDMoments:
    """Sums of instruments times TD errors for one fit."""

    def __init__(self, fit: Fit) -> None:
        errors = fit.without_ridge
        equations, influences = errors.equations, errors.whole.influences
        self.problem, self.iterative, self.clusters = equations.problem, equations.iterative, errors.whole.clusters
        if not self.iterative:  # to the exact minimiser of the log
            move = equations.to_minimiser
            if np.linalg.norm(move) > ROUNDING * np.linalg.norm(equations.theta):
                of_errors = self.v_products(np.arange(self.problem.n), move)
                if np.linalg.norm(of_errors) > NEGLIGIBLE_MOVE * np.linalg.norm(influences.td_errors):
                    influences = Influences(equations.at(equations.theta + move), influences.shard)
        self.influences = influences
        self.without_each = self._first_order = None
        self._v_changes = np.zeros(self.problem.n)  # v_t'(theta_(-g) - theta), with the jackknife
        if errors.kind == "cr3":
            replicates = errors.whole.replicates
            self.without_each = replicates.theta
            self._v_changes = errors.whole.influences.td_errors - replicates.left_out
            if influences is errors.whole.influences:
                self._first_order = replicates.first_order

    @property
    def available(self) -> bool:
        """Whether the fit of theta can be accounted for."""
        if self.without_each is not None:
            return True
        regular = self.influences.equations.solver.method is not AdjointMethod.PSEUDO_INVERSE
        return regular and self.problem.n >= MIN_STEPS_PER_WEIGHT * self.problem.d

    @cached_property
    def td_errors(self) -> Array:
        """At the minimiser, (n,)."""
        return self.influences.td_errors

    @cached_property
    def changes(self) -> Array:
        """The first-order part of each cluster in theta, (clusters, d)."""
        if self._first_order is not None:
            return -self._first_order
        return self.influences.changes(np.ones(self.problem.n), self.td_errors)

    def sums(self, steps: Array, z: Array) -> Sums | None:
        """Corrected sums of instruments (m, k) at these steps; None for features, or where they cannot be corrected."""
        return self.corrected(self.terms(steps, z))

    def terms(self, steps: Array, z: Array) -> Terms:
        """Uncorrected sums of instruments (m, k) at these steps."""
        ratio, cluster = self.problem.ratio[steps], self.clusters.of_step[steps]
        error = ratio * self.td_errors[steps]
        parts = cluster_sums(z, cluster, self.clusters.count, error - 0.5 * ratio * self._v_changes[steps])
        squares = np.einsum("t,tk,tk->k", error**2, z, z)
        return Terms(error @ z, squares, parts, self.derivative(steps, z))

    def weighted_sum(self, weight: Array) -> Sums | None:
        """`sums` of one instrument with this value at every step, (n,), without copies of the rows."""
        problem = self.problem
        weighted = problem.ratio * weight
        terms = weighted * self.td_errors
        total, squares = np.array([terms.sum()]), np.array([terms @ terms])
        parts = self.clusters.sums(terms - 0.5 * weighted * self._v_changes)
        rows = problem.phi.shape[0]
        weights = np.bincount(problem.now, weighted, rows)
        weights -= np.bincount(problem.next, weighted * problem.discount, rows)
        return self.corrected(Terms(total, squares, parts[:, None], problem.phi.tdot(weights)[None]))

    def by_cluster(self, steps: Array, rows: Array) -> Array:
        """Sums over the clusters, (clusters, k), of rows (m, k) that belong to these steps."""
        return cluster_sums(rows, self.clusters.of_step[steps], self.clusters.count)

    def derivative(self, steps: Array, z: Array) -> Array:
        """B of instruments (m, k) at these steps, (k, d)."""
        problem, now, next = self.problem, self.problem.now[steps], self.problem.next[steps]
        return difference_product(z, problem.phi, now, next, problem.discount[steps], problem.ratio[steps])

    def v_products(self, steps: Array, x: Array) -> Array:
        """v_t'x at these steps, (m,)."""
        problem, p = self.problem, self.problem.phi.dot(x)
        return np.asarray(p[problem.now[steps]] - problem.discount[steps] * p[problem.next[steps]])

    def corrected(self, terms: Terms) -> Sums | None:
        """With the parts of the clusters in theta; None where all instruments are features, or where it is unknown."""
        change = self._products_with_changes(terms.B)
        if change is None:
            return None
        parts = terms.parts - change
        # the others are features, and the fit of theta made them 0
        kept = np.linalg.norm(parts, axis=0) > 1e-6 * np.sqrt(terms.squares)
        return Sums(terms.total * kept, parts * kept) if kept.any() else None

    def _products_with_changes(self, B: Array) -> Array | None:
        """B times the part of each cluster in theta, (clusters, k); None where an iterative adjoint did not converge.

        With the jackknife it is the mean of the first-order part and of theta - theta_(-g).
        """
        if not self.iterative:
            return self._theta_parts @ B.T
        adjoints = [self.influences.equations.solver.adjoint(row) for row in B]
        known = [adjoint for adjoint in adjoints if isinstance(adjoint, Adjoint)]
        if len(known) < len(adjoints) or self.clusters.count < 2:
            return None
        return np.column_stack([self.clusters.sums(steps) for steps in self.influences.of_steps(known)[0]])

    @cached_property
    def _theta_parts(self) -> Array:
        return self.changes if self.without_each is None else 0.5 * (self.changes - self.without_each)
