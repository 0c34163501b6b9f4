"""What the automatic features must answer: published designs, a bandit log with many actions, and CartPole."""

import sys
from functools import partial

import numpy as np
import pytest

from helpers.problems import ROOT

sys.path.insert(0, str(ROOT))

import valuefit as vf
from coverage_study.automatic import Setting
from coverage_study.designs import shi
from coverage_study.published import shi_coin
from coverage_study.records import generator
from coverage_study.truths import truth_of

ACTIONS, TRAITS, VISITORS = 34, 4, 10_000
TASTE = np.random.default_rng(3).standard_normal((ACTIONS, TRAITS)) / 2


def softmax(scores):
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def old_rule(visitors):
    return softmax(0.5 * visitors @ np.roll(TASTE, 1, axis=0).T)


def new_rule(visitors):
    return softmax(2.0 * visitors @ TASTE.T)


def bandit(seed):
    """Episodes of one step with 34 actions, the estimate by inverse propensities, its error, and the click rate."""
    rng = np.random.default_rng(seed)
    visitors = rng.standard_normal((VISITORS, TRAITS))
    clicks, logged = 1 / (1 + np.exp(1.0 - visitors @ TASTE.T)), old_rule(visitors)
    action = (logged.cumsum(axis=1) > rng.random((VISITORS, 1))).argmax(axis=1)
    rows = np.arange(VISITORS)
    reward = (rng.random(VISITORS) < clicks[rows, action]).astype(float)
    log = vf.Transitions.from_arrays(
        visitors, reward, episode=rows, action=action, terminated=np.ones(VISITORS, bool),
        behaviour_prob=logged[rows, action],
    )  # fmt: skip
    weighted = new_rule(visitors)[rows, action] / logged[rows, action] * reward
    truth = float((new_rule(visitors) * clicks).sum(axis=1).mean())
    return log, weighted.mean(), weighted.std() / np.sqrt(VISITORS), truth


@pytest.mark.parametrize("seed", [0, pytest.param(range(1, 9), marks=pytest.mark.slow)])
@pytest.mark.parametrize("values", ["state", "state-action"])
def test_a_bandit_log_with_34_actions_agrees_with_inverse_propensities_and_the_truth(values, seed):
    for one in np.atleast_1d(seed):
        log, other, error, truth = bandit(int(one))
        value = vf.evaluate(log, policy=new_rule, values=values).policy_value
        assert abs(value.estimate - other) <= 2 * np.hypot(error, value.standard_error)
        assert abs(value.estimate - truth) <= 3 * value.standard_error
        assert value.standard_error <= error  # a model of the clicks is worth something


@pytest.mark.parametrize(
    ("episodes", "steps", "logs"),
    [(25, 30, 10), *(pytest.param(*size, 40, marks=pytest.mark.slow) for size in ((25, 30), (50, 50), (100, 70)))],
)
def test_errors_on_the_design_of_shi_are_within_half_as_much_again_of_those_of_its_splines(episodes, steps, logs):
    draw = partial(shi, behaviour=shi_coin, episodes=episodes, steps=steps)
    errors = []
    for replication in range(logs):
        log, settings, truth = draw(generator(f"automatic shi {episodes}x{steps}", replication))
        found = [vf.evaluate(log, **settings, interval="cr1"), vf.evaluate(log, **settings | {"features": "auto"})]
        errors.append([one.policy_value.estimate - truth for one in found])
    splines, automatic = np.sqrt(np.mean(np.square(errors), axis=0))
    assert automatic <= 1.5 * splines


@pytest.mark.parametrize("logs", [1, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("values", ["state", "state-action"])
def test_cartpole_is_within_two_per_cent_and_covered(values, logs):
    setting = Setting("cartpole", 0.99, 100)
    truth = truth_of(setting.truth_name).value
    errors, covered = [], []
    for replication in range(logs):
        log = setting.log(generator(setting.name, replication))
        value = vf.evaluate(log, policy=setting.target, discount=0.99, values=values).policy_value
        low, high = value.interval
        errors.append(abs(value.estimate / truth - 1))
        covered.append(low <= truth <= high)
    assert np.median(errors) <= 0.02
    assert np.mean(covered) >= (0.85 if logs >= 40 else 0.5)
