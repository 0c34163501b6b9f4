"""Mountain Car: a batched simulator, Sarsa with tile coding, and the log of the policy it finds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from valuefit.data.transitions import Transitions
from valuefit.features.tiles import Tiles
from valuefit.rows.kernels import compiled
from valuefit.typing import Array

LOW, HIGH = np.array([-1.2, -0.07]), np.array([0.6, 0.07])
GOAL, FORCE, GRAVITY = 0.5, 0.001, 0.0025
REWARD = -1.0


class Stepped(NamedTuple):
    """Where a batch of cars is after a step, and which have reached the goal."""

    state: Array
    terminated: Array


def reset(count: int, rng: np.random.Generator) -> Array:
    """(count, 2) positions and velocities at the start: at rest near the valley's floor."""
    return np.column_stack([rng.uniform(-0.6, -0.4, count), np.zeros(count)])


def step(state: Array, action: Array) -> Stepped:
    """Move every car: actions 0, 1, 2 push left, not at all, right. The dynamics of Gymnasium's MountainCar-v0."""
    position, velocity = state[:, 0], state[:, 1]
    velocity = velocity + (action - 1) * FORCE + np.cos(3 * position) * (-GRAVITY)
    velocity = np.clip(velocity, LOW[1], HIGH[1])
    position = np.clip(position + velocity, LOW[0], HIGH[0])
    velocity = np.where((position == LOW[0]) & (velocity < 0), 0.0, velocity)
    return Stepped(np.column_stack([position, velocity]), (position >= GOAL) & (velocity >= 0))


def paper_tiles() -> Tiles:
    """The 300 features of the paper, which it does not spell out: here twelve tilings of 5 x 5."""
    return Tiles(tilings=12, bins=5, low=LOW, high=HIGH)


@dataclass(frozen=True, eq=False)
class TilePolicy:
    """Greedy in linear action values over tiles; `weights` (actions, tiles)."""

    weights: Array
    tiles: Tiles

    def __call__(self, state: Array) -> Array:
        """The action in each state."""
        return np.argmax(np.asarray(self.tiles.transform(state) @ self.weights.T), axis=1)

    def log(self, steps: int, *, seed: int = 0, cars: int = 50, limit: int = 1000) -> Transitions:
        """Episodes from random starts until `steps` transitions are there; the last one may be cut (truncated)."""
        rng = np.random.default_rng(seed)
        episodes: list[tuple[Array, Array, bool]] = []
        total = 0
        while total < steps:
            for states, actions, terminated in rollouts(self, cars, limit, rng):
                room = steps - total
                if room <= 0:
                    break
                if len(actions) > room:
                    states, actions, terminated = states[: room + 1], actions[:room], False
                episodes.append((states, actions, terminated))
                total += len(actions)
        lengths = [len(actions) for _, actions, _ in episodes]
        ends = np.cumsum(lengths) - 1
        over, cut = np.zeros(total, bool), np.zeros(total, bool)
        reached = np.array([done for *_, done in episodes])
        over[ends[reached]], cut[ends[~reached]] = True, True
        log = Transitions.from_arrays(
            np.concatenate([states[:-1] for states, *_ in episodes]),
            np.full(total, REWARD),
            terminated=over,
            truncated=cut,
            episode=np.repeat(np.arange(len(episodes)), lengths),
            action=np.concatenate([actions for _, actions, _ in episodes]),
            next_observation=np.concatenate([states[1:] for states, *_ in episodes]),
        )
        return replace(log, names=("position", "velocity"))

    def average_length(self, episodes: int = 100, *, seed: int = 0, limit: int = 1000) -> float:
        """Mean number of steps to the goal, `limit` where it is not reached."""
        runs = rollouts(self, episodes, limit, np.random.default_rng(seed))
        return float(np.mean([len(actions) for _, actions, _ in runs]))


def rollouts(policy: TilePolicy, cars: int, limit: int, rng: np.random.Generator) -> list[tuple[Array, Array, bool]]:
    """(states (T + 1, 2), actions (T,), reached the goal) of each car."""
    state = reset(cars, rng)
    states, actions = [state], []
    done = np.zeros(cars, bool)
    length = np.full(cars, limit)
    for t in range(limit):
        action = policy(state)
        state, arrived = step(state, action)
        states.append(state)
        actions.append(action)
        first = arrived & ~done
        length[first], done[first] = t + 1, True
        if done.all():
            break
    path, taken = np.stack(states, axis=1), np.stack(actions, axis=1)
    return [(path[car, : length[car] + 1], taken[car, : length[car]], bool(done[car])) for car in range(cars)]


def sarsa(*, episodes: int = 1000, seed: int = 0) -> TilePolicy:
    """A good policy by Sarsa(0.9) over the 300 tiles, greedy, exploring by values that start too high."""
    tiles = paper_tiles().fit(np.vstack([LOW, HIGH]))
    weights = np.zeros((3, tiles.tilings * tiles.tiles_))
    starts = reset(episodes, np.random.default_rng(seed))[:, 0]
    learn(
        starts, tiles.low_, tiles.scale_, tiles.shift_, tiles.bins_, tiles.tiles_, weights,
        0.1 / tiles.tilings, 0.9, 2000,
    )  # fmt: skip
    return TilePolicy(weights, tiles)


@compiled
def learn(starts, low, scale, shift, bins, tiles, weights, rate, trace, limit):
    """Sarsa(lambda) with replacing traces, greedy in values that start too high (0), without discount."""
    tilings = shift.shape[0]
    now, after = np.empty(tilings, np.int64), np.empty(tilings, np.int64)
    eligibility = np.zeros_like(weights)
    for episode in range(starts.shape[0]):
        position, velocity = starts[episode], 0.0
        eligibility[:] = 0.0
        active_tiles(position, velocity, low, scale, shift, bins, tiles, now)
        action, value = greedy(weights, now)
        slower = rate / (1.0 + episode / 100.0)
        for _ in range(limit):
            velocity += (action - 1) * FORCE - GRAVITY * np.cos(3 * position)
            velocity = min(max(velocity, -0.07), 0.07)
            position = min(max(position + velocity, -1.2), 0.6)
            if position == -1.2 and velocity < 0:
                velocity = 0.0
            arrived = position >= GOAL and velocity >= 0
            target = -1.0
            next_action, next_value = 0, 0.0
            if not arrived:
                active_tiles(position, velocity, low, scale, shift, bins, tiles, after)
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
                        weights[a, c] += slower * delta * eligibility[a, c]
                        eligibility[a, c] *= trace
                        if eligibility[a, c] < 1e-6:
                            eligibility[a, c] = 0.0
            if arrived:
                break
            action = next_action
            now[:] = after


@compiled
def active_tiles(position, velocity, low, scale, shift, bins, tiles, out):
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
