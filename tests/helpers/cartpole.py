"""The task of docs/which-features.md: CartPole, whose value is known, and logs of it."""

from __future__ import annotations

from functools import cache

import numpy as np

import valuefit as vf
from coverage_study.tasks import tasks

CARTPOLE = tasks()["cartpole"]
SETTINGS = {"discount": CARTPOLE.discount, "policy": CARTPOLE.target}


@cache
def cartpole_log(episodes: int = 60) -> vf.Transitions:
    """A log of the behaviour policy, half of whose actions are random."""
    return CARTPOLE.log("ratios", episodes, np.random.default_rng(0))


def covers(evaluation: vf.Evaluation) -> bool:
    """Whether the interval contains the true value."""
    low, high = evaluation.policy_value.interval
    return bool(low <= CARTPOLE.truth <= high)
