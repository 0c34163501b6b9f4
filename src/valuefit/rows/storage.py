"""Feature rows, dense or CSR, behind one interface: Phi x, Phi' a, and the rows as kernel arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import scipy.sparse as sparse

from valuefit.rows.compile import worth_compiling
from valuefit.rows.kernels import axpy, axpy2, compiled, rows_dot, rows_dot2, rows_gram_dot, rows_tdot, rows_tdot2
from valuefit.threads import one_blas_thread, parts_of, share_out
from valuefit.typing import Array

# The largest feature or reward must lie between 1 / MAX_MAGNITUDE and MAX_MAGNITUDE: products of eight stay in float64.
MAX_MAGNITUDE = 1e32
SHORT_ROW_BYTES = 256  # up to it, summing four rows at a time is two to four times faster; above 400 bytes it is slower
MIN_RANGE_COLUMNS = 16  # from it, dense products of ranges of columns take less time than adding products of entries
TEMPORARY_BYTES = 8 << 20  # of temporary arrays: large enough for BLAS, small enough to stay in cache

# Tile-coded rows as a matrix (m, active) of columns, and what is wrong with one.
NO_COLUMN = -1  # in it: a place without an entry
NOT_AN_INDEX = (
    "With columns= the features are the numbers of columns, a matrix of integers; they are {kind} of shape {shape}."
)
NO_SUCH_COLUMN = (
    "The features name column {column} in row {row}, but there are {columns} columns: numbers run from 0 to {last}, "
    "and -1 stands for none."
)


def require_range(name: str, peak: float, limit: float = MAX_MAGNITUDE) -> None:
    """Raise ValueError if products of such numbers would overflow or underflow, which would make the gap wrong."""
    if peak > limit or 0 < peak < 1 / limit:
        raise ValueError(f"{name} reach {peak:.0e}: their products leave the range of float64. Rescale them.")


def dense(rows: Any) -> Array:
    """Rows, dense or sparse, as an array of float64."""
    return np.asarray(rows.toarray() if sparse.issparse(rows) else rows, dtype=np.float64)


def small_rows(rows: Any) -> Any:
    """Feature rows of observations that are valued; raises ValueError if products with them could overflow."""
    peak = float(abs(rows).max()) if min(rows.shape) else 0.0
    require_range("Features of the observations", max(peak, 1.0))  # small ones do no harm
    return rows


class RowProducts(Protocol):
    """Products of rows that have a copy elsewhere: arrays in, arrays out; see `Rows` for their meaning."""

    def dot(self, X: Array) -> Array:
        """Phi X for X (d,) or (d, columns)."""

    def tdot(self, A: Array) -> Array:
        """Phi' A for A (m,) or (m, columns)."""

    def group_sums(self, index: Array, weights: Array, group: Array, groups: int) -> Array: ...

    def group_dots(self, index: Array, group: Array, X: Array) -> Array: ...


class ColumnRanges(NamedTuple):
    """Sparse rows whose entries fill ranges of equally many columns, like those of state features and an action.

    Row i has the ranges starts[i] <= e < starts[i + 1]: `values[e]` in the columns of range number[e].
    """

    starts: Array
    number: Array
    values: Array

    def entries_of(self, rows: Array) -> tuple[Array, Array]:
        """The ranges of these rows, one row after the other, and the position in `rows` that each belongs to."""
        counts = np.diff(self.starts)[rows]
        position = np.repeat(np.arange(len(rows)), counts)
        return np.arange(len(position)) + (self.starts[rows] - np.cumsum(counts) + counts)[position], position


