"""The worlds of two published coverage studies.

Shi, Zhang, Lu and Song: Statistical inference of the value function for reinforcement learning in infinite-horizon
settings, JRSS-B 2022. Shi, Wan, Chernozhukov and Song: Deeply-debiased off-policy interval estimation, ICML 2021.
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from coverage_study.worlds import Array, Table, World

SHI_DISCOUNT, CIRCLE_DISCOUNT = 0.5, 0.95
CIRCLE_MOVES = 0.9  # probability that a move succeeds


class Shi(World):
    """Two numbers that shrink and change sign with the action; rewards with noise (section 5.1 of Shi et al. 2022)."""

    actions = 2

    def start(self, count: int, rng: np.random.Generator) -> Array:
        return rng.standard_normal((count, 2))

    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        sign = 2.0 * action - 1.0
        after = 0.75 * np.column_stack([sign, -sign]) * state + 0.5 * rng.standard_normal(state.shape)
        reward = 2 * after[:, 0] + after[:, 1] - 0.25 * sign
        return after, reward, np.zeros(len(state), bool)


def shi_target(observations: Array) -> Array:
    """Action 1 where both numbers are positive."""
    return np.eye(2)[((observations > 0).all(axis=1)).astype(int)]


def shi_coin(observations: Array) -> Array:
    """Behaviour A."""
    return np.full((len(observations), 2), 0.5)


def shi_logistic(observations: Array) -> Array:
    """Behaviour B."""
    one = expit(observations).mean(axis=1)
    return np.column_stack([1 - one, one])


def circle() -> Table:
    """Three states on a circle; action 0 goes down and 1 up; reward 1 when the next state is 0."""
    state = np.arange(3)
    moved = np.stack([(state - 1) % 3, (state + 1) % 3], axis=1)
    after = np.stack([moved, np.stack([state, state], axis=1)], axis=2)  # the move succeeds, or the state stays
    probability = np.broadcast_to([CIRCLE_MOVES, 1 - CIRCLE_MOVES], after.shape)
    return Table(probability, after, (after == 0).astype(float), np.zeros(after.shape, bool), np.full(3, 1 / 3))


CIRCLE_TARGET = np.array([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]])  # heads to state 0 and is random there
CIRCLE_BEHAVIOUR = np.full((3, 2), 0.5)
