"""Whether episodes end as the estimate assumes: terminations that look like a time limit, and early truncation."""

from __future__ import annotations

import numpy as np

from valuefit.checks.check import FEW_TESTED, Check, warn_if
from valuefit.inference.fit import Fit
from valuefit.typing import Array


def time_limit(fit: Fit) -> Check:
    """Whether most terminations come after one number of steps and none later, as those of a time limit do."""
    name, log = "time limit", fit.log
    if log.warnings:
        return Check(name, "warn", " ".join(log.warnings))
    lengths = _lengths(fit)[log.terminated[_last(fit)]]
    longest = int(lengths.max(initial=1))
    at_limit, ends = int((lengths == longest).sum()), len(lengths)
    share = at_limit / max(1, ends)
    suspect = longest > 1 and ends >= FEW_TESTED and share > 0.5
    passed = "Terminations do not come after one number of steps."
    if suspect and log.has_numbered_states and not _also_continue(fit):
        suspect = False
        passed = f"{at_limit} of {ends} episodes terminate after {longest} steps, in states that always do."
    return warn_if(
        suspect, name, share,
        f"{at_limit} of the {ends} episodes that terminate have {longest} steps, and none has more, which looks like a "
        "time limit. The value after a termination is taken as 0. If it is a time limit, mark these steps as "
        "truncated, and give the observation after them.",
        passed,
    )  # fmt: skip


def _also_continue(fit: Fit) -> bool:
    """Whether most terminations are in numbered states in which other steps do not terminate."""
    log = fit.log
    return bool(np.isin(log.now[log.terminated], log.now[~log.terminated]).mean() > 0.5)


def horizon(fit: Fit) -> Check:
    """How much of the discounted weight lies beyond the ends of truncated episodes.

    Weight of step t: (discount * chance to go on)^t, the chance being estimated from terminations per step.
    """
    log, last = fit.log, _last(fit)
    lengths, truncated = _lengths(fit), ~log.terminated[last]
    keep = fit.discount * (1 - log.terminated.mean())
    beyond = float((truncated * keep**lengths).mean())
    length = "infinite" if fit.discount == 1 else f"about {1 / (1 - fit.discount):.0f} steps"
    return warn_if(
        beyond > 0.5, "horizon", beyond,
        f"{truncated.mean():.0%} of the episodes were truncated before they terminated, after "
        f"{len(log) / len(lengths):.0f} steps on average, while the horizon of the discount is {length}: {beyond:.0%} "
        "of the discounted weight lies beyond the episodes, where rewards are extrapolated by the features. Log longer "
        "episodes, or use a smaller discount.",
        f"{beyond:.0%} of the discounted weight lies beyond the ends of truncated episodes.",
    )  # fmt: skip


def resets(fit: Fit) -> Check | None:
    """Whether the next observation of truncated episodes is the first one of the following episode.

    Environments that reset by themselves return it. In a stream that was cut into episodes it is right; there the
    observations change between episodes as they do within them.
    """
    log, last = fit.log, np.flatnonzero(_last(fit))[:-1]
    ends = last[(log.next[last] >= 0) & ~log.terminated[last]]
    if len(ends) < FEW_TESTED:
        return None
    observations = log.observations.reshape(len(log.observations), -1)
    after, following = observations[log.next[ends]], observations[log.now[ends + 1]]
    share = float((after == following).all(axis=1).mean())
    return warn_if(
        share > 0.5 and _jumps(fit, ends), "resets", share,
        f"The next observation of {share:.0%} of the truncated episodes is the first observation of the following "
        "episode, and differs from the one before it more than others do: it was recorded after a reset. Give the "
        "observation before the reset, and mark episodes that terminated.",
        "Truncated episodes do not continue in the start of the next one.",
    )  # fmt: skip


def _jumps(fit: Fit, ends: Array) -> bool:
    """Whether observations change more at these steps than at the others that continue."""
    log = fit.log
    inside = np.flatnonzero(~_last(fit))
    if log.has_numbered_states:  # transitions that occur nowhere else, although those within episodes recur
        pairs = log.now * len(log.observations) + log.next
        _, index, count = np.unique(pairs[inside], return_inverse=True, return_counts=True)
        recurring = float((count[index] > 1).mean()) if len(inside) else 1.0
        return float(np.isin(pairs[ends], pairs[inside]).mean()) < 0.5 * recurring
    observations = log.observations.reshape(len(log.observations), -1).astype(np.float64)
    change = [observations[log.next[steps]] - observations[log.now[steps]] for steps in (ends, inside)]
    scale = observations.std(axis=0)
    if not len(inside) or not scale.any():
        return False
    at_ends, within = (np.mean(np.square(part[:, scale > 0] / scale[scale > 0])) for part in change)
    return bool(at_ends > 4 * within)  # twice the root mean square change


def termination(fit: Fit) -> Check | None:
    """With discount 1: whether there is evidence that every episode of the policy terminates."""
    if fit.discount != 1:
        return None
    on_policy = fit.values == "state" and not fit.problem.weighted
    if on_policy and fit.log.terminated[_last(fit)].all():
        return Check("termination", "pass", "All episodes terminate, so values exist with discount 1.")
    text = (
        "With discount 1 values exist only if every episode of the policy terminates; a loop that the log does not "
        "contain would make them infinite. Use a discount below 1, or log complete episodes of this policy."
    )
    return Check("termination", "warn", text)


def _last(fit: Fit) -> Array:
    """The last step of each episode, as a mask (n,)."""
    last = np.ones(len(fit.log), bool)
    last[:-1] = fit.log.episode[1:] != fit.log.episode[:-1]
    return last


def _lengths(fit: Fit) -> Array:
    """The number of steps of each episode, in order."""
    return np.diff(np.flatnonzero(_last(fit)), prepend=-1)
