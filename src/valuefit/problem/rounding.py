"""Bounds of the rounding errors of the moments of a log in memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from valuefit.linalg.moments import roundings


class MomentBounds(NamedTuple):
    """Upper bounds: root mean squares of |psi_t| and of |z_t|, z_t = ratio_t v_t, and rounding errors in A and b."""

    psi: float
    z: float
    error_A: float  # of A as formed, and of its product with a vector of length 1
    error_b: float


def rounding_bounds(problem: Any, *, formed_here: bool) -> MomentBounds | None:
    """A sum has an error of at most eps times the roundings of a term times the sum of the sizes of its terms.

    None with traces and float32 rows, whose squares are summed in float32. problem: a `Problem`. formed_here: whether A
    was formed by `linalg.moments`; elsewhere terms may be added one by one.
    """
    if problem.trace or problem.float32:
        return None
    n, ratio = problem.n, problem.ratio.max()
    starts, ends = problem.visits.max(), np.bincount(problem.next).max()
    psi = float(np.sqrt(starts * problem.psi.squared_norm / n))
    v = np.sqrt(problem.phi.squared_norm / n) * (np.sqrt(starts) + problem.max_discount * np.sqrt(ends))
    z, reward = float(ratio * v), float(ratio * np.sqrt(problem.reward @ problem.reward / n))
    count = roundings(problem.phi, problem.visits) if formed_here else 2.0 * n
    eps = float(np.finfo(float).eps)
    return MomentBounds(psi, z, eps * (count + problem.d) * psi * z, eps * n * psi * reward)
