"""Worlds and tasks kept for the final test of `features="auto"`: neither it nor the verdict was tuned on them."""

from __future__ import annotations

from typing import Any

import numpy as np

from coverage_study.worlds import Array, World


class Pendulum(World):
    """Gymnasium's Pendulum with three torques; states: angle and speed, observed by cosine, sine and speed."""

    actions = 3
    SECONDS, GRAVITY, MAX_SPEED, TORQUES = 0.05, 10.0, 8.0, np.array([-2.0, 0.0, 2.0])

    def start(self, count: int, rng: np.random.Generator) -> Array:
        return np.column_stack([rng.uniform(-np.pi, np.pi, count), rng.uniform(-1, 1, count)])

    def observe(self, state: Array) -> Array:
        return np.column_stack([np.cos(state[:, 0]), np.sin(state[:, 0]), state[:, 1]])

    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        angle, speed = state.T
        torque, wrapped = self.TORQUES[action], (angle + np.pi) % (2 * np.pi) - np.pi
        cost = wrapped**2 + 0.1 * speed**2 + 0.001 * torque**2
        speed = speed + (1.5 * self.GRAVITY * np.sin(angle) + 3 * torque) * self.SECONDS
        speed = np.clip(speed, -self.MAX_SPEED, self.MAX_SPEED)
        return np.column_stack([angle + speed * self.SECONDS, speed]), -cost, np.zeros(len(state), bool)


class Inventory(World):
    """Stock and the last demand, which is lognormal and persists. Orders of 0, 5 or 10 arrive at once."""

    actions = 3
    ORDERS, PRICE, COST, HOLDING, FIXED, ROOM = np.array([0.0, 5.0, 10.0]), 2.0, 1.0, 0.1, 1.0, 40.0

    def start(self, count: int, rng: np.random.Generator) -> Array:
        return np.column_stack([rng.uniform(0, 20, count), np.exp(1 + 0.6 * rng.standard_normal(count))])

    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        stock, last = state.T
        order = np.minimum(self.ORDERS[action], self.ROOM - stock)
        demand = np.exp(0.5 + 0.5 * np.log(last) + 0.5 * rng.standard_normal(len(state)))
        sold = np.minimum(stock + order, demand)
        after = stock + order - sold
        reward = self.PRICE * sold - self.COST * order - self.FIXED * (order > 0) - self.HOLDING * after
        return np.column_stack([after, demand]), reward, np.zeros(len(state), bool)


class TwoQueues(World):
    """Two queues with one server, which serves one of them a step; waiting costs 1 and 2, being full ends the day."""

    actions = 2
    ARRIVALS, SERVICE, LONGEST = np.array([0.25, 0.3]), np.array([0.7, 0.6]), 15

    def start(self, count: int, rng: np.random.Generator) -> Array:
        return rng.integers(0, 6, (count, 2)).astype(float)

    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        served = (rng.random(len(state)) < self.SERVICE[action])[:, None] & (np.arange(2) == action[:, None])
        after = np.maximum(state - served, 0) + (rng.random(state.shape) < self.ARRIVALS)
        full = (after > self.LONGEST).any(axis=1)
        return after, -after @ np.array([0.1, 0.2]) - 10 * full, full


class Patients(World):
    """Eight measurements, three of which respond to the treatment and decide on the outcome; five do not matter."""

    actions = 2

    def start(self, count: int, rng: np.random.Generator) -> Array:
        return rng.standard_normal((count, 8))

    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        noise = rng.standard_normal(state.shape)
        after = 0.7 * state + 0.6 * noise
        after[:, 0] += 0.5 * (2.0 * action - 1.0)
        after[:, 1] += 0.3 * np.tanh(2 * state[:, 0])
        reward = -np.abs(after[:, 0] - 0.5) + np.where(after[:, 1] > 0, 1.0, 0.0) - 0.3 * action * (after[:, 2] > 1)
        return after, reward + 0.3 * rng.standard_normal(len(state)), np.zeros(len(state), bool)


