"""Tables in memory that speak Arrow (pandas, polars, pyarrow), and their columns as NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from valuefit.data.assemble import build
from valuefit.data.columns import choose, needed
from valuefit.data.transitions import Transitions
from valuefit.extras import need, said
from valuefit.typing import Array


def read_frame(source: Any, *, columns: Mapping[str, Any] | None = None) -> Transitions:
    """A log from a pandas or polars frame, an Arrow table, or whatever else offers the Arrow stream protocol."""
    kind = type(source).__name__
    pyarrow = need("pyarrow", "files", f"Reading a {kind}")
    try:
        table = pyarrow.table(source)
    except TypeError as error:
        raise ValueError(
            f"A {kind} is no log that valuefit can read. Give a path, 'minari:<id>', a dict of arrays, or a table "
            "(pandas, polars, Arrow)."
        ) from error
    except pyarrow.ArrowException as error:
        raise ValueError(
            f"The {kind} cannot be read as a table: {said(error)}. Drop or convert that column."
        ) from error
    return build_table(table, columns, f"the {kind}")


def build_table(table: Any, columns: Mapping[str, Any] | None, where: str) -> Transitions:
    """A log from a pyarrow.Table."""
    check_names(table.column_names, where)
    chosen = choose(table.column_names, columns, where)
    for name in needed(chosen):
        check_type(name, table.schema.field(name).type, where)
    return build(chosen, lambda name: to_array(name, table[name], where), where)


def check_names(names: Sequence[str], where: str) -> None:
    """Two columns of one name: nobody can say which is meant."""
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1] if len(set(names)) < len(names) else []
    if twice:
        raise ValueError(f"{where} has more than one column {twice[0][:60]!r}. Rename them.")


def check_type(name: str, kind: Any, where: str) -> None:
    """Refuse what is not numbers or lists of numbers, before it is read."""
    types = need("pyarrow", "files", "Reading a table").types
    inner = kind
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = kind.value_type
    if types.is_dictionary(inner):
        inner = inner.value_type
    simple = types.is_boolean, types.is_integer, types.is_floating, types.is_decimal, types.is_temporal, types.is_null
    if not any(test(inner) for test in simple):
        text = types.is_string(inner) or types.is_large_string(inner) or types.is_string_view(inner)
        holds = "text" if text else str(kind)[:60]
        raise ValueError(
            f"Column {name!r} of {where} holds {holds}, not numbers. Convert it (for names, number them), or name "
            "another column with columns=."
        )


def to_array(name: str, column: Any, where: str) -> Array:
    """An Arrow column as numbers; what is missing becomes NaN."""
    pyarrow = need("pyarrow", "files", "Reading a table")
    types, kind = pyarrow.types, column.type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _vectors(name, column, where)
    if types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if types.is_decimal(kind) or types.is_null(kind):
        column = column.cast(pyarrow.float64())
    elif types.is_boolean(kind) and column.null_count:
        column = column.cast(pyarrow.uint8())
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        chunks = column.chunks if isinstance(column, pyarrow.ChunkedArray) else [column]
        return np.concatenate([_numbers(chunk) for chunk in chunks] or [np.zeros(0)])
    return np.asarray(column.to_numpy())


def _numbers(chunk: Any) -> Array:
    """Plain numbers, read from their buffers: where pandas is installed, `to_numpy` imports it."""
    valid, data = chunk.buffers()
    here = slice(chunk.offset, chunk.offset + len(chunk))
    if str(chunk.type) == "bool":
        return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[here].astype(bool)
    values = np.frombuffer(data, chunk.type.to_pandas_dtype())[here]
    if not chunk.null_count:
        return values
    known = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")[here].astype(bool)
    return np.where(known, values, np.nan)


def _vectors(name: str, column: Any, where: str) -> Array:
    """A column of lists of one length: a matrix, with a row of NaN where a list is missing."""
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
            odd = next(length for length in lengths if length != width)
            raise ValueError(
                f"The lists in column {name!r} of {where} differ in length ({width} and {odd}). Every observation "
                "needs as many numbers."
            )
        blocks.append(to_array(name, compute.list_flatten(valid), where).reshape(len(valid), width))
    if not blocks:
        return np.full((len(column), 1), np.nan)
    values, there = np.concatenate(blocks), np.concatenate(present)
    if there.all():
        return values
    filled = np.full((len(there), width or 0), np.nan)
    filled[there] = values
    return filled
