"""The state-action problem (LSTD-Q): values of states and actions under a target policy, without ratios."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sparse

from valuefit.data.transitions import Transitions
from valuefit.evaluation.importance import action_probabilities, fit_actions, whole_actions
from valuefit.evaluation.policy import find_policy
from valuefit.features.registry import make
from valuefit.memory import require_memory
from valuefit.problem.problem import Problem
from valuefit.typing import Array

UNSEEN_LIMIT = 0.01  # probability that a policy may give to actions the log never takes


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
