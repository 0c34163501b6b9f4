"""Column singletons: columns of sparse rows that one row uses, eliminated with that row from sum weight * phi phi'."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from valuefit.linalg.cholesky import CLEAR_PIVOT
from valuefit.rows.kernels import compiled
from valuefit.rows.storage import Rows
from valuefit.typing import Array


@dataclass(frozen=True)
class Singletons:
    """The exact elimination of columns that a single row uses, one after another.

    Where row i alone uses column j, the Schur complement of entry (j, j) of S = sum_i weight_i phi_i phi_i' is S
    without row i: the elimination creates no entries, deletes some, and may leave further columns with one row
    or none. Columns without a row depend on the eliminated ones. SuiteSparseQR begins like this (Davis 2011).

    columns: the eliminated ones, in order. rows: the rows (CSR) that were eliminated with them, and weights theirs.
    leads: the entry of each in its column. remaining: for every row, whether it is left.
    """

    columns: Array
    rows: Any
    weights: Array
    leads: Array
    remaining: Array

    @property
    def size(self) -> int:
        """Numbers stored."""
        return int(self.rows.nnz)

    def __matmul__(self, x: Array) -> Array:
        """The product with the sum over the eliminated rows alone."""
        return np.asarray(self.rows.T @ (self.weights * (self.rows @ x)))

    def forward(self, r: Array) -> tuple[Array, Array]:
        """weight * phi'x of the eliminated rows for a solution x of S x = r, and the right side of the rest."""
        left, products = r.copy(), np.empty(len(self.columns))
        forward_rows(*self._kernel, self.columns, self.leads, left, products)
        return products, left

    def backward(self, products: Array, x: Array) -> Array:
        """The solution, given what `forward` returned and the solution x of the rest, zero in eliminated columns."""
        out = x.copy()
        backward_rows(*self._kernel, self.columns, self.leads, products / self.weights, out)
        return out

    @property
    def _kernel(self) -> tuple[Array, Array, Array]:
        return self.rows.data, self.rows.indices, self.rows.indptr


def column_singletons(rows: Rows, weights: Array) -> Singletons:
    """Those of sparse rows, leaving out columns so short that rounding could hide whether they are zero."""
    squares = rows.column_squares(weights)
    smallest = CLEAR_PIVOT * float(squares.max(initial=0.0))
    columns, of_row = np.empty(rows.shape[1], np.int64), np.empty(rows.shape[1], np.int64)
    leads = np.empty(rows.shape[1])
    count = find_singletons(*rows.kernel, weights, smallest, columns, of_row, leads)
    of_row = of_row[:count]
    remaining = np.ones(rows.shape[0], bool)
    remaining[of_row] = False
    return Singletons(
        columns[:count].copy(), rows.matrix[of_row].tocsr(), weights[of_row], leads[:count].copy(), remaining
    )


@compiled
def find_singletons(data, indices, indptr, weights, smallest, columns, rows, leads):
    """Eliminate columns in which one row of positive weight is left: their number, and what they are in order.

    The sum of the numbers of the rows left in a column is the row itself once only one is left.
    """
    counts, sums = np.zeros(len(columns), np.int64), np.zeros(len(columns), np.int64)
    for i in range(len(indptr) - 1):
        if weights[i] > 0:
            for e in range(indptr[i], indptr[i + 1]):
                if data[e] != 0:
                    counts[indices[e]] += 1
                    sums[indices[e]] += i
    waiting = np.empty(len(columns), np.int64)
    end = found = done = 0
    for j in range(len(columns)):
        if counts[j] == 1:
            waiting[end] = j
            end += 1
    while done < end:
        j = waiting[done]
        done += 1
        if counts[j] != 1:
            continue
        i, lead = sums[j], 0.0
        for e in range(indptr[i], indptr[i + 1]):
            if indices[e] == j:
                lead = float(data[e])
        if not weights[i] * lead * lead > smallest:
            continue
        columns[found], rows[found], leads[found] = j, i, lead
        found += 1
        for e in range(indptr[i], indptr[i + 1]):
            if data[e] != 0:
                k = indices[e]
                counts[k] -= 1
                sums[k] -= i
                if counts[k] == 1:
                    waiting[end] = k
                    end += 1
    return found


@compiled
def forward_rows(data, indices, indptr, columns, leads, r, products):
    """products = those of the rows with the solution, in order; r is reduced by them, in place."""
    for p in range(len(columns)):
        x = r[columns[p]] / leads[p]
        products[p] = x
        for e in range(indptr[p], indptr[p + 1]):
            r[indices[e]] -= data[e] * x
        r[columns[p]] = 0.0


@compiled
def backward_rows(data, indices, indptr, columns, leads, values, x):
    """x in the columns such that the rows have these values, in place and in reverse order."""
    for p in range(len(columns) - 1, -1, -1):
        x[columns[p]] = 0.0
        left = values[p]
        for e in range(indptr[p], indptr[p + 1]):
            left -= data[e] * x[indices[e]]
        x[columns[p]] = left / leads[p]
