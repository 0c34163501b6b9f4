"""Logs that are not held in memory: shards of whole episodes, each read as an ordinary log when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from valuefit.data.assemble import build_log
from valuefit.data.columns import match_columns
from valuefit.data.files import file_format, find_files
from valuefit.data.readers.arrow import is_string, match_table
from valuefit.data.readers.native import is_native, native_steps, read_native_part
from valuefit.data.readers.parquet import column_batches, opened_parquet, read_rows
from valuefit.data.transitions import Transitions
from valuefit.data.validation import are_state_numbers
from valuefit.messages import said, shown
from valuefit.typing import Array

PARQUET = (".parquet", ".pq")
MIN_SHARD_STEPS = 1000
MAX_SHARD_STEPS = 1_000_000  # more steps at a time are not read faster
SCAN_STEPS = 1 << 20  # of the columns that mark episodes, read at a time


class Shard(Protocol):
    """Consecutive whole episodes of a log. It holds no data, so it can be sent to another process."""

    def read(self) -> Transitions:
        """The steps as a log; raises ValueError naming file and rows if they cannot be read."""


@dataclass(frozen=True)
class ParquetShard:
    """Rows of one or more Parquet files: (file, first row, row after the last)."""

    parts: tuple[tuple[str, int, int], ...]
    columns: Mapping[str, Any] | None

    def read(self) -> Transitions:
        first, start, _ = self.parts[0]
        last, _, stop = self.parts[-1]
        where = f"rows {start:,} to {stop - 1:,} of {first}"
        if first != last:
            where = f"rows {start:,} of {first} to {stop - 1:,} of {last}"
        try:
            found = match_table(read_rows(self.parts, self.columns), self.columns, where)
            files = tuple((name, stop - start) for name, start, stop in self.parts) if len(self.parts) > 1 else ()
            return build_log(replace(found, files=files))
        except (ValueError, OSError) as error:
            raise ValueError(f"In {where} (row numbers count from the first of them): {said(error)}") from error


@dataclass(frozen=True)
class NativeShard:
    """Steps of a folder that valuefit saved."""

    path: str
    start: int
    stop: int

    def read(self) -> Transitions:
        try:
            return read_native_part(Path(self.path), self.start, self.stop)
        except (ValueError, OSError) as error:
            where = f"steps {self.start:,} to {self.stop - 1:,} of {self.path}"
            raise ValueError(f"In {where} (step numbers count from the first of them): {said(error)}") from error


@runtime_checkable
class DataIterator(Protocol):
    """A source of the user's own, which is read from its beginning in every pass."""

    def reset(self) -> Any:
        """Begin again; what is returned is ignored."""

    def next(self) -> Any:
        """The next whole episodes, as a log or a table; None after the last."""


@dataclass(frozen=True, eq=False)
class _Loaded:
    log: Transitions

    def read(self) -> Transitions:
        return self.log


@dataclass(frozen=True, eq=False)
class IteratedShards:
    """The shards of a `DataIterator`, one after the other. as_log: makes a log of what it returns."""

    source: DataIterator
    as_log: Callable[[Any], Transitions]

    def __iter__(self) -> Iterator[Shard]:
        self.source.reset()
        number = 0
        while (item := self.source.next()) is not None:
            try:
                log = self.as_log(item)
            except ValueError as error:
                raise ValueError(f"In part {number} of the iterator: {said(error)}") from error
            yield _Loaded(log)
            number += 1
        if not number:
            raise ValueError("The iterator has no parts: next() returned None at once. Give at least one episode.")


@dataclass(frozen=True, eq=False)
class ShardedLog:
    """A log in shards of whole episodes, which `evaluate` reads one after the other, or on the workers of a cluster.

    steps, episodes: of all shards; None for an iterator, which is not counted before it is evaluated. source: what it
    was loaded from. notes: what was assumed. limit: bytes that may be held in memory at a time, beyond matrices of the
    size of the features.
    """

    shards: tuple[Shard, ...] | IteratedShards
    steps: int | None
    episodes: int | None
    source: str
    limit: int
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        if isinstance(self.shards, IteratedShards):
            return f"ShardedLog({self.source})"
        return f"ShardedLog({self.steps} steps, {self.episodes} episodes in {len(self.shards)} shards of {self.source})"


