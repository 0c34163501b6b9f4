"""Fourier, RBF, polynomial, one-hot, identity and state-action features, compared with plain loops."""

import itertools
import json

import numpy as np
import pytest
import scipy.sparse as sparse
from numpy.polynomial import legendre as series
from scipy.spatial.distance import cdist
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from valuefit.features import RBF, Fourier, Identity, OneHot, Polynomial, StateAction, Tiles

DENSE = [Fourier(3), RBF(16), Polynomial(3)]
# unknown="zero": scikit-learn's checks transform rows that were not in the data
CHECKED = [Tiles(2, 3), Fourier(), RBF(10), Polynomial(), OneHot(unknown="zero"), Identity()]


def uniform(shape, seed=0):
    return np.random.default_rng(seed).uniform(-2, 5, shape)


@pytest.mark.filterwarnings("ignore:Estimator .* does not inherit from `sklearn.base.BaseEstimator`:UserWarning")
@pytest.mark.parametrize("transformer", CHECKED, ids=lambda t: type(t).__name__)
def test_the_estimator_checks_of_scikit_learn_pass(transformer):
    report = check_estimator(transformer, on_skip=None)
    skipped = {check["check_name"] for check in report if check["status"] != "passed"}
    assert skipped <= {"check_array_api_input"}  # runs only with SCIPY_ARRAY_API set
    assert len(report) > 40


@pytest.mark.parametrize(("dimensions", "order"), [(1, 9), (2, 4), (3, 2), (12, 1)])
def test_fourier_features_are_cosines(dimensions, order):
    X = uniform((200, dimensions))
    fourier = Fourier(order, max_features=100).fit(X)
    low, high = X.min(axis=0), X.max(axis=0)
    slow = np.array([[np.cos(np.pi * np.dot(c, (x - low) / (high - low))) for c in fourier.coefficients_] for x in X])
    np.testing.assert_allclose(fourier.transform(X), slow, atol=1e-13)
    assert len(fourier.coefficients_) == min(100, (order + 1) ** dimensions)
    assert (slow[:, 0] == 1).all()


def test_fourier_in_many_dimensions_respects_max_features():
    fourier = Fourier(5, max_features=200).fit(uniform((50, 40)))
    assert fourier.transform(uniform((3, 40))).shape == (3, 200)
    assert fourier.coefficients_.sum(axis=1).max() == 2
    assert "lowest frequencies only" in fourier.describe()


@pytest.mark.parametrize("degree", [0, 1, 2, 4])
def test_polynomials_are_products_of_legendre_polynomials(degree):
    X = uniform((100, 3))
    polynomial = Polynomial(degree).fit(X)
    Z = 2 * (X - X.min(axis=0)) / np.ptp(X, axis=0) - 1
    slow = np.ones((100, len(polynomial.degrees_)))
    for column, c in enumerate(polynomial.degrees_):
        for k in range(3):
            slow[:, column] *= series.legval(Z[:, k], np.eye(degree + 1)[c[k]]) * np.sqrt(2 * c[k] + 1)
    np.testing.assert_allclose(polynomial.transform(X), slow, atol=1e-12)
    monomials = [c for c in itertools.product(range(degree + 1), repeat=3) if sum(c) <= degree]
    assert {tuple(c) for c in polynomial.degrees_} == set(monomials)


def test_polynomials_are_better_conditioned_than_monomials():
    X = np.random.default_rng(0).uniform(100, 101, (20_000, 1))
    rows = Polynomial(10).fit_transform(X)
    assert np.linalg.cond(rows.T @ rows) < 2
    assert np.linalg.cond(np.vander(X[:, 0], 11)) > 1e12


def test_polynomials_keep_low_degrees_and_single_variables_first():
    polynomial = Polynomial(2, max_features=10).fit(uniform((50, 6)))
    assert polynomial.degrees_.sum(axis=1).tolist() == [0] + [1] * 6 + [2] * 3
    assert (polynomial.degrees_.max(axis=1)[7:] == 2).all()
    assert "lowest degrees only" in polynomial.describe()


