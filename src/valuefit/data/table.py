"""The columns of a source, matched to the fields of a log; several files become one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from valuefit.data.columns import ID_FIELDS, ColumnMap, columns_of, columns_to_read, single_columns
from valuefit.data.continuity import Continuity
from valuefit.data.exact import common_dtype, exact
from valuefit.data.gaps import Filling
from valuefit.data.labels import first_text, is_text
from valuefit.memory import check_size
from valuefit.typing import Array


@dataclass(frozen=True)
class Table:
    """What a reader found in a source: the columns of each field and a function that reads a column by its name.

    `read` masks missing integers; missing floats are NaN, and missing text is None. `where` names the source in error
    messages. `files` are the name and the number of rows of each file, in order, if the log has several. `entries`
    names the entries of columns that are vectors. `known` has names of episodes, states and actions ("episode", "obs",
    "action") that are text, among them some that no row has. `notes` list what was assumed so far. `missing`, one of
    `gaps.MISSING`, says what is done with gaps in observations; `filling` how they are filled, `continuity` how many
    steps are consecutive, where either is known before they are read.
    """

    matched: ColumnMap
    read: Callable[[str], Array]
    where: str
    files: tuple[tuple[str, int], ...] = ()
    entries: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    known: Mapping[str, Sequence[str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    missing: str = "refuse"
    filling: Filling | None = None
    continuity: Continuity | None = None

    def place(self, row: int) -> str:
        """The file and the row in it, counted from 0, of a row of this table."""
        for name, rows in self.files:
            if row < rows:
                return f"row {row} of {name}"
            row -= rows
        return f"row {row} of {self.where}"


def released(
    columns: dict[str, Any], matched: ColumnMap, convert: Callable[[str, Any], Array]
) -> Callable[[str], Array]:
    """The `read` of a `Table` of these columns, each of which is released when the last field that has it is read.

    convert: a column to an array, by its name.
    """
    uses = Counter(name for field in matched for name in columns_of(matched, field))

    def read(name: str) -> Array:
        uses[name] -= 1
        return convert(name, columns[name] if uses[name] > 0 else columns.pop(name))

    return read


class Scan(NamedTuple):
    """What is known of a file before its rows are read.

    types: of the columns of all fields, "text" or another name. marks: the columns of these names, in batches of up to
    so many rows.
    """

    matched: ColumnMap
    rows: int
    step_bytes: int
    types: Mapping[str, str]
    marks: Callable[[Sequence[str], int], Iterator[list[Array]]]


def join(tables: Iterable[Table], where: str, limit: int) -> Table:
    """One table of the rows of all files, which must have the same columns; its columns take at most `limit` bytes.

    Files are read one after the other, and of each only the arrays are kept.
    """
    parts: dict[str, list[Array]] = {}
    files: list[tuple[str, int]] = []
    known: dict[str, list[str]] = {}
    counts: list[Continuity | None] = []
    first, size, filled_alike = None, 0, True
    empty: dict[str, Array] = {}
    for table in tables:
        first = table if first is None else first
        _check_same_columns(first, table)
        filled_alike &= table.filling == first.filling
        counts.append(table.continuity)
        arrays = {name: table.read(name) for name in columns_to_read(table.matched)}
        rows = len(arrays[str(table.matched["reward"])])
        if rows == 0 and all(len(array) == 0 for array in arrays.values()):
            empty = empty or arrays
            continue  # columns of an empty file have neither type nor shape
        files.append((table.where, rows))
        for name, names in table.known.items():
            known.setdefault(name, []).extend(names)
        size += sum(array.nbytes for array in arrays.values())
        check_size(size, limit, where)
        for name, array in arrays.items():
            parts.setdefault(name, []).append(array)
    assert first is not None
    if not files:
        return replace(first, read=empty.__getitem__)
    paths = [path for path, _ in files]
    for name in single_columns(first.matched, ID_FIELDS):
        parts[name] = _ids_as_text(parts[name])
    columns = {name: join_parts(name, parts.pop(name), paths) for name in list(parts)}
    note = f"Read {len(files)} files in the order of their names, from {paths[0]} to {paths[-1]}."
    notes = (note,) if len(files) > 1 else ()
    return Table(
        first.matched, columns.__getitem__, where, tuple(files), known=known, notes=notes,
        filling=first.filling if filled_alike else None,
        continuity=None if None in counts else sum(filter(None, counts), Continuity()),
    )  # fmt: skip


def _check_same_columns(first: Table, table: Table) -> None:
    for name in {**first.matched, **table.matched}:
        one, other = first.matched.get(name), table.matched.get(name)
        if one != other:
            raise ValueError(
                f"{table.where} has {_quote(other)} for {name}, but {first.where} has {_quote(one)}. Give files with "
                "the same columns, or load them separately."
            )


def _quote(names: str | tuple[str, ...] | None) -> str:
    if names is None:
        return "no column"
    if isinstance(names, str) or len(names) == 1:
        return f"the column {(names if isinstance(names, str) else names[0])!r}"
    return f"the columns {names[0]!r} to {names[-1]!r} ({len(names)})"


def _ids_as_text(parts: list[Array]) -> list[Array]:
    """The parts of a column of ids, integers as text if the other parts are text that is all digits: "007" and 100."""
    texts = {text for part in parts if is_text(part) for text in part.tolist()} - {None}
    if not texts or not all(str(text).isdecimal() for text in texts):
        return parts
    return [
        np.array([None if number is None else str(number) for number in part.tolist()], object)
        if part.ndim == 1 and part.dtype.kind in "iu"
        else part
        for part in parts
    ]


def join_parts(name: str, parts: list[Array], files: list[str]) -> Array:
    """One array of the parts of a column; raises ValueError if their shapes or types differ or numbers would change."""
    if len(parts) == 1:
        return parts[0]
    if any(map(is_text, parts)):
        parts = [np.full(len(part), None, object) if is_missing(part) else part for part in parts]
        _check_all_text(name, parts, files)
    for part, file in zip(parts, files, strict=True):
        if part.shape[1:] != parts[0].shape[1:]:
            raise ValueError(
                f"Column {name!r} has entries of shape {part.shape[1:]} in {file} and {parts[0].shape[1:]} in "
                f"{files[0]}. Give files with entries of one shape."
            )
    try:
        dtype = common_dtype(parts)
    except TypeError as error:  # dates and numbers
        raise ValueError(
            f"Column {name!r} of {files[0]} and the files after it has the types "
            f"{', '.join(sorted({str(part.dtype) for part in parts}))}. Give files with columns of one type."
        ) from error
    if dtype.kind in "biuf":
        parts = [exact(part, dtype, f"Column {name!r} of {file}") for part, file in zip(parts, files, strict=True)]
    masked = any(np.ma.isMaskedArray(part) for part in parts)
    return np.ma.concatenate(parts) if masked else np.concatenate(parts)


def _check_all_text(name: str, parts: list[Array], files: list[str]) -> None:
    numeric = next((file for part, file in zip(parts, files, strict=True) if not is_text(part)), None)
    if numeric is not None:
        part, file = next((part, file) for part, file in zip(parts, files, strict=True) if is_text(part))
        row, text = first_text(part)
        raise ValueError(
            f"Column {name!r} holds text, {text[:40]!r} at row {row} of {file}, but numbers in {numeric}. Correct that "
            "cell, or write one type in all files."
        )


def is_missing(part: Array) -> bool:
    """Whether a column has no value at all: readers take it for numbers, all of them NaN."""
    return part.ndim == 1 and part.dtype.kind == "f" and bool(np.isnan(part).all())
