"""Clusters of steps that are treated as independent of each other, and how those of a log in memory are chosen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from valuefit.data.validation import episode_starts
from valuefit.typing import Array

MIN_BLOCK_STEPS = 25  # steps of a single episode that is cut into blocks: at least 5 blocks of 5 steps
MIN_EFFECTIVE_CLUSTERS = 2  # with fewer effective episodes one dominates, and long ones are cut into blocks
MIN_STREAM_BLOCKS = 8  # of a log of one episode
BLOCK_TIMES = 5  # length of a block over the autocorrelation time of the values


@dataclass(frozen=True, eq=False)
class Clusters:
    """The cluster of each step of a log, or of a shard, (n,), numbered from 0; some of the `count` may have no steps.

    blocks: whether they are blocks of one episode. grouped: whether they are groups of episodes, which are never cut.
    first: the number of the first one in the log.
    """

    of_step: Array
    count: int
    blocks: bool = False
    grouped: bool = False
    first: int = 0

    @classmethod
    def of_log(cls, episode: Array, group: Array | None = None) -> Clusters:
        """Episodes, or groups of them; a single episode is cut into about sqrt(n) consecutive blocks (batch means)."""
        _, cluster = np.unique(episode if group is None else group, return_inverse=True)
        count, n = int(cluster.max()) + 1, len(cluster)
        if count > 1 or n < MIN_BLOCK_STEPS:
            return cls(cluster, count, grouped=group is not None)
        count = int(np.sqrt(n))
        return cls(np.arange(n) * count // n, count, blocks=True, grouped=group is not None)

    @classmethod
    def of_shard(cls, episode: Array, first: int) -> Clusters:
        """The episodes of a shard, whose steps follow each other; first: the number of the first one in the log."""
        cluster = np.cumsum(episode_starts(episode)) - 1
        return cls(cluster, int(cluster[-1]) + 1, first=first)

    def sums(self, values: Array) -> Array:
        """Sums of numbers by step, (n,), over each cluster, (count,).

        Where clusters follow each other, as the episodes of a log do, it takes a tenth of the time of `bincount`.
        """
        if not self._ascending or not len(values):
            return np.bincount(self.of_step, values, self.count)
        sums = np.zeros(self.count)
        sums[self._present] = np.add.reduceat(values, self._starts)
        return sums

    def spread(self, values: Array) -> Array:
        """The number of the cluster of each step, (n,), from those of all clusters, (count,)."""
        if not self._ascending:
            return values[self.of_step]
        return np.repeat(values[self._present], np.diff(np.append(self._starts, len(self.of_step))))

    @cached_property
    def _starts(self) -> Array:
        """Where runs of steps of one cluster start."""
        return np.flatnonzero(episode_starts(self.of_step))

    @cached_property
    def _present(self) -> Array:
        """The cluster of each run."""
        return self.of_step[self._starts]

    @cached_property
    def _ascending(self) -> bool:
        """Whether each cluster is one run, and their numbers increase."""
        return bool((self._present[1:] > self._present[:-1]).all())


def suitable(clusters: Clusters, episode: Array, effective: float, values: Iterable[Array]) -> Clusters:
    """Clusters for numbers that rest on this many effective ones of `clusters`, which are those of `Clusters.of_log`.

    A log of one episode is cut into blocks whose length is 5 times the autocorrelation time of the values; so are long
    episodes if fewer than 2 effective ones would be left. Groups of episodes are not cut. values: at each step, (n,),
    by each evaluation of the log; they are computed only where episodes are cut.
    """
    if clusters.grouped or (not clusters.blocks and effective >= MIN_EFFECTIVE_CLUSTERS):
        return clusters
    n, time = len(episode), max(autocorrelation_time(one, episode) for one in values)
    if clusters.blocks:
        count = int(max(min(max(n / (BLOCK_TIMES * time), MIN_STREAM_BLOCKS), np.sqrt(n)), 2))
        return Clusters(np.arange(n) * count // n, count, blocks=True)
    blocks = cut(clusters.of_step, max(np.sqrt(n), BLOCK_TIMES * time))
    return Clusters(blocks, int(blocks.max()) + 1)


def autocorrelation_time(every: Array, episode: Array) -> float:
    """(1 + r) / (1 - r), r being the correlation of the values of consecutive steps: steps that count as one."""
    values = every - every.mean()
    follows = episode[1:] == episode[:-1]
    square = float(values @ values)
    if square <= 1e-24 * float(every @ every) or not follows.any():  # constant, up to rounding
        return 1.0
    pairs = float((values[1:] * values[:-1])[follows].mean())
    r = float(np.clip(pairs / (square / len(values)), 0.0, 0.9999))
    return (1 + r) / (1 - r)


def cut(cluster: Array, length: float) -> Array:
    """Clusters longer than 1.5 times `length` cut into consecutive blocks of about this length; renumbered."""
    order = np.argsort(cluster, kind="stable")
    sizes = np.bincount(cluster)
    blocks = np.maximum(1, np.round(sizes / length)).astype(np.int64)
    position = np.arange(len(cluster)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    sorted_sizes, sorted_blocks = np.repeat(sizes, sizes), np.repeat(blocks, sizes)
    first = np.repeat(np.cumsum(blocks) - blocks, sizes)
    renumbered = np.empty(len(cluster), np.int64)
    renumbered[order] = first + position * sorted_blocks // sorted_sizes
    return renumbered
