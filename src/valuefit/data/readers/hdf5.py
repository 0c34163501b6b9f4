"""HDF5 files in the layout of D4RL; links and external data are never followed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.data.columns import columns_to_read, match_columns
from valuefit.data.table import Table
from valuefit.extras import need, said
from valuefit.memory import check_size
from valuefit.typing import Array

MAX_DATASETS = 10_000  # bounds the time to list the datasets of an untrusted file


def read_hdf5(path: Path, *, columns: Mapping[str, Any] | None, limit: int) -> Table:
    """The datasets `observations, actions, rewards, terminals`; optional: `timeouts, next_observations`.

    `infos/action_log_probs` are converted to behaviour probabilities. For other layouts `columns` maps
    valuefit's names to paths inside the file (`{"obs": "data/state"}`).
    """
    where = str(path)
    with open_hdf5(path) as file:
        matched = match_columns(dataset_paths(file), columns, where)
        found = {name: find_dataset(file, name, where) for name in columns_to_read(matched)}
        check_size(sum(dataset_bytes(dataset) for dataset in found.values()), limit, where)
        arrays = {name: read_dataset(dataset, where) for name, dataset in found.items()}
    return Table(matched, arrays.__getitem__, where)


def open_hdf5(path: Path) -> Any:
    """Open a file for reading."""
    h5py = need("h5py", "files", "Reading HDF5")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise ValueError(f"{path} is not an HDF5 file, or it is damaged ({said(error)}). Write it again.") from error


def dataset_paths(group: Any) -> list[str]:
    """Paths of the datasets in a group and its subgroups; links are listed but not followed."""
    h5py = need("h5py", "files", "Reading HDF5")
    found: list[str] = []
    visited = set()  # addresses of groups: a group may contain itself
    pending = [(group, "")]
    while pending:
        parent, prefix = pending.pop()
        address = h5py.h5o.get_info(parent.id).addr
        if address in visited:
            continue
        visited.add(address)
        for name in parent:
            inside = isinstance(parent.get(name, getlink=True), h5py.HardLink)
            if inside and parent.get(name, getclass=True) is h5py.Group:
                pending.append((parent[name], f"{prefix}{name}/"))
            else:
                found.append(prefix + name)
        if len(found) + len(pending) > MAX_DATASETS:
            raise ValueError(
                f"{group.file.filename} holds more than {MAX_DATASETS} arrays, so it is not a log of steps."
            )
    return found


def find_dataset(group: Any, name: str, where: str) -> Any:
    """The numeric dataset at a path; raises ValueError if any part of the path or of its data is outside the file."""
    h5py = need("h5py", "files", "Reading HDF5")
    found = group
    for part in name.split("/"):
        link = found.get(part, getlink=True) if isinstance(found, h5py.Group) and part else None
        if isinstance(link, h5py.ExternalLink | h5py.SoftLink):
            raise ValueError(
                f"{name!r} in {where} is a link, which may point to another file; valuefit does not follow links. Copy "
                "the data into the file."
            )
        if link is None:
            raise ValueError(f"{where} has no dataset {name!r}.")
        found = found[part]
    if not isinstance(found, h5py.Dataset) or found.shape is None:
        raise ValueError(f"{name!r} in {where} is not an array of numbers.")
    if found.external is not None or found.is_virtual:
        kind = "a virtual dataset, which may refer to other files" if found.is_virtual else "stored in another file"
        raise ValueError(
            f"{name!r} in {where} is {kind}; valuefit does not open other files. Copy the data into the file."
        )
    if found.dtype.hasobject or found.dtype.kind not in "biuf":
        raise ValueError(
            f"Column {name!r} of {where} holds {'text' if found.dtype.hasobject else found.dtype}, not numbers. "
            "Convert it, or name another with columns=."
        )
    return found


def dataset_bytes(dataset: Any) -> int:
    """Bytes needed to read a dataset: those of its declared shape, or of one chunk if that is larger."""
    chunk = int(np.prod(dataset.chunks, dtype=object)) if dataset.chunks else 0
    return int(dataset.dtype.itemsize) * max(int(np.prod(dataset.shape, dtype=object)), chunk)


def read_dataset(dataset: Any, where: str) -> Array:
    """A dataset as an array."""
    try:
        return np.asarray(dataset[()])
    except (OSError, RuntimeError) as error:
        raise ValueError(
            f"{dataset.name!r} in {where} cannot be read ({said(error)}). Write the file again."
        ) from error
