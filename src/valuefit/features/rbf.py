"""Gaussian radial basis functions and a constant."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from valuefit.data.validation import number
from valuefit.features.scaling import (
    MAX_SAMPLED_OBSERVATIONS,
    count_option,
    data_range,
    number_text,
    range_text,
    refuse_large,
    row_blocks,
    squared_distances,
    to_unit,
)
from valuefit.features.transformer import FeatureTransformer
from valuefit.messages import shown
from valuefit.threads import limit_threads
from valuefit.typing import Array

MAX_PLACED_CENTRES = 10_000  # k-means of this many takes half a minute


class RBF(FeatureTransformer):
    """A constant, then exp(-|x - c|^2 / (2 bandwidth^2)) for each centre c, x and c scaled to [0, 1]; dense rows.

    In one or two dimensions the centres form a grid over the range, without the points that are far from all
    observations; in more dimensions k-means places them. Prefer it if the data fill a small part of the space.
    Observations outside the range are clipped to it.

    centres: maximum number, or the centres themselves, (count, dimensions). bandwidth: in units of the scaled
    range; None takes the distance between neighbouring centres (its median after k-means). seed: of k-means.
    low, high: ranges, one number or one per dimension; None takes them from the data.
    """

    def __init__(
        self, centres: Any = 100, bandwidth: float | None = None, *, seed: int = 0, low: Any = None, high: Any = None
    ) -> None:
        self.centres = centres
        self.bandwidth = bandwidth
        self.seed = seed
        self.low = low
        self.high = high

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the ranges, place the centres and choose the bandwidth."""
        X = self._check_input(X, fitting=True)
        if self.bandwidth is not None:
            requirement = "it must be a number from 1e-15 to 1e+15, or None"
            number("bandwidth", self.bandwidth, requirement, lambda x: 1e-15 <= x <= 1e15)
        seed = count_option("seed", self.seed, 0)
        self.low_, self.high_ = data_range(X, self.low, self.high)
        if np.isscalar(self.centres):
            columns = count_option("centres", self.centres, 1)
            if columns > MAX_PLACED_CENTRES:
                raise ValueError(
                    f"centres is {columns:,}; at most {MAX_PLACED_CENTRES:,} are placed. For more, give the centres."
                )
            refuse_large(len(X), columns, columns, "Use fewer centres.")
            sample = X
            if len(X) > MAX_SAMPLED_OBSERVATIONS:
                rng = np.random.default_rng(seed)
                sample = X[np.sort(rng.choice(len(X), MAX_SAMPLED_OBSERVATIONS, replace=False))]
            scaled, spacing = self._place_centres(to_unit(sample, self.low_, self.high_), columns, seed)
            self.centres_ = self.low_ + scaled * (self.high_ - self.low_)
        else:
            self.centres_ = given_centres(self.centres, X.shape[1])
            refuse_large(len(X), len(self.centres_), len(self.centres_), "Give fewer centres.")
            spacing = neighbour_distance(to_unit(self.centres_, self.low_, self.high_))
        self.bandwidth_ = float(self.bandwidth or spacing)
        return self

    def transform(self, X: Any) -> Any:
        """Rows (n, 1 + centres), in float64."""
        observations = self._check_input(X)
        centres = to_unit(self.centres_, self.low_, self.high_)
        out = np.empty((len(observations), 1 + len(centres)))
        out[:, 0] = 1.0
        for block in row_blocks(len(observations), 1 + len(centres)):
            out[block, 1:] = gaussians(to_unit(observations[block], self.low_, self.high_), centres, self.bandwidth_)
        return self._output(out, X)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """One name per column."""
        self._check_fitted()
        return np.array(["constant", *(f"rbf{c}" for c in range(len(self.centres_)))], dtype=object)

    def describe(self) -> str:
        """The fitted features in words."""
        return (
            f"{len(self.centres_)} radial basis functions of bandwidth {number_text(self.bandwidth_)} (in units of the "
            f"range) and a constant over {range_text(self.low_, self.high_)}"
        )

    def _place_centres(self, Z: Array, count: int, seed: int) -> tuple[Array, float]:
        """Up to `count` centres for the scaled observations Z, and the distance between neighbouring centres."""
        varying = np.flatnonzero(self.high_ > self.low_)
        if len(varying) > 2:
            return kmeans_centres(Z, count, seed)
        points = int(count ** (1 / max(len(varying), 1)) + 1e-9)
        if len(varying) == 0 or points < 2:
            return Z.mean(axis=0, keepdims=True), 1.0
        axis, spacing = np.linspace(0, 1, points), 1 / (points - 1)
        grid = np.zeros((points ** len(varying), Z.shape[1]))
        grid[:, varying] = np.stack(np.meshgrid(*[axis] * len(varying), indexing="ij"), axis=-1).reshape(len(grid), -1)
        activation = np.zeros(len(grid))
        for block in row_blocks(len(Z), len(grid)):
            np.maximum(activation, gaussians(Z[block], grid, self.bandwidth or spacing).max(axis=0), out=activation)
        # grid points whose feature stays below 0.1 on all observations are dropped
        kept = activation >= min(0.1, activation.max())
        return grid[kept], spacing


def given_centres(centres: Any, dimensions: int) -> Array:
    """The option `centres` as rows of numbers."""
    try:
        rows = np.array(centres, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"centres is {shown(centres)}; give a number, or rows of numbers.") from None
    if not np.isfinite(rows).all():
        raise ValueError("centres has a number that is NaN or infinite.")
    if rows.ndim != 2 or rows.shape[1] != dimensions or len(rows) == 0:
        raise ValueError(
            f"centres has shape {rows.shape}; give a number, or one row for each centre with {dimensions} columns."
        )
    return rows


def gaussians(Z: Array, centres: Array, bandwidth: float) -> Array:
    """exp(-|z - c|^2 / (2 bandwidth^2)) for every row z and centre c."""
    distance = squared_distances(Z, centres)
    distance *= -0.5 / bandwidth**2
    return np.exp(distance, out=distance)


def kmeans_centres(Z: Array, count: int, seed: int) -> tuple[Array, float]:
    """Centres by k-means, and their neighbour distance; one thread, because the order of sums changes the last bits."""
    distinct = np.unique(Z, axis=0)
    if len(distinct) <= count:
        return distinct, neighbour_distance(distinct)
    from sklearn.cluster import KMeans

    with limit_threads(1):
        centres = KMeans(count, n_init=1, max_iter=100, random_state=seed).fit(distinct).cluster_centers_
    return centres, neighbour_distance(centres)


def neighbour_distance(centres: Array) -> float:
    """Median distance from a centre to its nearest neighbour; 1 for a single centre."""
    from scipy.spatial import KDTree

    distinct = np.unique(centres, axis=0)
    if len(distinct) < 2:
        return 1.0
    return float(np.median(KDTree(distinct).query(distinct, k=2)[0][:, 1]))
