"""Rare columns: those that one or two sparse rows use, eliminated from sum weight * phi phi'."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sparse

from valuefit.linalg.cholesky import CLEAR_PIVOT
from valuefit.rows.kernels import compiled
from valuefit.rows.storage import Rows
from valuefit.tolerances import ROUNDING
from valuefit.typing import Array


@dataclass(frozen=True)
class RareColumns:
    """S = sum_i w_i phi_i phi_i' as a sum over eliminated rows plus one over other rows, without eliminated columns.

    Where row i alone uses column j, the Schur complement of entry (j, j) of S is S without row i. Where rows i and k
    use it, with entries a and c, a Givens rotation splits w_i phi_i phi_i' + w_k phi_k phi_k' into W m m' and
    (w_i w_k c^2 / W) e e', with W = w_i a^2 + w_k c^2, m = (w_i a phi_i + w_k c phi_k) / W and e = phi_i - a/c phi_k.
    Row m is eliminated with the column, and e takes the place of the two. Rows that share a rare tile share most of
    their tiles, so that e is short, and further columns are left with two rows, one or none. Columns without a row
    depend on the eliminated ones. SuiteSparseQR begins with the columns of single rows (Davis 2011).

    columns: the eliminated ones, in order. rows: the rows m (CSR), 1 in their columns, and weights theirs. rest: the
    rows that are left (CSR, sorted), with rest_weights.
    """

    columns: Array
    rows: Any
    weights: Array
    rest: Any
    rest_weights: Array

    @property
    def size(self) -> int:
        """Numbers stored, without those of the rest."""
        return int(self.rows.nnz)

    def __matmul__(self, x: Array) -> Array:
        """The product with the sum over the eliminated rows alone."""
        return np.asarray(self.rows.T @ (self.weights * (self.rows @ x)))

    def forward(self, r: Array) -> tuple[Array, Array]:
        """weight * m'x of the eliminated rows for a solution x of S x = r, and the right side of the rest."""
        left, products = r.copy(), np.empty(len(self.columns))
        forward_rows(*self._kernel, self.columns, left, products)
        return products, left

    def backward(self, products: Array, x: Array) -> Array:
        """The solution, given what `forward` returned and the solution x of the rest, zero in eliminated columns."""
        out = x.copy()
        backward_rows(*self._kernel, self.columns, products / self.weights, out)
        return out

    @property
    def _kernel(self) -> tuple[Array, Array, Array]:
        return self.rows.data, self.rows.indices, self.rows.indptr


def eliminate_rare_columns(rows: Rows, weights: Array) -> RareColumns:
    """Eliminate rare columns of sparse rows, but not those so short that rounding could hide whether they are zero."""
    squares = rows.column_squares(weights)
    matrix = rows.matrix[weights > 0].astype(np.float64, copy=False)
    matrix.eliminate_zeros()
    eliminated = _eliminate(matrix, weights[weights > 0], squares, pairs=True)
    left = (eliminated.rest**2).T @ eliminated.rest_weights
    if ((left > 0) & (left < CLEAR_PIVOT * squares)).any():  # differences cancelled so far that rounding matters
        eliminated = _eliminate(matrix, weights[weights > 0], squares, pairs=False)
    return eliminated


def _eliminate(matrix: Any, weights: Array, squares: Array, *, pairs: bool) -> RareColumns:
    """By pairs of rows too, or by single rows alone."""
    n, d = matrix.shape
    smallest = CLEAR_PIVOT * float(squares.max(initial=0.0))
    # an empty row, so that a single row is half of a pair too, then all rows, and room for a difference for each column
    weights = np.concatenate([[0.0], weights, np.zeros(d)])
    starts = np.concatenate([[0], matrix.indptr, np.zeros(d, np.int64)])
    columns, pivots = np.empty(d, np.int64), np.empty(d)
    gone, indices, data, last = find_rare(
        starts, matrix.indices, matrix.data, weights, n + 1, smallest, pairs, columns, pivots
    )
    count = len(gone[2]) - 1
    rest = sparse.csr_array((data, indices, starts[: last + 1]), shape=(last, d))[weights[:last] > 0]
    rest.sort_indices()
    return RareColumns(
        columns[:count].copy(), sparse.csr_array(gone, shape=(count, d)), pivots[:count].copy(), rest,
        weights[:last][weights[:last] > 0],
    )  # fmt: skip


