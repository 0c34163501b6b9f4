"""Worlds that run many episodes at once, logs of them, and the values of policies: exact for tables, else simulated."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import valuefit as vf

Array = np.ndarray
Policy = Callable[[Array], Array]  # observations (m, ...) -> probabilities (m, actions)

NEGLIGIBLE_DISCOUNT = 1e-8  # rewards with a smaller discount are left out of simulated returns
ROLLOUTS_AT_ONCE = 200_000


class World(ABC):
    """A process that many episodes run through at once. actions: their number."""

    actions: int

    @abstractmethod
    def start(self, count: int, rng: np.random.Generator) -> Array:
        """States (count, ...) at the beginning of episodes."""

    @abstractmethod
    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        """Next states, rewards (m,) and whether the episodes terminated (m,)."""

    def observe(self, state: Array) -> Array:
        """What the log records of the states."""
        return state


def draw(probability: Array, rng: np.random.Generator) -> Array:
    """One index for each row of probabilities."""
    below = np.cumsum(probability, axis=1) < rng.random(len(probability))[:, None]
    return np.minimum(below.sum(axis=1), probability.shape[1] - 1)


def log_of(world: World, policy: Policy, episodes: int, limit: int, rng: np.random.Generator) -> vf.Transitions:
    """A log of this many episodes, cut after `limit` steps, with the probabilities of the actions."""
    state, running, columns = world.start(episodes, rng), np.arange(episodes), []
    for time in range(limit):
        observation = world.observe(state)
        probability = policy(observation)
        action = draw(probability, rng)
        state, reward, ended = world.step(state, action, rng)
        taken = probability[np.arange(len(action)), action]
        columns.append((
            running, np.full(len(running), time), observation, action, taken, reward, ended, world.observe(state),
        ))  # fmt: skip
        running, state = running[~ended], state[~ended]
        if not len(running):
            break
    episode, times, observation, action, taken, reward, ended, after = map(
        np.concatenate, zip(*columns, strict=True)
    )  # fmt: skip
    order = np.lexsort((times, episode))
    return vf.Transitions.from_arrays(
        observation[order],
        reward[order],
        terminated=ended[order],
        truncated=((times == limit - 1) & ~ended)[order],
        episode=episode[order],
        action=action[order],
        next_observation=after[order],
        behaviour_prob=taken[order],
    )


class Simulated(NamedTuple):
    """A simulated policy value and its standard error."""

    value: float
    standard_error: float


def simulated_value(world: World, policy: Policy, discount: float, rollouts: int, seed: int = 0) -> Simulated:
    """The mean return of the policy, without a time limit, over this many episodes."""
    horizon = math.ceil(math.log(NEGLIGIBLE_DISCOUNT) / math.log(discount))
    parts = []
    for first in range(0, rollouts, ROLLOUTS_AT_ONCE):
        rng = np.random.default_rng((seed, first))
        count = min(ROLLOUTS_AT_ONCE, rollouts - first)
        state, running, returns = world.start(count, rng), np.arange(count), np.zeros(count)
        for time in range(horizon):
            action = draw(policy(world.observe(state)), rng)
            state, reward, ended = world.step(state, action, rng)
            returns[running] += discount**time * reward
            running, state = running[~ended], state[~ended]
            if not len(running):
                break
        parts.append(returns)
    every = np.concatenate(parts)
    return Simulated(float(every.mean()), float(every.std() / math.sqrt(len(every))))


@dataclass(frozen=True, eq=False)
class Table(World):
    """A finite MDP. Outcome k of action a in state s has probability[s, a, k], next state after[s, a, k],
    reward[s, a, k], and terminates the episode where ends[s, a, k]. start_probability: (states,).
    noise: standard deviation of what is added to every reward.
    """

    probability: Array
    after: Array
    reward: Array
    ends: Array
    start_probability: Array
    noise: float = 0.0

    @property
    def states(self) -> int:
        return len(self.start_probability)

    def __post_init__(self) -> None:
        object.__setattr__(self, "actions", self.probability.shape[1])

    def start(self, count: int, rng: np.random.Generator) -> Array:
        return draw(np.tile(self.start_probability, (count, 1)), rng)

    def step(self, state: Array, action: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        chosen = state, action, draw(self.probability[state, action], rng)
        reward = self.reward[chosen] + self.noise * rng.standard_normal(len(state))
        return self.after[chosen], reward, self.ends[chosen]

    def transition(self) -> Array:
        """P[s, a, s'], without what terminates."""
        P = np.zeros((self.states, self.actions, self.states))
        s, a, _ = np.indices(self.probability.shape)
        np.add.at(P, (s, a, self.after), np.where(self.ends, 0.0, self.probability))
        return P

    def mean_reward(self) -> Array:
        """(states, actions)."""
        return np.asarray((self.probability * self.reward).sum(axis=2))

    def value(self, policy: Array, discount: float) -> float:
        """The exact value over the starts of a policy (states, actions), without a time limit."""
        P = np.einsum("sa,sat->st", policy, self.transition())
        r = np.sum(policy * self.mean_reward(), axis=1)
        return float(self.start_probability @ np.linalg.solve(np.eye(self.states) - discount * P, r))

    def fixed_point(
        self, rows: Array, policy: Array, behaviour: Array, discount: float, limit: int, trace: float = 0.0
    ) -> float:
        """The value over the starts that LSTD with ratios gives from infinitely many episodes of the behaviour policy.

        rows: features (states, d). A and b are expected sums over an episode of at most `limit` steps; E_t(s), the
        expected sum of u_t over s_t = s, is propagated under the target policy because of the ratios.
        """
        P = np.einsum("sa,sat->st", policy, self.transition())
        P_behaviour = np.einsum("sa,sat->st", behaviour, self.transition())
        r = np.sum(policy * self.mean_reward(), axis=1)
        d = rows.shape[1]
        A, b = np.zeros((d, d)), np.zeros(d)
        visits, carried = self.start_probability, np.zeros_like(rows)
        for _ in range(limit):
            E = visits[:, None] * rows + carried
            A += E.T @ (rows - discount * P @ rows)
            b += E.T @ r
            carried = trace * discount * P.T @ E
            visits = visits @ P_behaviour
        return float(self.start_probability @ rows @ np.linalg.solve(A, b))

    def state_action_fixed_point(
        self, rows: Array, policy: Array, behaviour: Array, discount: float, limit: int
    ) -> float:
        """The same for state-action values, with a block of the features (states, d) for each action."""
        P = self.transition()
        blocks = np.einsum("sd,ab->sabd", rows, np.eye(self.actions)).reshape(self.states, self.actions, -1)
        mean = np.einsum("sa,sad->sd", policy, blocks)
        difference = blocks - discount * np.einsum("sat,td->sad", P, mean)
        P_behaviour = np.einsum("sa,sat->st", behaviour, P)
        visits, total = self.start_probability, np.zeros(self.states)
        for _ in range(limit):
            total, visits = total + visits, visits @ P_behaviour
        weight = total[:, None] * behaviour
        A = np.einsum("sa,sad,sae->de", weight, blocks, difference)
        b = np.einsum("sa,sad,sa->d", weight, blocks, self.mean_reward())
        return float(self.start_probability @ mean @ np.linalg.solve(A, b))


def table_of(transition: Array, reward: Array, ends: Array, start: Array, noise: float = 0.0) -> Table:
    """A table from P[s, a, s'] that sums to one, rewards and termination probabilities (states, actions)."""
    states, actions, _ = transition.shape
    after = np.broadcast_to(np.arange(states), transition.shape)
    continuing = transition * (1 - ends)[:, :, None]
    return Table(
        probability=np.concatenate([continuing, transition * ends[:, :, None]], axis=2),
        after=np.concatenate([after, after], axis=2),
        reward=np.repeat(reward[:, :, None], 2 * states, axis=2),
        ends=np.repeat([False, True], states)[None, None].repeat(states, 0).repeat(actions, 1),
        start_probability=start,
        noise=noise,
    )


def distribution(rng: np.random.Generator, *shape: int, least: float = 0.1) -> Array:
    """Random probabilities along the last axis; `least` keeps them away from zero."""
    weights = rng.random(shape) + least
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def table_policy(table: Array) -> Policy:
    """The policy of probabilities (states, actions) as a function of observations that are state numbers."""
    return lambda observations: table[np.asarray(observations, int).ravel()]


def table_rows(rows: Array) -> Callable[[Any], Array]:
    """Features (states, d) as a function of observations that are state numbers."""
    return lambda observations: rows[np.asarray(observations, int).ravel()]
