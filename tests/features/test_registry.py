"""Features by name, as objects and chosen automatically: the fitted rows, the sentence and the spec."""

import json
import time
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sparse
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, PolynomialFeatures, StandardScaler

import valuefit as vf
from helpers.cartpole import CARTPOLE, SETTINGS, cartpole_log, covers
from valuefit import memory
from valuefit.datasets.mdp import random_mdp
from valuefit.features import RBF, Fitted, Fourier, OneHot, StateAction, Tiles, from_spec, make, names
from valuefit.features.registry import StepCount, for_actions, for_states, landmark_count


def log_of(observations, seed=0):
    n = len(observations) - 1
    reward = np.random.default_rng(seed).random(n)
    return vf.Transitions.from_arrays(
        observations[:-1], reward, truncated=np.arange(n) == n - 1, next_observation=observations[1:]
    )


def gaussian(*shape):
    return np.random.default_rng(1).standard_normal(shape)


@pytest.mark.parametrize("name", [name for name in names() if name != "auto"])
@pytest.mark.parametrize("shape", [(400, 2), (400,), (400, 3, 4)])
def test_every_name_gives_rows_and_a_spec_that_reproduces_them(name, shape):
    observations = gaussian(*shape).round(1).astype(np.float32)
    spec = {"tiles": "tiles:tilings=2,bins=2"}.get(name, name)
    fitted, sentence = make(spec, log_of(observations))
    assert sentence == fitted.sentence
    assert sentence.startswith("Used ")
    rows = fitted.transform(observations)
    again = from_spec(json.loads(json.dumps(fitted.spec, allow_nan=False)))
    assert abs(again.transform(observations) - rows).max() == 0
    assert again.columns == fitted.columns == rows.shape[1]
    assert (again.sentence, again.shape) == (fitted.sentence, fitted.shape)
    assert ("flattened" in sentence) == (len(shape) == 3)
    assert ("outside them are clipped" in sentence) == (name not in ("one-hot", "identity"))
    assert "constant" in sentence


@pytest.mark.parametrize("name", ["auto", "fourier:order=2", "tiles:tilings=2", StandardScaler(), Fourier(2), abs])
def test_a_problem_takes_what_make_gives_and_only_transforms(name):
    log = log_of(gaussian(300, 2))
    fitted, _ = make(name, log)
    part = log[:50]
    problem = vf.Problem(part, fitted, discount=0.9)
    assert problem.phi.shape == (51, fitted.columns)
    rows = fitted(log.observations[:51])
    rows = rows.toarray() if sparse.issparse(rows) else rows
    kept = ~np.isin(np.arange(fitted.columns), problem.dead)
    found = problem.phi.take(np.arange(51))
    found = found.toarray() if sparse.issparse(found) else found
    np.testing.assert_array_equal(found[:, kept], rows[:, kept])
    assert vf.solve(vf.Problem(log, fitted, discount=0.9), "lstd").status == "converged"


def test_auto_chooses_one_hot_features_for_a_finite_mdp():
    log = random_mdp(20, 3, 5).log(2000)
    fitted, sentence = make("auto", log)
    assert sentence == (
        '"auto", for 2000 steps over 20 states, chose one-hot features of 20 states (the constant is their sum).'
    )
    theta = vf.solve(vf.Problem(log, fitted, discount=0.9), "lstd").theta
    np.testing.assert_allclose(theta, vf.solve(vf.Problem(log, discount=0.9), "lstd").theta, atol=1e-10)


@pytest.mark.parametrize("shape", [(1,), (2,), (6,), (50,), (8, 8)])
@pytest.mark.parametrize(("steps", "landmarks"), [(400, 20), (20_000, 1000)])
def test_auto_takes_one_landmark_for_20_steps_and_says_so(shape, steps, landmarks):
    fitted, sentence = make("auto", gaussian(steps, *shape))
    width = int(np.prod(shape))
    assert sentence.startswith(f'"auto", for {steps} steps and {width} number{"s" * (width != 1)} per observation, ')
    name = "Matern, 0.5 of it a sum over columns" if width > 8 else "Matern"
    assert f"chose kernel features ({name}) at {fitted.columns - 1} landmarks" in sentence
    # in one or two dimensions some of 1000 landmarks are too close to each other
    assert (0.9 if width <= 2 else 1) * landmarks <= fitted.columns - 1 <= landmarks
    assert ("numbers are flattened" in sentence) == (len(shape) > 1)


def test_auto_counts_the_weights_of_all_actions():
    fitted, sentence = make("auto", gaussian(2000, 3), actions=5)
    assert fitted.columns == 1 + 2000 // (20 * 5)
    assert "for 2000 steps and 5 actions and 3 numbers" in sentence


