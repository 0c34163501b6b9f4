"""Hidden confounding: bounds against brute force, a confounded MDP inside them, and a persistent confounder outside."""

from dataclasses import replace

import numpy as np
import pytest

import valuefit as vf
from helpers.problems import wide_log
from helpers.small_mdp import SmallMDP

DISCOUNT, STATES = 0.8, 3
ALWAYS_ONE = np.tile([0.0, 1.0], (STATES, 1))
# of action, hidden variable and state: the variable improves the reward and leads to state 2, which is the best one
TOWARDS = np.array([[[0.6, 0.3, 0.1], [0.3, 0.3, 0.4]], [[0.5, 0.3, 0.2], [0.1, 0.3, 0.6]]])


def confounded_log(odds, *, episodes=4000, length=6, seed=0):
    """A hidden coin of each step multiplies or divides the odds of action 1, which are even on average, by `odds`."""
    rng, rows = np.random.default_rng(seed), []
    state = rng.integers(STATES, size=episodes)
    for t in range(length):
        hidden = rng.integers(2, size=episodes)
        likely = odds / (1 + odds)
        action = (rng.random(episodes) < np.where(hidden == 1, likely, 1 - likely)).astype(int)
        after = (rng.random(episodes)[:, None] > TOWARDS[action, hidden].cumsum(axis=1)).sum(axis=1)
        reward = hidden + 0.3 * action + 0.5 * (state == 2)
        rows.append((np.arange(episodes), np.full(episodes, t), state, action, reward, after))
        state = after
    episode, time, state, action, reward, after = (np.concatenate(part) for part in zip(*rows, strict=True))
    order = np.lexsort((time, episode))
    return vf.Transitions.from_arrays(
        state[order], reward[order], truncated=time[order] == length - 1, episode=episode[order], action=action[order],
        next_observation=after[order],
    )  # fmt: skip


def true_value():
    """Of action 1 at every step, whatever the coin shows."""
    reward = 0.5 + 0.3 + 0.5 * (np.arange(STATES) == 2)
    P = np.tile(TOWARDS[1].mean(axis=0), (STATES, 1))
    return np.linalg.solve(np.eye(STATES) - DISCOUNT * P, reward).mean()


def evaluated(log, policy=ALWAYS_ONE, **settings):
    return vf.evaluate(log, policy=policy, values="state-action", **{"discount": DISCOUNT} | settings)


def test_a_confounded_mdp_has_its_value_within_the_bounds():
    """The coin is the worst case of its odds, so that the bound is the truth, up to sampling error."""
    evaluation, truth = evaluated(confounded_log(2.0)), true_value()
    value = evaluation.policy_value
    assert value.interval[0] > truth + 0.3  # the confounded estimate is too high, and its interval does not say so
    found = evaluation.sensitivity([1.0, 1.6, 2.0, 2.3])
    assert found.lower[0] == pytest.approx(found.upper[0])
    assert abs(found.lower[2] - truth) < 3 * value.standard_error
    assert found.lower[3] < truth < found.upper[3]
    assert found.lower[1] > truth + 3 * value.standard_error
    assert (np.diff(found.lower) < 0).all()
    assert (np.diff(found.upper) > 0).all()


def test_no_confounding_gives_the_estimate_of_the_table():
    evaluation = evaluated(confounded_log(1.0, episodes=300))
    found = evaluation.sensitivity(1)
    assert found.odds == 1.0
    assert found.lower == pytest.approx(evaluation.policy_value.estimate, rel=1e-8)
    assert found.upper == pytest.approx(evaluation.policy_value.estimate, rel=1e-8)
    uniform = np.full((STATES, 2), 0.5)
    mixed = evaluated(confounded_log(1.0, episodes=300), uniform)
    assert mixed.sensitivity(1).lower == pytest.approx(mixed.policy_value.estimate, rel=1e-8)


def test_the_bound_is_the_fixed_point_of_the_recursion():
    """Iterated by plain loops, with the lower tail of each group as a list."""
    log, odds = confounded_log(2.0, episodes=40), 1.7
    state, value = log.observations[log.now], np.zeros(STATES)
    for _ in range(200):
        following = np.zeros(STATES)
        for s in range(STATES):
            steps = np.flatnonzero((state == s) & (log.action == 1))
            e = len(steps) / (state == s).sum()
            y = sorted(log.reward[t] + DISCOUNT * value[log.observations[log.next[t]]] for t in steps)
            left, tail, size = len(y) / (1 + odds), 0.0, len(y) / (1 + odds)
            for entry in y:
                tail, left = tail + min(left, 1.0) * entry, max(left - 1.0, 0.0)
            alpha = e + (1 - e) / odds
            following[s] = alpha * np.mean(y) + (1 - alpha) * tail / size
        value = following
    starts = state[np.flatnonzero(log.begins)]
    assert evaluated(log).sensitivity(odds).lower == pytest.approx(value[starts].mean(), rel=1e-8)


