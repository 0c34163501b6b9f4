"""A penalty on the variance of the value over the log, and the correction of what it does to the value.

Over whitened features (`features/whitened.py`) the penalty p/2 Var(V) is a ridge p: with H = A'C^-1A,

    theta_1 = (H + p I)^-1 A'C^-1 b,    theta_2 = theta_1 + p (H + p I)^-1 theta_1.

theta_2 minimises the same objective with p/2 |theta - theta_1|^2, the second iterate of Tikhonov regularisation. For
every c, c'theta_2 = c'theta_1 + g_w'(b - A theta_1), where g is the adjoint with the same penalty:
p g_theta + A'g_w = c, A g_theta = C g_w. So every value is corrected by one step. Its remaining bias is
(c - A'g_w)'(theta_1 - theta*), theta* without a penalty: a product of two small factors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from valuefit.data.transitions import Transitions
from valuefit.data.validation import number
from valuefit.engine.loop import solve
from valuefit.engine.result import Result
from valuefit.evaluation.errors import LinearFunction
from valuefit.evaluation.policy_value import Reported
from valuefit.evaluation.sandwich import Sandwich
from valuefit.features.registry import Fitted
from valuefit.features.whitened import whiten
from valuefit.problem.arguments import MAX_RIDGE
from valuefit.problem.problem import Problem
from valuefit.problem.saddle_point import SaddlePoint
from valuefit.typing import Array

MAX_PENALTY = 1e3  # p (H + p I)^-1 is 1 but for rounding then, since the eigenvalues of H are at most about 4
CONSTANT_SHRINKAGE = 1e-4  # of the constant in theta_1, relative; the correction squares it


class Solution(NamedTuple):
    """theta_2 as the result of a solver, and theta_1; None where there is no penalty."""

    result: Result
    centre: Array | None


def penalty_of(value: Any, ridge: Any) -> float:
    """The penalty, validated: 0, or a number without a ridge next to it."""
    requirement = f"it must be 0, or a number from {1 / MAX_RIDGE:.0e} to {MAX_PENALTY:g}"
    penalty = number("penalty", value, requirement, lambda x: x == 0 or 1 / MAX_RIDGE <= x <= MAX_PENALTY)
    if penalty and ridge:
        raise ValueError("penalty and ridge are both given, but they are two ways to do the same. Give one of them.")
    return penalty


def penalised_features(
    features: Fitted, log: Transitions, *, penalty: float, discount: float, kept: Sequence[int] | None = None
) -> Fitted:
    """The features whitened over the log, with so large a constant that the penalty does not shrink it.

    A constant column s adds about s^2 (1 - discount)^2 to H, so p / (s (1 - discount))^2 is its shrinkage in theta_1.
    """
    ending = 1 - discount if discount < 1 else max(float(log.terminated.mean()), 1 / len(log))
    constant = max(1.0, np.sqrt(penalty / CONSTANT_SHRINKAGE) / ending)
    return whiten(features, log, constant=float(constant), kept=kept)


def outside_note(features: Fitted, log: Transitions, starts: Array | None) -> str:
    """Whether the target goes where the features are no combination of visited ones; empty where it does not.

    Dependent columns are left out of whitened features, so values there rest on the other columns.
    """
    outside = features.transformer.outside
    after = np.setdiff1d(log.next[(log.next >= 0) & ~log.terminated], log.now)  # visited ones are inside
    shares = {}
    if len(after):
        shares["next observations"] = float(np.isin(log.next, after[outside(log.observations[after])]).mean())
    if starts is not None:
        shares["starts"] = float(outside(starts).mean())
    found = " and ".join(f"{share:.1%} of the {name}" for name, share in shares.items() if share > 0)
    return f"The log has no steps with features like those of {found}: their values are guesses." if found else ""


def solve_corrected(
    problem: Problem, solve_one: Callable[[Problem, Array | None], Result], *, penalised: bool
) -> Solution:
    """Solve a problem, and with a penalty correct the solution by solving for theta_2 - theta_1.

    solve_one: (problem, centre) -> result, where centre is theta_1, to which the solution is added, or None.
    """
    first = solve_one(problem, None)
    if not penalised:
        return Solution(first, None)
    if first.status == "interrupted":
        return Solution(first, first.theta)
    second = solve_one(problem.recentred(first.theta), first.theta)
    history = second.history.copy()
    history["passes"] += first.passes
    history["seconds"] += first.seconds
    worse = first if first.status != "converged" else second
    result = replace(
        second, theta=first.theta + second.theta, status=worse.status, message=worse.message,
        passes=first.passes + second.passes, seconds=first.seconds + second.seconds,
        history=np.concatenate([first.history, history]),
    )  # fmt: skip
    return Solution(result, first.theta)


def solve_reported(
    sandwich: Sandwich,
    starts: LinearFunction,
    *,
    penalised: bool,
    place: Callable[[Problem], SaddlePoint],
    **settings: Any,
) -> tuple[Result, Sandwich]:
    """The weights of the problem of a sandwich, corrected if penalised, and the sandwich at them.

    place: the problem where it is solved (`problem.placement`). settings: arguments of `solve`, which stops when the
    solver errors of the reported numbers are negligible.
    """

    def solve_one(problem: Problem, centre: Array | None) -> Result:
        nonlocal sandwich
        if centre is not None:
            sandwich = sandwich.at(centre).recentred()
        return solve(place(problem), reported=Reported(sandwich, starts, centre), **settings)

    result, centre = solve_corrected(sandwich.problem, solve_one, penalised=penalised)
    if centre is not None and sandwich.first is None:  # interrupted before the correction
        sandwich = sandwich.at(centre).recentred()
    return result, sandwich.at(result.theta)


def sandwich_of(problem: Problem, solution: Solution, episode: Array, group: Array | None = None) -> Sandwich:
    """Of the solution of a problem, corrected or not."""
    if solution.centre is None:
        return Sandwich(problem, solution.result.theta, episode, group)
    return Sandwich(problem, solution.centre, episode, group).recentred().at(solution.result.theta)
