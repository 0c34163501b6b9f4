"""Arrays in .npy format in archives and folders; headers are checked before any data is read or decompressed."""

from __future__ import annotations

import zipfile
from typing import Any

import numpy as np
from numpy.lib import format as npy

from valuefit.extras import said
from valuefit.typing import Array

# np.load would allocate an array before its declared size can be checked
HEADER_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_header(stream: Any, where: str, *, kinds: str = "biuf") -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of an .npy stream; raises ValueError for Python objects and dtypes not among `kinds`."""
    try:
        shape, _, dtype = HEADER_READERS[npy.read_magic(stream)](stream)
    except (ValueError, KeyError) as error:
        raise ValueError(f"{where} is not an array of numbers in .npy format ({said(error)}).") from error
    if dtype.hasobject or dtype.kind not in kinds:
        raise ValueError(
            f"{where} holds {'Python objects' if dtype.hasobject else f'dtype {dtype}'}, not numbers. "
            "valuefit does not unpickle objects: save it as a plain numeric array."
        )
    return shape, dtype


def declared_bytes(archive: zipfile.ZipFile, name: str, where: str, *, kinds: str = "biuf") -> int:
    """Bytes of an array in an .npz archive by its header, which must not exceed the size of the archive entry."""
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as stream:
        shape, dtype = read_header(stream, f"{name!r} in {where}", kinds=kinds)
    size = dtype.itemsize
    for length in shape:
        size *= length
    if size > info.file_size:
        raise ValueError(
            f"{name!r} in {where} declares more numbers than it holds: the file is damaged. Write it again."
        )
    return size


def read_entry(archive: zipfile.ZipFile, name: str) -> Array:
    """An array of an .npz archive."""
    with archive.open(f"{name}.npy") as stream:
        return np.asarray(npy.read_array(stream, allow_pickle=False))


def entries_of(archive: zipfile.ZipFile) -> list[str]:
    """Names of the arrays in an .npz archive."""
    return [entry.removesuffix(".npy") for entry in archive.namelist() if entry.endswith(".npy")]
