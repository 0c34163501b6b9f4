"""The change of the policy value where finer features take the place of those that are too coarse."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from valuefit.engine.loop import solve
from valuefit.evaluation.errors import ErrorEstimate
from valuefit.evaluation.fit import Fit
from valuefit.evaluation.inputs import make_problem
from valuefit.evaluation.policy_value import starts_of
from valuefit.evaluation.sandwich import AdjointMethod, Sandwich
from valuefit.features.registry import MAX_AUTO_OPERATIONS, StepCount, landmark_count, make, name_of
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
    log, actions = fit.log, fit.problem.d // fit.features.columns
    if log.has_numbered_states:
        return "one-hot"
    if name_of(fit.features.transformer) == "kernel":
        return f"kernel:landmarks={FINER * len(fit.features.transformer.landmarks_)}"
    share = log.effective_share if fit.values == "state" else 1.0
    return f"kernel:landmarks={FINER * landmark_count(StepCount(len(log), actions, share))}"


def finer_change(fit: Fit) -> FinerChange | None:
    """The change with `finer_features`; None where it is unknown, or where they cost too much time or memory."""
    log, own = fit.log, fit.errors.sandwich
    if (
        not fit.value.standard_error
        or fit.starts.first is None
        or fit.problem.ridge
        or own.method is AdjointMethod.ITERATIVE
    ):
        return None
    name = finer_features(fit)
    features, _ = make(name, log)
    weights = features.columns * (fit.problem.d // fit.features.columns)
    if len(log) * weights**2 > MAX_AUTO_OPERATIONS or not fits(2 * len(log) * weights):
        return None
    problem = make_problem(log, features, fit.policy, fit.values, fit.discount, fit.problem.trace, 0.0)
    starts = starts_of(log, problem, features, fit.policy, fit.values, None)
    theta = solve(problem, "lstd", seed=fit.seed).theta
    finer = Sandwich(problem, theta, own.episode).with_clusters(own.cluster, blocks=own.blocks)
    if finer.method is AdjointMethod.ITERATIVE:
        return None
    mine, other = own.influences([fit.starts])[0], finer.influences([starts])[0]
    if isinstance(mine, ErrorEstimate) or isinstance(other, ErrorEstimate):
        return None
    error = float(np.linalg.norm(finer.contributions(other) - own.contributions(mine)))
    return FinerChange(name, float(starts.c @ theta) - fit.value.estimate, error)