def open_shards(source: Any, *, columns: Mapping[str, Any] | None, limit: int) -> ShardedLog:
    """The shards of a folder that valuefit saved, or of Parquet files; only what marks episodes is read.

    Episodes must be contiguous, as the shards are not sorted.
    """
    if isinstance(source, str | Path) and is_native(Path(source)):
        if columns:
            raise ValueError(f"{source} was written by valuefit and has fixed column names. Load it without columns.")
        return _native_shards(Path(source), limit)
    files = find_files(source, PARQUET)
    for file in files:
        if file_format(file) not in PARQUET or not file.is_file():
            raise ValueError(
                f"{file} cannot be read in parts. Larger than memory, valuefit reads Parquet files and folders that "
                "it saved itself: convert the log with `valuefit convert`, or with the program that wrote it."
            )
    return _parquet_shards(files, columns, limit, str(source) if len(files) == 1 else f"{len(files)} Parquet files")


def _shard_steps(limit: int, step_bytes: int) -> int:
    """Steps of a shard: an eighth of the limit, because a shard is held several times while it is read."""
    return int(np.clip(limit / 8 / max(step_bytes, 1), MIN_SHARD_STEPS, MAX_SHARD_STEPS))


class _Cuts:
    """Where shards end: at the last start of an episode before they have `size` steps, or after a longer episode."""

    def __init__(self, size: int) -> None:
        self.size, self.ends, self.episodes = size, [0], 0

    def add(self, starts: Array) -> None:
        """starts: the first steps of further episodes, ascending."""
        for start in starts.tolist():
            if start - self.ends[-1] >= self.size:
                self.ends.append(start)
        self.episodes += len(starts)

    def ranges(self, steps: int) -> list[tuple[int, int]]:
        ends = [*self.ends, steps]
        return [(a, b) for a, b in pairwise(ends) if b > a]


def _native_shards(path: Path, limit: int) -> ShardedLog:
    steps, step_bytes, episode = native_steps(path)
    cuts, scan = _Cuts(_shard_steps(limit, step_bytes)), _EpisodeScan()
    for first in range(0, steps, SCAN_STEPS):
        cuts.add(scan.starts([np.array(episode[first : first + SCAN_STEPS])], ids=True))
    scan.refuse_interleaved(str(path))
    shards = tuple(NativeShard(str(path), start, stop) for start, stop in cuts.ranges(steps))
    return ShardedLog(shards, steps, cuts.episodes, str(path), limit)


def _parquet_shards(files: list[Path], columns: Mapping[str, Any] | None, limit: int, where: str) -> ShardedLog:
    scan = _EpisodeScan()
    cuts, matched, ends = None, None, [0]
    for file in files:
        with opened_parquet(file) as parquet:
            names = parquet.schema_arrow.names
            here = match_columns(names, columns, str(file))
            if cuts is None:
                cuts, matched = _Cuts(_shard_steps(limit, 8 * len(names))), here
                _refuse_text(parquet.schema_arrow, here, str(file))
            elif here != matched:
                raise ValueError(f"{file} has other columns than {files[0]}. Give files with the same columns.")
            marks = ["episode"] if "episode" in here else [f for f in ("terminated", "truncated", "done") if f in here]
            for batch in column_batches(parquet, [str(here[field]) for field in marks], str(file), SCAN_STEPS):
                cuts.add(scan.starts([np.asarray(column) for column in batch], ids=marks == ["episode"]))
            scan.end_of_file(ids=marks == ["episode"])
            ends.append(ends[-1] + int(parquet.metadata.num_rows))
    assert cuts is not None
    if ends[-1] == 0:
        raise ValueError(f"The log is empty: {where} has no rows.")
    scan.refuse_interleaved(where)
    shards = tuple(ParquetShard(_parts(files, ends, start, stop), columns) for start, stop in cuts.ranges(ends[-1]))
    return ShardedLog(shards, ends[-1], cuts.episodes, where, limit)


