"""Boyan's chain: a small episodic problem whose values are linear in four features."""

from __future__ import annotations

import numpy as np

from valuefit.data.transitions import Transitions
from valuefit.data.validation import whole_number
from valuefit.datasets import arguments
from valuefit.typing import Array

# With discount 1 the value of state s is -2 s, which these weights give exactly.
EXACT_WEIGHTS = np.array([-24.0, -16.0, -8.0, 0.0])


def boyan_log(episodes: int = 100, *, seed: int = 0) -> Transitions:
    """Episodes from state 12 to 0: down by 1 or 2 with equal probability, reward -3; from 1 to 0, reward -2."""
    rng, episodes = arguments.generator(seed), whole_number("episodes", episodes, low=1)
    arguments.require_room(100 * episodes, f"A log of {episodes} episodes")  # of about 8 steps
    state, reward, episode, end = [], [], [], []
    for number in range(episodes):
        s = 12
        while s > 0:
            down = 1 if s == 1 else int(rng.integers(1, 3))
            state.append(s)
            reward.append(-2.0 if s == 1 else -3.0)
            episode.append(number)
            s -= down
            end.append(s == 0)
    return Transitions.from_arrays(np.array(state), reward, terminated=end, episode=episode)


def boyan_features(state: Array) -> Array:
    """Linear interpolation between states 12, 8, 4 and 0."""
    position = 3 - np.asarray(state)[:, None] / 4
    return np.clip(1 - np.abs(position - np.arange(4)), 0, 1)