@compiled
def find_rare(starts, indices, data, weights, last, smallest, pairs, columns, pivots):
    """Eliminate columns with one row, or two if `pairs`: the rows eliminated (CSR), all rows, and how many these are.

    A difference of rows is appended to the others, and weights of rows that are gone become 0. The products of two
    entries of a row, which S sums, never become more.
    """
    d = len(columns)
    uses = np.zeros((d, 3), np.int64)  # of the rows left in a column: their number, sum and sum of squares
    for i in range(1, last):
        count_row(uses, indices[starts[i] : starts[i + 1]], i, 1)
    single = [j for j in range(d) if uses[j, 0] == 1]
    double = [j for j in range(d) if uses[j, 0] == 2]
    singles = doubles = count = room = 0
    gone_starts, gone_indices, gone_data = np.zeros(d + 1, np.int64), np.empty(1 << 10, np.int32), np.empty(1 << 10)
    values = np.zeros(d)
    while singles < len(single) or (pairs and doubles < len(double)):
        if singles < len(single):
            j = single[singles]
            singles += 1
        else:
            j = double[doubles]
            doubles += 1
        if not (uses[j, 0] == 1 or (pairs and uses[j, 0] == 2)):
            continue
        i, k = last_rows(uses, j)
        a = entry(indices[starts[i] : starts[i + 1]], data[starts[i] : starts[i + 1]], j)
        c = entry(indices[starts[k] : starts[k + 1]], data[starts[k] : starts[k + 1]], j)
        if abs(a) > abs(c):
            i, k, a, c = k, i, c, a
        pivot = weights[i] * a * a + weights[k] * c * c
        if not pivot > smallest:
            continue
        of_i, of_k = starts[i + 1] - starts[i], starts[k + 1] - starts[k]
        indices, data = grown(indices, starts[last] + of_i + of_k), grown(data, starts[last] + of_i + of_k)
        gone_indices = grown(gone_indices, gone_starts[count] + of_i + of_k)
        gone_data = grown(gone_data, gone_starts[count] + of_i + of_k)
        rows, gone = (starts, indices, data), (gone_starts, gone_indices, gone_data)
        rotate(rows, i, k, a / c, last, weights[i] * a / pivot, weights[k] * c / pivot, gone, count, values)
        made = starts[last + 1] - starts[last]
        if room + of_i**2 + of_k**2 < made**2:
            continue
        room += of_i**2 + of_k**2 - made**2
        columns[count], pivots[count] = j, pivot
        count += 1
        if made:
            weights[last] = weights[i] * weights[k] * c * c / pivot
            count_row(uses, indices[starts[last] : starts[last + 1]], last, 1)
            last += 1
        for row in (i, k):
            weights[row] = 0.0
            count_row(uses, indices[starts[row] : starts[row + 1]], row, -1)
        for row in (i, k):
            for e in range(starts[row], starts[row + 1]):
                if uses[indices[e], 0] == 1:
                    single.append(indices[e])
                elif uses[indices[e], 0] == 2:
                    double.append(indices[e])
    end = gone_starts[count]
    gone = gone_data[:end].copy(), gone_indices[:end].copy(), gone_starts[: count + 1].copy()
    return gone, indices[: starts[last]], data[: starts[last]], last


@compiled
def count_row(uses, columns, row, sign):
    """Add a row to, or take it from, the counts of its columns."""
    for e in range(len(columns)):
        uses[columns[e], 0] += sign
        uses[columns[e], 1] += sign * row
        uses[columns[e], 2] += sign * row * row


@compiled
def last_rows(uses, column):
    """The two rows left in a column, the first of them the empty row 0 if there is one, by their sum and squares."""
    total, squares = uses[column, 1], uses[column, 2]
    larger = (total + np.int64(round(np.sqrt(float(2 * squares - total**2))))) // 2
    return total - larger, larger


@compiled
def entry(columns, values, column):
    """The entry of a row in this column."""
    for e in range(len(columns)):
        if columns[e] == column:
            return values[e]
    return 0.0


@compiled
def grown(array, size):
    """The array, or a copy with room for more than `size` entries."""
    if size <= len(array):
        return array
    larger = np.empty(size + len(array) // 4, array.dtype)
    larger[: len(array)] = array
    return larger


@compiled
def rotate(rows, i, k, factor, last, part_i, part_k, gone, count, values):
    """Row `last` of `rows` = phi_i - factor * phi_k, and row `count` of `gone` = part_i * phi_i + part_k * phi_k.

    values: zeros, one for each column; they are zeros again afterwards.
    """
    starts, indices, data = rows
    gone_starts, gone_indices, gone_data = gone
    end, gone_end = starts[last], gone_starts[count]
    for e in range(starts[k], starts[k + 1]):
        values[indices[e]] = data[e]
    for e in range(starts[i], starts[i + 1]):
        y = values[indices[e]]
        values[indices[e]] = 0.0
        gone_indices[gone_end], gone_data[gone_end] = indices[e], part_i * data[e] + part_k * y
        gone_end += 1
        left = data[e] - factor * y
        if abs(left) > ROUNDING * (abs(data[e]) + abs(factor * y)):
            indices[end], data[end] = indices[e], left
            end += 1
    for e in range(starts[k], starts[k + 1]):
        y = values[indices[e]]
        if y != 0:
            values[indices[e]] = 0.0
            gone_indices[gone_end], gone_data[gone_end] = indices[e], part_k * y
            gone_end += 1
            if factor != 0:
                indices[end], data[end] = indices[e], -factor * y
                end += 1
    starts[last + 1], gone_starts[count + 1] = end, gone_end


@compiled
def forward_rows(data, indices, indptr, columns, r, products):
    """products = weight times those of the rows with the solution, in order; r is reduced by them, in place."""
    for p in range(len(columns)):
        x = r[columns[p]]
        products[p] = x
        for e in range(indptr[p], indptr[p + 1]):
            r[indices[e]] -= data[e] * x
        r[columns[p]] = 0.0


@compiled
def backward_rows(data, indices, indptr, columns, values, x):
    """x in the columns such that the rows have these values, in place and in reverse order."""
    for p in range(len(columns) - 1, -1, -1):
        x[columns[p]] = 0.0
        left = values[p]
        for e in range(indptr[p], indptr[p + 1]):
            left -= data[e] * x[indices[e]]
        x[columns[p]] = left
