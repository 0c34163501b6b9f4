"""Errors of the reported numbers: CR3, or CR1 where CR3 is too expensive, from sums over the shards of a log.

CR3 is the delete-one-episode jackknife: v_g is the number without episode g, its weights and its starts, and the
variance is (G-1)/G times the sum of (v_g - v)^2. Student's t has the effective number of episodes minus one as degrees
of freedom: episodes of unequal weight give a less precise standard error than their number suggests. The weights
without an episode need the moments of the log and the steps of that episode alone, so every error is a sum over shards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from valuefit.inference.adjoints import Adjoint, Equations
from valuefit.inference.bands import Band, BandRows, BandSums, band_of, band_sums
from valuefit.inference.clusters import MIN_EFFECTIVE_CLUSTERS, suitable
from valuefit.inference.error_estimate import (
    ErrorEstimate,
    Kind,
    LinearFunction,
    bias_of,
    count_factor,
    effective_count,
    error_of_parts,
)
from valuefit.inference.occupancy import OccupancySums
from valuefit.inference.shard_errors import EpisodeSums, ShardErrors
from valuefit.inference.shards import LogInMemory, Shard, Shards
from valuefit.inference.unseen import UnseenPairs
from valuefit.memory import memory_limit
from valuefit.typing import Array

MAX_LISTED_WEIGHTS = 20  # with more features, single weights are not reported
SAME_LOG_TOL = 1e-6  # relative, of the equations of an evaluation on a log: parts are summed in another order
DOMINATED = (
    "The episodes of this log count as fewer than 2 equal ones: one dominates, and a log that is read in parts is not "
    'cut within episodes. Load it with `memory="auto"` and a limit that it fits into; the policy value has an interval.'
)


@dataclass(frozen=True, eq=False)
class Errors:
    """Errors of linear functions of theta over the clusters of a log.

    equations: of the log, at the reported weights. shards: its steps and clusters. kind: "cr3" or "cr1". refused: what
    was asked for where that is not `kind`, else None. value: the policy value. unseen: pairs of states and actions
    without data. mean: the mean feature row of the steps, (d,), of a log whose clusters were not chosen, else None.
    """

    equations: Equations
    shards: Shards
    kind: Kind = "cr3"
    refused: Kind | None = None
    value: LinearFunction | None = None
    unseen: UnseenPairs | None = None
    mean: Array | None = None

    @classmethod
    def in_memory(cls, equations: Equations, shard: Shard, kind: Kind = "cr3") -> Errors:
        """Errors of a log in memory; by "cr1" where adjoints are iterated, or weights without clusters do not fit."""
        size = 8 * shard.clusters.count * equations.problem.d
        feasible = not equations.iterative and 8 * size <= memory_limit()
        used: Kind = kind if feasible else "cr1"
        return cls(equations, LogInMemory(shard), used, None if used == kind else kind)

    @cached_property
    def whole(self) -> ShardErrors:
        """The errors on the only shard of a log in memory."""
        assert isinstance(self.shards, LogInMemory)
        return ShardErrors(self, self.shards.shard)

    @property
    def has_row_intervals(self) -> bool:
        """Whether there are two clusters, and equations that are solved directly."""
        return self.shards.clusters >= 2 and not self.equations.iterative

    @property
    def weight_adjoints(self) -> list[Adjoint | ErrorEstimate]:
        """The adjoint of each weight, or why it has none; empty where weights are not listed."""
        d = self.equations.problem.d
        return [self.equations.solver.adjoint(row) for row in np.eye(d)] if d <= MAX_LISTED_WEIGHTS else []

    # ---- numbers ------------------------------------------------------------------------------------------

    def sum(self, function: Callable[[ShardErrors], tuple[Any, ...]]) -> tuple[Any, ...]:
        """The sums over all shards of the entries of what `function` returns."""
        return sum_of_several([self], function)

    def error(self, function: LinearFunction) -> ErrorEstimate:
        """The errors of one number."""
        return self.errors([function])[0]

    def errors(self, functions: Sequence[LinearFunction]) -> list[ErrorEstimate]:
        """The errors of each number, in one pass; an estimate without standard error where they are unknown."""
        if self.shards.clusters < 2:
            return [ErrorEstimate(None, reason=self.shards.one_cluster) for _ in functions]
        adjoints = [self.equations.solver.adjoint(function.c) for function in functions]
        pairs = list(zip(functions, adjoints, strict=True))
        known = [function for function, adjoint in pairs if isinstance(adjoint, Adjoint)]
        sums = iter(self.sum(partial(ShardErrors.episode_sums, functions=known)) if known else ())
        return [
            self._estimate(function, adjoint, next(sums)) if isinstance(adjoint, Adjoint) else adjoint
            for function, adjoint in pairs
        ]

    def of_value(self) -> tuple[ErrorEstimate, list[ErrorEstimate], OccupancySums | None]:
        """The errors of the policy value and of each listed weight, and the sums of the occupancy weights, in one pass.

        Weights are left out where the data do not determine the policy value, or the log is one episode.
        """
        assert self.value is not None
        adjoint = self.equations.solver.adjoint(self.value.c)
        if isinstance(adjoint, ErrorEstimate):
            return adjoint, [], None
        sums, weights, occupancy = self.sum(partial(_value_sums, value=self.value))
        if self.shards.clusters < 2:
            return ErrorEstimate(None, reason=self.shards.one_cluster), [], OccupancySums(*occupancy.tolist())
        error = self._estimate(self.value, adjoint, sums)
        return error, self._weight_errors(weights), OccupancySums(*occupancy.tolist())

    def of_weights(self) -> list[ErrorEstimate]:
        """The errors of each listed weight, without what the policy value needs besides intervals."""
        if self.shards.clusters < 2:
            return [ErrorEstimate(None, reason=self.shards.one_cluster) for _ in self.weight_adjoints]
        return self._weight_errors(self.sum(lambda one: (one.weight_sums(),))[0])

    def parts(self, functions: Sequence[LinearFunction]) -> list[Array | None]:
        """The part of each cluster of a log in memory in the error of each number, (clusters,); None where unknown.

        The norm of this vector is the standard error.
        """
        if self.shards.clusters < 2:
            return [None] * len(functions)
        known = [isinstance(self.equations.solver.adjoint(function.c), Adjoint) for function in functions]
        factor = count_factor(self.kind, self.shards.clusters)
        return [
            factor * self.whole.parts(function) if is_known else None
            for function, is_known in zip(functions, known, strict=True)
        ]

    def _estimate(self, function: LinearFunction, adjoint: Adjoint, sums: EpisodeSums) -> ErrorEstimate:
        effective = effective_count(sums.expected(self.equations, function))
        parts = count_factor(self.kind, len(sums.parts)) * sums.parts
        return error_of_parts(
            parts, effective, abs(self.equations.excess(adjoint)), undetermined=bool(sums.sums[2] > 0)
        )

    def _weight_errors(self, sums: Array) -> list[ErrorEstimate]:
        """From `ShardErrors.weight_sums`."""
        count, estimates = self.shards.clusters, []
        for adjoint, (parts, expected, squares) in zip(self.weight_adjoints, sums.tolist(), strict=True):
            if isinstance(adjoint, ErrorEstimate):
                estimates.append(adjoint)
                continue
            effective = expected**2 / squares if squares > 0 else float(count)
            size, solver_error = count_factor(self.kind, count) * parts**0.5, abs(self.equations.excess(adjoint))
            estimates.append(ErrorEstimate(size, effective, solver_error=solver_error))
        return estimates

    # ---- many numbers at once -----------------------------------------------------------------------------

    def band(self, rows: Array, *, level: float, simultaneous: bool = False) -> Band:
        """Intervals of the products of theta with rows (m, d), in one pass; `has_row_intervals` must be true.

        Its sums take O(m + d) numbers, whatever the log.
        """
        asked = BandRows.of(rows, self.equations.theta, self.shards.clusters)
        adjoint = None if self.mean is None else self.equations.solver.adjoint(self.mean)
        checked = adjoint if isinstance(adjoint, Adjoint) else None
        task = partial(_band_sums, asked=asked, simultaneous=simultaneous, checked=checked, mean=self.mean)
        *sums, expected, squares = self.sum(task)
        if expected**2 < MIN_EFFECTIVE_CLUSTERS * squares:
            raise ValueError(DOMINATED)
        return band_of(asked, BandSums(*sums), self.equations, self.kind, level=level, simultaneous=simultaneous)


def sum_of_several(several: Sequence[Errors], function: Callable[..., tuple[Any, ...]]) -> tuple[Any, ...]:
    """The sums over the shards of a log of what `function` returns for several evaluations of it."""
    for errors in several:  # computed here, and sent to where the shards are
        assert errors.kind == "cr1" or errors.equations.basis is not None
    return several[0].shards.sum(several, function)


def _value_sums(one: ShardErrors, *, value: LinearFunction) -> tuple[Any, ...]:
    return *one.episode_sums([value]), one.weight_sums(), one.occupancy_sums(value.c)


def _band_sums(
    one: ShardErrors, *, asked: BandRows, simultaneous: bool, checked: Adjoint | None, mean: Array | None
) -> tuple[Any, ...]:
    """The sums of the band, and of what each cluster is expected to add to the mean value over the log and its square.

    The number of effective episodes of that mean decides, as in memory, whether episodes can be the clusters.
    """
    expected: Array = np.ones(0)
    if checked is not None and mean is not None:
        size = float(np.abs(mean) @ np.abs(one.errors.equations.theta)) or 1.0  # else squares could underflow
        expected = one.influences.expected_sums([Adjoint(checked.theta / size, checked.w / size)])[0]
    sums = band_sums(asked, one, simultaneous=simultaneous)
    return *sums, float(expected.sum()), float(expected @ expected)


# ---- several evaluations of one log --------------------------------------------------------------------------------


def over_suitable_clusters(several: Sequence[Errors], functions: Sequence[LinearFunction]) -> list[Errors]:
    """Evaluations of a log in memory over clusters that suit their numbers: one number, or differences of several."""
    if several[0].shards.clusters < 2:
        return list(several)
    joined = [errors.whole for errors in several]
    shard = joined[0].shard
    if len(several) == 1:
        effective = several[0].whole.effective_clusters(functions[0])
    else:
        steps = [one.influence(function).total for one, function in zip(joined, functions, strict=True)]
        effective = min(effective_count(shard.clusters.sums((x - y) ** 2)) for x, y in combinations(steps, 2))
    values = (one.influences.values[one.influences.problem.now] for one in joined)
    clusters = suitable(shard.clusters, shard.episode, effective, values)
    if clusters is shard.clusters:
        return list(several)
    return [
        Errors.in_memory(errors.equations, one.shard.with_clusters(clusters), errors.refused or errors.kind)
        for errors, one in zip(several, joined, strict=True)
    ]


class Paired(NamedTuple):
    """Errors of the differences of all pairs of values: standard errors, effective clusters, biases, (pairs,).

    correlation: of the differences, (pairs, pairs). kind: the method of the standard errors; by "cr1" biases are 0.
    """

    standard_errors: Array
    effective_clusters: Array
    biases: Array
    correlation: Array
    kind: Kind


def paired(several: Sequence[Errors], functions: Sequence[LinearFunction], size: float) -> Paired:
    """The errors of the differences of policy values of one log, paired by cluster, in one pass.

    size: of the standard errors of the values, to which sums are scaled. Raises ValueError if the equations of another
    evaluation do not hold on a log whose steps cannot be compared.
    """
    first, kind, size = several[0], several[0].kind, size or 1.0
    can_be_cut = first.shards.can_be_cut
    task = partial(_differences, functions=functions, size=size, equations=not can_be_cut)
    products, totals, expected, squares, *equations = sum_of_several(several, task)
    for errors, function, sums in zip(several, functions, equations, strict=False):
        _require_same_log(errors.equations, function, sums)
    count = first.shards.clusters
    with np.errstate(invalid="ignore"):
        effective = np.where(squares > 0, expected**2 / squares, count)
    if not can_be_cut and effective.min() < MIN_EFFECTIVE_CLUSTERS:
        raise ValueError(DOMINATED)
    root = np.sqrt(np.diag(products))
    scale = np.where(root > 0, root, 1.0)
    factor = size * count_factor(kind, count)
    return Paired(factor * root, effective, bias_of(factor * totals, count), products / np.outer(scale, scale), kind)


def _differences(
    *several: ShardErrors, functions: Sequence[LinearFunction], size: float, equations: bool
) -> tuple[Any, ...]:
    """Products of the parts of pairs, the parts, their expected squares and the squares of these, over clusters.

    Then, if `equations`, for each evaluation, the share of these steps in its equations and in the mean row of its
    starts.
    """
    own = [one.shard.own(function) for one, function in zip(several, functions, strict=True)]
    influences = [one.influence(function) for one, function in zip(several, own, strict=True)]
    steps = [influence.total / size for influence in influences]
    parts = [one.parts(function, known) / size for one, function, known in zip(several, own, influences, strict=True)]
    pairs, clusters = list(combinations(range(len(several)), 2)), several[0].clusters
    apart = np.array([parts[i] - parts[j] for i, j in pairs])
    expected = np.array([clusters.sums((steps[i] - steps[j]) ** 2) for i, j in pairs])
    sums = apart @ apart.T, apart.sum(axis=1), expected.sum(axis=1), (expected**2).sum(axis=1)
    return *sums, *(
        [_equations(one, function) for one, function in zip(several, own, strict=True)] if equations else []
    )


def _equations(one: ShardErrors, own: LinearFunction) -> Array:
    """The share of a shard in A theta - b + C w, and in the mean row of the starts, (2, k)."""
    problem, theta, w = one.influences.problem, one.errors.equations.theta, one.errors.equations.w
    below = problem.B(theta, w)[1] if w.any() else -problem.residual(theta)
    below = below * (problem.n / one.influences.n)
    starts = 0 * below if own.first is None else np.asarray(own.rows.sum(axis=0)).ravel() / own.starts
    return np.array([below, starts])


def _require_same_log(equations: Equations, function: LinearFunction, sums: Array) -> None:
    """The residual of the equations on the log, and the mean row of its starts, must be those of the evaluation."""
    residual = sums[0] - equations.residual[1]
    same = np.linalg.norm(residual) <= SAME_LOG_TOL * np.linalg.norm(equations.problem.b)
    if function.total is not None:
        same &= np.linalg.norm(sums[1] - function.c) <= SAME_LOG_TOL * np.linalg.norm(function.c)
    if not same:
        raise ValueError(
            "The evaluations have different logs, so their difference would not be that of the policies. Evaluate both "
            "on the same log, with the same clusters, starts and discount."
        )
