"""Checks of the source: whether its rows are consecutive steps, and how many last steps were left out."""

from __future__ import annotations

from valuefit.evaluation.checks.check import Check, warn_if
from valuefit.evaluation.fit import Fit

MAX_SHARE = 0.02  # of pairs of rows that are not consecutive steps, and of steps that were left out


def consecutive(fit: Fit) -> Check | None:
    """The share of pairs of rows of an episode between which steps are missing, where something tells."""
    counts = fit.log.continuity
    if not counts.pairs:
        return None
    share, text = counts.apart / counts.pairs, counts.apart_text
    warning = (
        f"{text}, but the evaluation takes each row for the step after the one before it. If rows were left out "
        'because values are missing, put them back and load the log with missing="flag"; otherwise log every step.'
    )
    return warn_if(share > MAX_SHARE, "consecutive steps", share, warning, f"{text}.")


def last_steps(fit: Fit) -> Check | None:
    """The share of steps that were left out because nothing says what follows them."""
    counts = fit.log.continuity
    if not counts.cut:
        return None
    share, text = counts.cut / counts.steps, counts.cut_text
    warning = (
        f"{text}. If no reward can follow these steps, mark them as terminated; otherwise give the observation after "
        "them as next_obs."
    )
    return warn_if(share > MAX_SHARE, "last steps", share, warning, f"{text}.")
