"""A second set of worlds kept for tests of `features="auto"` and the verdict, fixed before the change they test."""

from __future__ import annotations

from typing import Any

import numpy as np

from coverage_study.worlds import Array, World


class Thruster(World):
    """Position and velocity on a line with three thrusts and a gust of wind; costs are quadratic."""

    actions = 3
    THRUSTS, SECONDS = np.array([-1.0, 0.0, 1.0]), 0.1

    def start(self, count: int, rng: np.random.Generator) -> Array:
        return np.column_stack([rng.uniform(-1, 1, count), rng.uniform(-0.5, 0.5, count)])

    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        position, speed = state.T
        thrust = self.THRUSTS[action]
        cost = position**2 + 0.1 * speed**2 + 0.05 * np.abs(thrust)
        speed = np.clip(speed + self.SECONDS * thrust + 0.05 * rng.standard_normal(len(state)), -1.5, 1.5)
        after = np.column_stack([np.clip(position + self.SECONDS * speed, -2, 2), speed])
        return after, -cost, np.zeros(len(state), bool)


class Rocket(World):
    """Height, speed and fuel: burn or fall. The touchdown ends the episode and is the better, the slower it is."""

    actions = 2
    GRAVITY, THRUST, SECONDS = 1.0, 2.5, 0.1

    def start(self, count: int, rng: np.random.Generator) -> Array:
        return np.column_stack([rng.uniform(1.0, 2.0, count), rng.uniform(-0.5, 0.5, count), np.full(count, 1.5)])

    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        height, speed, fuel = state.T
        burns = (action == 1) & (fuel > 0)
        push = np.where(burns, self.THRUST * np.exp(0.1 * rng.standard_normal(len(state))), 0.0)
        speed = np.clip(speed + self.SECONDS * (push - self.GRAVITY), -3, 3)
        height = np.minimum(height + self.SECONDS * speed, 4.0)
        landed = height <= 0
        after = np.column_stack([np.maximum(height, 0), speed, np.maximum(fuel - self.SECONDS * burns, 0)])
        return after, np.where(landed, 10 - 8 * np.abs(speed), -0.1 * burns), landed


class Reservoir(World):
    """Storage, inflow and season, of which the log has cosine and sine; release little, some or much."""

    actions = 3
    RELEASES, ROOM, PERIOD = np.array([0.5, 1.0, 1.8]), 10.0, 36

    def start(self, count: int, rng: np.random.Generator) -> Array:
        return np.column_stack([rng.uniform(2, 8, count), np.ones(count), rng.integers(0, self.PERIOD, count)])

    def observe(self, state: Array) -> Array:
        angle = 2 * np.pi * state[:, 2] / self.PERIOD
        return np.column_stack([state[:, :2], np.cos(angle), np.sin(angle)])

    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        storage, inflow, season = state.T
        release = np.minimum(self.RELEASES[action], storage)
        usual = 1 + 0.7 * np.sin(2 * np.pi * season / self.PERIOD)
        inflow = usual * np.exp(0.5 * np.log(inflow) + 0.4 * rng.standard_normal(len(state)))
        inflow = np.clip(inflow, 0.05, 6.0)
        level = storage - release + inflow
        spilled = np.maximum(level - self.ROOM, 0)
        reward = np.minimum(release, 1.2) - 2 * spilled - 1.0 * (level < 1)
        after = np.column_stack([np.clip(level, 0, self.ROOM), inflow, (season + 1) % self.PERIOD])
        return after, reward, np.zeros(len(state), bool)


class Steering(World):
    """Place and heading in the unit square, observed by cosine and sine: turn left, go on, turn right; -1 a step until
    the middle of the right side; walls stop the movement."""

    actions = 3
    TURNS, SPEED = np.array([-0.6, 0.0, 0.6]), 0.06

    def start(self, count: int, rng: np.random.Generator) -> Array:
        return np.column_stack(
            [rng.uniform(0, 0.3, count), rng.uniform(0, 1, count), rng.uniform(-np.pi, np.pi, count)]
        )

    def observe(self, state: Array) -> Array:
        return np.column_stack([state[:, :2], np.cos(state[:, 2]), np.sin(state[:, 2])])

    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        heading = state[:, 2] + self.TURNS[action] + 0.1 * rng.standard_normal(len(state))
        place = np.clip(state[:, :2] + self.SPEED * np.column_stack([np.cos(heading), np.sin(heading)]), 0, 1)
        arrived = (place[:, 0] > 0.9) & (np.abs(place[:, 1] - 0.5) < 0.2)
        return np.column_stack([place, heading]), np.full(len(state), -1.0), arrived


class Epidemic(World):
    """Susceptible and infected shares of a town; three degrees of restriction, each at its price, until it is over."""

    actions = 3
    CONTACTS, PRICES, RECOVERY = np.array([0.5, 0.3, 0.15]), np.array([0.0, 0.04, 0.12]), 0.2

    def start(self, count: int, rng: np.random.Generator) -> Array:
        return np.column_stack([rng.uniform(0.7, 0.95, count), rng.uniform(0.01, 0.05, count)])

    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        susceptible, infected = state.T
        force = self.CONTACTS[action] * np.exp(0.2 * rng.standard_normal(len(state)))
        cases = np.minimum(force * susceptible * infected, susceptible)
        infected = (1 - self.RECOVERY) * infected + cases
        return np.column_stack([susceptible - cases, infected]), -cases - self.PRICES[action] * 0.1, infected < 0.004


def brake(observations: Array) -> Array:
    """Thrust towards the middle, against the speed."""
    push = observations[:, 0] + 1.2 * observations[:, 1]
    return np.where(push > 0.1, 0, np.where(push < -0.1, 2, 1))


def land_softly(observations: Array) -> Array:
    """Burn when the fall is faster than the height allows."""
    height, speed, _ = observations.T
    return (speed < -0.3 - 0.5 * height).astype(int)


def follow_storage(observations: Array) -> Array:
    """Release by the storage."""
    return np.digitize(observations[:, 0], [3.0, 7.0])


def towards_goal(observations: Array) -> Array:
    """Turn to the goal."""
    x, y, cos, sin = observations.T
    across, along = 0.5 - y, 0.95 - x
    side = cos * across - sin * along
    return np.where(np.abs(side) < 0.15, 1, np.where(side > 0, 2, 0))


def restrict_when_many(observations: Array) -> Array:
    return np.digitize(observations[:, 1], [0.02, 0.08])


# name -> world, action of the target policy, random share of behaviour and target, longest episode
FRESH: dict[str, tuple[World, Any, float, float, int]] = {
    "thruster": (Thruster(), brake, 0.6, 0.2, 80),
    "rocket": (Rocket(), land_softly, 0.5, 0.2, 80),
    "reservoir": (Reservoir(), follow_storage, 0.6, 0.2, 72),
    "steering": (Steering(), towards_goal, 0.5, 0.2, 100),
    "epidemic": (Epidemic(), restrict_when_many, 0.6, 0.2, 80),
}
