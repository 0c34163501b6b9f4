"""The error of one number c'theta, from the parts of the clusters in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from valuefit.data.transitions import effective_sample_size
from valuefit.engine.statistical_tolerance import NEGLIGIBLE_ERROR
from valuefit.inference.student import t_quantile
from valuefit.typing import Array

Kind = Literal["cr3", "cr1"]  # of standard errors: the jackknife, and the sandwich covariance
KINDS = ("cr3", "cr1")
MAX_SHARE_OF_ONE = 0.5  # of the variance; above it the value rests on one cluster, if many count by their weights:
MIN_CLUSTERS_OF_SHARE = 20  # effective ones; with fewer of unequal weight such a share is common in clean logs
MATERIAL_SIZE = 0.5  # standard errors; such a bias lowers the coverage of a 95% interval to 92%


@dataclass(frozen=True)
class ErrorEstimate:
    """Statistical and solver error of one number c'theta.

    standard_error: None where it is unknown; `reason` then explains why. effective_clusters: the number of equally
    important clusters that would give as precise a standard error; Student's t has one degree of freedom less.
    determined: False where the data do not determine c'theta, so that the estimate is that of the minimum-norm theta
    and has no standard error. solver_error: |c'(theta - theta*)|, theta* the exact minimiser on this log; None where
    it is unknown. one_cluster: whether the value rests on a single cluster. largest_share: of a cluster in the squared
    standard error. skewness: of c'theta, from the parts of the clusters in it; k rare events of equal size have
    1 / sqrt(k). bias: of c'theta in a log of this size, by the jackknife; 0 by CR1.
    """

    standard_error: float | None
    effective_clusters: float = 0.0
    determined: bool = True
    reason: str = ""
    solver_error: float | None = None
    one_cluster: bool = False
    largest_share: float = 0.0
    skewness: float = 0.0
    bias: float = 0.0

    @property
    def degrees_of_freedom(self) -> float:
        """Degrees of freedom of Student's t."""
        return max(self.effective_clusters - 1, 1.0)

    def interval(self, estimate: float, level: float) -> tuple[float, float] | None:
        """estimate -+ (t * standard_error + solver_error), two-sided at this level."""
        if self.standard_error is None:
            return None
        half_width = self.half_width((1 - level) / 2)
        return estimate - half_width, estimate + half_width

    def half_width(self, tail: float) -> float:
        """From the estimate to the end of an interval that leaves this probability beyond it."""
        assert self.standard_error is not None
        quantile = float(t_quantile(self.degrees_of_freedom, tail))
        return quantile * self.standard_error + (self.solver_error or 0.0)

    @property
    def material_bias(self) -> float:
        """The bias if it is more than half a standard error, else 0."""
        return self.bias if abs(self.bias) > MATERIAL_SIZE * (self.standard_error or 0.0) else 0.0

    @property
    def solver_tolerance(self) -> float | None:
        """The negligible solver error, a tenth of the standard error; None where that is unknown."""
        return None if self.standard_error is None else NEGLIGIBLE_ERROR * self.standard_error

    @property
    def relative_solver_error(self) -> float:
        """solver_error / solver_tolerance: negligible up to 1; 0 where either is unknown."""
        if not self.solver_error or self.solver_tolerance is None:
            return 0.0
        return self.solver_error / self.solver_tolerance if self.solver_tolerance else np.inf


class LinearFunction(NamedTuple):
    """c'theta, (d,). If c is the mean row of starts of the log: `rows` (m, d), and the steps that they belong to.

    total: the number of starts of a log in parts, whose rows come with the parts.
    """

    c: Array
    rows: Any = None
    first: Array | None = None
    total: int | None = None

    @property
    def starts(self) -> int:
        """The number of starts of the whole log."""
        return int(self.rows.shape[0]) if self.total is None else self.total


def effective_count(expected: Array) -> float:
    """The number of equally important clusters, from the expected squares of their parts, (clusters,)."""
    return effective_sample_size(expected) or float(len(expected))


def error_of_parts(parts: Array, effective: float, solver_error: float, *, undetermined: bool) -> ErrorEstimate:
    """The error of a number in which the clusters have these parts.

    undetermined: whether the number is undetermined without one of them.
    """
    size, count = float(np.linalg.norm(parts)), len(parts)
    shares = parts / size if size else parts
    largest = float(np.abs(shares).max()) ** 2
    dominated = effective >= MIN_CLUSTERS_OF_SHARE and largest > MAX_SHARE_OF_ONE
    return ErrorEstimate(
        size, effective, solver_error=solver_error, one_cluster=dominated or undetermined, largest_share=largest,
        skewness=float(np.sum(shares**3)), bias=float(bias_of(parts.sum(), count)),
    )  # fmt: skip


def bias_of(total: Any, clusters: int) -> Any:
    """The bias of numbers in which the parts of the clusters add up to this: (G-1) times the mean of v_g - v.

    0 if the parts are those of CR1.
    """
    return -count_factor("cr3", clusters) * total


def count_factor(kind: Kind, clusters: int) -> float:
    """What parts of clusters are multiplied by, for a standard error without bias if they are equal."""
    return float(np.sqrt((clusters - 1) / clusters if kind != "cr1" else clusters / (clusters - 1)))
