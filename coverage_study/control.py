"""CartPole, MountainCar and Acrobot of Gymnasium, many episodes at once; tables of its toy text.

A test compares each step with Gymnasium's. Gymnasium rounds observations to 32 bits, here they have 64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coverage_study.worlds import Array, Table, World


class CartPole(World):
    """States: position, velocity, angle, angular velocity. Reward 1 a step, until the pole or the cart is too far."""

    actions = 2
    GRAVITY, POLE_MASS, TOTAL_MASS, HALF_LENGTH, FORCE, SECONDS = 9.8, 0.1, 1.1, 0.5, 10.0, 0.02
    MAX_POSITION, MAX_ANGLE = 2.4, 12 * 2 * np.pi / 360

    def start(self, count: int, rng: np.random.Generator) -> Array:
        return rng.uniform(-0.05, 0.05, (count, 4))

    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        speed, angle, turn = state.T[1:]
        force = np.where(action == 1, self.FORCE, -self.FORCE)
        cos, sin, moment = np.cos(angle), np.sin(angle), self.POLE_MASS * self.HALF_LENGTH
        push = (force + moment * turn**2 * sin) / self.TOTAL_MASS
        inertia = self.HALF_LENGTH * (4 / 3 - self.POLE_MASS * cos**2 / self.TOTAL_MASS)
        turning = (self.GRAVITY * sin - cos * push) / inertia
        pushing = push - moment * turning * cos / self.TOTAL_MASS
        after = state + self.SECONDS * np.column_stack([speed, pushing, turn, turning])
        ended = (np.abs(after[:, 0]) > self.MAX_POSITION) | (np.abs(after[:, 2]) > self.MAX_ANGLE)
        return after, np.ones(len(state)), ended


class CartPoleWithoutVelocities(CartPole):
    """CartPole whose log has the position and the angle alone, so that observations are not Markov."""

    def observe(self, state: Array) -> Array:
        return state[:, [0, 2]]


class MountainCar(World):
    """States: position, velocity. Reward -1 a step, until the car is on the hill."""

    actions = 3
    MIN_POSITION, MAX_POSITION, GOAL, MAX_SPEED, FORCE, GRAVITY = -1.2, 0.6, 0.5, 0.07, 0.001, 0.0025

    def start(self, count: int, rng: np.random.Generator) -> Array:
        return np.column_stack([rng.uniform(-0.6, -0.4, count), np.zeros(count)])

    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        position, speed = state.T
        speed = speed + (action - 1) * self.FORCE - np.cos(3 * position) * self.GRAVITY
        speed = np.clip(speed, -self.MAX_SPEED, self.MAX_SPEED)
        position = np.clip(position + speed, self.MIN_POSITION, self.MAX_POSITION)
        speed = np.where((position == self.MIN_POSITION) & (speed < 0), 0.0, speed)
        return np.column_stack([position, speed]), np.full(len(state), -1.0), position >= self.GOAL


class Acrobot(World):
    """States: two angles and their velocities; observed by cosine and sine. Reward -1 a step, 0 for the last."""

    actions = 3
    GRAVITY, SECONDS, MAX_TURNS = 9.8, 0.2, np.array([4 * np.pi, 9 * np.pi])

    def start(self, count: int, rng: np.random.Generator) -> Array:
        return rng.uniform(-0.1, 0.1, (count, 4))

    def observe(self, state: Array) -> Array:
        one, two, turn_one, turn_two = state.T
        return np.column_stack([np.cos(one), np.sin(one), np.cos(two), np.sin(two), turn_one, turn_two])

    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        torque, h = action - 1.0, self.SECONDS
        first = self._slope(state, torque)  # Runge and Kutta, fourth order
        second = self._slope(state + h / 2 * first, torque)
        third = self._slope(state + h / 2 * second, torque)
        fourth = self._slope(state + h * third, torque)
        after = state + h / 6 * (first + 2 * second + 2 * third + fourth)
        angles = (after[:, :2] + np.pi) % (2 * np.pi) - np.pi
        after = np.hstack([angles, np.clip(after[:, 2:], -self.MAX_TURNS, self.MAX_TURNS)])
        ended = -np.cos(after[:, 0]) - np.cos(after[:, 0] + after[:, 1]) > 1
        return after, np.where(ended, 0.0, -1.0), ended

    def _slope(self, state: Array, torque: Array) -> Array:
        """Two links of mass and length 1 with centres at 0.5 and moments of inertia 1 (Sutton and Barto)."""
        one, two, turn_one, turn_two = state.T
        cos = np.cos(two)
        d1, d2 = 0.25 + (1 + 0.25 + cos) + 2, 0.25 + 0.5 * cos + 1
        phi2 = 0.5 * self.GRAVITY * np.cos(one + two - np.pi / 2)
        phi1 = -0.5 * turn_two**2 * np.sin(two) - turn_two * turn_one * np.sin(two)
        phi1 += 1.5 * self.GRAVITY * np.cos(one - np.pi / 2) + phi2
        second = torque + d2 / d1 * phi1 - 0.5 * turn_one**2 * np.sin(two) - phi2
        second /= 0.25 + 1 - d2**2 / d1
        return np.column_stack([turn_one, turn_two, -(d2 * second + phi1) / d1, second])


def toy_text(environment: Any) -> Table:
    """The table of an environment of Gymnasium's toy text, as `FrozenLakeEnv()`."""
    actions, states = environment.action_space.n, environment.observation_space.n
    outcomes = [[environment.P[s][a] for a in range(actions)] for s in range(states)]
    most = max(len(found) for row in outcomes for found in row)
    padded = np.array([[found + [(0.0, 0, 0.0, True)] * (most - len(found)) for found in row] for row in outcomes])
    probability, after, reward, ends = np.moveaxis(padded.astype(float), 3, 0)
    start = np.asarray(environment.initial_state_distrib)
    return Table(probability, after.astype(int), reward, ends.astype(bool), start)
