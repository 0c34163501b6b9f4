"""Whether values are possible: which discounted sums the logged rewards can add up to."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr, stdtrit

from valuefit.checks.check import BETTER_LOG, Check, warn_if
from valuefit.checks.instruments import evenly_spaced
from valuefit.inference.fit import Fit
from valuefit.inference.policy_value import PolicyValue
from valuefit.inference.reach import Reach
from valuefit.rows.storage import dense
from valuefit.typing import Array

MAX_EXCESS = 0.05  # of the width of the range; how far an interval or an uncertain estimate may be beyond it
REMEDY = (
    "Use features that can express the value (smaller tiles, a higher order, more centres), or a log with more steps "
    "where the policy goes."
)


def reachable_range(value: PolicyValue, reach: Reach | None) -> Check:
    """The estimate and its interval, before it is cut, against what rewards can add up to."""
    if reach is None:
        return Check("reachable range", "skip", "With discount 1 the sums of rewards have no bound.")
    width, error, name = reach.high - reach.low, value.standard_error, "reachable range"
    outside = float(reach.beyond(value.estimate))
    size = outside / error if error else None
    clearly = outside > 0 and (size is None or size > 1)
    low, high = value.interval or (value.estimate, value.estimate)
    interval, excess = f"from {low:.5g} to {high:.5g}", float(reach.beyond(np.array([low, high])).max())
    if not clearly and excess > 0 and high - low > width:
        text = (
            f"This log cannot say what the policy is worth: the interval {interval} is wider than the range of what "
            f"is possible, as {reach.reason}. {BETTER_LOG}"
        )
        return Check(name, "fail", text, excess, size=size)
    if outside > 0:
        text = f"The policy value {value.estimate:.5g} is impossible: {reach.reason}. {REMEDY}"
        return Check(name, "fail" if clearly or outside > MAX_EXCESS * width else "warn", text, outside, size=size)
    return warn_if(
        excess > MAX_EXCESS * width, name, excess,
        f"The interval {interval} contains impossible values: {reach.reason}. The log says little about this policy. "
        f"{BETTER_LOG}",
        f"The value and its interval are possible: {reach.reason}.",
    )  # fmt: skip


def reachable_values(fit: Fit, reach: Reach | None) -> Check | None:
    """The values at logged states against what rewards can add up to."""
    if reach is None:
        return None
    share = _impossible_share(fit, reach)
    return warn_if(
        share > 0.01, "reachable values", share,
        f"Values at {share:.0%} of the logged steps are impossible: {reach.reason}. {REMEDY}",
        f"The values at logged states are possible: {reach.reason}.",
    )  # fmt: skip


def _impossible_share(fit: Fit, reach: Reach) -> float:
    """The share of sampled logged steps whose value is outside by more than three standard errors."""
    errors = fit.errors
    if not errors.has_row_intervals:
        return 0.0
    rows = sampled_rows(fit, 200)
    excess = reach.beyond(rows @ fit.result.theta)
    outside = np.flatnonzero(excess > 0)  # mostly none, so that no standard errors are needed
    if not len(outside):
        return 0.0
    standard_error = np.linalg.norm(rows[outside] @ errors.whole.changes.T, axis=1)
    quantile = stdtrit(fit.error.degrees_of_freedom, ndtr(3.0))
    clearly = excess[outside] > quantile * standard_error
    return float((clearly & errors.equations.solver.determines(rows[outside])).sum()) / len(rows)


def sampled_rows(fit: Fit, count: int = 1000) -> Array:
    """The feature rows of this many steps of the log, evenly spaced."""
    return dense(fit.problem.phi.take(fit.problem.now[evenly_spaced(fit.problem.n, count)]))
