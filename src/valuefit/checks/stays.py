"""Whether the policy stays in places for longer than the log shows.

Estimates put single steps together. Where nothing changes from step to step, a stay of the policy becomes as long as
the policy makes it, whatever happens after a longer one than any in the log: a vehicle that has landed, a patient who
is cured. No function of the observations can see it, as stays of any length look alike.

Steps are starts of segments, weighted by how often the policy would be there (`Fit.occupancy`) and by the ratios of
their further steps. The log follows the policy for as many steps as leave at least half of the effective number of
clusters that the starts have. What is measured is the share of the segments of that length which hardly change.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from valuefit.checks.check import Check, warn_if
from valuefit.checks.instruments import MAX_COLUMNS, evenly_spaced, sampled_steps
from valuefit.data.transitions import Transitions, effective_sample_size
from valuefit.inference.fit import Fit
from valuefit.typing import Array

MAX_STAY_SHARE = 0.2  # of the discounted steps: fitted between FrozenLake, at most .15, and `quiet-lander`, from .23 on


class Stays(NamedTuple):
    """steps: of the longest followed segments. share: of these, weighted, that hardly change."""

    steps: int
    share: float


def stays(fit: Fit) -> Check | None:
    """The share of the policy's discounted steps in stays that are longer than the log follows it.

    None for numbered states: they have no distance, and a table whose states lead back to themselves is no fault.
    """
    if fit.ratios is None or (fit.ratios == 1).all() or fit.log.has_numbered_states:
        return None
    followed = None if fit.occupancy is None else followed_stays(fit, np.maximum(fit.occupancy, 0.0))
    if followed is None:
        return None
    share = fit.discount**followed.steps * followed.share
    text = (
        f"{share:.0%} of the discounted steps of the policy are in stays, where observations hardly change, of more "
        f"than {followed.steps} steps, for which the log follows it there"
    )
    return warn_if(
        share > MAX_STAY_SHARE, "stays", share,
        f"{text}. The estimate takes them to go on as they begin, so an outcome that only a longer stay reaches, such "
        "as a landing after some time at rest, is not in it. Use a log whose policy stays as long; if what follows "
        "depends on the length of a stay, have it in the observations.",
        f"{text}.",
    )  # fmt: skip


def followed_stays(fit: Fit, weight: Array) -> Stays | None:
    """The stays of the segments that start with these weights, (n,)."""
    log, ratio, clusters = fit.log, fit.ratios, fit.errors.shards.clusters
    assert ratio is not None
    start = sampled_steps(len(log), fit.seed, 5000)
    last = _last_of_run(log.begins)[start]
    cluster, weight = fit.errors.whole.clusters.of_step[start], weight[start]
    columns, moved, initial, longest = _columns(log), np.zeros(len(start)), 0.0, None
    for steps in range(1, 201):  # a log that follows the policy for longer shows its stays
        at = np.minimum(start + steps - 1, last)
        inside = start + steps - 1 <= last
        if steps > 1:
            weight = np.where(inside, weight * ratio[at], weight)
        weight = weight / (weight.max() or 1.0)  # products of ratios may overflow
        goes = inside & (log.next[at] >= 0)
        change = columns[log.next[at[goes]]] - columns[log.now[start[goes]]]
        moved[goes] = np.maximum(moved[goes], np.abs(change).max(axis=1, initial=0.0))
        moved[~goes] = np.inf  # an end is a change; cut segments have no weight
        counted = np.where(inside | log.terminated[last], weight, 0.0)
        effective = effective_sample_size(np.bincount(cluster, counted, clusters))
        initial = initial or effective
        if not effective or 2 * effective < initial:
            break
        # observations hardly change where they do by a fifth of the typical change in as many steps
        still = moved < 0.2 * float(np.median(moved[goes])) if goes.any() else np.zeros(len(start), bool)
        longest = Stays(steps, float(counted[still].sum() / counted.sum()))
        if fit.discount**steps * counted[goes].sum() <= MAX_STAY_SHARE * counted.sum():
            break  # longer stays are too few to matter
    return longest


def _columns(log: Transitions) -> Array:
    """The observations with columns in standard deviations, at most 64 of them."""
    values = log.observations.reshape(len(log.observations), -1)
    values = values[:, evenly_spaced(values.shape[1], MAX_COLUMNS)].astype(np.float64)
    peak = np.abs(values).max(axis=0)
    values /= np.where(peak > 0, peak, 1.0)  # squares of large numbers would overflow
    deviation = values[log.now].std(axis=0)
    return np.asarray(values / np.where(deviation > 0, deviation, np.inf))


def _last_of_run(begins: Array) -> Array:
    """The last step of the run of consecutive steps that each step belongs to, (n,)."""
    first = np.flatnonzero(begins)
    return np.repeat(np.append(first[1:], len(begins)) - 1, np.diff(np.append(first, len(begins))))
