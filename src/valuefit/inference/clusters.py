"""Clusters of steps that are treated as independent of each other."""

from __future__ import annotations

import numpy as np

from valuefit.data.validation import episode_starts
from valuefit.typing import Array

MIN_BLOCK_STEPS = 25  # steps of a single episode that is cut into blocks: at least 5 blocks of 5 steps


def clusters(episode: Array) -> tuple[Array, int, bool]:
    """The cluster of every step (n,), the number of clusters, and whether they are blocks of one episode.

    Clusters are episodes; a single episode is cut into about sqrt(n) consecutive blocks (batch means).
    """
    _, cluster = np.unique(episode, return_inverse=True)
    count, n = int(cluster.max()) + 1, len(cluster)
    blocks = count == 1 and n >= MIN_BLOCK_STEPS
    if blocks:
        count = int(np.sqrt(n))
        cluster = np.arange(n) * count // n
    return cluster, count, blocks


class ClusterSums:
    """Sums over the steps of each cluster, and numbers of clusters repeated for their steps.

    Where clusters follow each other, as the episodes of a log do, sums take a tenth of the time of `numpy.bincount`.
    cluster: of each step, (n,). count: of all clusters, of which some may have no steps.
    """

    def __init__(self, cluster: Array, count: int) -> None:
        self.cluster, self.count = cluster, count
        self._first = np.flatnonzero(episode_starts(cluster))
        self._present = cluster[self._first]
        self._ascending = bool((self._present[1:] > self._present[:-1]).all())
        self._lengths = np.diff(np.append(self._first, len(cluster)))

    def of(self, values: Array) -> Array:
        """Sums of numbers by step, (n,), over each cluster, (count,)."""
        if not self._ascending or not len(values):
            return np.bincount(self.cluster, values, self.count)
        sums = np.zeros(self.count)
        sums[self._present] = np.add.reduceat(values, self._first)
        return sums

    def spread(self, values: Array) -> Array:
        """The number of the cluster of each step, (n,), from those of all clusters, (count,)."""
        if not self._ascending:
            return values[self.cluster]
        return np.repeat(values[self._present], self._lengths)
