"""The change of the policy value where finer features take the place of those that are too coarse."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from valuefit.checks.instruments import MAX_COLUMNS
from valuefit.engine.loop import solve
from valuefit.features.kernel import STEPS_PER_LANDMARK
from valuefit.features.registry import MAX_AUTO_OPERATIONS, StepCount, landmark_count, make, name_of
from valuefit.inference.adjoints import Equations
from valuefit.inference.errors import Errors
from valuefit.inference.fit import Fit
from valuefit.inference.inputs import make_problem
from valuefit.inference.policy_value import starts_of
from valuefit.memory import fits

FINER = 2  # times as many landmarks


class FinerChange(NamedTuple):
    """Change of the policy value with these features, an argument of `evaluate`, and its paired standard error."""

    features: str
    value: float
    standard_error: float


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
    landmarks = _actions(fit) * len(fit.features.transformer.landmarks_)
    return _steps(fit).effective < STEPS_PER_LANDMARK * landmarks


def _landmarks(fit: Fit) -> int:
    if name_of(fit.features.transformer) == "kernel":
        return FINER * len(fit.features.transformer.landmarks_)
    return FINER * landmark_count(_steps(fit))


def _steps(fit: Fit) -> StepCount:
    return StepCount(len(fit.log), _actions(fit), fit.log.effective_share if fit.values == "state" else 1.0)


def _actions(fit: Fit) -> int:
    return fit.problem.d // fit.features.columns


def _affordable(fit: Fit) -> bool:
    """Whether "auto" would take as much time, and the rows fit into memory."""
    if fit.log.has_numbered_states:
        return True  # their rows have one entry
    if math.prod(fit.log.observations.shape[1:]) > MAX_COLUMNS:
        return False
    steps, weights = len(fit.log), _actions(fit) * (1 + _landmarks(fit))
    return steps * weights**2 <= MAX_AUTO_OPERATIONS and fits(2 * steps * weights)


def finer_change(fit: Fit) -> FinerChange | None:
    """The change with `finer_features`; None where it is unknown, or where they cost too much time or memory."""
    log, own = fit.log, fit.errors
    unknown = fit.starts.first is None or fit.problem.ridge or own.equations.iterative
    if unknown or not _affordable(fit):
        return None
    name = finer_features(fit)
    features, _ = make(name, log)
    problem = make_problem(log, features, fit.policy, fit.values, fit.discount, fit.problem.trace, 0.0)
    starts = starts_of(log, problem, features, fit.policy, fit.values, None)
    theta = solve(problem, "lstd", seed=fit.seed).theta
    equations, shard = Equations.of(problem, theta), own.whole.shard
    if equations.iterative:
        return None
    (mine,) = Errors.in_memory(own.equations, shard, "cr1").parts([fit.starts])
    (other,) = Errors.in_memory(equations, shard.of_problem(problem), "cr1").parts([starts])
    if mine is None or other is None:
        return None
    return FinerChange(name, float(starts.c @ theta) - fit.value.estimate, float(np.linalg.norm(other - mine)))
