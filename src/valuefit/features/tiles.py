"""Tile coding (CMAC): overlapping grids, one active tile in each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import scipy.sparse as sparse

from valuefit.data.validation import MAX_INT32
from valuefit.features.scaling import count_option, data_range, is_list, range_text, refuse_large
from valuefit.features.transformer import FeatureTransformer
from valuefit.messages import shown
from valuefit.typing import Array

# Active tiles (observations x tilings) from which the numba kernel is used: NumPy needs about 2 ms per dimension for
# this many, while importing numba and compiling the kernel takes more than a second.
MIN_KERNEL_TILES = 100_000


class Tiles(FeatureTransformer):
    """Tile coding as CSR rows with one 1 in each tiling.

    Each tiling divides every dimension into `bins` tiles and is displaced by its own fraction of a tile, so rows are
    constant on small cells and generalise over whole tiles. A constant is in the span, because the tiles of a tiling
    sum to one. Prefer it in up to about four dimensions and for values with kinks.

    tilings: number of grids. bins: tiles per dimension, one number or one per dimension; None takes 8, or fewer (at
    least 2) in more than three dimensions, so that a tiling has at most 512 tiles. A displaced grid needs one tile more
    than fits into the range, so tiles have width range / (bins - 1), or range / bins in dimensions that wrap.
    displacement: in units of 1 / tilings of a tile, "asymmetric" (1, 3, 5, ..., coprime to `tilings`; avoids artefacts
    along the diagonal) or "uniform" (1 in every dimension). hashed: number of columns to hash tiles into; None gives
    each tile its column. `collisions_` counts the tiles of the training rows that share a column. wrap: indices of
    periodic dimensions, such as angles. low, high: ranges; None takes them from the data.

    Albus 1975; Sutton and Barto 2018, section 9.5.4.
    """

    def __init__(
        self,
        tilings: int = 8,
        bins: int | Sequence[int] | None = None,
        *,
        displacement: str = "asymmetric",
        hashed: int | None = None,
        wrap: Sequence[int] = (),
        low: Any = None,
        high: Any = None,
    ) -> None:
        self.tilings = tilings
        self.bins = bins
        self.displacement = displacement
        self.hashed = hashed
        self.wrap = wrap
        self.low = low
        self.high = high

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the ranges, and count collisions if tiles are hashed."""
        X = self._check_input(X, fitting=True)
        d = X.shape[1]
        bins = default_bins(d) if self.bins is None else self.bins
        self._check_settings(d, bins)
        self.low_, self.high_ = data_range(X, self.low, self.high)
        self.bins_ = np.broadcast_to(np.asarray(bins, np.int64), d).copy()
        self.tiles_ = math.prod(self.bins_.tolist())
        self._check_size(len(X))
        wraps = np.zeros(d, bool)
        wraps[list(self.wrap)] = True
        self.wraps_ = wraps
        widths = np.where(wraps, self.bins_, np.maximum(self.bins_ - 1, 1))
        extent = np.where(self.high_ > self.low_, self.high_ - self.low_, 1.0)
        self.scale_ = widths / extent
        parts = coprime(d, self.tilings) if self.displacement == "asymmetric" else np.ones(d, np.int64)
        self.shift_ = (np.arange(self.tilings)[:, None] * parts % self.tilings) / self.tilings
        self.shift_[:, self.bins_ == 1] = 0.0  # a single tile covers the whole range
        self.collisions_ = 0
        if self.hashed is not None:
            used = np.unique(self._tile_numbers(X))
            self.collisions_ = len(used) - len(np.unique(self._hash(used)))
        return self

    def transform(self, X: Any) -> Any:
        """CSR rows, (n, tilings * tiles) or (n, hashed); observations outside the range activate edge tiles."""
        columns = self._tile_numbers(self._check_input(X))
        if self.hashed is not None:
            columns = self._hash(columns)
        starts = np.arange(0, columns.size + 1, self.tilings)
        rows = sparse.csr_array((np.ones(columns.size), columns.ravel(), starts), shape=(len(columns), self._columns()))
        if self.hashed is not None:
            rows.sum_duplicates()
        return self._output(rows, X)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """One name per column."""
        self._check_fitted()
        return np.array([f"tile{column}" for column in range(self._columns())], dtype=object)

    def describe(self) -> str:
        """The fitted features in words."""
        bins = " x ".join(map(str, self.bins_[:4])) + (" x ..." if len(self.bins_) > 4 else "")
        return (
            f"{self.tilings} tilings of {bins} tiles ({self._columns()} features; the constant is the sum of a "
            f"tiling) over {range_text(self.low_, self.high_)}"
        )

    def _columns(self) -> int:
        return self.tilings * self.tiles_ if self.hashed is None else self.hashed

    def _tile_numbers(self, X: Array) -> Array:
        """Numbers (n, tilings) of the tiles that contain X, counted over all tilings.

        NumPy handles small inputs, because importing numba takes longer; both give the same numbers.
        """
        if len(X) * self.tilings < MIN_KERNEL_TILES:
            return tile_numbers(X, self.low_, self.scale_, self.shift_, self.bins_, self.wraps_, self.tiles_)
        from valuefit.features import tile_kernel

        out = np.empty((len(X), self.tilings), np.int64)
        tile_kernel.tile_numbers(X, self.low_, self.scale_, self.shift_, self.bins_, self.wraps_, self.tiles_, out)
        return out

    def _hash(self, tiles: Array) -> Array:
        """Columns by a fixed hash function, the same on every machine."""
        hashed = tiles.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        hashed ^= hashed >> np.uint64(29)
        hashed *= np.uint64(0xBF58476D1CE4E5B9)
        hashed ^= hashed >> np.uint64(32)
        return (hashed % np.uint64(self.hashed or 1)).astype(np.int64)

    def _check_size(self, rows: int) -> None:
        """Raise ValueError if there are too many columns or active tiles."""
        if self.hashed is None and self.tilings * self.tiles_ > MAX_INT32:
            raise ValueError(
                f"{self.tilings} tilings of {shown(self.tiles_)} tiles are too many columns. Use fewer bins, or "
                "hashed=10**6."
            )
        # three numbers for each active tile: its own, its column and its 1
        refuse_large(rows, 3 * self.tilings, self._columns(), "Use fewer tilings or bins.")

    def _check_settings(self, d: int, bins: Any) -> None:
        count_option("tilings", self.tilings, 1)
        bins = np.asarray(bins)
        valid = bins.ndim == 0 or bins.shape == (d,)
        if not valid or bins.dtype.kind not in "iu" or (bins < 1).any() or (bins > MAX_INT32).any():
            raise ValueError(
                f"bins is {shown(self.bins)}; give one positive number, or one for each of {d} dimensions, at most "
                f"{MAX_INT32:,}."
            )
        if not isinstance(self.displacement, str) or self.displacement not in ("asymmetric", "uniform"):
            raise ValueError(f'displacement is {shown(self.displacement)}; it must be "asymmetric" or "uniform".')
        if self.hashed is not None:
            count_option("hashed", self.hashed, 1)
        wrap = self.wrap if is_list(self.wrap) else [None]
        if not all(isinstance(dimension, int | np.integer) and 0 <= dimension < d for dimension in wrap):
            raise ValueError(f"wrap is {shown(self.wrap)}; give a list of dimensions, from 0 to {d - 1}.")


