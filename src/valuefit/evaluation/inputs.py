"""The log and the problem that the arguments of an evaluation describe."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from valuefit.data.frames import is_frame
from valuefit.data.load import load
from valuefit.data.shards import ShardedLog
from valuefit.data.transitions import Transitions, cluster_numbers
from valuefit.evaluation.policy import Policy
from valuefit.evaluation.state_action import state_action_problem
from valuefit.features.registry import Fitted
from valuefit.messages import shown
from valuefit.problem.problem import Problem


def load_log(source: Any, columns: Any, cluster: Any, client: Any = None) -> Any:
    """The log, with the clusters of episodes that are given by the name of a column or by step.

    client: of Dask, instead of the default one, for a Dask DataFrame.
    """
    if isinstance(cluster, str):
        if isinstance(source, Transitions):
            raise ValueError(
                f"cluster is {shown(cluster)}, the name of a column, but the log is already loaded. Give one id for "
                f"each step, or load it with columns={{'cluster': {shown(cluster)}}}."
            )
        columns = {**(columns or {}), "cluster": cluster}
    with client.as_current() if client is not None and is_frame(source) else nullcontext():
        log = load(source, columns=columns)
    if isinstance(log, ShardedLog):
        return log
    if cluster is not None and not isinstance(cluster, str):
        log = replace(log, cluster=cluster_numbers(cluster, log.episode))._frozen()
    if log.cluster is not None and (log.cluster == log.cluster[0]).all():
        raise ValueError(
            "All episodes belong to one cluster, which gives no standard error. Use a log of several clusters, or "
            "ignore the column with columns={'cluster': None}."
        )
    return log


def make_problem(
    log: Transitions, fitted: Fitted, policy: Policy | None, values: str, discount: float, trace: float, ridge: float
) -> Problem:
    """The problem to solve, for state values or for state-action values."""
    if values == "state":
        return Problem(log, fitted, discount=discount, trace=trace, ridge=ridge)
    return state_action_problem(log, fitted, policy=policy, discount=discount, trace=trace, ridge=ridge)
