"""The base class of the built-in features: scikit-learn's interface, without importing scikit-learn."""

import copy
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sparse
import sklearn
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

import valuefit as vf
from valuefit.features import RBF, Fourier, Identity, OneHot, Polynomial, StateAction, Tiles, make
from valuefit.features.registry import is_fitted
from valuefit.features.transformer import MAX_VALUE_CHARACTERS

ALL_FEATURES = [Tiles(2, 3), Fourier(2), RBF(9), Polynomial(2), OneHot(), Identity(), StateAction(Fourier(2))]
DENSE_FEATURES = [Fourier(2), RBF(9), Polynomial(2), Identity(), StateAction(Fourier(2))]


def name_of(transformer):
    return type(transformer).__name__


def observations():
    """Integers, so that they are valid categories; the last column holds actions."""
    rng = np.random.default_rng(0)
    return np.column_stack([rng.integers(0, 5, 60), rng.integers(-2, 3, 60), np.arange(60) % 2]).astype(float)


def dense(rows):
    return rows.toarray() if sparse.issparse(rows) else np.asarray(rows)


@pytest.mark.parametrize("transformer", ALL_FEATURES, ids=name_of)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
def test_rows_of_checked_observations_are_those_of_transform(transformer, dtype):
    X = observations().astype(dtype)
    fitted = clone(transformer).fit(X)
    rows, expected = fitted.rows_of_checked(X), fitted.transform(X)
    assert rows.dtype == expected.dtype
    np.testing.assert_array_equal(dense(rows), dense(expected))


HEAVY_MODULES = {"numba", "pandas", "scipy.optimize", "scipy.stats", "sklearn"}
USE_EVERY_FEATURE = """
import sys
import numpy as np
import valuefit as vf
rng = np.random.default_rng(0)
flat, cube, states = rng.integers(0, 20, (300, 2)) / 4, rng.integers(0, 9, (300, 3)) / 4, rng.integers(0, 9, 300)
pairs = np.column_stack([flat, np.arange(300) % 2])
F = vf.features
for transformer in (F.Tiles(), F.Tiles(hashed=64), F.Fourier(), F.RBF(), F.Polynomial(), F.OneHot(), F.Identity()):
    assert transformer.fit_transform(flat).shape == (300, len(transformer.get_feature_names_out()))
for features in ("tiles", F.Fourier(2)):
    stacked = F.StateAction(features)
    print(stacked, stacked.get_params(), stacked.fit_transform(pairs).shape)
    F.make(stacked, pairs)
log = vf.Transitions.from_arrays(flat, np.ones(300), terminated=np.arange(300) == 299)
for name in F.names():
    # in three or more dimensions "rbf" uses scikit-learn's k-means
    for data in [flat, flat[:, 0], states, log] + [cube] * (name != "rbf"):
        fitted, _ = F.make(name, data)
        observations = data.observations if data is log else data
        assert (F.from_spec(fitted.spec)(observations) != fitted(observations)).sum() == 0
        F.make(fitted.transformer, data)
"""


def run_python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_built_in_features_of_small_arrays_import_no_heavy_module():
    run_python(USE_EVERY_FEATURE + f"heavy = {HEAVY_MODULES} & set(sys.modules); assert not heavy, heavy")


def test_the_check_for_heavy_modules_can_fail():
    done = subprocess.run(
        [sys.executable, "-c", f"import numba, sys; assert not {HEAVY_MODULES} & set(sys.modules)"], capture_output=True
    )
    assert done.returncode == 1


def test_without_scikit_learn_a_users_transformer_is_copied_and_errors_are_those_of_scikit_learn():
    code = """
import sys
import numpy as np
import valuefit as vf

class Own:
    def fit(self, X, y=None):
        self.shift_ = X.mean()
        return self
    def transform(self, X):
        return X - self.shift_

own = Own()
fitted, _ = vf.features.make(own, np.arange(6.0).reshape(3, 2))
assert not vars(own) and fitted.transformer.shift_ == 2.5 and "sklearn" not in sys.modules
try:
    vf.features.Tiles().transform([[1.0]])
except ValueError as error:
    from sklearn.exceptions import NotFittedError
    assert isinstance(error, NotFittedError)
"""
    run_python(code)


@pytest.mark.parametrize("transformer", ALL_FEATURES, ids=name_of)
def test_clone_deepcopy_and_fitted_state(transformer):
    X = observations()
    fitted = clone(transformer).fit(X)
    assert (is_fitted(transformer), is_fitted(fitted), is_fitted(clone(fitted))) == (False, True, False)
    check_is_fitted(fitted)
    with pytest.raises(NotFittedError):
        check_is_fitted(transformer)
    for method in ("transform", "get_feature_names_out"):
        with pytest.raises(NotFittedError, match=f"This {name_of(transformer)} instance is not fitted yet"):
            getattr(clone(fitted), method)(X)
    rows = dense(fitted.transform(X))
    np.testing.assert_array_equal(dense(copy.deepcopy(fitted).transform(X)), rows)
    np.testing.assert_array_equal(dense(clone(fitted).fit_transform(X)), rows)
    assert len(fitted.get_feature_names_out()) == rows.shape[1]


@pytest.mark.parametrize("transformer", ALL_FEATURES, ids=name_of)
def test_pipelines_unions_and_column_transformers_give_the_rows_of_the_transformer(transformer):
    X = observations()
    rows = dense(clone(transformer).fit_transform(X))
    np.testing.assert_array_equal(dense(make_pipeline("passthrough", clone(transformer)).fit_transform(X)), rows)
    both = FeatureUnion([("scaled", StandardScaler()), ("own", clone(transformer))]).fit(X)
    np.testing.assert_array_equal(dense(both.transform(X))[:, 3:], rows)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    columns = ColumnTransformer([("own", clone(transformer), ["a", "b", "c"])], sparse_threshold=0).fit(frame)
    np.testing.assert_array_equal(columns.transform(frame), rows)
    assert len(columns.get_feature_names_out()) == rows.shape[1]


