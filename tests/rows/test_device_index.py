"""Tile-coded rows on a device: every product equals that of the dense matrix, to the same bits in every run."""

import numpy as np
import pytest
import scipy.sparse as sparse
import torch

from valuefit.rows import device
from valuefit.rows.device import SegmentSums, add_at
from valuefit.rows.device_index import csr_rows, index_rows

COLUMNS = 9
INDICES = {
    "tiles": np.random.default_rng(0).integers(0, 3, (50, 3)) + 3 * np.arange(3),
    "hashed": np.random.default_rng(1).integers(0, COLUMNS, (50, 4)),  # with repeated columns
    "missing": np.random.default_rng(2).integers(-1, COLUMNS, (50, 3)),
    "one-hot": np.random.default_rng(3).integers(0, COLUMNS, (50, 1)),
}


def matrix_of(index):
    dense = np.zeros((len(index), COLUMNS))
    for row, columns in enumerate(index):
        for column in columns[columns >= 0]:
            dense[row, column] += 1
    return dense


@pytest.mark.parametrize("kind", INDICES)
def test_products_equal_those_of_the_dense_matrix(kind):
    dense, rng = matrix_of(INDICES[kind]), np.random.default_rng(4)
    X, A, groups = rng.standard_normal((COLUMNS, 2)), rng.standard_normal((50, 2)), rng.integers(0, 6, 30)
    place, weights, of_group = rng.integers(0, 50, 30), rng.standard_normal(30), rng.standard_normal((6, COLUMNS))
    expected_sums = np.zeros((6, COLUMNS))
    np.add.at(expected_sums, groups, weights[:, None] * dense[place])
    used = rng.random(50) < 0.1
    x, a, at, w, g, rows_used = map(torch.from_numpy, (X, A, place, weights, groups, used))
    from_index = index_rows(torch.from_numpy(INDICES[kind]), COLUMNS)
    for rows in (from_index, csr_rows(sparse.csr_array(dense))):
        assert rows.shape == (50, COLUMNS)
        for found, expected in [
            (rows.dot(x), dense @ X), (rows.dot(x[:, 0]), dense @ X[:, 0]), (rows.tdot(a), dense.T @ A),
            (rows.tdot(a[:, 1]), dense.T @ A[:, 1]), (rows.take(at), dense[place]), (rows.span(7, 9), dense[7:9]),
            (rows.squared_norms(), (dense**2).sum(axis=1)), (rows.column_squares(a[:, 0]), A[:, 0] @ dense**2),
            (rows.group_sums(at, w, g, 6), expected_sums), (rows.used_columns(rows_used), dense[used].any(axis=0)),
            (rows.group_dots(at, g, torch.from_numpy(of_group)), (dense[place] * of_group[groups]).sum(axis=1)),
            (rows.without(torch.arange(COLUMNS) == 2).span(0, 50), dense * (np.arange(COLUMNS) != 2)),
        ]:  # fmt: skip
            np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-13)
        np.testing.assert_array_equal(rows.matrix().toarray(), dense)
        assert torch.equal(rows.tdot(a), rows.tdot(a))


def test_long_segments_are_added_in_pieces(monkeypatch):
    monkeypatch.setattr(device, "MAX_SEGMENT", 4)
    counts = np.array([0, 3, 4, 0, 9, 1, 0])
    values = np.random.default_rng(0).standard_normal((17, 2))
    expected = [part.sum(axis=0) for part in np.split(values, np.cumsum(counts)[:-1])]
    found = SegmentSums(torch.from_numpy(counts))
    np.testing.assert_allclose(found(torch.from_numpy(values)).numpy(), expected, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(
        found(torch.from_numpy(values[:, 0].copy())).numpy(), np.array(expected)[:, 0], rtol=1e-13
    )


def test_values_are_added_where_places_repeat():
    out = torch.ones(5, dtype=torch.float64)
    add_at(out, torch.tensor([[4, 0], [4, 2]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64))
    assert out.tolist() == [3.0, 1.0, 5.0, 1.0, 5.0]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (torch.tensor([[0, 9]]), "name column 9 in row 0, but there are 9 columns: numbers run from 0 to 8"),
        (torch.tensor([[0], [-2]]), "name column -2 in row 1"),
        (torch.tensor([[0.5]]), "a matrix of integers; they are torch.float32 of shape \\(1, 1\\)"),
        (torch.tensor([0, 1]), "a matrix of integers; they are torch.int64 of shape \\(2,\\)"),
    ],
)
def test_an_index_that_cannot_be_used_is_refused(index, message):
    with pytest.raises(ValueError, match=message):
        index_rows(index, COLUMNS)


def test_rows_with_very_unequal_numbers_of_entries_are_refused():
    dense = np.eye(40)
    dense[0] = 1.0
    with pytest.raises(ValueError, match=r"these have 1\.98 on average and up to 40\. Leave out"):
        csr_rows(sparse.csr_array(dense))
