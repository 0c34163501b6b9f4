"""Tables in memory that support Arrow (pandas, polars, pyarrow), and their columns as NumPy arrays."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np

from valuefit.data.columns import ColumnMap, columns_to_read, match_columns
from valuefit.data.table import Table, released
from valuefit.extras import need
from valuefit.messages import said, translated
from valuefit.typing import Array

MAX_TYPES = 64  # whose kinds are remembered: a shard asks several times for the type of each of its columns


def read_frame(source: Any, *, columns: Mapping[str, Any] | None = None) -> Table:
    """The columns of a pandas or polars frame, an Arrow table, or any object with the Arrow stream protocol."""
    kind = type(source).__name__
    pyarrow = need("pyarrow", "files", f"Reading a {kind}")
    try:
        table = pyarrow.table(_plain_frame(source, columns) if is_pandas(source) else source)
    except TypeError as error:
        given = "a log that is None" if source is None else f"a log of type {kind}"
        raise ValueError(
            f"valuefit cannot read {given}. Give a path, 'minari:<id>', a dict of arrays, or a table "
            "(pandas, polars, Arrow)."
        ) from error
    except (pyarrow.ArrowException, UnicodeError) as error:
        raise ValueError(
            f"The {kind} cannot be read as a table: {said(error)}. Drop or convert that column."
        ) from error
    return match_table(table, columns, f"the {kind}")


def is_pandas(source: Any) -> bool:
    """Whether this is a pandas DataFrame; pandas is not imported."""
    module = sys.modules.get("pandas")
    return module is not None and isinstance(source, module.DataFrame)


def _plain_frame(frame: Any, columns: Mapping[str, Any] | None) -> Any:
    """The columns of a pandas frame that are read, those that are sparse or long doubles as plain numbers."""
    frame = with_index(frame)
    needed = columns_to_read(match_columns(list(frame.columns), columns, "the DataFrame"))
    frame = frame[[name for name in frame.columns if name in needed]]
    sparse = sys.modules["pandas"].SparseDtype
    for name, kind in frame.dtypes.items():
        if isinstance(kind, sparse):
            frame = frame.assign(**{name: np.asarray(frame[name])})
        elif kind == np.longdouble:
            frame = frame.assign(**{name: frame[name].astype(np.float64)})
    return frame


def with_index(frame: Any) -> Any:
    """A pandas frame whose named index is columns: Arrow keeps an index of consecutive integers as metadata only."""
    index = [name for name in frame.index.names if name is not None]
    names = [str(name) for name in (*index, *frame.columns)]
    check_unique_names(names, "the DataFrame")
    return (frame.reset_index(level=index) if index else frame).set_axis(names, axis="columns")


def match_table(table: Any, columns: Mapping[str, Any] | None, where: str) -> Table:
    """The columns of a pyarrow.Table."""
    check_unique_names(table.column_names, where)
    matched = match_columns(table.column_names, columns, where)
    for name in columns_to_read(matched):
        check_type(name, table.schema.field(name).type, where)
    return matched_table(table, matched, where)


def matched_table(table: Any, matched: ColumnMap, where: str) -> Table:
    """The columns of a pyarrow.Table whose names are matched, and whose types are checked, already."""
    columns = {name: table[name] for name in columns_to_read(matched)}
    # before each column of a large table, memory that pyarrow keeps of others, or of text, is returned to the system
    large = table.nbytes >= 1 << 24

    def convert(name: str, column: Any) -> Array:
        if large:
            _pyarrow().default_memory_pool().release_unused()
        return to_array(name, column, where)

    return Table(matched, released(columns, matched, convert), where)


@cache
def _pyarrow() -> Any:
    """The module: asked for several times for each column, and importing it again takes longer than a small column."""
    return need("pyarrow", "files", "Reading a table")


def check_unique_names(names: Sequence[str], where: str) -> None:
    """Raise ValueError if two columns have the same name, which would be ambiguous."""
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{where} has more than one column {repeated[:60]!r}. Rename them.")


def check_type(name: str, kind: Any, where: str) -> None:
    """Raise ValueError unless an Arrow type is text, numbers or lists of numbers; called before the column is read."""
    if not _is_readable(kind):
        raise ValueError(
            f"Column {name!r} of {where} holds {str(kind)[:60]}, not numbers. Convert it (number the categories), or "
            "name another column with `columns`."
        )


@lru_cache(MAX_TYPES)
def _is_readable(kind: Any) -> bool:
    types = _pyarrow().types
    inner = kind.value_type if holds_lists(kind) else kind
    if types.is_dictionary(inner):
        inner = inner.value_type
    allowed = [types.is_boolean, types.is_integer, types.is_floating, types.is_decimal, types.is_null]
    if not holds_lists(kind):
        allowed += [types.is_timestamp, types.is_date, types.is_time, types.is_duration, is_string]
    return any(test(inner) for test in allowed)


@lru_cache(MAX_TYPES)
def holds_lists(kind: Any) -> bool:
    """Whether an Arrow type is lists of values."""
    types = _pyarrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def is_string(kind: Any) -> bool:
    """Whether an Arrow type is text."""
    types = _pyarrow().types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def holds_text(kind: Any) -> bool:
    """Whether an Arrow type is text, or a dictionary of texts."""
    types = _pyarrow().types
    return is_string(kind.value_type if types.is_dictionary(kind) else kind)


def to_array(name: str, column: Any, where: str) -> Array:
    """An Arrow column as an array: missing integers are masked, missing floats NaN, and missing text is None."""
    with translated(f"Column {name!r} of {where} cannot be read", "Write it again."):
        column.validate(full=True)  # buffers of a damaged file may be shorter than they declare
        kind = column.type
        lists = _list_lengths(column) if holds_lists(kind) else set()
        if len(lists) <= 1:
            return _list_column(column, *lists) if holds_lists(kind) else _plain_column(column)
    one, other = sorted(lists)[:2]
    raise ValueError(
        f"The lists in column {name!r} of {where} differ in length ({one} and {other}). Give every step the same "
        "number of entries."
    )


def _plain_column(column: Any) -> Array:
    """A column of scalars."""
    pyarrow = _pyarrow()
    types = pyarrow.types
    if types.is_dictionary(column.type):
        column = _decoded(column)
    if is_string(column.type):
        chunks = column.chunks if isinstance(column, pyarrow.ChunkedArray) else [column]
        return np.concatenate([_texts(chunk) for chunk in chunks] or [np.zeros(0, object)])
    if types.is_null(column.type):
        column = column.cast(pyarrow.float64())
    elif types.is_decimal(column.type):
        column = _from_decimals(column)
    time = types.is_temporal(column.type)
    if time:
        column = column.cast(pyarrow.int32() if column.type.bit_width == 32 else pyarrow.int64())
    chunks = column.chunks if isinstance(column, pyarrow.ChunkedArray) else [column]
    masked = column.null_count > 0 and not types.is_floating(column.type)
    parts = [_numbers(chunk) for chunk in chunks] or [np.zeros(0)]
    values = parts[0] if len(parts) == 1 else (np.ma.concatenate if masked else np.concatenate)(parts)
    if time:
        values = np.ma.filled(values.astype(np.int64), np.iinfo(np.int64).min).view("M8[us]")  # the minimum is NaT
    return values


def _decoded(column: Any) -> Any:
    """A column of a dictionary as its values; Arrow cannot convert those that are views of strings, as of polars."""
    pyarrow, kind = _pyarrow(), column.type.value_type
    if is_string(kind):
        kind = pyarrow.large_string()
        chunks = column.chunks if isinstance(column, pyarrow.ChunkedArray) else [column]
        column = pyarrow.chunked_array(
            [pyarrow.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(kind)) for chunk in chunks],
            pyarrow.dictionary(column.type.index_type, kind),
        )
    return column.cast(kind)


def _from_decimals(column: Any) -> Any:
    """A column of decimals as int64 or, if it has fractions, as the nearest floats; integers are never rounded."""
    pyarrow = _pyarrow()
    if column.type.scale > 0:
        return column.cast(pyarrow.float64())
    try:
        return column.cast(pyarrow.int64())
    except pyarrow.ArrowInvalid:
        floats = column.cast(pyarrow.float64())
        if floats.cast(column.type).equals(column):
            return floats
        raise ValueError("float64 would round its integers: number ids from 0, or convert amounts to floats") from None


def _numbers(chunk: Any) -> Array:
    """Plain numbers, read from their buffers: `to_numpy` and `to_pandas_dtype` import pandas where it is installed."""
    valid, data = chunk.buffers()
    here = slice(chunk.offset, chunk.offset + len(chunk))
    name = str(chunk.type)
    if name == "bool":
        values = _bits(data, here)
    else:
        dtype = {"halffloat": "float16", "float": "float32", "double": "float64"}.get(name, name)
        values = np.frombuffer(data or b"", dtype)[here]
    if not chunk.null_count:
        return values
    known = _bits(valid, here)
    return np.where(known, values, np.nan) if values.dtype.kind == "f" else np.ma.array(values, mask=~known)


def _texts(chunk: Any) -> Array:
    """Text as objects; equal texts share one object, which saves memory."""
    encoded = chunk.dictionary_encode()
    words = np.array([*encoded.dictionary.to_pylist(), None], dtype=object)
    return np.asarray(words[_numbers(encoded.indices.fill_null(len(words) - 1))])


def _bits(buffer: Any, here: slice) -> Array:
    return np.unpackbits(np.frombuffer(buffer or b"", np.uint8), bitorder="little")[here].astype(bool)


def _list_lengths(column: Any) -> set[int]:
    """The distinct lengths of the lists that are not missing."""
    compute = need("pyarrow.compute", "files", "Reading a table")
    return {length for length in compute.unique(compute.list_value_length(column)).to_pylist() if length is not None}


def _list_column(column: Any, width: int = 1) -> Array:
    """A column of lists of this length as a matrix; the entries of a missing list are missing."""
    compute = need("pyarrow.compute", "files", "Reading a table")
    present = np.concatenate([np.asarray(chunk.is_valid()) for chunk in column.chunks] or [np.zeros(0, bool)])
    values = _plain_column(compute.list_flatten(column.drop_null())).reshape(int(present.sum()), width)
    if present.all():
        return values
    if values.dtype.kind == "f":
        filled = np.full((len(present), width), np.nan, values.dtype)
    else:
        filled = np.ma.masked_all((len(present), width), values.dtype)
    filled[present] = values
    return filled
