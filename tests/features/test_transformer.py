"""The base class of the built-in features: scikit-learn's interface, without scikit-learn where it is not needed."""

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

EVERY = [Tiles(2, 3), Fourier(2), RBF(9), Polynomial(2), OneHot(), Identity(), StateAction(Fourier(2))]
DENSE = [Fourier(2), RBF(9), Polynomial(2), Identity(), StateAction(Fourier(2))]


def name_of(transformer):
    return type(transformer).__name__


def observations():
    """Whole numbers, so that they are categories as well; the last column holds actions."""
    rng = np.random.default_rng(0)
    return np.column_stack([rng.integers(0, 5, 60), rng.integers(-2, 3, 60), np.arange(60) % 2]).astype(float)


def dense(rows):
    return rows.toarray() if sparse.issparse(rows) else np.asarray(rows)


# Heavy modules that the built-in features must not load; numba and scipy.sparse are allowed.
NO_HEAVY_MODULES = """
import sys
import numpy as np
import valuefit as vf
rng = np.random.default_rng(0)
flat, cube, states = rng.integers(0, 20, (300, 2)) / 4, rng.integers(0, 9, (300, 3)) / 4, rng.integers(0, 9, 300)
data = [flat, flat[:, 0], states, vf.Transitions.from_arrays(flat, np.ones(300), terminated=np.arange(300) == 299)]
for name in vf.features.names():
    # in three dimensions and more the centres of "rbf" are found by scikit-learn's k-means
    for observations in data if name == "rbf" else [*data, cube]:
        fitted, _ = vf.features.make(name, observations)
        again = vf.features.from_spec(fitted.spec)
        of = observations.observations if isinstance(observations, vf.Transitions) else observations
        assert (again(of) != fitted(of)).sum() == 0
    vf.features.make(fitted.transformer, observations)
stacked = vf.features.StateAction("tiles").fit(np.column_stack([flat, np.arange(300) % 2]))
vf.features.make(stacked, np.column_stack([flat, np.arange(300) % 2]))
vf.features.make(vf.features.StateAction(vf.features.Tiles()), np.column_stack([flat, np.arange(300) % 2]))
print(stacked, stacked.get_params())
"""


def run_python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_built_in_features_load_neither_scikit_learn_nor_pandas():
    heavy = "heavy = {'sklearn', 'pandas', 'scipy.stats', 'scipy.optimize'} & set(sys.modules); assert not heavy, heavy"
    run_python(NO_HEAVY_MODULES + heavy)


def test_tiles_of_few_observations_do_not_load_numba():
    code = (
        "import sys, numpy as np; from valuefit.features import Tiles; X = np.random.default_rng(0).random((500, 2));"
    )
    code += "Tiles().fit_transform(X); Tiles(hashed=64).fit_transform(X); assert 'numba' not in sys.modules"
    run_python(code)


def test_without_scikit_learn_a_transformer_of_the_users_own_is_copied_and_errors_are_scikit_learns():
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


@pytest.mark.parametrize("transformer", EVERY, ids=name_of)
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


@pytest.mark.parametrize("transformer", EVERY, ids=name_of)
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


@pytest.mark.parametrize("transformer", DENSE, ids=name_of)
def test_set_output_and_the_global_setting_give_data_frames(transformer):
    frame = pd.DataFrame(observations(), columns=["a", "b", "c"], index=np.arange(60) + 7)
    rows = clone(transformer).fit_transform(frame)
    pipeline = make_pipeline(clone(transformer), "passthrough").set_output(transform="pandas")
    with sklearn.config_context(transform_output="pandas"):
        globally = clone(transformer).fit(frame).transform(frame)
        # solvers take arrays
        assert isinstance(make(clone(transformer), frame)[0](frame), np.ndarray)
    for found in (pipeline.fit_transform(frame), clone(pipeline[0]).fit(frame).transform(frame), globally):
        assert isinstance(found, pd.DataFrame)
        np.testing.assert_array_equal(found.to_numpy(), rows)
        assert list(found.columns) == list(clone(transformer).fit(frame).get_feature_names_out())
        assert list(found.index) == list(frame.index)


def test_sparse_rows_are_no_data_frame():
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


def test_an_evaluator_refits_features_that_came_fitted():
    X = observations()
    log = vf.Transitions.from_arrays(X[:-1], X[1:, 0], next_observation=X[1:], truncated=np.arange(59) == 58)
    fresh = vf.PolicyEvaluator(Tiles(2, 3), ridge=0.1).fit(log)
    ready = vf.PolicyEvaluator(Tiles(2, 3).fit(3 * X), ridge=0.1).fit(log)
    np.testing.assert_array_equal(fresh.theta_, ready.theta_)


def test_a_repr_shows_what_differs_from_the_defaults():
    assert repr(Tiles()) == "Tiles()"
    assert repr(Tiles(bins=[3, 4], tilings=2)) == "Tiles(bins=[3, 4], tilings=2)"
    assert repr(make_pipeline(Polynomial(1))) == "Pipeline(steps=[('polynomial', Polynomial(degree=1))])"
    long = repr(RBF(np.random.default_rng(0).random((400, 3)).tolist()))
    assert MAX_VALUE_CHARACTERS < len(long) < MAX_VALUE_CHARACTERS + 30
    assert "..." in long


@pytest.mark.parametrize(
    "transformer", [Tiles(2, 3), Fourier(2), RBF(4), Polynomial(), OneHot(), Identity()], ids=name_of
)
def test_wrong_input_is_refused_with_a_sentence(transformer):
    X = observations()
    name = name_of(transformer)
    hole, far = X.copy(), X.copy()
    hole[4, 1], far[5, 2] = np.nan, np.inf
    for wrong, error, words in (
        (X[0], ValueError, r"Expected 2D array, got 1D array instead: X has shape \(3,\)\. Reshape your data"),
        (3.0, ValueError, "got scalar array instead"),
        (X[:, :, None], ValueError, f"Found array with dim 3, while dim <= 2 is required by {name}"),
        (X[:0], ValueError, r"Found array with 0 sample\(s\) \(shape=\(0, 3\)\) while a minimum of 1 is required"),
        (X[:, :0], ValueError, r"Found array with 0 feature\(s\) \(shape=\(60, 0\)\) while a minimum of 1"),
        (hole, ValueError, "Input X contains NaN, first in row 4, column 1"),
        (far, ValueError, r"Input X contains infinity or a value too large.*row 5, column 2"),
        (X + 1j, ValueError, "Complex data not supported"),
        (sparse.csr_array(X), TypeError, "Sparse data was passed for X, but dense data is required"),
        ([["a", "b", "c"]], ValueError, "could not convert string to float"),
    ):
        for call in (clone(transformer).fit, clone(transformer).fit(X).transform):
            with pytest.raises(error, match=words):
                call(wrong)
    with pytest.raises(ValueError, match=f"X has 2 features, but {name} is expecting 3 features as input"):
        clone(transformer).fit(X).transform(X[:, :2])
