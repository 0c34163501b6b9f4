"""`load` reads a log from any supported source; `save` writes it in a format that loads fast."""

from __future__ import annotations

import gzip
import os
import shutil
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.atomic import refuse_existing
from valuefit.data.assemble import build_log
from valuefit.data.files import file_format, find_files
from valuefit.data.readers.arrays import read_arrays
from valuefit.data.readers.arrow import read_frame
from valuefit.data.readers.csv_file import read_csv
from valuefit.data.readers.hdf5 import read_hdf5
from valuefit.data.readers.json_lines import read_json_lines
from valuefit.data.readers.minari import dataset_folder, is_minari, read_minari
from valuefit.data.readers.native import file_names, is_native, read_native, write_native
from valuefit.data.readers.npz import read_npz, write_npz
from valuefit.data.readers.parquet import read_parquet, write_parquet
from valuefit.data.table import Table, join
from valuefit.data.text import encode_categories, split_categorical
from valuefit.data.transitions import Transitions
from valuefit.extras import said
from valuefit.memory import memory_limit
from valuefit.typing import Array

READERS: dict[str, Callable[..., Table]] = {
    ".csv": read_csv,
    ".tsv": read_csv,
    ".parquet": read_parquet,
    ".pq": read_parquet,
    ".npz": read_npz,
    ".h5": read_hdf5,
    ".hdf5": read_hdf5,
    ".jsonl": read_json_lines,
    ".ndjson": read_json_lines,
    ".json": read_json_lines,
    ".csv.gz": read_csv,
    ".tsv.gz": read_csv,
    ".jsonl.gz": read_json_lines,
    ".ndjson.gz": read_json_lines,
    ".json.gz": read_json_lines,
}


def load(source: Any, *, columns: Mapping[str, Any] | None = None, limit: int | None = None) -> Transitions:
    """Read a log from a file, several files, a folder, a Minari dataset, a table or a dict of arrays.

    `source` is a path (.csv, .tsv, .jsonl, .json, .parquet, .npz, .h5/.hdf5 in D4RL's layout; text also as .csv.gz,
    .jsonl.gz), a folder written by `save`, a Minari folder, "minari:<id>" (on this machine; nothing is downloaded), a
    dict of arrays, a pandas or polars frame, or an Arrow table. Several files are a list of paths, a pattern
    (part-*.parquet) or a folder of files of one format; they are read in natural order of their names (part-2 before
    part-10). Episodes continue from file to file by their ids; without ids each file ends its episode.

    `columns` maps valuefit's names to yours: `{"reward": "r", "obs": ["x", "v"], "done": None}`; the
    names are obs, next_obs, action, reward, terminated, truncated, done, episode, step, behaviour_prob, target_prob,
    their logarithms behaviour_log_prob and target_log_prob, and ratio. `limit` is the maximum size in memory of the
    contents of the files, in bytes (None: half of memory). `log.notes` list what was assumed or left out.
    """
    limit = memory_limit() if limit is None else limit
    if isinstance(source, Transitions):
        if columns:
            raise ValueError(
                "columns applies to files and tables, but the source is already a log. Load it without columns."
            )
        return source
    if isinstance(source, str | os.PathLike) and is_native(Path(source)):
        if columns:
            raise ValueError(f"{source} was written by valuefit and has fixed column names. Load it without columns.")
        return read_native(Path(source), limit=limit)
    columns, declared = split_categorical(columns)
    return build_log(encode_categories(_read(source, columns, limit), declared, limit))


def _read(source: Any, columns: Mapping[str, Any] | None, limit: int) -> Table:
    """The columns of a source that is not in valuefit's own format."""
    if isinstance(source, Mapping):
        return read_arrays(source, columns=columns)
    if isinstance(source, list | tuple):
        return _read_files(source, columns, limit)
    if not isinstance(source, str | os.PathLike):
        return read_frame(source, columns=columns)
    text = os.fspath(source)
    if text.startswith("minari:"):
        table = read_minari(dataset_folder(text.removeprefix("minari:")), columns=columns, limit=limit)
        return replace(table, where=text)
    if is_minari(Path(source)):
        return read_minari(Path(source), columns=columns, limit=limit)
    return _read_files(source, columns, limit)


def _read_files(source: Any, columns: Mapping[str, Any] | None, limit: int) -> Table:
    """The columns of one file, or of several as one table."""
    for one in source if isinstance(source, list | tuple) else [source]:
        if isinstance(one, str | os.PathLike):
            _check_joinable(os.fspath(one))
    files = find_files(source, READERS)
    if len(files) == 1:
        return _read_file(files[0], columns, limit)
    where = os.fspath(source) if isinstance(source, str | os.PathLike) else f"{len(files)} files ({files[0]}, ...)"
    return join((_read_file(file, columns, limit) for file in files), where, limit)


