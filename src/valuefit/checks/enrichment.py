"""The change of the policy value where functions of the observations or of the history are added to the features.

With the instruments z_t as further features, LSTD gives them the weights gamma = S^-1 M, where
M = sum ratio_t z_t delta_t, S = sum ratio_t z_t (y_t - x'v_t)', y_t = z_t - discount_t z'_t and x = A^-1 mean u_t y_t'.
theta changes by -x gamma. Traces are those of the features; the equations that are added have none.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from valuefit.checks.alternatives import Change
from valuefit.checks.instruments import Instruments, action_count
from valuefit.checks.moments import TDMoments
from valuefit.checks.numerics import MIN_STEPS_PER_WEIGHT
from valuefit.checks.regression import coefficients_of, with_constant
from valuefit.inference.error_estimate import count_factor
from valuefit.inference.fit import Fit
from valuefit.policies.importance import action_probabilities
from valuefit.rows.storage import TEMPORARY_BYTES
from valuefit.typing import Array

OBSERVED = {"state": "the observation", "state-action": "the observation and the action"}  # by values


class Functions(NamedTuple):
    """Values of the added functions: at some steps, (m, k), after these, (m, k), and at the starts, (starts, k)."""

    now: Array
    after: Array
    starts: Array


def enrichment(fit: Fit, moments: TDMoments, steps: Array, *, history: bool = False) -> Change | None:
    """The change by adding the instruments of the current observation, whose equations are those of these steps.

    history: instruments of the history instead, less their regression on those of the observation. None where starts
    were given, moments are too expensive to form, or a log with traces is too large.
    """
    problem, inside, first = moments.problem, moments.influences, fit.starts.first
    if first is None or moments.iterative:
        return None
    if problem.trace and len(steps) < problem.n:  # u_t depends on all steps before
        return None
    if fit.values == "state-action" and not problem.trace:  # instruments are evaluated for each action
        steps = steps[:: 1 + len(steps) * action_count(fit) // 60_000]
    added = _functions(fit, steps, first, history=history)
    z = added.now
    y = z - problem.discount[steps, None] * added.after
    weighted = problem.ratio[steps, None] * z
    B = moments.derivative(steps, z)
    x = inside.equations.solver.respond(np.zeros((problem.d, y.shape[1])), _mean_with_u(moments, steps, y))
    S = weighted.T @ y - B @ x
    starts = added.starts - np.asarray(fit.starts.rows @ x)
    inverse = np.linalg.pinv(S, rcond=1e-6)
    gamma = inverse @ (weighted.T @ moments.td_errors[steps])
    g = inverse.T @ starts.mean(axis=0)
    # the influence of each cluster on the enriched value, minus that on the value
    reduction = np.zeros(problem.n)
    reduction[steps] = moments.v_products(steps, x @ gamma) - y @ gamma
    error = moments.td_errors + reduction
    theta_change = inside.changes(np.full(problem.n, problem.n / len(steps)), reduction)
    parts = moments.by_cluster(steps, (weighted @ g * error[steps])[:, None])[:, 0]
    parts -= (moments.changes + theta_change) @ (B.T @ g)
    parts += theta_change @ fit.starts.c
    values = starts @ gamma
    clusters = inside.shard.clusters
    parts += np.bincount(clusters.of_step[first], (values - values.mean()) / len(values), clusters.count)
    scale = count_factor("cr1", clusters.count)
    what = "these" if history else OBSERVED[fit.values]
    setting = f"{z.shape[1]} random functions of {what} added to the features,"
    return Change(setting, float(values.mean()), float(scale * np.linalg.norm(parts)))


def _functions(fit: Fit, steps: Array, first: Array, *, history: bool) -> Functions:
    log = fit.log
    instruments = Instruments(log, actions=fit.values == "state-action", seed=fit.seed)
    after = np.where(log.next[steps] < 0, log.now[steps], log.next[steps])
    current = Functions(
        instruments.logged(steps), _expected(fit, instruments, after), _expected(fit, instruments, log.now[first])
    )
    count = max(1, len(steps) // MIN_STEPS_PER_WEIGHT)
    if not history:
        return Functions(*(values[:, :count] for values in current))
    past = Functions(instruments.history(steps), instruments.history_after(steps), instruments.history(first))
    coefficients = coefficients_of(with_constant(current.now), past.now, fit.problem.ratio[steps])
    return Functions(
        *(
            (values - with_constant(of_observation) @ coefficients)[:, :count]
            for values, of_observation in zip(past, current, strict=True)
        )
    )


def _mean_with_u(moments: TDMoments, steps: Array, y: Array) -> Array:
    """mean u_t y_t' over these steps, (k, columns)."""
    problem = moments.problem
    weights = problem.ratio[steps, None] * y
    if problem.trace:  # all steps are used
        weights = np.column_stack([problem.backward(np.ascontiguousarray(column)) for column in y.T])
    total = np.zeros((problem.k, y.shape[1]))
    size = max(1, TEMPORARY_BYTES // (8 * problem.k))
    for start in range(0, len(steps), size):
        here = slice(start, start + size)
        total += problem.psi.take(problem.now[steps[here]]).T @ weights[here]
    return total / len(steps)


def _expected(fit: Fit, instruments: Instruments, rows: Array) -> Array:
    """Instruments at these rows of the observations, averaged over the actions of the policy if they depend on them."""
    if fit.values == "state":
        return instruments.current(rows)
    probabilities = action_probabilities(fit.policy, fit.log.observations[rows], action_count(fit))
    return sum(
        probability[:, None] * instruments.current(rows, np.full(len(rows), code))
        for probability, code in zip(probabilities.T, instruments.codes_of(action_count(fit)), strict=True)
        if code >= 0  # an action that the log never takes has no data
    )
