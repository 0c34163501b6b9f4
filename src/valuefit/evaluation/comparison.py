"""`compare`: the difference of two policy values from one log, paired by episode; several at once as a matrix.

Evaluations of one log share most of its sampling error. The parts of an episode in the errors of both values are
subtracted before they are squared, so that what they share cancels.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from scipy.special import ndtr, ndtri, stdtr

from valuefit.checks.check import DETERMINING
from valuefit.data.serialise import as_plain
from valuefit.data.transitions import Transitions
from valuefit.evaluation.comparison_text import comparison_summary
from valuefit.evaluation.evaluation import Evaluation
from valuefit.evaluation.notes import longer_notes
from valuefit.inference.errors import ErrorEstimate, Influence, LinearFunction
from valuefit.inference.policy_value import around, check_level
from valuefit.inference.sandwich import Sandwich
from valuefit.inference.streamed_errors import ONE_EPISODE, Paired, paired
from valuefit.inference.uncertainty import Kind, Uncertainty, bias_of, suitable_clusters
from valuefit.messages import printable
from valuefit.typing import Array

NORMAL_DRAWS = 10_000  # of the largest of several t statistics, for simultaneous intervals
ROUNDING_TOL = 1e-9  # relative to the values; smaller differences may be rounding errors
UNNAMED = "<lambda>", "the policy"  # what policies are called that have no name: lambdas and arrays
NO_NOISE = (
    "The standard error is 0 up to rounding: leaving out an episode does not change the difference. Interval and "
    "p-value are right only if rewards and transitions have no noise; else use fewer features, or a longer log."
)
LOG_COLUMNS = ("episode", "reward", "terminated", "now", "next", "action", "observations")  # all but the ratios


@dataclass(frozen=True)
class Comparison:
    """The policy value of the first evaluation minus that of the second, on the same log.

    interval: of the difference, at `level`. p_value: two-sided, of the hypothesis that both have the same fixed point
    (what the estimator would give with infinite data). In a list of comparisons both are simultaneous for all pairs.
    effective_episodes, method, bias, unseen: as in `PolicyValue`. bias: by the jackknife of the difference. unseen: as
    if what pairs without data change in one value were independent of what they change in the other: the value of one
    state and action is not the same number under two policies. notes: why the interval is longer, or may be too short.
    """

    names: tuple[str, str]
    estimate: float
    standard_error: float
    interval: tuple[float, float]
    level: float
    p_value: float
    effective_episodes: float
    method: str
    bias: float = 0.0
    unseen: tuple[float, float] = (0.0, 0.0)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        low, high = self.interval
        return (
            f"Comparison({printable(' - '.join(self.names))}: {self.estimate:.5g}, standard error "
            f"{self.standard_error:.2g}, {100 * self.level:g}% interval {low:.5g} to {high:.5g}, p {self.p_value:.2g}"
            f"{'; see notes' * bool(self.notes)})"
        )


@dataclass(frozen=True, eq=False)
class Comparisons:
    """All pairs of several evaluations of one log; intervals and p-values hold for all of them at once.

    pairs: a `Comparison` of every evaluation with each later one. estimate, standard_error, p_value: (k, k), of the
    value in the row minus that in the column; interval: (k, k, 2).
    """

    names: tuple[str, ...]
    evaluations: tuple[Evaluation, ...]
    pairs: tuple[Comparison, ...]
    level: float

    @property
    def estimate(self) -> Array:
        return self._matrix("estimate", lambda value: -value)

    @property
    def standard_error(self) -> Array:
        return self._matrix("standard_error", lambda value: value)

    @property
    def interval(self) -> Array:
        return self._matrix("interval", lambda ends: -ends[::-1])

    @property
    def p_value(self) -> Array:
        return self._matrix("p_value", lambda value: value) + np.eye(len(self.names))

    def _matrix(self, name: str, mirrored: Callable[[Array], Array]) -> Array:
        """A field of the pairs above the diagonal, and what it is with the two exchanged below; zero on it."""
        values = [np.asarray(getattr(pair, name)) for pair in self.pairs]
        found = np.zeros((len(self.names), len(self.names), *values[0].shape))
        for (i, j), value in zip(combinations(range(len(self.names)), 2), values, strict=True):
            found[i, j], found[j, i] = value, mirrored(value)
        return found

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.pairs))

    def summary(self) -> str:
        """A page of text: values, differences, and the warnings of the evaluations."""
        return comparison_summary(self.to_dict())

    def report(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write one self-contained HTML page with a forest plot (extra `plot`); an existing file needs `force=True`."""
        # valuefit.report imports this module
        return importlib.import_module("valuefit.report.comparison").write_comparison(self, path, force=force)

    def to_dict(self) -> dict[str, Any]:
        """The values with the verdicts of their evaluations, and the differences, as plain data for JSON."""
        values = [
            {
                "name": name,
                "estimate": e.policy_value.estimate,
                "standard_error": e.policy_value.standard_error,
                "interval": e.policy_value.interval_at(self.level),
                "effective_episodes": e.policy_value.effective_episodes,
                "status": e.result.status,
                "verdict": vars(e.verdict),
            }
            for name, e in zip(self.names, self.evaluations, strict=True)
        ]
        facts = {"level": self.level, "values": values, "differences": [vars(pair) for pair in self.pairs]}
        plain: dict[str, Any] = as_plain(facts)
        return plain


