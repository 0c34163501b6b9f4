"""Arrays in .npy format inside archives and folders: their headers are checked before anything is read or unpacked."""

from __future__ import annotations

import zipfile
from typing import Any

import numpy as np
from numpy.lib import format as npy

from valuefit.extras import said
from valuefit.typing import Array

# np.load reads an entry before anybody has seen its size
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_header(stream: Any, where: str, *, kinds: str = "biuf") -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of an .npy stream; refuses Python objects, which would be unpickled, and other kinds of dtype."""
    try:
        shape, _, dtype = HEADERS[npy.read_magic(stream)](stream)
    except (ValueError, KeyError) as error:
        raise ValueError(f"{where} is no array of numbers in .npy format ({said(error)}).") from error
    if dtype.hasobject or dtype.kind not in kinds:
        raise ValueError(
            f"{where} holds {'Python objects' if dtype.hasobject else f'dtype {dtype}'}, not numbers. "
            "valuefit unpickles nothing: save it as a plain numeric array."
        )
    return shape, dtype


def declared_bytes(archive: zipfile.ZipFile, name: str, where: str, *, kinds: str = "biuf") -> int:
    """Bytes of an array in an .npz archive by its header, which must fit the entry that carries it."""
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as stream:
        shape, dtype = read_header(stream, f"{name!r} in {where}", kinds=kinds)
    size = dtype.itemsize
    for length in shape:
        size *= length
    if size > info.file_size:
        raise ValueError(
            f"{name!r} in {where} declares more numbers than it holds: the file is damaged. Write it anew."
        )
    return size


def read_entry(archive: zipfile.ZipFile, name: str) -> Array:
    """An array of an .npz archive."""
    with archive.open(f"{name}.npy") as stream:
        return np.asarray(npy.read_array(stream, allow_pickle=False))


def entries_of(archive: zipfile.ZipFile) -> list[str]:
    """Names of the arrays in an .npz archive."""
    return [entry.removesuffix(".npy") for entry in archive.namelist() if entry.endswith(".npy")]
