"""GTD2: stochastic gradient on the saddle point, without variance reduction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from valuefit.rows.draws import at
from valuefit.rows.kernels import axpy, axpyv, compiled, dot, dotv
from valuefit.solvers.averaged import AveragedSteps


@dataclass(frozen=True)
class GTD2(AveragedSteps):
    """GTD2 on a fixed log: x -= step_j * B_t(x) with t drawn at random.

    theta += step_theta (v (u'w) - ridge theta), w += step_w (u delta - psi (psi'w)). Convergence is sublinear,
    because the variance of single-row gradients does not vanish: steps must decay or, by default, iterates are
    averaged. Prefer it for comparison with SVRG and SAGA, which converge linearly at the same cost per step.

    Sutton et al. 2009; Du et al. 2017, section 5.
    """

    name: ClassVar[str] = "gtd2"
    summary: ClassVar[str] = "stochastic gradient on the saddle point; sublinear"
    order: ClassVar[int] = 4

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
            w *= 1.0 - step_w
        axpyv(phi, now, next, discount, step_theta * u_w / scale, theta)
        axpy(u, u_row, step_w * delta * u_factor, w)
        if not step.identity:
            axpy(psi, now, -step_w * psi_w, w)
        if (j + 1) % interval == 0:
            mean_theta += scale / total * theta
            mean_w += w / total
    theta *= scale
