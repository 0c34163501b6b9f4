"""States and actions that the policy leads to and the log does not have: what they could change in the policy value."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from valuefit.data.transitions import Transitions
from valuefit.evaluation.errors import LinearFunction
from valuefit.evaluation.policy import Policy
from valuefit.evaluation.sandwich import AdjointMethod, Sandwich
from valuefit.evaluation.state_action import unseen_shares
from valuefit.features.registry import Fitted
from valuefit.typing import Array


class Unseen(NamedTuple):
    """share: of the expected next features, that of pairs of states and actions without data, whose weights are 0.

    changes: of the policy value, (at most 0, at least 0), if these pairs have values within those of the logged steps;
    None where it is not known.
    """

    share: float = 0.0
    changes: tuple[float, float] | None = (0.0, 0.0)


def unseen_of(
    log: Transitions, fitted: Fitted, policy: Policy | None, sandwich: Sandwich, starts: LinearFunction
) -> Unseen:
    """What pairs without data could change in a policy value by state-action values."""
    problem = sandwich.problem
    continues = problem.discount > 0
    if not len(problem.dead) or not continues.any():
        return Unseen()
    shares = unseen_shares(log, fitted, policy=policy)
    share = float(shares[continues].mean())
    if share == 0:
        return Unseen()
    weight = _weight(sandwich, starts, shares)
    if weight is None:
        return Unseen(share, None)
    values = sandwich.values[problem.now]
    ends = weight * float(values.min()), weight * float(values.max())
    return Unseen(share, (min(*ends, 0.0), max(*ends, 0.0)))


def _weight(sandwich: Sandwich, starts: LinearFunction, shares: Array) -> float | None:
    """The derivative of the policy value in x, the common value of all pairs without data; None where it is unknown.

    shares: of these pairs in the next row of each step, (n,), to whose value they add x times their share. theta then
    changes by A^-1 mean discount_t share_t u_t per unit of x. At the starts they have no share if the value is
    determined.
    """
    problem = sandwich.problem
    if sandwich.method is AdjointMethod.ITERATIVE:
        return None
    weights = np.bincount(problem.now, problem.backward(problem.discount * shares), problem.psi.shape[0])
    below = problem.psi.tdot(weights) / problem.n
    return float(starts.c @ sandwich.respond(np.zeros((problem.d, 1)), below[:, None])[:, 0])
