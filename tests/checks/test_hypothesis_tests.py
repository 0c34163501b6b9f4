"""Hypothesis tests: sizes on logs where the hypotheses hold, faults that each must find, and logs that allow none."""

from unittest.mock import patch

import numpy as np
import pytest
import scipy.sparse as sparse

import valuefit as vf
from helpers.fits import fit_of
from helpers.small_mdp import SmallMDP
from valuefit.checks.hypothesis_tests import hypothesis_tests
from valuefit.checks.moments import DRAWS
from valuefit.inference.adjoints import AdjointSolver

LOGS = 25  # of each design where the hypotheses hold
MAX_REJECTIONS = 5  # at 5%, more than 5 of 25 have a probability of 0.1%
CLEAR = 3 / (DRAWS + 1)  # a p-value that survives the correction for six tests
OFF_POLICY = {"ratios are right", "rewards precede actions"}
NAMES = {"returns", "features suffice", "observations are Markov", "stability"} | OFF_POLICY


def p_values(log, **settings):
    return {test.name: test.p_value for test in hypothesis_tests(fit_of(log, discount=0.9, **settings))}


def ar1(episodes, seed, *, length=15):
    """Episodes of a stationary AR(1) process of two numbers; the value is linear in them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(episodes, length + 1, 2))
    for t in range(length):
        x[:, t + 1] = 0.8 * x[:, t] + 0.6 * x[:, t + 1]
    return x, x[:, :-1, 0] - x[:, :-1, 1] + rng.normal(size=(episodes, length))


def ar1_log(x, reward):
    episodes, length = reward.shape
    return vf.Transitions.from_arrays(
        x[:, :-1].reshape(-1, 2), reward.ravel(), truncated=np.tile(np.arange(length) == length - 1, episodes),
        next_observation=x[:, 1:].reshape(-1, 2),
    )  # fmt: skip


def linear(x):
    return np.column_stack([np.ones(len(x)), x])


DESIGNS = {
    "table, on-policy": {"features": "one-hot"},
    "table, ratios": {"features": "one-hot", "off_policy": True},
    "table, state-action": {"features": "one-hot", "off_policy": True, "values": "state-action"},
}


def table_log(design, episodes, seed):
    settings = dict(DESIGNS[design])
    off_policy = settings.pop("off_policy", False)
    mdp = SmallMDP(off_policy=off_policy)
    settings["policy"] = mdp.policy if off_policy else None
    return mdp, mdp.log(episodes, seed=seed, propensities=True, noise=0.5), {**settings, "seed": seed}


def count_rejections(results):
    found = {}
    for result in results:
        for name, p in result.items():
            found.setdefault(name, []).append(p < 0.05)
    return {name: sum(rejected) for name, rejected in found.items()}


@pytest.mark.parametrize("design", DESIGNS)
def test_tables_are_rarely_rejected(design):
    rejections = count_rejections(
        p_values(log, **settings) for _, log, settings in (table_log(design, 30, seed) for seed in range(LOGS))
    )
    assert max(rejections.values()) <= MAX_REJECTIONS, rejections
    assert rejections.keys() >= {"observations are Markov", "stability"}
    assert ("ratios are right" in rejections) == (design == "table, ratios")
    assert ("rewards precede actions" in rejections) == (design != "table, on-policy")
    assert "features suffice" not in rejections  # one-hot features can express every function


def test_exact_linear_features_are_rarely_rejected():
    rejections = count_rejections(p_values(ar1_log(*ar1(30, seed)), features=linear, seed=seed) for seed in range(LOGS))
    assert max(rejections.values()) <= MAX_REJECTIONS, rejections
    assert rejections.keys() == NAMES - OFF_POLICY


def test_wrong_features_are_found_with_their_effect():
    mdp, log, settings = table_log("table, state-action", 300, 0)
    settings["features"] = lambda state: np.column_stack([np.ones(len(state)), np.asarray(state) == 0])
    fit = fit_of(log, discount=0.9, **settings)
    found = {test.name: test for test in hypothesis_tests(fit)}
    assert found["features suffice"].p_value <= CLEAR
    assert found["observations are Markov"].p_value > 0.01
    assert "random functions of the observation and the action" in found["features suffice"].rejected
    bias = abs(fit.value.estimate - mdp.start @ mdp.value) / fit.value.standard_error
    assert found["features suffice"].size == pytest.approx(bias, abs=2)


@pytest.mark.parametrize("change", ["rewards", "observations"])
def test_stability_names_what_changed(change):
    x, reward = ar1(100, 0)
    late = np.arange(100)[:, None] >= 50
    x, reward = (np.where(late[..., None], 3 * x, x), reward) if change == "observations" else (x, reward + 2 * late)
    tests = {test.name: test for test in hypothesis_tests(fit_of(ar1_log(x, reward), features=linear))}
    assert tests["stability"].p_value <= CLEAR
    assert f"most in their {change}" in tests["stability"].rejected


def test_another_behaviour_policy_half_way_does_no_harm():
    mdp = SmallMDP(off_policy=True)
    first, second = mdp.log(60, propensities=True), mdp.log(60, seed=1, propensities=True, policy=mdp.policy)
    columns = {name: np.concatenate([getattr(first, name), getattr(second, name)]) for name in (
        "reward", "terminated", "truncated", "action", "behaviour_prob")}  # fmt: skip
    now, after = (
        np.concatenate([each.observations[getattr(each, name)] for each in (first, second)]) for name in ("now", "next")
    )
    log = vf.Transitions.from_arrays(
        now, columns.pop("reward"), next_observation=after,
        episode=np.concatenate([first.episode, 60 + second.episode]), **columns,
    )  # fmt: skip
    for values in ("state", "state-action"):
        assert p_values(log, policy=mdp.policy, values=values, features="one-hot")["stability"] > 0.01


def test_messages_have_numbers_and_advice():
    mdp, log, settings = table_log("table, ratios", 200, 0)
    settings["features"] = mdp.rows
    tests = hypothesis_tests(fit_of(log, discount=0.9, **settings))
    assert {test.name for test in tests} == NAMES
    for test in tests:
        assert f"p = {test.p_value:.2g}" in test.passed
        assert f"p = {test.p_value:.2g}" in test.rejected
        assert test.rejected.count(". ") >= 1
        assert 0 < test.p_value <= 1
        assert np.isfinite(test.statistic)


def test_they_depend_on_the_seed_alone():
    _, log, settings = table_log("table, ratios", 30, 0)
    assert p_values(log, **settings) == p_values(log, **settings)


OTHER = [{"trace": 0.8}, {"ridge": 1e-3}, {"interval": "cr1"}, {"csr": True}, {"starts": np.zeros((3, 2))}]


@pytest.mark.parametrize("settings", OTHER, ids=lambda settings: next(iter(settings)))
def test_other_settings_have_tests(settings):
    settings = dict(settings)
    features = (lambda x: sparse.csr_array(linear(x))) if settings.pop("csr", False) else linear
    found = p_values(ar1_log(*ar1(40, 1)), features=features, **settings)
    assert found.keys() == NAMES - OFF_POLICY
    assert min(found.values()) > 0.01


def test_sliced_logs_and_single_streams_have_tests():
    x, reward = ar1(40, 1)
    sliced = ar1_log(x, reward)[np.random.default_rng(0).random(600) < 0.8]
    assert len(p_values(sliced, features=linear)) == 4
    stream = vf.datasets.ar1_log(3000, dimensions=2, memory=0.5)
    assert len(p_values(stream, features=linear)) == 4


def test_few_episodes_or_no_randomness_allow_no_test():
    assert p_values(ar1_log(*ar1(8, 0)), features=linear) == {}
    log = vf.Transitions.from_arrays(
        np.tile(np.arange(5), 20), np.ones(100), terminated=np.tile(np.arange(5) == 4, 20)
    )  # fmt: skip
    assert p_values(log, features="one-hot") == {}


def test_bandits_have_no_test_of_returns():
    """Without a second step the sum of TD errors is what the constant feature makes zero."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 2))
    log = vf.Transitions.from_arrays(x, x[:, 0] + rng.normal(size=100), terminated=np.ones(100, bool))
    assert "returns" not in p_values(log, features=linear)


def test_without_moments_returns_are_tested_by_an_iterative_adjoint():
    log = ar1_log(*ar1(40, 1))
    direct = p_values(log, features=linear, interval="cr1")
    with patch.object(AdjointSolver, "forms_moments", False):
        found = p_values(log, features=linear)
    assert found.keys() == {"returns"}
    assert found["returns"] == pytest.approx(direct["returns"], abs=0.02)
