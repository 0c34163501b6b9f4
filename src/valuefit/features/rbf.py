"""Gaussian radial basis functions, and a constant."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from valuefit.features.scaling import data_range, in_words, range_in_words, row_blocks, to_unit, whole_number
from valuefit.features.transformer import FeatureTransformer
from valuefit.threads import limit_threads
from valuefit.typing import Array

SAMPLE = 20_000  # observations that centres are looked for among
NEAR = 0.1  # a grid point whose feature never exceeds this has no data around it


class RBF(FeatureTransformer):
    """A constant, then exp(-|x - c|^2 / (2 bandwidth^2)) for each centre c, x and c scaled to [0, 1]; dense rows.

    Up to two dimensions the centres stand on a grid over the range (points that no observation comes near are left
    out), in more they are found by k-means. Prefer it where data fill a small part of the space.
    Observations outside the range are taken at its edge.

    centres: how many at most, or the centres themselves, (count, dimensions). bandwidth: in units of the scaled
    range; None takes the distance between neighbouring centres (its median after k-means). seed: of k-means.
    low, high: ranges, one number or one a dimension; taken from the data where None.
    """

    def __init__(
        self,
        centres: Any = 100,
        bandwidth: float | None = None,
        *,
        seed: int = 0,
        low: Any = None,
        high: Any = None,
    ) -> None:
        self.centres = centres
        self.bandwidth = bandwidth
        self.seed = seed
        self.low = low
        self.high = high

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the ranges, place the centres and choose the bandwidth."""
        X = self._check_input(X, fitting=True)
        if self.bandwidth is not None and not (np.ndim(self.bandwidth) == 0 and 0 < float(self.bandwidth) < np.inf):
            raise ValueError(f"bandwidth is {self.bandwidth!r}; it must be a positive number, or None.")
        self.low_, self.high_ = data_range(X, self.low, self.high)
        if np.ndim(self.centres) == 0:
            sample = X
            if len(X) > SAMPLE:
                sample = X[np.sort(np.random.default_rng(self.seed).choice(len(X), SAMPLE, replace=False))]
            places, spacing = self._place(to_unit(sample, self.low_, self.high_))
            self.centres_ = self.low_ + places * (self.high_ - self.low_)
        else:
            self.centres_ = np.array(self.centres, np.float64)
            if self.centres_.ndim != 2 or self.centres_.shape[1] != X.shape[1] or len(self.centres_) == 0:
                raise ValueError(
                    f"centres has shape {self.centres_.shape}; give a number, or one row for each centre with "
                    f"{X.shape[1]} columns."
                )
            spacing = nearest(to_unit(self.centres_, self.low_, self.high_))
        self.bandwidth_ = float(self.bandwidth or spacing)
        return self

    def transform(self, X: Any) -> Any:
        """Rows (n, 1 + centres), in float64."""
        observations = self._check_input(X)
        centres = to_unit(self.centres_, self.low_, self.high_)
        out = np.empty((len(observations), 1 + len(centres)))
        out[:, 0] = 1.0
        for block in row_blocks(len(observations), 1 + len(centres)):
            out[block, 1:] = bumps(to_unit(observations[block], self.low_, self.high_), centres, self.bandwidth_)
        return self._output(out, X)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """One name a column."""
        self._check_fitted()
        return np.array(["constant", *(f"rbf{c}" for c in range(len(self.centres_)))], dtype=object)

    def options(self) -> dict[str, Any]:
        """The settings that make these features again without the data."""
        return {
            "centres": self.centres_.tolist(), "bandwidth": self.bandwidth_, "seed": int(self.seed),
            "low": self.low_.tolist(), "high": self.high_.tolist(),
        }  # fmt: skip

    def describe(self) -> str:
        """What was made, for a sentence."""
        return (
            f"{len(self.centres_)} radial basis functions of bandwidth {in_words(self.bandwidth_)} (in units of the "
            f"range) and a constant over {range_in_words(self.low_, self.high_)}"
        )

    def _place(self, Z: Array) -> tuple[Array, float]:
        """Scaled centres and the distance between neighbours."""
        count = whole_number("centres", self.centres, 1)
        moves = np.flatnonzero(self.high_ > self.low_)
        if len(moves) > 2:
            return by_clusters(Z, count, whole_number("seed", self.seed, 0))
        points = int(count ** (1 / max(len(moves), 1)) + 1e-9)
        if len(moves) == 0 or points < 2:
            return Z.mean(axis=0, keepdims=True), 1.0
        axis, spacing = np.linspace(0, 1, points), 1 / (points - 1)
        grid = np.zeros((points ** len(moves), Z.shape[1]))
        grid[:, moves] = np.stack(np.meshgrid(*[axis] * len(moves), indexing="ij"), axis=-1).reshape(len(grid), -1)
        reached = np.zeros(len(grid))
        for block in row_blocks(len(Z), len(grid)):
            np.maximum(reached, bumps(Z[block], grid, self.bandwidth or spacing).max(axis=0), out=reached)
        kept = reached >= min(NEAR, reached.max())
        return grid[kept], spacing


def bumps(Z: Array, centres: Array, bandwidth: float) -> Array:
    """exp(-|z - c|^2 / (2 bandwidth^2)) for every row and centre."""
    distance = np.einsum("ij,ij->i", Z, Z)[:, None] - 2 * Z @ centres.T
    distance += np.einsum("ij,ij->i", centres, centres)
    np.maximum(distance, 0, out=distance)
    distance *= -0.5 / bandwidth**2
    return np.exp(distance, out=distance)


def by_clusters(Z: Array, count: int, seed: int) -> tuple[Array, float]:
    """Centres by k-means on one thread, for sums in another order would give other bits."""
    distinct = np.unique(Z, axis=0)
    if len(distinct) <= count:
        return distinct, nearest(distinct)
    from sklearn.cluster import KMeans

    with limit_threads(1):
        centres = KMeans(count, n_init=1, max_iter=100, random_state=seed).fit(distinct).cluster_centers_
    return centres, nearest(centres)


def nearest(centres: Array) -> float:
    """The median distance from a centre to the one nearest to it; 1 where there is none."""
    from scipy.spatial import KDTree

    distinct = np.unique(centres, axis=0)
    if len(distinct) < 2:
        return 1.0
    return float(np.median(KDTree(distinct).query(distinct, k=2)[0][:, 1]))
