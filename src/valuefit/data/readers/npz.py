"""`.npz` files of named arrays; the declared sizes are checked before any array is decompressed."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.data.columns import columns_to_read, match_columns
from valuefit.data.npy import declared_bytes, entries_of, read_entry
from valuefit.data.table import Table
from valuefit.extras import said
from valuefit.memory import check_size


def read_npz(path: Path, *, columns: Mapping[str, Any] | None, limit: int) -> Table:
    """The arrays of an `.npz` file, named as the arguments of `Transitions.from_arrays` or mapped by `columns`."""
    where = str(path)
    try:
        with zipfile.ZipFile(path) as archive:
            matched = match_columns(entries_of(archive), columns, where)
            wanted = columns_to_read(matched)
            check_size(sum(declared_bytes(archive, name, where) for name in wanted), limit, where)
            arrays = {name: read_entry(archive, name) for name in wanted}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{where} is not an .npz file, or it is damaged ({said(error)}). Write it again.") from error
    return Table(matched, arrays.__getitem__, where)


def write_npz(path: Path, columns: dict[str, Any]) -> None:
    """Write columns under their names; masked entries keep arbitrary numbers, because readers never use them."""
    plain: dict[str, Any] = {name: np.ma.getdata(values) for name, values in columns.items()}
    with open(path, "wb") as stream:
        np.savez(stream, **plain)
