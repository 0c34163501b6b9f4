"""One call from a log to the policy's value: `evaluate`, and what it gives."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from valuefit.data.load import load
from valuefit.data.transitions import Transitions
from valuefit.engine.loop import Progress, solve
from valuefit.engine.result import Result
from valuefit.evaluation import storage
from valuefit.evaluation.diagnostics import doubts, of_unseen
from valuefit.evaluation.importance import with_ratios
from valuefit.evaluation.policy import Policy, find_policy
from valuefit.evaluation.policy_value import LEVEL, SHOWN, PolicyValue, Reported, at_starts, starts_of, value_rows
from valuefit.evaluation.sandwich import Sandwich
from valuefit.evaluation.state_action import state_action_problem, unseen_share
from valuefit.evaluation.storage import as_plain
from valuefit.evaluation.text import summary
from valuefit.features.registry import Fitted, from_spec, make
from valuefit.problem.problem import Problem
from valuefit.solvers.solver import Solver
from valuefit.typing import Array

VALUES = ("state", "state-action")
SETTINGS = ("discount", "trace", "ridge", "values", "seed")
PROBES = 32  # observations of the log on which features given again are checked
CLOSE = 1e-6  # how near their rows must come: machines round differently


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """How good the policy is, how sure that is, and how it was found. Made by `valuefit.evaluate`.

    policy_value: estimate, standard_error and interval of the mean value over the starts. The interval covers the
    fixed point (the answer of the same features on endless data), not what the features cannot express.
    notes: what was done and chosen, in words. warnings: what is doubtful, and what to do.
    log, problem, result, features: what was evaluated, what was solved, how, and the fitted features.
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
    warnings: list[str]

    def __repr__(self) -> str:
        warned = f", {len(self.warnings)} warnings" if self.warnings else ""
        return (
            f"Evaluation({self.policy_value!r}, {len(self.log)} steps, {self.problem.d} features, "
            f"{self.result.solver}: {self.result.status}{warned})"
        )

    def value(self, observations: Any, actions: Any = None) -> Array:
        """Values of observations (m, ...), (m,); with state-action values also of these actions, one each."""
        return np.asarray(self._rows(observations, actions) @ self.result.theta).ravel()

    def _rows(self, observations: Any, actions: Any = None) -> Any:
        return value_rows(self.features, self.values, self.policy, self.problem.d, observations, actions)

    def td_errors(self) -> Array:
        """reward + discount * value after - value before, for every step of the log."""
        problem = self.problem
        p = problem.phi.dot(self.result.theta)
        return np.asarray(problem.reward + problem.discount * p[problem.next] - p[problem.now])

    @cached_property
    def weights(self) -> list[dict[str, Any]] | None:
        """Name, estimate, standard and solver error and interval of each weight; None where they are too many."""
        if self.problem.d > SHOWN:
            return None
        sandwich = Sandwich(self.problem, self.result.theta, self.log.episode)
        listed = []
        for column, estimate in enumerate(self.result.theta.tolist()):
            spread = sandwich.error(np.eye(self.problem.d)[column])
            interval = spread.interval(estimate, LEVEL)
            listed.append({
                "name": str(column), "estimate": estimate, "standard_error": spread.standard_error,
                "interval": None if interval is None else list(interval), "solver_error": spread.solver_error,
            })  # fmt: skip
        return listed

    def to_dict(self) -> dict[str, Any]:
        """All facts as plain data for JSON; what is unknown or not finite is None."""
        result = self.result
        facts = {
            "policy_value": {**vars(self.policy_value)},
            "values": self.values,
            "discount": self.discount,
            "trace": self.trace,
            "ridge": self.ridge,
            "seed": self.seed,
            "steps": len(self.log),
            "episodes": len(self.log.episodes),
            "policy": None if self.policy is None else self.policy.name,
            "features": {"count": self.problem.d, "without_data": len(self.problem.dead), "spec": self.features.spec,
                         "description": self.features.sentence},
            "solver": {"name": result.solver, "settings": result.settings, "status": result.status,
                       "message": result.message, "passes": result.passes, "seconds": result.seconds,
                       "gap": result.gap, "objective": result.objective, "residual": result.residual,
                       "tol": result.tol},
            "weights": self.weights,
            "notes": self.notes,
            "warnings": self.warnings,
        }  # fmt: skip
        plain: dict[str, Any] = as_plain(facts)
        return plain

    def summary(self) -> str:
        """A page of text: header, estimate with its interval, weights where they are few, notes and warnings."""
        return summary(self.to_dict())

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write everything, the log included, to one .npz file; nothing is overwritten without `force`."""
        facts = {
            "policy_value": vars(self.policy_value),
            **{name: getattr(self, name) for name in SETTINGS},
            "notes": self.notes,
            "warnings": self.warnings,
            "spec": self.features.spec,
            "fingerprint": self._fingerprint(),
            "policy": None if self.policy is None else self.policy.name,
        }
        table = None if self.policy is None else self.policy.table
        stored = storage.Stored(as_plain(facts), self.log, self.result, table)
        return storage.write(stored, Path(path), force=force)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, features: Any = None, policy: Any = None) -> Evaluation:
        """Read what `save` wrote; nothing is unpickled.

        features: needed again where they were the user's own (built-in ones are in the file); they are checked
        on observations of the log. policy: likewise for state-action values of a policy that is a callable.
        """
        path = Path(path)
        stored = storage.read(path)
        facts, log, result = stored.facts, stored.log, stored.result
        try:
            settings = {name: facts[name] for name in SETTINGS}
            value = dict(facts["policy_value"])
            value["interval"] = None if value["interval"] is None else tuple(value["interval"])
            kept = PolicyValue(**value), list(map(str, facts["notes"])), list(map(str, facts["warnings"]))
            spec, wanted, named = facts["spec"], np.asarray(facts["fingerprint"], float), facts["policy"]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise storage.not_an_evaluation(path, error) from error
        fitted = _stored_features(spec, features, log, path)
        found = _stored_policy(named, policy, stored.policy_table, settings["values"], path)
        problem = make_problem(
            log, fitted, found, settings["values"], settings["discount"], settings["trace"], settings["ridge"]
        )
        if result.theta.shape != (problem.d,) or not np.isfinite(result.theta).all():
            raise ValueError(
                f"{path} holds {result.theta.size} weights, but these features are {problem.d}. Give the features (and "
                "the policy) that it was made with."
            )
        policy_value, notes, warnings = kept
        loaded = cls(
            log=log, problem=problem, result=result, features=fitted, policy=found, policy_value=policy_value,
            notes=notes, warnings=warnings, **settings,
        )  # fmt: skip
        here = loaded._fingerprint()
        if here.shape != wanted.shape or not np.allclose(here, wanted, rtol=CLOSE, atol=CLOSE * np.abs(wanted).max()):
            raise ValueError(
                f"The features (or the policy) given are not those that {path} was made with: on observations of its "
                "log they give other rows."
            )
        return loaded

    def _fingerprint(self) -> Array:
        """Rows of some observations of the log times a fixed vector: numbers that other features would not give.

        Numbers and not a hash, for the last digit of a cosine differs from machine to machine.
        """
        chosen = np.unique(np.linspace(0, len(self.log) - 1, PROBES).astype(int))
        rows = self._rows(self.log.observations[self.log.now[chosen]])
        return np.asarray(rows @ np.cos(1 + np.arange(rows.shape[1]) ** 1.5), dtype=np.float64).ravel()

    def report(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write one self-contained HTML page with figures (extra `plot`); overwrites nothing without `force`."""
        # a view of this object, so it stands to the right of this module
        return importlib.import_module("valuefit.report.page").write_report(self, path, force=force)


