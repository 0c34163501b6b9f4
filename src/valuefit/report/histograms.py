"""A log reduced to bins, so that a chart of a million steps is as small as one of a hundred."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from valuefit.report.svg import NARROW, nice_ticks
from valuefit.typing import Array

BINS = 36
FAR = 3.0  # a range this much wider than that of all but 1% is cut to the latter


@dataclass(frozen=True)
class Counts:
    """Counts between edges; `outside` of them lie beyond, and are counted in the first and last bin."""

    edges: Array
    counts: Array
    outside: int


@dataclass(frozen=True)
class Means:
    """A mean in each bin: where (the mean place), what, its standard error, its 10% and 90% points, and how many."""

    place: Array
    mean: Array
    error: Array
    low: Array
    high: Array
    count: Array


def is_constant(values: Array) -> bool:
    """Whether the numbers are one number, but for rounding."""
    low, high = float(values.min()), float(values.max())
    return high / 2 - low / 2 <= NARROW * max(abs(low), abs(high)) / 2


def edges_of(values: Array, most: int = BINS) -> Array:
    """Edges of even bins: of one whole number each, or of several, where the values are whole."""
    low, high = float(values.min()), float(values.max())
    if is_constant(values):
        room = max(abs(low), 1.0) / 2
        return np.array([low - room, high + room])
    middle = np.quantile(values, [0.005, 0.995])
    if high / FAR - low / FAR > float(middle[1] - middle[0]) > NARROW * max(abs(low), abs(high)):
        low, high = map(float, middle)
    if max(abs(low), abs(high)) < 2**50 and (values % 1 == 0).all():
        width = max(1, math.ceil((math.floor(high) - math.floor(low) + 1) / most))
        return np.arange(math.floor(low), math.floor(high) + width + 1, width) - 0.5
    ticks, step = nice_ticks(low, high, most)
    edges = np.array([ticks[0] - step, *ticks, ticks[-1] + step])
    inside = (edges[1:] > low) & (edges[:-1] < high)
    return edges[np.append(inside, False) | np.insert(inside, 0, False)]


def counts_of(values: Array, most: int = BINS) -> Counts:
    """How many values in each even bin."""
    edges = edges_of(values, most)
    outside = int(((values < edges[0]) | (values > edges[-1])).sum())
    return Counts(edges, np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0], outside)


def share_of(values: Array, most: int) -> tuple[Array, int]:
    """(bin of each value, how many bins), about equally filled, equal values together."""
    inner = np.unique(np.quantile(values, np.linspace(0, 1, most + 1)[1:-1], method="higher"))
    used, place = np.unique(np.searchsorted(inner, values, side="right"), return_inverse=True)
    return place, len(used)


def means_of(along: Array, values: Array, *, most: int, weights: Array, cluster: Array) -> Means:
    """Weighted means of `values` in equally filled bins of `along`; errors are clustered, as those of the estimate."""
    where, bins = share_of(along, most)
    rows = []
    for place in range(bins):
        inside = np.flatnonzero(where == place)
        weight = weights[inside]
        total = float(weight.sum())
        if total <= 0:
            continue
        chosen = values[inside]
        mean = float(weight @ chosen) / total
        sums = np.bincount(cluster[inside], weights=weight * (chosen - mean) / total)
        groups = len(np.unique(cluster[inside]))
        error = math.sqrt(groups / (groups - 1)) * math.hypot(*sums.tolist()) if groups > 1 else 0.0
        rows.append((along[inside].mean(), mean, error, *np.quantile(chosen, [0.1, 0.9]), len(inside)))
    return Means(*np.array(rows, dtype=float).reshape(-1, 6).T)


def strength(along: Array, values: Array) -> float:
    """The share of the variance of `values` that their means in 20 bins of `along` explain."""
    where, bins = share_of(along, 20)
    values = values - values.mean()
    count = np.bincount(where, minlength=bins)
    mean = np.bincount(where, weights=values, minlength=bins) / count
    total = float(values @ values)
    return float(count @ mean**2) / total if total > 0 else 0.0


def strongest(columns: Array, values: Array, *, looked_at: int = 100) -> list[int]:
    """Columns that move, the one that tells most about the values first; of very many only the best correlated."""
    moving = np.flatnonzero(columns.max(axis=0) > columns.min(axis=0))
    values = values / (np.abs(values).max() or 1.0)
    if len(moving) > looked_at:
        centred = columns[:, moving] - columns[:, moving].mean(axis=0)
        along = np.abs((values - values.mean()) @ centred) / np.sqrt((centred**2).sum(axis=0))
        moving = moving[np.argsort(-along, kind="stable")[:looked_at]]
    strengths = np.array([strength(columns[:, place], values) for place in moving])
    return [int(moving[k]) for k in np.argsort(-strengths, kind="stable")]


def cells(x: Array, y: Array, values: Array, most: int) -> tuple[Array, Array, Array, Array]:
    """Edges across, edges up, mean value and count of every cell; what lies outside the edges is left out."""
    edges = edges_of(x, most), edges_of(y, most)
    counts = np.histogram2d(x, y, bins=edges)[0]
    sums = np.histogram2d(x, y, bins=edges, weights=values)[0]
    return *edges, sums / np.maximum(counts, 1), counts
