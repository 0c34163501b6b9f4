"""Arrays in .npy format, in .npz archives and folders; headers are checked before any data is read or decompressed."""

from __future__ import annotations

import math
import os
import warnings
import zipfile
from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from valuefit.memory import check_size
from valuefit.messages import translated
from valuefit.typing import Array

_warnings_lock = Lock()


class Header(NamedTuple):
    """What the header of an .npy file declares."""

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]

    @property
    def bytes(self) -> int:
        """Size of the array in memory."""
        return self.dtype.itemsize * math.prod(self.shape)


def _header_of(stream: Any) -> tuple[Any, ...]:
    """Shape, order and dtype, as NumPy reads them; without its warning about headers that Python 2 wrote.

    `numpy.load` would allocate an array before its declared size can be checked.
    """
    version = npy.read_magic(stream)
    size = {(1, 0): 2, (2, 0): 4}[version]
    length = stream.read(size)
    # 64 KiB are more than NumPy accepts
    header = stream.read(min(int.from_bytes(length, "little"), 1 << 16))
    return _parsed(version, length + header)


@lru_cache(64)
def _parsed(version: tuple[int, int], header: bytes) -> tuple[Any, ...]:
    """What NumPy reads in a header after the version; remembered, as every shard reads those of its columns again."""
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    with _warnings_lock, warnings.catch_warnings():  # filters belong to the process, and shards are read by threads
        warnings.simplefilter("ignore", UserWarning)
        return tuple(read(BytesIO(header)))


def read_header(stream: Any, where: str, *, kinds: str = "biuf") -> Header:
    """The header of an .npy stream; raises ValueError for Python objects and dtypes not among `kinds`."""
    with translated(f"{where} is not an array of numbers in .npy format", "Write it again."):
        header = Header(*_header_of(stream))
        if not _is_shape(header.shape):
            raise ValueError(f"its shape is {header.shape}")
    dtype = header.dtype
    if dtype.hasobject or dtype.kind not in kinds or dtype.itemsize == 0:
        raise ValueError(
            f"{where} holds {'Python objects' if dtype.hasobject else f'dtype {dtype}'}, not numbers. "
            "valuefit does not unpickle objects: save it as a plain numeric array."
        )
    return header


def _is_shape(shape: tuple[Any, ...]) -> bool:
    """Whether NumPy can address an array of this shape: at most 64 dimensions, and entries far below 2^64 bytes."""
    valid = len(shape) <= 64 and all(type(length) is int and length >= 0 for length in shape)
    return valid and math.prod(max(length, 1) for length in shape) < 1 << 56


class StoredArray(NamedTuple):
    """An array in an .npy file of its own, whose numbers begin after `start` bytes."""

    path: Path
    header: Header
    start: int

    def map(self) -> Array:
        """The array, memory-mapped."""
        shape, fortran_order, dtype = self.header
        if self.header.bytes == 0:  # an empty file cannot be mapped
            return np.empty(shape, dtype)
        with translated(f"{self.path} cannot be mapped into memory", "Write it again."):
            order = "F" if fortran_order else "C"
            return np.memmap(self.path, dtype, "r", self.start, shape, order)  # type: ignore[call-overload]

    def rows(self, chosen: slice | Array) -> Array:
        """Some rows in memory: a range is read, which is faster than touching mapped pages the first time."""
        (_, *inner), fortran_order, dtype = self.header
        if not isinstance(chosen, slice) or (fortran_order and inner):
            return np.array(self.map()[chosen])
        first, last, size = chosen.start, chosen.stop, math.prod(inner)
        offset = self.start + first * size * dtype.itemsize
        values = np.fromfile(self.path, dtype, (last - first) * size, offset=offset)
        if len(values) < (last - first) * size:
            raise ValueError(f"{self.path} has become shorter while it was read. Save the log again.")
        return values.reshape(last - first, *inner)


def find_array(path: Path, *, kinds: str = "biuf") -> StoredArray:
    """The array in an .npy file, whose size is checked; its numbers are not read."""
    where = str(path)
    with open(path, "rb") as stream:
        header = read_header(stream, where, kinds=kinds)
        start, end = stream.tell(), os.fstat(stream.fileno()).st_size
    _check_content(header, end - start, where)
    return StoredArray(path, header, start)


def map_array(path: Path, *, kinds: str = "biuf") -> Array:
    """The array in an .npy file, memory-mapped."""
    return find_array(path, kinds=kinds).map()


def array_names(path: Path) -> list[str]:
    """Names of the arrays in an .npz file."""
    with _open(path) as archive:
        return list(dict.fromkeys(name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")))


def read_npz_arrays(
    path: Path, names: Iterable[str] | None = None, *, limit: int, kinds: str = "biuf"
) -> dict[str, Array]:  # fmt: skip
    """The arrays of an .npz file, all or those named, if together they take at most `limit` bytes of memory."""
    names = array_names(path) if names is None else list(names)
    with _open(path) as archive:
        headers = {name: _entry_header(archive, name, path, kinds) for name in names}
        check_size(sum(header.bytes for header in headers.values()), limit, str(path))
        return {name: _read_entry(archive, name, path, header) for name, header in headers.items()}


def _open(path: Path) -> zipfile.ZipFile:
    with _damaged(path):
        return zipfile.ZipFile(path)


def _damaged(path: Path) -> AbstractContextManager[None]:
    return translated(f"{path} is not an .npz file, or it is damaged", "Write it again.")


def _entry_header(archive: zipfile.ZipFile, name: str, path: Path, kinds: str) -> Header:
    """The header of an array in an archive, whose size must be that of the archive entry."""
    with _damaged(path):
        entry = archive.getinfo(f"{name}.npy")
        stream = archive.open(entry)
    with stream:
        header = read_header(stream, f"{name!r} in {path}", kinds=kinds)
        _check_content(header, entry.file_size - stream.tell(), f"{name!r} in {path}")
    return header


def _check_content(header: Header, held: int, where: str) -> None:
    """Raise ValueError unless the declared size is that of the bytes after the header."""
    if header.bytes != held:
        more = "more" if header.bytes > held else "fewer"
        raise ValueError(f"{where} declares {more} numbers than it holds: the file is damaged. Write it again.")


def _read_entry(archive: zipfile.ZipFile, name: str, path: Path, header: Header) -> Array:
    """The array of an archive entry, read in pieces into its memory."""
    content = np.empty(header.bytes, np.uint8)
    with _damaged(path), archive.open(f"{name}.npy") as stream:
        _header_of(stream)
        filled = 0
        while filled < len(content):
            piece = stream.read(min(1 << 20, len(content) - filled))  # a MiB at a time
            if not piece:
                raise EOFError(f"{name!r} is cut short")
            content[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
            filled += len(piece)
        stream.read(1)  # compares the checksum
    return content.view(header.dtype).reshape(header.shape, order="F" if header.fortran_order else "C")
