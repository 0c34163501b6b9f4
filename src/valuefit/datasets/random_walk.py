"""A random walk, logged under one policy and evaluated under another: a minimal off-policy problem."""

from __future__ import annotations

import numpy as np

from valuefit.data.transitions import Transitions
from valuefit.data.validation import whole_number
from valuefit.datasets import arguments
from valuefit.typing import Array


def random_walk_log(
    episodes: int = 200, *, states: int = 5, behaviour: float = 0.5, target: float = 0.7, seed: int = 0
) -> Transitions:
    """Walks from the middle until they leave the chain; reward 1 at the right end.

    behaviour, target: probability of a step to the right under the behaviour and the target policy.
    """
    rng = arguments.generator(seed)
    episodes, states = whole_number("episodes", episodes, low=1), whole_number("states", states, low=1)
    behaviour, target = arguments.probability("behaviour", behaviour), arguments.probability("target", target)
    arguments.require_room(10 * episodes * _expected_steps(states, behaviour), f"A log of {episodes} episodes")
    state, action, reward, episode, end = [], [], [], [], []
    for number in range(episodes):
        s = states // 2
        while 0 <= s < states:
            right = bool(rng.random() < behaviour)
            state.append(s)
            action.append(int(right))
            episode.append(number)
            s += 1 if right else -1
            reward.append(float(s == states))
            end.append(not 0 <= s < states)
    taken = np.array(action, bool)
    return Transitions.from_arrays(
        np.array(state),
        reward,
        terminated=end,
        episode=episode,
        action=np.array(action),
        behaviour_prob=np.where(taken, behaviour, 1 - behaviour),
        target_prob=np.where(taken, target, 1 - target),
    )


def _expected_steps(states: int, behaviour: float) -> int:
    """About the mean length of a walk from the middle."""
    drift = abs(2 * behaviour - 1)
    return states * states // 4 + 1 if drift * states <= 2 else int(states / (2 * drift)) + 1


def random_walk_value(*, states: int = 5, target: float = 0.7, discount: float = 1.0) -> Array:
    """The exact value of every state under the target policy."""
    states, target = whole_number("states", states, low=1), arguments.probability("target", target)
    discount = arguments.probability("discount", discount)
    arguments.require_room(4 * states**2, f"The transitions between {states} states")
    P = np.diag(np.full(states - 1, target), 1) + np.diag(np.full(states - 1, 1 - target), -1)
    reward = np.zeros(states)
    reward[-1] = target
    return np.linalg.solve(np.eye(states) - discount * P, reward)