@pytest.mark.parametrize("dimensions", [1, 2, 5])
def test_radial_basis_functions_are_gaussians_around_their_centres(dimensions):
    X = uniform((500, dimensions))
    rbf = RBF(25).fit(X)
    span = X.max(axis=0) - X.min(axis=0)
    slow = np.exp(-(cdist(X / span, rbf.centres_ / span) ** 2) / (2 * rbf.bandwidth_**2))
    np.testing.assert_allclose(rbf.transform(X)[:, 1:], slow, atol=1e-12)
    assert (rbf.transform(X)[:, 0] == 1).all()
    assert 10 < len(rbf.centres_) <= 25


def test_centres_are_the_grid_points_near_data():
    square = RBF(25).fit(np.random.default_rng(0).random((5000, 2)))
    np.testing.assert_allclose(np.unique(square.centres_[:, 0].round(3)), [0, 0.25, 0.5, 0.75, 1], atol=0.01)
    assert square.bandwidth_ == 0.25
    along = np.random.default_rng(0).random(5000)
    diagonal = RBF(100).fit(np.column_stack([along, along]))
    assert len(diagonal.centres_) < 60  # grid points far from the diagonal are dropped
    assert diagonal.transform(np.column_stack([along, along])).max(axis=0).min() >= 0.1


def test_k_means_is_reproducible_and_handles_few_points():
    X = uniform((2000, 4))
    assert (RBF(20, seed=3).fit(X).centres_ == RBF(20, seed=3).fit(X).centres_).all()
    few = RBF(20).fit(np.repeat(uniform((3, 4)), 10, axis=0))
    assert len(few.centres_) == 3
    assert RBF(20).fit(np.ones((5, 4))).transform(np.ones((1, 4))).tolist() == [[1.0, 1.0]]


def test_centres_and_bandwidth_can_be_given():
    X = uniform((50, 2))
    rbf = RBF([[0.0, 0.0], [1.0, 1.0]], 0.5, low=0, high=1).fit(X)
    np.testing.assert_allclose(rbf.transform([[0.0, 0.0]]), [[1, 1, np.exp(-4)]])


@pytest.mark.parametrize("transformer", DENSE, ids=lambda t: type(t).__name__)
def test_observations_outside_the_range_are_clipped(transformer):
    X = uniform((300, 2))
    fitted = clone(transformer).fit(X)
    low, high = X.min(axis=0), X.max(axis=0)
    np.testing.assert_array_equal(fitted.transform([low - 9, high + 1e300]), fitted.transform([low, high]))


@pytest.mark.parametrize("transformer", DENSE, ids=lambda t: type(t).__name__)
def test_a_constant_dimension_is_ignored(transformer):
    X = uniform((300, 2))
    frozen = np.column_stack([X[:, 0], np.full(300, 7.0), X[:, 1]])
    rows = clone(transformer).fit(frozen).transform(frozen)
    np.testing.assert_allclose(rows, clone(transformer).fit(X).transform(X), atol=1e-14)
    assert clone(transformer).fit(np.ones((5, 2))).transform(np.ones((1, 2)))[0, 0] == 1


@pytest.mark.parametrize("transformer", [*DENSE, OneHot(), Tiles(3, 4)], ids=lambda t: type(t).__name__)
def test_a_constant_is_in_the_span(transformer):
    X = uniform((300, 2)).round()
    rows = clone(transformer).fit_transform(X)
    rows = rows.toarray() if sparse.issparse(rows) else rows
    weights = np.linalg.lstsq(rows, np.ones(300), rcond=None)[0]
    np.testing.assert_allclose(rows @ weights, 1, atol=1e-10)


