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

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import scipy.sparse as sparse
from scipy.sparse.linalg import spsolve

from valuefit.data.transitions import Transitions
from valuefit.data.validation import array_of
from valuefit.messages import shown
from valuefit.policies.importance import action_numbers, action_probabilities, check_action_range
from valuefit.policies.policy import Policy
from valuefit.policies.state_action import logged_actions
from valuefit.typing import Array

MAX_ITERATIONS = 1000  # of the worst case; each solves for the values exactly, and a few suffice
VALUE_TOL = 1e-10  # relative change of the values at which the worst case is found
MAX_ODDS = 1000.0  # up to which `breakdown` searches
ODDS_TOL = 1e-4  # relative, of `breakdown`
MAX_COUNTED_STEPS = 1_000_000  # distinct steps of a log in shards, of 48 bytes each


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """Bounds on the policy value if the odds of each logged action may be off by these factors.

    odds, lower, upper: numbers, or arrays of one for each factor that was given.
    """

    odds: float | Array
    lower: float | Array
    upper: float | Array


@dataclass(frozen=True)
class CountedSteps:
    """Steps by state, action, reward and next state, (m,), and how many they stand for; `ends`: there is no next state.

    starts: states in which so many (start_count) episodes start. A log in shards is the sum of those of its shards.
    """

    state: Array
    action: Array
    reward: Array
    after: Array
    ends: Array
    count: Array
    starts: Array
    start_count: Array

    @classmethod
    def of(cls, log: Transitions) -> CountedSteps:
        """Each step of a log of numbered states by itself."""
        state, ends = np.asarray(log.observations).ravel(), log.terminated | (log.next < 0)
        first = log.now[np.unique(log.episode, return_index=True)[1]]
        starts, start_count = np.unique(state[first], return_counts=True)
        after = state[np.where(ends, log.now, log.next)]
        return cls(state[log.now], action_numbers(log), log.reward, after, ends, np.ones(len(log)), starts, start_count)

    def merged(self) -> CountedSteps:
        """Return the steps with equal ones counted together."""
        order = np.lexsort((self.state, self.action, self.reward, self.after, self.ends))
        columns = [column[order] for column in (self.state, self.action, self.reward, self.after, self.ends)]
        new = np.ones(len(order), bool)
        new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
        starts, place = np.unique(self.starts, return_inverse=True)
        if new.sum() > MAX_COUNTED_STEPS:
            raise ValueError(
                f"Bounds under hidden confounding of a log that is read in parts need at most {MAX_COUNTED_STEPS:,} "
                "steps that differ in state, action, reward or next state, but there are more. Round the rewards, or "
                "load the log into memory."
            )
        state, action, reward, after, ends = (column[new] for column in columns)
        count = np.bincount(np.cumsum(new) - 1, self.count[order])
        return CountedSteps(state, action, reward, after, ends, count, starts, np.bincount(place, self.start_count))

    def __add__(self, other: CountedSteps) -> CountedSteps:
        names = [field.name for field in fields(self)]
        both = CountedSteps(*(np.concatenate([getattr(self, name), getattr(other, name)]) for name in names))
        return both.merged()


