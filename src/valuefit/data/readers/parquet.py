"""Parquet files with scalar columns (`obs_0, obs_1, ...`) or a list column; declared sizes are checked first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.data.columns import columns_to_read, match_columns
from valuefit.data.readers.arrow import check_type, check_unique_names, is_list, match_table, to_array
from valuefit.data.table import Table
from valuefit.extras import need
from valuefit.memory import check_size
from valuefit.messages import translated
from valuefit.typing import Array

NAMES_KEY = "valuefit names"  # of the metadata of the schema
BATCH_ROWS = 1 << 16  # decoded at a time where only some rows of a file are wanted
BATCH_BYTES = 256 << 20  # declared bytes read at a time; the actual size is checked after each batch


def read_parquet(path: Path, *, columns: Mapping[str, Any] | None, limit: int) -> Table:
    """The columns of a Parquet file; only the matched columns are read."""
    parquet = need("pyarrow.parquet", "files", "Reading Parquet")
    where = str(path)
    with _damaged(where):
        file = parquet.ParquetFile(path)
    with file:
        with _damaged(where):
            schema = file.schema_arrow
        check_unique_names(schema.names, where)
        wanted = columns_to_read(match_columns(schema.names, columns, where))
        for name in wanted:
            check_type(name, schema.field(name).type, where)
        with _damaged(where):
            sizes = _row_group_bytes(file, wanted)
        check_size(sum(sizes), limit, where)
        table = _read_row_groups(file, wanted, sizes, limit, where)
    return replace(match_table(table, columns, where), known=_stored_names(schema, where))


@contextmanager
def opened_parquet(path: Path) -> Iterator[Any]:
    """A Parquet file whose names are unique; closed at the end."""
    parquet = need("pyarrow.parquet", "files", "Reading Parquet")
    with _damaged(str(path)):
        file = parquet.ParquetFile(path)
    with file:
        with _damaged(str(path)):
            names = file.schema_arrow.names
        check_unique_names(names, str(path))
        yield file


def column_batches(file: Any, names: Sequence[str], where: str, rows: int) -> Iterator[list[Array]]:
    """These columns of an opened file, in batches of up to `rows` rows."""
    batches = file.iter_batches(batch_size=rows, columns=list(names))
    while True:
        with _damaged(where):
            batch = next(batches, None)
        if batch is None:
            return
        yield [to_array(name, batch.column(name), where) for name in names]


def read_rows(parts: Sequence[tuple[str, int, int]], columns: Mapping[str, Any] | None) -> Any:
    """The matched columns of some rows as a pyarrow.Table; parts: (file, first row, row after the last)."""
    pyarrow = need("pyarrow", "files", "Reading Parquet")
    pieces = []
    for name, start, stop in parts:
        with opened_parquet(Path(name)) as file:
            wanted = columns_to_read(match_columns(file.schema_arrow.names, columns, name))
            with _damaged(name):
                sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
                ends = np.cumsum([0, *sizes])
                if stop > ends[-1]:
                    raise ValueError(f"it has {ends[-1]:,} rows, fewer than when it was opened")
                groups = [g for g in range(len(sizes)) if ends[g] < stop and ends[g + 1] > start]
                row = int(ends[groups[0]])
                for batch in file.iter_batches(batch_size=BATCH_ROWS, row_groups=groups, columns=wanted):
                    first, last = max(start - row, 0), min(stop - row, len(batch))
                    if first < last:
                        pieces.append(batch.slice(first, last - first))
                    row += len(batch)
                    if row >= stop:
                        break
    return pyarrow.Table.from_batches(pieces)


def _damaged(where: str) -> AbstractContextManager[None]:
    return translated(f"{where} cannot be read as Parquet", "Write it again.")


def _row_group_bytes(file: Any, wanted: list[str]) -> list[int]:
    """Declared bytes of the wanted columns in each row group, by number of values: sizes on disk are compressed."""
    groups = [file.metadata.row_group(group) for group in range(file.num_row_groups)]
    lists = [name for name in wanted if is_list(file.schema_arrow.field(name).type)]
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


def write_parquet(path: Path, columns: dict[str, Any], names: Mapping[str, Any]) -> None:
    """Write columns under their names, a matrix as name_0, name_1, ...; masked entries become null.

    `names` lists all names of states ("obs") and episodes ("episode") that are text, also of those without a row.
    """
    pyarrow = need("pyarrow", "files", "Writing Parquet")
    parquet = need("pyarrow.parquet", "files", "Writing Parquet")
    flat: dict[str, Any] = {}
    for name, values in columns.items():
        parts = {name: values} if values.ndim == 1 else {f"{name}_{i}": values[:, i] for i in range(values.shape[1])}
        for key, part in parts.items():
            data = np.ma.getdata(part)
            mask = np.ma.getmaskarray(part) if np.ma.isMaskedArray(part) else None
            flat[key] = pyarrow.array(np.ascontiguousarray(data), mask=mask)
    table = pyarrow.table(flat)
    if names:
        text = json.dumps({field: list(map(str, listed)) for field, listed in names.items()})
        table = table.replace_schema_metadata({NAMES_KEY: text})
    repetitive = [name for name, column in flat.items() if not pyarrow.types.is_floating(column.type)]
    parquet.write_table(table, path, use_dictionary=repetitive)


def _stored_names(schema: Any, where: str) -> dict[str, list[str]]:
    """The names of states and episodes that `write_parquet` stored; none in files of other programs."""
    text = (schema.metadata or {}).get(NAMES_KEY.encode())
    with translated(f"{where} has damaged names of states or episodes", "Write it again."):
        names = {} if text is None else {field: list(map(str, listed)) for field, listed in json.loads(text).items()}
    return names
