"""CSV files with a header line, delimited by commas, semicolons or tabs; `data.columns` matches the column names."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from valuefit.data.columns import ID_FIELDS, VECTOR_FIELDS, columns_to_read, match_columns, single_columns
from valuefit.data.files import open_file
from valuefit.data.readers.arrow import check_unique_names, matched_table
from valuefit.data.table import Table
from valuefit.data.validation import MAX_EXACT_FLOAT
from valuefit.extras import need
from valuefit.memory import check_size
from valuefit.messages import translated

EXTENSIONS = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
COPIES = 6
MAX_HEADER_BYTES = 1 << 20  # a longer first line means that the file is not a table
BLOCK_BYTES, MAX_LINE_BYTES = 1 << 22, 1 << 26


def read(path: Path, *, columns: Mapping[str, Any] | None, limit: int) -> Table:
    """The columns of a CSV file; only the matched columns are converted."""
    where = str(path)
    names, delimiter = _column_names(path)
    check_unique_names(names, where)
    matched = match_columns(names, columns, where)
    wanted = columns_to_read(matched)
    _check_lines(path, 8 * len(wanted), limit)
    ids = single_columns(matched, ID_FIELDS)
    table = _read_columns(path, delimiter, wanted, as_text=ids)
    for name in ids:
        table = table.set_column(table.column_names.index(name), name, _ids(table[name]))
    may_be_ids = ("step", *VECTOR_FIELDS)
    for name in columns_to_read({field: matched[field] for field in may_be_ids if field in matched}):
        if name not in ids and _has_rounded_integers(table[name]):
            text = _read_columns(path, delimiter, [name], as_text=[name])[name]
            table = table.set_column(table.column_names.index(name), name, _exact_integers(text, table[name]))
    return matched_table(table, matched, where)


def _read_columns(path: Path, delimiter: str, wanted: list[str], *, as_text: Sequence[str]) -> Any:
    """A pyarrow.Table of these columns, with inferred types, those in `as_text` as text."""
    pyarrow = need("pyarrow", "files", "Reading CSV")
    arrow_csv = need("pyarrow.csv", "files", "Reading CSV")
    # a stream, because pyarrow would decompress a file by its extension
    with translated(f"{path} cannot be read as CSV", "Correct that line."), open_file(path) as stream:
        return arrow_csv.read_csv(
            stream,
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=wanted,
                strings_can_be_null=True,
                column_types=dict.fromkeys(as_text, pyarrow.string()),
            ),
        )


def _ids(text: Any) -> Any:
    """A column of text as the numbers that it holds, or as it is where another text could be the same number.

    So "7" becomes a number and "007" does not: as numbers, two ids would be one. Decimals are quantities, and are read
    as such however they are written.
    """
    pyarrow = need("pyarrow", "files", "Reading CSV")
    compute = need("pyarrow.compute", "files", "Reading CSV")
    if text.null_count == len(text):
        return pyarrow.chunked_array([pyarrow.nulls(len(text))])
    for trim in (False, True):  # as pyarrow trims numbers whose types it infers
        written = compute.utf8_trim_whitespace(text) if trim else text
        for kind in (pyarrow.int64(), pyarrow.uint64(), pyarrow.float64(), pyarrow.bool_()):
            try:
                values = written.cast(kind)
            except pyarrow.ArrowInvalid:
                continue
            if pyarrow.types.is_integer(kind):
                canonical = compute.all(compute.equal(values.cast(text.type), written)).as_py()
                return values if canonical else text
            return _exact_integers(text, values) if _has_rounded_integers(values) else values
    return text


def _has_rounded_integers(column: Any) -> bool:
    """Whether a column that was read as floats has numbers beyond 2^53: integers of more than 63 bits are read so."""
    pyarrow = need("pyarrow", "files", "Reading CSV")
    compute = need("pyarrow.compute", "files", "Reading CSV")
    if not pyarrow.types.is_floating(column.type):
        return False
    ends = compute.min_max(column).as_py()  # comparing with a Python number would import pandas
    return any(end is not None and abs(end) >= MAX_EXACT_FLOAT for end in ends.values())


def _exact_integers(text: Any, column: Any) -> Any:
    """The text as unsigned integers, or as it is if some have more than 64 bits; `column` if not all are integers."""
    pyarrow = need("pyarrow", "files", "Reading CSV")
    compute = need("pyarrow.compute", "files", "Reading CSV")
    if not compute.all(compute.match_substring_regex(text, r"^[+-]?[0-9]+$")).as_py():
        return column
    try:
        return text.cast(pyarrow.uint64())
    except pyarrow.ArrowInvalid:
        return text


def _column_names(path: Path) -> tuple[list[str], str]:
    """Column names and the delimiter."""
    with open_file(path) as stream:
        start = stream.read(MAX_HEADER_BYTES)
    line = re.split(rb"[\r\n]", start, maxsplit=1)[0]  # a line ends with \n, \r\n or, on old Macs, \r
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"The first line of {path} is not UTF-8 text, so it is not a CSV header.") from error
    if not text or len(line) == MAX_HEADER_BYTES:
        raise ValueError(f"{path} has no header line. Write the column names in its first line.")
    delimiter = max((",", ";", "\t"), key=text.count)
    arrow_csv = need("pyarrow.csv", "files", "Reading CSV")
    with translated(f"The first line of {path} cannot be read as column names", "Correct it."):
        parse = arrow_csv.ParseOptions(delimiter=delimiter)
        read = arrow_csv.ReadOptions(block_size=MAX_HEADER_BYTES + 2)
        names = arrow_csv.read_csv(io.BytesIO(line + b"\n"), read, parse).column_names
    return names, delimiter


def _check_lines(path: Path, row_bytes: int, limit: int) -> None:
    """Raise ValueError if the rows exceed `limit` bytes, or a line MAX_LINE_BYTES, before the file is read to its end.

    The file size is a poor bound, because a cell may take one byte or twenty, and a compressed file may expand.
    """
    lines, line_bytes = 1, 0
    with open_file(path) as stream:
        while block := stream.read(BLOCK_BYTES):
            ends = max(block.count(b"\n"), block.count(b"\r"))
            lines, line_bytes = lines + ends, 0 if ends else line_bytes + len(block)
            check_size(row_bytes * lines, limit, str(path))
            if line_bytes > MAX_LINE_BYTES:
                raise ValueError(
                    f"{path} has a line that is longer than {MAX_LINE_BYTES:,} bytes, so it is not a table."
                )