def _check_joinable(name: str) -> None:
    """Raise ValueError for what is not among files and folders of files."""
    if "://" in name:
        raise ValueError(f"{name} is not on this machine. Download it first, then give its path.")
    if name.startswith("minari:") or is_native(Path(name)) or is_minari(Path(name)):
        raise ValueError(
            f"{name} is a log that valuefit saved or a Minari dataset, which is not read together with other files. "
            "Convert it to Parquet first."
        )


def _read_file(path: Path, columns: Mapping[str, Any] | None, limit: int) -> Table:
    if not path.is_file():
        raise ValueError(f"There is no file {str(path)!r}.")
    reader = READERS.get(file_format(path))
    if reader is None:
        raise ValueError(f"{path} has an unsupported extension. valuefit reads {', '.join(READERS)} and folders.")
    try:
        return reader(path, columns=columns, limit=limit)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is not a gzip file, or it is damaged ({said(error)}). Write it again.") from error


def save(log: Transitions, path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """Write a log as a `.parquet` or `.npz` file, by the extension, or as a folder, which is memory-mapped when loaded.

    It is written under a temporary name and then renamed. An existing log is overwritten only with `force`; a folder
    that contains other files is never overwritten.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix in (
        ".csv",
        ".tsv",
        ".h5",
        ".hdf5",
        ".npy",
        ".json",
        ".jsonl",
        ".ndjson",
        ".gz",
        ".pkl",
        ".pq",
        ".feather",
    ):
        raise ValueError(f"valuefit saves logs as folders, .parquet or .npz, not as {suffix}. Choose another name.")
    _check_target(path, force, folder=suffix not in (".parquet", ".npz"))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if suffix == ".parquet":
            write_parquet(temporary, _to_columns(log, flat=True), _names(log))
        elif suffix == ".npz":
            write_npz(temporary, _to_columns(log, flat=False), _names(log))
        else:
            temporary.mkdir()
            write_native(temporary, log)
        _move_into_place(temporary, path, force)
    finally:
        _remove(temporary)
    return path


def _check_target(path: Path, force: bool, *, folder: bool) -> None:
    if not path.parent.is_dir():
        raise ValueError(f"There is no folder {str(path.parent)!r} to write into. Make it first.")
    refuse_existing(path, force=force)
    if not os.path.lexists(path):
        return
    if path.is_dir() != folder:
        existing, written = ("folder", "file") if path.is_dir() else ("file", "folder")
        raise ValueError(f"{path} is a {existing}, but the log would be a {written}. Choose another name.")
    if folder and any(entry.name not in file_names() for entry in path.iterdir()):
        raise ValueError(f"The folder {path} contains other files than a valuefit log. Choose another name.")


def _move_into_place(temporary: Path, path: Path, force: bool) -> None:
    """Rename `temporary` to `path`; an old folder is renamed first, because a folder cannot be renamed over another."""
    if not force and os.path.lexists(path):
        raise ValueError(f"{path} was created while the log was being written. Choose another name, or use force.")
    if not path.is_dir():
        os.replace(temporary, path)
        return
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    os.rename(path, old)
    try:
        os.rename(temporary, path)
    except BaseException:
        os.rename(old, path)
        raise
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _to_columns(log: Transitions, *, flat: bool) -> dict[str, Any]:
    """One array per column, under the names of a table (`flat`) or of `Transitions.from_arrays`.

    Next observations are included if any differs from the observation of the next row; they are masked where the
    episode terminated.
    """
    _check_contiguous(log)
    if flat and log.observations.ndim > 2:
        raise ValueError(
            f"Observations of shape {log.observations.shape[1:]} do not fit the columns of a table. Save the log as a "
            "folder or .npz."
        )
    episode, observations = log.episode, log.observations
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
    for name in ("action", "behaviour_prob"):
        if (values := getattr(log, name)) is not None:
            table[name] = values
    if flat and log.action is not None and log.action.ndim > 2:
        raise ValueError("Actions of more than one dimension do not fit a table. Save the log as a folder or .npz.")
    return table


def _names(log: Transitions) -> dict[str, Array]:
    """All names of states and episodes, by the field of a table that holds those with a row."""
    names = {"obs": log.state_names, "episode": log.episode_names}
    return {field: listed for field, listed in names.items() if listed is not None}


def _check_contiguous(log: Transitions) -> None:
    """Refuse selections with gaps or repeated steps: a table delimits episodes by their numbers alone."""
    last = np.append(log.begins[1:], True)
    contiguous = not ((log.terminated | log.truncated) & ~last).any()
    if not contiguous or len(np.unique(log.episode)) != log.begins.sum():
        raise ValueError(
            "This log is a selection in which the steps of an episode are not consecutive, which a table cannot "
            "represent. Save it as a folder (a name without extension)."
        )
