"""Bounds of gap = (F(theta) - F*) / (F(0) - F*): the inequalities that LSTD, krylov and the certificate share.

With r = b - A theta, y = A theta, H = A'C^+A + ridge I, and z_t the trace of v run backwards, so that A = mean psi z':

- 2 (F(theta) - F*) = c'Hc for c = theta* - theta, and A'C^+A <= mean z z' bounds that from above;
- 2 (F(0) - F*) is at least b'C^+b - 2 F(theta), and theta'H theta at the minimum;
- r'C^+r >= (r'x)^2 / x'Cx for any x.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from valuefit.problem.saddle_point import SaddlePoint
from valuefit.tolerances import ROUNDING
from valuefit.typing import Array

ROUNDINGS = 10.0  # rounding error of a sum of n numbers, in sqrt(n) eps times their size: ten times what is seen


def gap_above(excess: float, energy: float, objective: float, least: float = 0.0) -> float:
    """The gap where F(theta) - F* is at most `excess`, and F(theta) `objective`.

    energy: at most b'C^+b. least: at most F(0) - F*.
    """
    scale = max(0.5 * (1 - ROUNDING) * energy - objective, least)
    return excess / scale if scale > 0 else np.inf


def unit(r: Array) -> tuple[Array, float]:
    """r over its largest entry, and that entry: squares of small numbers would underflow."""
    size = float(np.abs(r).max(initial=0.0))
    return (r / size if size > 0 else r), size


def energy_below(problem: SaddlePoint, preconditioner: Any, r: Array) -> tuple[float, float]:
    """r'C^+r from below, and its passes: the value itself, or (r'x)^2 / x'Cx with x = C~^+ r.

    preconditioner: a `Preconditioner`.
    """
    r, size = unit(r)
    x = preconditioner.dual(r)
    energy = float(r @ x)
    if preconditioner.excess == 1.0 or not energy > 0:
        return size * size * max(energy, 0.0), 0.0
    return size * size * energy * (energy / problem.mean_squares(None, x)[1]), 0.5


def correction_gap(problem: SaddlePoint, theta: Array, correction: Array, residual: Array) -> float:
    """The gap at theta where `correction` (d,) is a good estimate of theta* - theta, in half a pass.

    residual: b - A theta. With the identity metric it costs a pass more.
    """
    y, size = unit(problem.b - residual)
    upper, image = problem.mean_squares(correction, y)
    if problem.identity:
        upper = float(np.sum(problem.A_dot(correction) ** 2))
    upper += problem.ridge * float(correction @ correction)
    square = float(y @ y)
    lower = problem.ridge * float(theta @ theta)
    if square > 0:
        lower += size * size * (square if problem.identity else square**2 / image)
    if lower > 0:
        return upper / lower
    return 0.0 if upper == 0 else np.inf


def moments_gap(problem: SaddlePoint, theta: Array, residual: Array, inverse: float) -> float:
    """The gap at theta from the moments alone, for square A at ridge 0; infinite where it is unknown.

    residual: b - A theta of the computed moments. inverse: an upper bound of |A^-1|. The rounding errors of the moments
    bound the correction c of theta; |c|^2 mean |z|^2 and |y|^2 mean |psi|^2 take the place of the quadratic forms.
    """
    sizes = None if problem.identity else problem.row_sizes()
    if sizes is None:
        return np.inf
    psi, z, reward = sizes
    rounding = float(np.finfo(float).eps) * (ROUNDINGS * np.sqrt(problem.n) + problem.d) * psi
    error = rounding * (reward + z * float(np.linalg.norm(theta)))
    y = float(np.linalg.norm(problem.b - residual)) - error
    if not (inverse * rounding * z <= 0.5 and y > 0):
        return np.inf
    correction = 2 * inverse * (float(np.linalg.norm(residual)) + error)
    root = psi * z * correction / y
    return float(root * root)
