"""States and actions that the policy leads to and the log does not have: what they could change in values."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from valuefit.data.transitions import Transitions
from valuefit.features.registry import Fitted
from valuefit.inference.adjoints import Adjoint, Equations
from valuefit.inference.error_estimate import LinearFunction
from valuefit.policies.policy import Policy
from valuefit.policies.state_action import unseen_shares
from valuefit.problem.problem import Problem
from valuefit.problem.saddle_point import SaddlePoint
from valuefit.streaming.parts import Part
from valuefit.typing import Array


class Unseen(NamedTuple):
    """share: of the expected next features, that of pairs of states and actions without data, whose weights are 0.

    changes: of the policy value, (at most 0, at least 0), if these pairs have values within those of the logged steps;
    None where it is not known.
    """

    share: float = 0.0
    changes: tuple[float, float] | None = (0.0, 0.0)


class UnseenPairs(NamedTuple):
    """Pairs without data, if they have a common value x, between the two `ends`.

    share: as in `Unseen`. features: theirs, column numbers. moved: mean discount_t share_t u_t, (k,), which A theta - b
    changes by per unit of x. ends: the smallest and the largest value of the logged steps.
    """

    share: float
    features: Array
    moved: Array
    ends: tuple[float, float]

    def changes(self, rows: Array, responses: Array) -> Array:
        """(m, 2), at most 0 and at least 0, of the products of theta with rows (m, d).

        responses: what they change by per unit of x through theta, (m,); pairs without data also have a share in rows,
        but for a ridge these values are undetermined.
        """
        sizes = np.abs(rows)
        own, total = sizes[:, self.features].sum(axis=1), sizes.sum(axis=1)
        derivatives = responses + np.divide(own, total, out=np.zeros(len(rows)), where=total > 0)
        ends = np.outer(derivatives, self.ends)
        return np.column_stack([np.minimum(ends.min(axis=1), 0.0), np.maximum(ends.max(axis=1), 0.0)])


def unseen_pairs(
    log: Transitions, fitted: Fitted, policy: Policy | None, problem: Problem, theta: Array
) -> UnseenPairs | None:
    """Return the pairs without data of state-action values with these weights; None if there are none."""
    if not len(problem.dead):
        return None
    return _pairs(_pair_sums(problem, unseen_shares(log, fitted, policy=policy), theta), problem)


def unseen_in_parts(parts: Any, problem: SaddlePoint, theta: Array) -> UnseenPairs | None:
    """`unseen_pairs` of a log in shards, in one pass; parts: its `Parts`."""
    if not len(problem.dead):
        return None
    return _pairs(parts.sum(partial(_sums_of_part, dead=problem.dead, theta=theta)), problem)


def _pairs(sums: tuple[Any, ...], problem: SaddlePoint) -> UnseenPairs | None:
    share, count, moved, low, high = sums
    return UnseenPairs(share / count, problem.dead, moved / problem.n, (min(low), max(high))) if count else None


def _sums_of_part(part: Part, *, dead: Array, theta: Array) -> tuple[Any, ...]:
    """dead: the features without data in the whole log, which rows of the part still have."""
    sizes = abs(part.problem.phi.matrix)
    own, total = (np.asarray(one.sum(axis=1)).ravel() for one in (sizes[:, dead], sizes))
    shares = np.divide(own, total, out=np.zeros(len(total)), where=total > 0)
    return _pair_sums(part.problem, shares[part.problem.next], theta)


def _pair_sums(problem: Problem, shares: Array, theta: Array) -> tuple[Any, ...]:
    """What steps add to `UnseenPairs`; shares: of pairs without data in the next features of each step, (n,)."""
    continues = problem.discount > 0
    weights = np.bincount(problem.now, problem.backward(problem.discount * shares), problem.psi.shape[0])
    values = problem.phi.dot(theta)[problem.now]
    sums = float(shares @ continues), int(continues.sum()), problem.psi.tdot(weights)
    return *sums, [float(values.min())], [float(values.max())]


def what_changes(pairs: UnseenPairs | None, equations: Equations, starts: LinearFunction) -> Unseen:
    """What these pairs could change in a policy value by state-action values."""
    if pairs is None:
        return Unseen()
    adjoint = equations.solver.adjoint(starts.c)
    if not isinstance(adjoint, Adjoint):
        return Unseen(pairs.share, None)
    low, high = pairs.changes(starts.c[None], adjoint.w @ pairs.moved[:, None])[0]
    return Unseen(pairs.share, (float(low), float(high)))
