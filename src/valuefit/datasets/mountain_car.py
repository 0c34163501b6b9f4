"""Mountain Car: a batched simulator, Sarsa with tile coding, and logs of the learned policy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from valuefit.data.transitions import Transitions
from valuefit.data.validation import whole_number
from valuefit.datasets import arguments
from valuefit.features.tiles import Tiles
from valuefit.rows.kernels import compiled
from valuefit.typing import Array

# The constants of Gymnasium's MountainCar-v0. LOW, HIGH: bounds of (position, velocity). REWARD: per step.
LOW, HIGH = np.array([-1.2, -0.07]), np.array([0.6, 0.07])
GOAL_POSITION, FORCE, GRAVITY = 0.5, 0.001, 0.0025
REWARD = -1.0


class StepResult(NamedTuple):
    """States (cars, 2) of a batch of cars after a step, and whether each reached the goal, (cars,)."""

    state: Array
    terminated: Array


def reset(count: int, rng: np.random.Generator) -> Array:
    """Start states (count, 2): at rest near the bottom of the valley."""
    return np.column_stack([rng.uniform(-0.6, -0.4, count), np.zeros(count)])


def step(state: Array, action: Array) -> StepResult:
    """Move every car as in Gymnasium's MountainCar-v0; actions: 0 push left, 1 no push, 2 push right."""
    position, velocity = state[:, 0], state[:, 1]
    velocity = velocity + (action - 1) * FORCE + np.cos(3 * position) * (-GRAVITY)
    velocity = np.clip(velocity, LOW[1], HIGH[1])
    position = np.clip(position + velocity, LOW[0], HIGH[0])
    velocity = np.where((position == LOW[0]) & (velocity < 0), 0.0, velocity)
    return StepResult(np.column_stack([position, velocity]), (position >= GOAL_POSITION) & (velocity >= 0))


def paper_tiles() -> Tiles:
    """300 tiles, as many as in the paper, which does not state its tilings; here twelve tilings of 5 x 5."""
    return Tiles(tilings=12, bins=5, low=LOW, high=HIGH)


@dataclass(frozen=True, eq=False)
class TilePolicy:
    """The greedy policy of action values that are linear in tiles; `weights` (actions, tiles)."""

    weights: Array
    tiles: Tiles

    def __call__(self, state: Array) -> Array:
        """The action in each state."""
        return np.argmax(np.asarray(self.tiles.transform(state) @ self.weights.T), axis=1)

    def log(self, steps: int, *, seed: int = 0, cars: int = 50, limit: int = 1000) -> Transitions:
        """A log of `steps` transitions in episodes of at most `limit` steps; the last episode may be truncated."""
        rng, steps = arguments.generator(seed), whole_number("steps", steps, low=1)
        cars, limit = whole_number("cars", cars, low=1), whole_number("limit", limit, low=1)
        arguments.require_room(20 * (steps + cars * limit), f"A log of {steps} steps")
        episodes: list[tuple[Array, Array, bool]] = []
        total = 0
        while total < steps:
            for states, actions, at_goal in rollouts(self, cars, limit, rng):
                remaining = steps - total
                if remaining <= 0:
                    break
                if len(actions) > remaining:
                    states, actions, at_goal = states[: remaining + 1], actions[:remaining], False
                episodes.append((states, actions, at_goal))
                total += len(actions)
        lengths = [len(actions) for _, actions, _ in episodes]
        ends = np.cumsum(lengths) - 1
        terminated, truncated = np.zeros(total, bool), np.zeros(total, bool)
        reached = np.array([at_goal for *_, at_goal in episodes])
        terminated[ends[reached]], truncated[ends[~reached]] = True, True
        log = Transitions.from_arrays(
            np.concatenate([states[:-1] for states, *_ in episodes]),
            np.full(total, REWARD),
            terminated=terminated,
            truncated=truncated,
            episode=np.repeat(np.arange(len(episodes)), lengths),
            action=np.concatenate([actions for _, actions, _ in episodes]),
            next_observation=np.concatenate([states[1:] for states, *_ in episodes]),
        )
        return replace(log, names=("position", "velocity"))

    def average_length(self, episodes: int = 100, *, seed: int = 0, limit: int = 1000) -> float:
        """Mean number of steps to the goal; `limit` for episodes that do not reach it."""
        rng = arguments.generator(seed)
        episodes, limit = whole_number("episodes", episodes, low=1), whole_number("limit", limit, low=1)
        arguments.require_room(20 * episodes * limit, f"{episodes} episodes of {limit} steps")
        runs = rollouts(self, episodes, limit, rng)
        return float(np.mean([len(actions) for _, actions, _ in runs]))


