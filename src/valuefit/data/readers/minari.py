"""Minari datasets on this machine, by id or by folder; nothing is downloaded and no environment is made.

The files are read directly: Minari itself would import and call what an untrusted `env_spec` names.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.data.assemble import build
from valuefit.data.columns import Choice, choose, needed
from valuefit.data.readers.hdf5 import dataset, declared, names_in, opened, values
from valuefit.data.transitions import Transitions
from valuefit.extras import said
from valuefit.memory import check_size
from valuefit.typing import Array

ID = re.compile(r"[A-Za-z0-9_-]+(?:/[A-Za-z0-9_-]+)*")
EPISODE = re.compile(r"episode_([0-9]{1,12})")
LONGEST_METADATA = 64 << 20  # bytes: the bounds of an image are written out in it


def folder_of(dataset_id: str) -> Path:
    """Where Minari keeps the dataset of this id on this machine."""
    if len(dataset_id) > 200 or not ID.fullmatch(dataset_id):
        raise ValueError(
            f"{dataset_id[:80]!r} is no Minari id. Ids look like 'D4RL/door/human-v2': letters, digits, _, - and /."
        )
    root = os.environ.get("MINARI_DATASETS_PATH") or str(Path.home() / ".minari" / "datasets")
    folder = Path(root) / dataset_id
    if not is_minari(folder):
        raise ValueError(
            f"There is no Minari dataset {dataset_id!r} under {root}, and valuefit downloads nothing. "
            f"Get it with: minari download {dataset_id}"
        )
    return folder


def is_minari(path: Path) -> bool:
    return (path / "data" / "metadata.json").is_file() or (path / "metadata.json").is_file()


def read_minari(path: Path, *, columns: Mapping[str, Any] | None, limit: int) -> Transitions:
    """A log from a Minari folder: terminations stop the bootstrap, truncations do not.

    Minari has no field for probabilities: name them, as in `columns={"behaviour_prob": "infos/prob"}`. Observations
    that are dicts: `columns={"obs": ["observations/position", ...]}`.
    """
    where = str(path)
    folder = path / "data" if (path / "data" / "metadata.json").is_file() else path
    shape = _observation_shape(folder, where)
    file = folder / "main_data.hdf5"
    if not file.is_file():
        raise ValueError(f"{where} has no {file.name}: the Minari dataset is not complete. Get it again.")
    with opened(file) as content:
        groups = {int(match[1]): name for name in content if (match := EPISODE.fullmatch(name))}
        order = sorted(groups)  # by number: as text, episode_10 comes before episode_2
        if not order:
            raise ValueError(f"{where} holds no episodes.")
        chosen = choose(names_in(_group(content, groups[order[0]], where)), columns, where)
        if "next_obs" in chosen or "episode" in chosen:
            raise ValueError(
                "Minari datasets have their own next observations and episodes. Do not map them in columns."
            )
        pieces, size = [], 0
        for number in order:
            group = _group(content, groups[number], where)
            found = {name: dataset(group, name, where) for name in needed(chosen)}
            size += sum(declared(one) for one in found.values())
            check_size(size, limit, where)
            if chosen["obs"] == "observations" and shape not in (None, found["observations"].shape[1:]):
                raise ValueError(
                    f"The observations of {where} are images stored as JPEG. Store features of them instead, or "
                    "write the dataset with jpeg_encoding=False."
                )
            pieces.append(_episode(number, {name: values(one, where) for name, one in found.items()}, chosen, where))
    table = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    after = chosen["obs"]
    full: Choice = {**chosen, "episode": "<episode>"}
    full["next_obs"] = f"next {after}" if isinstance(after, str) else tuple(f"next {name}" for name in after)
    return build(full, table.__getitem__, where)


def _episode(number: int, raw: dict[str, Array], chosen: Choice, where: str) -> dict[str, Array]:
    """Columns of one episode: T + 1 observations become those before and those after its T steps."""
    observations = needed({"obs": chosen["obs"]})
    steps = len(np.atleast_1d(raw[needed({"reward": chosen["reward"]})[0]]))
    table = {"<episode>": np.full(steps, number)}
    for name, column in raw.items():
        length = len(column) if column.ndim else 0
        if name in observations and length == steps + 1:
            table[name], table[f"next {name}"] = column[:-1], column[1:]
        elif name not in observations and length == steps:
            table[name] = column
        elif name.startswith("infos/") and length == steps + 1:
            table[name] = column[1:]  # the first came with the reset, before any step
        else:
            raise ValueError(
                f"Episode {number} of {where} has {steps} rewards and {length} entries in {name!r}; Minari keeps one "
                "more observation than rewards, and one entry a reward of all else."
            )
    return table


def _group(content: Any, name: str, where: str) -> Any:
    """An episode, which must lie in this file."""
    link = content.get(name, getlink=True)
    if type(link).__name__ != "HardLink" or type(content[name]).__name__ != "Group":
        raise ValueError(f"{name!r} in {where} is a link or no group; valuefit does not follow links. Copy the data.")
    return content[name]


def _observation_shape(folder: Path, where: str) -> tuple[int, ...] | None:
    """Shape of an observation by the metadata, None where it is not said or not an array."""
    with open(folder / "metadata.json", "rb") as stream:
        text = stream.read(LONGEST_METADATA + 1)
    try:
        metadata = dict(json.loads(text)) if len(text) <= LONGEST_METADATA else {}
        kind = metadata.get("data_format", "hdf5")
        space = json.loads(metadata.get("observation_space", "{}"))
        shape = tuple(int(length) for length in space["shape"]) if space.get("type") == "Box" else None
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"metadata.json of {where} is not what Minari writes ({said(error)}). Get it again."
        ) from error
    if kind != "hdf5":
        raise ValueError(
            f"{where} is stored as {str(kind)[:20]!r}; of Minari's formats valuefit reads 'hdf5'. Write it again with "
            "data_format='hdf5'."
        )
    return shape
