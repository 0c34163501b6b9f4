"""Scaling of observations to their ranges, and other steps that several features share."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from valuefit.data.validation import MAX_INT32, whole_number
from valuefit.memory import fits
from valuefit.messages import shown
from valuefit.typing import Array

MAX_PRODUCTS = 100_000  # listing them takes two seconds; dense rows of more are not practical
MIN_DROPPED_INDICES = 1000  # of multi-indices on a heap; fewer are not worth sorting it
MAX_TEMPORARY_BYTES = 4 << 20  # so that temporary arrays stay in the cache
MAX_SAMPLED_OBSERVATIONS = 20_000  # for quantiles and k-means


def count_option(name: str, value: Any, least: int, most: int = MAX_INT32) -> int:
    """An option that counts something as an int, from `least` to `most`."""
    requirement = f"it must be a whole number, {least} or more and at most {most:,}"
    count = whole_number(name, value, requirement, low=least)
    if count > most:
        raise ValueError(f"{name} is {shown(value)}; {requirement}.")
    return count


def is_list(value: Any) -> bool:
    """Whether an option is a list, a tuple or an array of one dimension or more."""
    return isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)


def refuse_large(rows: int, numbers: int, columns: int, remedy: str) -> None:
    """Raise ValueError if features would not fit into memory; called before they are fitted.

    rows: observations. numbers: stored in each feature row. columns: features, of which solvers hold about 16 vectors.
    """
    count = max(rows * numbers, 16 * columns)
    if not fits(count):
        raise ValueError(
            f"{columns:,} features of {rows:,} observations would take {8 * count / 2**30:,.1f} GiB, more than half of "
            f"this machine's memory. {remedy}"
        )


def data_range(X: Array, low: Any, high: Any) -> tuple[Array, Array]:
    """The range of every dimension, `low` to `high`; None takes the minimum or maximum of X."""
    try:
        bottom = np.broadcast_to(X.min(axis=0) if low is None else np.asarray(low, np.float64), X.shape[1]).copy()
        top = np.broadcast_to(X.max(axis=0) if high is None else np.asarray(high, np.float64), X.shape[1]).copy()
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"low and high must each be one number or one for each of {X.shape[1]} dimensions; "
            f"they are {shown(low)} and {shown(high)}."
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


def squared_distances(X: Array, Z: Array) -> Array:
    """|x - z|^2 for every row x and z."""
    distance = np.einsum("ij,ij->i", X, X)[:, None] - 2 * X @ Z.T
    distance += np.einsum("ij,ij->i", Z, Z)
    return np.maximum(distance, 0, out=distance)


def row_blocks(rows: int, width: int, memory: int = MAX_TEMPORARY_BYTES) -> Iterator[slice]:
    """Slices of consecutive rows such that `width` float64 numbers per row stay in the cache, or in this memory."""
    size = max(1, memory // (8 * max(width, 1)))
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def lowest_indices(dimensions: int, count: int, *, each: int, total: int, power: int) -> Array:
    """The `count` lowest multi-indices c, (at most count, dimensions), sorted by sum of c_k^power.

    Every c_k is at most `each`, and their sum at most `total`. Ties: fewer nonzero entries first, then earlier
    dimensions, then larger entries. The heap holds c as pairs (k, -c_k) of its nonzero entries. Raising only the last
    entry, or one after it, generates every c once, after all lower ones, without listing (each + 1)^dimensions.
    """
    heap: list[tuple[int, int, tuple[tuple[int, int], ...]]] = [(0, 0, ())]
    limit = None  # entries above it are not among the lowest
    lowest: list[tuple[tuple[int, int], ...]] = []
    while heap and len(lowest) < count:
        size, used, index = heapq.heappop(heap)
        lowest.append(index)
        if each == 0 or -sum(negative for _, negative in index) == total:
            continue
        last, times = (index[-1][0], -index[-1][1]) if index else (-1, each)
        if times < each:
            larger = size + (times + 1) ** power - times**power
            heapq.heappush(heap, (larger, used, (*index[:-1], (last, -times - 1))))
        for k in range(last + 1, dimensions):
            entry = (size + 1, used + 1, (*index, (k, -1)))
            if limit is not None and entry > limit:
                break  # those of larger k are above it, too
            heapq.heappush(heap, entry)
        needed = count - len(lowest)
        if len(heap) > 2 * needed + MIN_DROPPED_INDICES:
            heap = heapq.nsmallest(needed, heap)
            limit = heap[-1] if heap else None
    indices = np.zeros((len(lowest), dimensions), np.int64)
    for row, index in enumerate(lowest):
        for k, negative in index:
            indices[row, k] = -negative
    return indices


def product_indices(
    X: Array, low: Array, high: Array, count: int, *, available: Callable[[int], int], each: int, total: int, power: int
) -> tuple[Array, bool]:
    """The multi-indices (features, dimensions) of products of functions of one dimension, and whether these are all.

    They are the `count` lowest (see `lowest_indices`), with zeros in dimensions that do not vary. available: how many
    there are in so many dimensions. Raises ValueError if they are more than can be listed and stored.
    """
    varying = np.flatnonzero(high > low)
    possible = available(len(varying))
    columns, remedy = min(count, possible), "Lower max_features."
    if columns > MAX_PRODUCTS:
        raise ValueError(f"max_features allows {columns:,} features; at most {MAX_PRODUCTS:,} are listed. {remedy}")
    refuse_large(len(X), columns, columns, remedy)
    indices = np.zeros((columns, X.shape[1]), np.int64)
    indices[:, varying] = lowest_indices(len(varying), count, each=each, total=total, power=power)
    return indices, possible <= count


def number_text(number: float) -> str:
    """The number with four significant digits."""
    return f"{number:.4g}"


def range_text(low: Array, high: Array) -> str:
    """The ranges as text, at most the first four."""
    parts = [f"[{number_text(a)}, {number_text(b)}]" for a, b in zip(low[:4], high[:4], strict=True)]
    return " x ".join(parts) + (f" and {len(low) - 4} more" if len(low) > 4 else "")
