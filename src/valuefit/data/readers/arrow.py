"""Tables in memory that support Arrow (pandas, polars, pyarrow), and their columns as NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from valuefit.data.columns import columns_to_read, match_columns
from valuefit.data.table import Table
from valuefit.extras import need, said
from valuefit.typing import Array


def read_frame(source: Any, *, columns: Mapping[str, Any] | None = None) -> Table:
    """The columns of a pandas or polars frame, an Arrow table, or any object with the Arrow stream protocol."""
    kind = type(source).__name__
    pyarrow = need("pyarrow", "files", f"Reading a {kind}")
    try:
        table = pyarrow.table(source)
    except TypeError as error:
        raise ValueError(
            f"valuefit cannot read a log of type {kind}. Give a path, 'minari:<id>', a dict of arrays, or a table "
            "(pandas, polars, Arrow)."
        ) from error
    except pyarrow.ArrowException as error:
        raise ValueError(
            f"The {kind} cannot be read as a table: {said(error)}. Drop or convert that column."
        ) from error
    return match_table(table, columns, f"the {kind}")


def match_table(table: Any, columns: Mapping[str, Any] | None, where: str) -> Table:
    """The columns of a pyarrow.Table."""
    check_unique_names(table.column_names, where)
    matched = match_columns(table.column_names, columns, where)
    for name in columns_to_read(matched):
        check_numeric_type(name, table.schema.field(name).type, where)
    return Table(matched, lambda name: to_array(name, table[name], where), where)


def check_unique_names(names: Sequence[str], where: str) -> None:
    """Raise ValueError if two columns have the same name, which would be ambiguous."""
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{where} has more than one column {repeated[:60]!r}. Rename them.")


def check_numeric_type(name: str, kind: Any, where: str) -> None:
    """Raise ValueError if an Arrow type is neither numeric, lists of numbers nor text; called before it is read."""
    types = need("pyarrow", "files", "Reading a table").types
    inner = kind
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = kind.value_type
    if types.is_dictionary(inner):
        inner = inner.value_type
        kind = inner if types.is_dictionary(kind) else kind
    numeric = types.is_boolean, types.is_integer, types.is_floating, types.is_decimal, types.is_temporal, types.is_null
    if not any(test(inner) for test in numeric) and not (inner is kind and _is_text(kind)):
        raise ValueError(
            f"Column {name!r} of {where} holds {str(kind)[:60]}, not numbers. Convert it (number the categories), or "
            "name another column with columns=."
        )


def _is_text(kind: Any) -> bool:
    types = need("pyarrow", "files", "Reading a table").types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def to_array(name: str, column: Any, where: str) -> Array:
    """An Arrow column as an array: missing numbers become NaN; text becomes objects, None where it is missing."""
    pyarrow = need("pyarrow", "files", "Reading a table")
    types, kind = pyarrow.types, column.type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _list_column(name, column, where)
    if types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if _is_text(kind):
        return np.concatenate([_texts(chunk) for chunk in column.chunks] or [np.zeros(0, object)])
    if types.is_decimal(kind) or types.is_null(kind):
        column = column.cast(pyarrow.float64())
    elif types.is_boolean(kind) and column.null_count:
        column = column.cast(pyarrow.uint8())
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        chunks = column.chunks if isinstance(column, pyarrow.ChunkedArray) else [column]
        return np.concatenate([_numbers(chunk) for chunk in chunks] or [np.zeros(0)])
    return np.asarray(column.to_numpy())


def _numbers(chunk: Any) -> Array:
    """Plain numbers, read from their buffers, because `to_numpy` imports pandas where it is installed."""
    valid, data = chunk.buffers()
    here = slice(chunk.offset, chunk.offset + len(chunk))
    if str(chunk.type) == "bool":
        return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[here].astype(bool)
    values = np.frombuffer(data, chunk.type.to_pandas_dtype())[here]
    if not chunk.null_count:
        return values
    known = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")[here].astype(bool)
    return np.where(known, values, np.nan)


def _texts(chunk: Any) -> Array:
    """Text as objects; equal texts share one object, which saves memory."""
    encoded = chunk.dictionary_encode()
    words = np.array([*encoded.dictionary.to_pylist(), None], dtype=object)
    return np.asarray(words[encoded.indices.fill_null(len(words) - 1).to_numpy()])


def _list_column(name: str, column: Any, where: str) -> Array:
    """A column of lists of equal length as a matrix, with a row of NaN where a list is missing."""
    compute = need("pyarrow.compute", "files", "Reading a table")
    blocks, present, width = [], [], None
    for chunk in column.chunks:
        valid = chunk.drop_null()
        present.append(np.asarray(chunk.is_valid()))
        if len(valid) == 0:
            continue
        lengths = compute.unique(compute.list_value_length(valid)).to_pylist()
        width = lengths[0] if width is None else width
        if lengths != [width]:
            other = next(length for length in lengths if length != width)
            raise ValueError(
                f"The lists in column {name!r} of {where} differ in length ({width} and {other}). Give every step the "
                "same number of entries."
            )
        blocks.append(to_array(name, compute.list_flatten(valid), where).reshape(len(valid), width))
    if not blocks:
        return np.full((len(column), 1), np.nan)
    values, valid_rows = np.concatenate(blocks), np.concatenate(present)
    if valid_rows.all():
        return values
    filled = np.full((len(valid_rows), width or 0), np.nan)
    filled[valid_rows] = values
    return filled
