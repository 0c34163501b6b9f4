"""Tile coding with every option, compared with plain loops."""

import numpy as np
import pytest
import scipy.sparse as sparse
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import valuefit as vf
from valuefit.features import Tiles, tile_kernel
from valuefit.features.tiles import MIN_KERNEL_TILES, tile_numbers


def naive_tiles(X, low, high, tilings, bins, parts, wrap=()):
    """The set of active columns of each row, by plain loops."""
    rows = []
    for x in X:
        active = set()
        for k in range(tilings):
            tile = 0
            for c, value in enumerate(x):
                widths = bins[c] if c in wrap else bins[c] - 1
                position = (value - low[c]) / (high[c] - low[c]) * widths + (k * parts[c] % tilings) / tilings
                position = int(np.floor(position + 1e-15))
                position = position % bins[c] if c in wrap else min(max(position, 0), bins[c] - 1)
                tile = tile * bins[c] + position
            active.add(k * int(np.prod(bins)) + tile)
        rows.append(active)
    return rows


def columns_of(rows):
    return [set(rows.indices[rows.indptr[i] : rows.indptr[i + 1]]) for i in range(rows.shape[0])]


@pytest.mark.parametrize(
    ("tilings", "bins", "wrap", "parts"),
    [(1, (4, 4), (), (1, 3)), (4, (5, 3), (), (1, 3)), (8, (6, 6), (0,), (1, 3)), (3, (4, 4), (), (1, 5))],
)
def test_tiles_equal_those_of_plain_loops(tilings, bins, wrap, parts):
    X = np.random.default_rng(0).uniform(-1, 3, (200, 2))
    low, high = [-1.0, -1.0], [3.0, 3.0]
    tiles = Tiles(tilings, bins, wrap=wrap, low=low, high=high).fit(X)
    assert columns_of(tiles.transform(X)) == naive_tiles(X, low, high, tilings, bins, parts, wrap)


def test_rows_are_csr_with_one_tile_in_each_tiling():
    X = np.random.default_rng(0).standard_normal((500, 3))
    rows = Tiles(8, 5).fit_transform(X)
    assert sparse.issparse(rows)
    assert rows.format == "csr"
    assert rows.shape == (500, 8 * 125)
    assert (np.diff(rows.indptr) == 8).all()
    assert (rows.data == 1).all()


def test_displacements_differ_for_any_number_of_tilings():
    for tilings in (2, 3, 6, 12, 15):
        shift = Tiles(tilings, 4).fit(np.random.default_rng(0).random((10, 3))).shift_
        for dimension in range(3):
            assert len(np.unique(shift[:, dimension].round(9))) == tilings


def test_uniform_displacement_is_the_same_in_all_dimensions():
    shift = Tiles(4, 4, displacement="uniform").fit(np.random.default_rng(0).random((10, 3))).shift_
    assert (shift == shift[:, :1]).all()


def test_wrapped_dimensions_are_periodic():
    angles = np.array([[0.0], [2 * np.pi], [0.01], [2 * np.pi - 0.01]])
    periodic = Tiles(8, 6, wrap=[0], low=0, high=2 * np.pi).fit(angles).transform(angles).toarray()
    clipped = Tiles(8, 6, low=0, high=2 * np.pi).fit(angles).transform(angles).toarray()
    assert (periodic[0] == periodic[1]).all()
    assert periodic[2] @ periodic[3] >= 6
    assert clipped[2] @ clipped[3] == 0


def test_observations_outside_the_range_activate_edge_tiles():
    tiles = Tiles(4, 5, low=0, high=1).fit([[0.5]])
    inside, outside = tiles.transform([[0.0], [1.0]]), tiles.transform([[-9.0], [9.0]])
    assert inside[[0]].toarray().argmax() == outside[[0]].toarray().argmax()
    assert (inside[[1]] != outside[[1]]).nnz <= 2 * 4


