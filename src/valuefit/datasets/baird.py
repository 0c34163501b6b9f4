"""Baird's star: the small problem on which TD diverges off-policy."""

from __future__ import annotations

import numpy as np

from valuefit.data.transitions import Transitions
from valuefit.typing import Array

# Where TD is classically started; the values it should learn are all zero.
CLASSIC_WEIGHTS = np.array([1.0, 1, 1, 1, 1, 1, 10, 1])


def baird_log(steps: int = 700, *, seed: int = 0) -> Transitions:
    """Seven states, two actions: "solid" leads to state 6, "dashed" to one of the others; all rewards are 0.

    The behaviour policy takes solid with probability 1/7, the target policy always, so ratios are 7 and 0.
    """
    rng = np.random.default_rng(seed)
    solid = rng.random(steps) < 1 / 7
    after = np.where(solid, 6, rng.integers(0, 6, steps))
    now = np.concatenate([rng.integers(0, 7, 1), after[:-1]])
    return Transitions.from_arrays(
        now,
        np.zeros(steps),
        truncated=np.arange(steps) == steps - 1,
        action=solid.astype(np.int64),
        next_observation=after,
        behaviour_prob=np.where(solid, 1 / 7, 6 / 7),
        target_prob=solid.astype(float),
    )


def baird_features(state: Array) -> Array:
    """Eight features for seven states: 2 theta_i + theta_7 in the first six, theta_6 + 2 theta_7 in the last."""
    rows = np.zeros((7, 8))
    rows[np.arange(6), np.arange(6)] = 2
    rows[:6, 7] = 1
    rows[6, 6], rows[6, 7] = 1, 2
    return rows[state]