class ConfoundedModel:
    """The steps of a log by state and action, and the policy.

    An action of the policy that the log never takes in a state has any value that rewards can add up to, from
    min(reward, 0) / (1 - discount) to max(reward, 0) / (1 - discount). count: returns the steps of which the log is a
    sample; None if it is none.
    """

    def __init__(
        self, log: Transitions, policy: Policy | None, discount: float, starts: Array | None,
        count: Callable[[], CountedSteps | None] | None = None,
    ) -> None:  # fmt: skip
        policy = _known_policy(log, policy, discount)
        counted = None if count is None else count()
        steps = CountedSteps.of(log) if counted is None else counted
        self.steps, self.discount = steps, discount
        self.states, place = np.unique(np.concatenate([steps.state, steps.after]), return_inverse=True)
        self.now, self.after = np.split(place, 2)
        table = None if policy.table is None else policy.table.shape[1]
        logged = max(logged_actions(log), int(steps.action.max()) + 1)  # the log may be a sample
        actions = logged if policy.takes_actions else table
        self.probability = action_probabilities(policy, self.states, actions)
        check_action_range(steps.action, self.probability.shape[1], policy.name)
        self.pair = self.now * self.probability.shape[1] + steps.action
        self.visits = np.bincount(self.pair, steps.count, self.probability.size)
        of_state = np.bincount(self.now, steps.count, len(self.states))
        self.frequency = self.visits[self.pair] / of_state[self.now]
        self.step_discount = np.where(steps.ends, 0.0, discount)
        given = None if starts is None else np.asarray(array_of("starts", starts)).ravel()
        self.starts = (steps.starts, steps.start_count) if given is None else (given, np.ones(len(given)))

    def bounds(self, odds: float) -> tuple[float, float]:
        """The lower and the upper bound of the policy value."""
        return self._lower(odds, 1.0), -self._lower(odds, -1.0)

    def _lower(self, odds: float, sign: float) -> float:
        """The lower bound for rewards times `sign`."""
        reward = sign * self.steps.reward
        worst = min(float(reward.min()), 0.0) / (1 - self.discount)
        value = self._values(self.steps.count / self.visits[self.pair], reward, worst)
        for _ in range(MAX_ITERATIONS):
            weights = self._worst_weights(reward + self.step_discount * value[self.after], odds)
            previous, value = value, self._values(weights, reward, worst)
            if np.abs(value - previous).max() <= VALUE_TOL * np.abs(value).max():
                break
        starts, count = self.starts
        place = np.minimum(np.searchsorted(self.states, starts), len(self.states) - 1)
        return float(np.average(np.where(self.states[place] == starts, value[place], worst), weights=count))

    def _worst_weights(self, y: Array, odds: float) -> Array:
        """The weight of each step in Q(s, a) that makes it least, (m,): they sum to 1 over the steps of (s, a)."""
        order, count = np.lexsort((y, self.pair)), self.steps.count
        before = np.empty(len(y))  # steps of the same pair with lower y
        before[order] = np.cumsum(count[order]) - count[order]
        before -= (np.cumsum(self.visits) - self.visits)[self.pair]
        total = self.visits[self.pair]
        tail = total / (1 + odds)
        alpha = self.frequency + (1 - self.frequency) / odds
        return np.asarray(alpha * count / total + (1 - alpha) * np.clip(tail - before, 0.0, count) / tail)

    def _values(self, weights: Array, reward: Array, worst: float) -> Array:
        """The value of each state where Q(s, a) is the mean of reward + discount V(s') with these weights."""
        size = len(self.states)
        weights = weights * self.probability.ravel()[self.pair]
        transition = sparse.csc_array((weights * self.step_discount, (self.now, self.after)), shape=(size, size))
        unseen = np.where(self.visits == 0, self.probability.ravel(), 0.0).reshape(self.probability.shape).sum(axis=1)
        right = np.bincount(self.now, weights * reward, size) + worst * unseen
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
    bounds = np.array([model.bounds(float(factor)) for factor in factors.ravel()])
    if factors.ndim == 0:
        return Sensitivity(float(factors), float(bounds[0, 0]), float(bounds[0, 1]))
    return Sensitivity(factors, bounds[:, 0], bounds[:, 1])


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


def _known_policy(log: Transitions, policy: Policy | None, discount: float) -> Policy:
    """The policy, if log, policy and discount have bounds; raises ValueError with what is needed otherwise."""
    if not log.has_numbered_states:
        raise ValueError(
            "Bounds under hidden confounding need numbered states, but the observations of this log are vectors. "
            "Group them into states, for example by the bins of a few columns."
        )
    if policy is None or (policy.function is None and policy.table is None):
        raise ValueError(
            "Bounds under hidden confounding need the probabilities of all actions of the target policy. Evaluate with "
            "`policy`, a table (states x actions) or a callable; after Evaluation.load, give it there."
        )
    if discount == 1:
        raise ValueError("Bounds under hidden confounding need a discount below 1.")
    return policy
