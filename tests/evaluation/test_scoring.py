"""Cross-validation of candidates: against fits by hand, moments shared by ridges, scores kept in a file."""

import json
from dataclasses import replace

import numpy as np
import pytest

import valuefit as vf
from helpers.small_mdp import STATES, SmallMDP
from valuefit.evaluation.candidates import candidates_of
from valuefit.evaluation.scoring import Sample, SharedRows, Store, groups_of, restricted, score_all
from valuefit.policies.policy import find_policy

MDP = SmallMDP(off_policy=True, seed=1)
POLICY = np.tile([0.7, 0.3], (STATES, 1))
LOG = MDP.log(40, propensities=True)
FOLDS = 4


def sample_of(values="state", policy=None):
    found = None if policy is None else find_policy(policy)
    return Sample(LOG, found, values=values, discount=0.9, folds=FOLDS, seed=3)


def nothing(place, scored):
    pass


@pytest.mark.parametrize(("trace", "ridge"), [(0.0, 0.0), (0.6, 0.0), (0.0, 0.05), (0.6, 0.05)])
def test_a_score_is_the_mean_over_folds_of_fits_without_them(trace, ridge):
    sample = sample_of()
    (settings,) = candidates_of([{"features": MDP.rows, "trace": trace, "ridge": ridge}])
    scored = SharedRows(sample, settings).scored(settings)
    values = []
    for fold in range(FOLDS):
        train, test = LOG[sample.fold != fold], LOG[sample.fold == fold]
        assert not set(train.episode) & set(test.episode)
        problem = vf.Problem(train, MDP.rows, discount=0.9, trace=trace, ridge=ridge)
        value = MDP.rows(LOG.observations) @ vf.solve(problem, "lstd").theta
        after = np.where(test.terminated, 0.0, 0.9 * value[test.next])
        values.append(sample.criteria[fold].score(test.reward + after - value[test.now]).value)
    assert scored.score.value == pytest.approx(np.mean(values), rel=1e-8)
    assert len(scored.score.parts) == len(LOG.episodes)


def test_moments_are_formed_once_for_all_ridges(monkeypatch):
    formed, original = [], vf.Problem.A.func
    monkeypatch.setattr(vf.Problem.A, "func", lambda problem: formed.append(problem.n) or original(problem))
    candidates = candidates_of({"features": [MDP.rows], "ridge": [0.0, 0.01, 0.1]})
    shared = SharedRows(sample_of(), candidates[0])
    values = [shared.scored(settings).score.value for settings in candidates]
    assert len(formed) == FOLDS
    assert len(set(values)) == 3


