"""Intervals of the values at many observations."""

import warnings
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

import valuefit as vf
from helpers.errors import errors_of
from helpers.problems import problem_of
from helpers.small_log import VARIANTS, small_log
from helpers.small_mdp import SmallMDP
from valuefit.inference import bands as module
from valuefit.inference.bands import BandRows, band_sums
from valuefit.inference.error_estimate import LinearFunction
from valuefit.inference.shard_errors import ShardErrors
from valuefit.inference.signs import random_signs


@pytest.mark.parametrize("kind", ["cr3", "cr1"])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: "+".join(variant) or "plain")
def test_intervals_of_rows_are_those_of_single_numbers(variant, kind):
    log = small_log(**variant)
    problem = problem_of(log)
    errors = errors_of(problem, vf.solve(problem, "lstd").theta + 0.01, log.episode, kind)
    rows = np.random.default_rng(0).normal(size=(6, 3))
    with patch.object(module, "MIN_SIGN_SUMS", 60000):
        found = errors.band(rows, level=0.9, simultaneous=False)
    for row, interval in zip(rows, found.intervals, strict=True):
        expected = errors.error(LinearFunction(row)).interval(float(row @ errors.equations.theta), 0.9)
        np.testing.assert_allclose(interval, expected, rtol=0.03)


def test_undetermined_values_have_infinite_intervals():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(201, 2))
    rows = np.column_stack([x, x.sum(axis=1)])
    episode = np.repeat(np.arange(20), 10)
    problem = vf.Problem.from_rows(rows, np.arange(200), np.arange(1, 201), rng.normal(size=200), 0.9, None, episode)
    errors = errors_of(problem, vf.solve(problem, "lstd").theta, episode)
    found = errors.band(np.array([[1.0, 2.0, 3.0], [1.0, 0.0, 0.0]]), level=0.9, simultaneous=False)
    assert np.isfinite(found.intervals).all(axis=1).tolist() == [True, False]


@pytest.mark.parametrize(("kind", "finite"), [("cr3", [True, False]), ("cr1", [True, True])])
def test_values_that_rest_on_one_episode_have_infinite_intervals(kind, finite):
    """State 1 occurs in episode 7 alone, so nothing is known of how its value varies between episodes."""
    rng = np.random.default_rng(0)
    state, episode = np.zeros(200, int), np.repeat(np.arange(20), 10)
    state[73] = 1
    problem = vf.Problem.from_rows(np.eye(2), state, np.full(200, -1), rng.normal(size=200), 0.9, None, episode)
    errors = errors_of(problem, vf.solve(problem, "lstd").theta, episode, kind)
    assert errors.whole.rests_on_one(np.eye(2)).tolist() == [False, kind == "cr3"]
    found = errors.band(np.eye(2), level=0.9, simultaneous=False)
    assert np.isfinite(found.intervals).all(axis=1).tolist() == finite
    assert np.isfinite(found.standard_errors).tolist() == finite


