"""TDC: TD with gradient correction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from valuefit.rows.draws import at
from valuefit.rows.kernels import axpy, axpyv, compiled, dot, dotv
from valuefit.solvers.averaged import AveragedSteps
from valuefit.solvers.solver import NEEDS_SQUARE_A


@dataclass(frozen=True)
class TDC(AveragedSteps):
    """TDC on a fixed log: the TD step with a correction, so that its mean is the negative gradient of F.

    theta += step_theta (u delta - psi (psi'w) + v (u'w) - ridge theta), w += step_w (u delta - psi (psi'w)).
    At w = C^-1 (b - A theta) the mean direction is A'w - ridge theta = -grad F, with ratios and traces too (the
    usual GTD(lambda) form has another limit). Convergence is sublinear. Prefer it for comparison.

    Sutton et al. 2009; Maei 2011.
    """

    name: ClassVar[str] = "tdc"
    summary: ClassVar[str] = "TD with gradient correction; sublinear"
    order: ClassVar[int] = 5
    refusals: ClassVar[dict[str, str]] = {"more dual features": NEEDS_SQUARE_A}

    def run(self, *arguments: Any) -> None:
        updates(*arguments)


@compiled
def updates(rows, draws, reward, theta, w, mean_theta, mean_w, interval, count, half_life, step):
    """Updates of theta and w in place; every `interval`-th iterate is added to the means."""
    phi, psi, u = rows
    scale = 1.0  # theta is stored as theta / scale during the loop, so that shrinkage by the ridge costs O(1)
    total = reward.shape[0] // interval
    for j in range(reward.shape[0]):
        now, next, discount, u_row, u_factor = at(draws, j)
        decay = 1.0 + (count + j) / half_life
        step_theta, step_w = step.theta / decay, step.w / decay
        delta = reward[j] - scale * dotv(phi, now, next, discount, theta)
        u_w = u_factor * dot(u, u_row, w)
        psi_w = 0.0 if step.identity else dot(psi, now, w)
        scale *= 1.0 - step_theta * step.ridge
        if abs(scale) < 1e-100:
            theta *= scale
            scale = 1.0
        if step.identity:
            theta -= step_theta / scale * w
            w *= 1.0 - step_w
        else:
            axpy(psi, now, -step_theta / scale * psi_w, theta)
            axpy(psi, now, -step_w * psi_w, w)
        axpy(u, u_row, step_theta / scale * delta * u_factor, theta)
        axpyv(phi, now, next, discount, step_theta / scale * u_w, theta)
        axpy(u, u_row, step_w * delta * u_factor, w)
        if (j + 1) % interval == 0:
            mean_theta += scale / total * theta
            mean_w += w / total
    theta *= scale
