"""GTD2: stochastic gradient on the saddle point, without variance reduction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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
    td_weight: ClassVar[float] = 0.0
