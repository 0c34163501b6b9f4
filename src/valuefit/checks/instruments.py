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
from valuefit.inference.fit import Fit
from valuefit.tolerances import ROUNDING
from valuefit.typing import Array

COUNT = 60  # random functions
MAX_COLUMNS = 64  # numbers of an observation that are used, drawn at random from larger ones (images)
MAX_GROUPS = 1000  # of numbered states or actions, or of clusters; more are put into groups at random
MAX_STEPS = 15_000  # of a larger log, drawn at random, on which instruments are evaluated


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
        before = np.maximum(steps - 1, 0)
        return self._history(before, ~self.log.begins[steps], self._numbers[steps], self.log.now[steps])

    def history_after(self, steps: Array) -> Array:
        """`history` of the steps that follow these, also where the log was cut; of the same rows where it ended."""
        after = np.where(self.log.next[steps] < 0, self.log.now[steps], self.log.next[steps])
        return self._history(steps, np.ones(len(steps), bool), self._numbers[steps] + 1, after)

    def _history(self, before: Array, past: Array, number: Array, rows: Array) -> Array:
        """before: the step before, where `past`. number: of the step. rows: its observations."""
        frequency, shift = self._number_angles
        turns = np.outer(number, frequency)
        turns -= np.rint(turns)  # the angles of late steps are too large for float32
        observations, actions = self._angles_before
        parts = [past[:, None] * observations.of(self.log.now[before]), 2 * np.pi * turns + shift]
        if actions is not None:
            parts.append(past[:, None] * actions.of(self.action_codes[before]))
        angle = np.hstack(parts, dtype=self.dtype, casting="same_kind")
        mixed = slice(None, None, 4)  # these functions also depend on the current observation
        angle[:, mixed] += self._observation.of(rows, mixed)
        return self._cosines(angle)

    @cached_property
    def _numbers(self) -> Array:
        return step_numbers(self.log.begins)

    @cached_property
    def _number_angles(self) -> tuple[Array, Array]:
        """Turns per step and shifts of the functions of the step number."""
        rng, count = np.random.default_rng([self.seed, 1]), self._count_of_each
        frequency = _frequencies(rng, count)
        frequency[::2] /= 1 + self._numbers.mean()  # half of them vary over an episode, half from step to step
        return frequency / (2 * np.pi), rng.uniform(0, 2 * np.pi, count)

    @cached_property
    def _angles_before(self) -> tuple[_Angles, _Angles | None]:
        """The angles of the observation and of the action of the step before."""
        log, count = self.log, self._count_of_each
        actions = None if log.action is None else _Angles(self._action_values, self.action_codes, [self.seed, 3], count)
        return _Angles(log.observations, log.now, [self.seed, 2], count), actions

    @property
    def _count_of_each(self) -> int:
        """The number of functions of each thing that `history` depends on."""
        return COUNT // (2 if self.log.action is None else 3)

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
        code = np.searchsorted(values, np.arange(actions)).clip(max=len(values) - 1)
        return np.where(values[code] == np.arange(actions), code, -1)


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
        self.direction = direction * np.divide(_frequencies(rng, count), length, out=np.zeros(count), where=length > 0)
        self.shift = rng.uniform(0, 2 * np.pi, count)

    def _chosen(self, rows: Array) -> Array:
        return self.values[np.ix_(rows, self.columns)].astype(np.float64)

    def of(self, rows: Array, functions: slice = slice(None)) -> Array:
        """In all or some of the functions, (m, count), a new array."""
        if self.labels:
            return self.angle[self.group[rows], functions]
        scaled = np.clip((self._chosen(rows) - self.mean) / self.scale, -4, 4)
        angle = scaled @ self.direction[:, functions]
        angle += self.shift[functions]
        return angle


def _frequencies(rng: np.random.Generator, count: int) -> Array:
    """Random frequencies in radians per standard deviation, (count,)."""
    return rng.uniform(0.5, 3.0, count)


def action_count(fit: Fit) -> int:
    """The number of actions that the features of state-action values have; 1 for state values."""
    return fit.problem.d // fit.features.columns


def evenly_spaced(n: int, count: int = 1000) -> Array:
    """This many of the numbers 0 to n - 1, or all of them, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, count).astype(np.int64))


def sampled_steps(n: int, seed: int, most: int = MAX_STEPS) -> Array:
    """All steps, or at most so many of them drawn at random, in order."""
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng([seed, 6]).choice(n, most, replace=False))
