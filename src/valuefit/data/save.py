"""`save` writes a log in a format that loads fast."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.atomic import check_target, read_folder, replacing
from valuefit.data.facts import plain_facts
from valuefit.data.labels import NAMED_FIELDS
from valuefit.data.readers.native import file_names
from valuefit.data.transitions import Transitions, check_log
from valuefit.data.validation import last_steps
from valuefit.data.writers import write_native, write_npz, write_parquet
from valuefit.extras import need
from valuefit.typing import Array


def save(log: Transitions, path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """Write a log as a `.parquet` or `.npz` file, by the extension, or as a folder, which is memory-mapped when loaded.

    It is written under a temporary name and then renamed. An existing log is overwritten only with `force`; a folder
    that contains other files is never overwritten.
    """
    check_log("save", log)
    path = Path(path)
    check_save(path, force=force)
    facts = plain_facts(log.filling, log.continuity)
    with replacing(path, force=force, folder=is_folder(path)) as temporary:
        if path.suffix.lower() == ".parquet":
            write_parquet(temporary, _to_columns(log, flat=True), _listed_names(log), facts)
        elif path.suffix.lower() == ".npz":
            write_npz(temporary, _to_columns(log, flat=False), _listed_names(log), facts)
        else:
            temporary.mkdir()
            write_native(temporary, log)
    return path


def check_save(path: Path, *, force: bool) -> None:
    """Raise ValueError or OSError if a log cannot be saved under this name."""
    suffix = path.suffix.lower()
    not_written = ".csv .tsv .h5 .hdf5 .npy .json .jsonl .ndjson .gz .pkl .pq .feather"  # names of folders otherwise
    if suffix in not_written.split():
        raise ValueError(f"valuefit saves logs as folders, .parquet or .npz, not as {suffix}. Choose another name.")
    if suffix == ".parquet":
        need("pyarrow", "files", "Writing Parquet")
    check_target(path, force=force, folder=is_folder(path))
    if path.is_dir() and not set(read_folder(path, lambda: os.listdir(path))) <= file_names():
        raise ValueError(f"The folder {path} contains other files than a valuefit log. Choose another name.")


def is_folder(path: Path) -> bool:
    """Whether a log saved under this name is a folder."""
    return path.suffix.lower() not in (".parquet", ".npz")


def _to_columns(log: Transitions, *, flat: bool) -> dict[str, Any]:
    """One array per column, under the names of a table (`flat`) or of `Transitions.from_arrays`.

    Next observations are included if any differs from the observation of the next row; they are masked where the
    episode terminated. Gaps in observations are gaps again.
    """
    _check_contiguous(log)
    if flat and log.observations.ndim > 2:
        raise ValueError(
            f"Observations of shape {log.observations.shape[1:]} do not fit the columns of a table. Save the log as a "
            "folder or .npz."
        )
    episode, observations = log.episode, log.observations
    if log.filling is not None:
        observations = log.filling.raw(observations)
    if log.episode_names is not None:
        episode = log.episode_names[episode]
    if log.state_names is not None:
        observations = log.state_names[observations]
    obs, next_obs = ("obs", "next_obs") if flat else ("observation", "next_observation")
    table: dict[str, Array] = {
        "episode": episode,
        obs: observations[log.now],
        "reward": log.reward,
        "terminated": log.terminated,
        "truncated": log.truncated,
    }
    follows = np.append((log.next[:-1] == log.now[1:]) & ~log.begins[1:], False)
    if not (follows | log.terminated).all():
        mask = log.terminated.reshape(-1, *[1] * (log.observations.ndim - 1))
        table[next_obs] = np.ma.array(observations[log.next], mask=np.broadcast_to(mask, table[obs].shape))
    if (log.ratio != 1).any():
        table["ratio"] = log.ratio
    for name in ("action", "behaviour_prob", "cluster"):
        if (values := getattr(log, name)) is not None:
            table[name] = values
    if log.action is not None and log.action_names is not None:
        table["action"] = log.action_names[log.action]
    if flat and log.action is not None and log.action.ndim > 2:
        raise ValueError("Actions of more than one dimension do not fit a table. Save the log as a folder or .npz.")
    return table


def _listed_names(log: Transitions) -> dict[str, Array]:
    """All names of states, episodes and actions, by the field of a table that holds those with a row."""
    names = {field: getattr(log, name) for field, name in NAMED_FIELDS.items()}
    return {field: listed for field, listed in names.items() if listed is not None}


def _check_contiguous(log: Transitions) -> None:
    """Refuse selections with gaps or repeated steps: a table delimits episodes by their numbers alone."""
    contiguous = not ((log.terminated | log.truncated) & ~last_steps(log.begins)).any()
    if not contiguous or len(np.unique(log.episode)) != log.begins.sum():
        raise ValueError(
            "This log is a selection in which the steps of an episode are not consecutive, which a table cannot "
            "represent. Save it as a folder (a name without extension)."
        )