@pytest.mark.parametrize("logs", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_simultaneous_intervals_cover_all_values_at_once(logs):
    mdp = SmallMDP(features=5, seed=3)
    truth = mdp.features @ mdp.fixed_point(0.0, 0.0)
    inside = 0
    for seed in range(logs):
        log = mdp.log(100, seed=seed)
        evaluation = vf.evaluate(log, features=mdp.rows, discount=mdp.discount)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = evaluation.value_interval(np.arange(5), simultaneous=True)
        pointwise = evaluation.value_interval(np.arange(5))
        assert (found[:, 1] - found[:, 0] >= pointwise[:, 1] - pointwise[:, 0]).all()
        inside += ((found[:, 0] <= truth) & (truth <= found[:, 1])).all()
    # the binomial standard error of 100 logs is 2.3%, of 1000 logs 0.7%
    assert 0.95 - 3 * np.sqrt(0.05 / logs) <= inside / logs <= 0.995


def test_few_episodes_warn_of_simultaneous_intervals():
    mdp = SmallMDP()
    evaluation = vf.evaluate(mdp.log(30, seed=0), features=mdp.rows, discount=mdp.discount)
    with pytest.warns(UserWarning, match="simultaneous intervals may be too short"):
        evaluation.value_interval(np.arange(5), simultaneous=True)
    with pytest.raises(ValueError, match="level is 95; it must be between 0 and 1"):
        evaluation.value_interval(np.arange(5), level=95)
    with pytest.raises(ValueError, match=r"simultaneous is array.*; it must be True or False"):
        evaluation.value_interval(np.arange(5), simultaneous=np.ones(2))


@pytest.mark.parametrize("level", [1e-9, 0.3, 1 - 1e-9, 1 - 2**-53])
@pytest.mark.filterwarnings("ignore:The episodes count as only")
def test_simultaneous_intervals_are_never_shorter_than_single_ones(level):
    mdp = SmallMDP()
    evaluation = vf.evaluate(mdp.log(30, seed=0), features=mdp.rows, discount=mdp.discount)
    for states in (np.arange(1), np.arange(5)):
        single, together = (evaluation.value_interval(states, level=level, simultaneous=one) for one in (False, True))
        assert np.isfinite(together).all()
        assert (np.ptp(together, axis=1) >= np.ptp(single, axis=1)).all()


def part_of_a_longer_log(errors, first_step=0):
    """These steps as a part of a log that begins with cluster 5."""
    shard = errors.whole.shard
    return ShardErrors(errors, replace(shard, clusters=replace(shard.clusters, first=5), first_step=first_step))


def test_sums_are_those_of_all_products_with_clusters_also_in_chunks():
    log = small_log(trace=0.3)
    problem = problem_of(log)
    errors = errors_of(problem, vf.solve(problem, "lstd").theta, log.episode)
    asked = BandRows.of(np.random.default_rng(0).normal(size=(7, 3)), errors.equations.theta, errors.shards.clusters)
    shard = part_of_a_longer_log(errors, first_step=70_000)
    with patch.object(module, "CHUNK", 2):
        found = band_sums(asked, shard, simultaneous=True)
    parts = np.array([[row @ change for change in -errors.whole.replicates.theta] for row in asked.units])
    np.testing.assert_allclose(found.parts, (parts**2).sum(axis=1))
    drawn = shard.influences.sign_changes(asked.draws)
    expected = np.array([[np.mean((drawn[:, g] @ row) ** 2) for g in range(asked.clusters)] for row in asked.units])
    np.testing.assert_allclose(found.expected, expected.sum(axis=1))
    np.testing.assert_allclose(found.squares, (expected**2).sum(axis=1))
    signs = random_signs(module.CLUSTER_SIGNS, 5, 5 + asked.clusters, module.MULTIPLIER_DRAWS)
    np.testing.assert_allclose(asked.units @ found.signed, parts @ signs, atol=1e-12 * np.abs(parts).max())


def test_effective_clusters_are_those_of_groups_where_there_are_many(monkeypatch):
    """A part of the log that begins with cluster 5 has groups 5; 6 to 8; 9 to 11; 12 and 13 of 14."""
    log = small_log()
    problem = problem_of(log)
    errors = errors_of(problem, vf.solve(problem, "lstd").theta, log.episode)
    asked = BandRows.of(np.random.default_rng(0).normal(size=(7, 3)), errors.equations.theta, 14)
    monkeypatch.setattr(module, "MAX_SIGN_GROUPS", 5)
    found = band_sums(asked, part_of_a_longer_log(errors), simultaneous=False)
    drawn = errors.whole.influences.sign_changes(asked.draws)
    groups = np.stack([drawn[:, i:j].sum(axis=1) for i, j in ((0, 1), (1, 4), (4, 7), (7, 9))])
    expected = np.mean(np.einsum("gsd,md->gsm", groups, asked.units) ** 2, axis=1)
    np.testing.assert_allclose(found.expected, expected.sum(axis=0))
    np.testing.assert_allclose(found.squares, (expected**2).sum(axis=0))


def test_intervals_of_states_that_recur_are_computed_once():
    mdp = SmallMDP()
    evaluation = vf.evaluate(mdp.log(100, seed=0), features=mdp.rows, discount=mdp.discount)
    asked = []
    states = np.array([4, 0, 4, 2, 0])
    with patch.object(vf.Evaluation, "band", lambda _, rows, **given: asked.append(len(rows)) or band(rows, given)):

        def band(rows, given):
            return evaluation.errors.band(rows, **given)

        found = evaluation.value_interval(states)
    assert asked == [3]
    np.testing.assert_allclose(found, evaluation.value_interval(np.arange(5))[states])


def a_table(states, episodes, length, seed):
    """Episodes of a chain that visits all states equally often, each of which has two successors, and its values."""
    rng = np.random.default_rng(0)
    successors = np.column_stack([rng.permutation(states) for _ in range(2)])
    reward = rng.normal(size=states)
    P = np.zeros((states, states))
    np.add.at(P, (np.arange(states)[:, None], successors), 0.5)
    rng = np.random.default_rng([1, seed])
    path = np.empty((length + 1, episodes), int)
    path[0] = rng.integers(0, states, episodes)
    for t in range(length):
        path[t + 1] = successors[path[t], rng.integers(0, 2, episodes)]
    state, after = path[:-1].T.ravel(), path[1:].T.ravel()
    noisy = reward[state] + rng.normal(size=len(state))
    return (
        state,
        after,
        noisy,
        np.repeat(np.arange(episodes), length),
        np.linalg.solve(np.eye(states) - 0.9 * P, reward),
    )


@pytest.mark.parametrize("logs", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_simultaneous_intervals_cover_the_values_of_400_states_at_once(logs):
    """With 300 episodes, which count as about 95 equal ones at the state where that is least."""
    inside = 0
    for seed in range(logs):
        now, after, reward, episode, truth = a_table(400, 300, 400, seed)
        problem = vf.Problem.from_rows(np.eye(400), now, after, reward, 0.9, None, episode)
        errors = errors_of(problem, vf.solve(problem, "lstd").theta, episode)
        found = errors.band(np.eye(400), level=0.95, simultaneous=True).intervals
        inside += ((found[:, 0] <= truth) & (truth <= found[:, 1])).all()
        assert np.isfinite(found).all()
    # the binomial standard error of 60 logs is 3.5% at 92%, of 1000 logs 0.9%
    assert 0.92 - 3 * np.sqrt(0.92 * 0.08 / logs) <= inside / logs


@pytest.mark.parametrize("unit", [1e-30, 1e30])
def test_intervals_have_the_unit_of_the_rewards(unit):
    log = small_log()
    rows = np.vstack([log.Phi[:5], 1e-60 * log.Phi[:5]])

    def intervals(unit):
        problem = problem_of(log._replace(reward=unit * log.reward))
        errors = errors_of(problem, vf.solve(problem, "lstd").theta, log.episode)
        return errors.band(rows, level=0.9, simultaneous=True).intervals

    np.testing.assert_allclose(intervals(unit), unit * intervals(1.0), rtol=1e-9)


def test_a_value_without_variance_leaves_simultaneous_intervals_as_they_are():
    """Its standard error is a rounding error, and so would be its t statistic: none of it may reach the others."""
    rng = np.random.default_rng(0)
    state = np.tile([0, 1, 2], 200)
    reward = np.where(state == 2, 0.1, rng.normal(size=600))
    log = vf.Transitions.from_arrays(state, reward, terminated=state == 2)
    evaluation = vf.evaluate(log, features="one-hot", discount=0.9)
    some, every = (evaluation.value_interval(states, simultaneous=True) for states in ([0, 1], [0, 1, 2]))
    assert every[:2] == pytest.approx(some, rel=1e-9)
    assert every[2] == pytest.approx(0.1, rel=1e-9)
