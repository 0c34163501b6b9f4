"""Sums over the shards of a log, read one after the other or on the workers of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

from valuefit.data.shards import Shard, episode_blocks
from valuefit.data.transitions import Transitions
from valuefit.problem.problem import Problem

FAN_IN = 8  # results that are added in one task of a cluster


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
        """The sums, over all parts, of the entries of what `function` returns; lists are concatenated in order.

        The order of summation is fixed, so that the same shards give the same bits.
        """
        if self.client is None:
            logs = enumerate(read_ahead(self.shards))
            return reduce(add, (self._of_shard(log, number, function) for number, log in logs))
        tasks = [_Task(shard, number, self, function) for number, shard in enumerate(self.shards)]
        level = self.client.map(_run, tasks, pure=False, retries=2)
        while len(level) > 1:
            groups = [level[start : start + FAN_IN] for start in range(0, len(level), FAN_IN)]
            level = [self.client.submit(_add_all, group, pure=False, retries=2) for group in groups]
        found: tuple[Any, ...] = level[0].result()
        return found

    def _of_shard(self, log: Transitions, number: int, function: Function) -> tuple[Any, ...]:
        blocks = enumerate(episode_blocks(log, self.steps))
        return reduce(add, (function(Part(self.make(block), block, (number, place))) for place, block in blocks))

    def __getstate__(self) -> dict[str, Any]:
        """For workers: without the shards and the client."""
        return {"shards": (), "make": self.make, "steps": self.steps, "client": None}


@dataclass(frozen=True)
class _Task:
    shard: Shard
    number: int
    parts: Parts
    function: Function


def _run(task: _Task) -> tuple[Any, ...]:
    return task.parts._of_shard(task.shard.read(), task.number, task.function)


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