def default_bins(dimensions: int) -> int:
    """8 tiles per dimension; in more than three dimensions fewer, so that a tiling has at most 512, but at least 2."""
    return max(2, int(8 ** (3 / max(dimensions, 3)) + 1e-9))


def coprime(count: int, to: int) -> Array:
    """The first `count` odd numbers coprime to `to`, so that all tilings have different displacements."""
    odd: list[int] = []
    candidate = 1
    while len(odd) < count:
        if math.gcd(candidate, to) == 1:
            odd.append(candidate)
        candidate += 2
    return np.array(odd)


def tile_numbers(X: Array, low: Array, scale: Array, shift: Array, bins: Array, wraps: Array, tiles: int) -> Array:
    """`tile_kernel.tile_numbers` in NumPy, one dimension at a time, with identical results."""
    numbers = np.zeros((len(X), len(shift)), np.int64)
    for c in range(X.shape[1]):
        with np.errstate(over="ignore", invalid="ignore"):
            position = np.floor((X[:, c, None] - low[c]) * scale[c] + shift[:, c])
            if wraps[c]:
                number = position.astype(np.int64) % bins[c]
            else:
                number = np.clip(position, 0, bins[c] - 1).astype(np.int64)
        numbers = numbers * bins[c] + number
    return numbers + np.arange(len(shift)) * tiles
