"""Why TD errors depend on the history: features that are too coarse, or observations that lack something."""

import re

import numpy as np
import pytest

import valuefit as vf
from coverage_study.tasks import tasks
from valuefit.data.validation import step_numbers
from valuefit.datasets.example import VALUE, example_log

RNG = np.random.default_rng


def check(evaluation, name):
    return next(check for check in evaluation.checks if check.name == name)


def covers(evaluation, value):
    low, high = evaluation.policy_value.interval
    return low <= value <= high


def with_columns(log, now, after):
    """The log with these columns, (n, k), added to the observations before and after each step."""
    observations = log.observations.reshape(len(log.observations), -1)
    next = np.where(log.next < 0, log.now, log.next)
    return vf.Transitions.from_arrays(
        np.column_stack([observations[log.now], now]), log.reward, terminated=log.terminated, truncated=log.truncated,
        next_observation=np.column_stack([observations[next], after]), action=log.action, episode=log.episode,
        behaviour_prob=log.behaviour_prob,
    )  # fmt: skip


def evaluated(log, task, route, *, hidden=0):
    """hidden: the number of the last columns that the policy does not read."""
    settings = task.settings(route, "auto")
    if route != "on-policy":
        settings["policy"] = lambda observation: task.target(observation[:, : observation.shape[1] - hidden])
    return vf.evaluate(log, **settings)


@pytest.mark.parametrize("route", ["on-policy", "ratios", "state-action"])
def test_a_hidden_variable_is_named_as_missing_and_helps_if_it_is_added(route):
    """The fuel: 12 at the start of an episode, less the actions that were taken."""
    task = tasks()["hidden-fuel"]
    log = task.log(route, 50, RNG(0))
    found = check(evaluated(log, task, route), "observations are Markov")
    assert found.outcome == "warn"
    assert "Finer functions of the observation do not explain it" in found.message
    assert "add what is missing to the observations" in found.message
    used = np.cumsum(log.action) - log.action
    used -= used[np.maximum.accumulate(np.where(log.begins, np.arange(len(log)), 0))]
    fuel = [np.maximum(12 - number, 0) for number in (used, used + log.action)]
    complete = evaluated(with_columns(log, *fuel), task, route, hidden=1)
    assert complete.verdict.level == "sound"
    assert covers(complete, task.truth)


def test_earlier_observations_show_hidden_velocities():
    task = tasks()["cartpole-without-velocities"]
    log = task.log("on-policy", 100, RNG(0))
    found = evaluated(log, task, "on-policy")
    assert check(found, "observations are Markov").outcome == "warn"
    assert "earlier observations" in check(found, "observations are Markov").message
    now = log.observations[log.now]
    before = np.where(log.begins[:, None], now, np.roll(now, 1, axis=0))
    complete = evaluated(with_columns(log, before, now), task, "on-policy")
    assert complete.verdict.level == "sound"
    assert covers(complete, task.truth)


def test_coarse_features_are_named_as_coarse_and_those_that_the_message_names_are_right():
    log = example_log()
    log = log[log.episode < 60]
    coarse = vf.evaluate(log, features="polynomial:degree=3")
    found = check(coarse, "features suffice")
    assert found.outcome == "warn"
    assert check(coarse, "observations are Markov").outcome == "pass"
    advised = re.search('With `features="([^"]+)"` the policy value would change by', found.message)[1]
    finer = vf.evaluate(log, features=advised)
    assert finer.verdict.level == "sound"
    assert covers(finer, VALUE)


def test_coarse_features_that_bias_the_value_warn():
    task = tasks()["acrobot"]
    log = task.log("ratios", 40, RNG(0))
    coarse = vf.evaluate(log, **task.settings("ratios", "coarse"))
    assert check(coarse, "observations are Markov").outcome == "pass"
    assert check(coarse, "features suffice").outcome == "warn"


def test_where_nothing_tells_which_the_message_says_so():
    """Observations with many numbers have no functions that are fine enough."""
    x = RNG(0).normal(size=(1200, 70))
    clock = np.arange(1200) % 20
    log = vf.Transitions.from_arrays(x, x[:, 0] + 2.0 * (clock >= 10), terminated=clock == 19)
    assert (step_numbers(log.begins) == clock).all()
    found = vf.evaluate(log, features=lambda x: np.column_stack([np.ones(len(x)), x[:, :3]]), discount=0.9)
    message = check(found, "observations are Markov").message
    assert "this log does not tell which" in message
    assert 'Use richer features, such as `features="auto"`' in message


def peak(episodes):
    """A reward of 3 near 0, where episodes start, and of 0 elsewhere."""
    rng = RNG(0)
    x = rng.uniform(-1, 1, (10 * episodes, 2))
    x[::10] *= 0.1
    reward = 3.0 * (np.abs(x).max(axis=1) < 0.3) + 0.1 * rng.normal(size=len(x))
    return vf.Transitions.from_arrays(x, reward, terminated=np.arange(len(x)) % 10 == 9)


def test_features_beyond_what_the_log_can_pay_for_are_not_told_to_be_more():
    few, many = peak(40), peak(1000)
    truth = 3 + 0.09 * 3 * sum(0.5**t for t in range(1, 10))
    coarse = check(vf.evaluate(few, features="kernel:landmarks=18", discount=0.5), "features suffice")
    beyond = check(vf.evaluate(few, features="kernel:landmarks=22", discount=0.5), "features suffice")
    assert "kernel:landmarks=36" in coarse.message
    assert "landmarks" not in beyond.message
    assert "The log is too short for features that could express the value" in beyond.message
    found = vf.evaluate(many, features="auto", discount=0.5)
    assert covers(found, truth)
