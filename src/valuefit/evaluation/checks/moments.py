"""Sums of instruments times TD errors, corrected for the fit of theta, and their wild bootstrap.

With instruments z_t, functions of what was known before the outcome of step t, M = sum ratio_t z_t delta_t has mean
zero at the true value. theta was fitted to the same log, and M changes by -B dtheta with B = sum ratio_t z_t v_t'.
To first order, the part of cluster g in M is sum_{t in g} ratio_t z_t delta_t - B change_g, where change_g is its part
in theta. By the jackknife it is M - M_(-g), where M_(-g) is the sum over the other clusters with theta fitted to them:
sum_{t in g} ratio_t z_t delta_t(theta_(-g)) + B (theta_(-g) - theta). With a leverage h of the cluster the first is too
small by a factor of sqrt(1 - h), the second too large by as much; their mean, which is used, is right up to h^2 / 8.
With a ridge the fit without one is tested.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import scipy.sparse as sparse

from valuefit.evaluation.errors import ErrorEstimate, LinearFunction
from valuefit.evaluation.fit import Fit
from valuefit.evaluation.sandwich import AdjointMethod, Sandwich
from valuefit.rows.storage import TEMPORARY_BYTES
from valuefit.typing import Array

DRAWS = 399  # of random signs
MAX_SIGN_GROUPS = 1000  # more clusters are summed in groups, which share a sign
MIN_STEPS_PER_WEIGHT = 10  # with fewer, the TD errors of the first-order form are too small by overfitting
ROUNDING = 1e-12  # relative distance of theta from the minimiser that is none
NEGLIGIBLE_PART = 1e-6  # of a sum, which the fit of theta has made zero; such instruments are features


@dataclass(frozen=True)
class Sums:
    """`total`, (k,), and the part of each cluster in it, (clusters, k), whose mean is zero under the hypothesis."""

    total: Array
    parts: Array

    @property
    def statistic(self) -> float:
        """|total|^2 over its expectation under the hypothesis."""
        return float(self.total @ self.total) / float(np.sum(self.parts**2))

    def columns(self, chosen: slice) -> Sums | None:
        """Those of some instruments; None where all of them are features."""
        found = Sums(self.total[chosen], self.parts[:, chosen])
        return found if found.parts.any() else None

    def scaled(self) -> Sums:
        """With an expectation of |total|^2 of 1 under the hypothesis."""
        scale = float(np.linalg.norm(self.parts))
        return Sums(self.total / scale, self.parts / scale)

    def p_value(self, seed: int) -> float:
        """Of |total|^2 against |sum of signs_g parts_g|^2 with random signs (wild bootstrap)."""
        parts, (group, signs) = self.parts, _random_signs(seed, len(self.parts))
        if group is not None:
            parts = cluster_sums(parts, group, MAX_SIGN_GROUPS)
        drawn = np.sum((signs @ parts) ** 2, axis=1)
        observed = float(self.total @ self.total) * (1 - 1e-12)  # equal signs for all give the same up to rounding
        return (1 + int((drawn >= observed).sum())) / (DRAWS + 1)


@lru_cache(maxsize=1)  # all tests of an evaluation use the same
def _random_signs(seed: int, clusters: int) -> tuple[Array | None, Array]:
    """The group of each cluster, (clusters,), None where each has its own sign, and signs, (DRAWS, groups)."""
    rng = np.random.default_rng([seed, 7])
    group = rng.permutation(clusters) % MAX_SIGN_GROUPS if clusters > MAX_SIGN_GROUPS else None
    return group, rng.choice([-1.0, 1.0], (DRAWS, min(clusters, MAX_SIGN_GROUPS)))


def cluster_sums(rows: Array, cluster: Array, count: int, weights: Array | None = None) -> Array:
    """The sum of these rows, (m, k), times their weights, (m,), in each cluster, (count, k)."""
    order, weights = np.arange(len(cluster)), np.ones(len(cluster)) if weights is None else weights
    return np.asarray(sparse.csr_array((weights, (cluster, order)), shape=(count, len(order))) @ rows)


class TDMoments:
    """Sums of instruments times TD errors for one fit."""

    def __init__(self, fit: Fit) -> None:
        self.problem, sandwich = fit.problem, fit.errors.sandwich
        if fit.problem.ridge:
            self.problem = copy.copy(fit.problem)
            self.problem.ridge = 0.0
            self.problem.__dict__.pop("traits", None)
            sandwich = Sandwich(self.problem, fit.result.theta, sandwich.episode).with_clusters(
                sandwich.cluster, blocks=sandwich.blocks
            )
        self.iterative = sandwich.method is AdjointMethod.ITERATIVE
        if not self.iterative:  # to the exact minimiser of the log
            move = sandwich.to_minimiser
            if np.linalg.norm(move) > ROUNDING * np.linalg.norm(sandwich.theta):
                sandwich = sandwich.at(sandwich.theta + move)
        self.sandwich = sandwich
        self.without_each = None
        if fit.errors.kind == "cr3" and not fit.problem.ridge:
            self.without_each = fit.errors.replicates.theta

    @property
    def available(self) -> bool:
        """Whether the fit of theta can be accounted for."""
        if self.without_each is not None:
            return True
        regular = self.sandwich.method is not AdjointMethod.PSEUDO_INVERSE
        return regular and self.problem.n >= MIN_STEPS_PER_WEIGHT * self.problem.d

    @cached_property
    def td_errors(self) -> Array:
        """At the minimiser, (n,)."""
        return self.sandwich.td_errors

    @cached_property
    def changes(self) -> Array:
        """The first-order part of each cluster in theta, (clusters, d)."""
        return self.sandwich.changes(np.ones(self.problem.n), self.td_errors)

    def sums(self, steps: Array, z: Array) -> Sums | None:
        """Of instruments (m, k) at these steps; None where they are features, or their sums cannot be corrected."""
        ratio, sandwich = self.problem.ratio[steps], self.sandwich
        B, left_out = self._derivative(steps, z, ratio)
        error = ratio * self.td_errors[steps]
        parts = cluster_sums(z, sandwich.cluster[steps], sandwich.clusters, error - 0.5 * ratio * left_out)
        return self._corrected(error @ z, np.sqrt(error**2 @ z**2), parts, B)

    def weighted_sum(self, weight: Array) -> Sums | None:
        """`sums` of one instrument with this value at every step, (n,), without copies of the rows."""
        problem, sandwich = self.problem, self.sandwich
        weighted = problem.ratio * weight
        terms = weighted * self.td_errors
        total, size = np.array([terms.sum()]), np.array([np.linalg.norm(terms)])
        sums = np.bincount(sandwich.cluster, terms, sandwich.clusters)
        if self.without_each is None:
            rows = problem.phi.shape[0]
            balance = np.bincount(problem.now, weighted, rows)
            balance -= np.bincount(problem.next, weighted * problem.discount, rows)
            return self._corrected(total, size, sums[:, None], problem.phi.tdot(balance)[None])
        by_cluster = self._row_sums(problem.now, weighted) - self._row_sums(problem.next, weighted * problem.discount)
        sums -= 0.5 * np.einsum("ij,ij->i", by_cluster, self.without_each)
        return self._corrected(total, size, sums[:, None], by_cluster.sum(axis=0)[None])

    def by_cluster(self, steps: Array, rows: Array) -> Array:
        """Sums over the clusters, (clusters, k), of rows (m, k) that belong to these steps."""
        return cluster_sums(rows, self.sandwich.cluster[steps], self.sandwich.clusters)

    def derivative(self, steps: Array, weighted: Array) -> Array:
        """sum weighted_t v_t' over these steps, (k, d)."""
        return self._derivative(steps, weighted, np.ones(len(steps)))[0]

    def v_products(self, steps: Array, x: Array) -> Array:
        """v_t'x at these steps, (m,)."""
        problem, p = self.problem, self.problem.phi.dot(x)
        return np.asarray(p[problem.now[steps]] - problem.discount[steps] * p[problem.next[steps]])

    def _corrected(self, total: Array, size: Array, parts: Array, B: Array) -> Sums | None:
        """With the parts of the clusters in theta; parts are (clusters, k), half of them left out.

        total, size: the sum of the terms and their norm, (k,).
        """
        change = self._products_with_changes(B)
        if change is not None and self.without_each is not None:
            change = 0.5 * (change - self.without_each @ B.T)
        if change is None:
            return None
        parts = parts - change
        kept = np.linalg.norm(parts, axis=0) > NEGLIGIBLE_PART * size
        return Sums(total * kept, parts * kept) if kept.any() else None

    def _row_sums(self, index: Array, weights: Array) -> Array:
        """The sum of weighted rows over each cluster, (clusters, d); rows with weight 0 are not read."""
        kept, sandwich = np.flatnonzero(weights), self.sandwich
        return self.problem.phi.group_sums(index[kept], weights[kept], sandwich.cluster[kept], sandwich.clusters)

    def _derivative(self, steps: Array, z: Array, ratio: Array) -> tuple[Array, Array]:
        """B, (k, d), and v_t'(theta without the cluster of t - theta), (m,), which is 0 in the first-order form."""
        problem, size = self.problem, max(1, TEMPORARY_BYTES // (8 * self.problem.d))
        B, left_out, weighted = np.zeros((z.shape[1], problem.d)), np.zeros(len(steps)), bool((ratio != 1).any())
        for start in range(0, len(steps), size):
            here = slice(start, start + size)
            chosen = steps[here]
            now, later = problem.phi.take(problem.now[chosen]), problem.phi.take(problem.next[chosen])
            discount = problem.discount[chosen]
            v: Any = now - sparse.diags_array(discount) @ later if problem.phi.sparse else _minus(now, discount, later)
            if self.without_each is not None:
                x = self.without_each[self.sandwich.cluster[chosen]]
                products = v.multiply(x).sum(axis=1) if problem.phi.sparse else np.einsum("ij,ij->i", v, x)
                left_out[here] = np.asarray(products).ravel()
            B += np.asarray((v.T @ (ratio[here, None] * z[here] if weighted else z[here])).T)
        return B, left_out

    def _products_with_changes(self, B: Array) -> Array | None:
        """B change_g, (clusters, k); None where an iterative adjoint did not converge."""
        sandwich = self.sandwich
        if not self.iterative:
            return self.changes @ B.T
        columns = []
        for influence in sandwich.influences([LinearFunction(row) for row in B]):
            if isinstance(influence, ErrorEstimate):
                return None
            columns.append(np.bincount(sandwich.cluster, weights=influence.steps, minlength=sandwich.clusters))
        return np.column_stack(columns)


def _minus(now: Array, discount: Array, later: Array) -> Array:
    """now - discount later, (m, d), in the memory of `later`."""
    later *= -discount[:, None]
    later += now
    return later
