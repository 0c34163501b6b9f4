"""Kernel features: the span and norm of a kernel at landmarks, the length scale, and columns of other types."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.gaussian_process.kernels import RBF, Matern

from valuefit.features import Kernel, from_spec, make


def normal(n, dimensions, seed=0):
    return np.random.default_rng(seed).standard_normal((n, dimensions))


KERNELS = {"gaussian": RBF(1.0), "matern": Matern(1.0, nu=2.5), "laplace": Matern(1.0, nu=0.5)}


@pytest.mark.parametrize("name", KERNELS)
def test_products_of_rows_are_the_kernel_of_scikit_learn_at_landmarks(name):
    X = normal(60, 3)
    kernel = Kernel(X[:20], name, 0.7, low=np.full(3, -8.0), high=np.full(3, 8.0)).fit(X)
    rows, landmarks = kernel.transform(X)[:, 1:], kernel.transform(X[:20])[:, 1:]
    # a unit is a quarter of the range from low to high
    expected = KERNELS[name](X / (4 * 0.7), X[:20] / (4 * 0.7))
    assert np.allclose(rows @ landmarks.T, expected, atol=1e-9)


@pytest.mark.parametrize("name", KERNELS)
def test_the_kernel_is_a_mean_over_length_scales(name):
    X = normal(60, 3)
    kernel = Kernel(X[:20], name, 0.2, low=np.full(3, -8.0), high=np.full(3, 8.0), scales=3).fit(X)
    rows, landmarks = kernel.transform(X)[:, 1:], kernel.transform(X[:20])[:, 1:]
    scales = [4 * 0.2, 4 * 0.6, 4 * 1.8]
    expected = np.mean([KERNELS[name](X / scale, X[:20] / scale) for scale in scales], axis=0)
    assert np.allclose(rows @ landmarks.T, expected, atol=1e-9)


def test_there_are_three_length_scales_unless_one_is_given():
    X = normal(60, 2)
    assert Kernel(10).fit(X).scales_ == 3
    assert Kernel(10, length_scale=0.5).fit(X).scales_ == 1
    assert Kernel(10, length_scale=0.5, scales=2).fit(X).scales_ == 2
    assert "and 2 longer ones" in Kernel(10).fit(X).describe()
    assert "longer" not in Kernel(10, scales=1).fit(X).describe()


def test_long_length_scales_follow_the_value_between_landmarks_that_are_far_apart():
    x = np.concatenate([np.linspace(-1, 1, 50), np.linspace(1.5, 5.5, 9)])[:, None]  # few points at one end
    errors = []
    between = np.linspace(1.5, 5, 40)[:, None]
    for scales in (1, 3):
        kernel = Kernel(x[::2], scales=scales, low=-2.0, high=6.0).fit(x)
        weights = np.linalg.lstsq(kernel.transform(x), x[:, 0] ** 2, rcond=1e-10)[0]
        errors.append(np.abs(kernel.transform(between) @ weights - between[:, 0] ** 2).max())
    assert errors[1] < errors[0] / 3


def test_the_norm_of_the_weights_is_that_of_the_function_in_the_space_of_the_kernel():
    X = normal(50, 2)
    kernel = Kernel(X[:15], length_scale=0.5).fit(X)
    rows = kernel.transform(X[:15])[:, 1:]
    weights = normal(15, 1, seed=1)[:, 0]
    values, K = rows @ weights, rows @ rows.T
    assert weights @ weights == pytest.approx(values @ np.linalg.solve(K, values), rel=1e-8)


def test_the_length_scale_is_five_times_the_distance_between_neighbouring_landmarks():
    grid = np.arange(101.0)[:, None]
    kernel = Kernel(grid[::10]).fit(grid)
    assert kernel.length_scale_ == pytest.approx([5 * 10 / 90])  # the unit is the range from the 5% to the 95% quantile
    finer = Kernel(grid[::5]).fit(grid)
    assert finer.length_scale_ == pytest.approx(kernel.length_scale_ / 2)


def additive_kernel(X, Z, low, high):
    """The mean over the columns of sum_q w_q cos(pi q x) cos(pi q z), x and z from 0 to 1, by plain loops."""
    K = np.zeros((len(X), len(Z)))
    weights = np.array([(1 + (np.pi * q / 2) ** 2 / 5) ** -3 for q in range(1, 7)])
    for i, x in enumerate((X - low) / (high - low)):
        for j, z in enumerate((Z - low) / (high - low)):
            for a, b in zip(x, z, strict=True):
                cosines = [np.cos(np.pi * q * a) * np.cos(np.pi * q * b) for q in range(1, 7)]
                K[i, j] += weights @ cosines / weights.sum() / len(x)
    return K


def test_products_of_rows_are_the_two_kernels_by_their_shares():
    X = normal(40, 3)
    low, high = np.full(3, -8.0), np.full(3, 8.0)
    kernel = Kernel(X[:10], "gaussian", 0.7, low=low, high=high, additive=0.25).fit(X)
    rows, landmarks = kernel.transform(X)[:, 1:], kernel.transform(X[:10])[:, 1:]
    joint = RBF(1.0)(X / (4 * 0.7), X[:10] / (4 * 0.7))
    expected = 0.75 * joint + 0.25 * additive_kernel(X, X[:10], low, high)
    assert np.allclose(rows @ landmarks.T, expected, atol=1e-9)


@pytest.mark.parametrize(("dimensions", "share"), [(8, 0.0), (9, 0.5)])
def test_half_of_the_kernel_is_additive_from_nine_columns_on(dimensions, share):
    assert Kernel(10).fit(normal(50, dimensions)).additive_ == share


def test_a_function_of_one_of_many_columns_needs_the_additive_part():
    X, other = normal(400, 20), normal(400, 20, seed=1)
    left = {}
    for share in (0.0, 0.5):
        kernel = Kernel(200, additive=share).fit(X)
        weights = np.linalg.lstsq(kernel.transform(X), np.abs(X[:, 4]), rcond=None)[0]
        left[share] = np.mean((kernel.transform(other) @ weights - np.abs(other[:, 4])) ** 2)
    assert left[0.5] < 0.3 * left[0.0]


def test_periodic_columns_and_categories_are_in_the_additive_part():
    X = np.column_stack([normal(60, 8), np.arange(60) % 3, np.arange(60) % 24])
    kernel = Kernel(30, periodic={9: 24.0}, categorical=[8]).fit(X)
    turned, renamed = X.copy(), X.copy()
    turned[:, 9] += 48
    assert np.allclose(kernel.transform(turned), kernel.transform(X))
    renamed[:, 8] = np.array([5.0, -1.0, 2.5])[X[:, 8].astype(int)]
    other = Kernel(30, periodic={9: 24.0}, categorical=[8]).fit(renamed)
    assert np.allclose(other.transform(renamed), kernel.transform(X))


def test_outliers_change_neither_the_unit_nor_the_length_scale():
    X = normal(2000, 2)
    spoiled = X.copy()
    spoiled[7] = 1e9
    rows, others = Kernel(50).fit(X).transform(X[100:200]), Kernel(50).fit(spoiled).transform(X[100:200])
    assert np.allclose(rows, others, atol=0.05)


@pytest.mark.parametrize("length_scale", [1e-3, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("name", KERNELS)
def test_rows_are_finite_and_independent_at_every_length_scale(name, length_scale):
    X = normal(400, 2)
    X[200:] = X[:200]  # duplicates
    rows = Kernel(300, name, length_scale).fit(X).transform(X)
    assert np.isfinite(rows).all()
    singular = np.linalg.svd(rows, compute_uv=False)
    assert singular[-1] > 1e-9 * singular[0]


def test_columns_that_are_periodic_or_categories_have_no_ends_and_no_order():
    X = np.column_stack([np.linspace(0, 360, 200), np.random.default_rng(0).integers(0, 3, 200)])
    kernel = Kernel(40, length_scale=0.5, periodic={0: 360}, categorical=[1]).fit(X)
    rows = kernel.transform(np.array([[0.0, 1.0], [360.0, 1.0], [180.0, 1.0], [180.0, 0.0], [180.0, 2.0]]))
    assert np.allclose(rows[0], rows[1], atol=1e-12)
    assert not np.allclose(rows[0], rows[2], atol=0.1)
    between = np.linalg.norm(rows[2] - rows[3]), np.linalg.norm(rows[2] - rows[4])
    assert between[0] == pytest.approx(between[1], rel=0.2)


def test_one_length_scale_for_each_dimension_can_hide_a_dimension():
    X = normal(200, 2)
    kernel = Kernel(30, length_scale=[0.5, 1e9]).fit(X)
    assert np.allclose(kernel.transform(X), kernel.transform(X * [1, -1]), atol=1e-6)


@given(
    X=arrays(float, st.tuples(st.integers(1, 30), st.integers(1, 3)), elements=st.floats(-1e6, 1e6, width=32)),
    landmarks=st.integers(1, 40),
    name=st.sampled_from(sorted(KERNELS)),
)
def test_any_observations_give_finite_rows_that_survive_storage(X, landmarks, name):
    fitted = make(Kernel(landmarks, name), X)[0]
    rows = fitted.transform(X)
    assert np.isfinite(rows).all()
    assert (rows[:, 0] == 1).all()
    again = from_spec(json.loads(json.dumps(fitted.spec)))
    assert np.array_equal(again.transform(X), rows)


def test_storage_keeps_periods_and_categories():
    X = np.column_stack([np.linspace(0, 6, 100), np.arange(100) % 4])
    fitted = make(Kernel(20, periodic={0: 6.28}, categorical=[1]), X)[0]
    assert np.array_equal(from_spec(json.loads(json.dumps(fitted.spec))).transform(X), fitted.transform(X))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "cubic"}, "kernel is 'cubic'; it must be one of 'matern'"),
        ({"kernel": np.zeros((2, 2))}, "kernel is array.*; it must be one of 'matern'"),
        ({"periodic": np.zeros((2, 2))}, "periodic is array.*; it must be a dictionary"),
        ({"periodic": {"\u00b2": 1.0}}, "periodic names dimension '\u00b2'"),
        ({"additive": 1.5}, "additive is 1.5; it must be a number from 0 to 1"),
        ({"landmarks": 0}, "landmarks is 0; it must be a whole number"),
        ({"landmarks": [[1.0, 2.0, 3.0]]}, r"landmarks has shape \(1, 3\)"),
        ({"landmarks": [["a", "b"]]}, "landmarks is .*; give a number, or rows of numbers"),
        ({"landmarks": [[np.nan, 0.0]]}, "finite"),
        ({"length_scale": 0}, "length_scale is 0; it must be a number"),
        ({"scales": 11}, "scales is 11; it must be a whole number, 1 or more and at most 10"),
        ({"length_scale": [1.0, 2.0, 3.0]}, "one for each of 2 dimensions"),
        ({"periodic": 3}, "periodic is 3; it must be a dictionary"),
        ({"periodic": {0: -1.0}}, "periodic is -1"),
        ({"periodic": {5: 1.0}}, "periodic names dimension 5; there are dimensions 0 to 1"),
        ({"categorical": [2]}, "categorical names dimension 2"),
        ({"categorical": [0], "periodic": {0: 1.0}}, "both periodic and categorical"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Kernel(**options).fit(normal(30, 2))


@pytest.mark.parametrize("period", [1e-300, 1e-9, 1e300])
def test_periods_of_any_size_give_finite_rows(period):
    X = 1e9 * normal(30, 2)
    rows = Kernel(10, length_scale=1.0, periodic={0: period}).fit(X).transform(X)
    assert np.isfinite(rows).all()


def test_an_option_that_cannot_be_copied_is_refused():
    with pytest.raises(
        ValueError, match=r"The features cannot be copied to be fitted \(.*generator.*Give plain values"
    ):
        make(Kernel(landmarks=(one for one in [1.0])), normal(12, 2))


def test_observations_that_are_all_equal_give_a_constant():
    rows = Kernel(5).fit(np.ones((10, 2))).transform(np.ones((3, 2)))
    assert np.array_equal(rows, np.ones((3, 1)))


@pytest.mark.parametrize(
    "observations", [np.eye(8), np.array([[i, j] for i in (0, 1) for j in (0, 1)])], ids=["one-hot", "flags"]
)
def test_few_distinct_observations_and_the_constant_give_independent_rows(observations):
    X = observations[np.random.default_rng(0).integers(0, len(observations), 600)].astype(float)
    rows = make("auto", X)[0].transform(observations.astype(float))
    assert rows.shape == (len(observations), len(observations))
    assert np.linalg.matrix_rank(rows) == len(observations)
