"""A naive log of a few dozen steps in every variant of the problem."""

import numpy as np

import naive

VARIANTS = [
    {},
    {"trace": 0.7},
    {"ridge": 0.3},
    {"off_policy": True},
    {"dual": True},
    {"identity": True, "ridge": 0.2},
    {"dual": True, "identity": True, "trace": 0.4},
    {"trace": 0.5, "ridge": 0.1, "off_policy": True, "dual": True},
]


def small_log(*, trace=0.0, ridge=0.0, off_policy=False, dual=False, identity=False, seed=0):
    """A naive log of nine episodes."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, 9, 9)
    n = int(lengths.sum())
    last = np.cumsum(lengths) - 1
    next = np.arange(1, n + 1)
    next[last] = -1
    next[last[::2]] = last[::2]  # every other episode is truncated and bootstraps
    Phi = rng.normal(size=(n, 3)) + 1
    return naive.Log(
        Phi, np.column_stack([Phi, rng.normal(size=(n, 2))]) if dual else Phi, np.arange(n), next, rng.normal(size=n),
        np.where(next < 0, 0.0, 0.8), rng.uniform(0.3, 2, n) if off_policy else np.ones(n),
        np.repeat(np.arange(9), lengths), trace, ridge, identity,
    )  # fmt: skip
