"""The settings of an evaluation, and how a log with feature rows at hand becomes a solved problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from valuefit.data.transitions import Transitions
from valuefit.engine.loop import Progress, solve
from valuefit.engine.result import Result
from valuefit.features.registry import Fitted
from valuefit.inference.adjoints import AdjointSolver, Equations
from valuefit.inference.error_estimate import Kind
from valuefit.inference.fit import Fit, Values
from valuefit.inference.inputs import make_problem
from valuefit.inference.policy_value import Reported, starts_of
from valuefit.inference.reach import RewardRange
from valuefit.inference.shards import Shard
from valuefit.policies.policy import Policy
from valuefit.policies.state_action import action_count
from valuefit.problem.problem import Problem
from valuefit.problem.saddle_point import SaddlePoint
from valuefit.solvers.solver import Solver


@dataclass(frozen=True, eq=False, kw_only=True)
class Settings:
    """Arguments of `evaluate` that say what is computed; where, and which checks are made, is said elsewhere."""

    features: Any
    discount: float
    policy: Policy | None
    trace: float
    ridge: float
    values: Values
    solver: str | Solver
    tol: Any
    max_passes: float
    seed: int
    starts: Any
    interval: Kind
    level: float
    reward_range: RewardRange | None
    callback: Callable[[Progress], Any] | None

    @property
    def problem(self) -> tuple[str, float, float, float]:
        """values, discount, trace and ridge, as `make_problem` and `MakePart` take them."""
        return self.values, self.discount, self.trace, self.ridge


def actions_with_weights(log: Transitions, policy: Policy | None, values: str) -> int:
    """The number of actions that have weights of their own: one for state values."""
    return action_count(log, policy) if values == "state-action" and policy is not None else 1


class Task(NamedTuple):
    """A problem to solve, arguments of `solve` besides those of `Settings`, and what makes a `Fit` of the result."""

    problem: SaddlePoint
    options: dict[str, Any]
    fit: Callable[[Result], Fit]

    def solved(self, settings: Settings) -> Fit:
        s = settings
        asked = {"solver": s.solver, "tol": s.tol, "max_passes": s.max_passes, "seed": s.seed, "callback": s.callback}
        return self.fit(solve(self.problem, **{**asked, **self.options}))


def task_in_memory(
    log: Transitions, features: Fitted, policy: Policy | None, settings: Settings, *,
    place: Callable[[Problem], SaddlePoint] = lambda problem: problem, all_actions: bool = True,
) -> Task:  # fmt: skip
    """The task of a log in memory. place: the problem where it is solved; all_actions: as in `make_problem`."""
    problem = make_problem(log, features, policy, *settings.problem, all_actions=all_actions)
    starts = starts_of(log, problem, features, policy, settings.values, settings.starts)
    adjoints, shard = AdjointSolver(problem), Shard.of_log(problem, log.episode, log.cluster)

    def fit(result: Result) -> Fit:
        return Fit(
            log, problem, result, features, policy, settings.values, float(settings.discount), int(settings.seed),
            starts, Equations(adjoints, result.theta), shard, settings.interval, settings.level, settings.reward_range,
        )  # fmt: skip

    reported = Reported(adjoints, shard, starts)
    return Task(place(problem), {"reported": reported, "moments_needed": adjoints.forms_moments}, fit)
