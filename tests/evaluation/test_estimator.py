"""The scikit-learn estimator: scikit-learn's checks, its fit, and its scores when a search slices the log."""

import pickle
import sys
import warnings
from dataclasses import replace
from fractions import Fraction
from unittest import SkipTest

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import valuefit as vf
from helpers.problems import ROOT
from helpers.small_mdp import SmallMDP
from valuefit.datasets import mountain_car
from valuefit.evaluation.criterion import HeldOutMoments
from valuefit.features import Tiles
from valuefit.policies.importance import with_ratios


@parametrize_with_checks([
    vf.PolicyEvaluator(),
    vf.PolicyEvaluator(features="fourier:order=2", ridge=0.1, trace=0.5),
])  # fmt: skip
def test_scikit_learns_own_checks(estimator, check):
    try:
        check(estimator)
    except SkipTest as skipped:  # one check needs an environment variable before scipy is imported
        assert "SCIPY_ARRAY_API is not set" in str(skipped)  # noqa: PT017


@pytest.fixture(scope="module")
def log():
    """Thirty short episodes with two numbers per observation, and ratios."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(4, 12, 30)
    n = int(lengths.sum())
    last = np.cumsum(lengths) - 1
    terminated = np.zeros(n, bool)
    terminated[last[::2]] = True
    truncated = np.zeros(n, bool)
    truncated[last[1::2]] = True
    return vf.Transitions.from_arrays(
        rng.normal(size=(n, 2)), rng.normal(size=n), terminated=terminated, truncated=truncated,
        episode=np.repeat(np.arange(30), lengths), next_observation=rng.normal(size=(n, 2)),
        ratio=rng.uniform(0.5, 1.5, n),
    )  # fmt: skip


def score_by_hand(theta, rows, log, *, discount):
    """Minus the criterion of the TD errors: rows(observation) -> features."""
    delta = []
    for t in range(len(log)):
        after = 0 if log.terminated[t] else discount * rows(log.observations[log.next[t]]) @ theta
        delta.append(log.reward[t] + after - rows(log.observations[log.now[t]]) @ theta)
    return -HeldOutMoments(log, discount=None, actions=False).score(np.array(delta)).value


def test_fit_solves_the_problem_of_the_log(log):
    model = vf.PolicyEvaluator(discount=0.9, trace=0.3, ridge=0.1).fit(log)
    expected = vf.solve(vf.Problem(log, discount=0.9, trace=0.3, ridge=0.1), "lstd").theta
    np.testing.assert_allclose(model.theta_, expected, rtol=1e-10)
    np.testing.assert_allclose(model.predict(log), log.observations[log.now] @ expected, rtol=1e-10)
    assert model.n_features_in_ == 2


def test_fit_of_arrays_equals_fit_of_the_log(log):
    X, after = log.observations[log.now], log.observations[log.next]
    after[log.terminated] = np.nan  # padding that is not used
    model = vf.PolicyEvaluator(discount=0.9, trace=0.4)
    given = {"next_X": after, "terminated": log.terminated, "ratio": log.ratio, "episode": log.episode}
    arrays = clone(model).fit(X, log.reward, **given)
    model.fit(log)
    np.testing.assert_array_equal(arrays.theta_, model.theta_)
    assert arrays.score(X, log.reward, **given) == model.score(log)
    np.testing.assert_array_equal(arrays.predict(X), model.predict(log))


def test_rows_are_steps_of_one_episode_whose_last_is_left_out():
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(20, 3)), rng.normal(size=20)
    expected = vf.Transitions.from_arrays(
        X[:-1], y[:-1], next_observation=X[1:], truncated=np.arange(19) == 18
    )  # fmt: skip
    model = vf.PolicyEvaluator(discount=0.8)
    np.testing.assert_array_equal(clone(model).fit(X, y).theta_, model.fit(expected).theta_)
    # two episodes: the last step of each is left out, unless it terminated
    pair = clone(model).fit(X, y, episode=np.arange(20) // 10)
    kept = np.arange(20) % 10 != 9
    expected = vf.Transitions.from_arrays(
        X[kept], y[kept], next_observation=X[1:][kept[:-1]], episode=(np.arange(20) // 10)[kept]
    )
    np.testing.assert_array_equal(pair.theta_, model.fit(expected).theta_)
    ended = clone(model).fit(X, y, terminated=np.arange(20) % 10 == 9)
    expected = vf.Transitions.from_arrays(X, y, terminated=np.arange(20) % 10 == 9)
    np.testing.assert_array_equal(ended.theta_, model.fit(expected).theta_)


def test_pandas_columns_are_remembered():
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(20, 2)), columns=["speed", "angle"])
    model = vf.PolicyEvaluator().fit(frame, np.arange(20.0))
    assert list(model.feature_names_in_) == ["speed", "angle"]
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"speed": "pace"}))


def test_numbered_states_are_one_hot():
    mdp = SmallMDP()
    log = mdp.log(4000)
    model = vf.PolicyEvaluator(discount=mdp.discount).fit(log)
    np.testing.assert_allclose(model.theta_, mdp.value, atol=0.15)
    assert model.predict(log).shape == (len(log),)


def test_a_score_is_minus_the_error_on_the_log_given(log):
    train, test = vf.split(log)
    model = vf.PolicyEvaluator(discount=0.9, trace=0.6, ridge=0.3).fit(train)
    expected = score_by_hand(model.theta_, lambda x: x, test, discount=0.9)
    assert model.score(test) == pytest.approx(expected, rel=1e-10)
    on_policy = replace(test, ratio=np.ones(len(test)))
    values = model.predict(on_policy)
    after = np.where(test.terminated, 0.0, 0.9 * (test.observations[test.next] @ model.theta_))
    criterion = HeldOutMoments(on_policy, discount=0.9, actions=False)
    assert model.score(on_policy) == pytest.approx(-criterion.score(test.reward + after - values).value, rel=1e-10)


def test_a_score_uses_weights_of_features_that_occur_only_as_next_ones():
    log = vf.Transitions.from_arrays(
        np.array([0, 1, 0, 1]), np.array([1.0, 2.0, 1.0, 5.0]), episode=np.array([0, 0, 1, 1]),
        next_observation=np.array([1, 2, 1, 2]), terminated=np.array([0, 1, 0, 1]),
    )  # fmt: skip
    model = vf.PolicyEvaluator(discount=0.5).fit(log)
    np.testing.assert_allclose(model.theta_[:2], [2.75, 3.5])
    held_out = log[np.array([0, 2])]  # steps from state 0 to state 1, none from state 1
    # delta = 1 + 0.5 * 3.5 - 2.75 = 0; without the weight of state 1 it would be -1.75
    assert model.score(held_out) == pytest.approx(0, abs=1e-20)


def test_a_search_over_features_ridge_and_trace_has_the_right_scores(log):
    grid = {"features__degree": [1, 2], "ridge": [0.0, 0.5], "trace": [0.0, 0.4]}
    folds = GroupKFold(3)
    search = GridSearchCV(
        vf.PolicyEvaluator(PolynomialFeatures(), discount=0.9), grid, cv=folds, error_score="raise"
    ).fit(log, groups=log.episode)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert len(search.cv_results_["params"]) == 8
    for index, params in enumerate(search.cv_results_["params"]):
        degree, ridge, trace = params["features__degree"], params["ridge"], params["trace"]

        def rows(x, degree=degree):
            return PolynomialFeatures(degree).fit_transform(np.atleast_2d(x))[0]

        for fold, (train, test) in enumerate(folds.split(np.zeros(len(log)), groups=log.episode)):
            assert not set(log.episode[train]) & set(log.episode[test])
            problem = vf.Problem(
                log[train], lambda X: np.stack([rows(x) for x in X]), discount=0.9, trace=trace, ridge=ridge
            )
            theta = vf.solve(problem, "lstd").theta
            expected = score_by_hand(theta, rows, log[test], discount=0.9)
            assert search.cv_results_[f"split{fold}_test_score"][index] == pytest.approx(expected, rel=1e-8)
    best = search.best_params_
    refitted = clone(search.estimator).set_params(**best).fit(log)
    np.testing.assert_array_equal(search.best_estimator_.theta_, refitted.theta_)


def mspbe_score(model, log, y=None):
    """Minus the held-out MSPBE, the score of version 0.1."""
    problem = vf.Problem(log, model.features_, discount=model.discount)
    return -problem.objective(model.theta_)


# task, route, features and ridges: designs in which the held-out MSPBE takes the smallest model or too large a ridge
SEARCHES = {
    "features, on-policy": (
        "sine-process",
        "on-policy",
        [f"fourier:order={order}" for order in (1, 2, 4, 8, 16)],
        [0.0],
    ),
    "features, ratios": ("puddle-world", "ratios", [f"kernel:landmarks={count}" for count in (5, 20, 80)], [0.0]),
    "ridge": ("quadratic-process", "on-policy", ["kernel:landmarks=60"], [0.0, 1e-5, 1e-4, 1e-3, 1e-2]),
}


@pytest.mark.parametrize("design", SEARCHES)
def test_a_search_finds_good_features_and_ridges_where_the_mspbe_does_not(design):
    sys.path.insert(0, str(ROOT))
    from coverage_study.selection import true_values
    from coverage_study.tasks import tasks

    name, route, features, ridges = SEARCHES[design]
    task, (observations, truth) = tasks()[name], true_values(name, route)
    errors = {"best": [], "criterion": [], "mspbe": []}
    for seed in range(4):
        log = task.log(route, 60, np.random.default_rng(seed))
        log = log if route == "on-policy" else with_ratios(log, task.target)
        model = vf.PolicyEvaluator(discount=task.discount)
        grid = {"features": features, "ridge": ridges}
        every = []
        for one in features:
            for ridge in ridges:
                fitted = clone(model).set_params(features=one, ridge=ridge).fit(log)
                every.append(np.sqrt(np.mean((fitted.predict(observations) - truth) ** 2)))
        errors["best"].append(every)
        for kind, scoring in (("criterion", None), ("mspbe", mspbe_score)):
            search = GridSearchCV(model, grid, cv=GroupKFold(5), scoring=scoring).fit(log, groups=log.episode)
            errors[kind].append(every[search.best_index_])
    best = np.mean(errors["best"], axis=0).min()
    assert np.mean(errors["criterion"]) < 1.3 * best
    assert np.mean(errors["mspbe"]) > 1.3 * best


def test_a_search_over_tiles_and_a_pipeline_of_features():
    log = mountain_car.sarsa(episodes=50).log(2000)
    tiles = vf.PolicyEvaluator(Tiles(), ridge=1e-3)
    search = GridSearchCV(tiles, {"features__bins": [2, 4]}, cv=GroupKFold(3), error_score="raise")
    search.fit(log, groups=log.episode)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    pipeline = vf.PolicyEvaluator(make_pipeline(StandardScaler(), PolynomialFeatures(2)))
    scores = cross_val_score(pipeline, log, groups=log.episode, cv=GroupKFold(3), error_score="raise")
    assert (scores < 0).all()
    assert "n_features_in_" not in vars(pipeline.features)  # the user's object is not modified
    values = cross_val_predict(pipeline, log, groups=log.episode, cv=GroupKFold(3))
    assert values.shape == (len(log),)


def test_pickle_and_clone(log):
    model = vf.PolicyEvaluator(Tiles(4, 4), discount=0.9, ridge=0.1).fit(log)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(log), model.predict(log))
    fresh = clone(model)
    assert fresh.get_params()["features__bins"] == 4
    with pytest.raises(NotFittedError):
        fresh.predict(log)


def test_a_solver_that_does_not_converge_warns(log):
    with pytest.warns(ConvergenceWarning, match="Stopped after"):
        vf.PolicyEvaluator(solver="gtd2", max_passes=2).fit(log)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vf.PolicyEvaluator().fit(log)


def test_wrong_input_is_refused(log):
    model = vf.PolicyEvaluator()
    X, y = np.ones((5, 1)), np.ones(5)
    for arguments, message in (
        ({"X": log, "y": y}, "X is a Transitions, which contains rewards"),
        ({"X": X}, "requires y to be passed, but the target y is None: give the rewards"),
        ({"X": X[:1], "y": y[:1]}, "No step of X has a next observation: X has 1 sample "),
        ({"X": X, "y": y, "ratio": -y}, "Importance ratios cannot be negative"),
        ({"X": X, "y": y, "episode": np.arange(5)}, "episodes of one step each. Give next_X"),
        ({"X": X, "y": y, "next_X": X[:3]}, "next_observation has shape"),
        ({"X": X, "y": y, "terminated": np.full(5, 2)}, "terminated must hold only 0 and 1"),
    ):
        with pytest.raises(ValueError, match=message):
            model.fit(**arguments)


def test_integers_beyond_the_range_of_float_are_refused():
    rng = np.random.default_rng(0)
    X, y, ends = rng.normal(size=(20, 2)), rng.normal(size=20), np.arange(20) % 4 == 3
    huge = X.astype(object)
    huge[3, 1] = 10**400
    fitted = vf.PolicyEvaluator("identity").fit(X, y, terminated=ends)
    for call in (fitted.predict, lambda rows: vf.PolicyEvaluator("identity").fit(rows, y, terminated=ends)):
        with pytest.raises(ValueError, match=r"X.* cannot be read as numbers \(int too large"):
            call(huge)


def test_a_discount_may_be_any_real_number():
    rng = np.random.default_rng(0)
    X, y, ends = rng.normal(size=(20, 2)), rng.normal(size=20), np.arange(20) % 4 == 3
    options = {"terminated": ends, "ratio": rng.uniform(0.5, 1.5, 20)}
    scores = [
        vf.PolicyEvaluator("identity", discount=one).fit(X, y, **options).score(X, y, **options)
        for one in (0.5, Fraction(1, 2), np.float32(0.5), np.array(0.5))
    ]
    assert len(set(scores)) == 1


@pytest.mark.parametrize("changed", [{"discount": 0.5}, {"trace": 0.3}, {"features__degree": 1}, {"features": None}])
def test_partial_fit_refuses_parameters_that_its_sums_do_not_have(log, changed):
    evaluator = vf.PolicyEvaluator(features=PolynomialFeatures(2), discount=0.9).partial_fit(log)
    evaluator.set_params(**changed)
    with pytest.raises(ValueError, match=f"^{next(iter(changed))} is .* Set it back, or start again with sklearn.base"):
        evaluator.partial_fit(log)
    again = clone(evaluator).partial_fit(log)
    np.testing.assert_allclose(again.predict(log), clone(evaluator).fit(log).predict(log), rtol=1e-5, atol=1e-6)


def test_partial_fit_goes_on_with_another_ridge_and_after_pickling(log):
    evaluator = vf.PolicyEvaluator(features=PolynomialFeatures(2), discount=0.9).partial_fit(log)
    again = pickle.loads(pickle.dumps(evaluator)).set_params(ridge=0.1).partial_fit(log)
    assert again.moments_.sums.n == 2 * len(log)