@pytest.mark.parametrize("transformer", [*DENSE, Tiles(3, 4)], ids=lambda t: type(t).__name__)
def test_float32_observations_give_float64_rows(transformer):
    X = uniform((100, 3)).astype(np.float32)
    single, double = clone(transformer).fit_transform(X), clone(transformer).fit_transform(X.astype(np.float64))
    assert single.dtype == np.float64
    assert abs(single - double).max() == 0


def test_one_hot_has_one_column_per_state():
    states = np.array([3, 7, 3, 11])
    rows = OneHot().fit_transform(states)
    assert rows.format == "csr"
    assert rows.toarray().tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]]
    two = OneHot().fit_transform([[0, 5], [1, 6], [0, 6]])
    assert two.toarray().tolist() == [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 0, 1]]


def test_an_unknown_state_raises_or_gives_zeros():
    states = np.array([3, 7, 3, 11])
    with pytest.raises(
        ValueError, match=r"Row 1 has 8 in column 0, which is not among the 3 values .* use unknown=.zero."
    ):
        OneHot().fit(states).transform(np.array([7, 8]))
    rows = OneHot(unknown="zero").fit(states).transform(np.array([7, 8, 99, 11]))
    assert rows.toarray().tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 0], [0, 0, 1]]
    assert OneHot([[0, 1, 2]]).fit(np.array([0])).transform(np.array([2])).toarray().tolist() == [[0, 0, 1]]


def naive_blocks(rows, weights):
    return np.array(
        [np.concatenate([p * row for p in probabilities]) for row, probabilities in zip(rows, weights, strict=True)]
    )


@pytest.mark.parametrize("features", ["fourier:order=2", "tiles:tilings=2,bins=3", "one-hot"])
@pytest.mark.parametrize("actions", [1, 2, 7])
def test_state_action_rows_have_a_block_for_each_action(features, actions):
    rng = np.random.default_rng(0)
    observations, action = rng.integers(0, 4, (60, 2)), rng.integers(0, actions, 60)
    action[0] = actions - 1
    stacked = StateAction(features).fit(np.column_stack([observations, action]))
    rows = stacked.features_.transform(observations)
    rows = rows.toarray() if sparse.issparse(rows) else rows
    probabilities = rng.dirichlet(np.ones(actions), 60) * (rng.random((60, actions)) < 0.7)
    for found, weights in (
        (stacked.transform(np.column_stack([observations, action])), np.eye(actions)[action]),
        (stacked.rows(observations, action), np.eye(actions)[action]),
        (stacked.expected(observations, probabilities), probabilities),
    ):
        dense = found.toarray() if sparse.issparse(found) else found
        np.testing.assert_allclose(dense, naive_blocks(rows, weights), rtol=1e-15)
    assert len(stacked.get_feature_names_out()) == actions * rows.shape[1]
    # with seven actions most entries of a row are zero, even if the state features are dense
    assert sparse.issparse(stacked.rows(observations, action)) == (actions == 7 or features != "fourier:order=2")


@pytest.mark.parametrize("first", [2**53, 2**60 + 1, 2**63 + 1, -(2**62) - 1])
def test_one_hot_features_tell_large_integers_apart(first):
    ids = np.array([first, first + 3, first + 6], np.uint64 if first > 0 else np.int64)
    fitted = OneHot().fit(ids)
    np.testing.assert_array_equal(fitted.transform(ids).toarray(), np.eye(3))
    assert fitted.get_feature_names_out().tolist() == [f"x0_{first + k}" for k in (0, 3, 6)]
    copy = OneHot(**json.loads(json.dumps(fitted.options()))).fit(ids[:1])
    np.testing.assert_array_equal(copy.transform(ids[::-1]).toarray(), np.eye(3)[::-1])
    np.testing.assert_array_equal(OneHot().fit_transform(ids[:, None].tolist()).toarray(), np.eye(3))
    with pytest.raises(ValueError, match=f"Row 0 has {first + 1} in column 0"):
        fitted.transform(ids[:1] + ids.dtype.type(1))
    with pytest.raises(ValueError, match="Row 0 has"):  # a float this large may stand for several integers
        OneHot([[first, first + 3]]).fit(ids).transform(np.array([[float(first + 3)]]))


