"""Dicts of arrays, with valuefit's names, those of D4RL or d3rlpy, or others mapped by `columns`."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from numbers import Real
from typing import Any, Protocol, runtime_checkable

import numpy as np

from valuefit.data.columns import match_columns
from valuefit.data.readers.arrow import to_array
from valuefit.data.table import Table
from valuefit.data.validation import with_missing
from valuefit.extras import need
from valuefit.messages import translated
from valuefit.typing import Array


@runtime_checkable
class ArrowStream(Protocol):
    """A column of a data frame."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


def read_arrays(source: Mapping[str, Any], *, columns: Mapping[str, Any] | None = None) -> Table:
    """The columns of named arrays, lists or CPU tensors, one entry per step; other entries are ignored."""
    where = "the dict"

    def read(name: str) -> Array:
        values = source[name]
        if isinstance(values, np.ma.MaskedArray):
            return values
        with translated(f"Column {name!r} of {where} is not an array", "Give rows of equal shape, one per step."):
            if isinstance(values, ArrowStream) and not isinstance(getattr(values, "dtype", None), np.dtype):
                # nullable integers, which NumPy would convert to floats
                pyarrow = need("pyarrow", "files", f"Reading a {type(values).__name__}")
                return to_array(name, pyarrow.chunked_array(values), where)
            return _numbers_among_objects(np.asarray(values))

    matched = match_columns([name for name in source if isinstance(name, str)], columns, where)
    return Table(matched, read, where)


def _numbers_among_objects(values: Array) -> Array:
    """An array of objects as numbers, if all that are not missing are, and none changes; others as they are."""
    missing = with_missing("Column", values)[1] if values.dtype.kind == "O" else None
    if missing is None or missing.all():
        return values
    known = np.where(missing, 0, values)
    if not all(isinstance(value, Real | Decimal) for value in known.flat):
        return values
    if all(isinstance(value, Decimal | Fraction | float) for value in values[~missing].flat):  # the nearest, as in text
        converted = known = known.astype(np.float64)
    else:
        converted = np.array(known.tolist())
    if converted.shape != values.shape or not (converted == known).all():
        return values
    return np.ma.array(converted, mask=missing) if missing.any() else converted
