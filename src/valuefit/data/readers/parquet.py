"""Parquet files with scalar columns (`obs_0, obs_1, ...`) or a list column; declared sizes are checked first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.data.columns import columns_to_read, match_columns
from valuefit.data.readers.arrow import check_numeric_type, check_unique_names, match_table
from valuefit.data.table import Table
from valuefit.extras import need, said
from valuefit.memory import check_size

BATCH_BYTES = 256 << 20  # declared bytes read at a time; the actual size is checked after each batch


def read_parquet(path: Path, *, columns: Mapping[str, Any] | None, limit: int) -> Table:
    """The columns of a Parquet file; only the matched columns are read."""
    pyarrow = need("pyarrow", "files", "Reading Parquet")
    parquet = need("pyarrow.parquet", "files", "Reading Parquet")
    where = str(path)
    try:
        with parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            check_unique_names(schema.names, where)
            wanted = columns_to_read(match_columns(schema.names, columns, where))
            for name in wanted:
                check_numeric_type(name, schema.field(name).type, where)
            sizes = _row_group_bytes(file, wanted)
            check_size(sum(sizes), limit, where)
            pieces, size = [], 0
            for groups in _batches(sizes):  # not all at once, because the declared sizes may be wrong
                pieces.append(file.read_row_groups(groups, columns=wanted))
                size += pieces[-1].nbytes
                check_size(size, limit, where)
            table = pyarrow.concat_tables(pieces) if pieces else schema.empty_table().select(wanted)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{where} cannot be read as Parquet: {said(error)}. Write it again.") from error
    return match_table(table, columns, where)


def _row_group_bytes(file: Any, wanted: list[str]) -> list[int]:
    """Declared bytes of the wanted columns in each row group, by number of values: sizes on disk are compressed."""
    leaves = [file.schema.column(index).path for index in range(len(file.schema))]
    nested = tuple(f"{name}." for name in wanted)  # the path of the numbers in a list column starts with its name
    indices = [index for index, leaf in enumerate(leaves) if leaf in wanted or leaf.startswith(nested)]
    groups = [file.metadata.row_group(group) for group in range(file.num_row_groups)]
    return [8 * sum(max(group.column(index).num_values, group.num_rows) for index in indices) for group in groups]


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


def write_parquet(path: Path, columns: dict[str, Any]) -> None:
    """Write columns under their names, a matrix as name_0, name_1, ...; masked entries become null."""
    pyarrow = need("pyarrow", "files", "Writing Parquet")
    parquet = need("pyarrow.parquet", "files", "Writing Parquet")
    flat: dict[str, Any] = {}
    for name, values in columns.items():
        parts = {name: values} if values.ndim == 1 else {f"{name}_{i}": values[:, i] for i in range(values.shape[1])}
        for key, part in parts.items():
            data = np.ma.getdata(part)
            mask = np.ma.getmaskarray(part) if np.ma.isMaskedArray(part) else None
            flat[key] = pyarrow.array(np.ascontiguousarray(data), mask=mask)
    repetitive = [name for name, column in flat.items() if not pyarrow.types.is_floating(column.type)]
    parquet.write_table(pyarrow.table(flat), path, use_dictionary=repetitive)
