"""Dask DataFrames as logs: their partitions become logs where they are, on the workers of a cluster or here."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from valuefit.data.assemble import build_log
from valuefit.data.columns import columns_to_read
from valuefit.data.labels import distinct_names
from valuefit.data.readers.arrow import holds_text, read_frame, to_array, with_index
from valuefit.data.shards import (
    ShardedLog,
    episode_marks,
    mark_columns,
    refuse_empty_or_interleaved,
    refuse_text_columns,
    text_action,
)
from valuefit.data.text import without_categorical
from valuefit.data.transitions import Transitions
from valuefit.extras import need
from valuefit.messages import said
from valuefit.typing import Array

WHERE = "the Dask DataFrame"


@dataclass(frozen=True)
class Partition:
    """A partition of a frame, which has `rows` rows, all of whole episodes.

    actions: the names of the actions of the whole frame, if they are text.
    """

    number: int
    rows: int
    columns: Mapping[str, Any] | None
    actions: tuple[str, ...] = ()

    def log(self, frame: Any) -> Transitions:
        """The log of these episodes; raises ValueError if the frame is not the partition that was planned."""
        if len(frame) != self.rows:
            raise ValueError(
                f"Partition {self.number} of {WHERE} had {self.rows:,} rows and now has {len(frame):,}. Persist the "
                "frame, or write it to Parquet files, so that it is the same whenever it is read."
            )
        try:
            return build_log(replace(read_frame(frame, columns=self.columns), known={"action": self.actions}))
        except (ValueError, OSError) as error:
            raise ValueError(f"In partition {self.number} of {WHERE}: {said(error)}") from error


@dataclass(frozen=True, eq=False)
class FrameShard:
    """A partition of a frame as a log. key: of its rows, which the Dask graph `graph` computes."""

    rows: Partition
    key: Any
    graph: Mapping[Any, Any]

    def read(self) -> Transitions:
        return self.rows.log(computed(self.graph, {self.key: self.rows.number}, None)[0])


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
    """The episodes of a partition of so many rows.

    ids: of the runs of rows with one id, or None without ids. open: whether the last episode may go on in the next
    partition. actions: the names of those in the partition, if they are text.
    """

    number: int
    rows: int
    episodes: int
    ids: Array | None
    open: bool
    actions: frozenset[str] = frozenset()


def open_frame(frame: Any, *, columns: Mapping[str, Any] | None, limit: int) -> ShardedLog:
    """A Dask DataFrame as a log in shards, its partitions, which must hold whole episodes.

    To check this, only numbers of rows and ids of episodes are computed, by the default client of Dask if there is one.
    """
    columns = without_categorical(columns, WHERE)
    client, matched = default_client(), read_frame(frame._meta, columns=columns).matched
    schema = need("pyarrow", "files", WHERE).table(with_index(frame._meta)).schema
    types = {one.name: "text" if holds_text(one.type) else "numbers" for one in schema}
    refuse_text_columns(types, matched, WHERE, but=("action",))
    ids, action, names = "episode" in matched, text_action(types, matched), mark_columns(matched)
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
    marks = [mark for mark in marks if mark.rows]
    source = f"{WHERE} of {len(keys)} partitions"
    refuse_cut_episodes(marks, names[0], in_index=names[0] not in frame.columns)
    refuse_empty_or_interleaved(len(marks), [mark.ids for mark in marks if mark.ids is not None], source)
    actions = tuple(sorted(set[str]().union(*(mark.actions for mark in marks))))
    shards = tuple(
        FrameShard(
            Partition(one.number, one.rows, columns, actions), keys[one.number], _needed(graph, keys[one.number])
        )
        for one in marks
    )
    steps, episodes = (
        np.cumsum([0, *sizes]).tolist() for sizes in zip(*((m.rows, m.episodes) for m in marks), strict=True)
    )
    firsts = tuple(zip(steps, episodes, strict=True))[:-1]
    return ShardedLog(shards, steps[-1], episodes[-1], source, limit, firsts=firsts, client=client)


def _partitions(frame: Any, names: list[str]) -> tuple[dict[Any, Any], list[Any]]:
    """The optimised graph of the frame with these columns, and the keys of its partitions."""
    chosen = frame[[name for name in frame.columns if name in names]].optimize()
    return dict(chosen.__dask_graph__()), list(chosen.__dask_keys__())


def _needed(graph: dict[Any, Any], key: Any) -> Mapping[Any, Any]:
    """The part of a graph that computes this key."""
    needed: Mapping[Any, Any] = need("dask.optimization", "dask", WHERE).cull(graph, [key])[0]
    return needed


def refuse_cut_episodes(marks: list[Marks], name: str, *, in_index: bool) -> None:
    """Raise ValueError if an episode goes on in another partition. name: the column of the ids, if there is one."""
    for mark, after in pairwise(marks):
        if not mark.open or (mark.ids is not None and after.ids is not None and mark.ids[-1] != after.ids[0]):
            continue
        remedy = (
            "Number the episodes in a column episode, as ends.cumsum() - ends where ends is 1 in the last row of each, "
            "and give frame.set_index('episode', sorted=True)."
        )
        if mark.ids is not None:
            remedy = (
                f"Give frame{'.reset_index()' * in_index}.set_index({name!r}, sorted=True) if its ids ascend, or write "
                'it to Parquet files and load these with `memory="stream"`.'
            )
        raise ValueError(
            f"An episode goes on from partition {mark.number} to partition {after.number} of {WHERE}, whose partitions "
            f"must hold whole episodes. {remedy}"
        )


def find_marks(frame: Any, *, number: int, names: list[str], ids: bool, action: list[str]) -> Marks:
    """The episodes of a partition, by the column of the ids or the columns that mark ends. action: a column of text."""
    where = f"partition {number} of {WHERE}"
    table = need("pyarrow", "files", WHERE).table(with_index(frame))
    columns = [to_array(name, table[name], where) for name in names]
    if not len(frame):
        return Marks(number, 0, 0, None, open=False)
    if ids:
        values = np.asarray(columns[0])
        missing = np.ma.getmaskarray(columns[0]).any() or (values != values).any()
        if missing or (values.dtype == object and any(value is None for value in values)):
            raise ValueError(f"Column {names[0]!r} of {where} has missing ids. Give every row the id of its episode.")
        columns = [values]
    begins, goes_on = episode_marks(columns, ids=ids)
    actions = [distinct_names(to_array(name, table[name], where), f"Column {name!r} of {where}") for name in action]
    known = columns[0][begins] if ids else None
    return Marks(number, len(frame), int(begins.sum()), known, goes_on, frozenset().union(*actions))
