"""A small episodic MDP with exact expected moments, fixed point (the estimate from infinite data) and values."""

from __future__ import annotations

import numpy as np

import valuefit as vf

STATES, ACTIONS, HORIZON = 5, 2, 25


class SmallMDP:
    """Five states, two actions, random termination at each step, truncation after 25 steps.

    episode_noise: standard deviation of a reward noise that is constant within an episode, so that its TD errors are
    correlated; its mean is zero, so expectations do not change. gain: added to every reward.
    """

    def __init__(self, *, discount=0.9, off_policy=False, episode_noise=0.0, gain=0.0, features=3, seed=0):
        rng = np.random.default_rng(seed)

        def distribution(*shape):
            weights = rng.random(shape) + 0.1
            return weights / weights.sum(axis=-1, keepdims=True)

        self.discount, self.episode_noise = discount, episode_noise
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
        """Transition matrix P (states, states) without termination, and mean rewards (states,), under this policy."""
        continuing = policy * (1 - self.ends)
        return np.einsum("sa,ast->st", continuing, self.transition), np.sum(policy * self.reward, axis=1)

    @property
    def value(self):
        """The exact value of every state under the policy, without truncation (which is bootstrapped through)."""
        P, r = self.chain(self.policy)
        return np.linalg.solve(np.eye(STATES) - self.discount * P, r)

    def moments(self, trace=0.0):
        """Expected A, b, C: expected sums over an episode divided by its expected length.

        E_t(s) = E[(phi_t + trace discount u_{t-1}) 1{s_t = s}] is propagated under the target policy, because of the
        ratios, and the visits under the behaviour policy.
        """
        P_behaviour, _ = self.chain(self.behaviour)
        P, r = self.chain(self.policy)
        d = self.features.shape[1]
        A, b, C, length = np.zeros((d, d)), np.zeros(d), np.zeros((d, d)), 0.0
        visits, trace_sum = self.start, np.zeros((STATES, d))
        for _ in range(HORIZON):
            E = visits[:, None] * self.features + trace_sum
            A += E.T @ (self.features - self.discount * P @ self.features)
            b += E.T @ r
            C += (self.features.T * visits) @ self.features
            length += visits.sum()
            trace_sum = trace * self.discount * P.T @ E
            visits = visits @ P_behaviour
        return A / length, b / length, C / length

    def fixed_point(self, trace=0.0, ridge=0.0):
        """The minimiser of the expected objective."""
        A, b, C = self.moments(trace)
        inverse = np.linalg.inv(C)
        return np.linalg.solve(A.T @ inverse @ A + ridge * np.eye(len(b)), A.T @ inverse @ b)

    def log(self, episodes, *, seed=0, propensities=False, policy=None, noise=0.1):
        """A log of the behaviour policy (or of `policy`) over numbered states.

        propensities: log behaviour_prob instead of ratios.
        """
        rng = np.random.default_rng(seed)
        behaviour = self.behaviour if policy is None else policy
        state = _draw(np.tile(self.start, (episodes, 1)), rng)
        offset = self.episode_noise * rng.normal(size=episodes)
        running = np.ones(episodes, bool)
        columns = []
        for t in range(HORIZON):
            action = _draw(behaviour[state], rng)
            after = _draw(self.transition[action, state], rng)
            terminated = rng.random(episodes) < self.ends[state, action]
            reward = self.reward[state, action] + offset + noise * rng.normal(size=episodes)
            time = np.full(episodes, t)
            step = (np.arange(episodes), time, state, action, reward, terminated, after)
            columns.append([column[running] for column in step])
            state, running = after, running & ~terminated
        episode, time, state, action, reward, terminated, after = map(np.concatenate, zip(*columns, strict=True))
        order = np.lexsort((time, episode))
        probability = behaviour[state, action]
        given = {"behaviour_prob": probability[order]} if propensities else {
            "ratio": (self.policy[state, action] / probability)[order]}  # fmt: skip
        return vf.Transitions.from_arrays(
            state[order],
            reward[order],
            terminated=terminated[order],
            truncated=((time == HORIZON - 1) & ~terminated)[order],
            episode=episode[order],
            action=action[order],
            next_observation=after[order],
            **given,
        )


def _draw(probabilities, rng):
    """One index for each row of probabilities."""
    cumulative = np.cumsum(probabilities, axis=1)
    return np.minimum((rng.random(len(cumulative))[:, None] > cumulative).sum(axis=1), cumulative.shape[1] - 1)
