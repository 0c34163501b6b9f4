"""Parquet: plain columns (`obs_0, obs_1, ...`) or a list column; what the file declares is checked first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.data.columns import choose, needed
from valuefit.data.readers.arrow import build_table, check_names, check_type
from valuefit.data.transitions import Transitions
from valuefit.extras import need, said
from valuefit.memory import check_size

BATCH_BYTES = 256 << 20


def read_parquet(path: Path, *, columns: Mapping[str, Any] | None, limit: int) -> Transitions:
    """A log from a Parquet file; only the columns that are needed are read."""
    pyarrow = need("pyarrow", "files", "Reading Parquet")
    parquet = need("pyarrow.parquet", "files", "Reading Parquet")
    where = str(path)
    try:
        with parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            check_names(schema.names, where)
            wanted = needed(choose(schema.names, columns, where))
            for name in wanted:
                check_type(name, schema.field(name).type, where)
            sizes = _declared(file, wanted)
            check_size(sum(sizes), limit, where)
            pieces, size = [], 0
            for groups in _batches(sizes):  # not all at once, for what is declared may be a lie
                pieces.append(file.read_row_groups(groups, columns=wanted))
                size += pieces[-1].nbytes
                check_size(size, limit, where)
            table = pyarrow.concat_tables(pieces) if pieces else schema.empty_table().select(wanted)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{where} cannot be read as Parquet: {said(error)}. Write it anew.") from error
    return build_table(table, columns, where)


def _declared(file: Any, wanted: list[str]) -> list[int]:
    """Bytes of the wanted columns in each row group: encodings make a long column of one value small on disk."""
    leaves = [file.schema.column(place).path for place in range(len(file.schema))]
    inside = tuple(f"{name}." for name in wanted)  # the numbers of a list column lie below its name
    places = [place for place, leaf in enumerate(leaves) if leaf in wanted or leaf.startswith(inside)]
    groups = [file.metadata.row_group(group) for group in range(file.num_row_groups)]
    return [8 * sum(max(group.column(place).num_values, group.num_rows) for place in places) for group in groups]


def _batches(sizes: list[int]) -> list[list[int]]:
    """Row groups that are read together: files of many small ones would be slow to read one by one."""
    batches: list[list[int]] = []
    room = 0
    for group, size in enumerate(sizes):
        if not batches or size > room:
            batches.append([])
            room = BATCH_BYTES
        batches[-1].append(group)
        room -= size
    return batches


def write_parquet(path: Path, columns: dict[str, Any]) -> None:
    """Columns as they are; a matrix becomes name_0, name_1, ...; masked numbers are missing."""
    pyarrow = need("pyarrow", "files", "Writing Parquet")
    parquet = need("pyarrow.parquet", "files", "Writing Parquet")
    flat: dict[str, Any] = {}
    for name, values in columns.items():
        parts = {name: values} if values.ndim == 1 else {f"{name}_{i}": values[:, i] for i in range(values.shape[1])}
        for key, part in parts.items():
            data = np.ma.getdata(part)
            mask = np.ma.getmaskarray(part) if np.ma.isMaskedArray(part) else None
            flat[key] = pyarrow.array(np.ascontiguousarray(data), mask=mask)
    repeating = [name for name, column in flat.items() if not pyarrow.types.is_floating(column.type)]
    parquet.write_table(pyarrow.table(flat), path, use_dictionary=repeating)
