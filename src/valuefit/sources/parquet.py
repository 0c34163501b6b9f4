"""Parquet: plain columns (`obs_0, obs_1, ...`) or a list column; what the file declares is checked first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.sources.arrow import build_table, check_names, check_type
from valuefit.sources.columns import choose, needed
from valuefit.sources.sizes import check_size, need, said
from valuefit.transitions import Transitions


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
            check_size(_declared(file, set(wanted)), limit, where)
            pieces, size = [], 0
            for group in range(file.num_row_groups):  # one by one, for what is declared may be a lie
                pieces.append(file.read_row_group(group, columns=wanted))
                size += pieces[-1].nbytes
                check_size(size, limit, where)
            table = pyarrow.concat_tables(pieces) if pieces else schema.empty_table().select(wanted)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{where} cannot be read as Parquet: {said(error)}. Write it anew.") from error
    return build_table(table, columns, where)


def _declared(file: Any, wanted: set[str]) -> int:
    """Bytes of the wanted columns once unpacked: encodings make a long column of one value small on disk."""
    total = 0
    for group in range(file.num_row_groups):
        metadata = file.metadata.row_group(group)
        for place in range(metadata.num_columns):
            column = metadata.column(place)
            if any(column.path_in_schema == name or column.path_in_schema.startswith(f"{name}.") for name in wanted):
                total += 8 * max(column.num_values, metadata.num_rows)
    return total


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
    parquet.write_table(pyarrow.table(flat), path)
