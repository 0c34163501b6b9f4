"""Local Minari datasets, by id or by folder; no data is downloaded and no environment is created.

The files are read directly, because Minari would import and call the entry point in an untrusted `env_spec`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from valuefit.data.columns import ColumnMap, columns_of, columns_to_read, match_columns
from valuefit.data.exact import concatenate
from valuefit.data.readers.hdf5 import (
    damaged,
    dataset_bytes,
    dataset_paths,
    find_dataset,
    holds_text,
    open_hdf5,
    read_dataset,
)
from valuefit.data.table import Table
from valuefit.memory import check_size
from valuefit.messages import translated
from valuefit.typing import Array

MAX_MINARI_METADATA_BYTES = 64 << 20  # large, because the metadata list the bounds of every pixel of an image


def dataset_folder(dataset_id: str) -> Path:
    """The folder in which Minari stores the dataset with this id."""
    if len(dataset_id) > 200 or not re.fullmatch(r"[A-Za-z0-9_-]+(?:/[A-Za-z0-9_-]+)*", dataset_id):
        raise ValueError(
            f"{dataset_id[:80]!r} is not a Minari id. Ids look like 'D4RL/door/human-v2': letters, digits, _, - and /."
        )
    root = os.environ.get("MINARI_DATASETS_PATH") or str(Path.home() / ".minari" / "datasets")
    folder = Path(root) / dataset_id
    if not is_minari(folder):
        raise ValueError(
            f"There is no Minari dataset {dataset_id!r} under {root}, and valuefit does not download datasets. "
            f"Get it with: minari download {dataset_id}"
        )
    return folder


def minari_folder(source: str | os.PathLike[str]) -> Path | None:
    """The folder of a dataset that is given as "minari:<id>" or by its folder; None for any other source."""
    text = os.fspath(source)
    if text.startswith("minari:"):
        return dataset_folder(text.removeprefix("minari:"))
    return Path(text) if is_minari(Path(text)) else None


def is_minari(path: Path) -> bool:
    return (path / "data" / "metadata.json").is_file() or (path / "metadata.json").is_file()


def read_minari(
    path: Path, *, columns: Mapping[str, Any] | None, limit: int, names: Sequence[str] | None = None
) -> Table:
    """The columns of a Minari folder: terminations stop the bootstrap, truncations do not.

    Minari has no field for probabilities: map them, as in `columns={"behaviour_prob": "infos/prob"}`. Observations
    that are dicts are mapped by their parts: `columns={"obs": ["observations/position", ...]}`. names: of the episodes
    that are read; None: all.
    """
    where = str(path)
    shape = _observation_shape(_data_folder(path), where)
    with _opened(path) as content:
        names = _episode_names(content, where) if names is None else names
        matched = _match(_episode_group(content, names[0], where), columns, where)
        episodes, size = [], 0
        for name in names:
            group = _episode_group(content, name, where)
            number, place = _episode_number(name), f"{name} of {where}"
            datasets = {name: find_dataset(group, name, place) for name in columns_to_read(matched)}
            size += sum(dataset_bytes(name, dataset, place) for name, dataset in datasets.items())
            check_size(size, limit, where)
            if matched["obs"] == "observations" and shape not in (None, datasets["observations"].shape[1:]):
                raise ValueError(
                    f"The observations of {where} are images stored as JPEG. Store features of them instead, or "
                    "write the dataset with jpeg_encoding=False."
                )
            arrays = {name: read_dataset(name, dataset, place) for name, dataset in datasets.items()}
            episodes.append(_episode_columns(number, arrays, matched, where))
    table = {name: concatenate([episode[name] for episode in episodes], f"{name!r} of {where}") for name in episodes[0]}
    obs = matched["obs"]
    complete: ColumnMap = {**matched, "episode": "<episode>"}
    complete["next_obs"] = f"next {obs}" if isinstance(obs, str) else tuple(f"next {name}" for name in obs)
    return Table(complete, table.__getitem__, where)


class MinariScan(NamedTuple):
    """What is known of a Minari folder before its steps are read; episodes: the name and the steps of each."""

    matched: ColumnMap
    step_bytes: int
    types: Mapping[str, str]
    episodes: list[tuple[str, int]]


def scan_minari(path: Path, *, columns: Mapping[str, Any] | None) -> MinariScan:
    """One pass over the lengths of the episodes."""
    where = str(path)
    _observation_shape(_data_folder(path), where)
    with _opened(path) as content:
        names = _episode_names(content, where)
        first = _episode_group(content, names[0], where)
        matched = _match(first, columns, where)
        datasets = {name: find_dataset(first, name, f"{names[0]} of {where}") for name in columns_to_read(matched)}
        reward = str(matched["reward"])
        lengths = []
        for name in names:
            shape = find_dataset(_episode_group(content, name, where), reward, f"{name} of {where}").shape
            lengths.append(int(shape[0]) if shape else 1)
        one = sum(dataset_bytes(name, dataset, where) for name, dataset in datasets.items())
        types = {name: "text" if holds_text(dataset) else str(dataset.dtype) for name, dataset in datasets.items()}
    return MinariScan(matched, one // max(lengths[0], 1), types, list(zip(names, lengths, strict=True)))


def _data_folder(path: Path) -> Path:
    return path / "data" if (path / "data" / "metadata.json").is_file() else path


def _opened(path: Path) -> Any:
    """The opened file of a Minari folder."""
    file = _data_folder(path) / "main_data.hdf5"
    if not file.is_file():
        raise ValueError(f"{path} has no {file.name}: the Minari dataset is incomplete. Download it again.")
    return open_hdf5(file)


def _episode_number(name: str) -> int:
    return int(name.removeprefix("episode_"))


def _episode_names(content: Any, where: str) -> list[str]:
    """The groups of episodes, by number: as text, episode_10 would sort before episode_2."""
    with damaged("/", where):
        names = {_episode_number(name): name for name in content if re.fullmatch(r"episode_[0-9]{1,12}", name)}
    if not names:
        raise ValueError(f"{where} contains no episodes.")
    return [names[number] for number in sorted(names)]


def _match(episode: Any, columns: Mapping[str, Any] | None, where: str) -> ColumnMap:
    """The datasets of each field in the group of an episode."""
    matched = match_columns(dataset_paths(episode, where), columns, where)
    if "next_obs" in matched or "episode" in matched:
        raise ValueError("Minari datasets define their own next observations and episodes. Do not map them in columns.")
    return matched


def _episode_columns(number: int, arrays: dict[str, Array], matched: ColumnMap, where: str) -> dict[str, Array]:
    """Columns of one episode: T + 1 observations become T observations and T next observations."""
    observations = columns_of(matched, "obs")
    steps = len(np.atleast_1d(arrays[str(matched["reward"])]))
    table = {"<episode>": np.full(steps, number)}
    for name, column in arrays.items():
        length = len(column) if column.ndim else 0
        if name in observations and length == steps + 1:
            table[name], table[f"next {name}"] = column[:-1], column[1:]
        elif name not in observations and length == steps:
            table[name] = column
        elif name.startswith("infos/") and length == steps + 1:
            table[name] = column[1:]  # the first entry belongs to the reset, before any step
        else:
            raise ValueError(
                f"Episode {number} of {where} has {steps} rewards and {length} entries in {name!r}; Minari stores one "
                "more observation than rewards, and one entry per reward otherwise."
            )
    return table


def _episode_group(content: Any, name: str, where: str) -> Any:
    """The group of an episode; raises ValueError if it is a link."""
    with damaged(name, where):
        link = content.get(name, getlink=True)
        group = content[name] if type(link).__name__ == "HardLink" else None
    if type(group).__name__ != "Group":
        raise ValueError(
            f"{name!r} in {where} is a link or not a group; valuefit does not follow links. Copy the data into the "
            "file."
        )
    return group


def _observation_shape(folder: Path, where: str) -> tuple[int, ...] | None:
    """Shape of an observation by the metadata; None if it is missing or the observation is not an array."""
    with open(folder / "metadata.json", "rb") as stream:
        size = os.fstat(stream.fileno()).st_size  # so that no more is allocated
        text = stream.read(min(size, MAX_MINARI_METADATA_BYTES) + 1)
    with translated(f"metadata.json of {where} is not valid Minari metadata", "Download the dataset again."):
        metadata = dict(json.loads(text)) if len(text) <= MAX_MINARI_METADATA_BYTES else {}
        kind = metadata.get("data_format", "hdf5")
        written = metadata.get("observation_space")
        space = json.loads(written) if isinstance(written, str) else {}
        shape = tuple(int(length) for length in space["shape"]) if space.get("type") == "Box" else None
    if kind != "hdf5":
        raise ValueError(
            f"{where} is stored as {str(kind)[:20]!r}; valuefit reads only Minari's format 'hdf5'. Write it again "
            "with data_format='hdf5'."
        )
    return shape
