"""Rows on a device: products and sums equal plain loops."""

import numpy as np
import pytest
import torch

from valuefit.gpu import device_rows as device
from valuefit.gpu.device_rows import RowSums, TensorRows


def array(tensor):
    return tensor.numpy()


@pytest.mark.parametrize("index", [[0, 0, 2, 2, 2, 5], [5, 0, 2, 0, 2, 2], [3]])
def test_sums_by_row_equal_bincount(index):
    values = np.random.default_rng(1).standard_normal(len(index))
    found = RowSums(torch.tensor(index), 6)(torch.from_numpy(values))
    np.testing.assert_allclose(array(found), np.bincount(index, values, 6), rtol=1e-14)


def test_products_of_float32_rows_are_those_of_the_stored_numbers_in_float64(monkeypatch):
    monkeypatch.setattr(device, "CPU_BLOCK_BYTES", 8 * 5 * 7)  # blocks of 7 rows
    matrix = torch.randn(50, 5, generator=torch.Generator().manual_seed(0))
    rows, exact = TensorRows(matrix), matrix.double().numpy()
    x, a = np.random.default_rng(3).standard_normal(5), np.random.default_rng(4).standard_normal(50)
    np.testing.assert_allclose(array(rows.dot(torch.from_numpy(x))), exact @ x, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(array(rows.tdot(torch.from_numpy(a))), exact.T @ a, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(array(rows.column_squares(torch.from_numpy(a))), a @ exact**2, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (torch.eye(3).to_sparse(), "features are a sparse tensor, which a problem on a device does not take"),
        (torch.zeros(3), "features must be a matrix, one row per observation; the shape is \\(3,\\)"),
        (torch.zeros(3, 2, dtype=torch.complex64), "which is not numeric"),
        (torch.tensor([[1.0], [float("nan")]]), "features are NaN or infinite in row 1"),
        (torch.tensor([[1e200]], dtype=torch.float64), "leave the range of float64"),
    ],
)
def test_rows_that_cannot_be_used_are_refused(matrix, message):
    with pytest.raises(ValueError, match=message):
        TensorRows(matrix)
