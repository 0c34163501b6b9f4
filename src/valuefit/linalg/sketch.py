"""CountSketch: every row is added with a random sign to one of a few sums, near the order of rows in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from valuefit.rows.kernels import axpy, axpy_step, axpyv, compiled, prefetch_row
from valuefit.threads import PARTS, share_out
from valuefit.typing import Array

PIECE_BYTES = 96 << 10  # consecutive rows that are read one after the other
CACHE_BYTES = 256 << 10  # sums that are added to at a time, to stay in the second-level cache
PREFETCH_ROWS = 4  # rows between the one that is prefetched and the one in use


class CountSketch(NamedTuple):
    """Which of `size` sums each of `total` rows is added to, and with which sign.

    Rows are cut into pieces of `piece` rows in the order of memory, and the pieces are shuffled; remaining rows come
    last. A group of `together` sums takes an equal part of that order, lap by lap: the rows of a lap go to one sum
    each, starting from a random sum. So a sum has at most ceil(total / size) rows, each from a random place of a
    random piece, as if all rows had been shuffled; but memory is read in order and sums stay in cache.
    """

    total: int
    size: int
    piece: int
    together: int
    pieces: Array  # in the order they are read
    begins: Array  # the sum that a lap begins with, `most` laps for each group of sums
    signs: Array  # bits

    @property
    def most(self) -> int:
        """The maximum number of rows in a sum."""
        return -(-self.total // self.size)

    @property
    def groups(self) -> int:
        """The number of groups of sums."""
        return -(-self.size // self.together)

    def sums(self, group: int, stop: int) -> int:
        """The number of sums of the groups from `group` to `stop`."""
        return min(stop * self.together, self.size) - group * self.together


def count_sketch(count: int, size: int, rng: np.random.Generator, *, row_bytes: float, sum_bytes: float) -> CountSketch:
    """Assign `count` rows of `row_bytes` to `size` sums of `sum_bytes`; size is at most count."""
    together = int(np.clip(CACHE_BYTES / sum_bytes, 1, size))
    # pieces must be short next to a lap, or consecutive rows, which are alike in a log, are added to one sum
    piece = int(np.clip(PIECE_BYTES / max(row_bytes, 1.0), 1, max(1, together // 8)))
    pieces = rng.permutation(count // piece)
    laps = -(-size // together) * -(-count // size)
    begins = rng.integers(0, together, laps)
    signs = rng.integers(0, 1 << 64, -(-count // 64), dtype=np.uint64)
    return CountSketch(count, size, piece, together, pieces, begins, signs)


@compiled
def _sums_of_group(sketch: CountSketch, group: int) -> tuple[int, int, int, int]:
    """The first sum of a group, the number of its sums, and its part of the order."""
    first = group * sketch.together
    last = min(first + sketch.together, sketch.size)
    return first, last - first, sketch.total * first // sketch.size, sketch.total * last // sketch.size


@compiled
def _row_read(sketch: CountSketch, j: int) -> Any:
    """The j-th row in the order of reading."""
    whole = sketch.pieces.shape[0]
    e = j // sketch.piece
    return (sketch.pieces[e] if e < whole else whole) * sketch.piece + j % sketch.piece


@compiled
def _place(sketch: CountSketch, g: int, sums: int, since: int) -> Any:
    """The sum, within group g of `sums`, of the row read `since` rows after the group's first."""
    most = -(-sketch.total // sketch.size)
    return (since + sketch.begins[g * most + since // sums]) % sums


@compiled
def _sign(sketch: CountSketch, j: int) -> float:
    return 1.0 if (sketch.signs[j >> 6] >> np.uint64(j & 63)) & np.uint64(1) else -1.0


def sketch_rows(rows: Any, index: Array, weight: Array, sketch: CountSketch, group: int, stop: int, out: Array) -> None:
    """Add sign * weight_i * row of index_i to its sum, for the sums of the groups from `group` to `stop`."""
    _in_threads(sketch, group, stop, lambda first, last, here: _add_rows(
        rows, index, weight, sketch, first, last, out[here:]))  # fmt: skip


def sketch_steps(
    phi: Any, psi: Any, shared: bool, now: Array, next: Array, discount: Array, ratio: Array, weight: float,
    sketch: CountSketch, group: int, stop: int, of_psi: Array, of_v: Array,
) -> None:  # fmt: skip
    """Add sign * weight * psi_t and sign * weight * ratio_t * v_t to the sums of step t, for those of some groups.

    shared: whether psi is phi.
    """
    _in_threads(sketch, group, stop, lambda first, last, here: _add_steps(
        phi, psi, shared, now, next, discount, ratio, weight, sketch, first, last, of_psi[here:], of_v[here:]
    ))  # fmt: skip


def _in_threads(sketch: CountSketch, group: int, stop: int, work: Callable[[int, int, int], Any]) -> None:
    """work(first group, last, place of its first sum): groups have no sum in common, so threads can share them."""
    parts = max(1, min(stop - group, PARTS))
    ends = [group + (stop - group) * part // parts for part in range(parts + 1)]
    share_out(lambda part: work(ends[part], ends[part + 1], (ends[part] - group) * sketch.together), parts)


@compiled
def _add_rows(rows: Any, index: Any, weight: Any, sketch: CountSketch, group: int, stop: int, out: Any) -> None:
    start = group * sketch.together
    for g in range(group, stop):
        first, sums, begin, end = _sums_of_group(sketch, g)
        for j in range(begin, end):
            i = _row_read(sketch, j)
            if j + PREFETCH_ROWS < sketch.total:
                prefetch_row(rows, index[_row_read(sketch, j + PREFETCH_ROWS)])
            place = first - start + _place(sketch, g, sums, j - begin)
            axpy(rows, index[i], _sign(sketch, j) * weight[i], out[place])


@compiled
def _add_steps(
    phi: Any, psi: Any, shared: bool, now: Any, next: Any, discount: Any, ratio: Any, weight: float,
    sketch: CountSketch, group: int, stop: int, of_psi: Any, of_v: Any,
) -> None:  # fmt: skip
    start = group * sketch.together
    for g in range(group, stop):
        first, sums, begin, end = _sums_of_group(sketch, g)
        for j in range(begin, end):
            t = _row_read(sketch, j)
            if j + PREFETCH_ROWS < sketch.total:
                prefetch_row(
                    phi, next[_row_read(sketch, j + PREFETCH_ROWS)]
                )  # where the step after it starts, most often
            place = first - start + _place(sketch, g, sums, j - begin)
            signed = _sign(sketch, j) * weight
            if shared:
                axpy_step(
                    phi, now[t], next[t], discount[t], signed, of_psi[place], signed * ratio[t], of_v[place]
                )  # fmt: skip
            else:
                axpy(psi, now[t], signed, of_psi[place])
                axpyv(phi, now[t], next[t], discount[t], signed * ratio[t], of_v[place])
