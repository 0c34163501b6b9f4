"""A dict of arrays, one entry a step: our names, D4RL's or d3rlpy's, or any with `columns`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from valuefit.data.assemble import build
from valuefit.data.columns import choose
from valuefit.data.transitions import Transitions
from valuefit.extras import said
from valuefit.typing import Array


def read_arrays(source: Mapping[str, Any], *, columns: Mapping[str, Any] | None = None) -> Transitions:
    """A log from named arrays (lists and CPU tensors will do); entries that are not needed are not looked at."""
    where = "the dict"

    def read(name: str) -> Array:
        try:
            return np.asarray(source[name])
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"Column {name!r} of {where} is no array: {said(error)}. Give one row of equal shape for each step."
            ) from error

    return build(choose([name for name in source if isinstance(name, str)], columns, where), read, where)
