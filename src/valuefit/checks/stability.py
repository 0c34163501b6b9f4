"""The test of the first against the second half of the log: a change of units, of the task, or a drift."""

from __future__ import annotations

import numpy as np

from valuefit.checks.check import HypothesisTest
from valuefit.checks.inputs import TestInputs
from valuefit.checks.moments import Sums, cluster_sums
from valuefit.tolerances import ROUNDING
from valuefit.typing import Array


def stability_test(inputs: TestInputs) -> HypothesisTest | None:
    """Whether the halves of the log have the same TD errors given the observation, and the same observations.

    On-policy all observations and rewards are compared. Off-policy only the first observations of the episodes are,
    because another behaviour policy in one half does no harm. Each comparison counts as much as the others.
    """
    fit, steps = inputs.fit, inputs.steps
    cluster, late = fit.errors.whole.clusters.of_step, inputs.late
    compared = {"TD errors": inputs.td_sums.halves}
    if inputs.on_policy:
        reward = fit.log.reward[steps]
        compared["observations"] = _difference(inputs.current[:, 1:], late, cluster[steps])
        compared["rewards"] = _difference(
            np.column_stack([reward, np.abs(reward - np.median(reward))]), late, cluster[steps]
        )
    else:
        starts = np.unique(fit.log.episode, return_index=True)[1]
        rows = inputs.instruments.current(fit.log.now[starts])
        compared["first observations"] = _difference(rows, late, cluster[starts])
    scaled = {name: sums.scaled() for name, sums in compared.items() if sums is not None and sums.parts.any()}
    if not scaled:
        return None
    sums = Sums(*map(np.hstack, zip(*((one.total, one.parts) for one in scaled.values()), strict=True)))
    p = sums.p_value(fit.seed)
    names = ", ".join(scaled)
    most = max(scaled, key=lambda name: scaled[name].statistic)
    passed = f"The first and the second half of the log agree up to chance (compared: {names}; p = {p:.2g})."
    rejected = (
        f"The first and the second half of the log differ, most in their {most} (p = {p:.2g}): a unit, the task or the "
        "policy changed, or drifts. Compare the halves, and evaluate the part that belongs to the task as it is now."
    )
    return HypothesisTest("stability", sums.statistic, p, passed, rejected)


def _difference(rows: Array, late: Array, cluster: Array) -> Sums | None:
    """The difference of the halves in the means of these rows; None where the rows are constant."""
    deviation = rows - rows.mean(axis=0)
    if np.linalg.norm(deviation) <= ROUNDING * np.linalg.norm(rows):
        return None
    number = np.bincount(cluster, minlength=len(late))
    parts = (late - number @ late / number.sum())[:, None] * cluster_sums(deviation, cluster, len(late))
    return Sums(parts.sum(axis=0), parts)
