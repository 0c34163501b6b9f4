"""All checks of an evaluation, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Callable

from valuefit.engine.result import Result
from valuefit.evaluation.checks import alternatives, horizon, numerics, reach, steps, support
from valuefit.evaluation.checks.check import Check, judge
from valuefit.evaluation.checks.hypothesis_tests import hypothesis_tests
from valuefit.evaluation.checks.ridge import ridge, ridge_change
from valuefit.evaluation.errors import ErrorEstimate
from valuefit.evaluation.fit import Fit
from valuefit.evaluation.policy_value import PolicyValue
from valuefit.evaluation.sandwich import Sandwich
from valuefit.typing import Array

WHICH = ("standard", "all")  # "all" also solves the problem with other traces
FIRST: tuple[Callable[[Fit], Check | None], ...] = (
    lambda fit: numerics.solver(fit.result),
    support.determined,
    reach.reachable_range,
    numerics.standard_error,
    numerics.optimisation_error,
    ridge,
    steps.consecutive,
    steps.last_steps,
    horizon.time_limit,
    horizon.resets,
    support.effective_episodes,
    support.one_episode,
    lambda fit: numerics.skewness(fit.value, fit.error),
    lambda fit: numerics.small_sample_bias(fit.result, fit.value, fit.error),
)
LAST: tuple[Callable[[Fit], Check | None], ...] = (
    support.effective_sample,
    support.ratio_tail,
    support.mean_ratio,
    support.episode_weights,
    support.overlap,
    support.unseen_actions,
    support.extrapolation,
    numerics.stability,
    numerics.conditioning,
    horizon.horizon,
    horizon.termination,
)


def run_checks(fit: Fit, which: str = "standard") -> tuple[Check, ...]:
    """The checks that apply to this evaluation: those of the answer, the hypothesis tests, those of the log.

    which: one of `WHICH`.
    """
    tests = hypothesis_tests(fit)
    if which == "all":
        tests += alternatives.trace_tests(fit)
    found = [*(check(fit) for check in FIRST), *judge(tests), *(check(fit) for check in LAST)]
    return tuple(check for check in found if check is not None)


def of_whole(
    result: Result, value: PolicyValue, error: ErrorEstimate, sandwich: Sandwich, c: Array
) -> dict[str, Check]:
    """By name, the checks that need only these numbers, which are known of all episodes of a log in shards.

    sandwich: of the reported weights. c: the mean feature row of the starts.
    """
    found = [numerics.solver(result), numerics.skewness(value, error), numerics.small_sample_bias(result, value, error)]
    if sandwich.problem.ridge:
        found.append(ridge_change(sandwich.problem.ridge, sandwich.without_ridge(), value, c))
    return {check.name: check for check in found if check is not None}
