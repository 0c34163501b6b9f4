"""Dask DataFrames as logs: their partitions become logs where they are, on the workers of a cluster or here."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from valuefit.data.assemble import build_log
from valuefit.data.columns import END_FIELDS, columns_to_read
from valuefit.data.labels import distinct_names
from valuefit.data.readers.arrow import holds_text, read_frame, to_array
from valuefit.data.shards import TEXT_IDS, ShardedLog, refuse_interleaved, refuse_text_columns, text_action
from valuefit.data.text import without_categorical
from valuefit.data.transitions import Transitions
from valuefit.extras import need
from valuefit.messages import said
from valuefit.typing import Array

WHERE = "the Dask DataFrame"


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a partition, which has `rows` rows."""

    partition: int
    start: int
    stop: int
    rows: int


@dataclass(frozen=True)
class FrameRows:
    """Consecutive whole episodes of a frame: the pieces that they consist of, of neighbouring partitions."""

    pieces: tuple[Piece, ...]
    columns: Mapping[str, Any] | None
    actions: tuple[str, ...] = ()  # the names of the actions of the whole frame, if they are text

    def log(self, frames: list[Any]) -> Transitions:
        """The log of these episodes. frames: the first partition, and the pieces of those after it."""
        first, last = self.pieces[0], self.pieces[-1]
        where = f"partition {first.partition} of {WHERE}"
        if len(self.pieces) > 1:
            where = f"partitions {first.partition} to {last.partition} of {WHERE}"
        try:
            parts = [piece_of(frames[0], first), *frames[1:]]
            joined = parts[0] if len(parts) == 1 else need("pandas", "dask", "A Dask DataFrame").concat(parts)
            return build_log(replace(read_frame(joined, columns=self.columns), known={"action": self.actions}))
        except (ValueError, OSError) as error:
            raise ValueError(f"In {where} (row numbers count from row {first.start} of it): {said(error)}") from error


def piece_of(frame: Any, piece: Piece) -> Any:
    """These rows of a partition; raises ValueError if it is not the partition that was planned."""
    if len(frame) != piece.rows:
        raise ValueError(
            f"Partition {piece.partition} of {WHERE} had {piece.rows:,} rows and now has {len(frame):,}. Persist the "
            "frame, or write it to Parquet files, so that it is the same whenever it is read."
        )
    return frame.iloc[piece.start : piece.stop]


@dataclass(frozen=True, eq=False)
class FrameShard:
    """Rows of a frame. keys: of the frames that `rows.log` takes. graph: the Dask graph that computes them."""

    rows: FrameRows
    keys: tuple[Any, ...]
    graph: Mapping[Any, Any]

    def read(self) -> Transitions:
        numbers = (piece.partition for piece in self.rows.pieces)
        return self.rows.log(computed(self.graph, dict(zip(self.keys, numbers, strict=True)), None))


def computed(graph: Mapping[Any, Any], partitions: Mapping[Any, int], client: Any) -> list[Any]:
    """The values of these keys of a Dask graph, each of the partition of this number, by a client or in this process.

    Raises ValueError naming a partition that cannot be read.
    """
    keys = list(partitions)
    try:
        if client is None:
            return list(need("dask", "dask", "A Dask DataFrame").get(graph, keys))
        return list(client.get(layer(graph), keys))
    except read_errors() as error:
        if len(keys) > 1:  # one by one, as the error does not say of which partition it is
            return [computed(graph, {key: partitions[key]}, client)[0] for key in keys]
        raise ValueError(f"Partition {partitions[keys[0]]} of {WHERE} cannot be read: {said(error)}.") from error


def read_errors() -> tuple[type[Exception], ...]:
    """What Dask raises where it cannot read a file; pyarrow is not imported."""
    arrow = sys.modules.get("pyarrow")
    return (OSError,) if arrow is None else (OSError, arrow.ArrowException)


def layer(graph: Mapping[Any, Any]) -> Any:
    """The graph in the form of which a client hashes no values, which takes long and is not possible with all."""
    module = need("dask.highlevelgraph", "dask", "A Dask client")
    return module.HighLevelGraph.from_collections(f"valuefit-{uuid.uuid4().hex}", graph)


def is_frame(source: Any) -> bool:
    """Whether this is a Dask DataFrame; Dask is not imported."""
    module = sys.modules.get("dask.dataframe")
    return module is not None and isinstance(source, module.DataFrame)


def default_client() -> Any:
    """The `dask.distributed.Client` of the context, None without one; distributed is not imported."""
    module = sys.modules.get("distributed")
    try:
        return None if module is None else module.default_client()
    except ValueError:  # there is none
        return None


class Marks(NamedTuple):
    """Where episodes may start in a partition of so many rows: the runs of rows of one id, or up to an end.

    runs: how many. second: the first row of the second run, or `rows`. ids: of the runs, (runs,), or None without ids.
    open: whether, without ids, the last run may go on in the next partition. actions: the names of those in the
    partition, if they are text.
    """

    rows: int
    runs: int
    second: int
    ids: Array | None
    open: bool
    actions: frozenset[str] = frozenset()


