"""`Evaluation`: the value of a policy with its errors, checks and verdict, and how it was computed."""

from __future__ import annotations

import importlib
import math
import os
import warnings
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.data.transitions import Transitions
from valuefit.data.validation import boolean, number
from valuefit.engine.result import Result
from valuefit.evaluation import storage
from valuefit.evaluation.bands import Band, few_clusters, row_intervals
from valuefit.evaluation.checks.check import Check
from valuefit.evaluation.cross_checks import CrossCheck
from valuefit.evaluation.errors import ErrorEstimate, LinearFunction
from valuefit.evaluation.importance import policy_for
from valuefit.evaluation.inputs import make_problem
from valuefit.evaluation.notes import GIVEN_STARTS
from valuefit.evaluation.policy import Policy
from valuefit.evaluation.policy_value import MAX_LISTED_WEIGHTS, PolicyValue, check_level, starts_of, value_rows
from valuefit.evaluation.sandwich import Sandwich
from valuefit.evaluation.sensitivity import ConfoundedModel, Sensitivity, breakdown, sensitivity
from valuefit.evaluation.storage import as_plain
from valuefit.evaluation.streamed_errors import StreamedErrors
from valuefit.evaluation.text import summary
from valuefit.evaluation.uncertainty import Kind, Uncertainty, uncertainty
from valuefit.evaluation.unseen import UnseenPairs, unseen_pairs
from valuefit.evaluation.verdict import Verdict, verdict_of
from valuefit.features.registry import Fitted
from valuefit.problem.problem import Problem
from valuefit.rows.storage import dense, small_rows
from valuefit.typing import Array

