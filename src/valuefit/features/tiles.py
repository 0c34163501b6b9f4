"""Tile coding (CMAC): overlapping grids, one active tile in each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import scipy.sparse as sparse

from valuefit.features.scaling import data_range, range_in_words, whole_number
from valuefit.features.transformer import FeatureTransformer
from valuefit.typing import Array

MOST_COLUMNS = 2**31 - 1  # indices of CSR rows have 32 bits
# Active tiles (observations x tilings) from which the numba kernel is used: NumPy needs about 2 ms a dimension for
# this many, importing numba and compiling the kernel more than a second.
MIN_KERNEL_TILES = 100_000


class Tiles(FeatureTransformer):
    """Tile coding as CSR rows with one 1 in each tiling.

    Tiling i divides every dimension into `bins` tiles, shifted by a part of a tile that differs between tilings,
    so that rows are constant on small cells and share tiles over large ones. A constant is in the span, for the
    tiles of a tiling sum to one. Prefer it for few dimensions (up to four or so) and values with kinks.

    tilings: how many grids. bins: tiles a dimension in each, one number or one a dimension; a displaced grid
    needs one tile more than the range has widths, so the width is range / (bins - 1), or range / bins where a
    dimension wraps. displacement: "asymmetric" (1, 3, 5, ... parts, coprime to
    the number of tilings, which avoids artefacts along the diagonal) or
    "uniform" (the same part in every dimension). hashed: number of columns to hash tiles into, None for one column
    each; `collisions_` counts the tiles of the training rows that share a column. wrap: dimensions (by number) in
    which the range closes on itself, such as angles. low, high: ranges; taken from the data where None.

    Albus 1975; Sutton and Barto 2018, section 9.5.4.
    """

    def __init__(
        self,
        tilings: int = 8,
        bins: int | Sequence[int] = 8,
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
        self._check(d)
        self.low_, self.high_ = data_range(X, self.low, self.high)
        self.bins_ = np.broadcast_to(np.asarray(self.bins, np.int64), d).copy()
        wraps = np.zeros(d, bool)
        wraps[list(self.wrap)] = True
        self.wraps_ = wraps
        widths = np.where(wraps, self.bins_, np.maximum(self.bins_ - 1, 1))
        extent = np.where(self.high_ > self.low_, self.high_ - self.low_, 1.0)
        self.scale_ = widths / extent
        parts = coprime(d, self.tilings) if self.displacement == "asymmetric" else np.ones(d, np.int64)
        self.shift_ = (np.arange(self.tilings)[:, None] * parts % self.tilings) / self.tilings
        # one tile cannot be displaced
        self.shift_[:, self.bins_ == 1] = 0.0
        self.tiles_ = math.prod(self.bins_.tolist())
        if self.hashed is None and self.tilings * self.tiles_ > MOST_COLUMNS:
            raise ValueError(
                f"{self.tilings} tilings of {self.tiles_} tiles are too many columns. Use fewer bins, or hashed=10**6."
            )
        self.collisions_ = 0
        if self.hashed is not None:
            used = np.unique(self._tiles(X))
            self.collisions_ = len(used) - len(np.unique(self._hash(used)))
        return self

    def transform(self, X: Any) -> Any:
        """CSR rows, (n, tilings * tiles) or (n, hashed); observations outside the range take the tile at its edge."""
        columns = self._tiles(self._check_input(X))
        if self.hashed is not None:
            columns = self._hash(columns)
        starts = np.arange(0, columns.size + 1, self.tilings)
        rows = sparse.csr_array((np.ones(columns.size), columns.ravel(), starts), shape=(len(columns), self._columns()))
        if self.hashed is not None:
            rows.sum_duplicates()
        return self._output(rows, X)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """One name a column."""
        self._check_fitted()
        return np.array([f"tile{column}" for column in range(self._columns())], dtype=object)

    def options(self) -> dict[str, Any]:
        """The settings that make these features again without the data."""
        return {
            "tilings": int(self.tilings), "bins": self.bins_.tolist(), "displacement": self.displacement,
            "hashed": self.hashed, "wrap": [int(dimension) for dimension in self.wrap],
            "low": self.low_.tolist(), "high": self.high_.tolist(),
        }  # fmt: skip

    def describe(self) -> str:
        """What was made, for a sentence."""
        bins = " x ".join(map(str, self.bins_[:4])) + (" x ..." if len(self.bins_) > 4 else "")
        return (
            f"{self.tilings} tilings of {bins} tiles ({self._columns()} features; the constant is the sum of a "
            f"tiling) over {range_in_words(self.low_, self.high_)}"
        )

    def _columns(self) -> int:
        return self.tilings * self.tiles_ if self.hashed is None else self.hashed

    def _tiles(self, X: Array) -> Array:
        """Numbers (n, tilings) of the tiles that hold X, counted over all tilings.

        Small inputs are numbered by NumPy, because numba takes longer to load than they take; both agree exactly.
        """
        if len(X) * self.tilings < MIN_KERNEL_TILES:
            return tile_numbers(X, self.low_, self.scale_, self.shift_, self.bins_, self.wraps_, self.tiles_)
        from valuefit.features import tile_kernel

        out = np.empty((len(X), self.tilings), np.int64)
        tile_kernel.tile_numbers(X, self.low_, self.scale_, self.shift_, self.bins_, self.wraps_, self.tiles_, out)
        return out

    def _hash(self, tiles: Array) -> Array:
        """A fixed mixing of the bits, so that the same tile has the same column on every machine."""
        mixed = tiles.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(32)
        return (mixed % np.uint64(self.hashed or 1)).astype(np.int64)

    def _check(self, d: int) -> None:
        whole_number("tilings", self.tilings, 1)
        bins = np.asarray(self.bins)
        if bins.ndim > 1 or (bins.ndim == 1 and len(bins) != d) or bins.dtype.kind not in "iu" or (bins < 1).any():
            raise ValueError(f"bins is {self.bins}; give one positive number, or one for each of {d} dimensions.")
        if self.displacement not in ("asymmetric", "uniform"):
            raise ValueError(f'displacement is {self.displacement!r}; it must be "asymmetric" or "uniform".')
        if self.hashed is not None:
            whole_number("hashed", self.hashed, 1)
        if any(not 0 <= dimension < d for dimension in self.wrap):
            raise ValueError(f"wrap is {tuple(self.wrap)}; dimensions run from 0 to {d - 1}.")


def coprime(count: int, to: int) -> Array:
    """The first odd numbers that share no factor with `to`: any other would leave some displacements unused."""
    found: list[int] = []
    candidate = 1
    while len(found) < count:
        if math.gcd(candidate, to) == 1:
            found.append(candidate)
        candidate += 2
    return np.array(found)


def tile_numbers(X: Array, low: Array, scale: Array, shift: Array, bins: Array, wraps: Array, tiles: int) -> Array:
    """`tile_kernel.tile_numbers` in NumPy, one dimension at a time: the same numbers to the bit."""
    numbers = np.zeros((len(X), len(shift)), np.int64)
    for c in range(X.shape[1]):
        with np.errstate(over="ignore", invalid="ignore"):
            place = np.floor((X[:, c, None] - low[c]) * scale[c] + shift[:, c])
            number = place.astype(np.int64) % bins[c] if wraps[c] else np.clip(place, 0, bins[c] - 1).astype(np.int64)
        numbers = numbers * bins[c] + number
    return numbers + np.arange(len(shift)) * tiles
