"""A copy of the rows of a log in shards, shuffled on disk: consecutive steps of it are random ones of the log."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from valuefit.messages import said
from valuefit.problem.problem import Problem
from valuefit.rows.draws import Draws, RowSets
from valuefit.rows.storage import dense
from valuefit.typing import Array

COPY_PASSES = 2.0  # over the log: one deals the steps out to buckets, one shuffles every bucket


@dataclass(frozen=True)
class Layout:
    """The bytes of a step in the copy: both feature rows, its trace row where there are traces, and three numbers.

    Sparse rows have `stored` numbers each, filled up with zeros.
    """

    d: int
    stored: int
    sparse: bool
    dtype: np.dtype[Any]
    trace: float

    @property
    def fields(self) -> list[tuple[int, np.dtype[Any]]]:
        """Entries and type of: values of the rows, their columns, the trace row, discount, factor of u, weight."""
        width, float64 = 2 * (self.stored if self.sparse else self.d), np.dtype(np.float64)
        columns, traces = width if self.sparse else 0, self.d if self.trace else 0
        return [(width, self.dtype), (columns, np.dtype(np.int32)), (traces, float64), (3, float64)]

    @property
    def step_bytes(self) -> int:
        """Bytes of a step."""
        return sum(count * dtype.itemsize for count, dtype in self.fields)

    def pack(self, problem: Problem, dead: Array) -> Array:
        """The steps of a part as bytes, (steps, step_bytes), with weight 1; columns `dead` are zero."""
        unused = np.zeros(self.d, bool)
        unused[dead] = True
        matrix, n = problem.phi.without(unused).matrix, problem.n
        index = np.stack([problem.now, problem.next], axis=1).ravel()
        columns: Array = np.zeros((n, 0), np.int32)
        if self.sparse:
            chosen = matrix[index]
            sizes = np.diff(chosen.indptr)
            place = np.repeat(np.arange(2 * n) * self.stored - chosen.indptr[:-1], sizes) + np.arange(chosen.nnz)
            values, columns = np.zeros(2 * n * self.stored, self.dtype), np.zeros(2 * n * self.stored, np.int32)
            values[place], columns[place] = chosen.data, chosen.indices
        else:
            values = matrix[index]
        traces = dense(problem.u.matrix) if self.trace else np.zeros((n, 0))
        factor = np.ones(n) if self.trace else problem.ratio  # rows of traces include the ratio
        numbers = np.stack([problem.discount, factor, np.ones(n)], axis=1)
        arrays = values, columns, traces, numbers
        return np.concatenate([np.ascontiguousarray(x).reshape(n, -1).view(np.uint8) for x in arrays], axis=1)

    def unpack(self, data: Array) -> tuple[RowSets, Draws, Array]:
        """The steps in these bytes as arguments of kernels, and their weights."""
        n, found, start = len(data), [], 0
        for count, dtype in self.fields:
            stop = start + count * dtype.itemsize
            found.append(np.ascontiguousarray(data[:, start:stop]).reshape(-1).view(dtype))
            start = stop
        values, columns, traces, numbers = found
        each = np.arange(n)
        discount, factor, weight = np.ascontiguousarray(numbers.reshape(n, 3).T)
        rows: Any = values.reshape(2 * n, -1)
        if self.sparse:
            rows = values, columns, np.arange(2 * n + 1) * self.stored
        u, u_row = (traces.reshape(n, self.d), each) if self.trace else (rows, 2 * each)
        return RowSets(rows, rows, u), Draws(2 * each, 2 * each + 1, discount, u_row, factor), weight


class ShuffledCopy:
    """The steps of a log in random order in a temporary file, which the system removes when it is closed.

    A step that needs small steps of the solver has several copies, of a smaller weight each. Every part is shuffled and
    dealt out evenly to buckets that fit into memory, which are shuffled in turn. So the steps of every part are spread
    over the whole file, and the file is written twice, in long runs. The order depends on the log alone.
    n, total: steps of the log, and of the copy. steps: held in memory at a time.
    """

    def __init__(self, n: int, total: int, layout: Layout, steps: int) -> None:
        self.n, self.total, self.layout = n, total, layout
        self.steps = min(total, max(1, steps))
        self._file = temporary_file(self.bytes)
        weakref.finalize(self, self._file.close)
        self._rng, self._dealt = np.random.default_rng(n), 0
        count = -(-total // self.steps)
        self._ends = np.arange(count + 1) * (total // count) + np.minimum(np.arange(count + 1), total % count)

    def deal(self, data: Array, copies: Array) -> None:
        """Deal the steps of the next part, packed by `Layout.pack`, so many copies of each, out to the buckets."""
        order = self._rng.permutation(np.repeat(np.arange(len(data)), copies))
        weight = self.total / (self.n * copies[order])
        data, buckets = data[order], len(self._ends) - 1
        data[:, -weight.itemsize :] = weight[:, None].view(np.uint8)
        for first in range(min(buckets, len(data))):
            lap, bucket = divmod(self._dealt + first, buckets)
            self._write(int(self._ends[bucket]) + lap, data[first::buckets])
        self._dealt += len(data)

    def shuffle(self) -> None:
        """Shuffle every bucket, after the last part."""
        for start, stop in pairwise(self._ends.tolist()):
            self._write(start, self._rng.permutation(self._read(start, stop)))

    @property
    def bytes(self) -> int:
        """The size of the file."""
        return self.total * self.layout.step_bytes

    def draw(self, rng: np.random.Generator, count: int) -> Iterator[tuple[RowSets, Draws, Array]]:
        """`count` consecutive steps from a random place on, in pieces that fit into memory, with their weights."""
        start = int(rng.integers(self.total))
        while count > 0:
            stop = min(start + min(count, self.steps), self.total)
            yield self.layout.unpack(self._read(start, stop))
            count, start = count - (stop - start), stop % self.total

    def _read(self, start: int, stop: int) -> Array:
        data = np.empty((stop - start, self.layout.step_bytes), np.uint8)
        view, place = data.reshape(-1).data, start * self.layout.step_bytes
        while view:
            got = os.preadv(self._file.fileno(), [view], place)
            if not got:
                raise OSError(
                    "The temporary file of shuffled rows ended early: it was changed meanwhile. Run it again."
                )
            view, place = view[got:], place + got
        return data

    def _write(self, start: int, data: Array) -> None:
        view, place = np.ascontiguousarray(data).reshape(-1).data, start * self.layout.step_bytes
        while view:
            put = os.pwrite(self._file.fileno(), view, place)
            view, place = view[put:], place + put


def array_on_disk(rows: int, columns: int) -> Array:
    """An array of zeros in a temporary file."""
    with temporary_file(8 * rows * columns) as file:
        return np.memmap(file, np.float64, "r+", shape=(rows, columns))


def temporary_file(size: int) -> Any:
    """An open file of this size, without a name, so that nothing is left when this process ends."""
    folder = tempfile.gettempdir()
    file = tempfile.TemporaryFile(prefix="valuefit-", dir=folder)  # noqa: SIM115
    try:
        os.posix_fallocate(file.fileno(), 0, size)  # a full disk is found now, not when half of it is written
    except OSError as error:
        file.close()
        raise OSError(
            f"A copy of the feature rows on disk takes {size / 2**30:.3g} GiB, which {folder} has no room for "
            f"({said(error)}). Set TMPDIR to a folder with more room, or use 'krylov', which needs no copy."
        ) from error
    return file
