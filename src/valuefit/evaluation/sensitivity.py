"""Bounds on the policy value under hidden confounding, for numbered states.

Model (the marginal sensitivity model of Tan 2006, step by step as in Bruns-Smith and Zhou 2023): at each step a hidden
variable, drawn afresh given the state, may influence the logged action, the reward and the next state. Given it, the
odds of the logged action differ from e / (1 - e), e the frequency of the action in the state, at most by a factor
`odds`, in either direction. Then E[Y] over the logged steps of a state and an action, Y = reward + discount V(s'), is
not Q(s, a), but with alpha = e + (1 - e) / odds

    Q(s, a) >= alpha E[Y] + (1 - alpha) CVaR(Y),

CVaR being the mean of the lowest 1 / (1 + odds) of Y; the upper bound is that of -Y. Both are fixed points in V. The
bounds are sharp at each step, and have no sampling error added. A confounder that persists over steps (the severity of
a disease that the log does not contain) is outside the model: the bounds need not contain the value then.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sparse
from scipy.sparse.linalg import spsolve

from valuefit.data.transitions import Transitions
from valuefit.data.validation import array_of
from valuefit.evaluation.importance import action_numbers, action_probabilities, check_action_range
from valuefit.evaluation.policy import Policy
from valuefit.messages import shown
from valuefit.typing import Array

MAX_ITERATIONS = 1000  # of the worst case; each solves for the values exactly, and a few suffice
VALUE_TOL = 1e-10  # relative change of the values at which the worst case is found
MAX_ODDS = 1000.0  # up to which `breakdown` searches
ODDS_TOL = 1e-4  # relative, of `breakdown`


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """Bounds on the policy value if the odds of each logged action may be off by these factors.

    odds, lower, upper: numbers, or arrays of one for each factor that was given.
    """

    odds: float | Array
    lower: float | Array
    upper: float | Array


class ConfoundedModel:
    """The steps of a log by state and action, and the policy.

    An action of the policy that the log never takes in a state has any value that rewards can add up to, from
    min(reward, 0) / (1 - discount) to max(reward, 0) / (1 - discount).
    """

    def __init__(self, log: Transitions, policy: Policy | None, discount: float, starts: Array | None) -> None:
        _refuse(log, policy, discount)
        self.log, self.discount = log, discount
        self.states = np.asarray(log.observations).ravel()
        action = action_numbers(log)
        table = None if policy is None or policy.table is None else policy.table.shape[1]
        actions = int(action.max()) + 1 if policy is not None and policy.takes_actions else table
        self.probability = action_probabilities(policy, log.observations, actions)
        check_action_range(action, self.probability.shape[1], "the policy" if policy is None else policy.name)
        self.pair = log.now * self.probability.shape[1] + action
        self.visits = np.bincount(self.pair, minlength=self.probability.size)
        of_state = np.bincount(log.now, minlength=len(self.states))
        self.frequency = self.visits[self.pair] / of_state[log.now]
        self.after = np.where(log.next < 0, 0, log.next)
        self.step_discount = np.where(log.terminated | (log.next < 0), 0.0, discount)
        first = log.now[np.unique(log.episode, return_index=True)[1]]
        self.starts = self.states[first] if starts is None else np.asarray(array_of("starts", starts)).ravel()

    def bounds(self, odds: float) -> tuple[float, float]:
        """The lower and the upper bound of the policy value."""
        return self._lower(odds, 1.0), -self._lower(odds, -1.0)

    def _lower(self, odds: float, sign: float) -> float:
        """The lower bound for rewards times `sign`."""
        reward = sign * self.log.reward
        worst = min(float(reward.min()), 0.0) / (1 - self.discount)
        value = self._values(np.ones(len(reward)) / self.visits[self.pair], reward, worst)
        for _ in range(MAX_ITERATIONS):
            weights = self._worst_weights(reward + self.step_discount * value[self.after], odds)
            previous, value = value, self._values(weights, reward, worst)
            if np.abs(value - previous).max() <= VALUE_TOL * np.abs(value).max():
                break
        place = np.minimum(np.searchsorted(self.states, self.starts), len(self.states) - 1)
        return float(np.where(self.states[place] == self.starts, value[place], worst).mean())

    def _worst_weights(self, y: Array, odds: float) -> Array:
        """The weight of each step in Q(s, a) that makes it least, (n,): they sum to 1 over the steps of (s, a)."""
        order = np.lexsort((y, self.pair))
        ends = np.cumsum(self.visits)
        rank = np.empty(len(y))
        rank[order] = np.arange(len(y)) - (ends - self.visits)[self.pair[order]]
        count = self.visits[self.pair]
        tail = count / (1 + odds)
        alpha = self.frequency + (1 - self.frequency) / odds
        return np.asarray(alpha / count + (1 - alpha) * np.clip(tail - rank, 0.0, 1.0) / tail)

    def _values(self, weights: Array, reward: Array, worst: float) -> Array:
        """The value of each state where Q(s, a) is the mean of reward + discount V(s') with these weights."""
        size = len(self.states)
        weights = weights * self.probability.ravel()[self.pair]
        transition = sparse.csc_array((weights * self.step_discount, (self.log.now, self.after)), shape=(size, size))
        unseen = np.where(self.visits == 0, self.probability.ravel(), 0.0).reshape(self.probability.shape).sum(axis=1)
        right = np.bincount(self.log.now, weights * reward, size) + worst * unseen
        return np.asarray(spsolve(sparse.eye_array(size, format="csc") - transition, right)).reshape(size)


def sensitivity(model: ConfoundedModel, odds: float | Array) -> Sensitivity:
    """The bounds for each of these factors."""
    given = array_of("odds", odds)
    with np.errstate(over="ignore"):  # long doubles can exceed float64
        factors = given.astype(np.float64) if given.dtype.kind in "iuf" else np.array(np.nan)
    if factors.ndim > 1 or factors.size == 0 or not ((factors >= 1) & np.isfinite(factors)).all():
        raise ValueError(
            f"odds is {shown(odds)}; give a finite factor of at least 1, or a list of them: 1 means no confounding, 2 "
            "that the odds of each logged action may be off by a factor of 2."
        )
    found = np.array([model.bounds(float(factor)) for factor in factors.ravel()])
    if factors.ndim == 0:
        return Sensitivity(float(factors), float(found[0, 0]), float(found[0, 1]))
    return Sensitivity(factors, found[:, 0], found[:, 1])


def breakdown(model: ConfoundedModel, other: ConfoundedModel | float) -> float:
    """The smallest factor at which the bounds no longer tell which of two values is larger; infinity beyond 1,000.

    other: a number, or the model of another policy. The bounds of two policies are each the worst case, which need not
    occur together, so the sign is lost at this factor or later.
    """

    def separated(odds: float) -> bool:
        lower, upper = model.bounds(odds)
        low, high = other.bounds(odds) if isinstance(other, ConfoundedModel) else (other, other)
        return lower > high or upper < low

    if not separated(1.0):
        return 1.0
    if separated(MAX_ODDS):
        return float("inf")
    known, lost = 1.0, MAX_ODDS
    while lost / known > 1 + ODDS_TOL:
        middle = float(np.sqrt(known * lost))
        known, lost = (middle, lost) if separated(middle) else (known, middle)
    return lost


def _refuse(log: Transitions, policy: Policy | None, discount: float) -> None:
    if not log.has_numbered_states:
        raise ValueError(
            "Bounds under hidden confounding need numbered states, but the observations of this log are vectors. "
            "Group them into states, for example by the bins of a few columns."
        )
    if policy is None or (policy.function is None and policy.table is None):
        raise ValueError(
            "Bounds under hidden confounding need the probabilities of all actions of the target policy. Evaluate with "
            "policy=, a table (states x actions) or a callable; after Evaluation.load, give it there."
        )
    if discount == 1:
        raise ValueError("Bounds under hidden confounding need a discount below 1.")
