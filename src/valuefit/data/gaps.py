"""Gaps in observations: which columns have them, what fills them, and how the log is refused without that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from valuefit.data.validation import ROWS_PER_CHECK, all_finite, first_row, with_missing
from valuefit.messages import RowError, shown
from valuefit.typing import Array

MISSING = ("refuse", "flag")  # what is done with gaps
MAX_LISTED = 8  # columns with gaps that a message names


class Column(NamedTuple):
    """A column of a source: its entries of an observation, from first to stop, several for lists and categories."""

    name: str
    first: int
    stop: int
    categories: bool = False


@dataclass(frozen=True)
class Gap:
    """A column in which values are missing. fill: what its entries hold there. share: of the steps."""

    name: str
    first: int
    stop: int
    fill: float
    share: float


@dataclass(frozen=True)
class Filling:
    """How the gaps in the observations of a log are filled.

    columns: all of them. shape: of an observation with its gaps. gaps: the columns that have some, each with an
    indicator, which is 1 where the column is missing. A filled observation has its entries, then the indicators.
    """

    columns: tuple[Column, ...]
    shape: tuple[int, ...]
    gaps: tuple[Gap, ...]

    @property
    def width(self) -> int:
        """The number of entries of an observation with its gaps."""
        return math.prod(self.shape)

    @property
    def filled_shape(self) -> tuple[int]:
        """The shape of a filled observation."""
        return (self.width + len(self.gaps),)

    @property
    def indicators(self) -> tuple[str, ...]:
        """The names of the indicators."""
        return tuple(f"{gap.name} missing" for gap in self.gaps)

    def fill(self, observations: Any) -> Array:
        """Filled observations (m, width + indicators); those that are filled already are returned as they are.

        Raises ValueError if a value is missing in a column without gaps in the log.
        """
        given = with_nan(observations)
        if given.shape[1:] == self.filled_shape or given.dtype.kind not in "biuf":
            return given  # others are refused where they are used
        if given.ndim == 0 or math.prod(given.shape[1:]) != self.width:
            raise ValueError(
                f"The observations have shape {given.shape}; give {self.width} numbers for each, NaN where a value is "
                "missing."
            )
        rows = given.reshape(len(given), self.width)
        dtype = rows.dtype if rows.dtype.kind == "f" else np.float64
        filled = np.concatenate([rows, np.zeros((len(rows), len(self.gaps)))], axis=1, dtype=dtype)
        for number, gap in enumerate(self.gaps, self.width):
            missing = np.isnan(filled[:, gap.first : gap.stop]).any(axis=1)
            filled[missing, gap.first : gap.stop] = gap.fill
            filled[:, number] = missing
        unknown = np.isnan(filled)
        if unknown.any():
            row, entry = (int(k) for k in np.argwhere(unknown)[0])
            name = next(one.name for one in self.columns if one.first <= entry < one.stop)
            raise RowError(
                f"{shown(name)} is missing at", row, ". The log has no gap in this column, so nothing is known "
                "of what that means. Give its value.",
            )  # fmt: skip
        return filled

    def raw(self, observations: Array) -> Array:
        """Filled observations as they were, with NaN in the entries that were missing."""
        if observations.shape[1:] != self.filled_shape:
            return observations
        rows = np.array(observations[:, : self.width])
        for number, gap in enumerate(self.gaps, self.width):
            rows[observations[:, number] == 1, gap.first : gap.stop] = np.nan
        return rows.reshape(len(rows), *self.shape)

    def sentence(self, sample: str = "") -> str:
        """What was filled, for the notes. sample: what the medians are those of, if not of the log."""
        return (
            f"Filled gaps in the observations, {_listed(self.columns, self.gaps)}: numbers with their median{sample}, "
            "categories with one of their own. An entry of the observation for each of these columns is 1 where it "
            "was missing; policies see the columns with their gaps."
        )


class GapScan:
    """Counts missing values by column, in one part of a log after the other, and keeps rows for their medians.

    columns: of the observations. limit: bytes of the rows that are kept; None: all rows.
    stride: they are every k-th one, k being the smallest power of two with which they fit.
    """

    def __init__(self, columns: Sequence[Column], limit: int | None = None) -> None:
        self.columns, self.limit, self.stride = columns, limit, 1
        self.rows = 0
        self.counts, self.after = np.zeros((2, len(columns)), np.int64)
        self.first: int | None = None  # row with a gap
        self._shape: tuple[int, ...] = ()
        self._parts: list[Array] = []

    def add(self, observations: Any, after: Any = None) -> None:
        """The next rows; after: next observations, in which rows that are missing as a whole are no gaps."""
        values, self._shape = _matrix(observations), np.shape(observations)[1:]
        counts, first = self._missing(values)
        if first is not None and self.first is None:
            self.first = self.rows + first
        self.counts += counts
        if after is not None and np.shape(after)[1:] == self._shape:
            following = _matrix(after)
            self.after += self._missing(following[~np.isnan(following).all(axis=1)])[0]
        self._parts.append(values[-self.rows % self.stride :: self.stride])
        self.rows += len(values)
        while self.limit is not None and sum(part.nbytes for part in self._parts) > max(self.limit, values[:1].nbytes):
            self._parts, self.stride = [np.concatenate(self._parts)[::2].copy()], 2 * self.stride

    def _missing(self, values: Array) -> tuple[Array, int | None]:
        """Missing values by column, and the first row with one."""
        counts, first = np.zeros(len(self.columns), np.int64), None
        for start in range(0, len(values), ROWS_PER_CHECK):
            block = values[start : start + ROWS_PER_CHECK]
            if all_finite(block):
                continue
            missing = np.isnan(block)
            counts += [int(missing[:, one.first : one.stop].any(axis=1).sum()) for one in self.columns]
            row = first_row(np.asarray(missing.any(axis=1)))
            first = start + row if first is None and row is not None else first
        return counts, first

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The columns with gaps in these rows."""
        return tuple(
            Gap(one.name, one.first, one.stop, 0.0 if one.categories else self._median(one.first), count / self.rows)
            for one, count, after in zip(self.columns, self.counts.tolist(), self.after.tolist(), strict=True)
            if count or after
        )

    def _median(self, entry: int) -> float:
        """0 of a column that is missing everywhere."""
        values = np.concatenate([part[:, entry] for part in self._parts])
        known = values[~np.isnan(values)]
        return float(np.median(known)) if len(known) else 0.0

    def filling(self) -> Filling | None:
        """How these rows are filled; None without gaps."""
        gaps = self.gaps
        return Filling(tuple(self.columns), self._shape, gaps) if gaps else None


