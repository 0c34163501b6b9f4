"""Ranges of observations: taken from the data unless given, with everything outside taken at the edge."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

import numpy as np

from valuefit.typing import Array

BLOCK_BYTES = 4 << 20  # of a temporary: it should stay in cache


def whole_number(name: str, value: Any, least: int) -> int:
    """`value` as an int of at least `least`, or a sentence."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} is {value!r}; it must be a whole number, {least} or more.")
    return int(value)


def data_range(X: Array, low: Any, high: Any) -> tuple[Array, Array]:
    """The lowest and highest value of every dimension: as given, from the data where None."""
    try:
        bottom = np.broadcast_to(X.min(axis=0) if low is None else np.asarray(low, np.float64), X.shape[1]).copy()
        top = np.broadcast_to(X.max(axis=0) if high is None else np.asarray(high, np.float64), X.shape[1]).copy()
    except (TypeError, ValueError):
        raise ValueError(
            f"low and high must each be one number or one for each of {X.shape[1]} dimensions; "
            f"they are {low!r} and {high!r}."
        ) from None
    with np.errstate(over="ignore"):
        extent = top - bottom
    if not np.isfinite(extent).all():
        raise ValueError("The range of the observations is too wide for floating-point numbers. Rescale them first.")
    if not (extent >= 0).all():
        raise ValueError("low must not exceed high in any dimension.")
    return bottom, top


def to_unit(X: Array, low: Array, high: Array) -> Array:
    """X scaled from [low, high] to [0, 1], clipped to it; 0 in a dimension whose range is a point."""
    return (np.clip(X, low, high) - low) / np.where(high > low, high - low, 1.0)


def row_blocks(rows: int, width: int) -> Iterator[slice]:
    """Slices of consecutive rows such that a block of `width` float64 a row stays in cache."""
    size = max(1, BLOCK_BYTES // (8 * max(width, 1)))
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def lowest_indices(dimensions: int, count: int, *, each: int, total: int, power: int) -> Array:
    """The `count` lowest multi-indices c, (at most count, dimensions), in order of sum of c_k^power.

    Every c_k is at most `each` and their sum at most `total`. Ties: fewer dimensions first, then earlier ones.
    An index is kept as the non-decreasing tuple of its dimensions, grown at the end only, so each is met once and
    after everything lower: nothing like (each + 1)^dimensions is ever listed.
    """
    heap: list[tuple[int, int, tuple[int, ...]]] = [(0, 0, ())]
    found: list[tuple[int, ...]] = []
    while heap and len(found) < count:
        size, used, index = heapq.heappop(heap)
        found.append(index)
        if len(index) == total:
            continue
        for k in range(index[-1] if index else 0, dimensions):
            times = index.count(k)
            if times < each:
                grown = size + (times + 1) ** power - times**power
                heapq.heappush(heap, (grown, used + (times == 0), (*index, k)))
    indices = np.zeros((len(found), dimensions), np.int64)
    for place, index in enumerate(found):
        np.add.at(indices[place], list(index), 1)
    return indices


def in_words(number: float) -> str:
    """A number for a sentence: four digits."""
    return f"{number:.4g}"


def range_in_words(low: Array, high: Array) -> str:
    """The ranges, for a sentence; the first four of many."""
    parts = [f"[{in_words(a)}, {in_words(b)}]" for a, b in zip(low[:4], high[:4], strict=True)]
    return " x ".join(parts) + (f" and {len(low) - 4} more" if len(low) > 4 else "")