def evaluate(
    log: Any,
    *,
    features: Any = "auto",
    discount: float = 0.99,
    policy: Any = None,
    trace: float = 0.0,
    ridge: float = 0.0,
    values: str = "state",
    solver: str | Solver = "auto",
    tol: float | Literal["statistical"] = "statistical",
    max_passes: float = 500,
    seed: int = 0,
    starts: Any = None,
    columns: Any = None,
    callback: Callable[[Progress], Any] | None = None,
) -> Evaluation:
    """How good the policy is, from the log alone: the mean value over the starts, with a 95% interval.

    log, columns: a `Transitions`, or whatever `valuefit.load` takes. features: a name ("auto", "fourier:order=5", ...),
    a scikit-learn transformer or a callable. discount: what a reward one step later is worth. policy: None takes the
    log as it is (on-policy, or by its own ratios); else a callable, a table or probabilities of the logged actions.
    values: "state" weighs steps by ratios, so a policy needs `behaviour_prob` in the log; "state-action" learns a value
    for each action and needs none. starts: observations to average over; the first of each episode if None.
    trace, ridge, solver, tol, max_passes, seed, callback: as in `Problem` and `solve`.

    The interval covers the fixed point of the features, not what the features cannot express; episodes are the
    clusters of its sandwich covariance. With tol="statistical" the solver goes on until the policy value, and the
    weights where they are listed, are within a tenth of their standard errors of where they would end, or the gap is
    1e-6.
    """
    log = load(log, columns=columns)
    if values not in VALUES:
        raise ValueError(f'values is {values!r}; it must be "state" or "state-action".')
    notes = [*log.notes]
    found = None if policy is None else find_policy(policy, allow_code=True)
    if found is not None and values == "state":
        log = with_ratios(log, found)
    notes.append(_how(log, found, values))
    fitted, sentence = make(features, log)
    notes.append(sentence)
    problem = make_problem(log, fitted, found, values, discount, trace, ridge)
    over = starts_of(log, problem, fitted, found, values, starts)
    sandwich = Sandwich(problem, np.zeros(problem.d), log.episode)
    result = solve(
        problem, solver, tol=tol, max_passes=max_passes, seed=seed, callback=callback,
        reported=Reported(sandwich, over),
    )  # fmt: skip
    notes.append(f"Solved with {result.solver}: {result.message}")
    sandwich = sandwich.at(result.theta)
    value, spread = at_starts(log, sandwich, over, values)
    notes.append(_where(value, starts, sandwich))
    warnings = doubts(log, problem, result, sandwich, spread, discount=float(discount))
    if values == "state-action":
        warnings += of_unseen(unseen_share(log, fitted, policy=found))
    return Evaluation(
        log=log,
        problem=problem,
        result=result,
        features=fitted,
        policy=found,
        discount=float(discount),
        trace=problem.trace,
        ridge=problem.ridge,
        values=values,
        seed=int(seed),
        policy_value=value,
        notes=notes,
        warnings=warnings,
    )


