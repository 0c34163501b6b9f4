"""Binned statistics of a log, so that the size of a chart does not depend on the number of steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from valuefit.report.svg import MIN_RELATIVE_RANGE, nice_ticks
from valuefit.typing import Array


@dataclass(frozen=True)
class Counts:
    """Counts between edges; values outside, `outside` of them, are counted in the first and last bin."""

    edges: Array
    counts: Array
    outside: int


@dataclass(frozen=True)
class Means:
    """Statistics of each bin: mean x, mean value, its standard error, 10% and 90% quantiles, and count."""

    x: Array
    mean: Array
    error: Array
    low: Array
    high: Array
    count: Array


def is_constant(values: Array) -> bool:
    """Whether all values are equal up to rounding."""
    low, high = float(values.min()), float(values.max())
    return high / 2 - low / 2 <= MIN_RELATIVE_RANGE * max(abs(low), abs(high)) / 2  # halves, against overflow


def bin_edges(values: Array, max_bins: int = 36) -> Array:
    """Edges of bins of equal width; if all values are whole, bins contain equally many whole numbers.

    They cover the middle 99% of the values if the range of all is more than three times as large.
    """
    low, high = float(values.min()), float(values.max())
    if is_constant(values):
        margin = max(abs(low), 1.0) / 2
        return np.array([low - margin, high + margin])
    middle = np.quantile(values, [0.005, 0.995])
    middle_range = float(middle[1] - middle[0])
    scale = max(abs(low), abs(high))
    if high / 3 - low / 3 > middle_range > MIN_RELATIVE_RANGE * scale:
        low, high = map(float, middle)
    if max(abs(low), abs(high)) < 2**50 and (values % 1 == 0).all():
        width = max(1, math.ceil((math.floor(high) - math.floor(low) + 1) / max_bins))
        return np.arange(math.floor(low), math.floor(high) + width + 1, width) - 0.5
    ticks, step = nice_ticks(low, high, max_bins)
    edges = np.array([ticks[0] - step, *ticks, ticks[-1] + step])
    inside = (edges[1:] > low) & (edges[:-1] < high)
    return edges[np.append(inside, False) | np.insert(inside, 0, False)]


def histogram_counts(values: Array) -> Counts:
    """The number of values in each of the bins of `bin_edges`."""
    edges = bin_edges(values)
    outside = int(((values < edges[0]) | (values > edges[-1])).sum())
    return Counts(edges, np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0], outside)


def quantile_bins(values: Array, max_bins: int) -> tuple[Array, int]:
    """(bin of each value, number of bins); bins have about equal counts, and equal values share a bin."""
    inner = np.unique(np.quantile(values, np.linspace(0, 1, max_bins + 1)[1:-1], method="higher"))
    used, bin_of = np.unique(np.searchsorted(inner, values, side="right"), return_inverse=True)
    return bin_of, len(used)


def binned_means(x: Array, values: Array, *, max_bins: int, weights: Array, cluster: Array) -> Means:
    """Weighted means of `values` in quantile bins of `x`, with standard errors clustered as those of the estimate."""
    bin_of, bins = quantile_bins(x, max_bins)
    rows = []
    for number in range(bins):
        inside = np.flatnonzero(bin_of == number)
        weight = weights[inside]
        total = float(weight.sum())
        if total <= 0:
            continue
        chosen = values[inside]
        mean = float(weight @ chosen) / total
        sums = np.bincount(cluster[inside], weights=weight * (chosen - mean) / total)
        groups = len(np.unique(cluster[inside]))
        error = math.sqrt(groups / (groups - 1)) * math.hypot(*sums.tolist()) if groups > 1 else 0.0
        rows.append((x[inside].mean(), mean, error, *np.quantile(chosen, [0.1, 0.9]), len(inside)))
    return Means(*np.array(rows, dtype=float).reshape(-1, 6).T)


def explained_variance(x: Array, values: Array) -> float:
    """The share of the variance of `values` that their means in 20 quantile bins of `x` explain."""
    bin_of, bins = quantile_bins(x, 20)
    values = values - values.mean()
    count = np.bincount(bin_of, minlength=bins)
    mean = np.bincount(bin_of, weights=values, minlength=bins) / count
    total = float(values @ values)
    return float(count @ mean**2) / total if total > 0 else 0.0


def most_explanatory(columns: Array, values: Array) -> list[int]:
    """Indices of the columns that vary, by decreasing explained variance.

    Of more than 100, it is computed for those of largest correlation.
    """
    varying = np.flatnonzero(columns.max(axis=0) > columns.min(axis=0))
    values = values / (np.abs(values).max() or 1.0)
    if len(varying) > 100:
        centred = columns[:, varying] - columns[:, varying].mean(axis=0)
        correlation = np.abs((values - values.mean()) @ centred) / np.sqrt((centred**2).sum(axis=0))
        varying = varying[np.argsort(-correlation, kind="stable")[:100]]
    explained = np.array([explained_variance(columns[:, column], values) for column in varying])
    return [int(varying[k]) for k in np.argsort(-explained, kind="stable")]


@dataclass(frozen=True)
class Cells:
    """A grid over x and y: the edges, the cell of each point (-1 outside the edges), and counts (x cells, y cells)."""

    x_edges: Array
    y_edges: Array
    cell: Array
    counts: Array

    def means(self, values: Array) -> Array:
        """The mean value in each cell, 0 in empty ones."""
        inside = self.cell >= 0
        sums = np.bincount(self.cell[inside], values[inside], self.counts.size).reshape(self.counts.shape)
        return np.asarray(sums / np.maximum(self.counts, 1))


def cells(x: Array, y: Array, max_bins: int) -> Cells:
    """The grid with the bins of `bin_edges` in both directions."""
    x_edges, y_edges = bin_edges(x, max_bins), bin_edges(y, max_bins)
    column, row = _bin_numbers(x, x_edges), _bin_numbers(y, y_edges)
    shape = len(x_edges) - 1, len(y_edges) - 1
    cell = np.where((column < 0) | (row < 0), -1, column * shape[1] + row)
    return Cells(x_edges, y_edges, cell, np.bincount(cell[cell >= 0], minlength=shape[0] * shape[1]).reshape(shape))


def _bin_numbers(values: Array, edges: Array) -> Array:
    """The bin of each value, -1 outside the edges; the last bin contains both of its edges."""
    number = np.searchsorted(edges, values, side="right") - 1
    number[values == edges[-1]] -= 1
    return np.where(number < len(edges) - 1, number, -1)
