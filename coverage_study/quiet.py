"""Worlds that reward keeping still, which the behaviour policy hardly ever does for long enough: a lander, a balance.

How long the vehicle has been still is hidden, as the sleep of a body in a physics engine is. The logs have crashes and
almost no reward, so that no function of the observations can tell what follows a rest.
"""

from __future__ import annotations

import numpy as np

from coverage_study.worlds import Array, World


class QuietLander(World):
    """Height, speed, tilt and ground contact; fire nothing, the main engine, or one that tilts it left or right.

    It crashes where it is too fast or too tilted on the ground, and has landed after 20 steps at rest without firing.
    """

    actions, REST_STEPS = 4, 20
    GRAVITY, THRUST, TURN, NOISE = 0.02, 0.06, 0.15, 0.02
    MAX_SPEED, MAX_TILT, PRIZE, FUEL, REWARD_NOISE = 0.12, 0.3, 10.0, 0.03, 0.3

    def start(self, count: int, rng: np.random.Generator) -> Array:
        return np.column_stack([
            rng.uniform(1.0, 1.5, count), rng.uniform(-0.05, 0.05, count), rng.uniform(-0.3, 0.3, count),
            np.zeros(count),
        ])  # fmt: skip

    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        height, speed, tilt, rest = state.T
        quiet = (height <= 0) & (action == 0)
        turn = self.TURN * ((action == 3).astype(float) - (action == 2)) + self.NOISE * rng.standard_normal(len(state))
        tilt = np.where(quiet, tilt, 1.05 * tilt + turn)
        push = np.where(action == 1, self.THRUST * np.cos(2 * tilt), 0.0) - self.GRAVITY
        speed = np.where(quiet, 0.0, speed + push)
        height = np.maximum(height + speed, 0.0)
        down = height <= 0
        crashed = down & ((speed < -self.MAX_SPEED) | (np.abs(tilt) > self.MAX_TILT))
        rest = np.where(quiet, rest + 1, 0.0)
        landed = rest >= self.REST_STEPS
        reward = self.PRIZE * landed - self.PRIZE * crashed - self.FUEL * (action > 0)
        reward = reward + self.REWARD_NOISE * rng.standard_normal(len(state))
        after = np.column_stack([height, np.where(down, 0.0, speed), tilt, rest])
        return after, reward, crashed | landed

    def observe(self, state: Array) -> Array:
        return np.column_stack([state[:, :3], state[:, 0] <= 0])


def land(observations: Array) -> Array:
    """Straighten up, brake a fall that is too fast for the height, and wait on the ground."""
    height, speed, tilt, _ = observations.T
    turns = np.where(tilt > 0.12, 2, np.where(tilt < -0.12, 3, 0))
    return np.where((speed < -0.04 - 0.1 * height) & (height > 0), 1, turns)


class StillBalance(World):
    """Angle and rate of a beam on a knife-edge with a notch; wait, or push to the left or right.

    Outside the notch it falls, until it is lost; after 20 steps in the notch without a push the weight is read.
    """

    actions, STILL_STEPS = 3, 20
    NOTCH, PUSH, FALL, NOISE, REWARD_NOISE = 0.15, 0.09, 0.06, 0.004, 0.02

    def start(self, count: int, rng: np.random.Generator) -> Array:
        side = np.where(rng.random(count) < 0.5, -1.0, 1.0)
        return np.column_stack([side * rng.uniform(0.2, 0.6, count), rng.normal(0, 0.02, count), np.zeros(count)])

    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        angle, rate, still = state.T
        push = self.PUSH * ((action == 2).astype(float) - (action == 1)) * rng.uniform(0.7, 1.3, len(state))
        inside = np.abs(angle) < self.NOTCH
        fall = np.where(inside, -0.5 * rate, self.FALL * angle)
        rate = rate + push + fall + self.NOISE * rng.standard_normal(len(state))
        angle = angle + rate
        still = np.where((np.abs(angle) < self.NOTCH) & (action == 0), still + 1, 0.0)
        read, lost = still >= self.STILL_STEPS, np.abs(angle) > 1
        reward = 2.0 * read - 1.0 * lost - 0.01 + self.REWARD_NOISE * rng.standard_normal(len(state))
        return np.column_stack([angle, rate, still]), reward, read | lost

    def observe(self, state: Array) -> Array:
        return state[:, :2]


def keep_level(observations: Array) -> Array:
    """Push against an angle or a rate that leads out of the notch."""
    angle, rate = observations.T
    ahead = angle + 4 * rate
    return np.where(ahead > 0.13, 1, np.where(ahead < -0.13, 2, 0))