def test_one_hot_categories_are_numbers_of_64_bits():
    np.testing.assert_array_equal(OneHot([[0.0, 1.0]]).fit([[0]]).categories_[0], [0, 1])  # as stored by version 0.1
    for wrong in ([["a"]], [[-1, 2**63]], [[2**70]], [[[1]]]):
        with pytest.raises(ValueError, match=r"categories must hold numbers \("):
            OneHot(wrong).fit([[0]])


def test_state_action_features_are_a_scikit_learn_transformer():
    X = np.column_stack([uniform((40, 2)), np.arange(40) % 2])
    stacked = clone(StateAction(make_pipeline(StandardScaler(), Polynomial(1)), actions=3))
    assert stacked.fit_transform(X).shape == (40, 9)
    assert stacked.get_params()["actions"] == 3


@pytest.mark.parametrize(
    ("transformer", "words"),
    [
        (Fourier(-1), "order is -1; it must be a whole number, 0 or more"),
        (Fourier(2.5), "order is 2.5"),
        (Fourier(2, 0), "max_features is 0"),
        (Fourier(low=[1, 2, 3]), "each of 2 dimensions"),
        (Fourier(low="a"), "each of 2 dimensions"),
        (Fourier(low=9, high=1), "must not exceed"),
        (Polynomial("two"), "degree is 'two'"),
        (Polynomial(max_features=True), "max_features is True"),
        (RBF(0), "centres is 0"),
        (RBF([[1.0]]), "2 columns"),
        (RBF(bandwidth=-1), "bandwidth is -1"),
        (OneHot(unknown="ignore"), '"error" or "zero"'),
        (OneHot([[1, 2]]), "1 lists, but there are 2 columns"),
        (OneHot([[1, 2], [2, 1]]), "ascending"),
        (StateAction(), "0.5 at step 0; it must be a whole number"),
        (StateAction(actions=0), "0.5 at step 0"),
    ],
)
def test_wrong_settings_are_refused(transformer, words):
    with pytest.raises(ValueError, match=words):
        transformer.fit(np.array([[0.0, 0.5], [1.0, 1.0]]))


def test_wrong_state_action_rows_are_refused():
    X = np.column_stack([uniform((10, 2)), np.arange(10) % 2])
    stacked = StateAction("polynomial").fit(X)
    with pytest.raises(ValueError, match="action of row 1 is 2; actions run from 0 to 1"):
        stacked.rows(X[:2, :2], [0, 2])
    with pytest.raises(ValueError, match="actions run from 0 to 0"):
        StateAction("polynomial", actions=1).fit(X)
    with pytest.raises(ValueError, match=r"must be \(10, 2\)"):
        stacked.expected(X[:, :2], np.ones((10, 3)) / 3)
    with pytest.raises(ValueError, match="followed by its action"):
        stacked.transform(np.ones(5))


def test_identity_keeps_float32() -> None:
    x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    rows = Identity().fit(x).transform(x)
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, x)
    assert Identity().fit(x).transform(x.astype(np.int64)).dtype == np.float64


@pytest.mark.parametrize(
    "transformer",
    [Tiles(np.int64(4), (2, 3), wrap=(np.int64(1),), hashed=np.int64(50)), Fourier(np.int64(2)),
     Polynomial(1, low=(0, 0)), RBF(np.eye(2), np.float32(0.5)), RBF(9), OneHot(unknown="zero"), Identity()],
    ids=repr,
)  # fmt: skip
def test_the_options_are_plain_data_that_give_the_same_rows(transformer):
    X = uniform((40, 2)).round()
    rows = transformer.fit(X).transform(X)
    options = json.loads(json.dumps(transformer.options()))
    again = type(transformer)(**options).fit(np.zeros((1, 2))).transform(X)
    assert abs(rows - again).max() == 0
