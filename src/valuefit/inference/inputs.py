"""The log and the problem that the arguments of an evaluation describe."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from valuefit.data.frames import is_frame
from valuefit.data.load import load
from valuefit.data.shards import ShardedLog
from valuefit.data.transitions import Transitions, cluster_numbers
from valuefit.data.validation import episode_starts
from valuefit.extras import need
from valuefit.features.registry import Fitted
from valuefit.inference.policy_value import value_rows
from valuefit.messages import shown
from valuefit.policies.importance import with_ratios
from valuefit.policies.policy import Policy
from valuefit.policies.state_action import state_action_problem
from valuefit.problem.problem import Problem
from valuefit.typing import Array


def check_client(client: Any) -> None:
    """Raise ValueError for a client that is not one of Dask."""
    if client is not None and not isinstance(client, need("distributed", "dask", "A Dask client").Client):
        raise ValueError(f"client is {shown(client)}; it must be a dask.distributed.Client.")


def load_log(source: Any, columns: Any, cluster: Any, client: Any = None, missing: str = "refuse") -> Any:
    """The log, with the clusters of episodes that are given by the name of a column or by step.

    client: of Dask, instead of the default one, for a Dask DataFrame.
    """
    if isinstance(cluster, str):
        if isinstance(source, Transitions):
            raise ValueError(
                f"cluster is {shown(cluster)}, the name of a column, but the log is already loaded. Give one id for "
                f"each step, or load it with `columns={{'cluster': {shown(cluster)}}}`."
            )
        columns = {**(columns or {}), "cluster": cluster}
    with client.as_current() if client is not None and is_frame(source) else nullcontext():
        log = load(source, columns=columns, missing=missing)
    if isinstance(log, ShardedLog):
        return log
    if cluster is not None and not isinstance(cluster, str):
        log = replace(log, cluster=cluster_numbers(cluster, log.episode))._frozen()
    if log.cluster is not None and (log.cluster == log.cluster[0]).all():
        raise ValueError(
            "All episodes belong to one cluster, which gives no standard error. Use a log of several clusters, or "
            "ignore the column with `columns={'cluster': None}`."
        )
    return log


def make_problem(
    log: Transitions, fitted: Fitted, policy: Policy | None, values: str, discount: float, trace: float, ridge: float,
    *, all_actions: bool = True,
) -> Problem:  # fmt: skip
    """The problem to solve, for state values or for state-action values. all_actions: as in `state_action_problem`."""
    if values == "state":
        return Problem(log, fitted.rows, discount=discount, trace=trace, ridge=ridge)
    settings: dict[str, Any] = {"discount": discount, "trace": trace, "ridge": ridge, "all_actions": all_actions}
    return state_action_problem(log, fitted, policy=policy, **settings)


def weighted_part(log: Transitions, policy: Policy | None) -> Transitions:
    """Some episodes of a log with the ratios of the policy."""
    return log if policy is None else with_ratios(log, policy, part=True)


@dataclass(frozen=True)
class MakePart:
    """The problem of some episodes of a log: a function that can be sent to another process."""

    features: Fitted
    policy: Policy | None
    values: str
    discount: float
    trace: float
    ridge: float

    def weighted(self, log: Transitions) -> Transitions:
        """With the ratios of the policy, for state values."""
        return weighted_part(log, self.policy) if self.values == "state" else log

    def __call__(self, log: Transitions) -> Problem:
        settings: dict[str, Any] = {"discount": self.discount, "trace": self.trace, "ridge": self.ridge, "part": True}
        if self.values == "state":
            return Problem(self.weighted(log), self.features.rows, **settings)
        return state_action_problem(log, self.features, policy=self.policy, **settings)

    def outputs(self, log: Transitions, columns: int) -> tuple[Array, ...]:
        """What features and policy compute on a log: rows times random numbers, of steps and starts, and ratios."""
        problem, x = self(log), np.random.default_rng(0).normal(size=columns)
        return problem.phi.dot(x), np.asarray(self.starts(log, columns)[0] @ x).ravel(), problem.ratio

    def starts(self, log: Transitions, columns: int) -> tuple[Any, Array]:
        """The rows of the first observations of the episodes, and the steps that they belong to."""
        first = np.flatnonzero(episode_starts(log.episode))
        rows = value_rows(self.features, self.values, self.policy, columns, log.observations[log.now[first]])
        return rows, first
