"""Whether values are possible: which discounted sums the logged rewards can add up to."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr, stdtrit

from valuefit.evaluation.checks.check import BETTER_LOG, Check
from valuefit.evaluation.fit import Fit
from valuefit.evaluation.sandwich import AdjointMethod
from valuefit.rows.storage import dense
from valuefit.typing import Array

NAME = "reachable range"
ROUNDING = 1e-6  # relative; a value this close to the end of the range is inside
MAX_EXCESS = 0.05  # of the width of the range; how far an interval or an uncertain estimate may be beyond it
SAMPLED_STATES = 200  # logged steps at whose states values are checked
STANDARD_ERRORS = 3.0  # beyond the range, from which a value at a logged state counts as outside
MAX_IMPOSSIBLE_SHARE = 0.01  # of the sampled states
REMEDY = (
    "Use features that can express the value (smaller tiles, a higher order, more centres), or a log with more steps "
    "where the policy goes."
)


class Reach(NamedTuple):
    """The smallest and the largest discounted sum of rewards."""

    low: float
    high: float

    def beyond(self, value: Any) -> Any:
        """How far values lie outside, up to rounding; 0 inside."""
        margin = ROUNDING * max(abs(self.low), abs(self.high))
        return np.maximum(np.maximum(self.low - margin - value, value - self.high - margin), 0.0)


def reachable(fit: Fit) -> Reach | None:
    """What the logged rewards can add up to; None with discount 1, where there is no bound.

    Episode lengths do not narrow it: another policy may last longer, and truncated episodes go on.
    """
    if fit.discount == 1:
        return None
    low, high = float(fit.log.reward.min()), float(fit.log.reward.max())
    if fit.log.terminated.any():  # then a sum may also stop early
        low, high = min(low, 0.0), max(high, 0.0)
    return Reach(low / (1 - fit.discount), high / (1 - fit.discount))


def reachable_range(fit: Fit) -> Check:
    """The estimate, its interval, and the values at logged states against what rewards can add up to."""
    reach = reachable(fit)
    if reach is None:
        return Check(NAME, "skip", "With discount 1 the sums of rewards have no bound.")
    value, error = fit.value, fit.value.standard_error
    least, largest = f"{fit.log.reward.min():.5g}", f"{fit.log.reward.max():.5g}"
    rewards = f"rewards of {least}" if least == largest else f"rewards from {least} to {largest}"
    rewards += f" with discount {fit.discount:g} add up to {reach.low:.5g} to {reach.high:.5g}"
    outside = float(reach.beyond(value.estimate))
    size = outside / error if error else None
    clearly = outside > 0 and (size is None or size > 1)
    low, high = value.interval or (value.estimate, value.estimate)
    interval, excess = f"from {low:.5g} to {high:.5g}", float(reach.beyond(np.array([low, high])).max())
    if not clearly and excess > 0 and high - low > reach.high - reach.low:
        text = (
            f"This log cannot say what the policy is worth: the interval {interval} is wider than the range of what "
            f"is possible, as {rewards}. {BETTER_LOG}"
        )
        return Check(NAME, "fail", text, excess, size=size)
    if outside > 0:
        text = f"The policy value {value.estimate:.5g} is impossible: {rewards}. {REMEDY}"
        far = clearly or outside > MAX_EXCESS * (reach.high - reach.low)
        return Check(NAME, "fail" if far else "warn", text, outside, size=size)
    if excess > MAX_EXCESS * (reach.high - reach.low):
        text = (
            f"The interval {interval} contains impossible values: {rewards}. The log says little about this policy. "
            f"{BETTER_LOG}"
        )
        return Check(NAME, "warn", text, excess)
    share = _impossible_share(fit, reach)
    if share > MAX_IMPOSSIBLE_SHARE:
        text = f"Values at {share:.0%} of the logged steps are impossible: {rewards}. {REMEDY}"
        return Check(NAME, "warn", text, share)
    text = f"The value, its interval and the values at logged states are possible: {rewards}."
    return Check(NAME, "pass", text, share)


def _impossible_share(fit: Fit, reach: Reach) -> float:
    """The share of sampled logged steps whose value is outside by more than three standard errors."""
    errors = fit.errors
    if errors.sandwich.clusters < 2 or errors.sandwich.method is AdjointMethod.ITERATIVE:
        return 0.0
    rows = sampled_rows(fit, SAMPLED_STATES)
    excess = reach.beyond(rows @ fit.result.theta)
    outside = np.flatnonzero(excess > 0)  # mostly none, so that no standard errors are needed
    if not len(outside):
        return 0.0
    standard_error = np.linalg.norm(rows[outside] @ errors.changes.T, axis=1)
    quantile = stdtrit(fit.error.degrees_of_freedom, ndtr(STANDARD_ERRORS))
    clearly = excess[outside] > quantile * standard_error
    return float((clearly & errors.sandwich.determines(rows[outside])).sum()) / len(rows)


def sampled_rows(fit: Fit, count: int) -> Array:
    """The feature rows of this many steps of the log, evenly spaced."""
    steps = np.unique(np.linspace(0, fit.problem.n - 1, count).astype(np.int64))
    return dense(fit.problem.phi.take(fit.problem.now[steps]))
