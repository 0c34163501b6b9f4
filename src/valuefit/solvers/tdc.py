"""TDC: TD with gradient correction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from valuefit.solvers.averaged import AveragedSteps
from valuefit.solvers.solver import SINGLE_ROWS, SQUARE_A


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
    refusals: ClassVar[dict[str, str]] = {**SQUARE_A, **SINGLE_ROWS}
    td_weight: ClassVar[float] = 1.0