def make_problem(
    log: Transitions, fitted: Fitted, policy: Policy | None, values: str, discount: float, trace: float, ridge: float
) -> Problem:
    """What is to be solved, for values of states or of states and actions."""
    if values == "state":
        return Problem(log, fitted, discount=discount, trace=trace, ridge=ridge)
    return state_action_problem(log, fitted, policy=policy, discount=discount, trace=trace, ridge=ridge)


def _how(log: Transitions, policy: Policy | None, values: str) -> str:
    """How the policy enters, in words."""
    if values == "state-action":
        name = "the policy" if policy is None else policy.name
        return f"Off-policy by state-action values: what follows a step is averaged over the actions of {name}."
    if policy is not None:
        return f"Off-policy: steps are weighed by the probability of their action under {policy.name} / behaviour_prob."
    if (log.ratio != 1).any():
        return "Off-policy: steps are weighed by the ratios of the log."
    if log.behaviour_prob is not None:
        return (
            "The log has behaviour_prob, but no target policy was named: it was taken as on-policy, so this is the "
            "value of the policy that acted."
        )
    return "On-policy: this is the value of the policy that acted."


def _where(value: PolicyValue, starts: Any, sandwich: Sandwich) -> str:
    """Over what the value is averaged, and where its error comes from."""
    over = f"the first observations of {value.starts} episodes" if starts is None else f"{value.starts} given starts"
    if value.standard_error is None:
        return f"The policy value is the mean over {over}."
    parts = "blocks of steps" if sandwich.blocks else "episodes"
    return (
        f"The policy value is the mean over {over}; its standard error is the sandwich over {sandwich.clusters} "
        f"{parts}, with the factor {sandwich.clusters}/{sandwich.clusters - 1} and Student's t."
    )


def _stored_features(spec: dict[str, Any] | None, given: Any, log: Transitions, path: Path) -> Fitted:
    if given is not None:
        return make(given, log)[0]
    if spec is None:
        raise ValueError(
            f"{path} was made with features of your own, which a file cannot hold. Give them again: "
            "Evaluation.load(path, features=...)."
        )
    return from_spec(spec)


def _stored_policy(name: str | None, given: Any, table: Array | None, values: str, path: Path) -> Policy | None:
    if given is not None:
        return find_policy(given, allow_code=True)
    if name is None:
        return None
    if table is not None:
        return replace(find_policy(table), name=str(name))
    if values == "state":  # its ratios are in the log, and nothing else is asked of it
        return Policy(str(name))
    raise ValueError(
        f"{path} was made with the policy {name}, which is code, and a file cannot hold that. Give it again: "
        "Evaluation.load(path, policy=...)."
    )
