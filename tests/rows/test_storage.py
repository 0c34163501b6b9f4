"""Products with rows, of which some loops sum two or four at a time, equal those of NumPy."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import scipy.sparse as sparse

from valuefit.rows import compile
from valuefit.rows.storage import MIN_RANGE_COLUMNS, SHORT_ROW_BYTES, Rows, dense


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("extra", [-3, 0, 1])
@pytest.mark.parametrize("m", [1, 3, 4, 5, 8, 41])
def test_sums_of_short_and_long_rows_equal_those_of_numpy(m: int, extra: int, dtype: type) -> None:
    rng = np.random.default_rng(m)
    matrix = rng.normal(size=(m, SHORT_ROW_BYTES // np.dtype(dtype).itemsize + extra)).astype(dtype)
    a, c = rng.normal(size=m), rng.normal(size=m)
    a[: m // 2], c[m // 3] = 0.0, 0.0
    rows, wide = Rows(matrix), matrix.astype(np.float64)
    assert rows.short == (extra <= 0)
    with patch.object(compile, "MIN_COMPILED_NUMBERS", 0):
        single, both = rows.tdot(a), rows.tdot2(a, c)
    np.testing.assert_allclose(single, wide.T @ a, rtol=1e-12, atol=1e-12)
    for found, expected in zip(both, (wide.T @ a, wide.T @ c), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("storage", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("columns", [5, 70])
def test_products_with_weighted_squares_of_rows_equal_those_of_numpy(
    columns: int, storage: Any, compiled: bool
) -> None:
    rng = np.random.default_rng(columns)
    matrix, x = rng.normal(size=(31, columns)) * (rng.random((31, columns)) < 0.5), rng.normal(size=columns)
    weights = rng.integers(0, 3, 31).astype(float)
    with patch.object(compile, "MIN_COMPILED_NUMBERS", 0 if compiled else 1 << 40):
        found = Rows(storage(matrix)).gram_dot(weights, x)
    np.testing.assert_allclose(found, matrix.T @ (weights * (matrix @ x)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("storage", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("columns", range(7))
def test_products_with_any_number_of_columns_equal_those_of_numpy(columns: int, storage: Any, compiled: bool) -> None:
    rng = np.random.default_rng(columns)
    matrix, X = rng.normal(size=(30, 5)), rng.normal(size=(5, columns))
    with patch.object(compile, "MIN_COMPILED_NUMBERS", 0 if compiled else 1 << 40):
        found = Rows(storage(matrix)).matmul(X)
    assert found.shape == (30, columns)
    np.testing.assert_allclose(found, matrix @ X, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("storage", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_sums_by_group_equal_plain_loops(storage: Any, dtype: type) -> None:
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(9, 4)).astype(dtype)
    index, group, weights = rng.integers(0, 9, 30), rng.integers(0, 5, 30), rng.normal(size=30)
    expected = np.zeros((6, 4))
    for row, number, weight in zip(index, group, weights, strict=True):
        expected[number] += weight * matrix[row]
    found = Rows(storage(matrix)).group_sums(index, weights, group, 6)
    assert found.dtype == dense(storage(matrix)).dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_ranges_are_those_of_whole_blocks_of_columns():
    width = MIN_RANGE_COLUMNS
    whole = np.kron([[0, 1, 0], [1, 0, 1], [0, 0, 0]], np.ones((1, width)))
    ranges = Rows(sparse.csr_array(whole)).ranges
    assert ranges.starts.tolist() == [0, 1, 3, 3]
    assert ranges.number.tolist() == [1, 0, 2]
    assert ranges.values.shape == (3, width)
    entries, position = ranges.entries_of(np.array([1, 2, 0, 1]))
    assert entries.tolist() == [1, 2, 0, 1, 2]
    assert position.tolist() == [0, 0, 2, 3, 3]
    shifted, short = np.roll(whole, 1, axis=1), whole[:, ::2]
    scattered = np.where(np.arange(3 * width) % 3 == 0, 1.0, 0.0)[None]
    for other in (shifted, short, scattered, np.zeros((2, width))):
        assert Rows(sparse.csr_array(other)).ranges is None
    assert Rows(whole).ranges is None
