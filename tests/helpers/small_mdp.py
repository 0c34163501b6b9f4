"""A small episodic MDP whose moments, fixed point (the solution for infinite data) and values are known exactly."""

from __future__ import annotations

import numpy as np

import valuefit as vf

STATES, ACTIONS, HORIZON = 5, 2, 25


class SmallMDP:
    """Five states, two actions, random termination at each step, truncation after 25 steps.

    mood: standard deviation of a zero-mean noise that is added to all rewards of an episode, so that its TD errors
    are correlated; expectations do not change. gain: added to every reward.
    """

    def __init__(self, *, discount=0.9, off_policy=False, mood=0.0, gain=0.0, features=3, seed=0):
        rng = np.random.default_rng(seed)

        def distribution(*shape):
            weights = rng.random(shape) + 0.1
            return weights / weights.sum(axis=-1, keepdims=True)

        self.discount, self.mood = discount, mood
        self.transition = distribution(ACTIONS, STATES, STATES)
        self.ends = rng.uniform(0.05, 0.2, (STATES, ACTIONS))
        self.reward = rng.normal(size=(STATES, ACTIONS)) + gain
        self.policy = distribution(STATES, ACTIONS)
        self.behaviour = 0.5 * self.policy + 0.5 * distribution(STATES, ACTIONS) if off_policy else self.policy
        self.start = distribution(STATES)
        self.features = np.column_stack([np.ones(STATES), rng.normal(size=(STATES, features - 1))])

    def rows(self, state):
        return self.features[np.asarray(state, int).ravel()]

    def chain(self, policy):
        """Transition probabilities P (states, states) without termination, and mean rewards, under this policy."""
        going = policy * (1 - self.ends)
        return np.einsum("sa,ast->st", going, self.transition), np.sum(policy * self.reward, axis=1)

    @property
    def value(self):
        """The exact value of every state under the policy; truncation does not change it."""
        P, r = self.chain(self.policy)
        return np.linalg.solve(np.eye(STATES) - self.discount * P, r)

    def moments(self, trace=0.0):
        """A, b, C of infinite data: expected sums over an episode, divided by its expected length.

        E_t(s) = E[(phi_t + trace discount u_{t-1}) 1{s_t = s}] is propagated under the target policy (the ratios
        correct for the behaviour), the state distribution `visits` under the behaviour policy.
        """
        acting, _ = self.chain(self.behaviour)
        P, r = self.chain(self.policy)
        d = self.features.shape[1]
        A, b, C, length = np.zeros((d, d)), np.zeros(d), np.zeros((d, d)), 0.0
        visits, carried = self.start, np.zeros((STATES, d))
        for _ in range(HORIZON):
            E = visits[:, None] * self.features + carried
            A += E.T @ (self.features - self.discount * P @ self.features)
            b += E.T @ r
            C += (self.features.T * visits) @ self.features
            length += visits.sum()
            carried = trace * self.discount * P.T @ E
            visits = visits @ acting
        return A / length, b / length, C / length

    def fixed_point(self, trace=0.0, ridge=0.0):
        """The weights theta for infinite data."""
        A, b, C = self.moments(trace)
        inverse = np.linalg.inv(C)
        return np.linalg.solve(A.T @ inverse @ A + ridge * np.eye(len(b)), A.T @ inverse @ b)

    def log(self, episodes, *, seed=0, propensities=False, policy=None, noise=0.1):
        """A log of the behaviour policy (or of `policy`); observations are state numbers."""
        rng = np.random.default_rng(seed)
        acting = self.behaviour if policy is None else policy
        state = _draw(np.tile(self.start, (episodes, 1)), rng)
        mood = self.mood * rng.normal(size=episodes)
        going = np.ones(episodes, bool)
        columns = []
        for t in range(HORIZON):
            action = _draw(acting[state], rng)
            after = _draw(self.transition[action, state], rng)
            over = rng.random(episodes) < self.ends[state, action]
            reward = self.reward[state, action] + mood + noise * rng.normal(size=episodes)
            who = np.flatnonzero(going)
            columns.append([part[who] for part in (np.arange(episodes), np.full(episodes, t), state, action, reward,
                                                   over, after)])  # fmt: skip
            state, going = after, going & ~over
        episode, time, state, action, reward, over, after = map(np.concatenate, zip(*columns, strict=True))
        order = np.lexsort((time, episode))
        chosen = acting[state, action]
        given = {"behaviour_prob": chosen[order]} if propensities else {
            "ratio": (self.policy[state, action] / chosen)[order]}  # fmt: skip
        return vf.Transitions.from_arrays(
            state[order],
            reward[order],
            terminated=over[order],
            truncated=((time == HORIZON - 1) & ~over)[order],
            episode=episode[order],
            action=action[order],
            next_observation=after[order],
            **given,
        )


def _draw(probabilities, rng):
    """One index for each row of probabilities."""
    cumulative = np.cumsum(probabilities, axis=1)
    return np.minimum((rng.random(len(cumulative))[:, None] > cumulative).sum(axis=1), cumulative.shape[1] - 1)