@pytest.mark.parametrize("transformer", DENSE_FEATURES, ids=name_of)
def test_set_output_and_the_global_setting_give_data_frames(transformer):
    frame = pd.DataFrame(observations(), columns=["a", "b", "c"], index=np.arange(60) + 7)
    rows = clone(transformer).fit_transform(frame)
    pipeline = make_pipeline(clone(transformer), "passthrough").set_output(transform="pandas")
    with sklearn.config_context(transform_output="pandas"):
        globally = clone(transformer).fit(frame).transform(frame)
        # solvers need arrays
        assert isinstance(make(clone(transformer), frame)[0](frame), np.ndarray)
    for found in (pipeline.fit_transform(frame), clone(pipeline[0]).fit(frame).transform(frame), globally):
        assert isinstance(found, pd.DataFrame)
        np.testing.assert_array_equal(found.to_numpy(), rows)
        assert list(found.columns) == list(clone(transformer).fit(frame).get_feature_names_out())
        assert list(found.index) == list(frame.index)


def test_sparse_rows_cannot_be_a_data_frame():
    X = observations()
    with pytest.raises(ValueError, match="outputs a scipy sparse matrix"):
        Tiles().set_output(transform="pandas").fit_transform(X)
    with pytest.raises(ValueError, match="output config must be in"):
        Fourier().set_output(transform="table").fit_transform(X)
    with sklearn.config_context(transform_output="pandas"):
        assert sparse.issparse(make(Tiles(), X)[0](X))


def test_column_names_of_data_frames_are_compared():
    frame = pd.DataFrame(observations(), columns=["a", "b", "c"])
    fitted = Fourier(2).fit(frame)
    assert list(fitted.feature_names_in_) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.transform(frame.rename(columns={"a": "z"}))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        fitted.transform(frame.to_numpy())
    assert "feature_names_in_" not in vars(fitted.fit(frame.to_numpy()))


def test_a_search_sets_parameters_of_a_step_and_of_nested_features():
    X = observations()
    y = X[:, 0] ** 2 + X[:, 1]
    search = GridSearchCV(make_pipeline(Tiles(4), Ridge()), {"tiles__bins": [1, 5]}, error_score="raise").fit(X, y)
    assert search.best_params_ == {"tiles__bins": 5}
    nested = StateAction(Fourier(2)).set_params(features__order=3, actions=2, features=Fourier(1))
    assert repr(nested) == "StateAction(actions=2, features=Fourier(order=3))"
    assert nested.get_params()["features__order"] == 3
    assert set(nested.get_params(deep=False)) == {"features", "actions"}
    with pytest.raises(
        ValueError, match=r"Invalid parameter 'order' for estimator Tiles\(\). Valid parameters are: \["
    ):
        Tiles().set_params(order=3)


def test_an_evaluator_refits_fitted_features():
    X = observations()
    log = vf.Transitions.from_arrays(X[:-1], X[1:, 0], next_observation=X[1:], truncated=np.arange(59) == 58)
    fresh = vf.PolicyEvaluator(Tiles(2, 3), ridge=0.1).fit(log)
    ready = vf.PolicyEvaluator(Tiles(2, 3).fit(3 * X), ridge=0.1).fit(log)
    np.testing.assert_array_equal(fresh.theta_, ready.theta_)


def test_a_repr_shows_parameters_that_differ_from_the_defaults():
    assert repr(Tiles()) == "Tiles()"
    assert repr(Tiles(bins=[3, 4], tilings=2)) == "Tiles(bins=[3, 4], tilings=2)"
    assert repr(make_pipeline(Polynomial(1))) == "Pipeline(steps=[('polynomial', Polynomial(degree=1))])"
    long = repr(RBF(np.random.default_rng(0).random((400, 3)).tolist()))
    assert MAX_VALUE_CHARACTERS < len(long) < MAX_VALUE_CHARACTERS + 30
    assert "..." in long


@pytest.mark.parametrize(
    "transformer", [Tiles(2, 3), Fourier(2), RBF(4), Polynomial(), OneHot(), Identity()], ids=name_of
)
def test_wrong_input_raises_the_errors_of_scikit_learn(transformer):
    X = observations()
    name = name_of(transformer)
    with_nan, with_infinity = X.copy(), X.copy()
    with_nan[4, 1], with_infinity[5, 2] = np.nan, np.inf
    for wrong, error, words in (
        (X[0], ValueError, "Expected 2D array, got 1D array instead"),
        (3.0, ValueError, "got scalar array instead"),
        (X[:, :, None], ValueError, "Found array with dim 3"),
        (X[:0], ValueError, r"Found array with 0 sample\(s\) \(shape=\(0, 3\)\) while a minimum of 1 is required"),
        (X[:, :0], ValueError, r"Found array with 0 feature\(s\) \(shape=\(60, 0\)\) while a minimum of 1"),
        (with_nan, ValueError, f"Input X contains NaN.\n{name}"),
        (with_infinity, ValueError, "Input X contains infinity or a value too large"),
        (X + 1j, ValueError, "Complex data not supported"),
        (sparse.csr_array(X), TypeError, "Sparse data was passed"),
        ([["a", "b", "c"]], ValueError, "could not convert string to float"),
    ):
        for call in (clone(transformer).fit, clone(transformer).fit(X).transform):
            with pytest.raises(error, match=words):
                call(wrong)
    with pytest.raises(ValueError, match=f"X has 2 features, but {name} is expecting 3 features as input"):
        clone(transformer).fit(X).transform(X[:, :2])
