"""HDF5 in the layout of D4RL; nothing outside the file is ever followed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.data.assemble import build
from valuefit.data.columns import choose, needed
from valuefit.data.transitions import Transitions
from valuefit.extras import need, said
from valuefit.memory import check_size
from valuefit.typing import Array

MOST_NAMES = 10_000


def read_hdf5(path: Path, *, columns: Mapping[str, Any] | None, limit: int) -> Transitions:
    """A log from `observations, actions, rewards, terminals`, and if there `timeouts, next_observations`.

    `infos/action_log_probs` become behaviour probabilities. Other layouts: `columns` maps our names to
    paths inside the file (`{"obs": "data/state"}`).
    """
    where = str(path)
    with opened(path) as file:
        chosen = choose(names_in(file), columns, where)
        found = {name: dataset(file, name, where) for name in needed(chosen)}
        check_size(sum(declared(one) for one in found.values()), limit, where)
        arrays = {name: values(one, where) for name, one in found.items()}
    return build(chosen, arrays.__getitem__, where)


def opened(path: Path) -> Any:
    """The file, for reading."""
    h5py = need("h5py", "files", "Reading HDF5")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise ValueError(f"{path} is no HDF5 file, or it is damaged ({said(error)}). Write it anew.") from error


def names_in(group: Any) -> list[str]:
    """Paths of datasets in a group and in the groups it contains; links are named but not followed."""
    h5py = need("h5py", "files", "Reading HDF5")
    found: list[str] = []
    seen = set()  # groups, by where they lie in the file: they may contain themselves
    waiting = [(group, "")]
    while waiting:
        place, prefix = waiting.pop()
        address = h5py.h5o.get_info(place.id).addr
        if address in seen:
            continue
        seen.add(address)
        for name in place:
            inside = isinstance(place.get(name, getlink=True), h5py.HardLink)
            if inside and place.get(name, getclass=True) is h5py.Group:
                waiting.append((place[name], f"{prefix}{name}/"))
            else:
                found.append(prefix + name)
        if len(found) + len(waiting) > MOST_NAMES:
            raise ValueError(f"{group.file.filename} holds more than {MOST_NAMES} arrays, so it is no log of steps.")
    return found


def dataset(group: Any, name: str, where: str) -> Any:
    """The dataset at a path, every part of which lies in this file."""
    h5py = need("h5py", "files", "Reading HDF5")
    place = group
    for part in name.split("/"):
        link = place.get(part, getlink=True) if isinstance(place, h5py.Group) and part else None
        if isinstance(link, h5py.ExternalLink | h5py.SoftLink):
            raise ValueError(
                f"{name!r} in {where} is a link, which may lead to another file; valuefit does not follow it. Copy the "
                "data into the file."
            )
        if link is None:
            raise ValueError(f"{where} has no dataset {name!r}.")
        place = place[part]
    if not isinstance(place, h5py.Dataset) or place.shape is None:
        raise ValueError(f"{name!r} in {where} is no array of numbers.")
    if place.external is not None or place.is_virtual:
        kind = "a virtual dataset" if place.is_virtual else "stored in another file"
        raise ValueError(
            f"{name!r} in {where} is {kind}, which may draw on other files; valuefit does not open them. Copy the "
            "data into the file."
        )
    if place.dtype.hasobject or place.dtype.kind not in "biuf":
        raise ValueError(
            f"Column {name!r} of {where} holds {'text' if place.dtype.hasobject else place.dtype}, not numbers. "
            "Convert it, or name another with columns=."
        )
    return place


def declared(one: Any) -> int:
    """Bytes of a dataset by its shape, or of the one chunk that must be unpacked to read any of it."""
    chunk = int(np.prod(one.chunks, dtype=object)) if one.chunks else 0
    return int(one.dtype.itemsize) * max(int(np.prod(one.shape, dtype=object)), chunk)


def values(one: Any, where: str) -> Array:
    """All numbers of a dataset."""
    try:
        return np.asarray(one[()])
    except (OSError, RuntimeError) as error:
        raise ValueError(f"{one.name!r} in {where} cannot be read ({said(error)}). Write the file anew.") from error
