"""The paper's Random MDP: a finite MDP drawn at random, with its exact values and moments."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from valuefit.data.transitions import Transitions
from valuefit.data.validation import whole_number
from valuefit.datasets import arguments
from valuefit.rows.kernels import compiled
from valuefit.typing import Array


@dataclass(frozen=True, eq=False)
class RandomMDP:
    """A finite MDP with target policy, behaviour policy and features (section 8 of the paper).

    transition (actions, states, states), reward (states, actions), policy and behaviour (states, actions),
    start (states,), features (states, d) with the constant last. The paper does not state the distribution of
    rewards; here each state and action has a fixed reward, drawn from U[0, 1].
    """

    transition: Array
    reward: Array
    policy: Array
    behaviour: Array
    start: Array
    features: Array

    def log(self, steps: int = 20_000, *, seed: int = 0) -> Transitions:
        """One truncated episode of the behaviour policy; observations are state numbers."""
        rng, steps = arguments.generator(seed), whole_number("steps", steps, low=1)
        arguments.require_room(10 * steps, f"A log of {steps} steps")
        uniform = rng.random((steps, 2))
        first = int(np.searchsorted(np.cumsum(self.start), rng.random()))
        state, action = simulate(np.cumsum(self.behaviour, axis=1), np.cumsum(self.transition, axis=2), first, uniform)
        now = state[:-1]
        on_policy = self.policy is self.behaviour
        return Transitions.from_arrays(
            now,
            self.reward[now, action],
            truncated=np.arange(steps) == steps - 1,
            action=action,
            next_observation=state[1:],
            ratio=None if on_policy else self.policy[now, action] / self.behaviour[now, action],
        )

    def rows(self, state: Array) -> Array:
        """Feature rows of these states; the `features` argument of `Problem`."""
        return self.features[state]

    def value(self, discount: float) -> Array:
        """The exact value of every state under the policy."""
        P, r = self._chain(self.policy)
        return np.linalg.solve(np.eye(len(r)) - discount * P, r)

    def moments(self, discount: float) -> tuple[Array, Array, Array]:
        """A, b, C of infinite data: expectations under the stationary distribution of the behaviour policy."""
        P, r = self._chain(self.policy)
        behaviour_P, _ = self._chain(self.behaviour)
        size = len(r)
        system = np.vstack([behaviour_P.T - np.eye(size), np.ones(size)])
        stationary = np.linalg.lstsq(system, np.append(np.zeros(size), 1.0), rcond=None)[0]
        weighted = self.features.T * stationary
        A = weighted @ (self.features - discount * P @ self.features)
        return A, weighted @ r, weighted @ self.features

    def mspbe(self, theta: Array, discount: float) -> float:
        """The MSPBE of infinite data at theta, without ridge."""
        A, b, C = self.moments(discount)
        residual = A @ theta - b
        return 0.5 * float(residual @ np.linalg.pinv(C, rcond=1e-13, hermitian=True) @ residual)

    def _chain(self, policy: Array) -> tuple[Array, Array]:
        return np.einsum("sa,ast->st", policy, self.transition), np.einsum("sa,sa->s", policy, self.reward)


def random_mdp(
    states: int = 400, actions: int = 10, features: int = 200, *, off_policy: bool = False, seed: int = 0
) -> RandomMDP:
    """Draw a Random MDP: probabilities proportional to U[0, 1] + 1e-5, features from U[0, 1] and a constant."""
    rng = arguments.generator(seed)
    states, actions = whole_number("states", states, low=1), whole_number("actions", actions, low=1)
    features = whole_number("features", features, low=0)
    arguments.require_room(2 * states * (states * actions + features), f"An MDP of {states} states")

    def distribution(*shape: int) -> Array:
        weights = rng.random(shape) + 1e-5
        return weights / weights.sum(axis=-1, keepdims=True)

    transition = distribution(actions, states, states)
    policy, start = distribution(states, actions), distribution(states)
    rows = np.column_stack([rng.random((states, features)), np.ones(states)])
    reward = rng.random((states, actions))
    behaviour = distribution(states, actions) if off_policy else policy
    return RandomMDP(transition, reward, policy, behaviour, start, rows)


@compiled
def simulate(behaviour, transition, first, uniform):
    """States and actions from cumulative probabilities and uniform draws."""
    steps = uniform.shape[0]
    state, action = np.empty(steps + 1, np.int64), np.empty(steps, np.int64)
    state[0] = first
    for t in range(steps):
        s = state[t]
        a = min(np.searchsorted(behaviour[s], uniform[t, 0]), behaviour.shape[1] - 1)
        action[t] = a
        state[t + 1] = min(np.searchsorted(transition[a, s], uniform[t, 1]), transition.shape[2] - 1)
    return state, action
