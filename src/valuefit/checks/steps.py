"""Checks of the source: whether its rows are consecutive steps, and what the last steps that were left out hold."""

from __future__ import annotations

from valuefit.checks.check import Check, warn_if
from valuefit.inference.fit import Fit


def source(fit: Fit) -> list[Check]:
    """The checks of the source for which something tells.

    Consecutive steps: the share of pairs of rows of an episode between which steps are missing. Last steps: the share
    of those that were left out, because nothing says what follows them, in the squared deviations of the rewards from
    the mean, less their share of the steps. Where a time limit cuts episodes, the last rewards are like the others; one
    that is paid at the end has most of the deviations.
    """
    counts, checks = fit.log.continuity, []
    if counts.pairs:
        advice = (
            ", but the evaluation takes each row for the step after the one before it, and steps as equally long. If "
            "ids of episodes restart (in another hospital or file), make them unique. If rows were left out because "
            'values are missing, put them back and load the log with `missing="flag"`; otherwise log every step.'
        )
        share, text = counts.apart / counts.pairs, counts.apart_text
        checks.append(warn_if(share > 0.02, "consecutive steps", share, f"{text}{advice}", f"{text}."))
    if counts.cut:
        advice = (
            ". Their rewards are unlike the others, and the value is computed without them. Give the observation after "
            "these steps as next_obs, and mark them as truncated. Only if the process itself ends there, so that no "
            "reward can follow, mark them as terminated."
        )
        excess, text = counts.cut_variation - counts.cut / counts.steps, counts.cut_text
        checks.append(warn_if(excess > 0.1, "last steps", excess, f"{text}{advice}", f"{text}."))
    return checks
