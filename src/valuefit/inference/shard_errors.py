"""What the clusters of one shard add to the errors of a log, by the jackknife (CR3) or to first order (CR1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sparse

from valuefit.inference.adjoints import Adjoint, Equations
from valuefit.inference.error_estimate import LinearFunction, count_factor, effective_count
from valuefit.inference.influence import Influences
from valuefit.inference.jackknife import Replicates, replicates
from valuefit.inference.occupancy import OccupancySums
from valuefit.inference.shards import Shard
from valuefit.typing import Array

MIN_UNDETERMINED = 0.05  # |cosine| of c with a direction that the other clusters do not determine, to rest on one


@dataclass(frozen=True)
class EpisodeSums:
    """What clusters add to the error of one number; the sums of shards are joined by +.

    By cluster, (clusters,): its part in the error, the expected square of the part, and its starts. sums: of squared TD
    errors, of squared deviations of the starts, of clusters without which the number is undetermined, (3,).
    """

    parts: Array
    squares: Array
    starts: Array
    sums: Array

    def __add__(self, other: EpisodeSums) -> EpisodeSums:
        return EpisodeSums(
            np.concatenate([self.parts, other.parts]), np.concatenate([self.squares, other.squares]),
            np.concatenate([self.starts, other.starts]), self.sums + other.sums,
        )  # fmt: skip

    def expected(self, equations: Equations, function: LinearFunction) -> Array:
        """The expected squares of the parts of all clusters of the log, up to a common factor."""
        square, deviation, _ = self.sums.tolist()
        expected = self.squares if equations.w.any() else self.squares * (square / equations.problem.n)
        return expected + self.starts * (deviation / function.starts) if self.starts.any() else expected


class NumberInfluence(NamedTuple):
    """Influences on one number: of each step, (n,), without the starts, with its square if TD errors were equal.

    deviations: of the values at the starts of this shard, at the steps `first`, over the number of starts of the log.
    """

    steps: Array
    squares: Array
    first: Array
    deviations: Array

    @property
    def total(self) -> Array:
        """The influence of each step, with the starts, (n,)."""
        total = self.steps.copy()
        total[self.first] += self.deviations
        return total


class ShardErrors:
    """The errors of a log on one of its shards; what is computed once is kept."""

    def __init__(self, errors: Any, shard: Shard) -> None:
        self.errors, self.shard, self.clusters = errors, shard, shard.clusters
        self.influences = Influences(errors.equations, shard)

    @cached_property
    def replicates(self) -> Replicates:
        """The weights without each cluster."""
        inside = self.influences
        return replicates(inside.equations, inside.problem, self.clusters, inside.td_errors)

    @property
    def changes(self) -> Array:
        """The part of each cluster in theta, (clusters, d): the norm of products with c is a standard error."""
        return count_factor(self.errors.kind, self.errors.shards.clusters) * self.unscaled_changes

    @property
    def unscaled_changes(self) -> Array:
        """`changes` without the factor of the number of clusters of the log."""
        if self.errors.kind == "cr3":
            return -self.replicates.theta
        return self.influences.changes(np.ones(len(self.clusters.of_step)))

    def adjoint(self, c: Array) -> Adjoint:
        """The adjoint of a vector that the data determine."""
        adjoint = self.errors.equations.solver.adjoint(c)
        assert isinstance(adjoint, Adjoint)
        return adjoint

    def influence(self, own: LinearFunction) -> NumberInfluence:
        """The influences on a number with the starts of this shard."""
        return self._influences([own])[0]

    def _influences(self, functions: Sequence[LinearFunction]) -> list[NumberInfluence]:
        steps, squares = self.influences.of_steps([self.adjoint(own.c) for own in functions])
        starts = [
            (np.zeros(0, np.int64), np.zeros(0)) if own.first is None
            else (own.first, self.influences.start_deviations(own))
            for own in functions
        ]  # fmt: skip
        return [NumberInfluence(*one, *own) for *one, own in zip(steps, squares, starts, strict=True)]

    def episode_sums(self, functions: Sequence[LinearFunction]) -> tuple[EpisodeSums, ...]:
        """The sums of each number; the rows are read once for all of them."""
        own = [self.shard.own(function) for function in functions]
        return tuple(
            self._episode_sums(influence, self.parts(function, influence), self._undetermined_without_one(function))
            for function, influence in zip(own, self._influences(own), strict=True)
        )

    def _episode_sums(self, influence: NumberInfluence, parts: Array, undetermined: bool) -> EpisodeSums:
        delta, deviations = self.influences.td_errors, influence.deviations
        return EpisodeSums(
            parts, self.clusters.sums(influence.squares), self._starts(influence.first),
            np.array([delta @ delta, deviations @ deviations, undetermined]),
        )  # fmt: skip

    def effective_clusters(self, function: LinearFunction) -> float:
        """The number of equally important clusters of a log in memory; infinite where the number is undetermined."""
        equations = self.errors.equations
        if not isinstance(equations.solver.adjoint(function.c), Adjoint):
            return np.inf
        sums = self._episode_sums(self.influence(function), np.zeros(0), undetermined=False)
        return effective_count(sums.expected(equations, function))

    def parts(self, own: LinearFunction, influence: NumberInfluence | None = None) -> Array:
        """The part of each cluster in the error of a number, but for the factor of their number, (clusters,).

        own: with the starts of this shard. influence: `influence` of it, if it is known.
        """
        if self.errors.kind == "cr3":
            return -self._without_each(own)
        return self.clusters.sums((influence or self.influence(own)).total)

    def _starts(self, first: Array) -> Array:
        """The number of starts in each cluster."""
        return np.bincount(self.clusters.of_step[first], minlength=self.clusters.count).astype(float)

    def weight_sums(self) -> Array:
        """Sums over clusters, (weights, 3), for each weight that the data determine, 0 for others.

        Of squared parts in its error, of their expected squares if steps were independent, of the squares of these.
        """
        adjoints = self.errors.weight_adjoints
        sums = np.zeros((len(adjoints), 3))
        place = [column for column, one in enumerate(adjoints) if isinstance(one, Adjoint)]
        if place:
            expected = self.influences.expected_sums([one for one in adjoints if isinstance(one, Adjoint)])
            changes = self.unscaled_changes[:, place].T
            sums[place] = [(part @ part, one.sum(), one @ one) for part, one in zip(changes, expected, strict=True)]
        return sums

    def occupancy_sums(self, c: Array) -> Array:
        """`OccupancySums` of the weights of the steps in c'theta, (3,)."""
        return np.array(OccupancySums.of(self.influences.occupancy(self.adjoint(c))))

    # ---- the jackknife ------------------------------------------------------------------------------------

    def _without_each(self, own: LinearFunction) -> Array:
        """v_g - v of each cluster."""
        change, theta = self.replicates.theta @ own.c, self.errors.equations.theta
        if own.first is None:
            return change
        values = np.asarray(own.rows @ theta).ravel()
        mean = values.mean() if own.total is None else float(own.c @ theta)
        owner, starts = self.clusters.of_step[own.first], own.starts
        moved = row_products(own.rows, self.replicates.theta[owner])
        removed = np.bincount(owner, weights=values + moved, minlength=len(change))
        left = starts - self._starts(own.first)
        with np.errstate(divide="ignore", invalid="ignore"):
            without = (starts * (mean + change) - removed) / left
        return np.where(left > 0, without - mean, change)

    def _undetermined_without_one(self, own: LinearFunction) -> bool:
        """Whether the other clusters do not determine the number."""
        if self.errors.kind == "cr1":
            return False
        for cluster, directions in self.replicates.undetermined.items():
            c = own.c
            if own.first is not None:
                gone = self.clusters.of_step[own.first] == cluster
                left = own.starts - int(gone.sum())
                c = (own.starts * c - np.asarray(own.rows[gone].sum(axis=0)).ravel()) / left if left else c
            if _along(c[None], directions)[0]:
                return True
        return False

    def rests_on_one(self, rows: Array) -> Array:
        """Whether the product of theta with each row, (m,), is undetermined without one of the clusters."""
        alone = np.zeros(len(rows), bool)
        if self.errors.kind == "cr3":
            for directions in self.replicates.undetermined.values():
                alone |= _along(rows, directions)
        return alone


def _along(rows: Array, directions: Array) -> Array:
    """Whether rows, (m, d), have a component along one of these directions, (d, count)."""
    sizes = np.linalg.norm(rows, axis=1)[:, None] * np.linalg.norm(directions, axis=0)
    return np.asarray((np.abs(rows @ directions) > MIN_UNDETERMINED * sizes).any(axis=1))


def row_products(rows: Any, others: Array) -> Array:
    """The product of each row with the same row of `others`."""
    if sparse.issparse(rows):
        return np.asarray(rows.multiply(others).sum(axis=1)).ravel()
    return np.einsum("ij,ij->i", np.asarray(rows), others)
