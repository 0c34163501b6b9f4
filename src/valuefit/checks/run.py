"""All checks of an evaluation, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from valuefit.checks import alternatives, horizon, numerics, reach, steps, support
from valuefit.checks.check import Check, judge
from valuefit.checks.hypothesis_tests import hypothesis_tests
from valuefit.checks.occupancy import occupancy
from valuefit.checks.ridge import ridge
from valuefit.checks.stays import stays
from valuefit.features.kernel import STEPS_PER_LANDMARK
from valuefit.inference.fit import Fit

OF_WHOLE_LOG = ("consecutive steps", "last steps", "order of actions")  # also where they are computed with a sample
WHICH = ("standard", "all")  # "all" also solves the problem with other traces
FIRST: tuple[Callable[[Fit], Check | None], ...] = (
    lambda fit: numerics.solver(fit.result),
    support.determined,
    lambda fit: reach.reachable_range(fit.value, reach.reachable(fit)),
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
    reach.reachable_values,
)
LAST: tuple[Callable[[Fit], Check | None], ...] = (
    support.effective_sample,
    support.ratio_tail,
    support.mean_ratio,
    support.order_of_actions,
    support.overlap,
    support.unseen_actions,
    stays,
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
    found = [
        *(check(fit) for check in FIRST), *occupancy(fit), *judge(tests), *(check(fit) for check in LAST),
    ]  # fmt: skip
    return tuple(check for check in found if check is not None)


def checks_of_sample(checks: Sequence[Check], steps: int, columns: int, limit: int) -> tuple[Check, ...]:
    """The checks of a sample of a log in shards, whose messages say so unless they passed, and one of its size.

    A sample that is too small for its features is a reason for caution: it neither clears a value nor rules it out.
    limit: with which a sample has enough steps, in bytes; 0 if none has.
    """
    checks = [
        check
        if check.outcome == "pass" or check.name in OF_WHOLE_LOG
        else replace(check, message=f"In a sample of {steps:,} steps: {check.message}")
        for check in checks
    ]
    name, needed = "size of the sample", STEPS_PER_LANDMARK * columns
    sizes = f"The checks are those of a sample of {steps:,} steps for {columns:,} features"
    if steps >= needed:
        return (*checks, Check(name, "pass", f"{sizes}.", steps / columns))
    advice = "Use fewer features, or load the log into memory."
    if limit:
        advice = f"Load the log with a limit of {-(-limit // 10**6)}MB or more, or use fewer features."
    text = (
        f"{sizes}, fewer than {STEPS_PER_LANDMARK} for each, so they may miss what is wrong or find faults by chance."
    )
    milder = [replace(check, outcome="warn") if check.outcome == "fail" else check for check in checks]
    return (*milder, Check(name, "warn", f"{text} {advice}", steps / columns))
