"""The minimiser where the terms of episodes have other weights, for the bootstrap, where theta solves A theta = b.

In the coordinates of a basis sums over the log are the identity, and the change y of theta in a reweighted log solves

    y - sum_t (1 - weight_t) u_t v_t'y = sum_t weight_t u_t delta_t,

whose operator is small: its size is about the square root of the leverage of an episode. So all reweighted logs are
iterated together, from the preconditioner that they share: A of the whole log.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import scipy.sparse as sparse

from valuefit.evaluation.cluster_residuals import solve_by_cluster
from valuefit.evaluation.jackknife_basis import Basis, InverseBasis
from valuefit.linalg.moments import pieces, step_pairs
from valuefit.memory import memory_limit
from valuefit.problem.problem import Problem
from valuefit.typing import Array

# Relative residual at which a reweighted log counts as solved. Replicates are then exact to 1e-2 of the standard error,
# and standard errors to 1e-3 of themselves, with 400 states, 200 dense or 512 tile-coded weights and 4,000 to 100,000
# steps; those of 200 replicates vary by 5%.
MAX_RESIDUAL = 1e-2
USUAL_ITERATIONS = 4  # on these logs, but for the smallest
MAX_ITERATIONS = 30
MAX_STEP_NUMBER = 2.0**62  # int64 must hold the numbers of distinct steps
SPARSE_COST = 10.0  # seconds of a product with a number of a sparse row, or of an elementwise one, relative to BLAS


class Reweighting:
    """A problem without traces and without a ridge, whose minimiser has w = 0, with the weights of clusters of steps.

    Steps with equal rows and discounts are merged, so a table takes the time of its distinct transitions.
    basis: `jackknife_basis`. error: the TD errors at the minimiser, (n,). cluster: of each step, (n,).
    """

    def __init__(self, problem: Problem, basis: Basis | InverseBasis, error: Array, cluster: Array) -> None:
        self.problem, self.basis, self.error, self.cluster = problem, basis, error, cluster
        self.columns, step = _distinct_steps(problem)
        self.count = len(self.columns[0])
        self.ratios = sparse.csr_array(
            (problem.ratio, (step, cluster)), shape=(self.count, int(cluster.max(initial=0)) + 1)
        )  # sums of the ratios of merged steps in each cluster

    def flops(self, draws: int) -> float:
        """Of an iteration, as many as matrix products do in its time."""
        phi, psi = self.problem.phi, self.problem.psi
        row = psi.stored / psi.shape[0] + 2 * phi.stored / phi.shape[0]
        return draws * self.count * (2 * row * (SPARSE_COST if phi.sparse else 1.0) + SPARSE_COST)

    def solve(self, weights: Array) -> tuple[Array, Array]:
        """Changes of theta with these weights of the clusters, (draws, clusters), and for which the iteration ended."""
        size = max(1, memory_limit() // (32 * self.count))  # of all pairs of steps and logs there are two arrays
        parts = [self._solve(weights[start : start + size]) for start in range(0, len(weights), size)]
        theta, converged = (np.concatenate(part) for part in zip(*parts, strict=True))
        return theta, converged

    def _solve(self, weights: Array) -> tuple[Array, Array]:
        draws, size = len(weights), self.basis.size
        left_out = self.ratios @ (1 - weights).T

        def operator(y: Array, chosen: Array) -> Array:
            theta = np.ascontiguousarray(self.basis.weights(y.reshape(draws, size)[chosen]).T)
            share = left_out if len(chosen) == draws else left_out[:, chosen]
            found = np.zeros((draws, size))
            found[chosen] = self._sums(theta, share)
            return found.reshape(1, -1)

        right = self._in_coordinates((self._parts.T @ weights.T).T)
        y, _, converged = solve_by_cluster(
            operator, right.reshape(1, -1), np.repeat(np.arange(draws), size), draws,
            tol=MAX_RESIDUAL, iterations=MAX_ITERATIONS,
        )  # fmt: skip
        return self.basis.weights(y.reshape(draws, size)), converged

    def _sums(self, theta: Array, share: Array) -> Array:
        """sum_t share_t u_t v_t'theta, (draws, size), of weights (d, draws) and shares of the steps (count, draws)."""
        problem = self.problem
        total = np.zeros((theta.shape[1], problem.k))
        for piece in pieces(np.arange(self.count), problem.d + problem.k + theta.shape[1]):
            now, next, discount = (column[piece] for column in self.columns)
            psi, v = step_pairs(problem.psi, problem.phi, now, next, discount, compiled=problem.large)
            total += (psi.T @ (share[piece] * (v @ theta))).T
        return self._in_coordinates(total)

    def _in_coordinates(self, sums: Array) -> Array:
        return sums if self.basis.dual is None else sums @ self.basis.dual

    @cached_property
    def _parts(self) -> Array:
        """sum of u_t delta_t over each cluster, (clusters, k), sparse where the rows are."""
        problem = self.problem
        terms = problem.ratio * self.error, (self.cluster, problem.now)
        return sparse.csr_array(terms, shape=(self.ratios.shape[1], problem.psi.shape[0])) @ problem.psi.matrix


def _distinct_steps(problem: Problem) -> tuple[tuple[Array, Array, Array], Array]:
    """now, next and discount of the distinct steps, (count,), and the number of each step among them, (n,)."""
    columns, n, rows = (problem.now, problem.next, problem.discount), len(problem.now), problem.phi.shape[0]
    values, value = np.unique(problem.discount, return_inverse=True)
    if 2 * rows > n or float(len(values)) * rows**2 > MAX_STEP_NUMBER:
        return columns, np.arange(n)
    number = (value * rows + problem.now) * rows + problem.next
    _, first, step = np.unique(number, return_index=True, return_inverse=True)
    return (problem.now[first], problem.next[first], problem.discount[first]), step