def gaps_error(observations: Any, columns: Sequence[Column], where: str = "") -> RowError:
    """The error for a log whose observations have gaps."""
    scan = GapScan(columns)
    scan.add(observations)
    assert scan.first is not None
    return RowError(
        f"The observations have {_listed(columns, scan.gaps)}; the first is at",
        scan.first, '. Load the log with `missing="flag"`, which fills them and flags where they were, or fill them '
        "yourself. Keep these steps: without them the ones before and after would be taken for consecutive ones.",
        where=where,
    )  # fmt: skip


def numbered_columns(observations: Any) -> list[Column]:
    """The columns of observations (n, ...) whose names are not known."""
    return [Column(f"column {k}", k, k + 1) for k in range(math.prod(np.shape(observations)[1:]))]


def has_gaps(observations: Any) -> bool:
    """Whether some number is missing: NaN, masked, None or pandas.NA."""
    array, missing = with_missing("observation", observations)
    if missing is not None and missing.any():
        return True
    array = np.atleast_1d(array)
    blocks = (array[start : start + ROWS_PER_CHECK] for start in range(0, len(array), ROWS_PER_CHECK))
    return array.dtype.kind == "f" and any(not all_finite(block) and bool(np.isnan(block).any()) for block in blocks)


def fill_arrays(
    observations: Any, after: Any, columns: Sequence[Column], filling: Filling | None = None
) -> tuple[Any, Any, Array | None, Filling | None]:
    """Observations and next observations without gaps, which of the latter are missing as a whole, and the filling.

    after: None where the log has no next observations. filling: one that is known; None takes that of these rows.
    """
    if filling is None:
        scan = GapScan(columns)
        scan.add(observations, after)
        filling = scan.filling()
    if filling is None:
        return observations, after, None, None
    if after is None or np.shape(after) != np.shape(observations):
        return filling.fill(observations), after, None, filling
    following = _matrix(after)
    unknown = np.asarray(np.isnan(following).all(axis=1))
    following = np.where(unknown[:, None], _matrix(observations), following)
    return filling.fill(observations), filling.fill(following), unknown, filling


def with_nan(values: Any) -> Array:
    """An array with NaN where a number is missing: masked, None or pandas.NA."""
    array, missing = with_missing("observation", values)
    if missing is None or not missing.any():
        return array
    dtype = array.dtype if array.dtype.kind == "f" else np.dtype(np.float64)
    try:
        return np.where(missing, np.nan, array).astype(dtype)
    except (TypeError, ValueError):  # objects that are no numbers, which are refused where they are used
        return array


def _listed(columns: Sequence[Column], gaps: Sequence[Gap]) -> str:
    """ "45 columns, 3 with gaps: creatinine 12%, lactate 8%, weight 0.5%"."""
    listed = sorted(gaps, key=lambda gap: -gap.share)
    shares = ", ".join(f"{gap.name[:60]} {100 * gap.share:.2g}%" for gap in listed[:MAX_LISTED])
    more = f" and {len(gaps) - MAX_LISTED} more" if len(gaps) > MAX_LISTED else ""
    return f"{len(columns)} column{'s' * (len(columns) != 1)}, {len(gaps)} with gaps: {shares}{more}"


def _matrix(observations: Any) -> Array:
    """Observations with NaN where a value is missing, as a matrix with one row each."""
    values = with_nan(observations)
    return values.reshape(len(values), math.prod(values.shape[1:]))
