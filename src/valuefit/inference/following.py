"""For how many steps a log acts like the target policy; beyond them an answer rests on the Markov property."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from valuefit.data.validation import episode_starts
from valuefit.inference.fit import Fit
from valuefit.policies.episode_weights import EpisodeWeights

MIN_FOLLOWING_EPISODES = 10.0  # effective ones; the log follows the target while as many act like it


@dataclass(frozen=True)
class Following:
    """For how many steps from its starts the log follows the target policy; None where it has no probabilities.

    to_the_end: whether it does to the end of its longest episode.
    """

    steps: int | None
    to_the_end: bool


def following(fit: Fit) -> Following | None:
    """How far the log of an evaluation follows its target policy; None for one that is on-policy."""
    ratio = fit.ratios
    if fit.policy is None and (ratio is None or (ratio == 1).all()):
        return None
    if ratio is None:
        return Following(None, False)
    weights = EpisodeWeights(fit.log, np.flatnonzero(episode_starts(fit.log.episode)), ratio, fit.discount)
    effective = weights.following(fit.log.terminated[weights.steps[weights.last]])
    few = np.flatnonzero(effective < MIN_FOLLOWING_EPISODES)
    return Following(int(few[0]) if len(few) else len(effective), not len(few))
