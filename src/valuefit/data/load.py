"""`load` reads a log from any supported source."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from valuefit.atomic import read_folder
from valuefit.data.readers.arrays import read_arrays
from valuefit.data.readers.arrow import read_frame
from valuefit.data.readers.csv_file import read_csv
from valuefit.data.readers.hdf5 import read_hdf5
from valuefit.data.readers.minari import dataset_folder, is_minari, read_minari
from valuefit.data.readers.native import is_native, read_native
from valuefit.data.readers.npz import read_npz
from valuefit.data.readers.parquet import read_parquet
from valuefit.data.transitions import Transitions
from valuefit.memory import memory_limit

READERS: dict[str, Callable[..., Transitions]] = {
    ".csv": read_csv,
    ".tsv": read_csv,
    ".parquet": read_parquet,
    ".pq": read_parquet,
    ".npz": read_npz,
    ".h5": read_hdf5,
    ".hdf5": read_hdf5,
}


def load(source: Any, *, columns: Mapping[str, Any] | None = None, limit: int | None = None) -> Transitions:
    """Read a log from a file, a folder, a Minari dataset, a table or a dict of arrays.

    `source` is a path (.csv, .tsv, .parquet, .npz, .h5/.hdf5 in D4RL's layout, a folder written by `save`, a Minari
    folder), "minari:<id>" (on this machine; nothing is downloaded), a dict of arrays, a pandas or polars frame, or an
    Arrow table. `columns` maps valuefit's names to yours: `{"reward": "r", "obs": ["x", "v"], "done": None}`; the
    names are obs, next_obs, action, reward, terminated, truncated, done, episode, step, behaviour_prob, target_prob,
    their logarithms behaviour_log_prob and target_log_prob, and ratio. `limit` is the maximum size in memory of the
    contents of a file, in bytes (None: half of memory). `log.notes` list what was assumed or left out.
    """
    limit = memory_limit() if limit is None else limit
    if isinstance(source, Transitions):
        if columns:
            raise ValueError(
                "columns applies to files and tables, but the source is already a log. Load it without columns."
            )
        return source
    if isinstance(source, Mapping):
        return read_arrays(source, columns=columns)
    if not isinstance(source, str | os.PathLike):
        return read_frame(source, columns=columns)
    if isinstance(source, str) and source.startswith("minari:"):
        log = read_minari(dataset_folder(source.removeprefix("minari:")), columns=columns, limit=limit)
        return replace(log, source=source)
    if "://" in str(source):
        raise ValueError(f"{source} is not on this machine. Download it first, then give its path.")
    path = Path(source)
    return read_folder(path, lambda: _load_path(path, columns, limit))


def _load_path(path: Path, columns: Mapping[str, Any] | None, limit: int) -> Transitions:
    if path.is_dir():
        if is_native(path):
            if columns:
                raise ValueError(f"{path} was written by valuefit and has fixed column names. Load it without columns.")
            return read_native(path, limit=limit)
        if is_minari(path):
            return read_minari(path, columns=columns, limit=limit)
        raise ValueError(
            f"The folder {path} is neither a log that valuefit saved nor a Minari dataset. Name a file in it "
            f"({', '.join(READERS)})."
        )
    if not path.is_file():
        raise ValueError(f"There is no file {str(path)!r}.")
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"{path} has an unsupported extension. valuefit reads {', '.join(READERS)} and folders.")
    return reader(path, columns=columns, limit=limit)
