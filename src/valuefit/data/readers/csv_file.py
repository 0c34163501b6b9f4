"""CSV with a header line; commas, semicolons or tabs between the columns."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from valuefit.data.assemble import build
from valuefit.data.columns import choose, needed
from valuefit.data.readers.arrow import check_names, to_array
from valuefit.data.transitions import Transitions
from valuefit.extras import need, said
from valuefit.memory import check_size
from valuefit.typing import Array

LONGEST_HEADER = 1 << 20  # bytes


def read_csv(path: Path, *, columns: Mapping[str, Any] | None, limit: int) -> Transitions:
    """A log from a CSV file; only the columns that are needed are converted."""
    arrow_csv = need("pyarrow.csv", "files", "Reading CSV")
    pyarrow = need("pyarrow", "files", "Reading CSV")
    where = str(path)
    names, delimiter = _header(path)
    check_names(names, where)
    chosen = choose(names, columns, where)
    wanted = needed(chosen)
    check_size(8 * len(wanted) * _lines(path), limit, where)
    try:
        with open(path, "rb") as stream:  # a stream, for pyarrow would unpack a compressed file by its name
            table = arrow_csv.read_csv(
                stream,
                parse_options=arrow_csv.ParseOptions(delimiter=delimiter),
                convert_options=arrow_csv.ConvertOptions(include_columns=wanted),
            )
    except pyarrow.ArrowException as error:
        raise ValueError(f"{where} cannot be read as CSV: {said(error)}. Correct that line.") from error

    def read(name: str) -> Array:
        column = table[name]
        if pyarrow.types.is_string(column.type) or pyarrow.types.is_binary(column.type):
            raise ValueError(
                f"Column {name!r} of {where} holds text{_example(column)}, not numbers. Convert it (for names, number "
                "them), or name another column with columns=."
            )
        return to_array(name, column, where)

    return build(chosen, read, where)


def _header(path: Path) -> tuple[list[str], str]:
    """Names of the columns, and what stands between them."""
    with open(path, "rb") as stream:
        line = stream.readline(LONGEST_HEADER)
    try:
        text = line.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"The first line of {path} is not UTF-8 text, so it is no CSV header.") from error
    if not text or len(line) == LONGEST_HEADER:
        raise ValueError(f"{path} has no header line. Write the names of the columns in its first line.")
    delimiter = max((",", ";", "\t"), key=text.count)
    names = next(csv.reader([text], delimiter=delimiter))
    return names, delimiter


def _lines(path: Path) -> int:
    """How many rows the file can have: its size says little, for a cell may take one byte or twenty."""
    lines = 0
    with open(path, "rb") as stream:
        while block := stream.read(1 << 22):
            lines += block.count(b"\n") or block.count(b"\r")
    return lines + 1


def _example(column: Any) -> str:
    """The first cell that is no number, for the sentence."""
    for cell in column.slice(0, 100_000).to_pylist():
        try:
            float(cell or 0)
        except ValueError:
            text = cell if isinstance(cell, str) else str(cell)
            return f", such as {text[:40]!r}"
    return ""
