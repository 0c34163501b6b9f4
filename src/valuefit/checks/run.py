"""All checks of an evaluation, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from valuefit.checks import alternatives, horizon, numerics, reach, steps, support
from valuefit.checks.check import Check, judge, warn_if
from valuefit.checks.cross_checks import CrossCheck, agreement
from valuefit.checks.hypothesis_tests import hypothesis_tests
from valuefit.checks.occupancy import NAMES as OCCUPANCY
from valuefit.checks.occupancy import occupancy
from valuefit.checks.ridge import ridge
from valuefit.checks.stays import stays
from valuefit.features.kernel import STEPS_PER_LANDMARK
from valuefit.inference.fit import Fit

OF_WHOLE_LOG = (
    "solver", "reachable range", "ridge", "consecutive steps", "last steps", "effective episodes", "skewness",
    "small-sample bias", *OCCUPANCY, "order of actions", "unseen actions",
)  # names of checks of what is known of all episodes, also of a log that is larger than its sample  # fmt: skip
WHICH = ("standard", "all")  # "all" also solves the problem with other traces


def run_checks(fit: Fit, which: str = "standard", others: Sequence[CrossCheck] = ()) -> tuple[Check, ...]:
    """The checks that apply to this evaluation: those of the answer, the hypothesis tests, those of the log.

    which: one of `WHICH`. others: the cross-checks, which only a whole log has.
    """
    rows = fit.of_sample  # for checks that need rows of single steps
    known = rows if fit.value.standard_error is None else fit  # a log of one episode has an error in memory alone
    tests = hypothesis_tests(rows)
    if which == "all":
        tests += alternatives.trace_tests(rows)
    checks = [
        numerics.solver(fit.result),
        support.determined(rows),
        reach.reachable_range(fit.value, fit.reach),
        numerics.standard_error(rows),
        numerics.optimisation_error(rows),
        ridge(fit),
        *steps.source(rows),
        horizon.time_limit(rows),
        horizon.resets(rows),
        support.effective_episodes(known),
        support.one_episode(rows),
        numerics.skewness(known.value, known.error),
        numerics.small_sample_bias(known.result, known.value, known.error),
        reach.reachable_values(rows, rows.reach),
        *occupancy(fit),
        *judge(tests),
        support.effective_sample(rows),
        support.ratio_tail(rows),
        support.mean_ratio(rows),
        support.order_of_actions(rows),
        support.overlap(rows),
        support.unseen_actions(fit),
        stays(rows),
        support.extrapolation(rows),
        numerics.stability(rows),
        numerics.conditioning(rows),
        horizon.horizon(rows),
        horizon.termination(rows),
    ]
    made = tuple(check for check in checks if check is not None)
    return checks_of_sample(made, fit) if fit.sampled else (*made, agreement(others, fit.values))


def checks_of_sample(checks: Sequence[Check], fit: Fit) -> tuple[Check, ...]:
    """The checks of a log that is larger than its sample, whose messages say which are the sample's, and of its size.

    A sample that is too small for its features is a reason for caution: it neither clears a value nor rules it out.
    """
    assert fit.sums is not None
    steps, columns, limit = len(fit.log), fit.problem.d, fit.sums.enough_for_checks
    small = steps < STEPS_PER_LANDMARK * columns
    advice = "Use fewer features, or load the log into memory."
    if limit:
        advice = f"Load the log with a limit of {-(-limit // 10**6)}MB or more, or use fewer features."
    text = f"The checks are those of a sample of {steps:,} steps for {columns:,} features"
    warning = (
        f"{text}, fewer than {STEPS_PER_LANDMARK} for each, so they may miss what is wrong or find faults by chance. "
        f"{advice}"
    )
    listed = []
    for check in checks:
        if check.outcome != "pass" and check.name not in OF_WHOLE_LOG:
            milder = "warn" if small and check.outcome == "fail" else check.outcome
            check = replace(check, outcome=milder, message=f"In a sample of {steps:,} steps: {check.message}")
        listed.append(check)
    return (*listed, warn_if(small, "size of the sample", steps / columns, warning, f"{text}."))
