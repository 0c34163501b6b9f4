"""The mean value over the starts: its rows, its estimate, and how far the solver may still move it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from valuefit.data.transitions import Transitions
from valuefit.data.validation import check_observations, numbers
from valuefit.evaluation.importance import action_probabilities, effective_sample_size
from valuefit.evaluation.policy import Policy
from valuefit.evaluation.sandwich import Sandwich, Spread
from valuefit.features.registry import Fitted
from valuefit.problem.problem import Problem
from valuefit.typing import Array

SHOWN = 20  # weights, at most, that are listed one by one
LEVEL = 0.95


CLEARLY = 1.2  # over what an earlier standard error allows, from where a new one would not make up for it


@dataclass(frozen=True)
class PolicyValue:
    """The mean value over the starts, and how far chance may have moved it.

    standard_error and interval are None where the log cannot tell them; a warning then says why.
    starts: how many. effective_sample_size: steps that the ratios leave, None where there are no ratios.
    solver_error: how far the solver stopped from where it would end, which the interval is wider by on both sides;
    None where it cannot be told.
    """

    estimate: float
    standard_error: float | None
    interval: tuple[float, float] | None
    level: float
    starts: int
    effective_sample_size: float | None = None
    solver_error: float | None = None

    def __repr__(self) -> str:
        if self.standard_error is None or self.interval is None:
            return f"PolicyValue({self.estimate:.5g}, standard error unknown, {self.starts} starts)"
        low, high = self.interval
        return (
            f"PolicyValue({self.estimate:.5g}, standard error {self.standard_error:.2g}, "
            f"{100 * self.level:g}% interval {low:.5g} to {high:.5g}, {self.starts} starts)"
        )


def value_rows(
    fitted: Fitted, values: str, policy: Policy | None, columns: int, observations: Any, actions: Any = None
) -> Any:
    """Rows whose product with theta is the value: of states, of pairs, or of states under the policy."""
    observations = check_observations("observations", observations)
    if values == "state":
        if actions is not None:
            raise ValueError(
                'These are values of states; actions have none. Evaluate with values="state-action" for those.'
            )
        return fitted.transform(observations)
    from valuefit.features.state_action import one_hot, spread

    count = columns // fitted.columns
    if actions is None:
        weights = action_probabilities(policy, observations, count)
    else:
        weights = one_hot(numbers("actions", actions, length=len(observations), dtype=np.int64), count)
    return spread(fitted.transform(observations), weights)


class Starts(NamedTuple):
    """What the policy value is averaged over: rows whose products with theta are the values there.

    first: the steps of the log that these are the starts of, None where others were given.
    """

    rows: Any
    c: Array  # their mean
    first: Array | None


def starts_of(
    log: Transitions, problem: Problem, fitted: Fitted, policy: Policy | None, values: str, starts: Any
) -> Starts:
    first = None
    if starts is None:
        first = np.sort(np.unique(log.episode, return_index=True)[1])  # not `begins`, which also marks gaps of a slice
    given = np.asarray(starts) if first is None else log.observations[log.now[first]]
    if given.shape[:1] == (0,):
        raise ValueError("starts is empty: give at least one observation, or None for those of the log.")
    rows = value_rows(fitted, values, policy, problem.d, given)
    return Starts(rows, np.asarray(rows.mean(axis=0), dtype=np.float64).ravel(), first)


def _spread(sandwich: Sandwich, over: Starts) -> tuple[Array, Spread]:
    """The values at the starts and the spread of their mean; if they are the log's own, how they vary counts too."""
    each, share = _shares(sandwich, over)
    return each, sandwich.error(over.c, share)


def _shares(sandwich: Sandwich, over: Starts) -> tuple[Array, Array | None]:
    """The values at the starts, and what every step adds to the spread of their mean where they are the log's own."""
    each = np.asarray(over.rows @ sandwich.theta).ravel()
    share = None
    if over.first is not None:
        share = np.zeros(sandwich.problem.n)
        share[over.first] = (each - each.mean()) / len(each)
    return each, share


class Reported:
    """How near what is reported is to where it would end: called with weights, as `solve` does.

    Gives the largest solver error over a tenth of its standard error, and the passes of this look; infinite where the
    policy value has no standard error to compare with. Standard errors hardly change any more once they were looked
    at: where those of an earlier look say that it is not near enough yet, no new ones are taken.
    """

    def __init__(self, sandwich: Sandwich, over: Starts) -> None:
        self.sandwich, self.over = sandwich, over
        d = sandwich.problem.d
        self.numbers: list[Array] = [over.c, *(np.eye(d) if d <= SHOWN else ())]
        self.allowed: list[float | None] | None = None  # errors, as of the last look

    def __call__(self, theta: Array) -> tuple[float, float]:
        sandwich = self.sandwich.at(theta)
        cheap, dear = sandwich.passes(len(self.numbers))
        if self.allowed is not None:
            off = self._over(sandwich.solver_errors(self.numbers))
            if off > CLEARLY:
                return off, cheap
        share = _shares(sandwich, self.over)[1]
        spreads = sandwich.errors([(c, share if c is self.over.c else None) for c in self.numbers])
        if spreads[0].solver_error is None:
            return np.inf, cheap + dear
        self.allowed = [spread.allowed for spread in spreads]
        return max(spread.unfinished for spread in spreads), cheap + dear

    def _over(self, errors: list[float | None]) -> float:
        assert self.allowed is not None
        pairs = [(error, allowed) for error, allowed in zip(errors, self.allowed, strict=True) if error and allowed]
        return max((error / allowed for error, allowed in pairs), default=0.0)


def at_starts(log: Transitions, sandwich: Sandwich, over: Starts, values: str) -> tuple[PolicyValue, Spread]:
    """The mean value over the starts."""
    each, spread = _spread(sandwich, over)
    estimate = float(each.mean())
    ratios = values == "state" and bool((log.ratio != 1).any())
    value = PolicyValue(
        estimate=estimate,
        standard_error=spread.standard_error,
        interval=spread.interval(estimate, LEVEL),
        level=LEVEL,
        starts=len(each),
        effective_sample_size=effective_sample_size(log.ratio) if ratios else None,
        solver_error=spread.solver_error,
    )
    return value, spread
