"""The gap below which the solver error is negligible next to the sampling error of the log."""

from __future__ import annotations

import numpy as np
import scipy.linalg as linalg

from valuefit.problem.saddle_point import SaddlePoint
from valuefit.typing import Array

NOISE_DIRECTIONS = 3  # dimension of the random subspace in which noise is measured: four products with the rows in all
MIN_CLUSTERS = 32  # with fewer clusters the smallest eigenvalue of their covariance is too small by chance
NEGLIGIBLE_ERROR = 0.1  # solver error over standard error: it then widens an interval by about 5%
LOOSEST_GAP = 0.01  # the largest gap that is allowed, however noisy the log is
MEASUREMENT_PASSES = 1.0  # cost of `supported_gap`: rows are read twice, for two vectors each time


def supported_gap(problem: SaddlePoint, theta: Array) -> float:
    """The gap at which the solver error of any c'theta is at most a tenth of its standard error.

    With g the adjoint of c (A'g = c), |c'(theta - theta*)|^2 <= 2 (F(theta) - F*) g'Cg, and the squared standard
    error is g'Sg / n, S being the covariance of sum u_t delta_t, by episode. So F(theta) - F* = 0.01 s / (2 n) is
    small enough, where s is the smallest g'Sg / g'Cg: the mean squared TD error on-policy, more with ratios and
    traces. It is measured over a random subspace of g. F(0) - F* <= 1/2 mean z^2 converts it into a gap, z being the
    rewards summed along the traces. The ridge, which reduces both errors, is ignored.
    """
    bound, _ = problem.reward_squares()  # of 2 (F(0) - F*)
    if bound == 0:
        return 0.0
    return min(NEGLIGIBLE_ERROR**2 * _noise(problem, theta) / (problem.n * bound), LOOSEST_GAP)


def optimistic_gap(problem: SaddlePoint) -> float:
    """An estimate of `supported_gap` from the rewards alone, rarely below it for any theta; it costs no pass."""
    bound, squares = problem.reward_squares()
    if bound == 0:
        return 0.0
    correlation = 2 / (1 - problem.trace * min(problem.max_discount, 0.999))  # of steps, through the traces
    noise = correlation * squares
    return min(NEGLIGIBLE_ERROR**2 * noise / (problem.n * bound), LOOSEST_GAP)


def _noise(problem: SaddlePoint, theta: Array) -> float:
    """The smallest g'Sg / g'Cg over a random subspace of g; with few clusters, the mean of its eigenvalues."""
    g = np.random.default_rng(0).standard_normal((problem.k, NOISE_DIRECTIONS))
    S, C, count = problem.noise_moments(theta, g)
    values, vectors = linalg.eigh(g.T @ g if problem.identity else C)
    kept = values > 1e-10 * values[-1]
    if not kept.any():
        return 0.0
    whitening = vectors[:, kept] / np.sqrt(values[kept])
    ratios = linalg.eigvalsh(whitening.T @ S @ whitening)
    return float(max(ratios[0] if count >= MIN_CLUSTERS else ratios.mean(), 0.0))
