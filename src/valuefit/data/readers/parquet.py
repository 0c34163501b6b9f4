"""Parquet files with scalar columns (`obs_0, obs_1, ...`) or a list column; declared sizes are checked first."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from valuefit.data.columns import ColumnMap, columns_to_read, match_columns
from valuefit.data.continuity import Continuity
from valuefit.data.facts import facts_in
from valuefit.data.readers.arrow import check_type, check_unique_names, holds_lists, holds_text, matched_table, to_array
from valuefit.data.table import Scan, Table
from valuefit.extras import need
from valuefit.memory import check_size
from valuefit.messages import translated
from valuefit.typing import Array

EXTENSIONS = (".parquet", ".pq")
NAMES_KEY, FACTS_KEY = "valuefit names", "valuefit facts"  # of the metadata of the schema
BUFFER_BYTES = 1 << 17  # read at a time of each column in parts, without which all of its row group would be held
BATCH_BYTES = 256 << 20  # declared bytes read at a time; the actual size is checked after each batch


def read(path: Path, *, columns: Mapping[str, Any] | None, limit: int, rows: tuple[int, int] | None = None) -> Table:
    """The columns of a Parquet file; only the matched columns are read, and of these the rows from start to stop."""
    where = str(path)
    with _opened(path, 0) as file:
        schema, matched = file.schema_arrow, _matched(file, columns, where)
        wanted, facts = columns_to_read(matched), _stored_facts(schema, where)
        if rows is not None:
            if facts and rows[0] > 0:  # the counts of a file are those of its first rows, so that they add up
                facts["continuity"] = Continuity()
            return replace(matched_table(_read_rows(path, wanted, rows, limit), matched, where), **facts)
        with _damaged(where):
            sizes = _row_group_bytes(file, wanted)
        check_size(sum(sizes), limit, where)
        table = _read_row_groups(file, wanted, sizes, limit, where)
    return replace(matched_table(table, matched, where), known=_stored_names(schema, where), **facts)


@contextmanager
def scan(path: Path, *, columns: Mapping[str, Any] | None, limit: int) -> Iterator[Scan]:
    """What is known of a Parquet file before its rows are read; closed at the end."""
    where = str(path)
    with _opened(path, BUFFER_BYTES) as file:
        matched = _matched(file, columns, where)
        wanted = columns_to_read(matched)
        first = next(_batches_of(file, wanted, 1000, where), None)
        # bytes of a row, by the first 1,000
        size = 0 if first is None else first.nbytes // len(first)
        kinds = {name: file.schema_arrow.field(name).type for name in wanted}
        types = {name: "text" if holds_text(kind) else str(kind) for name, kind in kinds.items()}

        def marks(names: Sequence[str], rows: int) -> Iterator[list[Array]]:
            for batch in _batches_of(file, names, rows, where):
                yield [to_array(name, batch.column(name), where) for name in names]

        yield Scan(matched, int(file.metadata.num_rows), max(8 * len(wanted), size), types, marks)


def _matched(file: Any, columns: Mapping[str, Any] | None, where: str) -> ColumnMap:
    """The columns of each field, whose types are checked."""
    matched = match_columns(file.schema_arrow.names, columns, where)
    for name in columns_to_read(matched):
        check_type(name, file.schema_arrow.field(name).type, where)
    return matched


@contextmanager
def _opened(path: Path, buffer: int) -> Iterator[Any]:
    """A Parquet file whose names are unique; closed at the end. buffer: bytes; 0: a row group is read at once."""
    parquet = need("pyarrow.parquet", "files", "Reading Parquet")
    with _damaged(str(path)):
        file = parquet.ParquetFile(path, buffer_size=buffer, pre_buffer=not buffer)
    with file:
        with _damaged(str(path)):
            names = file.schema_arrow.names
        check_unique_names(names, str(path))
        yield file


def _batches_of(
    file: Any, names: Sequence[str], rows: int, where: str, groups: list[int] | None = None
) -> Iterator[Any]:
    """These columns of an opened file, in batches of up to `rows` rows."""
    with _damaged(where):
        batches = file.iter_batches(batch_size=rows, columns=list(names), row_groups=groups)
    while True:
        with _damaged(where):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


class _RowStream:
    """The rows of a file in order: each is decoded once, although they are asked for in parts."""

    def __init__(self, path: Path, wanted: Sequence[str], start: int, batch_rows: int) -> None:
        self.where, self.stack = str(path), ExitStack()
        file = self.stack.enter_context(_opened(path, BUFFER_BYTES))
        with _damaged(self.where):
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        ends = np.cumsum([0, *sizes])
        groups = [group for group in range(len(sizes)) if ends[group + 1] > start]
        self.rows, self.row = int(ends[-1]), int(ends[groups[0]]) if groups else start
        self.batches = _batches_of(file, wanted, batch_rows, self.where, groups)
        self.rest: Any = None  # rows of a batch that were not asked for yet, from self.row on

    def read(self, start: int, stop: int, limit: int) -> Any:
        """Rows from start to stop as a pyarrow.Table; start is not before what was read last."""
        pieces, size = [], 0
        while self.row < stop:
            batch = next(self.batches, None) if self.rest is None else self.rest
            if batch is None:
                raise ValueError(
                    f"{self.where} holds fewer rows than it declares: the file is damaged. Write it again."
                )
            first, last = min(max(start - self.row, 0), len(batch)), min(stop - self.row, len(batch))
            if first < last:
                pieces.append(batch.slice(first, last - first))
                size += pieces[-1].nbytes
                check_size(size, limit, self.where)
            self.rest, self.row = (batch.slice(last) if last < len(batch) else None), self.row + last
        table = need("pyarrow", "files", "Reading Parquet").Table.from_batches(pieces)
        return table.combine_chunks()  # which one call copies, not one for each column


_STREAMS: dict[tuple[Any, ...], _RowStream] = {}  # at most one: where the last part of a file ended
_STREAMS_LOCK = Lock()
_FILE_LOCKS: dict[str, Lock] = {}  # held while rows of a file are decoded


def _read_rows(path: Path, wanted: list[str], rows: tuple[int, int], limit: int) -> Any:
    """Some rows as a pyarrow.Table; goes on with the stream of the rows before them, if that is open.

    A file is decoded by one thread at a time, so that the rows before are not decoded again where another thread is
    about to finish them.
    """
    with _FILE_LOCKS.setdefault(str(path), Lock()):
        return _decode_rows(path, wanted, rows, limit)


def _decode_rows(path: Path, wanted: list[str], rows: tuple[int, int], limit: int) -> Any:
    start, stop = rows
    state = os.stat(path)
    file = str(path), state.st_ino, state.st_size, state.st_mtime_ns, *wanted
    with _STREAMS_LOCK:
        stream = _STREAMS.pop((*file, start), None)  # no other thread gets it
    if stream is None:
        stream = _RowStream(path, wanted, start, min(1 << 16, stop - start))  # rows decoded at a time
    try:
        table = stream.read(start, stop, limit)
    except BaseException:
        stream.stack.close()
        raise
    with _STREAMS_LOCK:
        unused = [*_STREAMS.values()]
        _STREAMS.clear()
        if stop < stream.rows:
            _STREAMS[(*file, stop)] = stream
        else:
            unused.append(stream)
    for one in unused:
        one.stack.close()
    return table


def _damaged(where: str) -> AbstractContextManager[None]:
    return translated(f"{where} cannot be read as Parquet", "Write it again.")


def _row_group_bytes(file: Any, wanted: list[str]) -> list[int]:
    """Declared bytes of the wanted columns in each row group, by number of values: sizes on disk are compressed."""
    groups = [file.metadata.row_group(group) for group in range(file.num_row_groups)]
    lists = [name for name in wanted if holds_lists(file.schema_arrow.field(name).type)]
    sizes = [8 * (len(wanted) - len(lists)) * group.num_rows for group in groups]
    if lists:
        file.scan_contents(lists)  # raises errors of damaged columns, at which `RowGroup.column` ends the process
        leaves = [file.schema.column(index).path for index in range(len(file.schema))]
        nested = tuple(f"{name}." for name in lists)  # the path of the numbers in a list column starts with its name
        indices = [index for index, leaf in enumerate(leaves) if leaf.startswith(nested)]
        for number, group in enumerate(groups):
            sizes[number] += 8 * sum(group.column(index).num_values for index in indices)
    return sizes


def _read_row_groups(file: Any, wanted: list[str], sizes: list[int], limit: int, where: str) -> Any:
    """The wanted columns as a pyarrow.Table; not all at once, because the declared sizes may be wrong."""
    pyarrow = need("pyarrow", "files", "Reading Parquet")
    pieces, size = [], 0
    for groups in _batches(sizes):
        with _damaged(where):
            pieces.append(file.read_row_groups(groups, columns=wanted))
        size += pieces[-1].nbytes
        check_size(size, limit, where)
    with _damaged(where):
        return pyarrow.concat_tables(pieces) if pieces else file.schema_arrow.empty_table().select(wanted)


def _batches(sizes: list[int]) -> list[list[int]]:
    """Row groups that are read together, up to BATCH_BYTES: reading many small ones separately is slow."""
    batches: list[list[int]] = []
    left = 0
    for group, size in enumerate(sizes):
        if not batches or size > left:
            batches.append([])
            left = BATCH_BYTES
        batches[-1].append(group)
        left -= size
    return batches


def _stored_names(schema: Any, where: str) -> dict[str, list[str]]:
    """The names of states, episodes and actions that `write_parquet` stored; none in files of other programs."""
    text = (schema.metadata or {}).get(NAMES_KEY.encode())
    with translated(f"{where} has damaged names of states, episodes or actions", "Write it again."):
        names = {} if text is None else {field: list(map(str, listed)) for field, listed in json.loads(text).items()}
    return names


def _stored_facts(schema: Any, where: str) -> dict[str, Any]:
    """The facts on gaps and consecutive steps that `write_parquet` stored; none in files of other programs."""
    text = (schema.metadata or {}).get(FACTS_KEY.encode())
    return {} if text is None else facts_in(text.decode(errors="replace"), where)
