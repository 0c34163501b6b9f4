"""`.npz` files of named arrays; the declared sizes are checked before any array is decompressed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.data.assemble import build_log
from valuefit.data.columns import columns_to_read, match_columns
from valuefit.data.npy import array_names, read_arrays
from valuefit.data.transitions import Transitions


def read_npz(path: Path, *, columns: Mapping[str, Any] | None, limit: int) -> Transitions:
    """A log from an `.npz` file with the argument names of `Transitions.from_arrays`, or others mapped by `columns`."""
    where = str(path)
    matched = match_columns(array_names(path), columns, where)
    arrays = read_arrays(path, columns_to_read(matched), limit=limit)
    return build_log(matched, arrays.__getitem__, where)


def write_npz(path: Path, columns: dict[str, Any]) -> None:
    """Write columns under their names; masked entries keep arbitrary numbers, because readers never use them."""
    plain: dict[str, Any] = {name: np.ma.getdata(values) for name, values in columns.items()}
    with open(path, "wb") as stream:
        np.savez(stream, **plain)
