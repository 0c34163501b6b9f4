"""Worlds made for the calibration: a process with actions, a plane with puddles, a hidden timer, hidden fuel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from coverage_study.worlds import Array, Table, World, distribution, table_of


@dataclass(frozen=True)
class Process(World):
    """Numbers x' = 0.8 x + 0.3 (2a - 1) + 0.5 noise, with normal starts; reward(x) plus noise. dimensions: of x."""

    reward: Callable[[Array], Array]
    dimensions: int = 1
    actions: int = 2

    def start(self, count: int, rng: np.random.Generator) -> Array:
        return rng.standard_normal((count, self.dimensions))

    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        shift = 0.3 * (2.0 * action - 1.0)[:, None]
        after = 0.8 * state + shift + 0.5 * rng.standard_normal(state.shape)
        reward = self.reward(state) + 0.5 * rng.standard_normal(len(state))
        return after, reward, np.zeros(len(state), bool)


class PuddleWorld(World):
    """The unit square with four noisy moves; -1 a step and more inside two puddles, until the upper right corner.

    Boyan and Moore 1995, with steps twice as long.
    """

    actions = 4
    MOVES = 0.1 * np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    PUDDLES = np.array([[[0.1, 0.75], [0.45, 0.75]], [[0.45, 0.4], [0.45, 0.8]]])  # ends of their axes
    RADIUS, DEPTH_REWARD, NOISE, GOAL = 0.1, -100.0, 0.02, 1.9

    def start(self, count: int, rng: np.random.Generator) -> Array:
        return rng.uniform(0.0, 0.5, (count, 2))

    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        after = np.clip(state + self.MOVES[action] + self.NOISE * rng.standard_normal(state.shape), 0, 1)
        depth = np.zeros(len(after))
        for low, high in self.PUDDLES:
            nearest = np.clip(after, low, high)  # the axes are parallel to the sides
            depth += np.maximum(self.RADIUS - np.linalg.norm(after - nearest, axis=1), 0)
        return after, -1 + self.DEPTH_REWARD * depth, after.sum(axis=1) >= self.GOAL


class HiddenTimer(World):
    """A walk on five states that ends after 20 steps, which the log does not show. Reward 1 a step, 2 in state 4."""

    actions, STATES, STEPS = 2, 5, 20

    def start(self, count: int, rng: np.random.Generator) -> Array:
        return np.column_stack([rng.integers(self.STATES, size=count), np.zeros(count, int)])

    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        place, time = state.T
        move = np.where(rng.random(len(state)) < 0.8, 2 * action - 1, 1 - 2 * action)
        after = np.clip(place + move, 0, self.STATES - 1)
        reward = 1.0 + (after == self.STATES - 1) + 0.5 * rng.standard_normal(len(state))
        return np.column_stack([after, time + 1]), reward, time + 1 >= self.STEPS

    def observe(self, state: Array) -> Array:
        return state[:, 0]


class HiddenFuel(World):
    """A position that thrust moves up and that otherwise falls; the log does not show the fuel that thrust uses.

    Reward: 1 near the height 1, less away from it; without fuel thrust does nothing.
    """

    actions, FUEL = 2, 12

    def start(self, count: int, rng: np.random.Generator) -> Array:
        return np.column_stack([rng.normal(1.0, 0.3, count), np.full(count, float(self.FUEL))])

    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        height, fuel = state.T
        thrust = (action == 1) & (fuel > 0)
        after = 0.9 * height + 0.4 * thrust - 0.1 + 0.1 * rng.standard_normal(len(state))
        reward = np.exp(-((height - 1.0) ** 2)) + 0.1 * rng.standard_normal(len(state))
        return np.column_stack([after, fuel - thrust]), reward, np.zeros(len(state), bool)

    def observe(self, state: Array) -> Array:
        return state[:, :1]


def random_table() -> Table:
    """20 states, three actions, noisy rewards; episodes terminate after 20 steps on average."""
    rng = np.random.default_rng(1)
    transition = distribution(rng, 20, 3, 20, least=0.0) ** 4
    transition /= transition.sum(axis=2, keepdims=True)
    return table_of(transition, rng.normal(size=(20, 3)), np.full((20, 3), 0.05), np.full(20, 0.05), noise=0.5)


def random_walk() -> Table:
    """19 states in a row from the middle; left and right; reward 1 at the right end (Sutton and Barto)."""
    states = 19
    after = np.arange(states)[:, None] + np.array([-1, 1])
    ends = (after < 0) | (after >= states)
    reward = (after >= states).astype(float)
    return Table(
        np.ones((states, 2, 1)), np.clip(after, 0, states - 1)[:, :, None], reward[:, :, None], ends[:, :, None],
        np.eye(states)[states // 2],
    )  # fmt: skip


def optimal(table: Table, discount: float, sweeps: int = 500) -> Array:
    """The best policy (states, actions) of a table, by value iteration; equal actions share."""
    P, r = table.transition(), table.mean_reward()
    value = np.zeros(table.states)
    for _ in range(sweeps):
        action_value = r + discount * P @ value
        value = action_value.max(axis=1)
    best = action_value >= value[:, None] - 1e-9
    return np.asarray(best / best.sum(axis=1, keepdims=True))


def mixed(policy: Array, random_share: float) -> Array:
    """The policy, with this share of uniformly random actions."""
    return (1 - random_share) * policy + random_share / policy.shape[-1]
