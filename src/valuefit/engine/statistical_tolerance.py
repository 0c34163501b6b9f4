"""A gap below which the solver error may be negligible next to the sampling error of the log."""

from __future__ import annotations

from valuefit.problem.saddle_point import SaddlePoint

NEGLIGIBLE_ERROR = 0.1  # solver error over standard error: it then widens an interval by about 5%
LOOSEST_GAP = 0.01  # the largest gap that is allowed, however noisy the log is


def optimistic_gap(problem: SaddlePoint) -> float:
    """Return a gap at which the solver error of c'theta may be a tenth of its standard error, from the rewards alone.

    With g the adjoint of c (A'g = c), |c'(theta - theta*)|^2 <= 2 (F(theta) - F*) g'Cg, and the squared standard
    error is g'Sg / n, S being the covariance of sum u_t delta_t, by episode. So F(theta) - F* = 0.01 s / (2 n) is
    small enough, where s is the smallest g'Sg / g'Cg, here the mean squared reward in place of the TD error.
    F(0) - F* <= 1/2 mean z^2 converts it into a gap, z being the rewards summed along the traces.
    """
    bound, squares = problem.reward_squares()
    if bound == 0:
        return 0.0
    correlation = 2 / (1 - problem.trace * min(problem.max_discount, 0.999))  # of steps, through the traces
    noise = correlation * squares
    return min(NEGLIGIBLE_ERROR**2 * noise / (problem.n * bound), LOOSEST_GAP)
