"""A Gaussian AR(1) process with random Fourier features: any number of distinct rows and features."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import scipy.signal as signal

from valuefit.data.transitions import Transitions
from valuefit.data.validation import number, whole_number
from valuefit.datasets import arguments
from valuefit.typing import Array


def ar1_log(steps: int, *, dimensions: int = 4, memory: float = 0.9, seed: int = 0) -> Transitions:
    """One truncated episode of x' = memory x + noise with unit variance; reward: first coordinate of x plus noise."""
    rng = arguments.generator(seed)
    steps, dimensions = whole_number("steps", steps, low=1), whole_number("dimensions", dimensions, low=1)
    memory = number("memory", memory, "it must lie strictly between -1 and 1", lambda x: -1 < x < 1)
    arguments.require_room(4 * steps * dimensions, f"A log of {steps} steps in {dimensions} dimensions")
    noise = np.sqrt(1 - memory**2) * rng.standard_normal((steps + 1, dimensions))
    x = signal.lfilter([1.0], [1.0, -memory], noise, axis=0)
    return Transitions.from_arrays(
        x[:-1], x[:-1, 0] + rng.standard_normal(steps), truncated=np.arange(steps) == steps - 1, next_observation=x[1:]
    )


def fourier_features(
    count: int, *, dimensions: int = 4, spread: float = 1.0, seed: int = 0
) -> Callable[[Array], Array]:
    """`count` features: cos(W x + c) with entries of W drawn from N(0, spread^2), and a constant.

    A smaller `spread` gives smoother and worse conditioned features.
    """
    rng = arguments.generator(seed)
    count, dimensions = whole_number("count", count, low=1), whole_number("dimensions", dimensions, low=1)
    spread = number("spread", spread, "it must be a finite number", math.isfinite)
    arguments.require_room(count * dimensions, f"{count} features of {dimensions} dimensions")
    W = spread * rng.standard_normal((dimensions, count - 1))
    shift = rng.uniform(0, 2 * np.pi, count - 1)

    def rows(x: Array) -> Array:
        out = np.ones((len(x), count))
        np.cos(x @ W + shift, out=out[:, :-1])
        return out

    return rows
