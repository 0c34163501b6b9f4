"""`evaluate`: from a log to the policy value in one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args

from valuefit.checks.cross_checks import cross_checks
from valuefit.checks.run import WHICH, run_checks
from valuefit.data.shards import ShardedLog
from valuefit.data.transitions import Transitions
from valuefit.data.validation import one_of
from valuefit.engine.loop import Progress
from valuefit.evaluation.evaluation import Evaluation
from valuefit.evaluation.fitting import Settings, Task, actions_with_weights, task_in_memory
from valuefit.evaluation.notes import actions_notes, cut_notes, longer_notes, policy_note, starts_note
from valuefit.features.registry import Fitted, make
from valuefit.gpu.placement import placement
from valuefit.inference.error_estimate import KINDS, Kind
from valuefit.inference.fit import Fit, Values
from valuefit.inference.following import following
from valuefit.inference.inputs import check_client, load_log
from valuefit.inference.policy_value import INTERVAL_LEVEL, check_level
from valuefit.inference.reach import RewardRange, reward_extremes
from valuefit.policies.importance import policy_for, with_ratios
from valuefit.policies.policy import Policy, find_policy
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
    settings = Settings(
        features=features, discount=discount, policy=None if policy is None else find_policy(policy, allow_code=True),
        trace=trace, ridge=ridge, values=cast(Values, values), solver=solver, tol=tol, max_passes=max_passes, seed=seed,
        starts=starts, interval=interval, level=level, reward_range=RewardRange.of(reward_range), callback=callback,
    )  # fmt: skip
    if isinstance(loaded, ShardedLog):
        from valuefit.evaluation.streamed import LogInShards  # not for small logs

        in_shards = LogInShards.opened(loaded, settings, client, checkpoint, cluster=cluster, device=device)
        return _evaluation(in_shards, settings, checks)
    if checkpoint is not None:
        raise ValueError(
            'checkpoint is for a log that is read in parts: load it with `memory="stream"`, or leave it out.'
        )
    if client is not None:
        raise ValueError('client reads a log in files: load them with `memory="stream"`, or leave client out.')
    with placing as place:
        return _evaluation(_InMemory(loaded, place), settings, checks)


class _Source(Protocol):
    """Where the steps of a log are. log: all of them, or a sample of its episodes. rewards: the extremes of all."""

    @property
    def log(self) -> Transitions: ...

    @property
    def rewards(self) -> tuple[float, float]: ...

    def weighted(self, policy: Policy) -> Transitions:
        """The log with the ratios of the policy."""

    def features(self, given: Any, *, actions: int, effective_share: float) -> Fitted:
        """The features, fitted to the observations of the log or to a sample of them."""

    def task(self, log: Transitions, features: Fitted, policy: Policy | None, settings: Settings) -> Task:
        """The problem of all steps; log: that of this source, weighted for state values."""

    def notes(self, fit: Fit) -> list[str]:
        """How the log was read, and what of the evaluation is not of all of it."""


@dataclass(frozen=True)
class _InMemory:
    """A log in memory, and where its problem is solved (`gpu.placement`)."""

    log: Transitions
    place: Callable[[Problem], SaddlePoint]

    @property
    def rewards(self) -> tuple[float, float]:
        return reward_extremes(self.log.reward)

    def weighted(self, policy: Policy) -> Transitions:
        return with_ratios(self.log, policy)

    def features(self, given: Any, *, actions: int, effective_share: float) -> Fitted:
        return make(given, self.log, actions=actions, effective_share=effective_share)[0]

    def task(self, log: Transitions, features: Fitted, policy: Policy | None, settings: Settings) -> Task:
        return task_in_memory(log, features, policy, settings, place=self.place)

    def notes(self, fit: Fit) -> list[str]:
        return list(self.log.notes)


def _evaluation(source: _Source, settings: Settings, checks: str) -> Evaluation:
    """The evaluation of a log, wherever its steps are."""
    log, policy = source.log, settings.policy
    policy = None if policy is None else policy_for(policy, log)
    if settings.reward_range is not None:
        settings.reward_range.require(*source.rewards)
    if policy is not None and settings.values == "state":
        log = source.weighted(policy)
    actions = actions_with_weights(log, policy, settings.values)
    share = log.effective_share if settings.values == "state" else 1.0
    features = source.features(settings.features, actions=actions, effective_share=share)
    fit = source.task(log, features, policy, settings).solved(settings)
    notes = [
        policy_note(fit.log, policy, fit.values), *actions_notes(fit.log, policy), features.sentence,
        f"Solved with {fit.result.solver}: {fit.result.message}",
        starts_note(fit, given=settings.starts is not None), *longer_notes(fit.value.bias, fit.value.unseen),
        *cut_notes(settings.reward_range, fit.reach),
    ]  # fmt: skip
    others, left_out = cross_checks(fit)
    value = fit.value
    if settings.reward_range is not None and fit.reach is not None:
        value = value.within(fit.reach.low, fit.reach.high)
    return Evaluation(
        fit, value, [*source.notes(fit), *notes, *([left_out] if left_out else [])], run_checks(fit, checks, others),
        starts=None if settings.starts is None else fit.log.as_stored(settings.starts), cross_checks=others,
        weight_errors=() if fit.sums is None else fit.sums.weights, whole=None if fit.sums is None else fit.sums.size,
        follows=None if fit.sampled else following(fit),
    )  # fmt: skip
