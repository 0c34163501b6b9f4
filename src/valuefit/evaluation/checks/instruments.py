"""Random functions of what was known before a step's outcome: the instruments of the tests.

The TD error of the true value has mean zero given the state, and given everything before it. Random cosines of the
standardised observation see any other conditional mean (Bierens 1990: integrated conditional moments). Each cosine is
that of a sum of angles, one for each variable that it depends on; a numbered state or action has a random angle.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from valuefit.data.transitions import Transitions
from valuefit.data.validation import step_numbers
from valuefit.typing import Array

COUNT = 60  # random functions
LOW_FREQUENCY, HIGH_FREQUENCY = 0.5, 3.0  # radians per standard deviation
MAX_COLUMNS = 64  # numbers of an observation that are used, drawn at random from larger ones (images)
MAX_GROUPS = 1000  # of numbered states or actions; more are put into groups at random
ROUNDING = 1e-12  # of observations; a smaller relative standard deviation is none
CLIP = 4.0  # standard deviations
MAX_STEPS = 15_000  # of a larger log, drawn at random, on which instruments are evaluated
MIXED_EVERY = 4  # one in this many functions of the past also depends on the current observation


class Instruments:
    """Random functions of the observations, actions and step numbers of one log.

    actions: whether the functions of the current step may depend on its action (state-action values). dtype: in which
    cosines are evaluated; float32 takes a tenth of the time, and a sum over steps needs no more digits of them.
    """

    def __init__(self, log: Transitions, *, actions: bool, seed: int, dtype: Any = np.float64) -> None:
        self.log, self.actions, self.seed, self.dtype = log, actions, seed, dtype

    def current(self, rows: Array, action: Array | None = None) -> Array:
        """Functions (m, COUNT) of these rows of the observations, and of the actions where they may depend on them."""
        angle = self._observation.of(rows)
        if action is not None:
            angle += self._action.of(action)
        return self._cosines(angle)

    def logged(self, steps: Array) -> Array:
        """`current` of these steps of the log."""
        return self.current(self.log.now[steps], self.action_codes[steps] if self.actions else None)

    def history(self, steps: Array) -> Array:
        """Functions (m, COUNT) of the observation or action of the step before, or of the step number."""
        log, rng, before = self.log, np.random.default_rng([self.seed, 1]), np.maximum(steps - 1, 0)
        past, number = ~log.begins[steps, None], step_numbers(log.begins)[steps]
        count = COUNT // (2 if log.action is None else 3)
        frequency = rng.uniform(LOW_FREQUENCY, HIGH_FREQUENCY, count)
        frequency[::2] /= 1 + number.mean()  # half of them vary over an episode, half from step to step
        turns = np.outer(number, frequency / (2 * np.pi))
        turns -= np.rint(turns)  # the angles of late steps are too large for float32
        parts = [
            past * _Angles(log.observations, log.now, [self.seed, 2], count).of(log.now[before]),
            2 * np.pi * turns + rng.uniform(0, 2 * np.pi, count),
        ]
        if log.action is not None:
            codes = self.action_codes
            parts.append(past * _Angles(self._action_values, codes, [self.seed, 3], count).of(codes[before]))
        angle = np.hstack(parts, dtype=self.dtype, casting="same_kind")
        angle[:, ::MIXED_EVERY] += self._observation.of(log.now[steps], slice(None, None, MIXED_EVERY))
        return self._cosines(angle)

    def _cosines(self, angle: Array) -> Array:
        angle = angle.astype(self.dtype, copy=False)
        return np.cos(angle, out=angle).astype(np.float64, copy=False)

    @cached_property
    def _observation(self) -> _Angles:
        return _Angles(self.log.observations, self.log.now, [self.seed, 4])

    @cached_property
    def _action(self) -> _Angles:
        return _Angles(self._action_values, self.action_codes, [self.seed, 5])

    @cached_property
    def _distinct_actions(self) -> tuple[Array, Array]:
        assert self.log.action is not None
        action = np.asarray(self.log.action).reshape(len(self.log), -1)
        if action.dtype.kind == "f" and (action.shape[1] > 1 or (action % 1 != 0).any()):
            return action, np.arange(len(action))
        if action.shape[1] == 1:
            return np.unique(action[:, 0], return_inverse=True)
        rows, codes = np.unique(action, axis=0, return_inverse=True)
        return rows, codes.reshape(-1)

    @property
    def action_codes(self) -> Array:
        """The row of `_action_values` of every step."""
        return self._distinct_actions[1]

    @property
    def _action_values(self) -> Array:
        """Actions, (m, width) numbers if they are continuous, else their numbers (m,)."""
        values = self._distinct_actions[0]
        continuous = values.dtype.kind == "f" and values.ndim == 2
        return values if continuous else np.arange(len(values))

    def codes_of(self, actions: int) -> Array:
        """The codes of the actions 0 to `actions` - 1; -1 for those that the log does not have."""
        values = self._distinct_actions[0]
        found = np.searchsorted(values, np.arange(actions)).clip(max=len(values) - 1)
        return np.where(values[found] == np.arange(actions), found, -1)


class _Angles:
    """An angle in each of `count` functions for every row of `values`.

    values: labels (m,) of integers, with random angles 0 or pi, or vectors (m, ...), with linear functions of their
    standardised numbers. index: the rows that the log visits, which determine mean and standard deviation.
    """

    def __init__(self, values: Array, index: Array, seed: list[int], count: int = COUNT) -> None:
        rng = np.random.default_rng(seed)
        self.labels = values.ndim == 1 and values.dtype.kind in "iub"
        if self.labels:
            labels = len(values)
            self.group = np.arange(labels) if labels <= MAX_GROUPS else rng.integers(0, MAX_GROUPS, labels)
            self.angle = np.pi * rng.integers(0, 2, (min(labels, MAX_GROUPS), count))
            return
        width = math.prod(values.shape[1:])
        self.values = values.reshape(len(values), width)
        self.columns = np.sort(rng.permutation(width)[:MAX_COLUMNS])
        sample = self._chosen(index if len(index) <= MAX_STEPS else rng.choice(index, MAX_STEPS))
        peak = np.abs(sample).max(axis=0)
        scaled = sample / np.where(peak > 0, peak, 1.0)  # squares of large numbers would overflow
        deviation = scaled.std(axis=0)
        varies = deviation > ROUNDING
        self.mean, self.scale = peak * scaled.mean(axis=0), np.where(varies, peak * deviation, np.inf)
        direction = rng.standard_normal((len(self.columns), count)) * varies[:, None]
        length = np.linalg.norm(direction, axis=0)
        frequency = rng.uniform(LOW_FREQUENCY, HIGH_FREQUENCY, count)
        self.direction = direction * np.divide(frequency, length, out=np.zeros(count), where=length > 0)
        self.shift = rng.uniform(0, 2 * np.pi, count)

    def _chosen(self, rows: Array) -> Array:
        return self.values[np.ix_(rows, self.columns)].astype(np.float64)

    def of(self, rows: Array, functions: slice = slice(None)) -> Array:
        """In all or some of the functions, (m, count), a new array."""
        if self.labels:
            return self.angle[self.group[rows], functions]
        scaled = np.clip((self._chosen(rows) - self.mean) / self.scale, -CLIP, CLIP)
        angle = scaled @ self.direction[:, functions]
        angle += self.shift[functions]
        return angle


def sampled_steps(n: int, seed: int, most: int = MAX_STEPS) -> Array:
    """All steps, or at most so many of them drawn at random, in order."""
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng([seed, 6]).choice(n, most, replace=False))
