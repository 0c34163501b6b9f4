"""The policy value with other traces, which should give the same one, and with finer features."""

from __future__ import annotations

import copy
import math
from typing import NamedTuple

import numpy as np
from scipy.special import stdtr

from valuefit.checks.check import HypothesisTest
from valuefit.checks.instruments import MAX_COLUMNS, action_count
from valuefit.engine.loop import solve
from valuefit.features.kernel import STEPS_PER_LANDMARK
from valuefit.features.registry import MAX_AUTO_OPERATIONS, StepCount, landmark_count, make, name_of
from valuefit.inference.adjoints import Equations
from valuefit.inference.error_estimate import LinearFunction
from valuefit.inference.errors import Errors
from valuefit.inference.fit import Fit
from valuefit.inference.inputs import make_problem
from valuefit.inference.policy_value import starts_of
from valuefit.memory import fits
from valuefit.problem.arguments import MAX_RATIO
from valuefit.problem.problem import Problem


class Change(NamedTuple):
    """The policy value with another setting minus that of the evaluation, and its paired standard error.

    setting: in words, as '`features="one-hot"`'.
    """

    setting: str
    value: float
    standard_error: float

    def text(self, fit: Fit) -> str:
        """Return the words on this change from the value of a fit."""
        return (
            f"With {self.setting} the policy value would change by {self.value:.3g} (standard error "
            f"{self.standard_error:.2g}; that of the policy value is {fit.value.standard_error:.2g})"
        )


def paired_change(
    setting: str, errors: Errors, starts: LinearFunction, other: Equations, other_starts: LinearFunction
) -> Change | None:
    """The change from the mean value over the starts to that of other equations of the same log.

    None where a standard error is unknown.
    """
    shard = errors.whole.shard.of_problem(other.problem)
    (old,), (new,) = errors.parts([starts]), Errors.in_memory(other, shard, errors.kind).parts([other_starts])
    if old is None or new is None:
        return None
    change = float(other_starts.c @ other.theta - starts.c @ errors.equations.theta)
    return Change(setting, change, float(np.linalg.norm(new - old)))


# ---- traces -------------------------------------------------------------------------------------------------------


def trace_tests(fit: Fit) -> list[HypothesisTest]:
    """Tests whether other traces give the same value without a ridge, as they do if the features can express it.

    Traces whose products of ratios leave the range of float64 are left out.
    """
    without = fit.without_ridge
    if not fit.value.standard_error or (fit.problem.ridge and without.equations.iterative):
        return []
    tests = []
    for trace in (0.0, 0.5, 0.9):
        problem = with_trace(without.equations.problem, trace)
        with np.errstate(over="ignore", invalid="ignore"):
            inside = bool((problem.forward(np.ones(problem.n)) <= MAX_RATIO).all())
        if trace == fit.problem.trace or not inside:
            continue
        theta = solve(problem, "auto", tol=1e-10, seed=fit.seed).theta
        change = paired_change(f"trace {trace:g}", without, fit.starts, Equations.of(problem, theta), fit.starts)
        if change is None or not change.standard_error:
            continue
        t, size = change.value / change.standard_error, change.value / fit.value.standard_error
        text = f"With {change.setting} the policy value changes by {change.value:.3g} ({size:.2g} standard errors)"
        tests.append(
            HypothesisTest(
                change.setting, t, 2 * float(stdtr(fit.error.degrees_of_freedom, -abs(t))), f"{text}.",
                f"{text}, more than its sampling error: the features cannot express the value, or the observations do "
                "not contain all that matters. Use richer features, or add earlier observations to them.",
                abs(size),
            )
        )  # fmt: skip
    return tests


def with_trace(problem: Problem, trace: float) -> Problem:
    """The problem over the same rows with another trace; what does not depend on it is shared."""
    other = copy.copy(problem)
    for name in ("traits", "cost", "A", "b", "u", "u_squared", "u_squared_bound"):  # cached, on the trace
        other.__dict__.pop(name, None)
    other.trace = trace
    return other


# ---- finer features -----------------------------------------------------------------------------------------------


def richer_features(fit: Fit) -> str:
    """Richer features than those of this fit, an argument of `evaluate`: twice the landmarks, or "auto"."""
    return finer_features(fit) if name_of(fit.features.transformer) == "kernel" else "auto"


def finer_features(fit: Fit) -> str:
    """Twice as many landmarks as this fit or "auto" has; one-hot features of numbered states."""
    return "one-hot" if fit.log.has_numbered_states else f"kernel:landmarks={_landmarks(fit)}"


def too_short_for_more(fit: Fit) -> bool:
    """Whether kernel features have fewer than `STEPS_PER_LANDMARK` effective steps of the log for each landmark."""
    if name_of(fit.features.transformer) != "kernel" or fit.log.has_numbered_states:
        return False
    landmarks = action_count(fit) * len(fit.features.transformer.landmarks_)
    return _steps(fit).effective < STEPS_PER_LANDMARK * landmarks


def _landmarks(fit: Fit) -> int:
    if name_of(fit.features.transformer) == "kernel":
        return 2 * len(fit.features.transformer.landmarks_)
    return 2 * landmark_count(_steps(fit))


def _steps(fit: Fit) -> StepCount:
    return StepCount(len(fit.log), action_count(fit), fit.log.effective_share if fit.values == "state" else 1.0)


def _affordable(fit: Fit) -> bool:
    """Whether "auto" would take as much time, and the rows fit into memory."""
    if fit.log.has_numbered_states:
        return True  # their rows have one entry
    if math.prod(fit.log.observations.shape[1:]) > MAX_COLUMNS:
        return False
    steps, weights = len(fit.log), action_count(fit) * (1 + _landmarks(fit))
    return steps * weights**2 <= MAX_AUTO_OPERATIONS and fits(2 * steps * weights)


def finer_change(fit: Fit) -> Change | None:
    """The change with `finer_features`; None where it is unknown, or where they cost too much time or memory."""
    log, own = fit.log, fit.errors
    unknown = fit.starts.first is None or fit.problem.ridge or own.equations.iterative
    if unknown or not _affordable(fit):
        return None
    name = finer_features(fit)
    features, _ = make(name, log)
    problem = make_problem(log, features, fit.policy, fit.values, fit.discount, fit.problem.trace, 0.0)
    starts = starts_of(log, problem, features, fit.policy, fit.values, None)
    finer = Equations.of(problem, solve(problem, "lstd", seed=fit.seed).theta)
    if finer.iterative:
        return None
    errors = Errors.in_memory(own.equations, own.whole.shard, "cr1")
    return paired_change(f'`features="{name}"`', errors, fit.starts, finer, starts)