@overload
def compare(first: Evaluation, second: Evaluation, *, level: float = 0.95) -> Comparison: ...
@overload
def compare(first: Sequence[Evaluation] | Mapping[str, Evaluation], *, level: float = 0.95) -> Comparisons: ...
def compare(first: Any, second: Evaluation | None = None, *, level: float = 0.95) -> Comparison | Comparisons:
    """The difference of two policy values, `compare(a, b)`, or of all pairs of several, `compare([a, b, c])`.

    The evaluations must be of the same log, starts and discount; policies, features, values (state or state-action),
    traces, ridges and solvers may differ. Errors are paired by episode, so what the values share cancels. Two
    evaluations give a `Comparison`; a list, or a dict of names and evaluations, gives `Comparisons`, whose intervals
    and p-values hold for all pairs at once: the largest t statistic is drawn with the correlations of the pairs.

    As for a single value, the interval is of the fixed points of the features, not of what they cannot express. A log
    that was read in parts is read once more; what is held meanwhile does not grow with its episodes.
    """
    level = check_level(level)
    several = second is None and isinstance(first, Sequence | Mapping)
    given = (list(first.values()) if isinstance(first, Mapping) else list(first)) if several else [first, second]
    if len(given) < 2 or not all(isinstance(evaluation, Evaluation) for evaluation in given):
        raise ValueError("compare takes two evaluations, compare(a, b), or a list of at least two, compare([a, b, c]).")
    for other in given[1:]:
        _require_comparable(given[0], other)
    names = tuple(map(str, first)) if isinstance(first, Mapping) else _names(given)
    differences, errors = _differences(given, names)
    tails = _Tails.of(errors.correlation, level)
    pairs = [
        _comparison((names[i], names[j]), difference, tails, errors.kind)
        for (i, j), difference in zip(combinations(range(len(names)), 2), differences, strict=True)
    ]
    return Comparisons(names, tuple(given), tuple(pairs), level) if several else pairs[0]


# ---- what can be compared ------------------------------------------------------------------------------------


def _require_comparable(a: Evaluation, b: Evaluation) -> None:
    same = {
        "logs": a.size == b.size if a.sampled or b.sampled else _same_logs(a.log, b.log),
        "clusters": a.sampled or b.sampled or _equal(a.log.cluster, b.log.cluster),
        "starts": _equal(a.starts, b.starts),
        "discounts": a.discount == b.discount,
    }
    for what, equal in same.items():
        if not equal:
            raise ValueError(
                f"The evaluations have different {what}, so their difference would not be that of the policies. "
                "Evaluate both on the same log, with the same clusters, starts and discount."
            )


def _same_logs(a: Transitions, b: Transitions) -> bool:
    return all(_equal(getattr(a, name), getattr(b, name)) for name in LOG_COLUMNS)


def _equal(x: Array | None, y: Array | None) -> bool:
    return x is y or (x is not None and y is not None and np.array_equal(x, y))


