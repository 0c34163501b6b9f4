"""Intervals of the values of many observations, which are products of theta with rows, from sums over clusters.

The sums of the clusters of a part of the log are its share, and random signs depend on the numbers of steps and
clusters alone, so a log in shards has the same intervals as in memory (with more than 1,000 clusters up to the groups
that the ends of shards cut). m numbers take 2 m d min(clusters, 1000) operations, and 2000 m d more for simultaneous
intervals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from valuefit.inference.adjoints import Equations
from valuefit.inference.error_estimate import Kind, count_factor
from valuefit.inference.shard_errors import ShardErrors
from valuefit.inference.signs import random_signs
from valuefit.inference.student import t_quantile
from valuefit.tolerances import ROUNDING
from valuefit.typing import Array

MIN_SIGN_SUMS = 400  # clusters times draws of random signs, for the effective clusters of many numbers
MAX_SIGN_GROUPS = 1000  # of clusters, for the effective clusters of many numbers: enough for Student's t to be normal
MULTIPLIER_DRAWS = 1000  # of random signs of the clusters, for simultaneous intervals
CLUSTER_SIGNS = (1,)  # the key of their signs; those of steps have (0, draw)
MIN_SIMULTANEOUS_CLUSTERS = 100  # effective episodes, with fewer the simultaneous coverage is below 92%
CHUNK = 1024  # rows, and clusters, whose products are computed at a time


class Band(NamedTuple):
    """Intervals (m, 2) and standard errors (m,) of several numbers, and the smallest number of effective clusters."""

    intervals: Array
    standard_errors: Array
    effective_clusters: float


@dataclass(frozen=True)
class BandRows:
    """Products of theta with rows (m, d), of a log with so many clusters.

    units: the rows, over sizes (m,) that make their products with theta about 1: fourth powers of errors must neither
    underflow nor overflow.
    """

    rows: Array
    units: Array
    sizes: Array
    clusters: int

    @classmethod
    def of(cls, rows: Array, theta: Array, clusters: int) -> BandRows:
        size, peak = np.abs(rows) @ np.abs(theta), np.abs(rows).max(axis=1)
        sizes = np.where(size > 0, size, np.where(peak > 0, peak, 1.0))
        return cls(rows, rows / sizes[:, None], sizes, clusters)

    @property
    def draws(self) -> int:
        """Sums with random signs of the steps."""
        return -(-MIN_SIGN_SUMS // self.clusters)


class BandSums(NamedTuple):
    """Sums over clusters, of the units of rows.

    parts: of squares of the parts in the error, (m,). expected, squares: of their expected squares if steps were
    independent, and of the squares of these by group of clusters, (m,). signed: of changes of theta with random signs,
    (d, draws). alone: of the parts of the log in which one cluster alone determines the value, (m,).
    """

    parts: Array
    expected: Array
    squares: Array
    signed: Array
    alone: Array


def band_sums(asked: BandRows, errors: ShardErrors, *, simultaneous: bool) -> BandSums:
    """Sum over the clusters of a shard."""
    first_cluster = errors.clusters.first
    by_sign = _grouped(errors.influences.sign_changes(asked.draws), asked.clusters, first_cluster)
    changes = errors.unscaled_changes
    columns = changes.shape[1]
    root = np.asarray(np.linalg.qr(changes, mode="r")) if len(changes) > columns else changes  # root'root is the same
    sums, signed = np.zeros((3, len(asked.units))), np.zeros((columns, MULTIPLIER_DRAWS * simultaneous))
    for low in range(0, len(asked.units), CHUNK):
        units = asked.units[low : low + CHUNK]
        here = sums[:, low : low + CHUNK]
        for start in range(0, len(root), CHUNK):
            here[0] += _squares(units, root[start : start + CHUNK]).sum(axis=1)
        for start in range(0, by_sign.shape[1], CHUNK):
            expected = np.mean([_squares(units, draw[start : start + CHUNK]) for draw in by_sign], axis=0)
            here[1] += expected.sum(axis=1)
            here[2] += np.einsum("ij,ij->i", expected, expected)
    for start in range(0, len(changes) * simultaneous, CHUNK):
        own, first = changes[start : start + CHUNK], first_cluster + start
        signed += own.T @ random_signs(CLUSTER_SIGNS, first, first + len(own), MULTIPLIER_DRAWS)
    return BandSums(sums[0], sums[1], sums[2], signed, errors.rests_on_one(asked.rows).astype(int))


def _squares(units: Array, others: Array) -> Array:
    """The squared products of each of the units with each of the others."""
    products = units @ others.T
    products *= products
    return products


def _grouped(by_sign: Array, clusters: int, first_cluster: int) -> Array:
    """Sums of `sign_changes` over at most MAX_SIGN_GROUPS groups of consecutive clusters, (draws, groups, d).

    Signs are independent, so the expected squares of the sums are the sums of those of the clusters. The number of
    effective clusters is then that of effective groups, which is smaller: intervals are hardly longer for it.
    """
    size = -(-clusters // MAX_SIGN_GROUPS)
    if size == 1:
        return by_sign
    number = (first_cluster + np.arange(by_sign.shape[1])) // size
    return np.add.reduceat(by_sign, np.flatnonzero(np.diff(number, prepend=-1)), axis=1)


def band_of(
    asked: BandRows, sums: BandSums, equations: Equations, kind: Kind, *, level: float, simultaneous: bool
) -> Band:
    """The intervals from the sums over all clusters, infinite where the data do not determine a number.

    They are infinite, too, where one cluster alone determines it: its error cannot be estimated. simultaneous: all of
    them hold at once with this probability. The quantile of the largest t statistic, with random signs of the clusters,
    becomes a level, and this level a quantile of Student's t for each number.
    """
    rows, root = asked.rows, np.sqrt(sums.parts)
    standard_error = asked.sizes * count_factor(kind, asked.clusters) * root
    with np.errstate(invalid="ignore"):  # means over draws of signs have a relative variance of 2 / draws
        count = (1 + 2 / asked.draws) * sums.expected**2 / sums.squares
    effective = np.where(sums.squares > 0, np.clip(count, 1.0, asked.clusters), asked.clusters)
    tail = (1 - level) / 2
    if simultaneous:  # the quantile of a few draws is too small at extreme levels
        largest = np.zeros(MULTIPLIER_DRAWS)
        for start in range(0, len(rows), CHUNK):
            chunk = slice(start, start + CHUNK)
            size = np.where(root[chunk] > ROUNDING, root[chunk], np.inf)  # rounding errors have no t statistic
            drawn = (asked.units[chunk] / size[:, None]) @ sums.signed
            largest = np.maximum(largest, np.maximum(drawn.max(axis=0), -drawn.min(axis=0)))
        tail = min(float(ndtr(-np.quantile(largest, level))), tail)
    solver_error = np.abs(rows @ equations.to_minimiser)
    half = t_quantile(np.maximum(effective - 1, 1.0), tail) * standard_error + solver_error
    half[~equations.solver.determines(rows) | (sums.alone > 0)] = np.inf
    standard_error[np.isinf(half)] = np.inf
    value = rows @ equations.theta
    return Band(np.column_stack([value - half, value + half]), standard_error, float(effective.min()))


def few_clusters(band: Band) -> str:
    """A warning if simultaneous intervals rest on few effective clusters, else an empty string."""
    if band.effective_clusters >= MIN_SIMULTANEOUS_CLUSTERS:
        return ""
    return (
        f"The episodes count as only {band.effective_clusters:.0f} equal ones at some observations: "
        f"with fewer than {MIN_SIMULTANEOUS_CLUSTERS} the simultaneous intervals may be too short."
    )