def test_auto_takes_fewer_landmarks_where_more_would_take_too_long():
    counts = [landmark_count(StepCount(steps)) for steps in (10, 1000, 20_000, 100_000, 1_000_000)]
    assert counts == [1, 50, 1000, 1000, 632]
    assert landmark_count(StepCount(1_000_000, 4)) * 4 == 632


def test_auto_has_as_many_landmarks_for_each_action_as_the_steps_and_the_time_allow():
    counts = [landmark_count(StepCount(steps, 2)) for steps in (20_000, 40_000, 100_000, 400_000)]
    assert counts == [500, 1000, 1000, 500]


def test_auto_takes_fewer_landmarks_where_ratios_make_the_steps_worth_less():
    assert landmark_count(StepCount(20_000, 1, effective_share=0.1)) == 200
    assert landmark_count(StepCount(20_000, 1, effective_share=0.6)) == 1000
    assert landmark_count(StepCount(20_000, 1, effective_share=0.0)) == 1
    assert landmark_count(StepCount(1_000_000, 1, effective_share=0.5)) == 632  # time is that of all steps
    fitted, sentence = make("auto", gaussian(2000, 3), effective_share=0.25)
    assert fitted.columns == 1 + 50
    assert "for 2000 steps, which their ratios make worth 500, and 3 numbers" in sentence


def test_auto_treats_a_column_of_few_integers_as_states():
    whole = np.random.default_rng(0).integers(0, 9, (1000, 1))
    assert "9 states" in make("auto", whole)[1]
    assert "kernel" in make("auto", np.arange(1000)[:, None])[1]
    assert "too many to estimate well" in make("auto", np.arange(1000))[1]


def test_the_sentence_mentions_too_many_features():
    sentence = make("polynomial", gaussian(400, 24))[1]
    assert "325 features for 400 steps, too many to estimate well: use fewer." in sentence


