"""`load` reads a log from any supported source."""

from __future__ import annotations

import errno
import gzip
import os
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from valuefit.atomic import read_folder
from valuefit.data.assemble import build_log
from valuefit.data.files import file_format, find_files, is_pattern
from valuefit.data.frames import is_frame, open_frame
from valuefit.data.gaps import MISSING
from valuefit.data.readers import formats, sharded_formats
from valuefit.data.readers.arrays import read_arrays
from valuefit.data.readers.arrow import read_frame
from valuefit.data.readers.minari import is_minari, minari_folder, read_minari
from valuefit.data.readers.native import is_native, read_native, refuse_columns
from valuefit.data.shards import ShardedLog, log_shards, open_shards
from valuefit.data.table import Table, join
from valuefit.data.text import encode_categories, split_categorical
from valuefit.data.transitions import Transitions
from valuefit.data.validation import byte_count, one_of
from valuefit.memory import TooLarge, format_bytes, memory_limit
from valuefit.messages import said, shown


def load(
    source: Any, *, columns: Mapping[str, Any] | None = None, limit: int | str | None = None, memory: str = "auto",
    missing: str = "refuse",
) -> Any:  # fmt: skip
    """Read a log from a file, several files, a folder, a Minari dataset, a table or a dict of arrays.

    `source` is a path (.csv, .tsv, .jsonl, .json, .parquet, .npz, .h5/.hdf5 in D4RL's layout; text also as .csv.gz,
    .jsonl.gz), a folder written by `save`, a Minari folder, "minari:<id>" (on this machine; nothing is downloaded), a
    dict of arrays, a pandas or polars frame, or an Arrow table. Several files are a list of paths, a pattern
    (part-*.parquet) or a folder of files of one format; they are read in natural order of their names (part-2 before
    part-10). Episodes continue from file to file by their ids; without ids each file ends its episode.

    `columns` maps valuefit's names to yours: `{"reward": "r", "obs": ["x", "v"], "done": None}`; the
    names are obs, next_obs, action, reward, terminated, truncated, done, episode, step, behaviour_prob, target_prob,
    their logarithms behaviour_log_prob and target_log_prob, ratio, and cluster (ids of groups of episodes that depend
    on each other); "categorical" lists your columns of the observation that hold categories, which text with at most
    100 distinct values does by itself. `limit` is the maximum size in memory of the contents of the files, in bytes or
    as text such as "2GB" (None: half of memory). `log.notes` list what was assumed.

    `missing` says what is done with gaps in the observations: "refuse" names the columns that have some; "flag" fills
    them, numbers with the median of the column and categories with one of their own, and adds an entry to the
    observation for each such column, 1 where it was missing. Policies see the columns with their gaps. Gaps in rewards,
    actions, probabilities and ends are refused.

    `memory="stream"` does not load the log: it returns a `ShardedLog`, which `evaluate` reads in parts that take about
    `limit` bytes (None: an eighth of memory). Parquet and HDF5 files, Minari datasets and folders that valuefit saved
    can be read so; "auto" does it with those whose contents exceed a sixteenth of memory, as loading takes up to eight
    times that, unless a limit is given, and refuses other files that would take more than half of memory. A
    `Transitions` is cut into such parts too, for feature rows that would not fit into memory. The partitions of a Dask
    DataFrame are such parts, which the workers of the default client of Dask compute.
    """
    one_of("memory", memory, ("auto", "stream"))
    one_of("missing", missing, MISSING)
    if isinstance(source, ShardedLog):
        return source
    given, allowed = limit is not None, memory_limit() if limit is None else byte_count("limit", limit)
    part = allowed if given else allowed // 4
    if columns is not None and not isinstance(columns, Mapping):
        raise ValueError(f"columns is {shown(columns)}; it must map valuefit's names to yours: {{'reward': 'r'}}.")
    if isinstance(source, Transitions):
        if columns:
            raise ValueError(
                "columns applies to files and tables, but the source is already a log. Load it without columns."
            )
        return log_shards(source, part) if memory == "stream" else source
    if missing == "flag" and is_frame(source):
        raise ValueError(
            "Gaps in the Dask DataFrame are not filled, because that takes medians over all of it. Write it to Parquet "
            'files and load these with `memory="stream"` and `missing="flag"`, or fill the gaps before.'
        )
    if is_frame(source):
        return open_frame(source, columns=columns, limit=part)
    if memory == "stream":
        return open_shards(source, columns=columns, limit=part, missing=missing)
    for one in source if isinstance(source, list | tuple) else [source]:
        if _is_path(one):
            _refuse_impossible_name(one)
    extensions = _extensions(source)
    if given or not extensions:
        return _in_memory(source, columns, allowed, missing)
    copies = max(formats()[one].copies if one in formats() else 8 for one in extensions)
    try:
        return _in_memory(source, columns, allowed // copies, missing)
    except TooLarge as error:
        if extensions <= {"", *sharded_formats()}:
            return open_shards(source, columns=columns, limit=part, missing=missing)
        raise TooLarge(
            f"Loading {error.where} takes up to {copies} times its contents, {format_bytes(copies * error.size)} or "
            f"more, but half of the memory is {format_bytes(allowed)}. Convert it to Parquet, for example with "
            'pyarrow, and load that with `memory="stream"`; or load fewer columns, or give a limit for its contents.',
            error.where, error.size,
        ) from error  # fmt: skip


def _extensions(source: Any) -> set[str]:
    """The extensions of the files of a source; an empty one for a folder of one log; none for arrays and frames."""
    if isinstance(source, str | os.PathLike) and (is_native(Path(source)) or _is_minari(source)):
        return {""}
    paths = [source] if isinstance(source, str | os.PathLike) else source
    if not isinstance(paths, list | tuple) or not all(isinstance(path, str | os.PathLike) for path in paths):
        return set()
    return {file_format(file) for file in find_files(source, formats())}


def _in_memory(source: Any, columns: Mapping[str, Any] | None, limit: int, missing: str) -> Transitions:
    if _is_path(source) and not is_pattern(source):
        return read_folder(Path(source), lambda: _load(source, columns, limit, missing))
    return _load(source, columns, limit, missing)


def _refuse_impossible_name(path: str | os.PathLike[str]) -> None:
    """The system would refuse it too, but quote all of it, or not say what is wrong."""
    try:
        os.stat(path)
    except UnicodeEncodeError:
        raise ValueError(f"There is no file {shown(os.fspath(path))}: no file name has these characters.") from None
    except (OSError, ValueError) as error:  # other errors are reported where the file is opened
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            raise ValueError(f"There is no file {shown(os.fspath(path))}: this name is too long for a file.") from None


def _load(source: Any, columns: Mapping[str, Any] | None, limit: int, missing: str) -> Transitions:
    if isinstance(source, str | os.PathLike) and is_native(Path(source)):
        refuse_columns(source, columns)
        return read_native(Path(source), limit=limit)
    columns, declared = split_categorical(columns)
    table = encode_categories(_read(source, columns, limit), declared, limit)
    return build_log(replace(table, missing=missing))


def _is_minari(source: str | os.PathLike[str]) -> bool:
    return os.fspath(source).startswith("minari:") or is_minari(Path(source))


def _is_path(source: Any) -> bool:
    """Whether this is a path, not the id of a Minari dataset, a URL or another object."""
    if not isinstance(source, str | os.PathLike):
        return False
    name = os.fspath(source)
    return not (name.startswith("minari:") or "://" in name)


def _read(source: Any, columns: Mapping[str, Any] | None, limit: int) -> Table:
    """The columns of a source that is not in valuefit's own format."""
    if isinstance(source, Mapping):
        return read_arrays(source, columns=columns)
    if isinstance(source, list | tuple):
        return _read_files(source, columns, limit)
    if not isinstance(source, str | os.PathLike):
        return read_frame(source, columns=columns)
    if folder := minari_folder(source):
        return replace(read_minari(folder, columns=columns, limit=limit), where=os.fspath(source))
    return _read_files(source, columns, limit)


def _read_files(source: Any, columns: Mapping[str, Any] | None, limit: int) -> Table:
    """The columns of one file, or of several as one table."""
    for one in source if isinstance(source, list | tuple) else [source]:
        if isinstance(one, str | os.PathLike):
            _check_joinable(os.fspath(one))
    files = find_files(source, formats())
    if len(files) == 1:
        return _read_file(files[0], columns, limit)
    where = os.fspath(source) if isinstance(source, str | os.PathLike) else f"{len(files)} files ({files[0]}, ...)"
    return join((_read_file(file, columns, limit) for file in files), where, limit)


def _check_joinable(name: str) -> None:
    """Raise ValueError for what is not among files and folders of files."""
    if "://" in name:
        raise ValueError(f"{name} is not on this machine. Download it first, then give its path.")
    if _is_minari(name) or is_native(Path(name)):
        raise ValueError(
            f"{name} is a log that valuefit saved or a Minari dataset, which is not read together with other files. "
            "Convert it to Parquet first."
        )


def _read_file(path: Path, columns: Mapping[str, Any] | None, limit: int) -> Table:
    if not path.is_file():
        raise ValueError(f"There is no file {str(path)!r}.")
    extension = file_format(path)
    if extension not in formats():
        raise ValueError(f"{path} has an unsupported extension. valuefit reads {', '.join(formats())} and folders.")
    try:
        return formats()[extension].read(path, columns=columns, limit=limit)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is not a gzip file, or it is damaged ({said(error)}). Write it again.") from error
