"""HDF5 files in the layout of D4RL; links and external data are never followed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.data.columns import ColumnMap, columns_to_read, match_columns
from valuefit.data.table import Scan, Table
from valuefit.extras import need
from valuefit.memory import check_size
from valuefit.messages import translated
from valuefit.typing import Array

EXTENSIONS = (".h5", ".hdf5")
MAX_DATASETS = 10_000  # bounds the time to list the datasets of an untrusted file


def read(path: Path, *, columns: Mapping[str, Any] | None, limit: int, rows: tuple[int, int] | None = None) -> Table:
    """The datasets `observations, actions, rewards, terminals`; optional: `timeouts, next_observations`.

    `infos/action_log_probs` are converted to behaviour probabilities. For other layouts `columns` maps
    valuefit's names to paths inside the file (`{"obs": "data/state"}`). rows: from start to stop; None: all.
    """
    where = str(path)
    with open_hdf5(path) as file:
        matched, datasets = _matched_datasets(file, columns, where)
        check_size(sum(dataset_bytes(name, dataset, where, rows) for name, dataset in datasets.items()), limit, where)
        arrays = {name: read_dataset(name, dataset, where, rows) for name, dataset in datasets.items()}
    return Table(matched, arrays.__getitem__, where)


@contextmanager
def scan(path: Path, *, columns: Mapping[str, Any] | None, limit: int) -> Iterator[Scan]:
    """What is known of an HDF5 file before its rows are read; closed at the end."""
    where = str(path)
    with open_hdf5(path) as file:
        matched, datasets = _matched_datasets(file, columns, where)
        rows = _equal_length(datasets, where)
        for name, dataset in datasets.items():
            chunk = dataset_bytes(name, dataset, where, (0, 0))
            # a chunk is read as a whole; one of 16 MiB is, whatever the limit
            check_size(chunk, max(limit, 16 << 20), f"One chunk of {name!r} in {where}")
            _check_stored(name, dataset, where)
        size = sum(dataset_bytes(name, dataset, where) for name, dataset in datasets.items()) // max(rows, 1)
        types = {name: "text" if holds_text(dataset) else str(dataset.dtype) for name, dataset in datasets.items()}

        def marks(names: Sequence[str], count: int) -> Iterator[list[Array]]:
            for start in range(0, rows, count):
                part = start, min(start + count, rows)
                yield [read_dataset(name, datasets[name], where, part) for name in names]

        yield Scan(matched, rows, size, types, marks)


def _matched_datasets(file: Any, columns: Mapping[str, Any] | None, where: str) -> tuple[ColumnMap, dict[str, Any]]:
    """The datasets of each field by name, and the datasets."""
    matched = match_columns(dataset_paths(file, where), columns, where)
    return matched, {name: find_dataset(file, name, where) for name in columns_to_read(matched)}


def _check_stored(name: str, dataset: Any, where: str) -> None:
    """Raise ValueError if a dataset holds far less data than its shape, which would take forever to read."""
    with damaged(name, where):
        stored = int(dataset.id.get_storage_size())
    # no filter of HDF5 compresses 2,000 times (deflate: 1,032)
    if dataset_bytes(name, dataset, where, (0, 0)) + 2000 * stored < dataset_bytes(name, dataset, where):
        raise ValueError(f"{name!r} in {where} declares far more numbers than it holds. Write the file again.")


def _equal_length(datasets: Mapping[str, Any], where: str) -> int:
    """The number of rows of the datasets; raises ValueError if they differ."""
    lengths = {name: dataset.shape[0] if dataset.shape else 0 for name, dataset in datasets.items()}
    (first, rows), *others = lengths.items()
    for name, other in others:
        if other != rows:
            raise ValueError(
                f"{where}: {name!r} has {other} rows, but {first!r} has {rows}. Give one row per step, and the "
                "observation after the last step as next_obs."
            )
    return int(rows)


def open_hdf5(path: Path) -> Any:
    """Open a file for reading."""
    h5py = need("h5py", "files", "Reading HDF5")
    with translated(f"{path} is not an HDF5 file, or it is damaged", "Write it again."):
        return h5py.File(path, "r")


def damaged(name: str, where: str) -> AbstractContextManager[None]:
    """Raise any error of h5py as a ValueError that names the dataset or group and the file."""
    return translated(f"{name!r} in {where} cannot be read", "Write the file again.")


def dataset_paths(group: Any, where: str) -> list[str]:
    """Paths of the datasets in a group and its subgroups; links are listed but not followed."""
    h5py = need("h5py", "files", "Reading HDF5")
    paths: list[str] = []
    visited = set()  # addresses of groups: a group may contain itself
    pending = [(group, "")]
    while pending and len(paths) + len(pending) <= MAX_DATASETS:
        parent, prefix = pending.pop()
        with damaged(prefix or "/", where):
            address = h5py.h5o.get_info(parent.id).addr
            if address in visited:
                continue
            visited.add(address)
            for name in parent:
                inside = isinstance(parent.get(name, getlink=True), h5py.HardLink)
                if inside and parent.get(name, getclass=True) is h5py.Group:
                    pending.append((parent[name], f"{prefix}{name}/"))
                else:
                    paths.append(prefix + name)
    if len(paths) + len(pending) > MAX_DATASETS:
        raise ValueError(f"{where} holds more than {MAX_DATASETS} arrays, so it is not a log of steps.")
    return paths


def find_dataset(group: Any, name: str, where: str) -> Any:
    """The dataset of numbers or text at a path; raises ValueError if any of it is outside the file."""
    with damaged(name, where):
        item, refusal = _look_up(group, name)
    if refusal:
        raise ValueError(f"{name!r} in {where} {refusal}")
    return item


def _look_up(group: Any, name: str) -> tuple[Any, str]:
    """The object at a path, and why it is not read, if so: a sentence without its subject."""
    h5py = need("h5py", "files", "Reading HDF5")
    item = group
    for part in name.split("/"):
        link = item.get(part, getlink=True) if isinstance(item, h5py.Group) and part else None
        if isinstance(link, h5py.ExternalLink | h5py.SoftLink):
            return None, (
                "is a link, which may point to another file; valuefit does not follow links. Copy the data into the "
                "file."
            )
        if link is None:
            return None, "does not exist."
        item = item[part]
    if not isinstance(item, h5py.Dataset) or item.shape is None:
        return None, "is not an array of numbers."
    if item.external is not None or item.is_virtual:
        kind = "a virtual dataset, which may refer to other files" if item.is_virtual else "stored in another file"
        return None, f"is {kind}; valuefit does not open other files. Copy the data into the file."
    if h5py.check_string_dtype(item.dtype) is None and (item.dtype.hasobject or item.dtype.kind not in "biuf"):
        return None, f"holds {str(item.dtype)[:60]}, not numbers. Convert it, or name another with `columns`."
    return item, ""


def dataset_bytes(name: str, dataset: Any, where: str, rows: tuple[int, int] | None = None) -> int:
    """Bytes needed to read a dataset or some of its rows: those of the shape, or of one chunk if that is larger."""
    with damaged(name, where):
        chunk = math.prod(map(int, dataset.chunks)) if dataset.chunks else 0
        shape = dataset.shape if rows is None else (rows[1] - rows[0], *dataset.shape[1:])
        return int(dataset.dtype.itemsize) * max(math.prod(map(int, shape)), chunk)


def read_dataset(name: str, dataset: Any, where: str, rows: tuple[int, int] | None = None) -> Array:
    """A dataset, or its rows from start to stop, as an array; text as an array of objects."""
    with damaged(name, where):
        part = () if rows is None else slice(*rows)
        return np.asarray(dataset.asstr()[part] if holds_text(dataset) else dataset[part])


def holds_text(dataset: Any) -> bool:
    """Whether a dataset holds text."""
    return bool(dataset.dtype.kind in "OS")
