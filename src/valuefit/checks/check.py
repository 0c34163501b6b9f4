"""One check of an evaluation, and the correction of p-values for the number of tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from valuefit.inference.error_estimate import MATERIAL_SIZE
from valuefit.typing import Array

Outcome = Literal["pass", "warn", "fail", "skip"]
BETTER_LOG = (
    "Use a log of more episodes or of a policy that is closer to the evaluated one, or evaluate a policy that is "
    "closer to that of the log."
)
DETERMINING = f"If you gave starts, give some that the log has visited. {BETTER_LOG}"
TEST_LEVEL = 0.05  # of all tests of an evaluation together, after Holm's correction
CERTAIN = 2.0  # standard errors of a change, beyond which it is not chance
FEW_TESTED = 10  # effective episodes or blocks, or ends of episodes; with fewer there is no test
FEW_EPISODES = 20  # effective ones (or steps of an action), with fewer of which intervals are rough, often too short


@dataclass(frozen=True)
class Check:
    """One check. name: what is checked, as "features suffice".

    outcome: "pass"; "warn", a reason for caution; "fail", a reason not to use the estimate; "skip", this log does not
    allow the check. message: what was found and, unless it passed, what to do. statistic: what was measured.
    p_value: of a test, before the correction for the number of tests; None for checks that are not tests.
    size: how much it matters, in standard errors of the policy value; None where it is not known. size_error: its
    standard error, in the same unit, where it has one.
    """

    name: str
    outcome: Outcome
    message: str
    statistic: float | None = None
    p_value: float | None = None
    size: float | None = None
    size_error: float | None = None


def without_probabilities(values: str) -> str:
    """What else to do where behaviour_prob may be wrong; empty for values that need it."""
    needed = values != "state-action"
    return "" if needed else " If it is wrong or unknown, leave it out: state-action values do not need it."


def warn_if(
    bad: bool | Outcome, name: str, statistic: float, warning: str, passed: str, size: float | None = None
) -> Check:  # fmt: skip
    """A check that warns, or has the outcome `bad`, with one message, and passes with the other."""
    outcome = bad if isinstance(bad, str) else "warn" if bad else "pass"
    return Check(name, outcome, passed if outcome == "pass" else warning, statistic, size=size)


def holm(p_values: Sequence[float]) -> Array:
    """Holm's adjusted p-values: rejecting those below a level keeps the chance of any false rejection below it."""
    order = np.argsort(p_values)
    count = len(order)
    adjusted = np.empty(count)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(np.asarray(p_values)[order] * np.arange(count, 0, -1)))
    return adjusted


@dataclass(frozen=True)
class HypothesisTest:
    """A hypothesis test, whose outcome depends on the p-values of the other tests. size, size_error: as of `Check`.

    passed, rejected: the message for each outcome.
    """

    name: str
    statistic: float
    p_value: float
    passed: str
    rejected: str
    size: float | None = None
    size_error: float | None = None


def matters(size: float | None, size_error: float | None, least: float = MATERIAL_SIZE) -> bool:
    """Whether a rejected test is a reason to warn: its size is unknown, or material and not within chance of zero."""
    return size is None or size >= max(least, CERTAIN * (size_error or 0.0))


def judge(tests: Sequence[HypothesisTest]) -> list[Check]:
    """The tests as checks, which warn where Holm's adjusted p-value is below `TEST_LEVEL` and it matters."""
    adjusted = holm([test.p_value for test in tests])
    return [_judged(test, p) for test, p in zip(tests, adjusted, strict=True)]


def _judged(test: HypothesisTest, p: float) -> Check:
    numbers = test.statistic, test.p_value, test.size, test.size_error
    if p >= TEST_LEVEL:
        return Check(test.name, "pass", test.passed, *numbers)
    if not matters(test.size, test.size_error):
        size = f"{test.size:.2g} of its standard errors"
        if test.size_error is not None:
            size += f", with an error of {test.size_error:.2g}"
        return Check(test.name, "pass", f"{test.rejected} It matters little for the policy value: {size}.", *numbers)
    return Check(test.name, "warn", test.rejected, *numbers)