FINGERPRINT_OBSERVATIONS = 32  # of the log, on which features that are given to `load` are checked


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """The value of a policy with its errors, and how it was computed. Returned by `valuefit.evaluate`.

    policy_value: estimate, standard_error and interval of the mean value over the starts. The interval covers the
    fixed point (what this estimator would give with infinite data), not what the features cannot express.
    checks: what was checked, and what was found. cross_checks: other estimates of the policy value. notes: the choices
    that were made, as sentences. log: the evaluated log. problem, result: what was solved, and the solver's result.
    features: as fitted. starts: the observations that the value is averaged over; None for the first of each episode.
    whole: steps and episodes of a log that was read in parts; `log`, `problem` and the checks are then those of a
    sample of its episodes. streamed: what the errors of such a log are computed from, by further passes over it.
    weight_errors: those of its weights.
    """

    log: Transitions
    problem: Problem
    result: Result
    features: Fitted
    policy: Policy | None
    discount: float
    trace: float
    ridge: float
    values: str
    seed: int
    policy_value: PolicyValue
    notes: list[str]
    checks: tuple[Check, ...] = ()
    starts: Array | None = None
    cross_checks: tuple[CrossCheck, ...] = ()
    whole: tuple[int, int] | None = None
    streamed: StreamedErrors | None = None
    weight_errors: tuple[ErrorEstimate, ...] = ()

    def __repr__(self) -> str:
        return (
            f"Evaluation({self.verdict.level}: {self.policy_value!r}, {self.size[0]} steps, {self.problem.d} "
            f"features, {self.result.solver}: {self.result.status})"
        )

    @property
    def size(self) -> tuple[int, int]:
        """Steps and episodes of the log that the policy value is computed from."""
        return (len(self.log), len(self.log.episodes)) if self.whole is None else self.whole

    @property
    def sampled(self) -> bool:
        """Whether `log` is a sample of a log that was read in parts."""
        return self.size[0] > len(self.log)

    @property
    def verdict(self) -> Verdict:
        """Whether to use the estimate: "sound", "caution" or "do not use", with the reasons."""
        return verdict_of(self.checks)

    @property
    def warnings(self) -> list[str]:
        """The messages of the checks that did not pass: why the result may be unreliable, and what to do."""
        return list(self.verdict.reasons)

    def value(self, observations: Any, actions: Any = None) -> Array:
        """Values (m,) of observations (m, ...) or names of states; state-action values optionally of actions (m,).

        Actions are numbers, or their names.
        """
        observations = self.log.as_stored(observations)
        return np.asarray(self._rows(observations, actions) @ self.result.theta).ravel()

    def value_interval(
        self, observations: Any, actions: Any = None, level: float = 0.95, simultaneous: bool = False
    ) -> Array:
        """Intervals (m, 2) of `value`, each at this level, or all of them at once if `simultaneous`.

        They cover the fixed point, as that of the policy value does, and are longer by what states and actions without
        data could change; infinite where the data do not determine a value, or where one episode alone does. A log that
        was read in parts is read once more for each call. 10,000 values of 200 features cost about as much as 16 passes
        over 100,000 steps, simultaneous ones 25 (docs/off-policy.md).
        """
        level = check_level(level)
        simultaneous = boolean("simultaneous", simultaneous)
        states = self.log.as_stored(observations)
        rows, place = self._rows(states, actions), np.arange(len(states))
        if actions is None and np.ndim(states) == 1 and np.asarray(states).dtype.kind in "iu":  # a state often recurs
            _, first, place = np.unique(states, return_index=True, return_inverse=True)
            rows = rows[first]
        rows = dense(rows)
        if not self.errors.has_row_intervals:
            raise ValueError(
                "There are no intervals of values here: they need two episodes or 25 steps, and features few enough "
                "for a direct solution. Use fewer features, or a log of more episodes."
            )
        band = self.band(rows, level=level, simultaneous=simultaneous)
        if simultaneous and (message := few_clusters(band)):
            warnings.warn(message, stacklevel=2)
        found = band.intervals
        if self._unseen_pairs is not None:
            below = self._unseen_pairs.moved[:, None]
            moved = self.errors.sandwich.respond(np.zeros((self.problem.d, 1)), below)[:, 0]
            found = found + self._unseen_pairs.changes(rows, rows @ moved)
        return np.asarray(found[place])

    def band(self, rows: Array, *, level: float, simultaneous: bool = False) -> Band:
        """Intervals and standard errors of the products of theta with rows (m, d), as those of `value_interval`."""
        errors = self.errors
        intervals = errors.band if isinstance(errors, StreamedErrors) else partial(row_intervals, errors)
        return intervals(rows, level=level, simultaneous=simultaneous)

    @cached_property
    def errors(self) -> Uncertainty | StreamedErrors:
        """Errors of linear functions of theta, with clusters for the mean value over the log."""
        if self.sampled:
            if self.streamed is None:
                raise ValueError(
                    f"The file of this evaluation holds a sample of its log of {self.size[0]:,} steps, so there are "
                    "values and the interval of the policy value, but no other intervals. Evaluate the log again."
                )
            return self.streamed
        return self._errors_in_memory

    @cached_property
    def _errors_in_memory(self) -> Uncertainty:
        mean = self.problem.phi.tdot(self.problem.visits) / self.problem.n
        kind: Kind = "cr1" if self.policy_value.method == "cr1" else "cr3"
        sandwich = Sandwich(self.problem, self.result.theta, self.log.episode, self.log.cluster)
        return uncertainty(sandwich, LinearFunction(mean), kind)

    @cached_property
    def _unseen_pairs(self) -> UnseenPairs | None:
        """The pairs of states and actions without data, of state-action values; those of a sample if `sampled`."""
        if self.values == "state":
            return None
        return unseen_pairs(self.log, self.features, self.policy, self.problem, self.result.theta)

    def _rows(self, observations: Any, actions: Any = None) -> Any:
        actions = self.log.number_actions(actions)
        rows = value_rows(self.features, self.values, self.policy, self.problem.d, observations, actions)
        return small_rows(rows)

    def sensitivity(self, odds: Any) -> Sensitivity:
        """Bounds on the policy value if a hidden variable influenced the logged actions; for numbered states.

        odds: a factor of at least 1, or several. Given the hidden variable, the odds of each logged action differ from
        its frequency in the state by at most this factor. The variable is drawn afresh at each step: one that persists
        is outside the model. The bounds are those of the table of states and actions, whatever the features, and
        contain no sampling error. An action that the log never takes in a state has any value that rewards can reach.
        A log that was read in parts is read once more, and its distinct steps are counted.
        """
        return sensitivity(self._confounded, odds)

    def breakdown(self, other: Any) -> float:
        """The smallest `odds` of `sensitivity` at which the policy value may equal `other`; infinity beyond 1,000.

        other: a number, or another evaluation with the same discount, whose bounds then must not overlap.
        """
        if not isinstance(other, Evaluation):
            requirement = "it must be a finite number or an evaluation"
            return breakdown(self._confounded, number("other", other, requirement, math.isfinite))
        if other.discount != self.discount:
            raise ValueError(
                f"The discounts of the two evaluations are {self.discount:g} and {other.discount:g}. Evaluate both "
                "with the same one."
            )
        return breakdown(self._confounded, other._confounded)

    @cached_property
    def _confounded(self) -> ConfoundedModel:
        count = self.errors.counted_steps if self.sampled and isinstance(self.errors, StreamedErrors) else None
        return ConfoundedModel(self.log, self.policy, self.discount, self.starts, count)

    def td_errors(self) -> Array:
        """TD errors, reward + discount * next value - value, of every step of the log, (n,)."""
        problem = self.problem
        p = problem.phi.dot(self.result.theta)
        return np.asarray(problem.reward + problem.discount * p[problem.next] - p[problem.now])

    @cached_property
    def weights(self) -> list[dict[str, Any]] | None:
        """Name, estimate, standard error, solver error and interval of each weight; None for more than 20 weights."""
        if self.problem.d > MAX_LISTED_WEIGHTS or (self.sampled and not self.weight_errors):
            return None
        functions = [LinearFunction(row) for row in np.eye(self.problem.d)]
        errors = self.weight_errors if self.sampled else self._errors_in_memory.errors(functions)
        listed = []
        for column, (estimate, error) in enumerate(zip(self.result.theta.tolist(), errors, strict=True)):
            interval = error.interval(estimate, self.policy_value.level)
            listed.append({
                "name": str(column), "estimate": estimate, "standard_error": error.standard_error,
                "interval": None if interval is None else list(interval), "solver_error": error.solver_error,
            })  # fmt: skip
        return listed

    def to_dict(self) -> dict[str, Any]:
        """The evaluation as plain data for JSON; numbers that are unknown or not finite are None."""
        result = self.result
        facts = {
            "verdict": vars(self.verdict),
            "policy_value": {**vars(self.policy_value)},
            "values": self.values,
            "discount": self.discount,
            "trace": self.trace,
            "ridge": self.ridge,
            "seed": self.seed,
            "steps": self.size[0],
            "episodes": self.size[1],
            "policy": None if self.policy is None else self.policy.name,
            "actions": self.log.action_names,
            "features": {"count": self.problem.d, "without_data": len(self.problem.dead), "spec": self.features.spec,
                         "description": self.features.sentence},
            "solver": {"name": result.solver, "settings": result.settings, "status": result.status,
                       "message": result.message, "passes": result.passes, "seconds": result.seconds,
                       "gap": result.gap, "objective": result.objective, "residual": result.residual,
                       "tol": result.tol},
            "weights": self.weights,
            "cross_checks": [vars(entry) for entry in self.cross_checks],
            "checks": [vars(check) for check in self.checks],
            "notes": self.notes,
            "warnings": self.warnings,
        }  # fmt: skip
        plain: dict[str, Any] = as_plain(facts)
        return plain

    def summary(self) -> str:
        """A page of text: the verdict, settings, estimate and interval, weights if at most 20, checks and notes."""
        return summary(self.to_dict())

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write the evaluation, including its log, to one .npz file; an existing file needs `force=True`.

        Of a log that was read in parts and is larger than the sample in `log`, only that sample is written.
        """
        facts = {
            "policy_value": vars(self.policy_value),
            **{name: getattr(self, name) for name in storage.SETTINGS},
            "notes": self.notes,
            "checks": [vars(check) for check in self.checks],
            "cross_checks": [vars(entry) for entry in self.cross_checks],
            "spec": self.features.spec,
            "fingerprint": self._fingerprint(),
            "policy": None if self.policy is None else self.policy.name,
            "policy_labels": None if self.policy is None or self.policy.table is None else self.policy.labels,
            "whole": self.whole,
            "weight_errors": [vars(error) for error in self.weight_errors],
        }
        table = None if self.policy is None else self.policy.table
        stored = storage.Stored(as_plain(facts), self.log, self.result, table, self.starts)
        return storage.write(stored, Path(path), force=force)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, features: Any = None, policy: Any = None) -> Evaluation:
        """Read an evaluation that `save` wrote; nothing is unpickled.

        features: required if they were not built-in features, which the file contains; they are checked on observations
        of the log. policy: required for state-action values if the policy was a callable. Of a log that was read in
        parts the file may hold a sample only; then there are no intervals of single values, and no comparisons.
        """
        path = Path(path)
        stored = storage.read(path)
        facts, log, result = stored.facts, stored.log, stored.result
        try:
            settings = storage.settings_of(facts)
            policy_value = PolicyValue(**storage.value_facts(facts["policy_value"]))
            notes, checks = list(map(str, facts["notes"])), storage.checks_of(facts)
            others, whole = storage.cross_checks_of(facts), storage.whole_of(facts, log)
            weight_errors = storage.weight_errors_of(facts, result.theta)
            spec, expected, policy_name = facts["spec"], np.asarray(facts["fingerprint"], float), facts["policy"]
            labels = storage.labels_of_table(facts, stored.policy_table)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise storage.not_an_evaluation(path, error) from error
        fitted = storage.stored_features(spec, features, log, path)
        target = storage.stored_policy(policy_name, policy, stored.policy_table, labels, settings["values"], path)
        target = None if target is None else policy_for(target, log)
        problem = make_problem(
            log, fitted, target, settings["values"], settings["discount"], settings["trace"], settings["ridge"]
        )
        storage.check_weights(path, stored, problem.d)
        loaded = cls(
            log=log, problem=problem, result=result, features=fitted, policy=target, policy_value=policy_value,
            notes=notes, checks=checks, starts=stored.starts, cross_checks=others, whole=whole,
            weight_errors=weight_errors, **settings,
        )  # fmt: skip
        storage.check_fingerprint(path, loaded._fingerprint(), expected)
        of_version_1 = stored.starts is None and any(GIVEN_STARTS in note for note in notes)
        if not loaded.sampled and not of_version_1:  # a sample has other starts, version 0.1 did not write given ones
            function = starts_of(log, problem, fitted, target, settings["values"], stored.starts)
            storage.check_estimate(path, policy_value.estimate, function.c, result.theta)
        return loaded

    def _fingerprint(self) -> Array:
        """Rows of some observations of the log times a fixed vector, to recognise the features.

        Not a hash, because the last digits of the rows differ between machines.
        """
        chosen = np.unique(np.linspace(0, len(self.log) - 1, FINGERPRINT_OBSERVATIONS).astype(int))
        rows = self._rows(self.log.observations[self.log.now[chosen]])
        return np.asarray(rows @ np.cos(1 + np.arange(rows.shape[1]) ** 1.5), dtype=np.float64).ravel()

    def report(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write one self-contained HTML page with figures (extra `plot`); an existing file needs `force=True`."""
        # valuefit.report imports this module
        return importlib.import_module("valuefit.report.page").write_report(self, path, force=force)
