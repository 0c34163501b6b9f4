"""Dicts of arrays, with valuefit's names, those of D4RL or d3rlpy, or others mapped by `columns`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from valuefit.data.columns import match_columns
from valuefit.data.table import Table
from valuefit.extras import said
from valuefit.typing import Array


def read_arrays(source: Mapping[str, Any], *, columns: Mapping[str, Any] | None = None) -> Table:
    """The columns of named arrays, lists or CPU tensors, one entry per step; other entries are ignored."""
    where = "the dict"

    def read(name: str) -> Array:
        try:
            return np.asarray(source[name])
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"Column {name!r} of {where} is not an array: {said(error)}. Give rows of equal shape, one per step."
            ) from error

    matched = match_columns([name for name in source if isinstance(name, str)], columns, where)
    return Table(matched, read, where)
