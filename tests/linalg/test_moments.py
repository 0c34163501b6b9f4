"""Sums of products of rows equal plain loops."""

from unittest.mock import patch

import numpy as np
import pytest
import scipy.sparse as sparse

from valuefit.linalg import moments
from valuefit.linalg.moments import count_product, difference_product, fill_upper, second_moment
from valuefit.rows import compile
from valuefit.rows.storage import MIN_RANGE_COLUMNS, Rows


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("kind", ["float64", "float32", "sparse"])
def test_products_with_differences_of_rows_equal_a_plain_loop(kind, compiled, monkeypatch):
    monkeypatch.setattr(moments, "MIN_PRODUCT_ROWS", 7)  # so that there are several blocks
    monkeypatch.setattr(moments, "PRODUCT_BYTES", 1)
    rng = np.random.default_rng(0)
    matrix = (rng.normal(size=(20, 6)) * (rng.random((20, 6)) < 0.5)).astype(np.float32)
    rows = Rows(sparse.csr_array(matrix) if kind == "sparse" else matrix.astype(kind))
    Z, (now, next) = rng.normal(size=(30, 4)), rng.integers(0, 20, (2, 30))
    discount, ratio = rng.random((2, 30))
    expected = np.zeros((4, 6))
    for z, i, j, g, r in zip(Z, now, next, discount, ratio, strict=True):
        expected += r * np.outer(z, matrix[i].astype(float) - g * matrix[j].astype(float))
    with patch.object(compile, "MIN_COMPILED_NUMBERS", 0 if compiled else 1 << 40):
        found = difference_product(Z, rows, now, next, discount, ratio)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_products_of_ranges_of_columns_equal_dense_ones(dtype, monkeypatch):
    monkeypatch.setattr(moments, "MIN_PRODUCT_ROWS", 7)
    monkeypatch.setattr(moments, "TEMPORARY_BYTES", 1)
    rng, width = np.random.default_rng(0), MIN_RANGE_COLUMNS
    filled = np.eye(4, dtype=bool)[rng.integers(0, 4, 40)]
    filled[3], filled[5, [0, 2]] = False, True  # a row without entries, and one with two ranges
    matrix = (rng.normal(size=(40, 4, width)) * filled[:, :, None]).reshape(40, -1).astype(dtype)
    rows, plain = Rows(sparse.csr_array(matrix)), Rows(matrix.astype(np.float64))
    now, next = rng.integers(0, 40, (2, 90))
    steps = now, next, *rng.random((2, 90))
    visits = np.bincount(now, minlength=40).astype(float)
    assert rows.ranges is not None
    with patch.object(moments, "cross_sparse", side_effect=AssertionError):
        found = count_product(rows, rows, *steps)[0], second_moment(rows, visits)
    for product, expected in zip(
        found, (count_product(plain, plain, *steps)[0], second_moment(plain, visits)), strict=True
    ):
        np.testing.assert_allclose(product, expected, rtol=0, atol=1e-12 * abs(expected).max())


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("size", [0, 1, moments.TRANSPOSED_COLUMNS, 2 * moments.TRANSPOSED_COLUMNS + 3])
def test_the_upper_triangle_is_that_of_a_symmetric_matrix(size, order):
    whole = np.random.default_rng(0).normal(size=(size, size))
    whole += whole.T
    found = np.array(np.tril(whole), order=order)
    fill_upper(found)
    np.testing.assert_array_equal(found, whole)
