"""Sums over the shards of a log, read one after the other or on the workers of a cluster."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from valuefit.data.frames import FrameShard, layer, read_errors
from valuefit.data.joining import episode_blocks
from valuefit.data.shards import MIN_SHARD_STEPS, Shard
from valuefit.data.transitions import Transitions
from valuefit.data.validation import episode_starts
from valuefit.extras import need
from valuefit.memory import reuse_freed_memory
from valuefit.messages import said
from valuefit.problem.problem import Problem
from valuefit.rows.compile import MIN_COMPILED_NUMBERS
from valuefit.streaming.checkpoint import Checkpoint
from valuefit.threads import ONE_BLAS_THREAD, one_blas_thread, one_thread, thread_count

FAN_IN = 8  # results that are added in one task of a cluster
MAX_AT_ONCE = 4  # parts that are computed at a time
PART_COPIES = 6  # arrays of the size of its feature rows that a part needs

Place = tuple[int, int]  # of a part: the number of its shard, and its number in it


class Part(NamedTuple):
    """Some episodes of a log as a problem. first: the numbers of their first step and episode, where they are known."""

    problem: Problem
    log: Transitions
    place: Place
    first: tuple[int, int] = (0, 0)


Function = Callable[[Part], tuple[Any, ...]]


@dataclass(frozen=True, eq=False)
class Parts:
    """The shards of a log as problems of at most `steps` steps, or one episode.

    make: the problem of a part of the log. client: a `dask.distributed.Client` whose workers open the shards and
    compute; None for this process. Functions and what they hold are sent to the workers, data never are, so shards must
    be of files or of a Dask DataFrame. at_once: shards that this process sums at a time, each on one thread; one shard
    is summed on all threads. counts: steps and episodes of each shard, if it was read before. checkpoint: keeps sums.
    """

    shards: Iterable[Shard]
    make: Callable[[Transitions], Problem]
    steps: int
    client: Any = None
    at_once: int = 1
    counts: tuple[tuple[int, int], ...] = ()
    checkpoint: Checkpoint | None = None

    def sum(self, function: Function) -> tuple[Any, ...]:
        """The sums, over all parts, of the entries of what `function` returns; lists are concatenated in order."""

        def compute() -> tuple[Any, ...]:
            return sum_shards(self.shards, partial(self.of_shard, function=function), self.client, self.at_once)

        return compute() if self.checkpoint is None else self.checkpoint.sums(function, compute)

    def of_shard(self, log: Transitions, number: int, function: Function) -> tuple[Any, ...]:
        return reduce(add, map(function, self.parts_of(log, number)))

    def parts_of(self, log: Transitions, number: int) -> Iterator[Part]:
        """The parts of the shard of this number, whose log this is."""
        self._refuse_another(log, number)
        step, episode = self._firsts[number] if self.counts else (0, 0)
        for place, block in enumerate(episode_blocks(log, self.steps)):
            yield Part(self.make(block), block, (number, place), (step, episode))
            step, episode = step + len(block), episode + int(np.count_nonzero(episode_starts(block.episode)))

    @cached_property
    def _firsts(self) -> list[tuple[int, int]]:
        """The numbers of the first step and episode of each shard, if shards were read before."""
        steps, episodes = (list(accumulate(counts, initial=0)) for counts in zip(*self.counts, strict=True))
        return list(zip(steps, episodes, strict=True))

    def _refuse_another(self, log: Transitions, number: int) -> None:
        """Raise ValueError if the shard of this number had other steps when it was read before."""
        if self.counts and len(log) != self.counts[number][0]:
            raise ValueError(
                f"Shard {number} of the log had {self.counts[number][0]:,} steps in the first pass and now has "
                f"{len(log):,}. Save the log, so that it is the same whenever it is read."
            )

    def __getstate__(self) -> dict[str, Any]:
        """For workers: without the shards, the client and the checkpoint."""
        return {**vars(self), "shards": (), "client": None, "at_once": 1, "checkpoint": None}


def part_sizes(limit: int, columns: int) -> tuple[int, int]:
    """Steps of a part, and how many parts are computed at a time, if together they may take `limit` bytes.

    Each has moments of its own, and enough steps for compiled loops, also where a shard is divided into equal parts of
    half as many. At least two of few features: all threads on one part would wait for each other. A part has at least
    as many steps as features, or `MIN_SHARD_STEPS`: adding up the moments of smaller ones takes longer than forming
    them, and its rows are no larger than these matrices, which come on top of the limit.
    """
    numbers = max(2 * columns**2, 2 * PART_COPIES * MIN_COMPILED_NUMBERS)
    at_once = int(np.clip(limit / (8 * numbers), 2 if columns <= ONE_BLAS_THREAD else 1, MAX_AT_ONCE))
    return max(min(columns, MIN_SHARD_STEPS), int(limit / (8 * PART_COPIES * columns * at_once))), at_once


def sum_shards(
    shards: Iterable[Shard], function: Callable[[Transitions, int], tuple[Any, ...]], client: Any, at_once: int = 1
) -> tuple[Any, ...]:
    """The sums, over all shards, of the entries of what `function` returns for a log and the number of its shard.

    The order of summation is fixed, so that the same shards give the same bits. at_once: see `each_shard`.
    """
    if client is None:
        return reduce(add, each_shard(shards, function, at_once))
    distributed = need("distributed", "dask", "A Dask client")
    graph, key = _sum_graph(tuple(shards), function)
    try:
        sums: tuple[Any, ...] = client.get(layer(graph), key, retries=2)
    except (*read_errors(), distributed.KilledWorker, CancelledError) as error:
        raise ValueError(f"A part of the log could be computed on no worker: {said(error)}") from error
    return sums


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
        graph[of_shards, number] = (_on_worker, of_function, _log_of(shard, graph), number)
    keys, level = [(of_shards, number) for number in range(len(shards))], 0
    while len(keys) > 1:
        groups = [keys[first : first + FAN_IN] for first in range(0, len(keys), FAN_IN)]
        level += 1
        keys = [(f"valuefit-sum{level}-{token}", number) for number in range(len(groups))]
        graph.update({key: (_add_all, group) for key, group in zip(keys, groups, strict=True)})
    return graph, keys[0]


def _log_of(shard: Shard, graph: dict[Any, Any]) -> Any:
    """The task that reads a shard; tasks that it depends on are added to the graph."""
    if not isinstance(shard, FrameShard):
        return (shard.read,)
    graph.update(shard.graph)
    return (shard.rows.log, shard.key)


def _on_worker(function: Callable[..., Any], log: Transitions, place: Any) -> Any:
    reuse_freed_memory()
    return _call(function, log, place)


def _call(function: Callable[..., Any], log: Transitions, place: Any) -> Any:
    """On one thread: a worker runs as many tasks at a time as it has."""
    with one_thread():
        return function(log, place)


def _add_all(results: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    return reduce(add, results)


def add(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    """The sum of the entries."""
    return tuple(a + b for a, b in zip(one, other, strict=True))


def each_shard(shards: Iterable[Shard], function: Callable[[Transitions, int], Any], at_once: int) -> Iterator[Any]:
    """What `function` returns for the log of each shard and its number, in order.

    Up to `at_once` shards are read and computed at a time, each on one thread. If it is 1, one is computed on all
    threads while the next is read.
    """
    count = min(at_once, thread_count())
    if count == 1:
        yield from (function(log, number) for number, log in enumerate(read_ahead(shards)))
        return
    with one_blas_thread():  # here: OpenBLAS was three times slower where the threads themselves asked for it
        yield from _ahead((partial(_read_and_call, function, *pair) for pair in enumerate(shards)), count)


def _read_and_call(function: Callable[[Transitions, int], Any], number: int, shard: Shard) -> Any:
    return _call(function, shard.read(), number)


def read_ahead(shards: Iterable[Shard], count: int = 1) -> Iterator[Transitions]:
    """The logs of shards in order; while one is used the next `count` are read."""
    return _ahead((shard.read for shard in shards), count)


def _ahead(tasks: Iterable[Callable[[], Any]], count: int) -> Iterator[Any]:
    """The results of tasks in order; while one is used, threads work on the next `count`."""
    with ThreadPoolExecutor(count, thread_name_prefix="valuefit-read") as threads:
        pending: deque[Future[Any]] = deque()
        try:
            for task in tasks:
                pending.append(threads.submit(task))
                if len(pending) > count:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            threads.shutdown(cancel_futures=True)
