"""Errors of a log in shards: sums over its episodes, in one pass for the policy value and for each further question.

The jackknife without an episode needs the moments of the log and the steps of that episode alone. Intervals of values
and differences of policy values need nothing of the size of the number of episodes: what they are computed from is
summed over the episodes of each part.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from valuefit.data.transitions import Transitions
from valuefit.inference.bands import Band, BandRows, BandSums, band_of, band_sums
from valuefit.inference.clusters import ClusterSums
from valuefit.inference.errors import ErrorEstimate, Influence, LinearFunction
from valuefit.inference.inputs import MakePart
from valuefit.inference.jackknife_basis import Basis, InverseBasis
from valuefit.inference.occupancy import OccupancySums, weights_of_adjoint
from valuefit.inference.policy_value import MAX_LISTED_WEIGHTS
from valuefit.inference.sandwich import AdjointMethod, Sandwich
from valuefit.inference.sensitivity import CountedSteps
from valuefit.inference.uncertainty import (
    MIN_EFFECTIVE_CLUSTERS,
    Kind,
    Uncertainty,
    basis_of,
    bias_of,
    count_factor,
    error_of_parts,
)
from valuefit.inference.unseen import UnseenPairs
from valuefit.problem.problem import Problem
from valuefit.problem.saddle_point import SaddlePoint
from valuefit.streaming.parts import Part, Parts, add, part_sizes, sum_shards
from valuefit.typing import Array

SAME_LOG_TOL = 1e-6  # relative, of the equations of an evaluation on a log: parts are summed in another order
ONE_EPISODE = (
    'A log of one episode that is read in parts gives no standard error. Load it with `memory="auto"` and a limit that '
    "it fits into."
)
DOMINATED = (
    "The episodes of this log count as fewer than 2 equal ones: one dominates, and a log that is read in parts is not "
    'cut within episodes. Load it with `memory="auto"` and a limit that it fits into; the policy value has an interval.'
)


@dataclass(frozen=True, eq=False)
class StreamedErrors:
    """Errors of linear functions of theta over the episodes of a log in shards.

    parts: of the log, as problems that `maker` makes. sandwich: of the moments; clusters come with the parts. function:
    the mean value over the starts. mean: the mean feature row of the steps, (d,). counts: steps and episodes of each
    shard, (shards, 2). limit: bytes that parts may take. unseen: pairs of states and actions without data.
    """

    parts: Parts
    maker: MakePart
    sandwich: Sandwich
    function: LinearFunction
    kind: Kind
    mean: Array
    counts: Array
    limit: int
    unseen: UnseenPairs | None = None

    @property
    def episodes(self) -> int:
        return int(self.counts[:, 1].sum())

    @property
    def has_row_intervals(self) -> bool:
        """Whether `band` has two episodes, and equations that are solved directly."""
        return self.episodes >= 2 and self.sandwich.method is not AdjointMethod.ITERATIVE

    @property
    def adjoint(self) -> tuple[Array, Array] | ErrorEstimate:
        """Adjoint of the policy value."""
        return self.sandwich._adjoint(self.function.c)

    @cached_property
    def basis(self) -> Basis | InverseBasis | None:
        """The coordinates of the jackknife, None for another kind."""
        return basis_of(self.sandwich) if self.kind == "cr3" else None

    def of_part(self, problem: Problem, log: Transitions) -> tuple[Uncertainty, LinearFunction]:
        """The errors of some episodes, whose sums are their share, and the policy value with their starts."""
        own = self.sandwich.of_part(_with_moments_of(problem, self.sandwich.problem), log.episode)
        uncertain = Uncertainty(own, self.kind, basis=self.basis)
        if self.function.total is None:
            return uncertain, self.function
        rows, first = self.maker.starts(log, problem.d)
        return uncertain, self.function._replace(rows=rows, first=first)

    @property
    def weight_adjoints(self) -> list[tuple[Array, Array] | ErrorEstimate]:
        """Adjoint of each weight; none where weights are not listed."""
        d = self.sandwich.problem.d
        return [self.sandwich._adjoint(row) for row in np.eye(d)] if d <= MAX_LISTED_WEIGHTS else []

    def of_evaluation(self, parts: Parts) -> tuple[ErrorEstimate, list[ErrorEstimate], OccupancySums | None]:
        """The errors of the policy value and of each listed weight, and the sums of the occupancy weights.

        parts: those of the log, whose sums may be kept. Weights are left out where the data do not determine the policy
        value, or the log is one episode.
        """
        adjoint, weights = self.adjoint, self.weight_adjoints
        if isinstance(adjoint, ErrorEstimate):
            return adjoint, [], None
        assert self.basis is not None or self.kind == "cr1"  # computed here, and sent to the workers
        found: EpisodeSums = parts.sum(partial(_of_episodes, errors=self))[0]
        if len(found.parts) < 2:
            return ErrorEstimate(None, reason=ONE_EPISODE), [], OccupancySums(*found.occupancy.tolist())
        of_weights = [
            one if isinstance(one, ErrorEstimate) else self._of_weight(one, sums, len(found.parts))
            for one, sums in zip(weights, found.weights, strict=True)
        ]
        return self._of_value(adjoint, found), of_weights, OccupancySums(*found.occupancy.tolist())

    def _of_value(self, adjoint: tuple[Array, Array], found: EpisodeSums) -> ErrorEstimate:
        solver_error, n = self.sandwich._solver_error(adjoint), self.sandwich.problem.n
        contributions = count_factor(self.kind, len(found.parts)) * found.parts
        expected = found.squares * (1.0 if self.sandwich.w.any() else found.sums[0] / n)
        expected = expected + found.starts * found.sums[1] / self.function.starts
        effective = Influence(found.parts, expected, solver_error).effective_clusters
        return error_of_parts(contributions, effective, solver_error, undetermined=bool(found.sums[2] > 0))

    def _of_weight(self, adjoint: tuple[Array, Array], sums: Array, count: int) -> ErrorEstimate:
        parts, expected, squares = map(float, sums)
        effective = expected**2 / squares if squares > 0 else float(count)
        size = count_factor(self.kind, count) * parts**0.5
        return ErrorEstimate(size, effective, solver_error=self.sandwich._solver_error(adjoint))

    def band(self, rows: Array, *, level: float, simultaneous: bool) -> Band:
        """`row_intervals` of rows (m, d), in one pass; its sums take O(m + d) numbers, whatever the log."""
        asked = BandRows.of(rows, self.sandwich.theta, self.episodes)
        firsts = np.cumsum(np.vstack([np.zeros((1, 2), int), self.counts[:-1]]), axis=0)
        assert self.basis is not None or self.kind == "cr1"
        task = partial(_band_of_shard, errors=self, firsts=firsts, asked=asked, simultaneous=simultaneous)
        *sums, expected, squares = sum_shards(self.open_parts.shards, task, self.parts.client, self.parts.at_once)
        if expected**2 < MIN_EFFECTIVE_CLUSTERS * squares:
            raise ValueError(DOMINATED)
        return band_of(asked, BandSums(*sums), self.sandwich, self.kind, level=level, simultaneous=simultaneous)

    def counted_steps(self) -> CountedSteps:
        """The distinct steps of a log of numbered states, in one pass."""
        found: CountedSteps = sum_shards(self.open_parts.shards, _counted, self.parts.client, self.parts.at_once)[0]
        return found

    @property
    def open_parts(self) -> Parts:
        """The parts, if they can still be read."""
        client = self.parts.client
        if client is not None and client.status != "running":
            raise ValueError(
                "The Dask client that read the parts of this log is closed. Ask while it is open, or evaluate again "
                "with another one."
            )
        if self.parts.shards == ():
            raise ValueError("This evaluation was pickled, which left out its log in parts. Evaluate the log again.")
        return self.parts


@dataclass(frozen=True)
class EpisodeSums:
    """By episode, (episodes,): its part in the error, the squares that count it, and its starts; and sums.

    sums: of squared TD errors, of squared deviations of the starts, of undetermined episodes. weights: of squared parts
    in the error of each listed weight, of their expected squares, and of the squares of these, (weights, 3).
    occupancy: those of `OccupancySums`, (3,).
    """

    parts: Array
    squares: Array
    starts: Array
    sums: Array
    weights: Array
    occupancy: Array

    def __add__(self, other: EpisodeSums) -> EpisodeSums:
        return EpisodeSums(
            np.concatenate([self.parts, other.parts]), np.concatenate([self.squares, other.squares]),
            np.concatenate([self.starts, other.starts]), self.sums + other.sums, self.weights + other.weights,
            self.occupancy + other.occupancy,
        )  # fmt: skip


class _Influences(NamedTuple):
    """Influences of some episodes on the policy value: by step, (n,), with what counts them, and by episode.

    deviations: of the values at their starts, over the number of all. alone: whether one of them determines the value.
    """

    steps: Array
    squares: Array
    parts: Array
    deviations: Array
    alone: bool


def _influences(errors: StreamedErrors, uncertain: Uncertainty, function: LinearFunction) -> _Influences:
    own, adjoint = uncertain.sandwich, errors.adjoint
    assert not isinstance(adjoint, ErrorEstimate)
    (steps,), (squares,) = own._influences(*(part[:, None] for part in adjoint))
    deviations = np.zeros(0)
    if function.first is not None:
        deviations = own.start_deviations(function)
        steps[function.first] += deviations
    if uncertain.kind == "cr1":
        return _Influences(steps, squares, np.bincount(own.cluster, steps, own.clusters), deviations, False)
    parts, alone = -uncertain._without_each(function), uncertain._undetermined_without_one(function)
    return _Influences(steps, squares, parts, deviations, alone)


def _of_episodes(part: Part, *, errors: StreamedErrors) -> tuple[EpisodeSums]:
    uncertain, function = errors.of_part(part.problem, part.log)
    own, found = uncertain.sandwich, _influences(errors, uncertain, function)
    starts = np.zeros(own.clusters)
    if function.first is not None:
        starts = np.bincount(own.cluster[function.first], minlength=own.clusters).astype(float)
    sums = np.array([own.td_errors @ own.td_errors, found.deviations @ found.deviations, int(found.alone)])
    squares = ClusterSums(own.cluster, own.clusters).of(found.squares)
    assert not isinstance(errors.adjoint, ErrorEstimate)
    occupancy = np.array(OccupancySums.of(weights_of_adjoint(own, errors.adjoint[1])))
    return (EpisodeSums(found.parts, squares, starts, sums, _weight_sums(errors, uncertain), occupancy),)


def _weight_sums(errors: StreamedErrors, uncertain: Uncertainty) -> Array:
    """`EpisodeSums.weights` of some episodes; 0 where the data do not determine a weight."""
    adjoints, own = errors.weight_adjoints, uncertain.sandwich
    found, known = np.zeros((len(adjoints), 3)), [one for one in adjoints if not isinstance(one, ErrorEstimate)]
    if not known:
        return found
    expected = own.expected_sums(*(np.column_stack(part) for part in zip(*known, strict=True)))
    place = [column for column, one in enumerate(adjoints) if not isinstance(one, ErrorEstimate)]
    changes = uncertain.unscaled_changes[:, place]
    found[place] = [(part @ part, one.sum(), one @ one) for part, one in zip(changes.T, expected, strict=True)]
    return found


def _band_of_shard(
    log: Transitions, number: int, *, errors: StreamedErrors, firsts: Array, asked: BandRows, simultaneous: bool
) -> tuple[Any, ...]:
    """The sums of the band, and of what each episode is expected to add to the mean value over the log and its square.

    The number of effective episodes of that mean decides, as in memory, whether episodes can be the clusters.
    """
    step, episode = map(int, firsts[number])
    adjoint, found = errors.sandwich._adjoint(errors.mean), []
    for part in errors.parts.parts_of(log, number):
        uncertain, _ = errors.of_part(part.problem, part.log)
        own = uncertain.sandwich
        sums = band_sums(asked, uncertain, simultaneous=simultaneous, first_step=step, first_cluster=episode)
        expected: Array = np.ones(own.clusters)
        if not isinstance(adjoint, ErrorEstimate):
            size = float(np.abs(errors.mean) @ np.abs(errors.sandwich.theta)) or 1.0  # else squares could underflow
            expected = own.expected_sums(*(one[:, None] / size for one in adjoint))[0]
        found.append((*sums, float(expected.sum()), float(expected @ expected)))
        step, episode = step + len(part.log), episode + own.clusters
    return reduce(add, found)


def _counted(log: Transitions, number: int) -> tuple[CountedSteps]:
    return (CountedSteps.of(log).merged(),)


# ---- differences of policy values --------------------------------------------------------------------------------


class Paired(NamedTuple):
    """Errors of the differences of all pairs of values: standard errors, effective clusters, biases, (pairs,).

    correlation: of the differences, (pairs, pairs). kind: the method of the standard errors; by "cr1" biases are 0.
    """

    standard_errors: Array
    effective_clusters: Array
    biases: Array
    correlation: Array
    kind: Kind


def paired(evaluated: Sequence[StreamedErrors], sizes: Sequence[float], kind: Kind) -> Paired:
    """The errors of the differences of policy values, paired by episode, in one pass over the log of the first.

    sizes: of the standard errors of the values, to which sums are scaled. kind: the same for all. Raises ValueError if
    the equations of another evaluation do not hold on that log.
    """
    first = evaluated[0]
    of_kind = [errors if errors.kind == kind else replace(errors, kind=kind) for errors in evaluated]
    assert all(errors.basis is not None or kind == "cr1" for errors in of_kind)
    steps, at_once = part_sizes(first.limit, sum(errors.sandwich.problem.d for errors in evaluated))
    parts = replace(first.open_parts, steps=steps, at_once=at_once)
    size = max(sizes) or 1.0
    products, totals, expected, squares, *equations = parts.sum(partial(_differences, evaluated=of_kind, size=size))
    for errors, found in zip(evaluated, equations, strict=True):
        _require_same_log(errors, found)
    with np.errstate(invalid="ignore"):
        effective = np.where(squares > 0, expected**2 / squares, first.episodes)
    if effective.min() < MIN_EFFECTIVE_CLUSTERS:
        raise ValueError(DOMINATED)
    root = np.sqrt(np.diag(products))
    scale = np.where(root > 0, root, 1.0)
    factor = size * count_factor(kind, first.episodes)
    biases = bias_of(factor * totals, first.episodes)
    return Paired(factor * root, effective, biases, products / np.outer(scale, scale), kind)


def _differences(part: Part, *, evaluated: Sequence[StreamedErrors], size: float) -> tuple[Any, ...]:
    """Products of the parts of pairs, the parts, their expected squares and the squares of these, over episodes.

    Then, for each evaluation, the share of these episodes in its equations and in the mean row of its starts.
    """
    steps, parts, equations = [], [], []
    for errors in evaluated:
        problem = part.problem if errors.maker is evaluated[0].maker else errors.maker(part.log)
        uncertain, function = errors.of_part(problem, part.log)
        own, found = uncertain.sandwich, _influences(errors, uncertain, function)
        steps.append(found.steps / size)
        parts.append(found.parts / size)
        residual = own.problem.products(own.theta, own.w if own.w.any() else None)[1]
        starts = 0 * residual if function.first is None else function.rows.sum(axis=0) / function.starts
        equations.append(np.array([residual, np.asarray(starts).ravel()]))
    pairs = list(combinations(range(len(evaluated)), 2))
    apart = np.array([parts[i] - parts[j] for i, j in pairs])
    cluster = own.cluster
    expected = np.array([np.bincount(cluster, (steps[i] - steps[j]) ** 2, own.clusters) for i, j in pairs])
    return apart @ apart.T, apart.sum(axis=1), expected.sum(axis=1), (expected**2).sum(axis=1), *equations


def _require_same_log(errors: StreamedErrors, equations: Array) -> None:
    """The residual of the equations on the log, and the mean row of its starts, must be those of the evaluation."""
    sandwich, function = errors.sandwich, errors.function
    residual = equations[0] - sandwich.saddle_residual[1]
    same = np.linalg.norm(residual) <= SAME_LOG_TOL * np.linalg.norm(sandwich.problem.b)
    if function.total is not None:
        same &= np.linalg.norm(equations[1] - function.c) <= SAME_LOG_TOL * np.linalg.norm(function.c)
    if not same:
        raise ValueError(
            "The evaluations have different logs, so their difference would not be that of the policies. Evaluate both "
            "on the same log, with the same clusters, starts and discount."
        )


def _with_moments_of(problem: Problem, whole: SaddlePoint) -> Problem:
    """The steps of a part with the number of steps and the moments of the whole log: sums over n are then its share."""
    other = copy.copy(problem)
    for name in ("traits", "cost", "second_moment"):
        other.__dict__.pop(name, None)
    other.n, other.ridge, other.dead = whole.n, whole.ridge, whole.dead
    unused = np.zeros(whole.d, bool)
    unused[whole.dead] = True
    other.phi = other.psi = problem.phi.without(unused)
    other.__dict__["b"] = whole.b
    other.__dict__.update({name: vars(whole)[name] for name in ("A", "C", "C_root") if name in vars(whole)})
    return other
