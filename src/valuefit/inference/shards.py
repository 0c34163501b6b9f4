"""The steps that errors are computed from: a log in memory is one shard, a log that is read in parts has many.

Formulas take the number of steps, the moments, the ridge and the weights of the log from its `Equations`; a shard has
rows, rewards and clusters of its own, and sums over shards add up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

from valuefit.inference.clusters import MIN_BLOCK_STEPS, Clusters
from valuefit.inference.error_estimate import LinearFunction
from valuefit.inference.sensitivity import CountedSteps
from valuefit.problem.problem import Problem
from valuefit.typing import Array

Function = Callable[..., tuple[Any, ...]]  # of `ShardErrors` of one shard, for each of several evaluations of a log


@dataclass(frozen=True, eq=False)
class Shard:
    """Steps of some whole episodes, with their clusters.

    problem: their rows, rewards and ratios. episode: of each step, (n,). first_step: the number of the first one in the
    log. starts: returns the feature rows of the first observations of the episodes and the steps that these belong to.
    products: Psi g_w of the last columns g_w that were asked for, which evaluations at several weights share.
    """

    problem: Problem
    episode: Array
    clusters: Clusters
    first_step: int = 0
    starts: Callable[[], tuple[Any, Array]] | None = None
    products: dict[bytes, Array] = field(default_factory=dict)

    @classmethod
    def of_log(cls, problem: Problem, episode: Array, group: Array | None = None) -> Shard:
        """A log in memory, with clusters by `Clusters.of_log`."""
        return cls(problem, episode, Clusters.of_log(episode, group))

    def with_clusters(self, clusters: Clusters) -> Shard:
        """Return a shard of these steps in other clusters."""
        return replace(self, clusters=clusters)

    def of_problem(self, problem: Problem) -> Shard:
        """Return a shard of these steps and clusters with the rows or the trace of another problem."""
        return Shard(problem, self.episode, self.clusters)

    def own(self, function: LinearFunction) -> LinearFunction:
        """A number of the log with the starts of this shard, if it is the mean over starts that come with shards."""
        if function.total is None:
            return function
        assert self.starts is not None
        rows, first = self.starts()
        return function._replace(rows=rows, first=first)


class Shards(Protocol):
    """The shards of a log, wherever they are. clusters: how many there are in all.

    can_be_cut: whether clusters can be cut into blocks; where not, steps of two evaluations cannot be compared either.
    """

    @property
    def clusters(self) -> int: ...
    @property
    def can_be_cut(self) -> bool: ...

    @property
    def one_cluster(self) -> str:
        """Why a log of a single cluster has no standard error, and what to do."""

    def counted_steps(self) -> CountedSteps | None:
        """The distinct steps of a log of numbered states, where the log that is in memory is a sample of it."""

    def sum(self, several: Sequence[Any], function: Function) -> tuple[Any, ...]:
        """The sums of the entries of what `function` returns, over all shards of the log of the first evaluation."""


@dataclass(frozen=True, eq=False)
class LogInMemory:
    """A log in memory: one shard."""

    shard: Shard

    can_be_cut: ClassVar[bool] = True

    @property
    def clusters(self) -> int:
        return self.shard.clusters.count

    @property
    def one_cluster(self) -> str:
        return (
            f"One episode of {len(self.shard.episode)} steps is too short to cut into blocks: "
            f"at least {MIN_BLOCK_STEPS} steps, or a second episode, are needed."
        )

    def counted_steps(self) -> CountedSteps | None:
        return None

    def sum(self, several: Sequence[Any], function: Function) -> tuple[Any, ...]:
        return function(*(errors.whole for errors in several))
