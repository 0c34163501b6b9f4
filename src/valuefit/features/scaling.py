"""Scaling of observations to their ranges, and other steps that several features share."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

import numpy as np

from valuefit.typing import Array

MAX_TEMPORARY_BYTES = 4 << 20  # so that temporary arrays stay in the cache


def whole_number(name: str, value: Any, least: int) -> int:
    """`value` as an int; raises ValueError if it is not an integer or below `least`."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} is {value!r}; it must be a whole number, {least} or more.")
    return int(value)


def data_range(X: Array, low: Any, high: Any) -> tuple[Array, Array]:
    """The range of every dimension, `low` to `high`; None takes the minimum or maximum of X."""
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
    """X clipped to [low, high] and scaled to [0, 1]; 0 in constant dimensions."""
    return (np.clip(X, low, high) - low) / np.where(high > low, high - low, 1.0)


def row_blocks(rows: int, width: int) -> Iterator[slice]:
    """Slices of consecutive rows such that `width` float64 numbers per row stay in the cache."""
    size = max(1, MAX_TEMPORARY_BYTES // (8 * max(width, 1)))
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def lowest_indices(dimensions: int, count: int, *, each: int, total: int, power: int) -> Array:
    """The `count` lowest multi-indices c, (at most count, dimensions), sorted by sum of c_k^power.

    Every c_k is at most `each`, and their sum at most `total`. Ties: fewer nonzero entries first, then earlier
    dimensions. The heap holds c as the non-decreasing tuple of its dimensions (each k appears c_k times). Extending
    tuples only at the end generates every c once, after all lower ones, without listing (each + 1)^dimensions.
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
                larger = size + (times + 1) ** power - times**power
                heapq.heappush(heap, (larger, used + (times == 0), (*index, k)))
    indices = np.zeros((len(found), dimensions), np.int64)
    for row, index in enumerate(found):
        np.add.at(indices[row], list(index), 1)
    return indices


def number_text(number: float) -> str:
    """The number with four significant digits."""
    return f"{number:.4g}"


def range_text(low: Array, high: Array) -> str:
    """The ranges as text, at most the first four."""
    parts = [f"[{number_text(a)}, {number_text(b)}]" for a, b in zip(low[:4], high[:4], strict=True)]
    return " x ".join(parts) + (f" and {len(low) - 4} more" if len(low) > 4 else "")
