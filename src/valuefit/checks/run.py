"""All checks of an evaluation, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from valuefit.checks import alternatives, horizon, numerics, reach, steps, support
from valuefit.checks.check import Check, judge, warn_if
from valuefit.checks.hypothesis_tests import hypothesis_tests
from valuefit.checks.occupancy import occupancy
from valuefit.checks.ridge import ridge
from valuefit.checks.stays import stays
from valuefit.features.kernel import STEPS_PER_LANDMARK
from valuefit.inference.fit import Fit

WHICH = ("standard", "all")  # "all" also solves the problem with other traces


def run_checks(fit: Fit, which: str = "standard") -> tuple[Check, ...]:
    """The checks that apply to this evaluation: those of the answer, the hypothesis tests, those of the log.

    which: one of `WHICH`.
    """
    tests = hypothesis_tests(fit)
    if which == "all":
        tests += alternatives.trace_tests(fit)
    value, error, possible = fit.value, fit.error, reach.reachable(fit)
    checks = [
        numerics.solver(fit.result),
        support.determined(fit),
        reach.reachable_range(value, possible),
        numerics.standard_error(fit),
        numerics.optimisation_error(fit),
        ridge(fit),
        *steps.source(fit),
        horizon.time_limit(fit),
        horizon.resets(fit),
        support.effective_episodes(fit),
        support.one_episode(fit),
        numerics.skewness(value, error),
        numerics.small_sample_bias(fit.result, value, error),
        reach.reachable_values(fit, possible),
        *occupancy(fit),
        *judge(tests),
        support.effective_sample(fit),
        support.ratio_tail(fit),
        support.mean_ratio(fit),
        support.order_of_actions(fit),
        support.overlap(fit),
        support.unseen_actions(fit),
        stays(fit),
        support.extrapolation(fit),
        numerics.stability(fit),
        numerics.conditioning(fit),
        horizon.horizon(fit),
        horizon.termination(fit),
    ]
    return tuple(check for check in checks if check is not None)


def checks_of_sample(checks: Sequence[Check], steps: int, columns: int, limit: int) -> tuple[Check, ...]:
    """The checks of a sample of a log in shards, whose messages say so unless they passed, and one of its size.

    A sample that is too small for its features is a reason for caution: it neither clears a value nor rules it out.
    limit: with which a sample has enough steps, in bytes; 0 if none has.
    """
    whole = ("consecutive steps", "last steps", "order of actions")  # these are known of the whole log
    checks = [
        check
        if check.outcome == "pass" or check.name in whole
        else replace(check, message=f"In a sample of {steps:,} steps: {check.message}")
        for check in checks
    ]
    needed, advice = STEPS_PER_LANDMARK * columns, "Use fewer features, or load the log into memory."
    if limit:
        advice = f"Load the log with a limit of {-(-limit // 10**6)}MB or more, or use fewer features."
    text = f"The checks are those of a sample of {steps:,} steps for {columns:,} features"
    warning = (
        f"{text}, fewer than {STEPS_PER_LANDMARK} for each, so they may miss what is wrong or find faults by chance. "
        f"{advice}"
    )
    if steps < needed:
        checks = [replace(check, outcome="warn") if check.outcome == "fail" else check for check in checks]
    return (*checks, warn_if(steps < needed, "size of the sample", steps / columns, warning, f"{text}."))
