"""One call from a log to the policy's value: `evaluate`, and what it gives."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from valuefit.data.load import load
from valuefit.data.transitions import Array, Transitions, check_observations
from valuefit.engine.loop import Progress, solve
from valuefit.engine.result import Result
from valuefit.evaluation.diagnostics import doubts, of_unseen
from valuefit.evaluation.policy import (
    Policy,
    action_probabilities,
    effective_sample_size,
    find_policy,
    state_action_problem,
    unseen_share,
    with_ratios,
)
from valuefit.evaluation.sandwich import Sandwich, Spread
from valuefit.evaluation.text import summary
from valuefit.features.registry import Fitted, make
from valuefit.problem.problem import Problem
from valuefit.solvers.solver import Solver

LEVEL = 0.95
SHOWN = 20  # weights, at most, that are listed one by one
CLEARLY = 1.2  # over what an earlier standard error allows, from where a new one would not make up for it
VALUES = ("state", "state-action")


@dataclass(frozen=True)
class PolicyValue:
    """The mean value over the starts, and how far chance may have moved it.

    standard_error and interval are None where the log cannot tell them; a warning then says why.
    starts: how many. effective_sample_size: steps that the ratios leave, None where there are no ratios.
    solver_error: how far the solver stopped from where it would end, which the interval is wider by on both sides;
    None where it cannot be told.
    """

    estimate: float
    standard_error: float | None
    interval: tuple[float, float] | None
    level: float
    starts: int
    effective_sample_size: float | None = None
    solver_error: float | None = None

    def __repr__(self) -> str:
        if self.standard_error is None or self.interval is None:
            return f"PolicyValue({self.estimate:.5g}, standard error unknown, {self.starts} starts)"
        low, high = self.interval
        return (
            f"PolicyValue({self.estimate:.5g}, standard error {self.standard_error:.2g}, "
            f"{100 * self.level:g}% interval {low:.5g} to {high:.5g}, {self.starts} starts)"
        )


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
        return importlib.import_module("valuefit.evaluation.storage").write(self, Path(path), force=force)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, features: Any = None, policy: Any = None) -> Evaluation:
        """Read what `save` wrote; nothing is unpickled.

        features: needed again where they were the user's own (built-in ones are in the file); they are checked
        on observations of the log. policy: likewise for state-action values of a policy that is a callable.
        """
        return importlib.import_module("valuefit.evaluation.storage").read(Path(path), features=features, policy=policy)

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
    over = _starts(log, problem, fitted, found, values, starts)
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


def value_rows(
    fitted: Fitted, values: str, policy: Policy | None, columns: int, observations: Any, actions: Any = None
) -> Any:
    """Rows whose product with theta is the value: of states, of pairs, or of states under the policy."""
    observations = check_observations("observations", observations)
    if values == "state":
        if actions is not None:
            raise ValueError(
                'These are values of states; actions have none. Evaluate with values="state-action" for those.'
            )
        return fitted.transform(observations)
    from valuefit.data.transitions import numbers
    from valuefit.features.state_action import one_hot, spread

    count = columns // fitted.columns
    if actions is None:
        weights = action_probabilities(policy, observations, count)
    else:
        weights = one_hot(numbers("actions", actions, length=len(observations), dtype=np.int64), count)
    return spread(fitted.transform(observations), weights)


class Starts(NamedTuple):
    """What the policy value is averaged over: rows whose products with theta are the values there.

    first: the steps of the log that these are the starts of, None where others were given.
    """

    rows: Any
    c: Array  # their mean
    first: Array | None


def _starts(
    log: Transitions, problem: Problem, fitted: Fitted, policy: Policy | None, values: str, starts: Any
) -> Starts:
    first = None
    if starts is None:
        first = np.sort(np.unique(log.episode, return_index=True)[1])  # not `begins`, which also marks gaps of a slice
    given = np.asarray(starts) if first is None else log.observations[log.now[first]]
    if given.shape[:1] == (0,):
        raise ValueError("starts is empty: give at least one observation, or None for those of the log.")
    rows = value_rows(fitted, values, policy, problem.d, given)
    return Starts(rows, np.asarray(rows.mean(axis=0), dtype=np.float64).ravel(), first)


def _spread(sandwich: Sandwich, over: Starts) -> tuple[Array, Spread]:
    """The values at the starts and the spread of their mean; if they are the log's own, how they vary counts too."""
    each, share = _shares(sandwich, over)
    return each, sandwich.error(over.c, share)


def _shares(sandwich: Sandwich, over: Starts) -> tuple[Array, Array | None]:
    """The values at the starts, and what every step adds to the spread of their mean where they are the log's own."""
    each = np.asarray(over.rows @ sandwich.theta).ravel()
    share = None
    if over.first is not None:
        share = np.zeros(sandwich.problem.n)
        share[over.first] = (each - each.mean()) / len(each)
    return each, share


class Reported:
    """How near what is reported is to where it would end: called with weights, as `solve` does.

    Gives the largest solver error over a tenth of its standard error, and the passes of this look; infinite where the
    policy value has no standard error to compare with. Standard errors hardly change any more once they were looked
    at: where those of an earlier look say that it is not near enough yet, no new ones are taken.
    """

    def __init__(self, sandwich: Sandwich, over: Starts) -> None:
        self.sandwich, self.over = sandwich, over
        d = sandwich.problem.d
        self.numbers: list[Array] = [over.c, *(np.eye(d) if d <= SHOWN else ())]
        self.allowed: list[float | None] | None = None  # errors, as of the last look

    def __call__(self, theta: Array) -> tuple[float, float]:
        sandwich = self.sandwich.at(theta)
        cheap, dear = sandwich.passes(len(self.numbers))
        if self.allowed is not None:
            off = self._over(sandwich.solver_errors(self.numbers))
            if off > CLEARLY:
                return off, cheap
        share = _shares(sandwich, self.over)[1]
        spreads = sandwich.errors([(c, share if c is self.over.c else None) for c in self.numbers])
        if spreads[0].solver_error is None:
            return np.inf, cheap + dear
        self.allowed = [spread.allowed for spread in spreads]
        return max(spread.unfinished for spread in spreads), cheap + dear

    def _over(self, errors: list[float | None]) -> float:
        assert self.allowed is not None
        pairs = [(error, allowed) for error, allowed in zip(errors, self.allowed, strict=True) if error and allowed]
        return max((error / allowed for error, allowed in pairs), default=0.0)


def at_starts(log: Transitions, sandwich: Sandwich, over: Starts, values: str) -> tuple[PolicyValue, Spread]:
    """The mean value over the starts."""
    each, spread = _spread(sandwich, over)
    estimate = float(each.mean())
    ratios = values == "state" and bool((log.ratio != 1).any())
    value = PolicyValue(
        estimate=estimate,
        standard_error=spread.standard_error,
        interval=spread.interval(estimate, LEVEL),
        level=LEVEL,
        starts=len(each),
        effective_sample_size=effective_sample_size(log.ratio) if ratios else None,
        solver_error=spread.solver_error,
    )
    return value, spread


def as_plain(value: Any) -> Any:
    """Numbers, text, lists and dicts that JSON knows; None for what is not finite."""
    if isinstance(value, dict):
        return {str(key): as_plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(entry) for entry in value]
    if isinstance(value, np.generic | np.ndarray):
        return as_plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


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
