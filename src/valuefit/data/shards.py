"""Logs that are not held in memory: shards of whole episodes, each read as an ordinary log when it is needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from valuefit.data.assemble import build_log, check_ends, scan_gaps
from valuefit.data.columns import ALIASES, END_FIELDS, VECTOR_FIELDS, ColumnMap, columns_to_read
from valuefit.data.continuity import Continuity
from valuefit.data.files import FileState, file_format, file_states, find_files, unchanged
from valuefit.data.gaps import Filling, GapScan
from valuefit.data.joining import compact
from valuefit.data.labels import distinct_names
from valuefit.data.readers.hdf5 import read_hdf5, scan_hdf5
from valuefit.data.readers.minari import minari_folder, read_minari, scan_minari
from valuefit.data.readers.native import is_native, native_steps, read_native_part
from valuefit.data.readers.parquet import read_parquet, scan_parquet
from valuefit.data.table import Scan, Table, join
from valuefit.data.text import without_categorical
from valuefit.data.transitions import Transitions
from valuefit.data.validation import episode_starts
from valuefit.memory import memory_limit
from valuefit.messages import RowError, said, shown
from valuefit.typing import Array

MIN_SHARD_STEPS = 1000
MAX_SHARD_STEPS = 1_000_000  # more steps at a time are not read faster
COLUMN_BYTES = 64  # of a step in memory, besides what its observation takes in a file
TEXT_IDS = ("episode", "cluster")  # fields in which parts of a log may have text
SAMPLE_SHARE = 1 / 8  # of the limit, for the observations of which medians are taken
SCAN_STEPS = 1 << 20  # of the columns that mark episodes, read at a time


class Shard(Protocol):
    """Consecutive whole episodes of a log. It holds no data, so it can be sent to another process."""

    def read(self) -> Transitions:
        """The steps as a log; raises ValueError naming file and rows if they cannot be read."""


class Format(NamedTuple):
    """How files are read in parts: scan opens one, read reads some of its rows."""

    scan: Callable[..., AbstractContextManager[Scan]]
    read: Callable[..., Table]


FORMATS = {
    ".parquet": Format(scan_parquet, read_parquet),
    ".pq": Format(scan_parquet, read_parquet),
    ".h5": Format(scan_hdf5, read_hdf5),
    ".hdf5": Format(scan_hdf5, read_hdf5),
}


class RowRange(NamedTuple):
    """Consecutive rows of a file, or of another part of a source."""

    name: str
    start: int
    stop: int


@contextmanager
def _reading(parts: Sequence[RowRange], what: str = "rows") -> Iterator[None]:
    """Raise ValueError naming the rows that cannot be read, and the one that is wrong, if one is."""
    first, last = parts[0], parts[-1]
    where = f"{what} {first.start:,} to {last.stop - 1:,} of {first.name}"
    if first.name != last.name:
        where = f"{what} {first.start:,} of {first.name} to {last.stop - 1:,} of {last.name}"
    try:
        yield
    except RowError as error:
        row = error.row
        for part in parts:
            if row < part.stop - part.start:
                break
            row -= part.stop - part.start
        raise ValueError(f"In {where}: {error.at(f'{what[:-1]} {part.start + row:,} of {part.name}')}") from error
    except (ValueError, OSError) as error:
        raise ValueError(f"In {where}: {said(error)}") from error


@dataclass(frozen=True)
class FileShard:
    """Rows of one or more files of a format.

    columns: of all fields, None for those that they do not have. several: whether the log has several files, each of
    which ends an episode if no column numbers them. files: as they were when the log was opened. actions: the names of
    the actions of the whole log, if they are text. filling: of gaps in the observations.
    """

    parts: tuple[RowRange, ...]
    columns: Mapping[str, Any]
    several: bool
    files: tuple[FileState, ...] = ()
    actions: tuple[str, ...] = ()
    filling: Filling | None = None

    def read(self) -> Transitions:
        with unchanged(self.files), _reading(self.parts):
            return build_log(self._joined())

    def scan(self, scan: GapScan | None, limit: int) -> GapScan:
        """Count the gaps in the observations."""
        with unchanged(self.files), _reading(self.parts):
            return scan_gaps(self._joined(), scan, limit)

    def _joined(self) -> Table:
        where = self.parts[0].name if len(self.parts) == 1 else f"{len(self.parts)} files"
        table = join((self._table(part) for part in self.parts), where, memory_limit())
        files = table.files if self.several else ()
        known = {"action": self.actions}
        return replace(table, files=files, known=known, filling=table.filling or self.filling)

    def _table(self, part: RowRange) -> Table:
        read = FORMATS[file_format(Path(part.name))].read
        return read(Path(part.name), columns=self.columns, limit=memory_limit(), rows=(part.start, part.stop))


@dataclass(frozen=True)
class MinariShard:
    """Episodes of a Minari folder. columns, files, filling: as those of a `FileShard`."""

    path: str
    episodes: tuple[tuple[str, int], ...]
    columns: Mapping[str, Any]
    files: tuple[FileState, ...] = ()
    filling: Filling | None = None

    def read(self) -> Transitions:
        with unchanged(self.files), self._reading():
            return build_log(self._table())

    def scan(self, scan: GapScan | None, limit: int) -> GapScan:
        """Count the gaps in the observations."""
        with unchanged(self.files), self._reading():
            return scan_gaps(self._table(), scan, limit)

    def _reading(self) -> AbstractContextManager[None]:
        return _reading([RowRange(f"{name} of {self.path}", 0, steps) for name, steps in self.episodes], "steps")

    def _table(self) -> Table:
        names = [name for name, _ in self.episodes]
        table = read_minari(Path(self.path), columns=self.columns, limit=memory_limit(), names=names)
        return replace(table, filling=self.filling)


@dataclass(frozen=True)
class NativeShard:
    """Steps of a folder that valuefit saved. files: as they were when the log was opened."""

    path: str
    start: int
    stop: int
    files: tuple[FileState, ...] = ()

    def read(self) -> Transitions:
        with unchanged(self.files), _reading([RowRange(self.path, self.start, self.stop)], "steps"):
            return _counted_once(read_native_part(Path(self.path), self.start, self.stop), self.start)


@dataclass(frozen=True, eq=False)
class LogShard:
    """The steps [start, stop) of a log in memory."""

    log: Transitions
    start: int
    stop: int

    def read(self) -> Transitions:
        return _counted_once(compact(self.log[self.start : self.stop]), self.start)


def _counted_once(log: Transitions, start: int) -> Transitions:
    """The steps from `start` on of a log; the counts of the log are those of its first part, so that they add up."""
    return log if start == 0 else replace(log, continuity=Continuity())


@dataclass(frozen=True, eq=False)
class ShardedLog:
    """A log in shards of whole episodes, which `evaluate` reads one after the other, or on the workers of a cluster.

    steps, episodes: of all shards. source: what it was loaded from. notes: what was assumed. limit: bytes that may be
    held in memory at a time, beyond matrices of the size of the features. firsts: the first step and the first episode
    of each shard, unless reading drops some. client: the `dask.distributed.Client` whose workers hold the shards, if
    any do.
    """

    shards: tuple[Shard, ...]
    steps: int
    episodes: int
    source: str
    limit: int
    notes: tuple[str, ...] = ()
    firsts: tuple[tuple[int, int], ...] | None = None
    client: Any = None

    def __repr__(self) -> str:
        return f"ShardedLog({self.steps} steps, {self.episodes} episodes in {len(self.shards)} shards of {self.source})"


def open_shards(
    source: Any, *, columns: Mapping[str, Any] | None, limit: int, missing: str = "refuse"
) -> ShardedLog:  # fmt: skip
    """The shards of a folder that valuefit saved, of Minari, or of Parquet or HDF5 files.

    Only what marks episodes is read; with missing="flag" also the observations, once, to learn what fills their gaps.
    Episodes must be contiguous, as the shards are not sorted.
    """
    columns = without_categorical(columns, "this log")
    log = _planned_shards(source, columns=columns, limit=limit)
    return _filled(log) if missing == "flag" else log


def _filled(log: ShardedLog) -> ShardedLog:
    """The shards with what fills the gaps in their observations, learnt in one pass: all are filled alike."""
    shards = [shard for shard in log.shards if isinstance(shard, FileShard | MinariShard)]
    scan = None
    for shard in shards:  # none of a folder that valuefit saved, which has no gaps
        scan = shard.scan(scan, int(SAMPLE_SHARE * log.limit))
    filling = None if scan is None else scan.filling()
    if scan is None or filling is None:
        return log
    sample = f" in {-(-scan.rows // scan.stride):,} of {scan.rows:,} steps" if scan.stride > 1 else ""
    filled = tuple(replace(shard, filling=filling) for shard in shards)
    return replace(log, shards=filled, notes=(*log.notes, filling.sentence(sample)))


def _planned_shards(source: Any, *, columns: Mapping[str, Any] | None, limit: int) -> ShardedLog:
    """The shards, before gaps in their observations are known."""
    single = isinstance(source, str | os.PathLike)
    if not (single or isinstance(source, list | tuple)) or "://" in str(source):
        raise ValueError(
            'memory="stream" reads Parquet and HDF5 files, Minari datasets and folders that valuefit saved, not this '
            "source. Save it as one of these first."
        )
    if single and (folder := minari_folder(source)):
        return _minari_shards(folder, columns, limit, str(source))
    if single and is_native(Path(source)):
        if columns:
            raise ValueError(f"{source} was written by valuefit and has fixed column names. Load it without columns.")
        return _native_shards(Path(source), limit)
    files = find_files(source, FORMATS)
    for file in files:
        if not file.exists():
            raise ValueError(f"There is no file {str(file)!r}.")
        if file_format(file) not in FORMATS or not file.is_file():
            raise ValueError(
                f"{file} cannot be read in parts. Larger than memory, valuefit reads Parquet and HDF5 files, Minari "
                "datasets and folders that it saved itself: convert the log with `valuefit convert`, or with the "
                "program that wrote it."
            )
    return _file_shards(files, columns, limit, str(source) if len(files) == 1 else f"{len(files)} files")


def log_shards(log: Transitions, limit: int) -> ShardedLog:
    """The shards of a log in memory: its feature rows are computed in parts, and never stored all at once."""
    cuts = _Cuts(shard_steps(limit, log.observations[:1].nbytes))
    cuts.add(np.flatnonzero(episode_starts(log.episode)))
    shards = tuple(LogShard(log, start, stop) for start, stop in cuts.ranges(len(log)))
    return ShardedLog(
        shards, len(log), cuts.episodes, "a log in memory", limit, notes=tuple(log.notes), firsts=tuple(cuts.firsts),
    )  # fmt: skip


def shard_steps(limit: int, step_bytes: int) -> int:
    """Steps of a shard: an eighth of the limit, because a shard is held several times while it is read."""
    return int(np.clip(limit / 8 / (COLUMN_BYTES + step_bytes), MIN_SHARD_STEPS, MAX_SHARD_STEPS))


class _Cuts:
    """Where shards end: at the last start of an episode before they have `size` steps, or after a longer episode."""

    def __init__(self, size: int) -> None:
        self.size, self.ends, self.episodes = size, [0], 0
        self.firsts = [(0, 0)]  # the first step and the first episode of each shard

    def add(self, starts: Array) -> None:
        """starts: the first steps of further episodes, ascending."""
        for episode, start in enumerate(starts.tolist(), self.episodes):
            if start - self.ends[-1] >= self.size:
                self.ends.append(start)
                self.firsts.append((start, episode))
        self.episodes += len(starts)

    def ranges(self, steps: int) -> list[tuple[int, int]]:
        ends = [*self.ends, steps]
        return [(a, b) for a, b in pairwise(ends) if b > a]


def _native_shards(path: Path, limit: int) -> ShardedLog:
    files = file_states([path])
    steps, step_bytes, episode = native_steps(path)
    cuts, scan = _Cuts(shard_steps(limit, step_bytes)), _EpisodeScan()
    for first in range(0, steps, SCAN_STEPS):
        cuts.add(scan.starts([np.array(episode[first : first + SCAN_STEPS])], ids=True))
    refuse_interleaved(scan.seen, str(path))
    shards = tuple(NativeShard(str(path), start, stop, files) for start, stop in cuts.ranges(steps))
    return ShardedLog(shards, steps, cuts.episodes, str(path), limit, firsts=tuple(cuts.firsts))


def _minari_shards(path: Path, columns: Mapping[str, Any] | None, limit: int, where: str) -> ShardedLog:
    files = file_states([path, path / "data"] if (path / "data").is_dir() else [path])
    scan = scan_minari(path, columns=columns)
    check_ends(scan.matched, where)
    refuse_text_columns(scan.types, scan.matched, where)
    ends = np.cumsum([0, *(steps for _, steps in scan.episodes)])
    cuts = _Cuts(shard_steps(limit, scan.step_bytes))
    cuts.add(ends[:-1][np.diff(ends) > 0])
    steps = _not_empty(int(ends[-1]), where)
    found = _all_fields(scan.matched)
    bounds = [(start, np.searchsorted(ends, [start, stop])) for start, stop in cuts.ranges(steps)]
    shards = tuple(
        MinariShard(str(path), tuple(scan.episodes[first:last]), found, files) for _, (first, last) in bounds
    )
    return ShardedLog(shards, steps, cuts.episodes, where, limit, firsts=tuple(cuts.firsts))


def _file_shards(files: list[Path], columns: Mapping[str, Any] | None, limit: int, where: str) -> ShardedLog:
    episodes, ends, states = _EpisodeScan(), [0], {file.path: file for file in file_states(files)}
    actions: set[str] = set()
    first, cuts = None, _Cuts(MAX_SHARD_STEPS)
    for file in files:
        with FORMATS[file_format(file)].scan(file, columns=columns, limit=limit) as scan:
            if first is None:
                check_ends(scan.matched, str(file))
                refuse_text_columns(scan.types, scan.matched, str(file), but=(*TEXT_IDS, "action"))
                first, cuts = scan, _Cuts(shard_steps(limit, scan.step_bytes))
            _refuse_others(first, scan, files[0], file)
            ids = "episode" in scan.matched
            fields = ("episode",) if ids else END_FIELDS
            names = [str(scan.matched[field]) for field in fields if field in scan.matched]
            action = text_action(scan.types, scan.matched)
            for batch in scan.marks([*names, *action], SCAN_STEPS):
                if action:
                    actions |= distinct_names(batch.pop(), f"Column {action[0]!r} of {file}")
                cuts.add(episodes.starts([_scalars(column) for column in batch], ids=ids))
            episodes.end_of_file(ids=ids)
            ends.append(ends[-1] + scan.rows)
    steps = _not_empty(ends[-1], where)
    refuse_interleaved(episodes.seen, where)
    assert first is not None  # there are steps
    several, found = len(files) > 1, _all_fields(first.matched)
    parts = [_parts(files, ends, start, stop) for start, stop in cuts.ranges(steps)]
    shards = tuple(
        FileShard(part, found, several, tuple(states[one.name] for one in part), tuple(sorted(actions)))
        for part in parts
    )
    return ShardedLog(shards, steps, cuts.episodes, where, limit, firsts=tuple(cuts.firsts))


def _all_fields(matched: ColumnMap) -> dict[str, Any]:
    """The columns of each field, None for those without one, so that no shard searches for them again."""
    return {field: matched.get(field) for field in ALIASES}


def _not_empty(steps: int, where: str) -> int:
    if steps == 0:
        raise ValueError(f"The log is empty: {where} has no rows.")
    return steps


def _scalars(column: Array) -> Array:
    """One number for each row: columns of shape (n, 1) are accepted, others refused where the rows are read."""
    return np.asarray(column).reshape(len(column), -1)[:, 0] if len(column) else np.zeros(0)


def _parts(files: list[Path], ends: list[int], start: int, stop: int) -> tuple[RowRange, ...]:
    """The rows of each file that make up the rows `start` to `stop` of all of them."""
    return tuple(
        RowRange(str(file), max(start - first, 0), min(stop, last) - first)
        for file, (first, last) in zip(files, pairwise(ends), strict=True)
        if first < stop and last > start
    )


class _EpisodeScan:
    """Finds the first rows of episodes in consecutive batches of the columns that mark them."""

    def __init__(self) -> None:
        self.row = 0
        self.open = False  # whether the episode of the last row goes on
        self.last: Any = None  # the id of the last row
        self.seen: list[Array] = []  # ids, one for each run of equal ones

    def starts(self, columns: list[Array], *, ids: bool) -> Array:
        """The rows at which episodes start, counted over all batches."""
        n = len(columns[0]) if columns else 0
        begins = np.zeros(n, bool)
        if n and ids:
            values = columns[0]
            begins[0] = self.last is None or bool(values[0] != self.last)
            begins[1:] = values[1:] != values[:-1]
            self.last = values[-1]
            self.seen.append(values[begins])
        elif n:
            ended = np.logical_or.reduce([column.astype(bool) for column in columns])
            begins[0] = not self.open
            begins[1:] = ended[:-1]
            self.open = not ended[-1]
        first, self.row = self.row, self.row + n
        return np.asarray(first + np.flatnonzero(begins))

    def end_of_file(self, *, ids: bool) -> None:
        """Without ids each file ends its episode."""
        self.open = self.open and ids


def refuse_interleaved(ids: list[Array], where: str) -> None:
    """Raise ValueError if an id occurs twice among those of runs of equal ids."""
    values, counts = np.unique(np.concatenate(ids) if ids else np.zeros(0), return_counts=True)
    if (counts > 1).any():
        raise ValueError(
            f"The steps of episode {shown(values[counts > 1][0])} are not contiguous in {where}. A log that is "
            "read in parts must be sorted by episode: sort it, or load it into memory."
        )


def text_action(types: Mapping[str, str], matched: ColumnMap) -> list[str]:
    """The column of the actions, if it holds text: the names in all parts of a log are needed to number them."""
    name = matched.get("action")
    return [name] if isinstance(name, str) and types[name] == "text" else []


def refuse_text_columns(
    types: Mapping[str, str], matched: ColumnMap, where: str, *, but: Sequence[str] = TEXT_IDS
) -> None:
    """Raise ValueError for text, which is numbered by all values of a log, in other fields than `but`."""
    for name in columns_to_read({field: names for field, names in matched.items() if field not in but}):
        if types[name] == "text":
            raise ValueError(
                f"Column {name!r} of {where} holds text. A log that is read in parts needs numbers: number the "
                "categories, or load it into memory."
            )


def _refuse_others(first: Scan, scan: Scan, first_file: Path, file: Path) -> None:
    """Columns must not differ from file to file, nor the types of observations and actions."""
    if scan.matched != first.matched:
        raise ValueError(f"{file} has other columns than {first_file}. Give files with the same columns.")
    for name in columns_to_read({field: names for field, names in scan.matched.items() if field in VECTOR_FIELDS}):
        if scan.rows and scan.types[name] != first.types[name]:
            raise ValueError(
                f"Column {name!r} of {file} has type {scan.types[name]}, but that of {first_file} has type "
                f"{first.types[name]}. A log that is read in parts needs one type: write them alike."
            )
