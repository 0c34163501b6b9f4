"""`.npz` of named arrays; the sizes that its entries declare are checked before any of them is unpacked."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from valuefit.data.assemble import build
from valuefit.data.columns import choose, needed
from valuefit.data.transitions import Array, Transitions
from valuefit.memory import check_size, said

# np.load would take these in its stride too, but it reads an entry before anybody has seen its size
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_npz(path: Path, *, columns: Mapping[str, Any] | None, limit: int) -> Transitions:
    """A log from an `.npz` file with the argument names of `Transitions.from_arrays`, or others with `columns`."""
    where = str(path)
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [entry.removesuffix(".npy") for entry in archive.namelist() if entry.endswith(".npy")]
            chosen = choose(entries, columns, where)
            wanted = needed(chosen)
            check_size(sum(_declared(archive, name, where) for name in wanted), limit, where)
            arrays = {name: _read(archive, name) for name in wanted}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{where} is no .npz file, or it is damaged ({said(error)}). Write it anew.") from error
    return build(chosen, arrays.__getitem__, where)


def _declared(archive: zipfile.ZipFile, name: str, where: str) -> int:
    """Bytes of an array by its header, which must be numbers and must fit the entry that carries it."""
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as stream:
        shape, _, dtype = read_header(stream, f"{name!r} in {where}")
    size = dtype.itemsize
    for length in shape:
        size *= length
    if size > info.file_size:
        raise ValueError(
            f"{name!r} in {where} declares more numbers than it holds: the file is damaged. Write it anew."
        )
    return size


def read_header(stream: Any, where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, Fortran order and dtype of an .npy stream; Python objects, which would be unpickled, are refused."""
    try:
        version = npy.read_magic(stream)
        shape, fortran, dtype = HEADERS[version](stream)
    except (ValueError, KeyError) as error:
        raise ValueError(f"{where} is no array of numbers in .npy format ({said(error)}).") from error
    if dtype.hasobject or dtype.kind not in "biuf":
        raise ValueError(
            f"{where} holds {'Python objects' if dtype.hasobject else f'dtype {dtype}'}, not numbers. "
            "valuefit unpickles nothing: save it as a plain numeric array."
        )
    return shape, fortran, dtype


def _read(archive: zipfile.ZipFile, name: str) -> Array:
    with archive.open(f"{name}.npy") as stream:
        return np.asarray(npy.read_array(stream, allow_pickle=False))


def write_npz(path: Path, columns: dict[str, Any]) -> None:
    """Columns under their names; masked numbers are never looked at, so any will do."""
    plain: dict[str, Any] = {name: np.ma.getdata(values) for name, values in columns.items()}
    with open(path, "wb") as stream:
        np.savez(stream, **plain)
