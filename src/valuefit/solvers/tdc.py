"""TDC: TD with gradient correction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from valuefit.problem.preconditioner import Metric
from valuefit.problem.problem import Problem
from valuefit.rows.kernels import axpy, axpyv, compiled, dot, dotv
from valuefit.solvers.averaged import PlainSteps, td_share
from valuefit.solvers.solver import SQUARE


@dataclass(frozen=True)
class TDC(PlainSteps):
    """TDC on a fixed log: the TD step, corrected so that its mean is the gradient of F.

    theta += step_theta (u delta - psi (psi'w) + v (u'w) - ridge theta), w += step_w (u delta - psi (psi'w)).
    At w = C^-1 (b - A theta) the mean direction is A'w - ridge theta = -grad F, with ratios and traces too
    (the usual GTD(lambda) form has another fixed point). Sublinear. Steps that are adapted go in a metric and weigh
    the TD step, u delta - psi (psi'w), by the length of v beside u there. Prefer it for comparison.

    Sutton et al. 2009; Maei 2011.
    """

    name: ClassVar[str] = "tdc"
    summary: ClassVar[str] = "TD with gradient correction; sublinear"
    order: ClassVar[int] = 5
    refusals: ClassVar[dict[str, str]] = {"more dual features": SQUARE}

    def run(self, *arguments: Any) -> None:
        updates(*arguments)

    def correction(self, problem: Problem, metric: Metric) -> float:
        return td_share(problem, metric)


@compiled
def updates(
    phi, psi, u, now, next, discount, u_row, u_factor, reward,
    theta, w, step_theta, step_w, count, half_life, ridge, identity,
):  # fmt: skip
    scale = 1.0  # theta is kept as scale * y, so that shrinking it by the ridge costs nothing
    for j in range(now.shape[0]):
        slower = 1.0 + (count + j) / half_life
        by_theta, by_w = step_theta / slower, step_w / slower
        delta = reward[j] - scale * dotv(phi, now[j], next[j], discount[j], theta)
        u_w = u_factor[j] * dot(u, u_row[j], w)
        psi_w = 0.0 if identity else dot(psi, now[j], w)
        scale *= 1.0 - by_theta * ridge
        if abs(scale) < 1e-100:
            theta *= scale
            scale = 1.0
        if identity:
            theta -= by_theta / scale * w
            w *= 1.0 - by_w
        else:
            axpy(psi, now[j], -by_theta / scale * psi_w, theta)
            axpy(psi, now[j], -by_w * psi_w, w)
        axpy(u, u_row[j], by_theta / scale * delta * u_factor[j], theta)
        axpyv(phi, now[j], next[j], discount[j], by_theta / scale * u_w, theta)
        axpy(u, u_row[j], by_w * delta * u_factor[j], w)
    theta *= scale
