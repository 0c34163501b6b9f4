"""A log of three states and two actions in which one pair of them has no data, and the values of its policies."""

import numpy as np

import valuefit as vf

NEXT = np.array([[1, 2], [2, 0], [0, 1]])  # of three states and two actions
REWARD = np.array([[-1.0, -2.0], [0.0, -1.0], [-3.0, -1.5]])
POLICY = np.array([[0.5, 0.5], [0.4, 0.6], [0.97, 0.03]])


def moves(rng, episodes=40, length=12, *, missing=True, noise=0.0):
    """A log without noise; in state 2 action 1 is `missing`, or taken in half of the steps."""
    rows = {name: [] for name in ("observation", "action", "reward", "next_observation", "truncated", "episode")}
    for episode in range(episodes):
        state = 0
        for step in range(length):
            action = 0 if missing and state == 2 else int(rng.integers(0, 2))
            after = NEXT[state, action]
            found = (state, action, REWARD[state, action] + noise * rng.standard_normal(), after, step == length - 1)
            for name, entry in zip(rows, (*found, episode), strict=True):
                rows[name].append(entry)
            state = after
    return vf.Transitions.from_arrays(**{name: np.array(column) for name, column in rows.items()})


def true_pairs(policy=POLICY):
    """Values of states and actions, (3, 2)."""
    moved = np.zeros((6, 6))
    for state in range(3):
        for action in range(2):
            after = NEXT[state, action]
            moved[2 * state + action, 2 * after : 2 * after + 2] = policy[after]
    return np.linalg.solve(np.eye(6) - 0.9 * moved, REWARD.ravel()).reshape(3, 2)


def true_value(log, policy=POLICY):
    first = log.observations[log.now[np.unique(log.episode, return_index=True)[1]]]
    return (policy * true_pairs(policy)).sum(axis=1)[first].mean()
