"""CSV files with a header line; the delimiter is a comma, a semicolon or a tab."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from valuefit.data.columns import columns_to_read, match_columns
from valuefit.data.files import open_file
from valuefit.data.readers.arrow import check_unique_names, to_array
from valuefit.data.table import Table
from valuefit.extras import need, said
from valuefit.memory import check_size

MAX_HEADER_BYTES = 1 << 20  # a longer first line means that the file is not a table
BLOCK_BYTES, MAX_LINE_BYTES = 1 << 22, 1 << 26


def read_csv(path: Path, *, columns: Mapping[str, Any] | None, limit: int) -> Table:
    """The columns of a CSV file; only the matched columns are converted."""
    arrow_csv = need("pyarrow.csv", "files", "Reading CSV")
    pyarrow = need("pyarrow", "files", "Reading CSV")
    where = str(path)
    names, delimiter = _header(path)
    check_unique_names(names, where)
    matched = match_columns(names, columns, where)
    wanted = columns_to_read(matched)
    _check_lines(path, 8 * len(wanted), limit)
    try:
        with open_file(path) as stream:  # a stream, because pyarrow would decompress a file by its extension
            table = arrow_csv.read_csv(
                stream,
                parse_options=arrow_csv.ParseOptions(delimiter=delimiter),
                convert_options=arrow_csv.ConvertOptions(include_columns=wanted, strings_can_be_null=True),
            )
    except pyarrow.ArrowException as error:
        raise ValueError(f"{where} cannot be read as CSV: {said(error)}. Correct that line.") from error

    return Table(matched, lambda name: to_array(name, table[name], where), where)


def _header(path: Path) -> tuple[list[str], str]:
    """Column names and the delimiter."""
    with open_file(path) as stream:
        line = stream.readline(MAX_HEADER_BYTES)
    try:
        text = line.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"The first line of {path} is not UTF-8 text, so it is not a CSV header.") from error
    if not text or len(line) == MAX_HEADER_BYTES:
        raise ValueError(f"{path} has no header line. Write the column names in its first line.")
    delimiter = max((",", ";", "\t"), key=text.count)
    names = next(csv.reader([text], delimiter=delimiter))
    return names, delimiter


def _check_lines(path: Path, row_bytes: int, limit: int) -> None:
    """Raise ValueError if the rows exceed `limit` bytes, or a line MAX_LINE_BYTES, before the file is read to its end.

    The file size is a poor bound, because a cell may take one byte or twenty, and a compressed file may expand.
    """
    lines, line_bytes = 1, 0
    with open_file(path) as stream:
        while block := stream.read(BLOCK_BYTES):
            found = block.count(b"\n") or block.count(b"\r")
            lines, line_bytes = lines + found, 0 if found else line_bytes + len(block)
            check_size(row_bytes * lines, limit, str(path))
            if line_bytes > MAX_LINE_BYTES:
                raise ValueError(
                    f"{path} has a line that is longer than {MAX_LINE_BYTES:,} bytes, so it is not a table."
                )
