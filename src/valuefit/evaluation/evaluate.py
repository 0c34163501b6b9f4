"""`evaluate`: from a log to the policy value in one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from valuefit.checks.cross_checks import agreement, cross_checks
from valuefit.checks.reach import reachable
from valuefit.checks.run import WHICH, checks_of_sample, run_checks
from valuefit.data.shards import ShardedLog
from valuefit.data.transitions import Transitions
from valuefit.data.validation import one_of
from valuefit.engine.loop import Progress, solve
from valuefit.evaluation.evaluation import Evaluation
from valuefit.evaluation.notes import actions_notes, cut_notes, longer_notes, policy_note, starts_note
from valuefit.features.registry import make
from valuefit.gpu.placement import placement
from valuefit.inference.adjoints import AdjointSolver, Equations
from valuefit.inference.error_estimate import KINDS, Kind
from valuefit.inference.fit import Fit, Values
from valuefit.inference.following import following
from valuefit.inference.inputs import check_client, load_log, make_problem
from valuefit.inference.policy_value import (
    INTERVAL_LEVEL,
    PolicyValue,
    Reported,
    check_level,
    starts_of,
)
from valuefit.inference.reach import Reach, RewardRange, reward_extremes
from valuefit.inference.shards import Shard
from valuefit.policies.importance import policy_for, with_ratios
from valuefit.policies.policy import Policy, find_policy
from valuefit.policies.state_action import action_count
from valuefit.problem.problem import Problem
from valuefit.problem.saddle_point import SaddlePoint
from valuefit.solvers.solver import Solver

VALUES = get_args(Values)


def evaluate(
    log: Any,
    *,
    features: Any = "auto",
    discount: float = 0.99,
    policy: Any = None,
    trace: float = 0.0,
    ridge: float = 0.0,
    values: str = "state",
    solver: str | Solver = "auto",
    tol: float | Literal["statistical"] = "statistical",
    max_passes: float = 500,
    seed: int = 0,
    starts: Any = None,
    reward_range: Any = None,
    columns: Any = None,
    missing: str = "refuse",
    interval: Kind = "cr3",
    level: float = INTERVAL_LEVEL,
    cluster: Any = None,
    checks: str = "standard",
    client: Any = None,
    callback: Callable[[Progress], Any] | None = None,
    device: Any = None,
    device_memory: int | None = None,
    checkpoint: str | Path | None = None,
) -> Evaluation:
    """Estimate the value of a policy from a log: the mean value over the starts, with an interval.

    log, columns, missing: a `Transitions`, or arguments of `valuefit.load`. features: a name ("auto",
    "fourier:order=5", ...), a scikit-learn transformer or a callable. discount: the weight of a reward one step later.
    policy: None evaluates the log as it is (on-policy, or with its own ratios); else a callable, a classifier, a table,
    a mapping or probabilities of the logged actions, as in `find_policy`. The value of a policy that was learned from
    this log is optimistic: learn it on one part of `valuefit.split(log)` and evaluate it on the other.
    values: "state" weights steps by importance ratios, so a policy needs `behaviour_prob` in the log; "state-action"
    learns a value for each action and needs none. starts: observations to average over; None takes the first of each
    episode. trace, solver, max_passes, seed, callback: as in `Problem` and `solve`. ridge: as in `Problem`; it shrinks
    values towards 0, and a check measures what it does to the policy value. tol: as in `solve`; with "statistical" the
    solver runs until the solver errors of the policy value and of the listed weights are at most a tenth of their
    standard errors, or the gap is 1e-6.

    The interval covers the fixed point of the features (what this estimator would give with infinite data), not what
    the features cannot express. interval: how its standard error is computed, "cr3" (jackknife over episodes) or "cr1"
    (sandwich covariance clustered by episode; cheaper, and too small with few or unequal episodes). Where there are too
    many features for "cr3" it is "cr1", and a note says so. reward_range: (smallest, largest) reward that is possible,
    which need not be in the log; the interval is cut at what such rewards can add up to, any step being possibly the
    last, and a log with other rewards is refused. level: of the interval (0.95); `policy_value.interval_at` gives
    others, also one-sided. cluster: the column (or one id for each step) that says which episodes belong together, such
    as those of a patient or user; errors are then clustered by it. checks: "all" also solves with other traces and
    compares the values. client: a `dask.distributed.Client`, whose workers read the shards of a log that is loaded with
    memory="stream", or hold a Dask DataFrame, for which the default client is taken. device: "cuda" copies the feature
    rows to the GPU once (extra `gpu`); moments, the solver, and products with all rows in standard errors and checks
    are computed there. device_memory: bytes that the rows may take there, by default 70% of what is free; moments and
    the solver copy larger ones block by block in each pass. checkpoint: a folder that keeps the sums over a log that is
    read in parts, so that a run that was stopped goes on with the same bits when it is started again.
    """
    one_of("interval", interval, KINDS)
    one_of("values", values, VALUES)
    one_of("checks", checks, WHICH)
    level = check_level(level)
    check_client(client)
    placing, loaded = placement(device, device_memory), load_log(log, columns, cluster, client, missing)
    target = None if policy is None else find_policy(policy, allow_code=True)
    settings: dict[str, Any] = {
        "discount": discount, "policy": target, "trace": trace, "ridge": ridge, "values": values, "solver": solver,
        "tol": tol, "max_passes": max_passes, "seed": seed, "starts": starts, "interval": interval,
        "reward_range": RewardRange.of(reward_range),
        "level": level, "callback": callback,
    }  # fmt: skip
    if isinstance(loaded, ShardedLog):
        other = {"cluster": cluster, "device": device}
        return _of_shards(loaded, features, settings, other, checks, client, checkpoint)
    if checkpoint is not None:
        raise ValueError(
            'checkpoint is for a log that is read in parts: load it with `memory="stream"`, or leave it out.'
        )
    if client is not None:
        raise ValueError('client reads a log in files: load them with `memory="stream"`, or leave client out.')
    with placing as place:
        fit, notes = _fit(loaded, features, place=place, **settings)
        return _judged(fit, checks, notes, starts)


def _fit(
    log: Transitions, features: Any, *, discount: float, policy: Policy | None, trace: float, ridge: float,
    values: Values, seed: int, starts: Any, interval: Kind, level: float, reward_range: RewardRange | None,
    place: Callable[[Problem], SaddlePoint], all_actions: bool = True, **solving: Any,
) -> tuple[Fit, list[str]]:  # fmt: skip
    """The solved problem of a log in memory with its policy value, and notes.

    place: the problem where it is solved (`problem.placement`). solving: arguments of `solve`.
    """
    notes, policy = [*log.notes], None if policy is None else policy_for(policy, log)
    if reward_range is not None:
        reward_range.require(*reward_extremes(log.reward))
    if policy is not None and values == "state":
        log = with_ratios(log, policy)
    notes += [policy_note(log, policy, values), *actions_notes(log, policy)]
    count = action_count(log, policy) if values == "state-action" and policy is not None else 1
    share = log.effective_share if values == "state" else 1.0
    fitted, _ = make(features, log, actions=count, effective_share=share)
    notes.append(fitted.sentence)
    problem = make_problem(log, fitted, policy, values, discount, trace, ridge, all_actions=all_actions)
    start_rows = starts_of(log, problem, fitted, policy, values, starts)
    adjoints, shard = AdjointSolver(problem), Shard.of_log(problem, log.episode, log.cluster)
    reported = Reported(adjoints, shard, start_rows)
    result = solve(place(problem), reported=reported, moments_needed=adjoints.forms_moments, seed=seed, **solving)
    notes.append(f"Solved with {result.solver}: {result.message}")
    fit = Fit(
        log, problem, result, fitted, policy, values, float(discount), int(seed), start_rows,
        Equations(adjoints, result.theta), shard, interval, level, reward_range,
    )  # fmt: skip
    notes += [starts_note(fit, given=starts is not None), *longer_notes(fit.value.bias, fit.value.unseen)]
    return fit, [*notes, *cut_notes(reward_range, reachable(fit))]


def _of_shards(
    log: ShardedLog, features: Any, settings: dict[str, Any], other: dict[str, Any], checks: str, client: Any,
    checkpoint: Any,
) -> Evaluation:  # fmt: skip
    """The evaluation of a log in shards; its checks are those of a sample of episodes that fits into memory."""
    from valuefit.evaluation.streamed import checkpoint_of, refuse_with_shards, solve_shards  # not for small logs

    refuse_with_shards(**other, **settings)
    kept = None if checkpoint is None else checkpoint_of(checkpoint, log, {**settings, "features": features})
    whole = solve_shards(log, features=features, client=client, checkpoint=kept, **settings)
    settings |= {"solver": "auto", "policy": whole.policy, "all_actions": whole.all_actions}
    with placement(None, None) as place:
        fit, notes = _fit(whole.sample, whole.features, place=place, **settings)
        sample = _judged(fit, checks, notes, settings["starts"])
    result, value, judged, known = whole.result, whole.value, sample.checks, whole.checks()
    if len(sample.log) < whole.size[0]:
        judged = checks_of_sample(judged, len(sample.log), sample.problem.d, whole.limit_for_checks)
    notes = [
        *log.notes, *whole.notes, policy_note(sample.log, sample.policy, sample.values),
        *actions_notes(sample.log, sample.policy), whole.features.sentence,
        f"Solved with {result.solver}: {result.message}", *longer_notes(value.bias, value.unseen),
        *cut_notes(settings["reward_range"], whole.reach),
    ]  # fmt: skip
    return replace(
        sample, fit=replace(fit, result=result, equations=fit.equations.at(result.theta), interval=value.method),
        policy_value=_cut(value, settings["reward_range"], whole.reach), notes=notes,
        whole=whole.size, streamed=whole.errors, weight_errors=whole.weights,
        checks=tuple({**{check.name: check for check in judged}, **known}.values()),
    )  # fmt: skip


def _cut(value: PolicyValue, declared: RewardRange | None, reach: Reach | None) -> PolicyValue:
    """The value with its interval cut at what declared rewards can add up to."""
    return value if declared is None or reach is None else value.within(reach.low, reach.high)


def _judged(fit: Fit, checks: str, notes: list[str], starts: Any) -> Evaluation:
    """The evaluation of a fit, with its checks and cross-checks."""
    others, left_out = cross_checks(fit)
    return Evaluation(
        fit, _cut(fit.value, fit.reward_range, reachable(fit)), [*notes, left_out] if left_out else notes,
        checks=(*run_checks(fit, checks), agreement(others, fit.values)),
        starts=None if starts is None else fit.log.as_stored(starts), cross_checks=others, follows=following(fit),
    )  # fmt: skip