@pytest.mark.parametrize("unit", [1e-30, 1e-10, 1e10])
def test_bounds_do_not_depend_on_the_unit_of_rewards(unit):
    log = confounded_log(2.0, episodes=40)
    plain, scaled = (evaluated(replace(log, reward=one * log.reward)).sensitivity([1.5, 3.0]) for one in (1.0, unit))
    np.testing.assert_allclose(scaled.lower, unit * plain.lower, rtol=1e-9)
    np.testing.assert_allclose(scaled.upper, unit * plain.upper, rtol=1e-9)


def test_a_persistent_confounder_is_outside_the_model():
    """A coin tossed once an episode decides the final reward, and action 1, which is needed to get there.

    In the last state nearly all episodes show heads, so that its reward looks certain: no odds reveal the others.
    """
    rng, rows = np.random.default_rng(0), []
    for episode in range(20000):
        heads = int(rng.integers(2))
        for state in range(4):
            action = int(rng.random() < (0.8 if heads else 0.2))
            ends = state == 3 or action == 0
            rows.append((episode, state, action, float(heads and state == 3 and action == 1), ends))
            if ends:
                break
    names = "episode", "obs", "action", "reward", "terminated"
    log = vf.load({name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)})
    truth = 0.5 * 0.95**3
    found = evaluated(log, np.tile([0.0, 1.0], (4, 1)), discount=0.95).sensitivity(4.0)
    assert found.lower > truth + 0.05


def test_actions_and_states_without_data_have_the_range_of_rewards():
    """State 1 is left by action 0 alone, and the policy takes action 1 there."""
    log = vf.Transitions.from_arrays(
        np.tile([0, 1], 50), np.tile([1.0, -1.0], 50), terminated=np.tile([False, True], 50),
        action=np.tile([1, 0], 50),
    )  # fmt: skip
    evaluation = vf.evaluate(
        log, policy=lambda states: np.tile([0.0, 1.0], (len(states), 1)), discount=0.5, values="state-action",
        ridge=0.1,
    )  # fmt: skip
    found = evaluation.sensitivity(1)
    assert (found.lower, found.upper) == pytest.approx((1 + 0.5 * -2, 1 + 0.5 * 2))
    elsewhere = vf.evaluate(
        log, policy=lambda states: np.tile([1.0, 0.0], (len(states), 1)), discount=0.5, values="state-action",
        starts=[1, 7], ridge=0.1, features=lambda states: np.eye(8)[states.ravel()],
    )  # fmt: skip
    assert elsewhere.sensitivity(1).lower == pytest.approx((-1 - 2) / 2)


def test_the_factor_at_which_a_sign_is_lost():
    log = confounded_log(1.0, episodes=1000)
    better, worse = evaluated(log), evaluated(log, ALWAYS_ONE[:, ::-1])
    lost = better.breakdown(4.0)
    assert better.sensitivity(lost).lower <= 4.0 < better.sensitivity(lost / 1.001).lower
    assert worse.breakdown(better) == pytest.approx(better.breakdown(worse))
    both = better.breakdown(worse)
    assert better.sensitivity(both).lower <= worse.sensitivity(both).upper
    assert better.sensitivity(both / 1.001).lower > worse.sensitivity(both / 1.001).upper
    assert better.breakdown(better) == 1.0
    assert better.breakdown(-100) == np.inf


def test_what_it_cannot_do_is_refused():
    mdp = SmallMDP(off_policy=True)
    log = mdp.log(30, propensities=True)
    with pytest.raises(ValueError, match="numbered states, but the observations of this log are vectors"):
        vf.evaluate(wide_log(), features="identity").sensitivity(2)
    for policy in (None, np.full(len(log), 0.5)):
        with pytest.raises(ValueError, match="probabilities of all actions"):
            vf.evaluate(log, policy=policy, discount=0.9).sensitivity(2)
    with pytest.raises(ValueError, match="discount below 1"):
        vf.evaluate(log, policy=mdp.policy, discount=1.0).sensitivity(2)
    evaluation = vf.evaluate(log, policy=mdp.policy, discount=0.9)
    for odds in (0.5, [], [[1.0]], np.nan, np.inf, 10**400, np.longdouble("1e4000"), "2", True, None):
        with pytest.raises(ValueError, match="odds"):
            evaluation.sensitivity(odds)
    with pytest.raises(ValueError, match="finite number or an evaluation"):
        evaluation.breakdown("2")
    with pytest.raises(ValueError, match="discounts of the two evaluations"):
        evaluation.breakdown(vf.evaluate(log, policy=mdp.policy, discount=0.8))