def open_frame(frame: Any, *, columns: Mapping[str, Any] | None, limit: int) -> ShardedLog:
    """A Dask DataFrame as a log in shards, one for each partition in which an episode starts.

    An episode that goes on in the next partitions belongs to the shard of its first. To plan this, only numbers of rows
    and ids of episodes are computed, by the default client of Dask if there is one. Rows must be sorted by episode.
    """
    columns = without_categorical(columns, WHERE)
    client, matched = default_client(), read_frame(frame._meta, columns=columns).matched
    schema = need("pyarrow", "files", WHERE).table(frame._meta).schema
    types = {one.name: "text" if holds_text(one.type) else "numbers" for one in schema}
    refuse_text_columns(types, matched, WHERE, but=(*TEXT_IDS, "action"))
    ids, action = "episode" in matched, text_action(types, matched)
    names = [str(matched[field]) for field in (("episode",) if ids else END_FIELDS) if field in matched]
    graph, keys = _partitions(frame, columns_to_read(matched))
    thin, thin_keys = _partitions(frame, [*names, *action])
    if len(thin_keys) != len(keys):  # Dask joins partitions of few columns
        thin, thin_keys = graph, keys
    token = uuid.uuid4().hex
    find = partial(find_marks, names=names, ids=ids, action=action)
    tasks = {
        (f"valuefit-marks-{token}", number): (partial(find, number=number), key) for number, key in enumerate(thin_keys)
    }
    marks = computed({**thin, **tasks}, {key: number for number, key in enumerate(tasks)}, client)
    plan = _Plan.of(marks)
    source = f"{WHERE} of {len(keys)} partitions"
    if not plan.shards:
        raise ValueError(f"The log is empty: {source} has no rows.")
    refuse_interleaved(plan.ids, WHERE)
    actions = tuple(sorted(set[str]().union(*(mark.actions for mark in marks))))
    shards = tuple(_shard(pieces, columns, actions, graph, keys, f"valuefit-piece-{token}") for pieces in plan.shards)
    steps = sum(mark.rows for mark in marks)
    return ShardedLog(shards, steps, plan.episodes, source, limit, firsts=tuple(plan.firsts), client=client)


def _partitions(frame: Any, names: list[str]) -> tuple[dict[Any, Any], list[Any]]:
    """The optimised graph of the frame with these columns, and the keys of its partitions."""
    chosen = frame[[name for name in frame.columns if name in names]].optimize()
    return dict(chosen.__dask_graph__()), list(chosen.__dask_keys__())


def find_marks(frame: Any, *, number: int, names: list[str], ids: bool, action: list[str]) -> Marks:
    """The runs of a partition, by the column of the ids or the columns that mark ends. action: a column of text."""
    rows, where = len(frame), f"partition {number} of {WHERE}"
    table = need("pyarrow", "files", WHERE).table(frame)
    columns = [to_array(name, table[name], where) for name in names]
    begins = np.zeros(rows, bool)
    begins[:1] = True
    if ids:
        values = np.asarray(columns[0])
        missing = np.ma.getmaskarray(columns[0]).any() or (values != values).any()
        if missing or (values.dtype == object and any(value is None for value in values)):
            raise ValueError(f"Column {names[0]!r} of {where} has missing ids. Give every row the id of its episode.")
        begins[1:] = values[1:] != values[:-1]
    ended = np.logical_or.reduce([np.asarray(column).astype(bool) for column in columns]) if columns else begins & False
    if not ids:
        begins[1:] = ended[:-1]
    starts = np.flatnonzero(begins)
    second = int(starts[1]) if len(starts) > 1 else rows
    actions: frozenset[str] = frozenset()
    for name in action:
        actions = frozenset(distinct_names(to_array(name, table[name], where), f"Column {name!r} of {where}"))
    return Marks(rows, len(starts), second, values[starts] if ids else None, bool(rows) and not ended[-1], actions)


@dataclass
class _Plan:
    """The pieces, the first step and the first episode of each shard; ids of all episodes."""

    shards: list[list[Piece]]
    firsts: list[tuple[int, int]]
    ids: list[Array]
    episodes: int = 0

    @classmethod
    def of(cls, marks: list[Marks]) -> _Plan:
        plan, row, before = cls([], [], []), 0, None
        for number, mark in enumerate(marks):
            if not mark.rows:
                continue
            goes_on = before is not None and before.open
            if before is not None and before.ids is not None and mark.ids is not None:
                goes_on = bool(before.ids[-1] == mark.ids[0])
            own = mark.second if goes_on else 0
            if own > 0:
                plan.shards[-1].append(Piece(number, 0, own, mark.rows))
            if own < mark.rows:
                plan.shards.append([Piece(number, own, mark.rows, mark.rows)])
                plan.firsts.append((row + own, plan.episodes))
            if mark.ids is not None:
                plan.ids.append(mark.ids[int(goes_on) :])
            plan.episodes += mark.runs - int(goes_on)
            row, before = row + mark.rows, mark
        return plan


def _shard(
    pieces: list[Piece], columns: Mapping[str, Any] | None, actions: tuple[str, ...], graph: dict[Any, Any],
    keys: list[Any], name: str,
) -> FrameShard:  # fmt: skip
    """The pieces after the first are cut where their partitions are, so that no more than them is moved."""
    own, cut = keys[pieces[0].partition], {(name, one.partition): one for one in pieces[1:]}
    needed, _ = need("dask.optimization", "dask", WHERE).cull(
        graph, [own, *(keys[one.partition] for one in pieces[1:])]
    )
    needed.update({key: (partial(piece_of, piece=one), keys[one.partition]) for key, one in cut.items()})
    return FrameShard(FrameRows(tuple(pieces), columns, actions), (own, *cut), needed)