def _names(evaluations: list[Evaluation]) -> tuple[str, ...]:
    """The names of the policies, with a number where two are the same; the place of one that has no name."""
    plain = [_policy_name(evaluation, f"policy {place}") for place, evaluation in enumerate(evaluations, 1)]
    return tuple(
        name if plain.count(name) == 1 else f"{name} ({plain[: i + 1].count(name)})" for i, name in enumerate(plain)
    )


def _policy_name(evaluation: Evaluation, unnamed: str) -> str:
    if evaluation.policy is not None:
        return unnamed if evaluation.policy.name in UNNAMED else evaluation.policy.name
    return "target of the log's ratios" if (evaluation.log.ratio != 1).any() else "logged policy"


# ---- differences ---------------------------------------------------------------------------------------------


class _Difference(NamedTuple):
    """The difference of two values. rounding: its part of the solver error. unseen: as in `Comparison`."""

    estimate: float
    error: ErrorEstimate
    rounding: float
    unseen: tuple[float, float]

    def interval(self, tail: float) -> tuple[float, float]:
        """That which leaves this probability beyond each end."""
        return around(self.estimate, self.error.half_width(tail), self.error.material_bias, self.unseen)

    @property
    def tail(self) -> float:
        """The one-sided tail probability of a difference whose interval ends at 0; at most 1/2."""
        low, high = self.interval(0.5)  # without the standard error
        beyond = max(low, -high)
        if beyond <= 0:
            return 0.5
        size = self.error.standard_error
        return float(stdtr(self.error.degrees_of_freedom, -beyond / size)) if size else 0.0


def _differences(evaluations: list[Evaluation], names: tuple[str, ...]) -> tuple[list[_Difference], Paired]:
    """Return the differences of all pairs, and their errors."""
    if any(evaluation.sampled for evaluation in evaluations):
        errors, solver_errors = _paired_in_parts(evaluations, names)
    else:
        errors, solver_errors = _paired_in_memory(evaluations, names)
    values, found = [evaluation.policy_value for evaluation in evaluations], []
    for place, (i, j) in enumerate(combinations(range(len(values)), 2)):
        a, b = values[i], values[j]
        rounding = ROUNDING_TOL * (abs(a.estimate) + abs(b.estimate))
        bias = float(errors.biases[place]) if errors.kind == "cr3" else a.bias - b.bias
        error = ErrorEstimate(
            float(errors.standard_errors[place]), float(errors.effective_clusters[place]),
            solver_error=solver_errors[i] + solver_errors[j] + rounding, bias=bias if abs(bias) > rounding else 0.0,
        )  # fmt: skip
        unseen = a.unseen[0] - b.unseen[1], a.unseen[1] - b.unseen[0]
        found.append(_Difference(a.estimate - b.estimate, error, rounding, unseen))
    return found, errors


def _paired_in_memory(evaluations: list[Evaluation], names: tuple[str, ...]) -> tuple[Paired, list[float]]:
    """The errors of all pairs, over clusters that suit them, and the solver errors of the values."""
    functions = [evaluation.fit.starts for evaluation in evaluations]
    sandwiches = [evaluation.fit.sandwich for evaluation in evaluations]
    influences = [_influence(*one) for one in zip(sandwiches, functions, names, strict=True)]
    least = min(_effective_clusters(sandwiches[0], x, y) for x, y in combinations(influences, 2))
    cluster = suitable_clusters(sandwiches, least)
    sandwiches = [sandwich.with_clusters(cluster, blocks=sandwich.blocks) for sandwich in sandwiches]
    errors = _uncertainties(sandwiches, evaluations)
    parts = [e.contributions(f, i) for e, f, i in zip(errors, functions, influences, strict=True)]
    apart = [x - y for x, y in combinations(parts, 2)]
    standard_errors = np.array([np.linalg.norm(difference) for difference in apart])
    scaled = np.array([difference / (size or 1.0) for difference, size in zip(apart, standard_errors, strict=True)])
    effective = np.array([_effective_clusters(sandwiches[0], x, y) for x, y in combinations(influences, 2)])
    solver_errors = [influence.solver_error for influence in influences]
    biases = bias_of(np.sum(apart, axis=1), sandwiches[0].clusters)
    return Paired(standard_errors, effective, biases, scaled @ scaled.T, errors[0].kind), solver_errors