def test_episodes_and_clusters_are_not_divided():
    fold = groups_of(LOG, 3, np.random.default_rng(0))
    by_episode = {episode: set(fold[LOG.episode == episode]) for episode in LOG.episodes}
    assert all(len(found) == 1 for found in by_episode.values())
    counts = np.bincount([found.pop() for found in by_episode.values()])
    assert counts.max() - counts.min() <= 1
    clustered = vf.evaluate(LOG, features=MDP.rows, discount=0.9, cluster=LOG.episode // 4).log
    fold = groups_of(clustered, 3, np.random.default_rng(0))
    assert all(len(set(fold[clustered.cluster == one])) == 1 for one in np.unique(clustered.cluster))


def test_probabilities_by_step_follow_their_steps():
    steps = np.array([2, 5, 7])
    policy = restricted(find_policy(np.linspace(0, 1, len(LOG))), steps)
    np.testing.assert_array_equal(policy.by_step, np.linspace(0, 1, len(LOG))[steps])
    assert restricted(None, steps) is None


def test_threads_give_the_same_scores():
    given = candidates_of({"features": ["one-hot", MDP.rows, lambda x: MDP.rows(x)[:, :2]], "ridge": [0.0, 0.1]})
    samples = [sample_of(), sample_of("state-action", POLICY)]
    one, two = (score_all(samples, given, jobs=jobs, store=Store(None), report=nothing) for jobs in (1, 3))
    for row, again in zip(one, two, strict=True):
        assert [found.score.value for found in row] == [found.score.value for found in again]


def test_an_interrupted_run_goes_on_from_the_file(tmp_path, monkeypatch):
    path = tmp_path / "scores.json"
    given = candidates_of({"features": ["one-hot", MDP.rows], "ridge": [0.0, 0.1]})
    expected = score_all([sample_of()], given, jobs=1, store=Store(None), report=nothing)
    calls = []

    def interrupt(place, scored):
        calls.append(place)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score_all([sample_of()], given, jobs=1, store=Store(path), report=interrupt)
    assert len(json.loads(path.read_text())["scores"]) == 3
    made, original = [], SharedRows.scored
    monkeypatch.setattr(SharedRows, "scored", lambda self, settings: made.append(1) or original(self, settings))
    found = score_all([sample_of()], given, jobs=1, store=Store(path), report=nothing)
    assert len(made) == 1
    for one, other in zip(expected[0], found[0], strict=True):
        assert one.score.value == pytest.approx(other.score.value, rel=1e-12)
        np.testing.assert_allclose(one.score.parts, other.score.parts, rtol=1e-12)


def test_the_file_does_not_mix_logs_settings_or_features():
    plain, ridge = candidates_of({"features": [MDP.rows], "ridge": [0.0, 0.1]})
    shared = SharedRows(sample_of(), plain)
    other_seed = Sample(LOG, None, values="state", discount=0.9, folds=FOLDS, seed=4)
    keys = {
        shared.key(plain), shared.key(ridge), SharedRows(other_seed, plain).key(plain),
        SharedRows(sample_of(), {**plain, "features": lambda x: 2 * MDP.rows(x)}).key(plain),
        SharedRows(sample_of("state-action", POLICY), plain).key(plain),
        SharedRows(sample_of("state-action", POLICY[:, ::-1]), plain).key(plain),
    }  # fmt: skip
    assert len(keys) == 6
    assert SharedRows(sample_of(), plain).key(plain) == shared.key(plain)


def test_the_file_does_not_mix_logs_that_differ_in_what_the_criterion_sees():
    """Rewards, ratios, ends and constant features are the same; observations or actions are not."""
    settings = candidates_of([{"features": lambda states: np.ones((len(states), 1))}])[0]
    other_action = LOG.action.copy()
    other_action[-1] = 1 - other_action[-1]
    moved = replace(LOG, observations=LOG.observations[::-1].copy())
    keys = {
        SharedRows(Sample(log, None, values="state", discount=0.9, folds=FOLDS, seed=3), settings).key(settings)
        for log in (LOG, moved, replace(LOG, action=other_action))
    }
    assert len(keys) == 3


def test_a_change_of_the_features_in_one_state_changes_the_key():
    log = vf.Transitions.from_arrays(np.arange(2000) % 1999, np.ones(2000), terminated=np.arange(2000) % 10 == 9)

    def rows(states, at_state=0.0):
        return np.where(np.asarray(states).ravel() == 1234, at_state, 1.0)[:, None]

    keys = {
        SharedRows(Sample(log, None, values="state", discount=0.9, folds=FOLDS, seed=3), settings).key(settings)
        for settings in candidates_of({"features": [rows, lambda states: rows(states, 1.0)]})
    }
    assert len(keys) == 2


@pytest.mark.parametrize("content", ["", "[]", '{"format": 1}', '{"format": 1, "scores": {"x": {"criterion": "1"}}}'])
def test_a_damaged_file_is_refused(tmp_path, content):
    (tmp_path / "scores.json").write_text(content)
    with pytest.raises(ValueError, match="is not a file of scores of `select`, or it is damaged"):
        Store(tmp_path / "scores.json")


def test_a_candidate_that_cannot_be_fitted_is_named():
    given = candidates_of([{"features": "one-hot"}, {"features": "kernel:landmarks=0"}])
    with pytest.raises(ValueError, match="The candidate 'kernel:landmarks=0' cannot be fitted: landmarks"):
        score_all([sample_of()], given, jobs=1, store=Store(None), report=nothing)
