"""The evaluation of a log that is not in memory: by sums over its shards, in a few passes.

The first pass takes two samples: of observations, to which features are fitted, and of whole episodes, on which the
checks are run. The second sums the moments, or what a matrix-free solver needs; the last sums what each episode adds to
the standard error. Logs that fit into the samples get the same features and checks as in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from valuefit.data.continuity import Continuity
from valuefit.data.joining import join_logs
from valuefit.data.shards import LogShard, ShardedLog
from valuefit.data.transitions import Transitions
from valuefit.data.validation import episode_starts
from valuefit.engine.choice import for_shards
from valuefit.engine.result import Result
from valuefit.evaluation.fitting import Settings, Task, actions_with_weights, task_in_memory
from valuefit.features.kernel import STEPS_PER_LANDMARK
from valuefit.features.registry import MAX_FIT_STEPS, Fitted, fit_stride, make
from valuefit.inference.adjoints import Equations
from valuefit.inference.error_estimate import Kind, LinearFunction
from valuefit.inference.errors import Errors
from valuefit.inference.fit import Fit, Sums
from valuefit.inference.inputs import MakePart, weighted_part
from valuefit.inference.log_in_parts import LogInParts
from valuefit.inference.policy_value import value_rows, with_errors
from valuefit.inference.reach import reward_extremes
from valuefit.inference.shard_errors import EpisodeSums
from valuefit.inference.unseen import unseen_in_parts, what_changes
from valuefit.messages import shown
from valuefit.policies.importance import action_numbers, with_ratios
from valuefit.policies.policy import Policy
from valuefit.problem.arguments import fraction
from valuefit.problem.moment_problem import MomentProblem, MomentSums
from valuefit.problem.saddle_point import SaddlePoint
from valuefit.solvers.solver import Solver
from valuefit.streaming.checkpoint import Checkpoint, facts_of
from valuefit.streaming.parts import MAX_AT_ONCE, PART_COPIES, Part, Parts, part_sizes, read_ahead, sum_shards
from valuefit.streaming.sharded import ShardedProblem
from valuefit.threads import one_blas_thread, thread_count
from valuefit.typing import Array

MAX_SAMPLE_STEPS = MAX_FIT_STEPS  # of the observations that features are fitted to, and of the checked episodes
MOMENTS_GAP = 1e-8  # that is asked of the direct solution
STEP_BYTES = 100  # of a step without its observation
SAMPLE_MARGIN = 2  # every 2^k-th episode is taken, so a sample may have half of the steps that fit
SAMPLE_COPIES = 8  # of a sample while it is made and joined


@dataclass
class Samples:
    """Every k-th observation and every k-th episode of a log, k being powers of two such that they fit."""

    most: int = MAX_SAMPLE_STEPS
    steps: int = 0
    episodes: int = 0
    terminated: bool = False
    rewards: tuple[float, float] = (np.inf, -np.inf)  # the smallest and the largest
    states: Array | None = None  # all numbered states, which features need to know
    counts: list[tuple[int, int]] = field(default_factory=list)  # steps and episodes of each shard
    continuity: Continuity = field(default_factory=Continuity)
    _observations: list[tuple[Array, Array]] = field(default_factory=list)
    _logs: list[tuple[Array, Transitions]] = field(default_factory=list)
    _stride: int = 1
    _episode_stride: int = 1

    def add(self, log: Transitions) -> None:
        """The next shard."""
        starts = np.append(np.flatnonzero(episode_starts(log.episode)), len(log))
        lengths, first = np.diff(starts), (self.steps, self.episodes)
        self.steps, self.episodes = self.steps + len(log), self.episodes + len(lengths)
        self.counts.append((len(log), len(lengths)))
        self.continuity = self.continuity + log.continuity
        self.terminated = self.terminated or bool(log.terminated.any())
        self.rewards = _extremes(self.rewards, reward_extremes(log.reward))
        if log.has_numbered_states:
            known = log.observations if self.states is None else np.concatenate([self.states, log.observations])
            self.states = np.unique(known)
        # strides are doubled first, so that nothing is copied that is left out again
        self._fit(first[0])
        number = np.arange(_multiple(first[0], self._stride), self.steps, self._stride)
        self._observations.append((number, log.observations[log.now[number - first[0]]]))
        self.keep(self.most, lengths, first[1])
        episode = np.arange(first[1], self.episodes)
        chosen = episode % self._episode_stride == 0
        if chosen.any():
            self._logs.append((np.repeat(episode, lengths * chosen), log[np.repeat(chosen, lengths)].compact()))

    def __add__(self, other: Samples) -> Samples:
        """Join the samples of these shards and of `other`, whose shards come after them."""
        known = [states for states in (self.states, other.states) if states is not None]
        both = Samples(
            self.most, other.steps, other.episodes, self.terminated or other.terminated,
            _extremes(self.rewards, other.rewards),
            np.unique(np.concatenate(known)) if known else None, [*self.counts, *other.counts],
            self.continuity + other.continuity,
            [*self._observations, *other._observations], [*self._logs, *other._logs],
            max(self._stride, other._stride), max(self._episode_stride, other._episode_stride),
        )  # fmt: skip
        both._thin()
        both._thin_episodes()
        both._fit(both.steps)
        both.keep(both.most)
        return both

    def _fit(self, first: int) -> None:
        """Double the stride until the observations fit, with those of the steps from `first` on, not yet taken."""
        while (
            sum(len(part) for part, _ in self._observations)
            + len(range(_multiple(first, self._stride), self.steps, self._stride))
            > self.most
        ):
            self._stride *= 2
            self._thin()

    def _thin(self) -> None:
        kept = [(np.flatnonzero(part % self._stride == 0), part, rows) for part, rows in self._observations]
        self._observations = [(part[here], rows[here]) for here, part, rows in kept]

    def keep(self, most: int, lengths: Array | tuple[()] = (), first: int = 0) -> None:
        """At most so many steps of episodes, but at least two episodes.

        lengths: of further episodes, whose numbers begin with `first` and whose steps are not yet taken.
        """
        while True:
            further = lengths[_multiple(first, self._episode_stride) - first :: self._episode_stride]
            steps = sum(len(log) for _, log in self._logs) + int(np.sum(further))
            if steps <= most or sum(map(_runs, (episode for episode, _ in self._logs))) + len(further) <= 2:
                return
            self._episode_stride *= 2
            self._thin_episodes()

    def _thin_episodes(self) -> None:
        fewer = [(episode, episode % self._episode_stride == 0, log) for episode, log in self._logs]
        self._logs = [
            (e, log) if chosen.all() else (e[chosen], log[chosen].compact()) for e, chosen, log in fewer if chosen.any()
        ]

    @property
    def whole(self) -> bool:
        """Whether the sample of episodes is the log."""
        return self._episode_stride == 1

    def log(self) -> Transitions:
        """The sampled episodes as one log, with the counts of the whole."""
        return replace(join_logs([log for _, log in self._logs]), continuity=self.continuity)._frozen()

    def observations(self) -> Any:
        """What features are fitted to: the log if the sample is all of it."""
        if self.states is not None:
            return self.states
        return self.log() if self.whole else np.concatenate([rows for _, rows in self._observations])

    @property
    def fit_notes(self) -> list[str]:
        """Whether features are fitted to fewer observations than in memory."""
        if self.whole or self.states is not None or self._stride <= (stride := fit_stride(self.steps)):
            return []
        few, many = (-(-self.steps // one) for one in (self._stride, stride))
        return [
            f"With this limit, features that depend on observations are fitted to those of {few:,} steps, in memory "
            f"to those of {many:,}: with such features values differ a little from those in memory."
        ]


def _multiple(number: int, stride: int) -> int:
    """The first multiple of the stride from this number on."""
    return number + -number % stride


def _extremes(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return min(one[0], other[0]), max(one[1], other[1])


def _runs(episode: Array) -> int:
    """The number of episodes, whose steps are contiguous."""
    return int(np.count_nonzero(episode_starts(episode)))


def take_samples(log: ShardedLog, client: Any = None) -> Samples:
    """One pass over the observations; on workers another one if the shards do not have the steps that were planned."""
    if client is None:
        samples = Samples()
        with one_blas_thread():  # here: where each reader asked for it, threads of BLAS spun between their checks
            for shard in read_ahead(log.shards, min(MAX_AT_ONCE, thread_count())):
                samples.most = _sample_steps(shard, log.limit)
                samples.add(shard)
        return samples
    shards = log.shards
    firsts = np.array(log.firsts) if log.firsts is not None else np.zeros((len(shards), 2), int)
    for _ in range(2):
        (samples,) = sum_shards(shards, partial(_sample, firsts=firsts, limit=log.limit), client)
        planned, firsts = firsts, np.cumsum([(0, 0), *samples.counts[:-1]], axis=0)
        if (planned == firsts).all():
            return samples
    raise ValueError(f"{log.source} has other steps whenever it is read. Save it, so that it stays the same.")


def _sample(log: Transitions, number: int, *, firsts: Array, limit: int) -> tuple[Samples]:
    """The samples of a shard."""
    step, episode = map(int, firsts[number])
    samples = Samples(_sample_steps(log, limit), steps=step, episodes=episode)
    samples.add(log)
    return (samples,)


def _sample_steps(log: Transitions, limit: int) -> int:
    """The most steps of a sample of such a log."""
    return int(np.clip(limit / _step_bytes(log), 1, MAX_SAMPLE_STEPS))


def _step_bytes(log: Transitions) -> int:
    """Bytes that a step needs while a sample is made."""
    return SAMPLE_COPIES * (STEP_BYTES + log.observations.nbytes // len(log.observations))


@dataclass(frozen=True, eq=False)
class LogInShards:
    """A log in shards, which is read in a few passes; `log` is a sample of its episodes.

    client: of Dask, on whose workers the shards are opened; None: here. checkpoint: keeps the sums of each pass.
    """

    source: ShardedLog
    samples: Samples
    log: Transitions
    client: Any
    checkpoint: Checkpoint | None
    fit_notes: list[str]

    @classmethod
    def opened(
        cls, log: ShardedLog, settings: Settings, client: Any, checkpoint: Any, *, cluster: Any, device: Any
    ) -> LogInShards:
        """The log after the pass that takes the samples. Raises ValueError for what needs it in memory."""
        _refuse(settings, cluster=cluster, device=device)
        kept = None if checkpoint is None else _checkpoint(checkpoint, log, settings)
        if client is not None and any(isinstance(shard, LogShard) for shard in log.shards):
            raise ValueError(
                f"Workers cannot read {log.source} of this process. Save the log where they can read it (vf.save, or "
                'Parquet files), load it from there with `memory="stream"`, or leave client out.'
            )
        client = log.client if client is None else client
        samples = take_samples(log, client)
        if fraction("discount", settings.discount) == 1 and not samples.terminated:
            raise ValueError("With discount 1 some step must terminate, but none does. Give a discount below 1.")
        return cls(log, samples, samples.log(), client, kept, samples.fit_notes)

    @property
    def rewards(self) -> tuple[float, float]:
        return self.samples.rewards

    def weighted(self, policy: Policy) -> Transitions:
        return weighted_part(self.log, policy)

    def features(self, given: Any, *, actions: int, effective_share: float) -> Fitted:
        return make(
            given, self.samples.observations(), actions=actions, steps=self.samples.steps,
            effective_share=effective_share, indicators=self.log.indicators,
        )[0]  # fmt: skip

    def task(self, log: Transitions, features: Fitted, policy: Policy | None, settings: Settings) -> Task:
        maker = MakePart(features, policy, *settings.problem)
        columns = features.columns * actions_with_weights(self.log, policy, settings.values)
        starts = None if settings.starts is None else self.log.as_stored(settings.starts)
        rows, at_once = part_sizes(self.source.limit, columns)
        parts = Parts(self.source.shards, maker, rows, self.client, at_once, tuple(self.samples.counts))
        if self.checkpoint is not None:
            self.samples.keep(self._checked_steps(columns))
            outputs = maker.outputs(self.samples.log(), columns)
            self.checkpoint.require_same("the features or the policy", outputs)
        kept = replace(parts, checkpoint=self.checkpoint)
        problem, function, ratios, mean = _problem(kept, maker, columns, starts, settings.solver)
        options: dict[str, Any] = {}
        if isinstance(problem, MomentProblem):
            options = {"solver": "lstd", "tol": MOMENTS_GAP if settings.tol == "statistical" else settings.tol}

        def fit(result: Result) -> Fit:
            equations = Equations.of(problem, result.theta)
            kind: Kind = "cr1" if equations.iterative else settings.interval
            pairs = unseen_in_parts(kept, problem, result.theta) if settings.values == "state-action" else None
            shards = LogInParts(kept, maker, self.samples.episodes, self.source.limit)
            refused = None if kind == settings.interval else settings.interval
            errors = Errors(equations, shards, kind, refused, value=function, unseen=pairs, mean=mean)
            error, weights, occupancy = errors.of_value()
            errors = replace(errors, shards=replace(shards, parts=parts))  # a checkpoint keeps the passes before this
            effective = float(ratios[0] ** 2 / ratios[1]) if "ratio" in problem.traits else None
            value = with_errors(
                float(function.c @ result.theta), function.starts, error, settings.level, effective, kind
            )  # fmt: skip
            unseen = what_changes(pairs, equations, function)
            sums = Sums(
                (self.samples.steps, self.samples.episodes), errors, error, value.allowing_for(unseen.changes), unseen,
                tuple(weights), occupancy, self.samples.rewards, self.samples.terminated, self._limit_for(columns),
            )  # fmt: skip
            return self._sampled(result, sums, columns, settings, maker)

        return Task(problem, options, fit)

    def _sampled(self, result: Result, sums: Sums, columns: int, settings: Settings, maker: MakePart) -> Fit:
        """The fit of all episodes, with the rows of the steps of as many as fit into memory.

        Checks that need these rows take the weights that are fitted to the sample, where it is not the log.
        """
        self.samples.keep(self._checked_steps(columns))
        sample, policy = self.samples.log(), maker.policy
        if policy is not None and settings.values == "state":
            sample = with_ratios(sample, policy)
        actions = columns // maker.features.columns
        all_actions = _has_all_actions(sample, sums.errors.equations.problem, actions)
        task = task_in_memory(sample, maker.features, policy, settings, all_actions=all_actions)
        whole = len(sample) == sums.size[0]
        fit = task.fit(result) if whole else task.solved(replace(settings, solver="auto", callback=None))
        return fit.of_whole_log(result, sums)

    def _step_bytes(self, columns: int) -> int:
        """Bytes that a step of the sample with feature rows needs while it is checked."""
        return 8 * PART_COPIES * columns

    def _checked_steps(self, columns: int) -> int:
        return max(1, self.source.limit // self._step_bytes(columns))

    def _limit_for(self, columns: int) -> int:
        """The limit with which the sample has enough steps for the features, in bytes; 0: it never has."""
        needed = STEPS_PER_LANDMARK * columns
        if needed > MAX_SAMPLE_STEPS:
            return 0
        return SAMPLE_MARGIN * needed * (self._step_bytes(columns) + _step_bytes(self.log))

    def notes(self, fit: Fit) -> list[str]:
        samples, problem = self.samples, fit.whole_errors.equations.problem
        passes = 2  # over the log: one for the moments or the starts, one for the errors
        if isinstance(problem, ShardedProblem):
            passes += problem.passes
        notes = [
            f"The log of {samples.steps:,} steps was not loaded: its {len(samples.counts)} shards were read "
            f"{'one after the other' if self.client is None else 'on the workers of a cluster'}, once for the samples "
            f"and {passes} times for the solution and its error."
        ]
        if fit.sampled:
            notes.append(
                f"Checks and figures are those of a sample of {len(fit.log.episodes):,} of {samples.episodes:,} "
                f"episodes ({len(fit.log):,} steps); estimate and interval are those of all, and so are the reachable "
                "range and the occupancy weights. Cross-checks, and for how many steps the log follows the policy, "
                'need all steps: load the log with `memory="auto"` and a limit that it fits into.'
            )
        return [*self.source.notes, *notes, *self.fit_notes]


def _refuse(settings: Settings, *, cluster: Any, device: Any) -> None:
    """Raise ValueError for what needs the whole log in memory."""
    policy = settings.policy
    refused = {
        "clusters of episodes": cluster is not None,
        "a device": device is not None,
        "target probabilities by step": policy is not None and policy.by_step is not None,
        "state-action values of a policy that takes actions": (
            settings.values == "state-action" and policy is not None and policy.takes_actions
        ),
    }
    for what, asked in refused.items():
        if asked:
            raise ValueError(
                f'A log that is read in parts cannot be evaluated with {what}. Load it with `memory="auto"` and a '
                "limit that it fits into, or leave that out."
            )


def _has_all_actions(sample: Transitions, problem: SaddlePoint, actions: int) -> bool:
    """Whether the sample has the actions of the whole log, those whose features have data."""
    if actions == 1 or sample.action is None:
        return True
    data = np.ones(problem.d, bool)
    data[problem.dead] = False
    return bool(np.isin(np.flatnonzero(data.reshape(actions, -1).any(axis=1)), action_numbers(sample)).all())


def _checkpoint(folder: Any, log: ShardedLog, settings: Settings) -> Checkpoint:
    """The checkpoint of the evaluation of this log with these settings in a folder, which may be new."""
    if not isinstance(folder, str | Path) or not str(folder):
        raise ValueError(f"checkpoint is {shown(folder)}; it must be the name of a folder.")
    known = {name: value for name, value in vars(settings).items() if name != "callback"}
    return Checkpoint(Path(folder), facts_of(log.shards, {**known, "limit": log.limit}), (MomentSums, EpisodeSums))


def _problem(
    parts: Parts, maker: MakePart, columns: int, starts: Any, solver: str | Solver
) -> tuple[SaddlePoint, LinearFunction, Array, Array]:
    """The problem of all parts, the mean value over the starts, the sums of the ratios and of their squares, and the
    mean feature row of the steps."""
    name = solver if isinstance(solver, str) else solver.name
    settings = {"trace": maker.trace, "discount": maker.discount, "ridge": maker.ridge}
    problem: SaddlePoint
    if (for_shards(columns) if name == "auto" else name) == "lstd":
        sums, c, count, ratios, total = parts.sum(partial(_moments, maker=maker))
        problem = MomentProblem(sums, **settings)
    else:
        problem = ShardedProblem(parts, **settings)
        c, count, ratios, total = parts.sum(partial(_starts, maker=maker))
    if starts is None:
        return problem, LinearFunction(c / count, total=count), ratios, total / problem.n
    rows = value_rows(maker.features, maker.values, maker.policy, columns, starts)
    mean = np.asarray(rows.mean(axis=0), dtype=np.float64).ravel()
    return problem, LinearFunction(mean, rows), ratios, total / problem.n


def _moments(part: Part, *, maker: MakePart) -> tuple[Any, ...]:
    return (MomentSums.of(part.problem), *_starts(part, maker=maker))


def _starts(part: Part, *, maker: MakePart) -> tuple[Any, ...]:
    rows, first = maker.starts(part.log, part.problem.d)
    problem, ratio = part.problem, part.problem.ratio
    sums = np.asarray(rows.sum(axis=0), float).ravel(), len(first), np.array([ratio.sum(), ratio @ ratio])
    return *sums, problem.n * problem.mean_psi
