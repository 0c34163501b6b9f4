"""Baird's star: a small problem on which off-policy TD diverges."""

from __future__ import annotations

import numpy as np

from valuefit.data.transitions import Transitions
from valuefit.data.validation import whole_number
from valuefit.datasets import arguments
from valuefit.typing import Array

# The usual starting point of TD in the literature; the true values are all zero.
CLASSIC_WEIGHTS = np.array([1.0, 1, 1, 1, 1, 1, 10, 1])


def baird_log(steps: int = 700, *, seed: int = 0) -> Transitions:
    """Seven states, two actions: "solid" leads to state 6, "dashed" to a random other state; all rewards are 0.

    The behaviour policy takes solid with probability 1/7, the target policy with probability 1: ratios are 7 and 0.
    """
    rng, steps = arguments.generator(seed), whole_number("steps", steps, low=1)
    arguments.require_room(10 * steps, f"A log of {steps} steps")
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
    """Eight features: value 2 theta_i + theta_7 in state i = 0 ... 5, theta_6 + 2 theta_7 in state 6."""
    rows = np.zeros((7, 8))
    rows[np.arange(6), np.arange(6)] = 2
    rows[:6, 7] = 1
    rows[6, 6], rows[6, 7] = 1, 2
    return rows[state]
