"""Logs that are not held in memory: shards of whole episodes, each read as an ordinary log when it is needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from valuefit.data.assemble import build_log, check_ends, scan_gaps
from valuefit.data.columns import ALIASES, END_FIELDS, VECTOR_FIELDS, ColumnMap, columns_to_read
from valuefit.data.continuity import Continuity
from valuefit.data.files import FileState, file_format, file_states, find_files, unchanged
from valuefit.data.gaps import Filling, GapScan
from valuefit.data.labels import distinct_names
from valuefit.data.readers import formats, sharded_formats
from valuefit.data.readers.minari import minari_folder, read_minari, scan_minari
from valuefit.data.readers.native import is_native, native_steps, read_native_part, refuse_columns
from valuefit.data.table import Scan, Table, join
from valuefit.data.text import without_categorical
from valuefit.data.transitions import Transitions
from valuefit.data.validation import episode_starts
from valuefit.memory import memory_limit
from valuefit.messages import RowError, said, shown
from valuefit.typing import Array

MIN_SHARD_STEPS = 1000
MAX_SHARD_STEPS = 1_000_000  # more steps at a time are not read faster


class Shard(Protocol):
    """Consecutive whole episodes of a log. It holds no data, so it can be sent to another process."""

    def read(self) -> Transitions:
        """The steps as a log; raises ValueError naming file and rows if they cannot be read."""


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
class TableShard:
    """Rows of files, or episodes of a Minari folder.

    table: reads them. rows: their places, for messages; what: rows or steps. files: as they were when the log was
    opened. actions: the names of the actions of the whole log, if they are text. filling: of gaps in the observations.
    """

    table: Callable[[], Table]
    rows: tuple[RowRange, ...]
    what: str = "rows"
    files: tuple[FileState, ...] = ()
    actions: tuple[str, ...] = ()
    filling: Filling | None = None

    def read(self) -> Transitions:
        with unchanged(self.files), _reading(self.rows, self.what):
            return build_log(self._table())

    def scan(self, scan: GapScan | None, limit: int) -> GapScan:
        """Count the gaps in the observations."""
        with unchanged(self.files), _reading(self.rows, self.what):
            return scan_gaps(self._table(), scan, limit)

    def _table(self) -> Table:
        table = self.table()
        return replace(table, known={"action": self.actions}, filling=table.filling or self.filling)


def _read_rows(parts: tuple[RowRange, ...], columns: Mapping[str, Any], *, several: bool) -> Table:
    """Rows of one or more files. several: whether each file ends an episode if no column numbers them."""
    limit = memory_limit()
    tables = (
        formats()[file_format(Path(one.name))].read(Path(one.name), columns=columns, limit=limit, rows=one[1:])
        for one in parts
    )
    table = join(tables, parts[0].name if len(parts) == 1 else f"{len(parts)} files", limit)
    return table if several else replace(table, files=())


def _read_episodes(path: str, names: tuple[str, ...], columns: Mapping[str, Any]) -> Table:
    """Episodes of a Minari folder."""
    return read_minari(Path(path), columns=columns, limit=memory_limit(), names=names)


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
        return _counted_once(self.log[self.start : self.stop].compact(), self.start)


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
    log = _planned_shards(source, columns, limit)
    return _filled(log) if missing == "flag" else log


def _filled(log: ShardedLog) -> ShardedLog:
    """The shards with what fills the gaps in their observations, learnt in one pass: all are filled alike."""
    shards = [shard for shard in log.shards if isinstance(shard, TableShard)]
    scan = None
    for shard in shards:  # none of a folder that valuefit saved, which has no gaps
        scan = shard.scan(scan, log.limit // 8)
    filling = None if scan is None else scan.filling()
    if scan is None or filling is None:
        return log
    sample = f" in {-(-scan.rows // scan.stride):,} of {scan.rows:,} steps" if scan.stride > 1 else ""
    filled = tuple(replace(shard, filling=filling) for shard in shards)
    return replace(log, shards=filled, notes=(*log.notes, filling.sentence(sample)))


def _planned_shards(source: Any, columns: Mapping[str, Any] | None, limit: int) -> ShardedLog:
    """The shards, before gaps in their observations are known."""
    single = isinstance(source, str | os.PathLike)
    if not (single or isinstance(source, list | tuple)) or "://" in str(source):
        raise ValueError(
            '`memory="stream"` reads Parquet and HDF5 files, Minari datasets and folders that valuefit saved, not this '
            "source. Save it as one of these first."
        )
    if single and (folder := minari_folder(source)):
        return _minari_shards(folder, columns, limit, str(source))
    if single and is_native(Path(source)):
        refuse_columns(source, columns)
        return _native_shards(Path(source), limit)
    allowed = sharded_formats()
    files = find_files(source, allowed)
    for file in files:
        if not file.exists():
            raise ValueError(f"There is no file {str(file)!r}.")
        if file_format(file) not in allowed or not file.is_file():
            raise ValueError(
                f"{file} cannot be read in parts. Larger than memory, valuefit reads Parquet and HDF5 files, Minari "
                "datasets and folders that it saved itself: convert the log with `valuefit convert`, or with the "
                "program that wrote it."
            )
    return _file_shards(files, columns, limit, str(source) if len(files) == 1 else f"{len(files)} files")


def shard_steps(limit: int, step_bytes: int) -> int:
    """Steps of a shard: an eighth of the limit, because a shard is held several times while it is read."""
    # besides its observation a step takes about 64 bytes
    return int(np.clip(limit / 8 / (64 + step_bytes), MIN_SHARD_STEPS, MAX_SHARD_STEPS))


class _Cuts:
    """Finds the starts of episodes in consecutive rows, and cuts shards there.

    A shard ends at the first start of an episode after it has `size` steps. firsts: its first step and episode.
    """

    def __init__(self, size: int) -> None:
        self.size, self.rows, self.episodes = size, 0, 0
        self.firsts = [(0, 0)]
        self._open = False  # whether the episode of the last row goes on
        self._ids: list[Array] = []  # of runs of equal ids

    def add(self, columns: list[Array], *, ids: bool) -> None:
        """Further rows: the column of their ids, or those that mark ends."""
        if columns and len(columns[0]):
            begins, goes_on = episode_marks(columns, ids=ids)
            begins[0] = not self._open or (ids and columns[0][0] != self._ids[-1][-1])
            for episode, row in enumerate((self.rows + np.flatnonzero(begins)).tolist(), self.episodes):
                if row - self.firsts[-1][0] >= self.size:
                    self.firsts.append((row, episode))
            if ids and begins.any():
                self._ids.append(columns[0][begins])
            self.episodes, self._open = self.episodes + int(begins.sum()), goes_on
            self.rows += len(begins)

    def end(self) -> None:
        """The last row ends its episode."""
        self._open = False

    def log(self, shard: Callable[[int, int], Shard], where: str, limit: int) -> ShardedLog:
        """The log of these shards, each of which `shard` makes of its first step and the one after its last."""
        refuse_empty_or_interleaved(self.rows, self._ids, where)
        ends = [*(row for row, _ in self.firsts), self.rows]
        shards = tuple(shard(start, stop) for start, stop in pairwise(ends))
        return ShardedLog(shards, self.rows, self.episodes, where, limit, firsts=tuple(self.firsts))


def episode_marks(columns: list[Array], *, ids: bool) -> tuple[Array, bool]:
    """Where episodes start in rows, the first included, and whether the last may go on after them.

    columns: that of the ids, or those that mark ends.
    """
    if ids:
        return episode_starts(columns[0]), True
    ended = np.logical_or.reduce([np.asarray(column).astype(bool) for column in columns])
    return np.concatenate(([True], ended[:-1])), not ended[-1]


def mark_columns(matched: ColumnMap) -> list[str]:
    """The column of the ids of episodes, or those that mark ends."""
    fields = ("episode",) if "episode" in matched else END_FIELDS
    return [str(matched[field]) for field in fields if field in matched]


def log_shards(log: Transitions, limit: int) -> ShardedLog:
    """The shards of a log in memory: its feature rows are computed in parts, and never stored all at once."""
    cuts = _Cuts(shard_steps(limit, log.observations[:1].nbytes))
    cuts.add([log.episode], ids=True)
    return replace(cuts.log(partial(LogShard, log), "a log in memory", limit), notes=tuple(log.notes))


def _native_shards(path: Path, limit: int) -> ShardedLog:
    files = file_states([path])
    steps, step_bytes, episode = native_steps(path)
    cuts, block = _Cuts(shard_steps(limit, step_bytes)), MAX_SHARD_STEPS
    for first in range(0, steps, block):
        cuts.add([np.array(episode[first : first + block])], ids=True)
    return cuts.log(partial(NativeShard, str(path), files=files), str(path), limit)


def _minari_shards(path: Path, columns: Mapping[str, Any] | None, limit: int, where: str) -> ShardedLog:
    files = file_states([path, path / "data"] if (path / "data").is_dir() else [path])
    scan = scan_minari(path, columns=columns)
    check_ends(scan.matched, where)
    refuse_text_columns(scan.types, scan.matched, where)
    lengths = [steps for _, steps in scan.episodes]
    ends = np.cumsum([0, *lengths])
    cuts = _Cuts(shard_steps(limit, scan.step_bytes))
    cuts.add([np.repeat(np.arange(len(lengths)), lengths)], ids=True)

    def shard(start: int, stop: int) -> TableShard:
        first, last = np.searchsorted(ends, [start, stop])
        episodes = scan.episodes[first:last]
        table = partial(_read_episodes, str(path), tuple(name for name, _ in episodes), _all_fields(scan.matched))
        return TableShard(
            table, tuple(RowRange(f"{name} of {path}", 0, steps) for name, steps in episodes), "steps", files
        )

    return cuts.log(shard, where, limit)


def _file_shards(files: list[Path], columns: Mapping[str, Any] | None, limit: int, where: str) -> ShardedLog:
    states = {file.path: file for file in file_states(files)}
    ends, actions, first, cuts = [0], set[str](), None, _Cuts(0)
    for file in files:
        with _opened(file, columns, limit) as scan:
            if first is None:
                check_ends(scan.matched, str(file))
                refuse_text_columns(scan.types, scan.matched, str(file), but=("action",))
                first, cuts = scan, _Cuts(shard_steps(limit, scan.step_bytes))
            _refuse_others(first, scan, files[0], file)
            ids, action = "episode" in scan.matched, text_action(scan.types, scan.matched)
            for batch in scan.marks([*mark_columns(scan.matched), *action], MAX_SHARD_STEPS):
                if action:
                    actions |= distinct_names(batch.pop(), f"Column {action[0]!r} of {file}")
                cuts.add([_scalars(column) for column in batch], ids=ids)
            if not ids:
                cuts.end()
            ends.append(ends[-1] + scan.rows)
    assert first is not None  # there is a file
    fields, several = _all_fields(first.matched), len(files) > 1

    def shard(start: int, stop: int) -> TableShard:
        parts = _parts(files, ends, start, stop)
        table = partial(_read_rows, parts, fields, several=several)
        return TableShard(
            table, parts, files=tuple(states[one.name] for one in parts), actions=tuple(sorted(actions))
        )  # fmt: skip

    return cuts.log(shard, where, limit)


def _opened(file: Path, columns: Mapping[str, Any] | None, limit: int) -> AbstractContextManager[Scan]:
    scan = formats()[file_format(file)].scan
    assert scan is not None  # other formats were refused
    return scan(file, columns=columns, limit=limit)


def _all_fields(matched: ColumnMap) -> dict[str, Any]:
    """The columns of each field, None for those without one, so that no shard searches for them again."""
    return {field: matched.get(field) for field in ALIASES}


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


def refuse_empty_or_interleaved(rows: int, ids: list[Array], where: str) -> None:
    """Raise ValueError if there are no rows, or if an id occurs twice among those of runs of equal ids."""
    if rows == 0:
        raise ValueError(f"The log is empty: {where} has no rows.")
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


def refuse_text_columns(types: Mapping[str, str], matched: ColumnMap, where: str, *, but: Sequence[str] = ()) -> None:
    """Raise ValueError for text, which is numbered by all values of a log, in fields that are no ids, nor in `but`."""
    allowed = ("episode", "cluster", *but)
    for name in columns_to_read({field: names for field, names in matched.items() if field not in allowed}):
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
