"""Tile-coded rows on a device: the columns of the ones in each row, in place of a dense or sparse matrix."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sparse
import torch

from valuefit.rows.device import DeviceRows, RowSums, Tensor, add_at
from valuefit.rows.storage import NO_COLUMN, NO_SUCH_COLUMN, NOT_AN_INDEX

MAX_PADDING = 4  # times the entries of a sparse matrix that its index matrix may have


class IndexRows(DeviceRows):
    """Rows (m, columns) with few entries each: `index` (m, active) holds their columns, `values` what stands there.

    values: None for ones everywhere. Where a column is named twice in a row, its ones are added up. Products gather
    and add in a fixed order, so equal runs give equal bits; blocks of rows are dense.
    """

    sparse = True

    def __init__(self, index: Tensor, columns: int, values: Tensor | None = None) -> None:
        """From a checked index; see `index_rows`."""
        self.index, self.values = index, values
        self.shape = len(index), columns
        self.device, self.dtype = index.device, np.dtype(np.float64)

    def to(self, device: Any) -> IndexRows:
        """The same rows on this device."""
        values = None if self.values is None else self.values.to(device)
        return IndexRows(self.index.to(device), self.shape[1], values)

    def matrix(self) -> Any:
        """The rows as a SciPy CSR matrix."""
        starts = np.arange(0, self.index.numel() + 1, self.row_numbers)
        values = np.ones(self.index.numel()) if self.values is None else self.values.cpu().numpy().ravel()
        return sparse.csr_array((values, self.index.cpu().numpy().ravel(), starts), shape=self.shape)

    @property
    def row_numbers(self) -> int:
        return int(self.index.shape[1])

    @property
    def row_bytes(self) -> int:
        return self.row_numbers * (8 if self.values is None else 16)

    def entries(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Columns and values, (rows, active), of these rows."""
        columns = self.index[index]
        return columns, torch.ones_like(columns, dtype=torch.float64) if self.values is None else self.values[index]

    def span(self, start: int, stop: int) -> Tensor:
        return self.take(torch.arange(start, stop, device=self.device))

    def take(self, index: Tensor) -> Tensor:
        out = torch.zeros((len(index), self.shape[1]), dtype=torch.float64, device=self.device)
        return out.scatter_add_(1, *self.entries(index))  # sums of ones are exact in any order

    def dot(self, X: Tensor) -> Tensor:
        gathered = X[self.index]  # (m, active) or (m, active, columns of X)
        if self.values is not None:
            gathered = gathered * (self.values if X.ndim == 1 else self.values[:, :, None])
        return gathered.sum(dim=1)

    def tdot(self, A: Tensor) -> Tensor:
        rows, values = self._by_column
        weighted = A[rows]
        if values is not None:
            weighted = weighted * (values if A.ndim == 1 else values[:, None])
        return self._column_sums.in_order(weighted)

    @cached_property
    def _column_sums(self) -> RowSums:
        return RowSums(self.index.reshape(-1), self.shape[1])

    @cached_property
    def _by_column(self) -> tuple[Tensor, Tensor | None]:
        """The row and the value (None for ones) of every entry, in the order of the columns."""
        order = self._column_sums.order
        order = torch.arange(self.index.numel(), device=self.device) if order is None else order
        return order // self.row_numbers, None if self.values is None else self.values.reshape(-1)[order]

    def squared_norms(self) -> Tensor:
        return self._squares.dot(torch.ones(self.shape[1], dtype=torch.float64, device=self.device))

    def column_squares(self, weights: Tensor) -> Tensor:
        return self._squares.tdot(weights)

    @property
    def _squares(self) -> IndexRows:
        """The rows with squared entries."""
        return self if self.values is None else IndexRows(self.index, self.shape[1], self.values.square())

    def group_sums(self, index: Tensor, weights: Tensor, group: Tensor, groups: int) -> Tensor:
        columns, values = self.entries(index)
        sums = torch.zeros(groups * self.shape[1], dtype=torch.float64, device=self.device)
        add_at(sums, group[:, None] * self.shape[1] + columns, weights[:, None] * values)
        return sums.reshape(groups, -1)

    def group_dots(self, index: Tensor, group: Tensor, X: Tensor) -> Tensor:
        columns, values = self.entries(index)
        return (X[group[:, None], columns] * values).sum(dim=1)

    def used_columns(self, rows: Tensor) -> Tensor:
        """For every column, whether any of these rows (a mask) has an entry there."""
        columns, values = self.entries(rows.nonzero()[:, 0])
        used = torch.zeros(self.shape[1], dtype=torch.bool, device=self.device)
        used[columns[values != 0]] = True
        return used

    def without(self, columns: Tensor) -> IndexRows:
        """A copy with these columns (a mask) set to zero; self if they have no entries."""
        emptied = columns[self.index]
        if not bool(emptied.any()):
            return self
        values = torch.ones_like(self.index, dtype=torch.float64) if self.values is None else self.values
        return IndexRows(self.index, self.shape[1], values.masked_fill(emptied, 0.0))


def index_rows(index: Any, columns: int) -> IndexRows:
    """Tile-coded rows from a matrix (m, active) of column numbers; -1 stands for no entry."""
    if index.ndim != 2 or index.shape[1] == 0 or index.is_floating_point() or index.is_complex():
        raise ValueError(NOT_AN_INDEX.format(kind=index.dtype, shape=tuple(index.shape)))
    index = index.detach().long()
    outside = (index < NO_COLUMN) | (index >= columns)
    if bool(outside.any()):
        row, place = outside.nonzero()[0].tolist()
        column = int(index[row, place])
        raise ValueError(NO_SUCH_COLUMN.format(column=column, row=row, columns=columns, last=columns - 1))
    index = index.sort(dim=1).values
    missing, repeated = index == NO_COLUMN, index[:, 1:] == index[:, :-1]
    if not bool(missing.any() | repeated.any()):
        return IndexRows(index, columns)
    values = (~missing).double()
    for place in range(index.shape[1] - 1, 0, -1):  # what is repeated is added to its first place
        same = index[:, place] == index[:, place - 1]
        values[:, place - 1] += same * values[:, place]
        values[:, place].masked_fill_(same, 0.0)
    return IndexRows(index.clamp(min=0), columns, values)


def csr_rows(matrix: Any) -> IndexRows:
    """Tile-coded rows in memory from a SciPy CSR matrix without repeated entries."""
    counts = np.diff(matrix.indptr)
    active = int(counts.max(initial=1))
    if active * len(counts) > MAX_PADDING * max(matrix.nnz, 1):
        raise ValueError(
            "Sparse rows on a device need about equally many entries each, as tiles have; these have "
            f"{matrix.nnz / len(counts):.3g} on average and up to {active}. Leave out the device."
        )
    index, values = np.zeros((len(counts), active), np.int64), np.zeros((len(counts), active))
    place = np.arange(active) < counts[:, None]
    index[place], values[place] = matrix.indices, matrix.data
    ones = bool((values == 1).all())
    return IndexRows(torch.from_numpy(index), matrix.shape[1], None if ones else torch.from_numpy(values))
