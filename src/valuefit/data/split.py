"""`split` divides a log into episodes to learn a policy on and episodes to evaluate it on."""

from __future__ import annotations

from typing import Any

import numpy as np

from valuefit.data.transitions import Transitions, check_log
from valuefit.data.validation import number, whole_number


def split(log: Any, share: float = 0.5, *, seed: int = 0) -> tuple[Transitions, Transitions]:
    """Two logs of whole episodes: about this share of them, drawn at random, and the others.

    The value of a policy is optimistic on the episodes that it was learned from: it fits their noise. Learn it on one
    log and evaluate it on the other: `learn, judge = vf.split(log)`. Episodes of one cluster stay together, so the
    share is one of clusters where the log has clusters. What is drawn depends on their numbers and the seed alone.

    log: a `Transitions`, as `load` returns. share: of the first log, strictly between 0 and 1; neither log is empty.
    """
    check_log("split", log)
    share = number("share", share, "it must lie strictly between 0 and 1", lambda x: 0 < x < 1)
    seed = whole_number("seed", seed, low=0)
    group, kind = (log.episode, "episode") if log.cluster is None else (log.cluster, "cluster of episodes")
    ids = np.unique(group)
    if len(ids) < 2:
        raise ValueError(f"The log has a single {kind}, which is not divided. Give a log of at least two.")
    count = min(max(round(share * len(ids)), 1), len(ids) - 1)
    inside = np.isin(group, np.random.default_rng(seed).permutation(ids)[:count])
    return log[inside], log[~inside]
