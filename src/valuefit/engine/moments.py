"""`Moments`: sums over parts of a log that can be added and merged, and solved at any time."""

from __future__ import annotations

from typing import Any

from valuefit.data.gaps import Filling
from valuefit.data.transitions import Transitions, check_log
from valuefit.engine.loop import solve
from valuefit.engine.result import Result
from valuefit.features.registry import Fitted, make
from valuefit.problem.arguments import fraction, refuse_infinite_sums, ridge_of
from valuefit.problem.moment_problem import MomentProblem, MomentSums
from valuefit.problem.problem import Problem


class Moments:
    """A, b and C of a log that arrives in parts, for people who loop over their data themselves.

    features: as in `evaluate`; they are fitted to the first part, unless they are fitted already. discount, trace: as
    in `Problem`. A part consists of whole episodes. Moments are sums, so parts can be added in any order, and those of
    other processes merged; memory does not grow with the log.
    """

    def __init__(self, features: Any = "auto", *, discount: float = 0.99, trace: float = 0.0) -> None:
        self.features, self.discount, self.trace = features, fraction("discount", discount), fraction("trace", trace)
        self.fitted: Fitted | None = features if isinstance(features, Fitted) else None
        self.sums: MomentSums | None = None
        self.filling: Filling | None = None  # of the gaps in the parts

    def __repr__(self) -> str:
        if self.sums is None:
            return "Moments(no steps)"
        return f"Moments({self.sums.n} steps, {len(self.sums.b)} features)"

    def add(self, log: Transitions) -> Moments:
        """Add whole episodes; returns self."""
        check_log("add", log)
        self._require_same_filling(log.filling)
        if self.fitted is None:
            self.fitted, _ = make(self.features, log, effective_share=log.effective_share)
        problem = Problem(log, self.fitted, discount=self.discount, trace=self.trace, part=True)
        self._add(MomentSums.of(problem), log.filling)
        return self

    def merge(self, other: Moments) -> Moments:
        """Add the sums of another, with the same features, discount and trace; returns self."""
        if not isinstance(other, Moments):
            raise ValueError(f"merge takes Moments, not {type(other).__name__}.")
        if (self.discount, self.trace) != (other.discount, other.trace):
            raise ValueError(
                f"The discounts and traces are {self.discount:g}, {self.trace:g} and {other.discount:g}, "
                f"{other.trace:g}. Merge moments that were made with the same ones."
            )
        if other.sums is None or other.fitted is None:
            return self
        if self.fitted is None:
            self.fitted = other.fitted
        elif self.fitted is not other.fitted and (self.fitted.spec is None or self.fitted.spec != other.fitted.spec):
            raise ValueError("The two moments have different features. Fit the features once, and give them to both.")
        self._require_same_filling(other.filling)
        self._add(other.sums, other.filling)
        return self

    def _require_same_filling(self, filling: Filling | None) -> None:
        """Raise ValueError if the gaps of another part are filled by other medians, or in other columns."""
        if self.sums is not None and filling != self.filling:
            raise ValueError(
                "The gaps in the observations of this log are not filled like those of the logs before it, so equal "
                'observations would have different features. Load all of them at once with `missing="flag"`, and add '
                "that log, or parts of it."
            )

    def _add(self, sums: MomentSums, filling: Filling | None) -> None:
        self.sums, self.filling = sums if self.sums is None else self.sums + sums, filling

    def problem(self, *, ridge: float = 0.0) -> MomentProblem:
        """The problem of all that was added."""
        if self.sums is None:
            raise ValueError("There are no steps yet: add a log first.")
        refuse_infinite_sums(self.discount == 1 and not self.sums.terminated, "add terminated steps")
        return MomentProblem(self.sums, trace=self.trace, discount=self.discount, ridge=ridge_of(ridge))

    def solve(self, *, ridge: float = 0.0) -> Result:
        """The minimiser for all that was added, by `lstd`."""
        return solve(self.problem(ridge=ridge), "lstd")
