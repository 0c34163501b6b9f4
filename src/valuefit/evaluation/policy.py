"""Target policies at work: probabilities of actions, ratios of the logged ones, the state-action problem (LSTD-Q)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sparse

from valuefit.data.transitions import Array, Transitions, numbers
from valuefit.evaluation.target import Policy, checked, find_policy, whole_rows
from valuefit.features.registry import make
from valuefit.problem.problem import Problem
from valuefit.rows.storage import require_memory

__all__ = [
    "Policy", "action_probabilities", "effective_sample_size", "find_policy", "ratios", "state_action_problem",
    "target_probabilities", "unseen_share", "with_ratios",
]  # fmt: skip

UNSEEN_LIMIT = 0.01  # probability that a policy may give to actions the log never takes


def target_probabilities(policy: Any, log: Transitions) -> Array:
    """pi(logged action | observation) of every step, (n,): of the action that was taken, never of a drawn one."""
    found = find_policy(policy)
    if found.by_step is not None:
        if len(found.by_step) != len(log):
            raise ValueError(
                f"{found.name} has {len(found.by_step)} probabilities but the log has {len(log)} steps. Give one a "
                "step, or a table with one row a state and one column an action."
            )
        return checked(found.by_step, found.name, densities=log.action is not None and continuous(log.action))
    if log.action is None:
        raise ValueError(
            "The log has no actions, so the probability of the logged one cannot be looked up. Give the action column, "
            "or one target probability a step."
        )
    if found.takes_actions:
        assert found.function is not None
        values = np.asarray(found.function(log.observations[log.now], np.asarray(log.action)))
        if values.shape != (len(log),):
            raise ValueError(
                f"The policy {found.name} gave an array of shape {values.shape} for {len(log)} observations and "
                "actions. It must give one probability each."
            )
        return checked(values, f"The policy {found.name}", densities=continuous(log.action))
    action = whole_actions(log)
    used, place = np.unique(log.now, return_inverse=True)
    table = action_probabilities(found, log.observations[used], None)
    fit_actions(action, table.shape[1], found.name)
    return table[place, action]


def action_probabilities(policy: Any, observations: Any, actions: int | None) -> Array:
    """pi(a | observation) for every observation and action, (m, actions).

    actions: how many there are; None takes as many as the policy gives, which a policy
    `f(observations, actions)` cannot say.
    """
    found = find_policy(policy)
    observations = np.asarray(observations)
    if found.table is not None:
        values = found.table[states_of(observations, len(found.table), found.name)]
    elif found.function is None:
        raise ValueError(
            f"{found.name} gives the probability of the logged action only, but here those of all actions are needed. "
            "Give a table (states x actions) or a callable."
        )
    elif found.takes_actions:
        if actions is None:
            raise ValueError(f"The policy {found.name} takes actions, so say how many there are.")
        columns = [found.function(observations, np.full(len(observations), a)) for a in range(actions)]
        values = np.stack([np.asarray(column) for column in columns], axis=-1)
    else:
        values = np.asarray(found.function(observations))
    if values.ndim != 2 or len(values) != len(observations) or values.shape[1] == 0:
        looks = " That looks like actions: give their probabilities instead." if values.ndim == 1 else ""
        raise ValueError(
            f"The policy {found.name} gave an array of shape {values.shape} for {len(observations)} observations. "
            f"It must give one row an observation and one column an action.{looks}"
        )
    return whole_rows(checked(values, f"The policy {found.name}"), found.name, actions)


def ratios(policy: Any, log: Transitions) -> Array:
    """Importance ratios pi(a | s) / behaviour_prob of the logged actions, (n,)."""
    if log.behaviour_prob is None:
        raise ValueError(
            "The log does not say how probable the logged actions were, so ratios to the target policy are unknown. "
            'Either give behaviour_prob, or use values="state-action", which needs none.'
        )
    target = target_probabilities(policy, log)
    with np.errstate(over="ignore"):
        values = target / log.behaviour_prob
    if not np.isfinite(values).all():
        where = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ValueError(f"behaviour_prob is {log.behaviour_prob[where]} at step {where}, too small to divide by.")
    if not values.any():
        raise ValueError(
            "The target policy gives probability 0 to every logged action, so the log says nothing about it. Check "
            "that its actions are numbered as in the log."
        )
    return values


def with_ratios(log: Transitions, policy: Any) -> Transitions:
    """The log with the ratios of this policy in place of its own."""
    return replace(log, ratio=ratios(policy, log))._frozen()


def effective_sample_size(weights: Any) -> float:
    """(sum w)^2 / sum w^2: as many equally weighted steps would say as much; 0 where all weights are 0."""
    weights = numbers("weights", weights)
    largest = np.abs(weights).max(initial=0.0)
    if largest == 0:
        return 0.0
    weights = weights / largest  # squares of very large or small ratios would leave the range of floats
    return float(weights.sum() ** 2 / (weights @ weights))


# ---- state-action values ------------------------------------------------------------------------------------


def state_action_problem(
    log: Transitions,
    state_features: Any,
    *,
    policy: Any,
    discount: float = 0.99,
    trace: float = 0.0,
    ridge: float = 0.0,
) -> Problem:
    """LSTD-Q: Q(s, a) = theta_a' phi(s) of the target policy, from a log of any behaviour, without ratios.

    The row of a step is phi(s_t, a_t), the one after it sum over a of pi(a | s_{t+1}) phi(s_{t+1}, a), none where the
    episode terminated. The weights of action a are theta[a d : (a + 1) d]; `StateAction(...).expected` gives
    rows whose product with theta is the value of a state under the policy. Ratios of the log are not used. A trace is
    not corrected for the policy: with trace > 0 the answer is still Q where the features can express it, but
    another projection of it where they cannot.

    state_features: anything `features.make` takes. policy: anything `find_policy` takes but probabilities by step.
    Actions are whole numbers from 0.
    """
    pairs, after, now, next = _state_action_rows(log, state_features, policy)
    shape = (pairs.shape[0] + after.shape[0], pairs.shape[1])
    filled = sum(part.nnz if sparse.issparse(part) else part.size for part in (pairs, after))
    # where the two halves are stored differently, what fills a third or more is better dense
    if (sparse.issparse(pairs) and sparse.issparse(after)) or 3 * filled < shape[0] * shape[1]:
        rows: Any = sparse.vstack([sparse.csr_array(pairs), sparse.csr_array(after)], format="csr")
    else:
        require_memory(shape[0] * shape[1], f"{shape[1]} state-action features", "Use fewer, or sparse ones.")
        rows = np.vstack([part.toarray() if sparse.issparse(part) else part for part in (pairs, after)])
    return Problem.from_rows(
        rows,
        now,
        np.where(next < 0, -1, next + pairs.shape[0]),
        log.reward,
        discount,
        episode=np.cumsum(log.begins),  # of a sliced log too, whose traces start afresh at gaps
        trace=trace,
        ridge=ridge,
    )


def unseen_share(log: Transitions, state_features: Any, *, policy: Any) -> float:
    """The share of what the policy looks at next (sum of |entries|) in features that no logged step has.

    Their weights stay 0 for want of data, so a share above a few per cent makes state-action values doubtful.
    """
    pairs, after, _, next = _state_action_rows(log, state_features, policy)
    visits = np.bincount(next[next >= 0], minlength=after.shape[0]).astype(float)
    size = np.asarray(visits @ abs(after)).ravel()
    seen = np.asarray(abs(pairs).sum(axis=0)).ravel() > 0
    return float(size[~seen].sum() / size.sum()) if size.any() else 0.0


def _state_action_rows(log: Transitions, state_features: Any, policy: Any) -> tuple[Any, Any, Array, Array]:
    """Rows of the logged pairs, expected rows, and for each step its place in both (-1: terminated)."""
    from valuefit.features.state_action import one_hot, spread

    if policy is None:
        raise ValueError(
            'State-action values need a target policy. Give policy=, or use values="state" for the policy that acted.'
        )
    found = find_policy(policy)
    action = whole_actions(log)
    goes_on = (log.next >= 0) & ~log.terminated
    following, next = np.unique(log.next[goes_on], return_inverse=True)
    logged = int(action.max()) + 1
    known = None if found.table is None else found.table.shape[1]
    if len(following):
        told = action_probabilities(found, log.observations[following], logged if found.takes_actions else known)
    else:  # every step terminates: the next rows are not there
        told = np.zeros((0, known or logged))
    actions = told.shape[1]
    fit_actions(action, actions, found.name)
    refuse_unseen(told, np.bincount(next, minlength=len(following)), action, found.name)
    fitted, _ = make(state_features, log)
    used = np.union1d(log.now, following)
    rows = fitted.transform(log.observations[used])
    pair, now = np.unique(log.now * actions + action, return_inverse=True)
    pairs = spread(rows[np.searchsorted(used, pair // actions)], one_hot(pair % actions, actions))
    after = spread(rows[np.searchsorted(used, following)], told)
    places = np.full(len(log), -1)
    places[goes_on] = next
    return pairs, after, now, places


def refuse_unseen(probabilities: Array, visits: Array, action: Array, name: str) -> None:
    """A sentence where the policy often takes actions that the log never does."""
    never = np.setdiff1d(np.arange(probabilities.shape[1]), action)
    if len(never) == 0 or not visits.any():
        return
    share = visits @ probabilities[:, never] / visits.sum()
    if share.sum() > UNSEEN_LIMIT:
        worst = int(never[np.argmax(share)])
        who = "The policy" if name == "the policy" else f"The policy {name}"
        raise ValueError(
            f"{who} takes action {worst} with probability {share.max():.3g} on average, but the log never "
            "does, so nothing is known of its value. Use a log that tries it, or a policy that does not."
        )


# ---- states and actions by number -----------------------------------------------------------------------------


def states_of(observations: Array, states: int, name: str) -> Array:
    """Observations as rows of a table."""
    if observations.ndim == 2 and observations.shape[1] == 1:
        observations = observations[:, 0]
    if observations.ndim != 1 or (observations % 1 != 0).any():
        raise ValueError(
            f"{name} is a table over states by number, but the observations are not whole numbers. Give a callable."
        )
    if len(observations) and (observations.min() < 0 or observations.max() >= states):
        worst = observations.min() if observations.min() < 0 else observations.max()
        raise ValueError(f"State {worst:g} has no row in {name}, whose {states} rows are states 0 to {states - 1}.")
    return observations.astype(np.int64)


def whole_actions(log: Transitions) -> Array:
    """Actions as whole numbers from 0."""
    if log.action is None:
        raise ValueError("The log has no actions. Give the action column.")
    if continuous(log.action):
        raise ValueError(
            "The logged actions are not whole numbers. For continuous actions give a policy f(observations, actions) "
            "of densities, or one target probability a step."
        )
    action = np.asarray(log.action).reshape(len(log)).astype(np.int64)
    if action.min() < 0:
        raise ValueError(f"The log has action {action.min()}; actions are numbered from 0.")
    return action


def continuous(action: Array) -> bool:
    """Whether actions are vectors or fractions, so that policies have densities."""
    if action.dtype.kind not in "biuf":
        raise ValueError(f"The logged actions have dtype {action.dtype}, which is not numeric. Number them from 0.")
    return action[0].size != 1 or bool((action % 1 != 0).any())


def fit_actions(action: Array, actions: int, name: str) -> None:
    """A sentence where a logged action has no column in the policy."""
    if len(action) and action.max() >= actions:
        where = int(np.argmax(action))
        raise ValueError(
            f"Step {where} took action {action[where]}, but {name} has {actions} actions, 0 to {actions - 1}."
        )
