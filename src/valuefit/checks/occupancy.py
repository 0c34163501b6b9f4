"""Whether the log says where the policy leads: the occupancy weights of the estimate, whatever the rewards."""

from __future__ import annotations

from valuefit.checks.check import BETTER_LOG, FEW_EPISODES, Check, Outcome, warn_if
from valuefit.checks.support import MIN_EFFECTIVE_SHARE, MIN_EFFECTIVE_STEPS
from valuefit.inference.fit import Fit
from valuefit.inference.occupancy import OccupancySums

NAMES = ("negative occupancy", "effective steps")
# Limits by the fitted tasks of `python -m coverage_study.occupancy`: ordinary targets have a negative share of at most
# .05, intervals of greedy ones in CartPole missed from .2 on; it differs by .05 between logs of a task.
MAX_NEGATIVE_SHARE = 0.075  # of the absolute weights; the smallest that warns about no sound ordinary target there
UNUSABLE_NEGATIVE_SHARE = 0.35  # above it the median error was half of the value


def occupancy(fit: Fit) -> tuple[Check, ...]:
    """The negative share of the occupancy weights, and the effective number of steps."""
    return occupancy_checks(fit.occupancy_sums, fit.size[0])


def occupancy_checks(sums: OccupancySums | None, steps: int) -> tuple[Check, ...]:
    """The two checks of a log of this many steps; None: the adjoint is unknown."""
    if sums is None:
        text = "The value is not determined by the log, or the equations were not solved, so steps have no weights."
        return tuple(Check(name, "skip", text) for name in NAMES)
    return _negative(sums.negative_share), _effective(sums.effective_steps, steps)


def _negative(share: float) -> Check:
    outcome: Outcome = "fail" if share > UNUSABLE_NEGATIVE_SHARE else "warn" if share > MAX_NEGATIVE_SHARE else "pass"
    says = "cannot say" if outcome == "fail" else "says little about"
    text = (
        f"The estimate is a weighted sum of the rewards, whose weights say how often the policy would be where each "
        f"step was logged; {share:.1%} of the weight is negative"
    )
    warning = f"{text}, so the log {says} where the policy leads. {BETTER_LOG}"
    return warn_if(outcome, NAMES[0], share, warning, f"{text}.")


def _effective(steps: float, of: int) -> Check:
    """Few of many steps: a small log that is used as a whole has an honest interval."""
    enough = steps >= min(MIN_EFFECTIVE_STEPS, MIN_EFFECTIVE_SHARE * of)
    outcome: Outcome = "pass" if enough else "fail" if steps < FEW_EPISODES else "warn"
    text = f"The estimate rests on an effective {steps:.0f} of {of:,} steps"
    warning = f"{text}: the log hardly contains what the policy does. {BETTER_LOG}"
    return warn_if(outcome, NAMES[1], steps, warning, f"{text}.")
