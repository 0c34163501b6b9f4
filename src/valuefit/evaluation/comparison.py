"""`compare`: the difference of two policy values from one log, paired by episode; several at once as a matrix.

Two evaluations of one log share its noise, which their difference does not contain: the contributions of an episode to
both errors are subtracted before they are squared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr, stdtr, stdtrit

from valuefit.evaluation.evaluation import Evaluation
from valuefit.evaluation.sandwich import ErrorEstimate, Influence, Sandwich
from valuefit.evaluation.uncertainty import MULTIPLIER_DRAWS, Uncertainty, suitable_clusters
from valuefit.typing import Array


@dataclass(frozen=True)
class Comparison:
    """The policy value of the first evaluation minus that of the second, on the same log.

    interval: of the difference, at `level`; in a list of comparisons it is simultaneous for all of them. p_value:
    two-sided, of the hypothesis that both have the same fixed point. effective_episodes: see `PolicyValue`.
    """

    names: tuple[str, str]
    estimate: float
    standard_error: float
    interval: tuple[float, float]
    level: float
    p_value: float
    effective_episodes: float

    def __repr__(self) -> str:
        low, high = self.interval
        return (
            f"Comparison({self.names[0]} - {self.names[1]}: {self.estimate:.5g}, standard error "
            f"{self.standard_error:.2g}, {100 * self.level:g}% interval {low:.5g} to {high:.5g}, p {self.p_value:.2g})"
        )


@dataclass(frozen=True)
class Comparisons:
    """All pairs of several evaluations of one log; the intervals hold simultaneously.

    estimate, standard_error, p_value: (k, k), of the value in the row minus that in the column. interval: (k, k, 2).
    """

    names: tuple[str, ...]
    pairs: tuple[Comparison, ...]
    level: float

    def matrix(self, name: str) -> Array:
        """A field of `Comparison` for every pair, (k, k) or, for the interval, (k, k, 2)."""
        count = len(self.names)
        found = np.zeros((count, count, 2) if name == "interval" else (count, count))
        if name == "p_value":
            found += np.eye(count)
        for (i, j), pair in zip(combinations(range(count), 2), self.pairs, strict=True):
            value = np.asarray(getattr(pair, name))
            found[i, j], found[j, i] = value, -value[..., ::-1] if name == "interval" else value
            if name == "estimate":
                found[j, i] = -value
        return found

    @property
    def estimate(self) -> Array:
        return self.matrix("estimate")

    @property
    def standard_error(self) -> Array:
        return self.matrix("standard_error")

    @property
    def interval(self) -> Array:
        return self.matrix("interval")

    @property
    def p_value(self) -> Array:
        return self.matrix("p_value")

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.pairs))


def compare(first: Any, second: Evaluation | None = None, *, level: float = 0.95) -> Any:
    """The difference of two policy values, `compare(a, b)`, or of all pairs of a list, `compare([a, b, c])`.

    The evaluations must be of the same log, starts and discount; features, policies, values (state or state-action) and
    solvers may differ. Errors are paired by episode. Returns a `Comparison`, or `Comparisons` with simultaneous
    intervals.
    """
    evaluations = [*first] if second is None and isinstance(first, Sequence) else [first, second]
    if len(evaluations) < 2 or not all(isinstance(evaluation, Evaluation) for evaluation in evaluations):
        raise ValueError("compare takes two evaluations, or a list of at least two: compare(a, b), compare([a, b, c]).")
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it must be between 0 and 1, for example 0.95.")
    for other in evaluations[1:]:
        _require_comparable(evaluations[0], other)
    names = _names(evaluations)
    pairs = _pairs(evaluations)
    if second is not None:
        return _comparison(names, pairs[0], float((1 - level) / 2), level)
    tail = _simultaneous_tail([pair.parts for pair in pairs], level)
    compared = [
        _comparison((names[i], names[j]), pair, tail, level)
        for (i, j), pair in zip(combinations(range(len(names)), 2), pairs, strict=True)
    ]
    return Comparisons(names, tuple(compared), level)


class _Pair(NamedTuple):
    """The difference of two values, the contributions of the clusters to its error, and effective clusters."""

    estimate: float
    parts: Array
    effective_clusters: float
    solver_error: float


def _require_comparable(a: Evaluation, b: Evaluation) -> None:
    for what, same in (
        ("logs", _same_log(a, b)),
        ("discounts", a.discount == b.discount),
        ("starts", _same_starts(a, b)),
    ):
        if not same:
            raise ValueError(
                f"The evaluations have different {what}, so their difference is not that of the policies. Evaluate both "
                f"on the same log, with the same starts and discount."
            )


def _same_log(a: Evaluation, b: Evaluation) -> bool:
    x, y = a.log, b.log
    return x is y or (
        len(x) == len(y)
        and np.array_equal(x.episode, y.episode)
        and np.array_equal(x.reward, y.reward)
        and np.array_equal(x.observations[x.now], y.observations[y.now])
    )


def _same_starts(a: Evaluation, b: Evaluation) -> bool:
    if a.starts is None or b.starts is None:
        return a.starts is b.starts
    return np.array_equal(a.starts, b.starts)


def _names(evaluations: list[Evaluation]) -> tuple[str, ...]:
    """The names of the policies, with a number where two are the same."""
    plain = ["logged policy" if e.policy is None else e.policy.name for e in evaluations]
    return tuple(
        name if plain.count(name) == 1 else f"{name} ({plain[: i + 1].count(name)})" for i, name in enumerate(plain)
    )


def _pairs(evaluations: list[Evaluation]) -> list[_Pair]:
    functions = [evaluation.start_function for evaluation in evaluations]
    sandwiches = [Sandwich(e.problem, e.result.theta, e.log.episode) for e in evaluations]
    kind = "cr1" if any(e.policy_value.method == "cr1" for e in evaluations) else "cr3"
    influences = [_influence(*pair) for pair in zip(sandwiches, functions, strict=True)]
    least = min(_effective(sandwiches[0], x, y) for x, y in combinations(influences, 2))
    cluster = suitable_clusters(sandwiches, least)
    sandwiches = [sandwich.with_clusters(cluster, blocks=sandwich.blocks) for sandwich in sandwiches]
    errors = [Uncertainty(sandwich, kind) for sandwich in sandwiches]
    if any(error.kind != kind for error in errors):
        errors = [Uncertainty(sandwich, "cr1") for sandwich in sandwiches]
    parts = [e.contributions(f, i) for e, f, i in zip(errors, functions, influences, strict=True)]
    values = [evaluation.policy_value.estimate for evaluation in evaluations]
    return [
        _Pair(
            values[i] - values[j], parts[i] - parts[j], _effective(sandwiches[0], influences[i], influences[j]),
            influences[i].solver_error + influences[j].solver_error,
        )
        for i, j in combinations(range(len(values)), 2)
    ]  # fmt: skip


def _influence(sandwich: Sandwich, function: Any) -> Influence:
    found = sandwich.influences([function])[0]
    if isinstance(found, ErrorEstimate):
        raise ValueError(f"One of the values has no standard error, so they cannot be compared. {found.reason}")
    return found


def _effective(sandwich: Sandwich, x: Influence, y: Influence) -> float:
    """Effective clusters of a difference."""
    expected = np.bincount(sandwich.cluster, (x.steps - y.steps) ** 2, sandwich.clusters)
    return Influence(x.steps, expected, 0.0).effective_clusters


def _comparison(names: tuple[str, ...], pair: _Pair, tail: float, level: float) -> Comparison:
    standard_error, degrees = float(np.linalg.norm(pair.parts)), max(pair.effective_clusters - 1, 1.0)
    half = float(stdtrit(degrees, 1 - tail)) * standard_error + pair.solver_error
    beyond = max(abs(pair.estimate) - pair.solver_error, 0.0)
    if standard_error > 0:
        p_value = 2 * float(stdtr(degrees, -beyond / standard_error))
    else:
        p_value = 0.0 if beyond > 0 else 1.0
    interval = pair.estimate - half, pair.estimate + half
    return Comparison(
        (names[0], names[1]), pair.estimate, standard_error, interval, level, p_value, pair.effective_clusters
    )


def _simultaneous_tail(parts: list[Array], level: float) -> float:
    """The one-sided level at which all intervals hold at once, from random signs of the clusters."""
    scaled = np.array([part / (np.linalg.norm(part) or 1.0) for part in parts])
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (scaled.shape[1], 10 * MULTIPLIER_DRAWS))
    return float(ndtr(-np.quantile(np.abs(scaled @ signs).max(axis=0), level)))
