"""A log that is read in parts, whose shards are opened where they are: here, or on the workers of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from valuefit.data.transitions import Transitions
from valuefit.inference.clusters import Clusters
from valuefit.inference.errors import Errors
from valuefit.inference.inputs import MakePart
from valuefit.inference.sensitivity import CountedSteps
from valuefit.inference.shard_errors import ShardErrors
from valuefit.inference.shards import Function, Shard
from valuefit.problem.problem import Problem
from valuefit.streaming.parts import Part, Parts, part_sizes, sum_shards


@dataclass(frozen=True, eq=False)
class LogInParts:
    """The parts of a log as problems that `maker` makes; its clusters are its episodes, which are never cut.

    clusters: the number of episodes. limit: bytes that parts may take.
    """

    parts: Parts
    maker: MakePart
    clusters: int
    limit: int

    can_be_cut: ClassVar[bool] = False
    one_cluster: ClassVar[str] = (
        'A log of one episode that is read in parts gives no standard error. Load it with `memory="auto"` and a limit '
        "that it fits into."
    )

    def sum(self, several: Sequence[Errors], function: Function) -> tuple[Any, ...]:
        self._require_open()
        parts = self.parts
        if len(several) > 1:
            steps, at_once = part_sizes(self.limit, sum(errors.equations.problem.d for errors in several))
            parts = replace(self.parts, steps=steps, at_once=at_once)
        return parts.sum(partial(_on_part, several=tuple(several), function=function))

    def counted_steps(self) -> CountedSteps:
        """The distinct steps of a log of numbered states, in one pass."""
        self._require_open()
        counted: CountedSteps = sum_shards(self.parts.shards, _counted, self.parts.client, self.parts.at_once)[0]
        return counted

    def _require_open(self) -> None:
        """Raise ValueError if the parts can no longer be read."""
        client = self.parts.client
        if client is not None and client.status != "running":
            raise ValueError(
                "The Dask client that read the parts of this log is closed. Ask while it is open, or evaluate again "
                "with another one."
            )
        if self.parts.shards == ():
            raise ValueError("This evaluation was pickled, which left out its log in parts. Evaluate the log again.")

    def shard(self, problem: Problem, part: Part, dead: Any) -> Shard:
        """One part, whose rows are those of `problem`, but for features without data in the whole log."""
        return Shard(
            problem.without_columns(dead), part.log.episode, Clusters.of_shard(part.log.episode, part.first[1]),
            part.first[0], partial(self.maker.starts, part.log, problem.d),
        )  # fmt: skip


def _on_part(part: Part, *, several: Sequence[Errors], function: Function) -> tuple[Any, ...]:
    """What a function of the errors on one shard returns for a part."""
    joined, first = [], several[0].shards
    for errors in several:
        here = errors.shards
        assert isinstance(here, LogInParts)
        assert isinstance(first, LogInParts)
        problem = part.problem if here.maker is first.maker else here.maker(part.log)
        joined.append(ShardErrors(errors, here.shard(problem, part, errors.equations.problem.dead)))
    return function(*joined)


def _counted(log: Transitions, number: int) -> tuple[CountedSteps]:
    return (CountedSteps.of(log).merged(),)
