"""`compare`: the difference of two policy values from one log, paired by episode; several at once as a matrix.

Evaluations of one log share most of its sampling error. The parts of an episode in the errors of both values are
subtracted before they are squared, so that what they share cancels.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from scipy.special import ndtr, ndtri, stdtr

from valuefit.checks.check import DETERMINING
from valuefit.data.serialise import as_plain
from valuefit.data.transitions import Transitions
from valuefit.evaluation.evaluation import Evaluation
from valuefit.evaluation.notes import longer_notes
from valuefit.evaluation.text import comparison_summary
from valuefit.inference.error_estimate import ErrorEstimate, Kind, LinearFunction
from valuefit.inference.errors import Errors, Paired, over_suitable_clusters, paired
from valuefit.inference.policy_value import around, check_level
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
        matrix = np.zeros((len(self.names), len(self.names), *values[0].shape))
        for (i, j), value in zip(combinations(range(len(self.names)), 2), values, strict=True):
            matrix[i, j], matrix[j, i] = value, mirrored(value)
        return matrix

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
    in_parts = any(evaluation.sampled for evaluation in evaluations)
    several = [e.fit.uncut_errors for e in evaluations] if not in_parts else _errors_in_parts(evaluations)
    functions = [errors.value or e.fit.starts for e, errors in zip(evaluations, several, strict=True)]
    for errors, function, name in zip(several, functions, names, strict=True):
        _require_standard_error(errors, function, name)
    if not in_parts:
        several = over_suitable_clusters(several, functions)
    kind: Kind = "cr1" if any(errors.kind == "cr1" for errors in several) else "cr3"
    several = [replace(errors, kind=kind) if errors.kind != kind else errors for errors in several]
    values, differences = [evaluation.policy_value for evaluation in evaluations], []
    paired_errors = paired(several, functions, max(value.standard_error or 0.0 for value in values))
    for place, (a, b) in enumerate(combinations(values, 2)):
        rounding = ROUNDING_TOL * (abs(a.estimate) + abs(b.estimate))
        bias = float(paired_errors.biases[place]) if kind == "cr3" else a.bias - b.bias
        error = ErrorEstimate(
            float(paired_errors.standard_errors[place]), float(paired_errors.effective_clusters[place]),
            solver_error=(a.solver_error or 0.0) + (b.solver_error or 0.0) + rounding,
            bias=bias if abs(bias) > rounding else 0.0,
        )  # fmt: skip
        unseen = a.unseen[0] - b.unseen[1], a.unseen[1] - b.unseen[0]
        differences.append(_Difference(a.estimate - b.estimate, error, rounding, unseen))
    return differences, paired_errors


def _errors_in_parts(evaluations: list[Evaluation]) -> list[Errors]:
    """The errors of each evaluation of a log that is read in parts."""
    several = [one.fit.sums.errors for one in evaluations if one.fit.sums is not None]
    if len(several) < len(evaluations):
        raise ValueError(
            "A log that is read in parts is read once more to compare its evaluations, but one of them was loaded from "
            'a file, or evaluated in memory. Evaluate all of them on the log that is loaded with `memory="stream"`.'
        )
    return several


def _require_standard_error(errors: Errors, function: LinearFunction, name: str) -> None:
    """Raise ValueError if the value of this name has no standard error."""
    adjoint, remedy = errors.equations.solver.adjoint(function.c), ""
    if errors.shards.clusters < 2:
        reason = errors.shards.one_cluster
    elif isinstance(adjoint, ErrorEstimate):
        reason, remedy = adjoint.reason, "" if adjoint.determined else f" {DETERMINING}"
    else:
        return
    raise ValueError(f"The value of {name} has no standard error, so it cannot be compared. {reason}{remedy}")


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
