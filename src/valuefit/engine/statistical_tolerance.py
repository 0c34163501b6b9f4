"""The gap below which the solver error is negligible next to the sampling error of the log."""

from __future__ import annotations

import numpy as np
import scipy.linalg as linalg

from valuefit.problem.problem import Problem
from valuefit.typing import Array

NOISE_DIRECTIONS = 3  # dimension of the random subspace in which noise is measured: four products with the rows in all
MIN_CLUSTERS = 32  # with fewer clusters the smallest eigenvalue of their covariance is too small by chance
MIN_BLOCK_STEPS = 25  # steps of a single episode that is cut into blocks: at least 5 blocks of 5 steps
NEGLIGIBLE_ERROR = 0.1  # solver error over standard error: it then widens an interval by about 5%
LOOSEST_GAP = 0.01  # the largest gap that is asked for, however noisy the log is
MEASUREMENT_PASSES = 1.0  # cost of `supported_gap`: rows are read twice, for two vectors each time


def clusters(episode: Array) -> tuple[Array, int, bool]:
    """The cluster of every step (n,), the number of clusters, and whether they are blocks of one episode.

    Clusters are episodes; a single episode is cut into about sqrt(n) consecutive blocks (batch means).
    """
    _, cluster = np.unique(episode, return_inverse=True)
    count, n = int(cluster.max()) + 1, len(cluster)
    blocks = count == 1 and n >= MIN_BLOCK_STEPS
    if blocks:
        count = int(np.sqrt(n))
        cluster = np.arange(n) * count // n
    return cluster, count, blocks


def supported_gap(problem: Problem, theta: Array) -> float:
    """The gap at which the solver error of any c'theta is at most a tenth of its standard error.

    With g the adjoint of c (A'g = c), |c'(theta - theta*)|^2 <= 2 (F(theta) - F*) g'Cg, and the squared standard
    error is g'Sg / n, S being the covariance of sum u_t delta_t, by episode. So F(theta) - F* = 0.01 s / (2 n) is
    small enough, where s is the smallest g'Sg / g'Cg: the mean squared TD error on-policy, more with ratios and
    traces. It is measured over a random subspace of g. F(0) - F* <= 1/2 mean z^2 converts it into a gap, z being the
    rewards summed along the traces. The ridge, which reduces both errors, is ignored.
    """
    bound = _initial_excess_bound(problem)
    if bound == 0:
        return 0.0
    return min(NEGLIGIBLE_ERROR**2 * _noise(problem, theta) / (problem.n * bound), LOOSEST_GAP)


def optimistic_gap(problem: Problem) -> float:
    """An estimate of `supported_gap` from the rewards alone, rarely below it for any theta; it costs no pass."""
    bound = _initial_excess_bound(problem)
    if bound == 0:
        return 0.0
    correlation = 2 / (1 - problem.trace * min(float(problem.discount.max()), 0.999))  # of steps, through the traces
    noise = correlation * float(np.mean((problem.ratio * problem.reward) ** 2))
    return min(NEGLIGIBLE_ERROR**2 * noise / (problem.n * bound), LOOSEST_GAP)


def _initial_excess_bound(problem: Problem) -> float:
    """An upper bound of 2 (F(0) - F*)."""
    return float(np.mean(problem.backward(problem.reward) ** 2))


def _noise(problem: Problem, theta: Array) -> float:
    """The smallest g'Sg / g'Cg over a random subspace of g; with few clusters, the mean of its eigenvalues."""
    rng = np.random.default_rng(0)
    g = rng.standard_normal((problem.k, NOISE_DIRECTIONS))
    if problem.psi is problem.phi:
        products = problem.phi.matmul(np.column_stack([theta, g]))
        value, psi_g = products[:, 0], products[:, 1:]
    else:
        value, psi_g = problem.phi.dot(theta), problem.psi.matmul(g)
    td = problem.reward + problem.discount * value[problem.next] - value[problem.now]
    cluster, count, _ = clusters(np.cumsum(problem.begins))
    sums = np.empty((count, NOISE_DIRECTIONS))
    for column in range(NOISE_DIRECTIONS):
        u = problem.forward(psi_g[problem.now, column])
        sums[:, column] = np.bincount(cluster, weights=u * td, minlength=count)
    S = sums.T @ sums / problem.n
    C = g.T @ g if problem.identity else psi_g.T @ (problem.visits[:, None] * psi_g) / problem.n
    values, vectors = linalg.eigh(C)
    kept = values > 1e-10 * values[-1]
    if not kept.any():
        return 0.0
    whitening = vectors[:, kept] / np.sqrt(values[kept])
    ratios = linalg.eigvalsh(whitening.T @ S @ whitening)
    return float(max(ratios[0] if count >= MIN_CLUSTERS else ratios.mean(), 0.0))