def rollouts(policy: TilePolicy, cars: int, limit: int, rng: np.random.Generator) -> list[tuple[Array, Array, bool]]:
    """One episode per car: states (T + 1, 2), actions (T,), and whether it reached the goal."""
    state = reset(cars, rng)
    states, actions = [state], []
    done = np.zeros(cars, bool)
    length = np.full(cars, limit)
    for t in range(limit):
        action = policy(state)
        state, at_goal = step(state, action)
        states.append(state)
        actions.append(action)
        first = at_goal & ~done
        length[first], done[first] = t + 1, True
        if done.all():
            break
    path, taken = np.stack(states, axis=1), np.stack(actions, axis=1)
    return [(path[car, : length[car] + 1], taken[car, : length[car]], bool(done[car])) for car in range(cars)]


def sarsa(*, episodes: int = 1000, seed: int = 0) -> TilePolicy:
    """A policy learned by Sarsa(0.9) on the 300 tiles; it explores by optimistic initial values."""
    tiles = paper_tiles().fit(np.vstack([LOW, HIGH]))
    weights = np.zeros((3, tiles.tilings * tiles.tiles_))
    episodes = whole_number("episodes", episodes, low=1)
    arguments.require_room(2 * episodes, f"The starts of {episodes} episodes")
    starts = reset(episodes, arguments.generator(seed))[:, 0]
    grids = tiles.low_, tiles.scale_, tiles.shift_, tiles.bins_, tiles.tiles_
    learn(starts, grids, weights, 0.1 / tiles.tilings, 0.9, 2000)
    return TilePolicy(weights, tiles)


@compiled
def learn(starts, grids, weights, rate, trace, limit):
    """Undiscounted Sarsa(lambda) with replacing traces; greedy, with optimistic initial values (0)."""
    tilings = grids[2].shape[0]
    now, after = np.empty(tilings, np.int64), np.empty(tilings, np.int64)
    eligibility = np.zeros_like(weights)
    for episode in range(starts.shape[0]):
        position, velocity = starts[episode], 0.0
        eligibility[:] = 0.0
        active_tiles(position, velocity, grids, now)
        action, value = greedy(weights, now)
        step_size = rate / (1.0 + episode / 100.0)
        for _ in range(limit):
            velocity += (action - 1) * FORCE - GRAVITY * np.cos(3 * position)
            velocity = min(max(velocity, -0.07), 0.07)
            position = min(max(position + velocity, -1.2), 0.6)
            if position == -1.2 and velocity < 0:
                velocity = 0.0
            at_goal = position >= GOAL_POSITION and velocity >= 0
            target = -1.0
            next_action, next_value = 0, 0.0
            if not at_goal:
                active_tiles(position, velocity, grids, after)
                next_action, next_value = greedy(weights, after)
                target += next_value
            value = 0.0
            for k in range(tilings):
                value += weights[action, now[k]]
            delta = target - value
            for k in range(tilings):
                for a in range(3):
                    eligibility[a, now[k]] = 1.0 if a == action else 0.0
            for a in range(3):
                for c in range(weights.shape[1]):
                    if eligibility[a, c] != 0.0:
                        weights[a, c] += step_size * delta * eligibility[a, c]
                        eligibility[a, c] *= trace
                        if eligibility[a, c] < 1e-6:
                            eligibility[a, c] = 0.0
            if at_goal:
                break
            action = next_action
            now[:] = after


@compiled
def active_tiles(position, velocity, grids, out):
    low, scale, shift, bins, tiles = grids
    for k in range(shift.shape[0]):
        x = min(max(int(np.floor((position - low[0]) * scale[0] + shift[k, 0])), 0), bins[0] - 1)
        y = min(max(int(np.floor((velocity - low[1]) * scale[1] + shift[k, 1])), 0), bins[1] - 1)
        out[k] = k * tiles + x * bins[1] + y


@compiled
def greedy(weights, active):
    best, best_value = 0, -np.inf
    for a in range(weights.shape[0]):
        value = 0.0
        for k in range(active.shape[0]):
            value += weights[a, active[k]]
        if value > best_value:
            best, best_value = a, value
    return best, best_value
