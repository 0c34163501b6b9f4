"""`.npz` of named arrays; the sizes that its entries declare are checked before any of them is unpacked."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.data.assemble import build
from valuefit.data.columns import choose, needed
from valuefit.data.npy import declared_bytes, entries_of, read_entry
from valuefit.data.transitions import Transitions
from valuefit.extras import said
from valuefit.memory import check_size


def read_npz(path: Path, *, columns: Mapping[str, Any] | None, limit: int) -> Transitions:
    """A log from an `.npz` file with the argument names of `Transitions.from_arrays`, or others with `columns`."""
    where = str(path)
    try:
        with zipfile.ZipFile(path) as archive:
            chosen = choose(entries_of(archive), columns, where)
            wanted = needed(chosen)
            check_size(sum(declared_bytes(archive, name, where) for name in wanted), limit, where)
            arrays = {name: read_entry(archive, name) for name in wanted}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{where} is no .npz file, or it is damaged ({said(error)}). Write it anew.") from error
    return build(chosen, arrays.__getitem__, where)


def write_npz(path: Path, columns: dict[str, Any]) -> None:
    """Columns under their names; masked numbers are never looked at, so any will do."""
    plain: dict[str, Any] = {name: np.ma.getdata(values) for name, values in columns.items()}
    with open(path, "wb") as stream:
        np.savez(stream, **plain)
