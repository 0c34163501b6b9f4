"""Worlds on which earlier versions of the verdict were wrong: walls between values, rare large rewards, many states."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coverage_study.worlds import Array, Table, World

MOVES = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
STEP, NOISE = 0.08, 0.02  # of a move in the unit square


class Corridors(World):
    """The unit square with three walls, each with a door at its top or bottom; -1 a step until the far corner."""

    actions = 4
    WALLS, DOOR = np.array([0.25, 0.5, 0.75]), 0.2

    def start(self, count: int, rng: np.random.Generator) -> Array:
        return np.column_stack([rng.uniform(0, 0.2, count), rng.uniform(0, 1, count)])

    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        after = np.clip(state + STEP * MOVES[action] + NOISE * rng.standard_normal(state.shape), 0, 1)
        x, y = state.T
        through = ((x[:, None] - self.WALLS) * (after[:, :1] - self.WALLS)) <= 0
        closed = np.column_stack([y <= 1 - self.DOOR, y >= self.DOOR, y <= 1 - self.DOOR])
        after = np.where((through & closed).any(axis=1)[:, None], state, after)
        return after, np.full(len(state), -1.0), (after[:, 0] > 0.85) & (after[:, 1] < 0.2)


def through_corridors(observations: Array) -> Array:
    """To the next door, then right; down in the last corridor."""
    x, y = observations.T
    upwards = (x < 0.25) | ((x >= 0.5) & (x < 0.75))
    at_door = np.where(upwards, y > 0.85, y < 0.15)
    return np.where(x >= 0.75, np.where(x < 0.88, 0, 3), np.where(at_door, 0, np.where(upwards, 2, 3)))


class FourRooms(World):
    """The unit square with walls at x = 0.5 and y = 0.5, a door in each half of them; 1 at the goal, in one room."""

    actions = 4
    WALL, DOORS = 0.5, np.array([0.25, 0.75])  # middles of the doors in both walls
    WIDTH, GOAL = 0.1, np.array([0.85, 0.15])

    def start(self, count: int, rng: np.random.Generator) -> Array:
        return rng.uniform(0, 1, (count, 2))

    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        after = np.clip(state + STEP * MOVES[action] + NOISE * rng.standard_normal(state.shape), 0, 1)
        through = (state - self.WALL) * (after - self.WALL) <= 0
        in_door = (np.abs(state[:, ::-1, None] - self.DOORS) < self.WIDTH).any(axis=2)
        after = np.where((through & ~in_door).any(axis=1)[:, None], state, after)
        arrived = (np.abs(after - self.GOAL) < 0.12).all(axis=1)
        return after, arrived.astype(float), arrived


def through_rooms(observations: Array) -> Array:
    """From the upper rooms through the doors at the left or right, then to the goal."""
    x, y = observations.T
    to_left_door = np.where(np.abs(x - 0.25) < 0.07, 3, np.where(x < 0.25, 0, 1))
    to_right_door = np.where(np.abs(x - 0.75) < 0.07, 3, np.where(x < 0.75, 0, 1))
    to_lower_door = np.where(np.abs(y - 0.25) < 0.07, 0, np.where(y < 0.25, 2, 3))
    to_goal = np.where(np.abs(x - 0.85) > 0.1, np.where(x < 0.85, 0, 1), np.where(y > 0.15, 3, 2))
    upper = np.where(x < 0.5, to_left_door, to_right_door)
    return np.where(y > 0.5, upper, np.where(x < 0.5, to_lower_door, to_goal))


@dataclass(frozen=True)
class Jackpots(World):
    """Two autoregressive numbers and a small reward; rarely, and more often with action 1, a large one."""

    chance: float = 0.0008
    size: float = 60.0
    actions: int = 2

    def start(self, count: int, rng: np.random.Generator) -> Array:
        return rng.standard_normal((count, 2))

    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        shift = 0.3 * (2.0 * action - 1.0)[:, None] * np.array([1.0, -0.5])
        after = 0.8 * state + shift + 0.5 * rng.standard_normal(state.shape)
        chance = self.chance * (1 + action) * np.exp(0.5 * np.clip(state[:, 0], -3, 3))
        reward = 0.2 * state[:, 0] + self.size * (rng.random(len(state)) < chance)
        return after, reward, np.zeros(len(state), bool)


class Breakdowns(World):
    """A machine with wear and load: run it or service it. A breakdown is rare, costs 100, and ends the episode."""

    actions = 2

    def start(self, count: int, rng: np.random.Generator) -> Array:
        return np.column_stack([rng.uniform(0, 0.5, count), rng.uniform(0, 1, count)])

    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        wear, load = state.T
        runs = action == 0
        broken = runs & (rng.random(len(state)) < 0.0005 + 0.004 * wear**3)
        reward = np.where(runs, 0.5 + load, -0.5) - 100.0 * broken
        wear = np.where(runs, np.minimum(wear + 0.08 * load * rng.random(len(state)), 1.5), 0.3 * wear)
        load = np.clip(0.5 + 0.7 * (load - 0.5) + 0.15 * rng.standard_normal(len(state)), 0, 1)
        return np.column_stack([wear, load]), reward, broken


def service_when_worn(observations: Array) -> Array:
    return (observations[:, 0] > 0.7).astype(int)


def sparse_table(states: int = 1000, successors: int = 4, seed: int = 0) -> Table:
    """A random table of two actions, each of which leads from every state to a few others; an episode ends with 2%."""
    rng = np.random.default_rng(seed)
    shape, ends = (states, 2, successors), 0.02
    probability, after = rng.dirichlet(np.ones(successors), shape[:2]), rng.integers(0, states, shape)
    reward = rng.standard_normal((states, 1)) + 0.3 * rng.standard_normal((states, 2))
    return Table(
        np.concatenate([(1 - ends) * probability, ends * probability], axis=2),
        np.concatenate([after, after], axis=2),
        np.repeat(reward[:, :, None], 2 * successors, axis=2),
        np.broadcast_to(np.arange(2 * successors) >= successors, (states, 2, 2 * successors)),
        np.full(states, 1 / states),
        noise=0.5,
    )


def windy_grid(side: int = 25) -> Table:
    """Numbered places of a square; moves succeed with 0.8, else the wind blows to a neighbour; 1 in a corner."""
    x, y = np.divmod(np.arange(side * side), side)
    moves = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])
    there = [np.clip([x + dx, y + dy], 0, side - 1) for dx, dy in moves]
    neighbours = np.stack([column * side + row for column, row in there], axis=1)
    goal = side * side - 1
    probability = np.full((len(x), 4, 4), 0.05) + 0.8 * np.eye(4)
    after = np.broadcast_to(neighbours[:, None], probability.shape)
    ends, start = after == goal, (x < side // 2) & (y < side // 2)
    return Table(probability, after, ends.astype(float), ends, start / start.sum())


def to_the_corner(side: int = 25) -> Array:
    """Right where x is less than y, else up: action of each place."""
    x, y = np.divmod(np.arange(side * side), side)
    return np.where(x <= y, 0, 2)
