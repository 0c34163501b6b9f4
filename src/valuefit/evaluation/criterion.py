"""The error of a value function on episodes that it was not fitted to, by which features, traces and ridges are chosen.

Sum over pairs of episodes g != h of s_g' C_z^-1 s_h / n^2, where s_g = sum_{t in g} z_t e_t for instruments z_t and
C_z = mean z z'. Instruments are functions of the observation (and action, for state-action values) that do not depend
on the value function.

On-policy e_t = sum_k discount^k delta_{t+k} to the end of the episode, the difference of the return and the value (at
the end of a truncated episode the return goes on with the value). Otherwise e_t = ratio_t delta_t, the TD error.

Its mean is the squared mean of e_t given the observation, as far as the instruments see it: the squared error of the
value, or of its Bellman equation. The noise of an episode enters only through squares, which the sum leaves out, so the
criterion does not grow with the number of features. It can be negative.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg as linalg

from valuefit.checks.instruments import COUNT, Instruments
from valuefit.checks.moments import cluster_sums
from valuefit.data.transitions import Transitions
from valuefit.memory import require_memory
from valuefit.rows.compile import worth_compiling
from valuefit.rows.traces import backward
from valuefit.typing import Array

# Eigenvalues of C_z below this fraction of the largest belong to directions that hold more noise than error. Of 1e-2,
# 1e-3, 1e-4 and 1e-6 these chose best on the tasks of coverage_study/selection.py.
RETURN_CUTOFF, TD_CUTOFF = 1e-4, 1e-2


def clusters_of(log: Transitions) -> Array:
    """The independent unit of each step, (n,): its cluster, or its episode where the log has no clusters."""
    return log.episode if log.cluster is None else log.cluster


@dataclass(frozen=True, eq=False)
class Score:
    """A criterion, lower is better, and the parts of the episodes (or clusters) in its error, (clusters,).

    The value is infinite, and there are no parts, if the fit diverged.
    """

    value: float
    parts: Array

    @property
    def standard_error(self) -> float:
        """Standard error of the criterion for a fixed value function."""
        count = len(self.parts)
        if count < 2:
            return math.inf
        peak = float(np.abs(self.parts).max()) or 1.0  # squares of large numbers would overflow
        return math.sqrt(count / (count - 1)) * peak * float(np.linalg.norm(self.parts / peak))

    def minus(self, other: Score) -> Score:
        """The difference of two criteria on the same episodes, paired by episode."""
        return Score(self.value - other.value, self.parts - other.parts)


def mean_score(scores: Sequence[Score]) -> Score:
    """The mean of criteria on different episodes."""
    count = len(scores)
    value = float(np.mean([score.value for score in scores]))
    return Score(value, np.concatenate([score.parts for score in scores]) / count)


class Criterion(ABC):
    """The held-out error of value functions on one log. description: what it measures, as part of a sentence."""

    description: str

    def __init__(self, log: Transitions) -> None:
        self.steps = len(log)
        ids, self.cluster = np.unique(clusters_of(log), return_inverse=True)
        self.clusters = len(ids)
        self.lengths = np.bincount(self.cluster).astype(float)

    @abstractmethod
    def score(self, td_errors: Array) -> Score:
        """Criterion of a value function with these TD errors, (n,)."""


class SquaredReturns(Criterion):
    """The mean squared difference of value and return, for a single episode of the evaluated policy."""

    description = "mean squared difference of value and return"

    def __init__(self, log: Transitions, discount: float) -> None:
        super().__init__(log)
        self.begins, self.discount = log.begins, float(discount)

    def score(self, td_errors: Array) -> Score:
        squared = return_errors(td_errors, self.discount, self.begins) ** 2
        value = float(squared.mean())
        sums = np.bincount(self.cluster, squared, self.clusters)
        return Score(value, (sums - value * self.lengths) / self.steps)


class HeldOutMoments(Criterion):
    """The sum over pairs of episodes, of the errors of returns or of TD errors.

    discount: of the returns; None for TD errors. actions: whether instruments depend on actions.
    """

    def __init__(self, log: Transitions, *, discount: float | None, actions: bool, seed: int = 0) -> None:
        super().__init__(log)
        if self.clusters < 2:
            raise ValueError(
                "Off-policy, value functions are compared by products of two episodes, and there is only one. Give a "
                "log of at least two episodes."
            )
        self.begins, self.discount = log.begins, discount
        kind = "TD error" if discount is None else "difference of value and return"
        self.description = f"squared mean {kind} given the observation"
        require_memory(2 * self.steps * (COUNT + 1), "The instruments of the criterion", "Use fewer steps.")
        z = np.ones((self.steps, COUNT + 1))
        z[:, 1:] = Instruments(log, actions=actions, seed=seed).logged(np.arange(self.steps))
        values, vectors = linalg.eigh(z.T @ z / self.steps, check_finite=False)
        kept = values > (TD_CUTOFF if discount is None else RETURN_CUTOFF) * values[-1]
        self.z = z @ (vectors[:, kept] / np.sqrt(values[kept]))
        if discount is None and not actions:
            self.z *= log.ratio[:, None]

    def score(self, td_errors: Array) -> Score:
        errors = td_errors if self.discount is None else return_errors(td_errors, self.discount, self.begins)
        sums = cluster_sums(self.z * errors[:, None], self.cluster, self.clusters)
        # of each episode with all others; the criterion without an episode differs by twice its products
        products = sums @ sums.sum(axis=0) - np.einsum("ij,ij->i", sums, sums)
        value = float(products.sum()) / self.steps**2
        return Score(value, 2 * (products / self.steps - value * self.lengths) / self.steps)


def return_errors(td_errors: Array, discount: float, begins: Array) -> Array:
    """sum_k discount^k delta_{t+k} to the last step before the next that `begins` marks, (n,)."""
    ones = np.ones(len(td_errors))
    return backward(td_errors, discount * ones, ones, begins, 1.0, large=worth_compiling(len(ones)))


def criterion_of(log: Transitions, *, discount: float, values: str, returns: bool, seed: int = 0) -> Criterion:
    """The criterion on this log. returns: whether those of the log are compared, which needs `on_policy`."""
    if returns and len(np.unique(clusters_of(log))) < 2:
        return SquaredReturns(log, discount)
    return HeldOutMoments(log, discount=discount if returns else None, actions=values == "state-action", seed=seed)


def on_policy(log: Transitions, values: str) -> bool:
    """Whether the returns of the log are those of the evaluated policy."""
    return values == "state" and bool((log.ratio == 1).all())