class TwoRooms(World):
    """The unit square with a wall at x = 0.5 that has a door below y = 0.2; -1 a step until the upper right corner."""

    actions = 4
    MOVES = 0.08 * np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    WALL, DOOR, NOISE = 0.5, 0.2, 0.02

    def start(self, count: int, rng: np.random.Generator) -> Array:
        return np.column_stack([rng.uniform(0, 0.4, count), rng.uniform(0, 1, count)])

    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        after = np.clip(state + self.MOVES[action] + self.NOISE * rng.standard_normal(state.shape), 0, 1)
        crosses = ((state[:, 0] - self.WALL) * (after[:, 0] - self.WALL) <= 0) & (state[:, 1] > self.DOOR)
        after = np.where(crosses[:, None], state, after)
        return after, np.full(len(state), -1.0), (after > 0.8).all(axis=1)


class Vehicle(World):
    """Site (one of five, without order), charge and load: drive on or charge. An empty battery ends the tour."""

    actions = 2
    NEXT, DISTANCE = np.array([3, 4, 1, 2, 0]), np.array([0.10, 0.22, 0.05, 0.16, 0.30])

    def start(self, count: int, rng: np.random.Generator) -> Array:
        return np.column_stack([rng.integers(0, 5, count), rng.uniform(0.4, 1, count), rng.uniform(0, 1, count)])

    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        site, charge, load = state[:, 0].astype(int), state[:, 1], state[:, 2]
        drives = action == 1
        used = self.DISTANCE[site] * (0.6 + 0.8 * load) * np.exp(0.2 * rng.standard_normal(len(state)))
        charge = np.where(drives, charge - used, np.minimum(charge + 0.25, 1.0))
        reward = np.where(drives, 0.5 + load * (site % 2), -0.2)
        ended = charge <= 0
        after = np.column_stack([
            np.where(drives, self.NEXT[site], site), np.maximum(charge, 0),
            np.where(drives, rng.uniform(0, 1, len(state)), load),
        ])  # fmt: skip
        return after, np.where(ended, -5.0, reward), ended


def swing_up(observations: Array) -> Array:
    """Push with the speed while the pendulum hangs, against it while it stands."""
    cos, sin, speed = observations.T
    push = np.where(cos < 0.7, speed, -5 * sin - speed)
    return np.where(push > 0, 2, 0)


def order_up_to(observations: Array) -> Array:
    """10 below a stock of 4, 5 below 8."""
    return np.where(observations[:, 0] < 4, 2, np.where(observations[:, 0] < 8, 1, 0))


def serve_longer(observations: Array) -> Array:
    """The queue whose waiting costs more."""
    return (2 * observations[:, 1] > observations[:, 0]).astype(int)


def treat_low(observations: Array) -> Array:
    return (observations[:, 0] < 0).astype(int)


def through_the_door(observations: Array) -> Array:
    """Down to the door, right, up."""
    x, y = observations.T
    return np.where(x < 0.5, np.where(y > 0.15, 3, 0), np.where(x < 0.85, 0, 2))


def charge_when_low(observations: Array) -> Array:
    """Drive with more than half of the charge."""
    return (observations[:, 1] > 0.5).astype(int)


# name -> world, action of the target policy, random share of behaviour and target, longest episode
HELD_OUT: dict[str, tuple[World, Any, float, float, int]] = {
    "pendulum": (Pendulum(), swing_up, 0.5, 0.3, 100),
    "inventory": (Inventory(), order_up_to, 0.5, 0.2, 100),
    "two-queues": (TwoQueues(), serve_longer, 0.6, 0.3, 100),
    "patients": (Patients(), treat_low, 0.6, 0.3, 40),
    "two-rooms": (TwoRooms(), through_the_door, 0.5, 0.3, 150),
    "vehicle": (Vehicle(), charge_when_low, 0.6, 0.3, 60),
}
DISCOUNTS = (0.95, 0.99)
EPISODES = (100, 1000)
