"""Columns of text: categories become one-hot entries of the observation; other text is refused with its cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np

from valuefit.data.columns import columns_of, quote_names
from valuefit.data.labels import as_text, first_text, is_text, reads_as_number
from valuefit.data.table import Table
from valuefit.memory import check_size
from valuefit.typing import Array

MAX_CATEGORIES = 100  # distinct texts of a column that is treated as categories without being declared


def split_categorical(columns: Mapping[str, Any] | None) -> tuple[Any, tuple[str, ...]]:
    """The user's `columns` without its key `categorical`, and the columns that this key declares."""
    if columns is None or "categorical" not in columns:
        return columns, ()
    declared = columns["categorical"]
    declared = [declared] if isinstance(declared, str) else [] if declared is None else declared
    if not isinstance(declared, list | tuple) or not all(isinstance(name, str) for name in declared):
        raise ValueError(
            f"columns gives {columns['categorical']!r} for categorical; give a list of your columns that hold "
            "categories, as in {'categorical': ['weather']}."
        )
    return {key: value for key, value in columns.items() if key != "categorical"}, tuple(declared)


def without_categorical(columns: Mapping[str, Any] | None, where: str) -> Any:
    """The user's `columns` for a log that is read in parts; raises ValueError if it declares categories."""
    columns, declared = split_categorical(columns)
    if declared:
        raise ValueError(
            f"columns declares {declared[0]!r} as categorical, but categories are numbered by all values of a log, and "
            f"{where} is read in parts. Write a column of 0 and 1 for each category (as pandas.get_dummies does), or "
            "load it into memory, with a limit that is large enough for it."
        )
    return columns


def encode_categories(table: Table, declared: Sequence[str], limit: int) -> Table:
    """The table with each categorical column of the observations as a matrix of one-hot entries.

    Categories are the columns in `declared`, and text with at most MAX_CATEGORIES distinct values, none of which is a
    number. The next observation has the categories of the observation. A single column of text is left as it is: it
    labels states. Raises ValueError for other text, and if the matrices exceed `limit` bytes.
    """
    obs, after = columns_of(table.matched, "obs"), columns_of(table.matched, "next_obs")
    unknown = [name for name in declared if name not in (*obs, *after)]
    if unknown:
        raise ValueError(
            f"columns declares {unknown[0]!r} as categorical, but the observations of {table.where} are in "
            f"{quote_names(obs)}."
        )
    columns = {name: table.read(name) for name in (*obs, *after)}
    for name, values in columns.items():
        if is_text(values) and values.size:
            refuse_packed(str(np.ma.getdata(values).flat[0]), name, table.where)
    states = isinstance(table.matched["obs"], str)  # a single column
    entries, notes = dict(table.entries), list(table.notes)
    for name, next_name in zip_longest(obs, after):
        pair = [one for one in (name, next_name) if one is not None]
        given = any(one in declared for one in pair)
        if name is None or not (given or (not states and any(is_text(columns[one]) for one in pair))):
            continue
        labels = {one: _labels(one, columns[one], table.where) for one in pair}
        if not given:
            _check_categories(table, labels)
        categories = sorted({label for column in labels.values() for label in column} - {None}, key=_sort_key)
        size = 4 * len(categories) * sum(map(len, labels.values()))
        check_size(size, limit, f"Column {name!r} as {len(categories)} categories")
        columns |= {one: _one_hot(column, categories) for one, column in labels.items()}
        entries[name] = tuple(f"{name}={str(category)[:60]}" for category in categories)
        notes.append(
            f"Column {name!r} is treated as {len(categories)} categories, each an entry of the observation: "
            f"{quote_names([str(category) for category in categories])}."
        )

    def read(name: str) -> Array:
        return columns.pop(name) if name in columns else table.read(name)  # released as soon as they are used

    return replace(table, read=read, entries=entries, notes=tuple(notes))


def refuse_text(field: str, name: str | tuple[str, ...], values: Array, table: Table) -> ValueError:
    """The error for a column of text that must hold numbers; it names the first cell that is not a number."""
    row, text = first_text(values)
    return ValueError(
        f"Column {name!r} of {table.where} holds text, {text[:40]!r} at {table.place(row)}, but {field} must be "
        f"numbers. Convert it (number the categories), or name another column with `columns={{{field!r}: ...}}`."
    )


def refuse_packed(text: str, name: str, where: str) -> None:
    """Raise ValueError for a column that RLlib packed: its content is a pickle."""
    if text.startswith(("BCJNG", "b'BCJNG")):  # base64 of the first bytes of an LZ4 frame
        raise ValueError(
            f"Column {name!r} is packed by RLlib in {where}: it holds compressed Python objects, and valuefit does not "
            "unpickle objects, because that can run code. Write the data again without packing: "
            "output_compress_columns=[] in the configuration of RLlib, or compress_columns=[] of its JsonWriter."
        )


def _check_categories(table: Table, columns: dict[str, list[Any]]) -> None:
    """Raise ValueError, naming a cell, if the text of undeclared columns does not look like categories."""
    remedy = f"If all are categories, declare them: `columns={{'categorical': [{next(iter(columns))!r}]}}`."
    distinct: set[Any] = set()
    for name, labels in columns.items():
        words = {label for label in set(labels) - {None} if not reads_as_number(label)}
        numbers = set(labels) - words - {None}
        distinct |= words

        def cell(among: set[Any], name: str = name, labels: list[Any] = labels) -> str:
            row = next(row for row, label in enumerate(labels) if label in among)
            return f"{str(labels[row])[:40]!r} at {table.place(row)}"

        if numbers:
            text = f"text, {cell(words)}, and " if words else ""
            raise ValueError(
                f"Column {name!r} of {table.where} holds {text}numbers written as text, {cell(numbers)}. Correct or "
                f"convert them. {remedy}"
            )
        if len(distinct) > MAX_CATEGORIES:
            raise ValueError(
                f"Column {name!r} of {table.where} holds text with more than {MAX_CATEGORIES} distinct values, such as "
                f"{cell(words)}. Convert it to numbers, or leave it out with `columns={{'obs': ...}}`. {remedy}"
            )


def _labels(name: str, values: Array, where: str) -> list[Any]:
    """Entries of a column, None where missing."""
    if is_text(values):
        return as_text(values, f"Column {name!r} of {where}")
    if values.ndim != 1:
        raise ValueError(f"Column {name!r} of {where} has shape {values.shape}; categories must be one per step.")
    return [None if label != label else label for label in values.tolist()]


def _sort_key(category: Any) -> tuple[bool, Any]:
    """Numbers before text."""
    return isinstance(category, str), category


def _one_hot(labels: list[Any], categories: list[Any]) -> Array:
    """A row with a 1 at the category of each label; NaN where the label is missing."""
    number = {category: k for k, category in enumerate(categories)}
    codes = np.fromiter((number.get(label, -1) for label in labels), np.int64, len(labels))
    rows = np.zeros((len(labels), len(categories)), np.float32)
    known = np.flatnonzero(codes >= 0)
    rows[known, codes[known]] = 1
    rows[codes < 0] = np.nan
    return rows
