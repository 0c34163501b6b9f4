"""valuefit's own format: a folder of `.npy` files, with each observation stored once and memory-mapped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.data.archive import check_version
from valuefit.data.exact import in_native_order
from valuefit.data.facts import facts_from
from valuefit.data.labels import NAMED_FIELDS, check_names
from valuefit.data.npy import Header, find_array, map_array, read_header
from valuefit.data.transitions import Transitions, cluster_numbers, used_rows
from valuefit.data.validation import all_finite, check_observations, episode_starts, numbers
from valuefit.memory import check_size, memory_limit
from valuefit.messages import RowError, said
from valuefit.typing import Array

LOG_FORMAT = 1  # version number, raised when the layout changes
METADATA_FILE = "valuefit.json"
MAX_METADATA_FILE_BYTES = 1 << 20  # far more than notes and names take; bounds what is read from an untrusted file
# the only files that are opened, each NAME.npy, with the allowed kinds of dtype
REQUIRED_ARRAYS = {
    "now": "i", "next": "i", "reward": "f", "terminated": "b", "truncated": "b", "episode": "i", "ratio": "f",
    "begins": "b",
}  # fmt: skip
TEXTS = ("notes", "names", "warnings")  # in the metadata file
OPTIONAL_ARRAYS = {"action": "biuf", "behaviour_prob": "f", "cluster": "i"}


def is_native(path: Path) -> bool:
    return (path / METADATA_FILE).is_file()


def refuse_columns(path: Any, columns: Mapping[str, Any] | None) -> None:
    """Raise ValueError for columns of a folder, which has fixed ones."""
    if columns:
        raise ValueError(f"{path} was written by valuefit and has fixed column names. Load it without columns.")


def file_names() -> set[str]:
    """Names of the files that a native folder may contain."""
    return {METADATA_FILE, *(f"{name}.npy" for name in array_names())}


def array_names() -> list[str]:
    return ["observations", *REQUIRED_ARRAYS, *OPTIONAL_ARRAYS, *NAMED_FIELDS.values()]


def read_native(path: Path, *, limit: int) -> Transitions:
    """The log in a folder that `save` wrote; observations are memory-mapped, so they may exceed memory."""
    metadata = _read_metadata(path)
    headers = _column_headers(path, metadata["steps"], limit=limit)
    table: dict[str, Any] = {name: np.array(_memory_map(path, name)) for name in headers}
    observations = _memory_map(path, "observations")
    _check_consistency(path, table, len(observations) if observations.ndim else 0)
    check_observations(f"observations.npy of {path}", observations)
    ids = {"obs": observations, "episode": table["episode"], "action": table.get("action")}
    log = Transitions(observations=observations, **table, **_read_names(path, ids, limit))
    return _described(log, metadata, path)


def native_steps(path: Path) -> tuple[int, int, Array]:
    """Number of steps, bytes of one observation, and the memory-mapped episode of each step."""
    metadata, observations = _read_metadata(path), _header(path, "observations")
    _column_headers(path, metadata["steps"])
    episode = _memory_map(path, "episode")
    rows = max(observations.shape[0] if observations.shape else 1, 1)
    return metadata["steps"], observations.bytes // rows, episode


def read_native_part(path: Path, start: int, stop: int) -> Transitions:
    """Some steps of the log in a folder that `save` wrote, with the observations that they use; nothing is mapped."""
    metadata = _read_metadata(path)
    if metadata["steps"] < stop:
        raise _damaged(path, f"it has {metadata['steps']} steps, fewer than when it was opened")
    table: dict[str, Any] = {}
    for name, kinds in _column_kinds(path).items():
        column = find_array(_file(path, name))
        _check_column(path, name, kinds, column.header.shape, column.header.dtype, metadata["steps"])
        table[name] = _native_bytes(column.rows(slice(start, stop)))
    observations = find_array(_file(path, "observations"))
    _check_consistency(path, table, observations.header.shape[0] if observations.header.shape else 0)
    used, table["now"], table["next"] = used_rows(table["now"], table["next"])
    part = _native_bytes(observations.rows(used))
    try:
        check_observations(f"observations.npy of {path}", part)
    except RowError as error:
        row = used.start + error.row if isinstance(used, slice) else used[error.row]
        raise ValueError(error.at(f"row {row:,}")) from error
    names = _read_names(path, {"action": table.get("action")}, memory_limit())  # others are not needed in parts
    return _described(Transitions(observations=part, **table, **names), metadata, path)


def _described(log: Transitions, metadata: dict[str, Any], path: Path) -> Transitions:
    """The log with what its metadata file says of it."""
    try:
        facts = facts_from(metadata["facts"], log.observations)
    except ValueError as error:
        raise _damaged(path, said(error)) from error
    return replace(log, **{key: metadata[key] for key in TEXTS}, **facts, source=str(path))._frozen()


def _read_metadata(path: Path) -> dict[str, Any]:
    """`steps`, `notes`, `names`, `warnings` and `facts` of the metadata file."""
    with open(path / METADATA_FILE, "rb") as stream:
        text = stream.read(MAX_METADATA_FILE_BYTES + 1)
    try:
        metadata = json.loads(text) if len(text) <= MAX_METADATA_FILE_BYTES else None
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"{METADATA_FILE}: {said(error)}") from error
    if not isinstance(metadata, dict) or type(metadata.get("steps")) is not int or metadata["steps"] < 1:
        raise _damaged(path, f"{METADATA_FILE} does not give the number of steps")
    check_version(path, "log", metadata.get("format"), LOG_FORMAT, "Save the log again.")
    strings = {key: metadata.get(key, []) for key in TEXTS}
    for key, texts in strings.items():
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise _damaged(path, f"{key} in {METADATA_FILE} are not text")
    described = {key: tuple(texts) for key, texts in strings.items()}
    return {"steps": metadata["steps"], "facts": metadata.get("facts", {}), **described}


def _read_names(path: Path, columns: dict[str, Array | None], limit: int) -> dict[str, Any]:
    """The names of the ids in these columns, by field, if the folder has them."""
    listed = {}
    for field, ids in columns.items():
        name = NAMED_FIELDS[field]
        if not (path / f"{name}.npy").is_file():
            continue
        names = map_array(path / f"{name}.npy", kinds="U")
        check_size(names.nbytes, limit, str(path))
        try:
            listed[name] = check_names(np.array(names), ids)
        except ValueError as error:
            raise _damaged(path, f"{name}.npy {said(error)}") from error
    return listed


def _column_headers(path: Path, steps: int, *, limit: int | None = None) -> dict[str, Header]:
    """Headers of the columns that the folder has, checked; those that are present take at most `limit` bytes."""
    names = _column_kinds(path)
    headers = {name: _header(path, name) for name in names}
    if limit is not None:
        check_size(sum(header.bytes for header in headers.values()), limit, str(path))
    for name, kinds in names.items():
        shape, _, dtype = headers[name]
        _check_column(path, name, kinds, shape, dtype, steps)
    return headers


def _column_kinds(path: Path) -> dict[str, str]:
    """The columns that the folder has, with the allowed kinds of dtype."""
    optional = {name: kinds for name, kinds in OPTIONAL_ARRAYS.items() if (path / f"{name}.npy").is_file()}
    return {**REQUIRED_ARRAYS, **optional}


def _check_column(path: Path, name: str, kinds: str, shape: tuple[int, ...], dtype: Any, steps: int) -> None:
    if dtype.kind not in kinds or shape[:1] != (steps,) or (len(shape) > 1 and name != "action"):
        raise _damaged(path, f"{name}.npy has shape {shape} and dtype {dtype} for {steps} steps")


def _native_bytes(values: Array) -> Array:
    """Numbers in memory, in native byte order; a copy of those that are mapped."""
    return np.array(values, values.dtype.newbyteorder("="), copy=isinstance(values, np.memmap) or None)


def _header(path: Path, name: str) -> Header:
    with open(_file(path, name), "rb") as stream:
        return read_header(stream, str(path / f"{name}.npy"))


def _memory_map(path: Path, name: str) -> Array:
    view = np.asarray(map_array(_file(path, name)))  # still memory-mapped, but an ndarray, which compiled code accepts
    return in_native_order(view)


def _file(path: Path, name: str) -> Path:
    file = path / f"{name}.npy"
    if not file.is_file():
        raise _damaged(path, f"{file.name} is missing")
    return file


def _check_consistency(path: Path, table: dict[str, Array], rows: int) -> None:
    """Check what `Transitions.from_arrays` guarantees, and convert the columns to its dtypes in place."""
    now, next, terminated = table["now"], table["next"], table["terminated"]
    if now.min() < 0 or max(now.max(), next.max()) >= rows or next.min() < -1:
        raise _damaged(path, f"a step refers to an observation that is not among the {rows} in the folder")
    if ((next < 0) != terminated).any():
        raise _damaged(path, "next.npy and terminated.npy disagree")
    begins, episode = table["begins"], table["episode"]
    if (episode_starts(episode) & ~begins).any():
        raise _damaged(path, "begins.npy and episode.npy disagree")
    for name in ("reward", "ratio", "behaviour_prob"):
        if name in table and not all_finite(table[name]):
            numbers(f"{name}.npy of {path}", table[name])  # names the step
    if table["ratio"].min() < 0 or (table.get("behaviour_prob", np.ones(1)) <= 0).any():
        raise _damaged(path, "a ratio is negative, or the probability of a logged action is not positive")
    if "cluster" in table:
        table["cluster"] = cluster_numbers(table["cluster"], episode)
    for name in ("now", "next", "episode", "reward", "ratio"):
        dtype = np.float64 if name in ("reward", "ratio") else np.int64
        table[name] = table[name].astype(dtype, copy=False)


def _damaged(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} is not a valuefit log, or it is damaged: {why}. Save the log again.")
