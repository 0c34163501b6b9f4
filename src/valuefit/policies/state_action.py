"""LSTD-Q: the problem of state-action values under a target policy, without importance ratios."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse as sparse

from valuefit.data.transitions import Transitions
from valuefit.features.registry import make
from valuefit.memory import require_memory
from valuefit.policies.action_labels import label_of, max_actions
from valuefit.policies.importance import action_numbers, action_probabilities, check_action_range, policy_for
from valuefit.policies.policy import Policy
from valuefit.problem.problem import Problem
from valuefit.typing import Array


def state_action_problem(
    log: Transitions,
    state_features: Any,
    *,
    policy: Any,
    discount: float = 0.99,
    trace: float = 0.0,
    ridge: float = 0.0,
    part: bool = False,
    all_actions: bool = True,
) -> Problem:
    """LSTD-Q: Q(s, a) = theta_a' phi(s) of the target policy, from a log of any policy, without importance ratios.

    The row of a step is phi(s_t, a_t); its next row is sum_a pi(a | s_{t+1}) phi(s_{t+1}, a), or absent if the episode
    terminated. The weights of action a are theta[a d : (a + 1) d]; `StateAction(...).expected` gives the rows whose
    product with theta is the value of a state under the policy. Ratios of the log are not used. Traces are not
    corrected for the policy: with trace > 0 the solution is still Q if the features can express it, but a different
    projection of Q if they cannot.

    state_features: any argument of `features.make`. policy: any argument of `find_policy` except probabilities by step.
    Actions are whole numbers from 0, or text. part: as in `Problem`. all_actions: False for a sample of a log, which
    may lack actions that the log has; else a policy that takes an action that no step has is refused.
    """
    rows, pairs, now, next = _state_action_rows(log, state_features, policy, part=part or not all_actions)
    return Problem.from_rows(
        rows,
        now,
        np.where(next < 0, -1, next + pairs),
        log.reward,
        discount,
        episode=np.cumsum(log.begins),  # traces also restart after the gaps of a sliced log
        trace=trace,
        ridge=ridge,
        part=part,
    )


def action_count(log: Transitions, policy: Any) -> int:
    """The number of actions of state-action values: those of the policy, or the logged ones."""
    matched = policy_for(policy, log)
    if matched.table is not None:
        return int(matched.table.shape[1])
    logged = logged_actions(log)
    return int(action_probabilities(matched, log.observations[:1], logged if matched.takes_actions else None).shape[1])


def logged_actions(log: Transitions) -> int:
    """The number of named actions, or the largest numbered one plus one; refused where the numbers have gaps."""
    if log.action_names is not None:
        return len(log.action_names)
    count = int(action_numbers(log).max()) + 1
    if count > max_actions(len(log)):
        raise ValueError(
            f"The log has action {count - 1}, but only {len(log)} steps. Number the actions from 0, without gaps."
        )
    return count


def unseen_share(log: Transitions, state_features: Any, *, policy: Any) -> float:
    """The mean of `unseen_shares` over the steps that do not terminate.

    State-action values are unreliable if it exceeds a few per cent.
    """
    continues = (log.next >= 0) & ~log.terminated
    return float(unseen_shares(log, state_features, policy=policy)[continues].mean()) if continues.any() else 0.0


def unseen_shares(log: Transitions, state_features: Any, *, policy: Any) -> Array:
    """The share of features without data in the expected next row of each step (sum of |entries|), (n,).

    These features are zero in every logged step, so their weights are 0. The share is 0 where the episode terminates.
    """
    rows, pairs, _, next = _state_action_rows(log, state_features, policy, part=True)  # the problem has refused
    unseen = np.asarray(abs(rows[:pairs]).sum(axis=0)).ravel() == 0
    sizes = abs(rows[pairs:])
    part, total = (np.asarray(sizes @ columns).ravel() for columns in (unseen.astype(float), np.ones(len(unseen))))
    shares = np.divide(part, total, out=np.zeros(len(total)), where=total > 0)
    return np.where(next >= 0, np.append(shares, 0.0)[next], 0.0)


def _state_action_rows(
    log: Transitions, state_features: Any, policy: Any, *, part: bool = False
) -> tuple[Any, int, Array, Array]:
    """Rows of the logged pairs and, below them, expected next rows; the number of pairs; the indices of each step
    among the pairs and among the expected rows (-1: terminated)."""
    from valuefit.features.state_action import one_hot, spread

    if policy is None:
        raise ValueError(
            'State-action values need a target policy. Give `policy`, or use `values="state"` for the policy that '
            "generated the log."
        )
    matched = policy_for(policy, log)
    action, logged_count = action_numbers(log), logged_actions(log)
    continues = (log.next >= 0) & ~log.terminated
    following, next = np.unique(log.next[continues], return_inverse=True)
    table_actions = None if matched.table is None else matched.table.shape[1]
    if len(following):
        count = logged_count if matched.takes_actions else table_actions
        probabilities = action_probabilities(matched, log.observations[following], count)
    else:  # every step terminates, so there are no next rows
        probabilities = np.zeros((0, table_actions or logged_count))
    actions = probabilities.shape[1]
    check_action_range(action, actions, matched.name)
    if not part:  # other parts may have an action that this one lacks
        visits = np.bincount(next, minlength=len(following))
        refuse_unseen(probabilities, visits, action, matched)
    fitted, _ = make(state_features, log, actions=actions)
    used = np.union1d(log.now, following)
    rows = fitted.transform(log.observations[used])
    pair, now = np.unique(log.now * actions + action, return_inverse=True)
    weights = sparse.vstack([one_hot(pair % actions, actions), sparse.csr_array(probabilities)], format="csr")
    if not sparse.issparse(rows):
        numbers = min(3 * weights.nnz, math.prod(weights.shape)) * rows.shape[1]  # dense, or at most half of this
        require_memory(numbers, f"{actions * rows.shape[1]} state-action features", "Use fewer, or sparse ones.")
    source = np.searchsorted(used, np.concatenate([pair // actions, following]))
    next_of_step = np.full(len(log), -1)
    next_of_step[continues] = next
    return spread(rows, weights, source), len(pair), now, next_of_step


def refuse_unseen(probabilities: Array, visits: Array, action: Array, policy: Policy) -> None:
    """Raise a ValueError if the policy takes actions that the log never takes with more than 1% probability."""
    never = np.setdiff1d(np.arange(probabilities.shape[1]), action)
    if len(never) == 0 or not visits.any():
        return
    share = visits @ probabilities[:, never] / visits.sum()
    if share.sum() > 0.01:
        worst = int(never[np.argmax(share)])
        raise ValueError(
            f"{policy.title} takes action {label_of(worst, policy.known)} with probability {share.max():.3g} on "
            "average, but the log never does, so its value is unknown. Use a log that contains this action, or a "
            "policy that does not take it."
        )