def test_fewer_features_than_too_many_give_a_value_closer_to_the_truth():
    log = cartpole_log(20)
    many, fewer = (vf.evaluate(log, features=f"kernel:landmarks={count}", **SETTINGS) for count in (len(log) // 2, 40))
    assert any("too many to estimate well: use fewer." in note for note in many.notes)
    assert covers(fewer)
    errors = [abs(one.policy_value.estimate - CARTPOLE.truth) for one in (fewer, many)]
    assert errors[0] < 0.7 * errors[1]
    assert "too many" not in make("polynomial", gaussian(4000, 24))[1]


def test_options_are_parsed():
    fitted, _ = make("tiles:tilings=3, bins=[4, 5],displacement=uniform,wrap=(0,)", gaussian(100, 2))
    assert fitted.transformer.get_params()["displacement"] == "uniform"
    assert fitted.columns == 3 * 20
    assert fitted.spec["options"]["wrap"] == [0]
    assert make("Fourier:max-features=7", gaussian(500, 2))[0].columns == 7
    assert "Ranges are given" in make("polynomial:low=-9,high=9", gaussian(100, 2))[1]
    assert make("one_hot", np.arange(9).repeat(9))[0].columns == 9


def test_a_users_transformer_is_cloned_unless_it_is_fitted():
    observations = gaussian(200, 3)
    mine = make_pipeline(StandardScaler(), PolynomialFeatures(2))
    fitted, sentence = make(mine, log_of(observations))
    np.testing.assert_allclose(fitted(observations[:5]), mine.fit(observations).transform(observations[:5]))
    assert fitted.spec is None
    assert sentence == "Used Pipeline (10 features), fitted to 200 observations."
    ready = StandardScaler().fit(1000 * observations)
    used, sentence = make(ready, log_of(observations))
    assert used.transformer is ready
    assert "already fitted" in sentence
    unfitted = StandardScaler()
    make(unfitted, observations)
    assert "mean_" not in vars(unfitted)


def test_features_are_fitted_to_each_distinct_observation_once():
    states = np.array([0, 1, 0, 1, 0, 1, 0, 1, 2, 0])
    fitted, _ = make(StandardScaler(), log_of(states))
    assert fitted.transformer.mean_ == [1.0]
    assert fitted(states[:1]).shape == (1, 1)


def test_fitted_features_are_used_unchanged():
    observations = gaussian(200, 2)
    mine = Tiles(2, 4)
    fitted, _ = make(mine, observations)
    assert "low_" not in vars(mine)
    assert fitted.spec["name"] == "tiles"
    assert make(fitted, 3 * observations)[0] is fitted
    wide = Fourier(2).fit(10 * observations)
    kept, _ = make(wide, observations)
    assert kept.spec["options"]["high"] == (10 * observations.max(axis=0)).tolist()


class Plain:
    """A transformer that does not inherit from scikit-learn."""

    def fit(self, X, y=None):
        self.shift_ = X.mean()
        return self

    def transform(self, X):
        return X - self.shift_


def test_transformers_need_not_inherit_from_scikit_learn():
    observations = gaussian(50, 2)
    mine = Plain()
    fitted, _ = make(mine, observations)
    np.testing.assert_allclose(fitted(observations), observations - observations.mean())
    assert not vars(mine)


def test_callables_are_used_as_given():
    fitted, sentence = make(lambda x: np.column_stack([x, x**2]), log_of(gaussian(50)))
    assert sentence == "Used the callable <lambda> (2 features) as given."
    assert fitted(gaussian(4)).shape == (4, 2)
    sparse_rows, _ = make(lambda x: sparse.csr_matrix(x), gaussian(50, 3))
    assert sparse.issparse(sparse_rows(gaussian(4, 3)))
    stateless, _ = make(FunctionTransformer(np.tanh), gaussian(50, 3))
    np.testing.assert_allclose(stateless(gaussian(4, 3)), np.tanh(gaussian(4, 3)))


def test_images_are_not_flattened_for_a_users_transformer():
    images = gaussian(40, 8, 8)
    encoder = make_pipeline(FunctionTransformer(lambda x: x.reshape(len(x), -1)), PCA(3))
    assert make(encoder, images)[0](images).shape == (40, 3)


def test_observations_of_one_number_may_have_one_or_two_axes():
    fitted, _ = make("fourier", gaussian(100))
    np.testing.assert_array_equal(fitted(gaussian(5)), fitted(gaussian(5)[:, None]))


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ("fourrier", r"no features 'fourrier' \(did you mean 'fourier'\?\). There are auto, fourier"),
        ("wavelets", r"no features 'wavelets'\. There are auto"),
        ("fourier:ordr=3", r"no option 'ordr' \(did you mean 'order'\?\)"),
        ("identity:order=3", "It has none"),
        ("fourier:order", "'order' is not of the form option=value"),
        ("fourier:order=", "'order=' is not of the form"),
        ("fourier:order=five", "order is 'five'; it must be a whole number"),
        ("tiles:wrap=1", "wrap is 1; give a list of dimensions, from 0 to 1"),
        ("tiles:wrap=[1.5]", "give a list of dimensions"),
        ("one-hot:categories=5", "it must be a list"),
        ("fourier:order=" + "-" * 5000 + "5", "order is '-----"),
        ("fourier:order=" + "(" * 5000, "order is"),
        (
            f"fourier:order={10**400}",
            "order is a whole number of about 398 digits; it must be a whole number, 0 or more and at most",
        ),
        (f"fourier:low={10**400}", "low and high must each be one number"),
        (f"rbf:bandwidth={10**400}", "bandwidth is a whole number of about"),
        ("rbf:seed=x", "seed is 'x'; it must be a whole number"),
        (RBF([[1.0, np.nan]]), "NaN or infinite"),
        (RBF([[1.0], [1.0, 2.0]]), "give a number, or rows of numbers"),
        ("tiles:tilings=2.5", "tilings is 2.5"),
        (OneHot(categories=np.array(None)), "it must be a list for each column"),
        (Tiles(bins=2**63), "bins is 9223372036854775808; give one positive number"),
        (Tiles(bins=[3, 10**12]), "bins is .*; give one positive number, or one for each of 2 dimensions, at most"),
        (OneHot(unknown=np.zeros((2, 2))), r"unknown is array.*; it must be"),
        (Tiles(displacement=np.zeros((2, 2))), r"displacement is array.*; it must be"),
        (OneHot(unknown="x" * 5000), r"unknown is 'x{50,60}\.\.\.; it must be"),
        (Tiles(wrap=np.array(0.9)), "give a list of dimensions"),
        (RBF(bandwidth=1e-60), "bandwidth is 1e-60; it must be a number from 1e-15 to 1e[+]15, or None"),
        ("auto:order=3", "takes no options"),
        (Fourier, r"class Fourier; give an instance, Fourier\(\)"),
        (None, "features is None; give a name"),
        (3, "features is 3"),
        (lambda x: x.sum(), r"shape \(\) for 1 observations"),
        (lambda x: np.ones((7, 2)), r"shape \(7, 2\) for 1 observations"),
    ],
)
def test_invalid_features_are_refused(features, words):
    with pytest.raises(ValueError, match=words):
        make(features, gaussian(100, 2))


def test_invalid_observations_are_refused():
    fitted, _ = make("fourier", gaussian(100, 2))
    with pytest.raises(ValueError, match=r"fitted on observations of shape \(2,\), but these have shape \(3,\)"):
        fitted(gaussian(5, 3))
    with pytest.raises(ValueError, match="NaN or infinite at row 1"):
        fitted(np.array([[0.0, 0.0], [np.nan, 0.0]]))
    with pytest.raises(ValueError, match="84 x 84 x 4 = 28224 numbers, too many for 'kernel'"):
        make("auto", np.zeros((3, 84, 84, 4), np.uint8))
    with pytest.raises(ValueError, match="no observations"):
        make("auto", np.zeros((0, 2)))
    growing, _ = make(lambda x: np.ones((len(x), len(x))), gaussian(100, 2))
    with pytest.raises(ValueError, match="returned 3 columns, but 1 before"):
        growing(gaussian(3, 2))


