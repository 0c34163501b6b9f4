"""GTD2: stochastic gradient on the saddle point, without variance reduction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from valuefit.rows.kernels import axpy, axpyv, compiled, dot, dotv
from valuefit.solvers.averaged import PlainSteps


@dataclass(frozen=True)
class GTD2(PlainSteps):
    """GTD2 on a fixed log: x -= step_j * B_t(x) with t drawn at random, over and over.

    theta += step_theta (v (u'w) - ridge theta), w += step_w (u delta - psi (psi'w)). Sublinear: the noise of
    single rows never dies, so steps must decay, or iterates be averaged as they are by default, and digits get ever
    dearer. Prefer it for comparison with SVRG and SAGA, which make it linear at the same cost a step.

    Sutton et al. 2009; Du et al. 2017, section 5.
    """

    name: ClassVar[str] = "gtd2"
    summary: ClassVar[str] = "stochastic gradient on the saddle point; sublinear"
    order: ClassVar[int] = 4

    def run(self, *arguments: Any) -> None:
        updates(*arguments)


@compiled
def updates(
    phi, psi, u, now, next, discount, u_row, u_factor, reward,
    theta, w, step_theta, step_w, count, half_life, ridge, identity,
):  # fmt: skip
    scale = 1.0  # theta is kept as scale * y, so that shrinking it by the ridge costs nothing
    for j in range(now.shape[0]):
        slower = 1.0 + (count + j) / half_life
        delta = reward[j] - scale * dotv(phi, now[j], next[j], discount[j], theta)
        u_w = u_factor[j] * dot(u, u_row[j], w)
        psi_w = 0.0 if identity else dot(psi, now[j], w)
        scale *= 1.0 - step_theta / slower * ridge
        if abs(scale) < 1e-100:
            theta *= scale
            scale = 1.0
        if identity:
            w *= 1.0 - step_w / slower
        axpyv(phi, now[j], next[j], discount[j], step_theta / slower * u_w / scale, theta)
        axpy(u, u_row[j], step_w / slower * delta * u_factor[j], w)
        if not identity:
            axpy(psi, now[j], -step_w / slower * psi_w, w)
    theta *= scale
