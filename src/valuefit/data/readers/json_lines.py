"""JSON Lines: one object per line, either a step or a batch of steps (lists of equal length), as RLlib writes."""

from __future__ import annotations

import json
from collections.abc import Iterator, KeysView, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from valuefit.data.columns import ColumnMap, columns_to_read, match_columns, may_match
from valuefit.data.files import open_file
from valuefit.data.labels import is_text
from valuefit.data.table import Table, is_missing, join_parts
from valuefit.data.text import refuse_packed
from valuefit.data.validation import MAX_EXACT_FLOAT
from valuefit.memory import check_size
from valuefit.messages import said, shown
from valuefit.typing import Array

EXTENSIONS = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz")
COPIES = 4
STEPS_PER_PIECE = 4096  # steps converted to arrays at a time, because lists of numbers take 4 times their memory


def read(path: Path, *, columns: Mapping[str, Any] | None, limit: int) -> Table:
    """The columns of a JSON Lines file; objects inside a step are flattened (`{"obs": {"x": 1}}` is `obs/x`).

    A line whose reward is a list is a batch. A key that a line does not have is missing in its steps.
    """
    where = str(path)
    names: dict[str, None] = {}  # keys seen so far, in order
    matched: ColumnMap = {}
    pieces, matters = _Pieces(where), may_match(columns)
    new = False  # whether keys that matter have come since the last match, which takes the time of all keys
    with open_file(path) as stream:
        # Python needs up to 32 bytes for a character of JSON ("{}," becomes 72); lines of 64 KiB are always read
        for line, record in _records(stream, where, max(limit // 32, 1 << 16)):
            others = [name for name in record if name not in names]
            names.update(dict.fromkeys(others))
            if others := list(filter(matters, others)):
                new = True
                pieces.add_columns(others)
            if not matched or (new and pieces.full):
                matched, new = match_columns(list(names), columns, where), False
                pieces.keep_columns(columns_to_read(matched))
            if pieces.full:
                pieces.convert()
            record = {name: record[name] for name in record if name in pieces.names}
            pieces.add(line, *_steps(record, str(matched["reward"]), f"line {line} of {where}"))
            check_size(pieces.size, limit, where)
    if not names:
        raise ValueError(f"{where} is empty: it has no line with a step.")
    if new:
        matched = match_columns(list(names), columns, where)
        pieces.keep_columns(columns_to_read(matched))
    arrays = pieces.arrays()
    check_size(pieces.size, limit, where)
    return Table(matched, arrays.__getitem__, where)


def _records(stream: BinaryIO, where: str, longest: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number, from 1, and flattened object of each line that is not empty."""
    number = 0
    while line := stream.readline(longest + 1):
        number += 1
        if len(line) > longest:
            raise ValueError(
                f"Line {number} of {where} is longer than {longest:,} bytes, too long for the memory limit. Write "
                "fewer steps per line, or load it with a larger `limit` (in bytes)."
            )
        if not line.strip():
            continue
        try:
            record = json.loads(line, object_pairs_hook=_unique_keys)
            if not isinstance(record, dict):
                raise ValueError(f"it is a {type(record).__name__}")
            flat = dict(_flatten(record, ""))
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"Line {number} of {where} is not a JSON object ({said(error)}). valuefit reads JSON Lines: each line "
                "is one object, a step or a batch of lists."
            ) from error
        if record.get("type") == "MultiAgentBatch":
            raise ValueError(
                f"Line {number} of {where} is a batch of several agents. Write the batch of one policy (an entry of "
                "its policy_batches) on the line."
            )
        yield number, flat


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError("a key occurs twice")
    return record


def _flatten(record: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in record.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}/")
        else:
            yield prefix + key, value


def _steps(record: dict[str, Any], reward: str, where: str) -> tuple[int, dict[str, list[Any]]]:
    """The number of steps of a line, and the values of each of its columns, one per step."""
    if not isinstance(record.get(reward), list):
        return 1, {name: [value] for name, value in record.items()}
    count = len(record[reward])
    batch = {}
    for name, values in record.items():
        if isinstance(values, str):
            refuse_packed(values, name, where)
        if values is not None and (not isinstance(values, list) or len(values) != count):
            given = f"a list of {len(values)}" if isinstance(values, list) else f"a {type(values).__name__}"
            raise ValueError(
                f"{name!r} is {given} in {where}, but {reward!r} is a list of {count}. Give one entry per step in "
                "every list, or single values in every key for one step per line."
            )
        batch[name] = [None] * count if values is None else values
    return count, batch


class _Pieces:
    """Columns that grow by steps: arrays of STEPS_PER_PIECE steps or more, and the values after the last array."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.size = 0  # bytes of the arrays
        self._arrays: dict[str, list[Array]] = {}
        self._values: dict[str, list[Any]] = {}  # of the lines that have them, up to the last one that does
        self._lines: list[int] = []  # of the steps in `_values`
        self._counts: list[int] = []  # steps in each array

    @property
    def names(self) -> KeysView[str]:
        return self._values.keys()

    def add_columns(self, names: list[str]) -> None:
        """Begin columns whose values are missing in all steps so far."""
        for name in names:
            if name not in self._values:
                self._values[name] = []
                self._arrays[name] = [np.full(count, np.nan) for count in self._counts]
                self.size += 8 * sum(self._counts)

    def keep_columns(self, names: list[str]) -> None:
        """Drop the other columns."""
        self._values = {name: self._values[name] for name in names}
        self._arrays = {name: self._arrays[name] for name in names}

    @property
    def full(self) -> bool:
        """Whether the steps after the last array are to be converted."""
        return len(self._lines) >= STEPS_PER_PIECE

    def add(self, line: int, count: int, steps: dict[str, list[Any]]) -> None:
        """Add this many steps; columns that `steps` does not have are missing in them."""
        for name, values in steps.items():
            column = self._values[name]
            column.extend([None] * (len(self._lines) - len(column)))
            column.extend(values)
        self._lines.extend([line] * count)

    def arrays(self) -> dict[str, Array]:
        """All steps; the collected pieces are released."""
        if self._lines or not self._counts:
            self.convert()
        stops = np.cumsum(self._counts)
        places = [
            f"steps {stop - count} to {stop - 1} of {self.where}"
            for stop, count in zip(stops, self._counts, strict=True)
        ]
        return {name: _join(name, self._arrays.pop(name), places) for name in list(self._arrays)}

    def convert(self) -> None:
        """Convert the steps after the last array to one."""
        for name, values in self._values.items():
            values.extend([None] * (len(self._lines) - len(values)))
            array = _to_array(name, values, self._lines, self.where)
            self.size += array.nbytes
            if array.dtype.hasobject:
                self.size += sum(map(len, set(array.tolist()) - {None}))
            self._arrays[name].append(array)
            values.clear()
        self._counts.append(len(self._lines))
        self._lines.clear()


def _join(name: str, parts: list[Array], places: list[str]) -> Array:
    """One array of the pieces of a column; a piece without any value takes the shape and the type of the others."""
    like = next((part for part in parts if not is_missing(part)), None)
    if like is not None and not is_text(like):
        parts = [
            _missing_numbers((len(part), *like.shape[1:]), like.dtype) if is_missing(part) else part for part in parts
        ]
    return join_parts(name, parts, places)


def _missing_numbers(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Missing numbers: NaN, or masked integers."""
    return np.full(shape, np.nan, dtype) if dtype.kind == "f" else np.ma.masked_all(shape, dtype)


def _to_array(name: str, values: list[Any], lines: list[int], where: str) -> Array:
    """Numbers, or text as objects, one entry per step; null is NaN, masked among integers, or None among text."""
    known = [value for value in values if value is not None]
    if not known:
        return np.full(len(values), np.nan)
    if all(isinstance(value, str) for value in known):
        return np.array(values, dtype=object)
    try:
        array = np.array(known)
        if array.dtype.hasobject and all(leaf is None or isinstance(leaf, int | float) for leaf in array.flat):
            array = array.astype(np.float64)  # null inside lists, or integers of more than 64 bits
    except (ValueError, OverflowError):  # lists of different length, or integers beyond floating point
        array = np.zeros(0, object)
    if array.dtype.kind not in "biuf" or not _is_exact(known, array):
        row = _first_odd(values)
        raise ValueError(
            f"Column {name!r} of {where} differs from the lines before, or is not exact in floating point, at line "
            f"{lines[row]}: {shown(values[row])}. Give every step a number, numbers in lists of one shape, or text."
        )
    if len(known) == len(values):
        return array
    filled = _missing_numbers((len(values), *array.shape[1:]), array.dtype)
    filled[[value is not None for value in values]] = array
    return filled


def _is_exact(known: list[Any], array: Array) -> bool:
    """Whether an array of floats represents the integers among `known`."""
    if array.dtype.kind != "f" or np.nanmax(np.abs(array), initial=0) < MAX_EXACT_FLOAT:
        return True
    return all(_is_exact_float(leaf) for leaf in np.array(known, dtype=object).flat)


def _is_exact_float(leaf: Any) -> bool:
    return not isinstance(leaf, int) or int(float(leaf)) == leaf


def _first_odd(values: list[Any]) -> int:
    """Row of the first entry that differs in kind or shape from the first one, or cannot be converted by itself."""
    kinds = []
    for row, value in enumerate(values):
        if value is None:
            continue
        try:
            kind: Any = "text" if isinstance(value, str) else np.shape(value)
            odd = not isinstance(value, str) and not all(
                leaf is None or (isinstance(leaf, int | float) and _is_exact_float(leaf))
                for leaf in np.array(value, dtype=object).flat
            )
        except (ValueError, OverflowError):
            return row
        kinds.append(kind)
        if odd or kind != kinds[0]:
            return row
    return 0