def _parts(files: list[Path], ends: list[int], start: int, stop: int) -> tuple[tuple[str, int, int], ...]:
    """The rows of each file that make up the rows `start` to `stop` of all of them."""
    return tuple(
        (str(file), max(start - first, 0), min(stop, last) - first)
        for file, first, last in zip(files, ends, ends[1:], strict=False)
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

    def refuse_interleaved(self, where: str) -> None:
        ids = np.concatenate(self.seen) if self.seen else np.zeros(0)
        values, counts = np.unique(ids, return_counts=True)
        if (counts > 1).any():
            raise ValueError(
                f"The steps of episode {shown(values[counts > 1][0])} are not contiguous in {where}. A log that is "
                "read in parts must be sorted by episode: sort it, or load it into memory."
            )


def _refuse_text(schema: Any, matched: Mapping[str, Any], where: str) -> None:
    """Text gets numbers by all values that occur, which one shard does not know."""
    for field in ("obs", "next_obs", "action"):
        names = matched.get(field, ())
        for name in (names,) if isinstance(names, str) else names:
            if is_string(schema.field(name).type):
                raise ValueError(
                    f"Column {name!r} of {where} holds text. A log that is read in parts needs numbers: number the "
                    "categories, or load it into memory."
                )


# ---- joining shards again -----------------------------------------------------------------------------------------


def join_logs(logs: list[Transitions]) -> Transitions:
    """One log of the episodes of all these, numbered in order."""
    observations = np.concatenate([log.observations for log in logs])
    offsets = np.cumsum([0, *(len(log.observations) for log in logs[:-1])])
    now = np.concatenate([log.now + offset for log, offset in zip(logs, offsets, strict=True)])
    next = np.concatenate(
        [np.where(log.next < 0, -1, log.next + offset) for log, offset in zip(logs, offsets, strict=True)]
    )
    if are_state_numbers(observations):
        observations, index = np.unique(observations, return_inverse=True)
        now, next = index[now], np.where(next < 0, -1, index[next])
    episodes, last = [], 0
    for log in logs:
        starts = np.ones(len(log), bool)
        starts[1:] = log.episode[1:] != log.episode[:-1]
        episodes.append(last + np.cumsum(starts) - 1)
        last = int(episodes[-1][-1]) + 1
    for name in ("action", "behaviour_prob"):
        if len({getattr(log, name) is None for log in logs}) > 1:
            raise ValueError(f"Some parts of the log have {name}, others do not. Give all parts the same columns.")
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(log, name) for log in logs])
        for name in ("reward", "terminated", "truncated", "ratio", "begins", "action", "behaviour_prob")
        if getattr(logs[0], name) is not None
    }
    first = logs[0]
    return replace(
        first, observations=observations, now=now, next=next, episode=np.concatenate(episodes), cluster=None,
        episode_names=None, **joined,
    )._frozen()  # fmt: skip


def compact(log: Transitions) -> Transitions:
    """The log with the observations that its steps use, copied."""
    used, now, next = log.used_observations()
    return replace(log, observations=log.observations[used], now=now, next=next)._frozen()


def episode_blocks(log: Transitions, steps: int) -> Iterator[Transitions]:
    """Consecutive parts of a log, of whole episodes and about this many steps, at least one episode each."""
    starts = np.append(np.flatnonzero(np.append(True, log.episode[1:] != log.episode[:-1])), len(log))
    first = 0
    for start, after in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        if after - first > steps and start > first:
            yield compact(log[first:start])
            first = start
    yield log if first == 0 else compact(log[first:])
