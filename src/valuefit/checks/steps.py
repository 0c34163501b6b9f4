"""Checks of the source: whether its rows are consecutive steps, and what the last steps that were left out hold."""

from __future__ import annotations

from valuefit.checks.check import Check, warn_if
from valuefit.inference.fit import Fit


def consecutive(fit: Fit) -> Check | None:
    """The share of pairs of rows of an episode between which steps are missing, where something tells."""
    counts = fit.log.continuity
    if not counts.pairs:
        return None
    share, text = counts.apart / counts.pairs, counts.apart_text
    warning = (
        f"{text}, but the evaluation takes each row for the step after the one before it, and steps as equally long. "
        "If ids of episodes restart (in another hospital or file), make them unique. If rows were left out because "
        'values are missing, put them back and load the log with `missing="flag"`; otherwise log every step.'
    )
    return warn_if(share > 0.02, "consecutive steps", share, warning, f"{text}.")


def last_steps(fit: Fit) -> Check | None:
    """Whether the rewards of the steps that were left out, because nothing says what follows them, are unlike others.

    The statistic is their share of the squared deviations of the rewards from the mean, less their share of the steps.
    """
    counts = fit.log.continuity
    if not counts.cut:
        return None
    excess, text = counts.cut_variation - counts.cut / counts.steps, counts.cut_text
    warning = (
        f"{text}. Their rewards are unlike the others, and the value is computed without them. Give the observation "
        "after these steps as next_obs, and mark them as truncated. Only if the process itself ends there, so that no "
        "reward can follow, mark them as terminated."
    )
    # Where a time limit cuts episodes, the last rewards are like the others; one that is paid at the end holds most.
    return warn_if(excess > 0.1, "last steps", excess, warning, f"{text}.")
