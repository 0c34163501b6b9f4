"""Sums over the shards of a log, read one after the other or on the workers of a cluster."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NamedTuple

from valuefit.data.frames import FrameShard, layer
from valuefit.data.shards import Shard, episode_blocks
from valuefit.data.transitions import Transitions
from valuefit.extras import need
from valuefit.messages import said
from valuefit.problem.problem import Problem
from valuefit.threads import one_thread

FAN_IN = 8  # results that are added in one task of a cluster
TASK_RETRIES = 2  # of a task that failed on a worker


class Part(NamedTuple):
    """Some episodes of a log as a problem. place: the number of the shard and the number in it."""

    problem: Problem
    log: Transitions
    place: tuple[int, int]


Function = Callable[[Part], tuple[Any, ...]]


@dataclass(frozen=True, eq=False)
class Parts:
    """The shards of a log as problems of at most `steps` steps, or one episode.

    make: the problem of a part of the log. client: a `dask.distributed.Client` whose workers open the shards and
    compute; None for this process. Functions and what they hold are sent to the workers, data never are.
    """

    shards: Iterable[Shard]
    make: Callable[[Transitions], Problem]
    steps: int
    client: Any = None

    def sum(self, function: Function) -> tuple[Any, ...]:
        """The sums, over all parts, of the entries of what `function` returns; lists are concatenated in order."""
        return sum_shards(self.shards, partial(self.of_shard, function=function), self.client)

    def of_shard(self, log: Transitions, number: int, function: Function) -> tuple[Any, ...]:
        blocks = enumerate(episode_blocks(log, self.steps))
        return reduce(add, (function(Part(self.make(block), block, (number, place))) for place, block in blocks))

    def __getstate__(self) -> dict[str, Any]:
        """For workers: without the shards and the client."""
        return {"shards": (), "make": self.make, "steps": self.steps, "client": None}


def sum_shards(
    shards: Iterable[Shard], function: Callable[[Transitions, int], tuple[Any, ...]], client: Any
) -> tuple[Any, ...]:
    """The sums, over all shards, of the entries of what `function` returns for a log and the number of its shard.

    The order of summation is fixed, so that the same shards give the same bits.
    """
    if client is None:
        return reduce(add, (function(log, number) for number, log in enumerate(read_ahead(shards))))
    graph, key = _sum_graph(tuple(shards), function)
    distributed = need("distributed", "dask", "A Dask client")
    try:
        found: tuple[Any, ...] = client.get(layer(graph), key, retries=TASK_RETRIES)
    except (OSError, distributed.KilledWorker, CancelledError) as error:
        raise ValueError(f"A part of the log could be computed on no worker: {said(error)}") from error
    return found


def _sum_graph(shards: tuple[Shard, ...], function: Callable[..., Any]) -> tuple[dict[Any, Any], Any]:
    """The Dask graph of a sum over shards, and the key of its result.

    The function is a value of the graph, which is sent once and which workers get from each other. As one graph has
    both the shards and the sums, a result is added, and released, as soon as its neighbours are there. Keys of the
    function, the shards and each level of sums begin with names of their own: by them the scheduler sees that tasks of
    shards hang on one value only, and gives them to workers that are idle, not to the one that holds it.
    """
    token = uuid.uuid4().hex  # keys of a scheduler must not be used twice
    of_function, of_shards = f"valuefit-function-{token}", f"valuefit-shard-{token}"
    graph: dict[Any, Any] = {of_function: function}
    for number, shard in enumerate(shards):
        log: Any = (shard.read,)
        if isinstance(shard, FrameShard):
            log = (shard.rows.log, list(shard.keys))
            graph.update(shard.graph)
        graph[of_shards, number] = (_call, of_function, log, number)
    keys, level = [(of_shards, number) for number in range(len(shards))], 0
    while len(keys) > 1:
        groups = [keys[first : first + FAN_IN] for first in range(0, len(keys), FAN_IN)]
        level += 1
        keys = [(f"valuefit-sum{level}-{token}", number) for number in range(len(groups))]
        graph.update({key: (_add_all, group) for key, group in zip(keys, groups, strict=True)})
    return graph, keys[0]


def _call(function: Callable[..., tuple[Any, ...]], log: Transitions, number: int) -> tuple[Any, ...]:
    """On one thread: a worker runs as many tasks at a time as it has."""
    with one_thread():
        return function(log, number)


def _add_all(results: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    return reduce(add, results)


def add(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    """The sum of the entries."""
    return tuple(a + b for a, b in zip(one, other, strict=True))


def read_ahead(shards: Iterable[Shard]) -> Iterator[Transitions]:
    """The logs of shards in order; while one is used the next is read."""
    with ThreadPoolExecutor(1, thread_name_prefix="valuefit-read") as reader:
        following: Future[Transitions] | None = None
        for shard in shards:
            ready, following = following, reader.submit(shard.read)
            if ready is not None:
                yield ready.result()
                del ready  # before the next one arrives
        if following is not None:
            yield following.result()
