"""Probabilities of actions under a target policy, and importance ratios of the logged actions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from valuefit.data.transitions import Transitions
from valuefit.data.validation import numbers
from valuefit.evaluation.policy import checked, find_policy, whole_rows
from valuefit.typing import Array


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