def _paired_in_parts(evaluations: list[Evaluation], names: tuple[str, ...]) -> tuple[Paired, list[float]]:
    """Return the paired errors of a log that was read in parts, in one more pass."""
    streamed = [evaluation.streamed for evaluation in evaluations if evaluation.streamed is not None]
    if len(streamed) < len(evaluations):
        raise ValueError(
            "A log that is read in parts is read once more to compare its evaluations, but one of them was loaded from "
            'a file, or evaluated in memory. Evaluate all of them on the log that is loaded with memory="stream".'
        )
    sizes: list[float] = []
    for errors, evaluation, name in zip(streamed, evaluations, names, strict=True):
        if isinstance(errors.adjoint, ErrorEstimate):
            raise _not_comparable(name, errors.adjoint)
        if evaluation.policy_value.standard_error is None:
            raise _not_comparable(name, ErrorEstimate(None, reason=ONE_EPISODE))
        sizes.append(evaluation.policy_value.standard_error)
    solver_errors = [evaluation.policy_value.solver_error or 0.0 for evaluation in evaluations]
    return paired(streamed, sizes, _kind(evaluations)), solver_errors


def _uncertainties(sandwiches: list[Sandwich], evaluations: list[Evaluation]) -> list[Uncertainty]:
    """All of one kind: the jackknife only where every evaluation has it."""
    kind = _kind(evaluations)
    errors = [Uncertainty(sandwich, kind) for sandwich in sandwiches]
    if any(error.kind != kind for error in errors):
        errors = [Uncertainty(sandwich, "cr1") for sandwich in sandwiches]
    return errors


def _kind(evaluations: list[Evaluation]) -> Kind:
    return "cr1" if any(evaluation.policy_value.method == "cr1" for evaluation in evaluations) else "cr3"


def _influence(sandwich: Sandwich, function: LinearFunction, name: str) -> Influence:
    found = sandwich.influences([function])[0]
    if isinstance(found, ErrorEstimate):
        raise _not_comparable(name, found)
    return found


def _not_comparable(name: str, error: ErrorEstimate) -> ValueError:
    remedy = "" if error.determined else f" {DETERMINING}"
    return ValueError(f"The value of {name} has no standard error, so it cannot be compared. {error.reason}{remedy}")


def _effective_clusters(sandwich: Sandwich, x: Influence, y: Influence) -> float:
    """Effective number of clusters of the difference of two numbers."""
    steps = x.steps - y.steps
    return Influence(steps, np.bincount(sandwich.cluster, steps**2, sandwich.clusters), 0.0).effective_clusters


# ---- intervals -----------------------------------------------------------------------------------------------


class _Tails(NamedTuple):
    """The one-sided tail probability of all intervals, at which they hold at once, and how p-values follow.

    largest: draws of the largest of the normal variables that have the correlations of the pairs.
    """

    level: float
    tail: float
    largest: Array
    pairs: int

    @classmethod
    def of(cls, correlation: Array, level: float) -> _Tails:
        """Between the tail of a single interval and Bonferroni's. correlation: of the differences, (pairs, pairs)."""
        pairs = len(correlation)
        normal = np.random.default_rng(0).multivariate_normal(
            np.zeros(pairs), correlation, NORMAL_DRAWS, check_valid="ignore"
        )
        largest, single = np.abs(normal).max(axis=1), (1 - level) / 2
        drawn = float(ndtr(-np.quantile(largest, level)))
        return cls(level, min(max(drawn, single / pairs), single), largest, pairs)

    def p_value(self, tail: float) -> float:
        """Below 1 - level where the interval does not contain 0."""
        drawn = (1 + int((self.largest >= -ndtri(tail)).sum())) / (1 + NORMAL_DRAWS)
        return min(max(2 * tail, min(drawn, 2 * tail * self.pairs)), 1.0)


def _comparison(names: tuple[str, str], difference: _Difference, tails: _Tails, method: str) -> Comparison:
    error, unseen = difference.error, difference.unseen
    assert error.standard_error is not None
    notes = longer_notes(error.material_bias, unseen) + [NO_NOISE] * (error.standard_error <= difference.rounding)
    return Comparison(
        names, difference.estimate, error.standard_error, difference.interval(tails.tail), tails.level,
        tails.p_value(difference.tail), error.effective_clusters, method, error.material_bias, unseen, tuple(notes),
    )  # fmt: skip
