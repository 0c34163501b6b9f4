"""Rows mixed into few sums with random signs, near the order in which they lie in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from valuefit.rows.kernels import axpy, axpy_step, axpyv, compiled, prefetch_row
from valuefit.threads import PARTS, share_out
from valuefit.typing import Array

PIECE_BYTES = 96 << 10  # of consecutive rows, read one after the other
CACHE_BYTES = 256 << 10  # of sums that are added to at a time: they stay in the second cache
AHEAD = 4  # rows that are asked for before they are needed


class Mixing(NamedTuple):
    """Which of `size` sums each of `total` things goes to, and with which sign.

    The things are cut into pieces of `piece`, in the order of memory, and the pieces are shuffled; what is left over
    comes last. `together` sums at a time take their part of that order, lap by lap: the things of a lap go to one sum
    each, from a random one on. So a sum holds at most ceil(total / size) things, each from a random place of a
    random piece, as if all had been shuffled; but memory is read in order, and sums are added to in cache.
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
        """Things that a sum holds at most."""
        return -(-self.total // self.size)

    @property
    def groups(self) -> int:
        """Groups of sums that are added to at a time."""
        return -(-self.size // self.together)


def mix(count: int, size: int, rng: np.random.Generator, *, row_bytes: float, sum_bytes: float) -> Mixing:
    """Mix `count` rows of `row_bytes` into `size` sums of `sum_bytes`; size is at most count."""
    together = int(np.clip(CACHE_BYTES / sum_bytes, 1, size))
    piece = int(np.clip(PIECE_BYTES / max(row_bytes, 1.0), 1, max(1, together // 8)))  # or neighbours share a sum
    pieces = rng.permutation(count // piece)
    laps = -(-size // together) * -(-count // size)
    begins = rng.integers(0, together, laps)
    signs = rng.integers(0, 1 << 64, -(-count // 64), dtype=np.uint64)
    return Mixing(count, size, piece, together, pieces, begins, signs)


@compiled
def _group(mixing: Mixing, group: int) -> tuple[int, int, int, int]:
    """The first sum of a group, how many they are, and its part of the order."""
    first = group * mixing.together
    last = min(first + mixing.together, mixing.size)
    return first, last - first, mixing.total * first // mixing.size, mixing.total * last // mixing.size


@compiled
def _thing(mixing: Mixing, j: int) -> Any:
    """Which thing comes j-th."""
    whole = mixing.pieces.shape[0]
    e = j // mixing.piece
    return (mixing.pieces[e] if e < whole else whole) * mixing.piece + j % mixing.piece


@compiled
def _place(mixing: Mixing, g: int, sums: int, since: int) -> Any:
    """The sum of its group that takes the thing so many after the group's first."""
    most = -(-mixing.total // mixing.size)
    return (since + mixing.begins[g * most + since // sums]) % sums


@compiled
def _sign(mixing: Mixing, j: int) -> float:
    return 1.0 if (mixing.signs[j >> 6] >> np.uint64(j & 63)) & np.uint64(1) else -1.0


def mix_rows(rows: Any, index: Array, weight: Array, mixing: Mixing, group: int, stop: int, out: Array) -> None:
    """Add weight_i * row of index_i to its sum, for the sums of the groups from `group` to `stop`."""
    _shared(mixing, group, stop, lambda first, last, here: _add_rows(
        rows, index, weight, mixing, first, last, out[here:]))  # fmt: skip


def mix_steps(
    phi: Any, psi: Any, shared: bool, now: Array, next: Array, discount: Array, ratio: Array, weight: float,
    mixing: Mixing, group: int, stop: int, of_psi: Array, of_v: Array,
) -> None:  # fmt: skip
    """Add weight * psi_t and weight * ratio_t * v_t to the sums of step t, for those of some groups.

    shared: whether psi is phi.
    """
    _shared(mixing, group, stop, lambda first, last, here: _add_steps(
        phi, psi, shared, now, next, discount, ratio, weight, mixing, first, last, of_psi[here:], of_v[here:]
    ))  # fmt: skip


def _shared(mixing: Mixing, group: int, stop: int, work: Callable[[int, int, int], Any]) -> None:
    """work(first group, last, place of its first sum): groups have sums of their own, so threads can take some each."""
    parts = max(1, min(stop - group, PARTS))
    ends = [group + (stop - group) * part // parts for part in range(parts + 1)]
    share_out(lambda part: work(ends[part], ends[part + 1], (ends[part] - group) * mixing.together), parts)


@compiled
def _add_rows(rows: Any, index: Any, weight: Any, mixing: Mixing, group: int, stop: int, out: Any) -> None:
    start = group * mixing.together
    for g in range(group, stop):
        first, sums, begin, end = _group(mixing, g)
        for j in range(begin, end):
            i = _thing(mixing, j)
            if j + AHEAD < mixing.total:
                prefetch_row(rows, index[_thing(mixing, j + AHEAD)])
            place = first - start + _place(mixing, g, sums, j - begin)
            axpy(rows, index[i], _sign(mixing, j) * weight[i], out[place])


@compiled
def _add_steps(
    phi: Any, psi: Any, shared: bool, now: Any, next: Any, discount: Any, ratio: Any, weight: float,
    mixing: Mixing, group: int, stop: int, of_psi: Any, of_v: Any,
) -> None:  # fmt: skip
    start = group * mixing.together
    for g in range(group, stop):
        first, sums, begin, end = _group(mixing, g)
        for j in range(begin, end):
            t = _thing(mixing, j)
            if j + AHEAD < mixing.total:
                prefetch_row(phi, next[_thing(mixing, j + AHEAD)])  # where the step after it starts, most often
            place = first - start + _place(mixing, g, sums, j - begin)
            signed = _sign(mixing, j) * weight
            if shared:
                axpy_step(
                    phi, now[t], next[t], discount[t], signed, of_psi[place], signed * ratio[t], of_v[place]
                )  # fmt: skip
            else:
                axpy(psi, now[t], signed, of_psi[place])
                axpyv(phi, now[t], next[t], discount[t], signed * ratio[t], of_v[place])
