"""Regressions of instruments of the history on functions of the current observation.

What is left of an instrument has no part that these functions express. At a Markov observation TD errors depend on the
history through the observation alone, whatever the features. So the products of TD errors with what is left have mean
zero if the functions are fine enough, also where the features are too coarse; what was subtracted finds the latter.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.linalg as linalg

from valuefit.checks.instruments import MAX_COLUMNS, Instruments
from valuefit.features.kernel import MAX_BLOCK_BYTES, STEPS_PER_LANDMARK, Kernel
from valuefit.features.registry import flat
from valuefit.features.scaling import row_blocks
from valuefit.inference.adjoints import ALWAYS_DIRECT_FEATURES
from valuefit.inference.fit import Fit
from valuefit.typing import Array


def with_constant(values: Array) -> Array:
    """A column of ones before these, (m, 1 + k)."""
    return np.column_stack([np.ones(len(values)), values])


def coefficients_of(x: Array, z: Array, weight: Array) -> Array:
    """The coefficients, (p, k), of the weighted regression of the columns of z, (m, k), on those of x, (m, p)."""
    weighted = (x if (weight == 1).all() else weight[:, None] * x).T
    return _solved(weighted @ x, weighted @ z)


def subtract_regression(z: Array, first: int, weight: Array) -> None:
    """Subtract from the later columns of z their weighted regression on the first ones."""
    x, rest = z[:, :first], z[:, first:]
    coefficients = coefficients_of(x, rest, weight)
    for start in range(0, len(z), 1000):  # whose instruments stay in the second-level cache
        here = slice(start, start + 1000)
        rest[here] -= x[here] @ coefficients


def less_functions_of_observation(fit: Fit, instruments: Instruments, steps: Array, z: Array) -> Array | None:
    """z, (m, k), less its regression on fine functions of the observation (and the action, for state-action values).

    Numbered states have a function each; else they are kernel features with four times the landmarks of "auto". None
    where observations have too many numbers for such features to be fine.
    """
    log, weight = fit.log, fit.problem.ratio[steps]
    rows, codes = log.now[steps], np.zeros(len(steps), np.int64)
    if fit.values == "state-action":
        codes = instruments.action_codes[steps]
    if log.has_numbered_states:
        pairs = np.column_stack([log.observations.reshape(-1)[rows], codes])
        _, group = np.unique(pairs, axis=0, return_inverse=True)
        return z - _means(z, group.reshape(-1), weight)
    if math.prod(log.observations.shape[1:]) > MAX_COLUMNS:
        return None
    left = np.empty(z.shape)
    for code in np.unique(codes):
        own = codes == code
        left[own] = _less_kernel_regression(flat(log.observations[rows[own]]), z[own], weight[own])
    return left


def _less_kernel_regression(observations: Array, z: Array, weight: Array) -> Array:
    # with twice the landmarks of "auto", values that jump were not followed
    landmarks = min(max(4 * len(z) // STEPS_PER_LANDMARK, 1), ALWAYS_DIRECT_FEATURES)
    kernel = Kernel(landmarks=landmarks).fit(observations)
    blocks = list(row_blocks(len(z), 1 + landmarks, MAX_BLOCK_BYTES))
    gram: Any = 0.0
    products: Any = 0.0
    for block in blocks:
        x = kernel.transform(observations[block])
        weighted = (weight[block, None] * x).T
        gram, products = gram + weighted @ x, products + weighted @ z[block]
    coefficients = _solved(gram, products)
    return np.concatenate([z[block] - kernel.transform(observations[block]) @ coefficients for block in blocks])


def _solved(gram: Array, products: Array) -> Array:
    gram += (1e-8 * np.trace(gram) / len(gram) + np.finfo(float).tiny) * np.eye(len(gram))
    return np.asarray(linalg.solve(gram, products, assume_a="pos"))


def _means(z: Array, group: Array, weight: Array) -> Array:
    """Weighted means of the columns of z over each group, for every row; 0 where the weights are 0."""
    total = np.bincount(group, weight)
    total[total == 0] = 1.0
    sums = np.column_stack([np.bincount(group, weight * column) for column in z.T])
    return np.asarray((sums / total[:, None])[group])
