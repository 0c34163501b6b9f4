"""Clusters of steps that are treated as independent of each other."""

from __future__ import annotations

import numpy as np

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