@pytest.mark.parametrize("states", [[3, 7, 3, 11], [[3.5, 1], [2.5, 4], [3.5, 4]]])
def test_a_one_hot_spec_needs_no_category_0(states):
    states = np.array(states)
    fitted, _ = make("one-hot", states)
    again = from_spec(json.loads(json.dumps(fitted.spec)))
    assert again.columns == fitted.columns
    assert (again(states) != fitted(states)).nnz == 0


@pytest.mark.parametrize(
    "spec", [{}, {"name": "fourier"}, [], {"name": "os", "options": {}, "shape": [2], "sentence": ""}]
)
def test_an_invalid_spec_is_refused(spec):
    with pytest.raises(ValueError, match=r"exactly the keys|no features 'os'"):
        from_spec(spec)


@pytest.mark.parametrize("width", [1, 2, 7])
@pytest.mark.parametrize(
    "features",
    [
        "tiles:tilings=1000000000", "tiles:bins=1000000000", "tiles:hashed=1000000000", "tiles:tilings=1000000",
        "rbf:centres=1000000000", "rbf:centres=10000", "polynomial:degree=1000000000,max_features=1000000000",
        "fourier:order=1000000000,max_features=1000000000", "fourier:order=90000,max_features=90000",
    ],
)  # fmt: skip
def test_features_that_are_too_large_are_refused_before_they_are_fitted(features, width, monkeypatch):
    monkeypatch.setattr(memory, "memory_limit", lambda: 1 << 26)
    started = time.process_time()
    with pytest.raises(ValueError, match=r"would take .* GiB, more than half|too many columns|are placed|are listed"):
        make(features, gaussian(3000, width))
    assert time.process_time() - started < 10  # without the check, minutes or an exhausted memory


def test_actions_with_large_numbers_are_refused(monkeypatch):
    monkeypatch.setattr(memory, "memory_limit", lambda: 1 << 26)
    with pytest.raises(ValueError, match="Number the actions from 0 without gaps"):
        StateAction("fourier", 10**7).fit(np.column_stack([gaussian(30, 2), np.arange(30) % 2]))


def test_the_repr_of_fitted_features_is_one_line():
    fitted, _ = make("polynomial:degree=1", gaussian(100, 2))
    assert repr(fitted).startswith("Fitted(3 features of observations (2,): Used polynomials of degree 1")
    assert isinstance(fitted, Fitted)


@pytest.mark.parametrize("features", [len, float, lambda x: [[1.0], [1.0, 2.0]]])
def test_functions_that_fail_or_return_no_matrix_are_refused(features):
    log = vf.Transitions.from_arrays(np.zeros((4, 1)), np.ones(4), terminated=np.arange(4) == 3)
    with pytest.raises(ValueError, match=r"features (failed with|did not return an array|returned an array of shape)"):
        vf.Problem(log, features, discount=0.9)


def test_kernel_features_of_several_actions_have_fewer_landmarks_in_the_same_units():
    X = gaussian(2000, 3)
    fitted = make("kernel:landmarks=60", X)[0]
    fewer = for_actions(fitted, 3, steps=1200)
    assert fewer.columns == 1 + 20
    assert np.array_equal(fewer.transformer.landmarks_, fitted.transformer.landmarks_[::3])
    assert np.array_equal(fewer.transformer.low_, fitted.transformer.low_)
    assert fewer.transformer.length_scale_[0] > fitted.transformer.length_scale_[0]
    other = make("fourier", X)[0]
    assert for_actions(other, 3, steps=1200) is other
    assert for_actions(fitted, 3, steps=3600) is fitted


def test_kernel_features_of_states_have_as_many_weights_as_those_of_all_actions():
    X = gaussian(2000, 3)
    log = vf.Transitions.from_arrays(X, np.ones(2000), terminated=np.arange(2000) == 1999)
    fitted = make("kernel:landmarks=20", log, actions=3)[0]
    more = for_states(fitted, 3, log)
    assert more.columns == 1 + 60
    assert np.array_equal(more.transformer.low_, fitted.transformer.low_)
    assert more.transformer.length_scale_[0] < fitted.transformer.length_scale_[0]
    other = make("fourier", X)[0]
    assert for_states(other, 3, log) is other
    half = replace(log, ratio=np.where(np.arange(2000) % 4, 0.0, 1.0))  # a quarter of the steps count
    assert for_states(fitted, 3, half).columns == 1 + 2000 // 4 // 10