class Rows:
    """Feature rows (m, d), dense or CSR, in float64 or float32; products are float64.

    float32 rows are converted as they are read, so products of the stored numbers have float64 precision.
    on_device: a copy of the rows on a device, while there is one: products over all rows are then computed there.
    """

    on_device: RowProducts | None = None

    def __init__(self, matrix: Any, name: str = "features", *, limit: float = MAX_MAGNITUDE) -> None:
        if sparse.issparse(matrix):
            matrix = sparse.csr_array(matrix)
            if not matrix.has_canonical_format:
                matrix = matrix.copy()  # so that the caller's matrix is not changed
                matrix.sum_duplicates()
            values = matrix.data
        else:
            matrix = values = np.asarray(matrix)
        if values.dtype.hasobject or values.dtype.kind not in "biuf":
            raise ValueError(f"{name} have dtype {values.dtype}, which is not numeric. Convert them to floats.")
        if matrix.ndim != 2 or matrix.shape[1] == 0:
            raise ValueError(f"{name} must be a matrix, one row per observation; the shape is {matrix.shape}.")
        dtype = np.float32 if values.dtype == np.float32 else np.float64
        self.sparse = sparse.issparse(matrix)
        if self.sparse:
            matrix = sparse.csr_array(
                (values.astype(dtype, copy=False), matrix.indices.astype(np.int32), matrix.indptr.astype(np.int64)),
                shape=matrix.shape,
            )
        else:
            matrix = np.ascontiguousarray(matrix, dtype=dtype)
        self.matrix = matrix
        self.shape: tuple[int, int] = matrix.shape
        self.dtype = np.dtype(dtype)
        self._check_range(name, limit)

    def _check_range(self, name: str, limit: float) -> None:
        # peak^2 <= sum of squares <= count * peak^2, so one pass is enough for most matrices
        values = self.matrix.data if self.sparse else self.matrix.reshape(-1)
        ends = np.linspace(0, values.size, parts_of(values.nbytes) + 1).astype(np.int64)
        squares = np.empty(len(ends) - 1)

        def add(part: int) -> None:
            piece = values[ends[part] : ends[part + 1]]
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # of this thread
                squares[part] = piece @ piece

        with one_blas_thread():
            share_out(add, len(squares))
        self.squared_norm = float(squares.sum())  # of all entries, each part in the dtype of rows
        if values.size / limit**2 <= self.squared_norm <= limit**2:
            return
        peak = 0.0
        for start, block in self.blocks():
            values = block.data if self.sparse else block
            if values.size:
                peak = max(peak, float(values.max()), -float(values.min()))
            if not np.isfinite(values).all():
                if self.sparse:
                    entry = int(np.flatnonzero(~np.isfinite(values))[0])
                    where = int(np.searchsorted(block.indptr, entry, side="right")) - 1
                else:
                    where = start + int(np.flatnonzero(~np.isfinite(block).all(axis=1))[0])
                raise ValueError(
                    f"{name} are NaN or infinite in row {where}. Check the observation of that row and the "
                    "feature transformer."
                )
        require_range(name, peak, limit)

    def blocks(self) -> Iterator[tuple[int, Any]]:
        """(first row, block of rows) in storage order; blocks fit in cache."""
        m, d = self.shape
        size = max(1, TEMPORARY_BYTES // (8 * d)) if not self.sparse else m
        for start in range(0, m, max(size, 1)):
            yield start, self.matrix[start : start + size]

    def take(self, index: Array) -> Any:
        """These rows, in float64."""
        chosen = self.matrix[index]
        return chosen.astype(np.float64, copy=False)

    def group_sums(self, index: Array, weights: Array, group: Array, groups: int) -> Array:
        """The sum of the rows `index` (m,) times `weights` (m,) in each group, (groups, d); `group` (m,) from 0."""
        if self.on_device is not None:
            return self.on_device.group_sums(index, weights, group, groups)
        return dense(sparse.csr_array((weights, (group, index)), shape=(groups, self.shape[0])) @ self.matrix)

    def dot(self, x: Array) -> Array:
        """Phi x."""
        if self.on_device is not None:
            return self.on_device.dot(x)
        if not worth_compiling(self.stored):
            return np.asarray(self.matrix @ x)
        p = np.empty(self.shape[0])
        self._in_parts(lambda rows, _, here: rows_dot(rows, x, p[here]))
        return p

    def dot2(self, x: Array, y: Array) -> tuple[Array, Array]:
        """Phi x and Phi y, reading the rows once."""
        if self.on_device is not None:
            p, q = self.on_device.dot(np.column_stack([x, y])).T
            return np.ascontiguousarray(p), np.ascontiguousarray(q)
        if not worth_compiling(self.stored):
            return self.dot(x), self.dot(y)
        p, q = np.empty(self.shape[0]), np.empty(self.shape[0])
        self._in_parts(lambda rows, _, here: rows_dot2(rows, x, y, p[here], q[here]))
        return p, q

    def matmul(self, X: Array) -> Array:
        """Phi X for a matrix X, (m, columns); up to four columns by twos, which is faster than a BLAS product."""
        if self.on_device is not None:
            return self.on_device.dot(X)
        columns = X.shape[1]
        if columns > 4:
            blocks = [block @ X for _, block in self.blocks()]
            return np.concatenate(blocks) if blocks else np.empty((0, columns))
        pairs = [self.dot2(*map(np.ascontiguousarray, X[:, i : i + 2].T)) for i in range(0, columns - 1, 2)]
        products = [product for pair in pairs for product in pair]
        if columns % 2:
            products.append(self.dot(np.ascontiguousarray(X[:, -1])))
        return np.column_stack(products) if products else np.empty((self.shape[0], 0))

    def tdot(self, a: Array) -> Array:
        """Phi' a."""
        if self.on_device is not None:
            return self.on_device.tdot(a)
        if not worth_compiling(self.stored):
            return np.asarray(self.matrix.T @ a)
        add = paired_tdot if self.short or (self.dtype == np.float64 and not self.sparse) else rows_tdot
        out = np.zeros((len(self._parts), self.shape[1]))
        self._in_parts(lambda rows, part, here: add(rows, a[here], out[part]))
        return out.sum(axis=0)

    def tdot2(self, a: Array, c: Array) -> tuple[Array, Array]:
        """Phi' a and Phi' c, reading the rows once."""
        if self.on_device is not None:
            of_a, of_c = self.on_device.tdot(np.column_stack([a, c])).T
            return of_a, of_c
        if not worth_compiling(self.stored):
            return self.tdot(a), self.tdot(c)
        add = short_tdot2 if self.short else rows_tdot2
        out = np.zeros((2, len(self._parts), self.shape[1]))
        self._in_parts(lambda rows, part, here: add(rows, a[here], c[here], *out[:, part]))
        of_a, of_c = out.sum(axis=1)
        return of_a, of_c

    def gram_dot(self, weights: Array, x: Array) -> Array:
        """Phi' diag(weights) Phi x, reading each row once, and rows without a weight not at all."""
        if self.on_device is not None or self.short or not worth_compiling(self.stored):
            return self.tdot(weights * self.dot(x))
        out = np.zeros((len(self._parts), self.shape[1]))
        self._in_parts(lambda rows, part, here: rows_gram_dot(rows, weights[here], x, out[part]))
        return np.asarray(out.sum(axis=0))

    @cached_property
    def _parts(self) -> list[slice]:
        """Consecutive rows for each task; few parts, so that adding partial sums is cheap next to reading the rows."""
        m, width = self.shape
        most = min(parts_of(self.stored * (self.dtype.itemsize + 4 * self.sparse)), max(1, self.stored // (4 * width)))
        ends = np.linspace(0, m, most + 1).astype(np.int64)
        return [slice(int(start), int(end)) for start, end in pairwise(ends)]

    def _in_parts(self, work: Callable[[Any, int, slice], Any]) -> None:
        """Call work(rows as kernel argument, number of the part, slice of the rows) for every part, on all threads."""

        def one(part: int) -> None:
            here = self._parts[part]
            if self.sparse:
                rows = self.matrix.data, self.matrix.indices, self.matrix.indptr[here.start : here.stop + 1]
                work(rows, part, here)
            else:
                work(self.matrix[here], part, here)

        share_out(one, len(self._parts))

    def squared_norms(self) -> Array:
        """|row|^2 of every row."""
        if self.sparse:
            return np.asarray(self._squares().sum(axis=1)).ravel()
        out = np.empty(self.shape[0])
        for start, block in self.blocks():
            out[start : start + len(block)] = np.einsum("ij,ij->i", block, block, dtype=np.float64)
        return out

    def _squares(self) -> Any:
        """Squared entries of sparse rows, in float64 because squares of float32 can overflow."""
        values = self.matrix.data.astype(np.float64) ** 2
        return sparse.csr_array((values, self.matrix.indices, self.matrix.indptr), shape=self.shape)

    def column_squares(self, weights: Array) -> Array:
        """sum over rows of weight * row^2, for every column."""
        if self.sparse:
            return np.asarray(self._squares().T @ weights).ravel()
        out = np.zeros(self.shape[1])
        for start, block in self.blocks():
            out += weights[start : start + len(block)] @ block.astype(np.float64) ** 2
        return out

    def used_columns(self, rows: Array) -> Array:
        """For every column, whether any of these rows (a mask) is nonzero there."""
        if self.sparse:
            used = np.zeros(self.shape[1], bool)
            chosen = self.matrix[np.flatnonzero(rows)]
            used[chosen.indices[chosen.data != 0]] = True
            return used
        used = np.zeros(self.shape[1], bool)
        start, size = 0, 64  # a few rows usually suffice to find all columns used
        while start < self.shape[0] and not used.all():
            block = self.matrix[start : start + size]
            used |= (block[rows[start : start + size]] != 0).any(axis=0)
            start, size = start + size, min(2 * size, max(64, TEMPORARY_BYTES // (8 * self.shape[1])))
        return used

    def without(self, columns: Array) -> Rows:
        """A copy with these columns (a mask) set to zero; self if they are zero already."""
        if not columns.any() or not (self.used_columns(np.ones(self.shape[0], bool)) & columns).any():
            return self
        if self.sparse:
            kept = sparse.diags_array((~columns).astype(self.dtype)).tocsr()
            return Rows(self.matrix @ kept)
        return Rows(self.matrix * (~columns).astype(self.dtype))

    @cached_property
    def ranges(self) -> ColumnRanges | None:
        """The entries as ranges of columns; None where rows are dense, their columns scattered, or ranges short."""
        if not self.sparse:
            return None
        values, columns, starts = self.matrix.data, self.matrix.indices, self.matrix.indptr
        width = int(np.gcd.reduce(np.diff(starts)))
        if width < MIN_RANGE_COLUMNS or self.shape[1] % width:
            return None
        first = columns[::width]
        if (first % width).any() or (columns[width - 1 :: width] != first + width - 1).any():
            return None
        return ColumnRanges(starts // width, first // width, values.reshape(-1, width))

    @property
    def short(self) -> bool:
        """Whether rows are dense and so short that summing them one by one takes longer than reading them."""
        return not self.sparse and self.shape[1] * self.dtype.itemsize <= SHORT_ROW_BYTES

    @property
    def kernel(self) -> Any:
        """The rows as argument of kernels: a 2-d array, or (data, indices, indptr)."""
        if self.sparse:
            return self.matrix.data, self.matrix.indices, self.matrix.indptr
        return self.matrix

    @property
    def stored(self) -> int:
        """Numbers read in one pass over all rows."""
        return int(self.matrix.nnz) if self.sparse else self.shape[0] * self.shape[1]


@compiled
def paired_tdot(rows: Any, a: Any, x: Any) -> Any:
    """`rows_tdot`, two dense rows at a time: up to twice as fast, but for long float32 rows."""
    end = a.shape[0] - a.shape[0] % 2
    for i in range(0, end, 2):
        first, second, a0, a1 = rows[i], rows[i + 1], a[i], a[i + 1]
        if a0 != 0.0 or a1 != 0.0:
            for e in range(x.shape[0]):
                x[e] += a0 * first[e] + a1 * second[e]
    if end < a.shape[0]:
        axpy(rows, end, a[end], x)
    return x


@compiled
def short_tdot2(rows: Any, a: Any, c: Any, x: Any, y: Any) -> Any:
    """`rows_tdot2`, four dense rows at a time."""
    end = a.shape[0] - a.shape[0] % 4
    for i in range(0, end, 4):
        first, second, third, fourth = rows[i], rows[i + 1], rows[i + 2], rows[i + 3]
        a0, a1, a2, a3 = a[i], a[i + 1], a[i + 2], a[i + 3]
        c0, c1, c2, c3 = c[i], c[i + 1], c[i + 2], c[i + 3]
        for e in range(x.shape[0]):
            x[e] += a0 * first[e] + a1 * second[e] + a2 * third[e] + a3 * fourth[e]
            y[e] += c0 * first[e] + c1 * second[e] + c2 * third[e] + c3 * fourth[e]
    for i in range(end, a.shape[0]):
        axpy2(rows, i, a[i], x, c[i], y)
    return x, y
