"""The policy value: the mean value over the starts, its errors, and the check that decides when a solver may stop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from valuefit.data.transitions import Transitions
from valuefit.data.validation import array_of, check_observations, number, numbers
from valuefit.features.registry import Fitted
from valuefit.inference.adjoints import AdjointSolver, Equations
from valuefit.inference.error_estimate import ErrorEstimate, Kind, LinearFunction
from valuefit.inference.errors import MAX_LISTED_WEIGHTS, Errors
from valuefit.inference.shards import Shard
from valuefit.messages import shown
from valuefit.policies.importance import action_probabilities
from valuefit.policies.policy import Policy
from valuefit.problem.problem import Problem
from valuefit.rows.storage import require_range
from valuefit.typing import Array

INTERVAL_LEVEL = 0.95  # unless another is given
Side = Literal["both", "lower", "upper"]
SIDES = ("both", "lower", "upper")
ROUNDING = 1e-10  # relative, of a policy value
CLEARLY_ABOVE_TOLERANCE = 1.2  # an excess that new standard errors are not expected to turn into a success


@dataclass(frozen=True)
class PolicyValue:
    """The mean value over the starts, with its statistical error and its solver error.

    standard_error, interval: None where the log does not suffice to estimate them; a warning explains why.
    starts: the number of starts. effective_sample_size: of the importance ratios, in steps; None without ratios.
    solver_error: the distance to the estimate at full convergence, included on both sides of the interval;
    None where it is unknown. method: of the standard error, "cr3" (jackknife by episode) or "cr1" (sandwich).
    effective_episodes: the number of equally important episodes that would give as precise a standard error; None
    without one. bias: of the estimate in a log of this size, by the jackknife, if it is more than half a standard
    error, else 0; the interval is then longer by it on one side, so that it suits the estimate without it, too.
    unseen: (at most 0, at least 0), what state-action pairs without data change in the estimate if they have values
    within those of the logged steps; the interval is longer by it.
    possible: what declared rewards can add up to, None if none were declared; the interval is cut there.
    """

    estimate: float
    standard_error: float | None
    interval: tuple[float, float] | None
    level: float
    starts: int
    effective_sample_size: float | None = None
    solver_error: float | None = None
    effective_episodes: float | None = None
    method: Kind = "cr3"
    bias: float = 0.0
    unseen: tuple[float, float] = (0.0, 0.0)
    possible: tuple[float, float] | None = None

    @property
    def is_random(self) -> bool:
        """Whether there is a standard error that is more than the rounding error of the value."""
        return self.standard_error is not None and self.standard_error > ROUNDING * abs(self.estimate)

    def interval_at(self, level: float, side: Side = "both") -> tuple[float, float] | None:
        """The interval at another level; None without a standard error.

        side: "both"; "lower" for a lower confidence bound, (bound, inf); "upper" for an upper one, (-inf, bound).
        """
        level = check_level(level)
        if not isinstance(side, str) or side not in SIDES:
            raise ValueError(f'side is {shown(side)}; it must be "both", "lower" or "upper".')
        if self.standard_error is None or (level == self.level and side == "both"):
            return self.interval
        assert self.effective_episodes is not None  # known with the standard error
        error = ErrorEstimate(self.standard_error, self.effective_episodes, solver_error=self.solver_error)
        half_width = error.half_width((1 - level) / 2 if side == "both" else 1 - level)
        low, high = around(self.estimate, half_width, self.bias, self.unseen)
        return self._cut((low if side != "upper" else -np.inf), (high if side != "lower" else np.inf))

    def allowing_for(self, unseen: tuple[float, float] | None) -> PolicyValue:
        """With an interval that is longer by what pairs without data could change; None: it is not known."""
        if self.interval is None or unseen is None:
            return self
        low, high = self.interval
        return replace(self, unseen=unseen, interval=(low + unseen[0], high + unseen[1]))

    def within(self, low: float, high: float) -> PolicyValue:
        """With intervals that are cut at these bounds of what is possible."""
        bounded = replace(self, possible=(low, high))
        return bounded if self.interval is None else replace(bounded, interval=bounded._cut(*self.interval))

    def _cut(self, low: float, high: float) -> tuple[float, float]:
        """The possible part of an interval; all of it where no part is possible, which a check says."""
        least, most = self.possible or (-np.inf, np.inf)
        return (max(low, least), min(high, most)) if low <= most and high >= least else (low, high)

    def __repr__(self) -> str:
        if self.standard_error is None or self.interval is None:
            return f"PolicyValue({self.estimate:.5g}, standard error unknown, {self.starts} starts)"
        low, high = self.interval
        return (
            f"PolicyValue({self.estimate:.5g}, standard error {self.standard_error:.2g}, "
            f"{100 * self.level:g}% interval {low:.5g} to {high:.5g}, {self.starts} starts)"
        )


def around(
    estimate: float, half_width: float, bias: float, unseen: tuple[float, float] = (0.0, 0.0)
) -> tuple[float, float]:
    """The interval with this half width around the estimate and the one without the bias, longer by `unseen`."""
    return estimate - half_width - max(bias, 0.0) + unseen[0], estimate + half_width - min(bias, 0.0) + unseen[1]


def check_level(level: Any) -> float:
    """The level of an interval, validated."""
    return number("level", level, "it must be between 0 and 1, for example 0.95", lambda x: 0 < x < 1)


def value_rows(
    fitted: Fitted, values: str, policy: Policy | None, columns: int, observations: Any, actions: Any = None
) -> Any:
    """Rows (m, columns) whose product with theta is the value of observations (m, ...).

    values="state": the state value. "state-action": the value of the given actions (m,), or, without actions, the mean
    over the actions of the policy.
    """
    observations = check_observations("observations", observations)
    if values == "state":
        if actions is not None:
            raise ValueError(
                'These are state values, which take no actions. Evaluate with `values="state-action"` for values of '
                "actions."
            )
        return _float64(fitted.transform(observations))
    from valuefit.features.state_action import one_hot, spread

    count = columns // fitted.columns
    if actions is None:
        weights = action_probabilities(policy, observations, count)
    else:
        weights = one_hot(numbers("actions", actions, length=len(observations), dtype=np.int64), count)
    return _float64(spread(fitted.transform(observations), weights))


def _float64(rows: Any) -> Any:
    """Few rows, of which means are taken."""
    return rows.astype(np.float64, copy=False)


def starts_of(
    log: Transitions, problem: Problem, fitted: Fitted, policy: Policy | None, values: str, starts: Any
) -> LinearFunction:
    """The mean value over the given starts, or over the first observation of each episode where `starts` is None."""
    first = None
    if starts is None:
        # not `begins`, which is also True after a gap in a sliced log
        first = np.sort(np.unique(log.episode, return_index=True)[1])
    given = log.observations[log.now[first]] if first is not None else log.as_stored(starts)
    given = array_of("starts", given, place="in row")
    if given.shape[:1] == (0,):
        raise ValueError("starts is empty: give at least one observation, or None for those of the log.")
    rows = value_rows(fitted, values, policy, problem.d, given)
    require_range("Features of the starts", float(abs(rows).max()))
    return LinearFunction(np.asarray(rows.mean(axis=0), dtype=np.float64).ravel(), rows, first)


class Reported:
    """The largest relative solver error of the reported numbers: theta -> (error, cost of this check in passes).

    The error is relative to a tenth of the standard error, infinite where the policy value has no standard error;
    `solve` stops at 1. Standard errors change little between checks: while the solver errors clearly exceed the
    tolerances of the previous check, new standard errors are not computed.
    """

    def __init__(self, solver: AdjointSolver, shard: Shard, starts: LinearFunction) -> None:
        self.solver, self.shard, d = solver, shard, solver.problem.d
        weights = np.eye(d) if d <= MAX_LISTED_WEIGHTS else ()
        self.functions = [starts, *(LinearFunction(row) for row in weights)]
        self.tolerances: list[float | None] | None = None  # of the previous check

    def __call__(self, theta: Array) -> tuple[float, float]:
        equations = Equations(self.solver, theta)
        solver_error_passes, standard_error_passes = self._passes(equations)
        if self.tolerances is not None:
            vectors = [function.c for function in self.functions]
            largest = self._largest_relative_error(equations.solver_errors(vectors))
            if largest > CLEARLY_ABOVE_TOLERANCE:
                return largest, solver_error_passes
        estimates = Errors.in_memory(equations, self.shard, "cr1").errors(self.functions)
        passes = solver_error_passes + standard_error_passes
        if estimates[0].solver_error is None:
            return np.inf, passes
        self.tolerances = [estimate.solver_tolerance for estimate in estimates]
        return max(estimate.relative_solver_error for estimate in estimates), passes

    def _passes(self, equations: Equations) -> tuple[float, float]:
        """The cost in passes of the solver errors, and the additional cost of their standard errors.

        Adjoint systems and moments are not counted, because the final intervals need them anyway.
        """
        problem, columns = equations.problem, 1 + len(self.functions) * (2 if equations.w.any() else 1)
        each = 0.25 if problem.phi.sparse else problem.cost.flops(2.0 * problem.phi.stored)
        return (1.0 if equations.iterative else 0.0), 0.5 + each * columns

    def _largest_relative_error(self, errors: list[float | None]) -> float:
        assert self.tolerances is not None
        pairs = [(error, tol) for error, tol in zip(errors, self.tolerances, strict=True) if error and tol]
        return max((error / tol for error, tol in pairs), default=0.0)


def with_errors(
    estimate: float, starts: int, error: ErrorEstimate, level: float, sample_size: float | None, method: Kind
) -> PolicyValue:
    """The value at this number of starts with this error; sample_size: the effective one of the ratios."""
    known = error.standard_error is not None
    bias = error.material_bias if abs(error.bias) > ROUNDING * abs(estimate) else 0.0
    return PolicyValue(
        estimate=estimate,
        standard_error=error.standard_error,
        interval=around(estimate, error.half_width((1 - level) / 2), bias) if known else None,
        level=level,
        starts=starts,
        effective_sample_size=sample_size,
        solver_error=error.solver_error,
        effective_episodes=error.effective_clusters if known else None,
        method=method,
        bias=bias,
    )