def test_hashing_counts_collisions_and_keeps_row_sums():
    X = np.random.default_rng(0).random((2000, 2))
    plain, hashed = Tiles(8, 8).fit(X), Tiles(8, 8, hashed=100).fit(X)
    used = len(np.unique(plain.transform(X).indices))
    rows = hashed.transform(X)
    assert rows.shape == (2000, 100)
    assert (rows.sum(axis=1) == 8).all()
    assert hashed.collisions_ == used - len(np.unique(rows.indices)) > 0
    assert Tiles(8, 8, hashed=10**6).fit(X).collisions_ < 5
    assert plain.collisions_ == 0


def test_tiles_are_a_scikit_learn_transformer():
    X = np.random.default_rng(0).random((50, 2))
    assert clone(Tiles(3, 7)).get_params()["bins"] == 7
    rows = make_pipeline(StandardScaler(), Tiles(4, 4)).fit_transform(X)
    assert rows.shape == (50, 64)
    assert len(Tiles(4, 4).fit(X).get_feature_names_out()) == 64
    log = vf.Transitions.from_arrays(X, np.ones(50), terminated=np.arange(50) == 49)
    assert vf.solve(vf.Problem(log, Tiles(4, 4)), "lstd").status == "converged"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tilings": 0}, "1 or more"),
        ({"bins": 0}, "positive"),
        ({"bins": [3, 3, 3]}, "2 dimensions"),
        ({"displacement": "random"}, "asymmetric"),
        ({"hashed": 0}, "1 or more"),
        ({"wrap": [2]}, "from 0 to 1"),
        ({"bins": 10**5}, "hashed"),
        ({"low": 2, "high": 1}, "must not exceed"),
    ],
)
def test_wrong_settings_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        Tiles(**settings).fit(np.random.default_rng(0).random((5, 2)))


@given(
    st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 10), st.integers(1, 4), st.sampled_from([1, 10, 64])
)
def test_the_kernel_and_numpy_give_the_same_tile_numbers(seed, tilings, bins, dimensions, steps):
    rng = np.random.default_rng(seed)
    # many lattice points lie on an edge between tiles, where the tile depends on the last bit
    X = rng.integers(-2 * steps, 3 * steps, (200, dimensions)) / steps
    X[:20] *= 10.0 ** rng.integers(0, 300, (20, 1))
    wrap = [0] if dimensions > 1 else []
    X[:20, wrap] = 0.5
    tiles = Tiles(tilings, bins, low=0, high=1, wrap=wrap).fit(X)
    settings = tiles.low_, tiles.scale_, tiles.shift_, tiles.bins_, tiles.wraps_, tiles.tiles_
    compiled = np.empty((len(X), tilings), np.int64)
    tile_kernel.tile_numbers(X, *settings, compiled)
    np.testing.assert_array_equal(tile_numbers(X, *settings), compiled)


def test_rows_do_not_depend_on_the_number_of_observations():
    X = np.random.default_rng(0).integers(0, 100, (MIN_KERNEL_TILES // 10 + 5, 2)) / 10
    tiles = Tiles(10, 10).fit(X)
    parts = [tiles.transform(part) for part in np.array_split(X, 7)]
    assert (tiles.transform(X) != sparse.vstack(parts)).nnz == 0


def test_observations_far_outside_the_range_do_not_overflow():
    tiles = Tiles(1, 4, low=-1e308, high=0).fit([[0.0]])
    for far, tile in ((1e308, 3), (-1.7e308, 0)):
        assert tiles.transform([[far]]).indices.tolist() == [tile]
    assert Tiles(1, 4, low=0, high=1).fit([[0.0]]).transform([[1e300]]).indices.tolist() == [3]


@pytest.mark.parametrize(("dimensions", "bins"), [(1, 8), (2, 8), (3, 8), (4, 4), (5, 3), (6, 2), (9, 2)])
def test_more_than_three_dimensions_get_fewer_bins(dimensions, bins):
    tiles = Tiles().fit(np.random.default_rng(0).random((50, dimensions)))
    assert (tiles.bins_ == bins).all()
    assert tiles.transform(np.zeros((1, dimensions))).shape[1] == 8 * bins**dimensions
