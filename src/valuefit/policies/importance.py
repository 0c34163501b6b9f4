"""Action probabilities of a target policy, and importance ratios of the logged actions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from valuefit.data.transitions import Transitions, rounded_ratios
from valuefit.data.validation import array_of, numbers
from valuefit.messages import user_errors
from valuefit.policies.action_labels import all_labels, by_number, labels_in, listed, split_labels
from valuefit.policies.policy import Policy, find_policy, normalised_rows, valid_probabilities
from valuefit.threads import user_code
from valuefit.typing import Array


def policy_for(policy: Any, log: Transitions) -> Policy:
    """The policy with its actions matched to those of the log, by their labels where it has labels.

    Raises ValueError with both lists if the labels are not those of the log. A policy that is matched already, such as
    to a log of which this is a part, is unchanged.
    """
    matched, known = find_policy(policy).on(log), labels_in(log)
    if matched.known is not None or known is None or matched.by_step is not None:
        return matched
    if matched.labels is not None:
        missing = tuple(label for label in known if label not in matched.labels)
        every = all_labels(matched.labels, known, matched.title)
        table = None if matched.table is None else by_number(matched.table, matched.labels, known, matched.title)
        labels = matched.labels if table is None else every
        return replace(matched, table=table, labels=labels, known=every, missing=missing)
    if matched.table is not None and log.action_names is not None:
        _check_columns(matched.table.shape[1], known, matched.title)
    return replace(matched, known=known)


def _check_columns(columns: int, known: Any, name: str) -> None:
    """Raise ValueError unless unnamed columns are as many as the named actions of the log."""
    if columns != len(known):
        raise ValueError(
            f"{name} gives probabilities of {columns} actions, without their names; the log has {len(known)}: "
            f"{listed(known)}. Give a column for each, in this order, or a mapping from these names to columns."
        )


def target_probabilities(policy: Any, log: Transitions) -> Array:
    """pi(a_t | s_t) of the logged action of every step, (n,); no action is sampled."""
    matched = policy_for(policy, log)
    if matched.by_step is not None:
        if len(matched.by_step) != len(log):
            raise ValueError(
                f"{matched.title} has {len(matched.by_step)} probabilities but the log has {len(log)} steps. Give one "
                "per step, or a table with one row per state and one column per action."
            )
        densities = log.action is not None and is_continuous(log.action)
        return valid_probabilities(matched.by_step, matched.name, densities=densities)
    if log.action is None:
        raise ValueError(
            "The log has no actions, so their probabilities under the policy are unknown. Give the action column, or "
            "one target probability per step."
        )
    if matched.takes_actions:
        action = np.asarray(log.action if log.action_names is None else log.action_names[log.action])
        returned = _called(matched, log.observations[log.now], action)
        values = array_of(matched.title, returned)
        if values.shape != (len(log),):
            raise ValueError(
                f"{matched.title} returned an array of shape {values.shape} for {len(log)} observations and "
                "actions. It must return one probability for each pair."
            )
        return valid_probabilities(values, matched.title, densities=is_continuous(log.action))
    action = action_numbers(log)
    used, index = np.unique(log.now, return_inverse=True)
    table = action_probabilities(matched, log.observations[used], None)
    check_action_range(action, table.shape[1], matched.name)
    return table[index, action]


def action_probabilities(policy: Any, observations: Any, actions: int | None) -> Array:
    """pi(a | s) of every action for observations (m, ...): (m, actions).

    actions: their number; None takes the number of columns that the policy returns, which is not possible for a policy
    `f(observations, actions)`. Labels of columns count for a policy that is matched to a log (`policy_for`).
    """
    matched = find_policy(policy)
    observations, labels, title = np.asarray(observations), None, matched.title
    if matched.table is not None:
        values = matched.table[state_numbers(observations, len(matched.table), matched.name)]
    elif matched.function is None:
        raise ValueError(
            f"{matched.title} gives the probability of the logged action only, but the probabilities of all actions "
            "are needed. Give a table (states x actions) or a callable."
        )
    elif matched.takes_actions:
        if actions is None:
            raise ValueError(f"{matched.title} takes actions as an argument: give the number of actions.")
        names = range(actions) if matched.known is None else [*matched.known, *range(len(matched.known), actions)]
        columns = [_called(matched, observations, np.full(len(observations), names[a])) for a in range(actions)]
        values = np.stack([array_of(title, column) for column in columns], axis=-1)
    else:
        returned, labels = split_labels(_called(matched, observations), title)
        labels = matched.labels if labels is None else labels
        values = array_of(title, returned, place="in row")
    if values.ndim != 2 or len(values) != len(observations) or values.shape[1] == 0:
        hint = " That looks like actions: return their probabilities instead." if values.ndim == 1 else ""
        raise ValueError(
            f"{matched.title} returned an array of shape {values.shape} for {len(observations)} observations. "
            f"It must return one row per observation and one column per action.{hint}"
        )
    if matched.known is not None and labels is not None:
        values = by_number(values, labels, matched.known, title)
    elif matched.known is not None and isinstance(matched.known[0], str):
        _check_columns(values.shape[1], matched.known, title)
    return normalised_rows(valid_probabilities(values, title), matched.name, actions)


def has_names(policy: Policy, observations: Array) -> bool:
    """Whether the columns of the probabilities of all actions have names. observations: any of the log."""
    if policy.labels is not None or policy.function is None:
        return policy.labels is not None
    return split_labels(_called(policy, observations), policy.title)[1] is not None


def _called(policy: Policy, observations: Array, *actions: Array) -> Any:
    assert policy.function is not None
    seen = policy.seen(observations)
    with user_code, user_errors(policy.title, seen, policy.columns, actions=bool(actions)):
        return policy.function(seen, *actions)


def ratios(policy: Any, log: Transitions, *, part: bool = False) -> Array:
    """Importance ratios pi(a | s) / behaviour_prob of the logged actions, (n,); all 0 only in a part of a log."""
    if log.behaviour_prob is None:
        raise ValueError(
            "The log has no behaviour_prob (the probabilities of the logged actions under the policy that generated "
            'it), so importance ratios are unknown. Either give behaviour_prob, or use `values="state-action"`, which '
            "needs none."
        )
    target = target_probabilities(policy, log)
    with np.errstate(over="ignore"):
        values = target / log.behaviour_prob
    if not np.isfinite(values).all():
        where = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ValueError(f"behaviour_prob is {log.behaviour_prob[where]} at step {where}, too small to divide by.")
    if not part and not values.any():
        raise ValueError(
            "The target policy gives probability 0 to every logged action, so the log has no information about it. "
            "Check that its actions are numbered as in the log, and its observations scaled as there."
        )
    return rounded_ratios(values)


def with_ratios(log: Transitions, policy: Any, *, part: bool = False) -> Transitions:
    """The log with its ratios replaced by those of this policy. part: whether it is a part of a longer log."""
    return replace(log, ratio=ratios(policy, log, part=part))._frozen()


# ---- numbered states and actions -------------------------------------------------------------------------------


def state_numbers(observations: Array, states: int, name: str) -> Array:
    """Observations as row numbers of a table with this many states, validated."""
    if observations.ndim == 2 and observations.shape[1] == 1:
        observations = observations[:, 0]
    if observations.ndim != 1 or (observations % 1 != 0).any():
        raise ValueError(
            f"{name} is a table over numbered states, but the observations are not whole numbers. Give a callable."
        )
    if len(observations) and (observations.min() < 0 or observations.max() >= states):
        worst = observations.min() if observations.min() < 0 else observations.max()
        raise ValueError(f"State {worst} has no row in {name}, whose {states} rows are states 0 to {states - 1}.")
    return observations.astype(np.int64)


def action_numbers(log: Transitions) -> Array:
    """The logged actions as whole numbers from 0, (n,), validated."""
    if log.action is None:
        raise ValueError("The log has no actions. Give the action column.")
    if is_continuous(log.action):
        raise ValueError(
            "The logged actions are not whole numbers. For continuous actions give a policy f(observations, actions) "
            "of densities, or one target probability per step."
        )
    action = numbers("action", np.asarray(log.action).reshape(len(log)), dtype=np.int64)
    if action.min() < 0:
        raise ValueError(f"The log has action {action.min()}; actions are numbered from 0.")
    return action


def is_continuous(action: Array) -> bool:
    """Whether actions are vectors or not whole numbers, so that policies are densities."""
    if action.dtype.kind not in "biuf":
        raise ValueError(f"The logged actions have dtype {action.dtype}, which is not numeric. Number them from 0.")
    return action[0].size != 1 or bool((action % 1 != 0).any())


def check_action_range(action: Array, actions: int, name: str) -> None:
    """Raise a ValueError if a logged action is not among the actions of the policy."""
    if len(action) and action.max() >= actions:
        where = int(np.argmax(action))
        raise ValueError(
            f"Step {where} took action {action[where]}, but {name} has {actions} actions, 0 to {actions - 1}; the log "
            f"has {listed(np.unique(action).tolist())}. Give probabilities of all of them."
        )


def log_products(ratio: Array, begins: Array) -> Array:
    """log(ratio_0 ... ratio_t) of each step since the last that `begins` marks, (n,); -inf from a ratio of 0 on."""
    zero = ratio == 0
    start = np.maximum.accumulate(np.where(begins, np.arange(len(ratio)), 0))

    def running(values: Array) -> Array:
        total = np.cumsum(values)
        return np.asarray(total - (total - values)[start])

    return np.where(running(zero.astype(np.int64)) > 0, -np.inf, running(np.log(np.where(zero, 1.0, ratio))))
