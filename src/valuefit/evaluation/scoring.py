"""Cross-validation of candidates over episodes: each is fitted without a fold and scored on it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from threading import Event, Lock
from typing import Any

import numpy as np

from valuefit.atomic import check_target, write_bytes
from valuefit.data.archive import check_version
from valuefit.data.serialise import as_plain, from_plain
from valuefit.data.transitions import Transitions
from valuefit.engine.loop import solve
from valuefit.evaluation.candidates import NUMBERS, Candidate, by_features, described
from valuefit.evaluation.criterion import Score, clusters_of, criterion_of, mean_score, on_policy
from valuefit.evaluation.fitting import actions_with_weights
from valuefit.features.registry import make
from valuefit.inference.inputs import make_problem
from valuefit.messages import said, shown
from valuefit.policies.policy import Policy
from valuefit.problem.problem import Problem
from valuefit.threads import limit_threads
from valuefit.typing import Array

FORMAT = 1  # of the file of scores
SOLVER_GAP = 1e-8  # of the fits without a fold
FINGERPRINT_SUMS = 32  # over the rows of all steps, which are part of the key of a score
SCORED_COLUMNS = (
    "observations", "now", "next", "reward", "ratio", "terminated", "truncated", "episode", "begins", "action",
    "cluster",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Scored:
    """The score of one candidate on one sample. seconds: of its fits; 0 if it was read from a file."""

    score: Score
    weights: int
    seconds: float


def groups_of(log: Transitions, count: int, rng: np.random.Generator) -> Array:
    """The group, 0 to count - 1, of each step: episodes (or clusters of them) are distributed evenly at random."""
    ids, index = np.unique(clusters_of(log), return_inverse=True)
    return np.asarray(rng.permutation(np.arange(len(ids)) % count)[index])


def restricted(policy: Policy | None, steps: Array) -> Policy | None:
    """The policy for a log of these steps."""
    if policy is None or policy.by_step is None:
        return policy
    return replace(policy, by_step=policy.by_step[steps])


class Sample:
    """Episodes on which candidates are compared.

    log: with the ratios of the policy for state values. fold: of each step, (n,). criteria: one for each fold.
    """

    def __init__(
        self, log: Transitions, policy: Policy | None, *, values: str, discount: float, folds: int, seed: int
    ) -> None:  # fmt: skip
        self.log, self.policy, self.values, self.discount, self.seed = log, policy, values, discount, seed
        self.fold = groups_of(log, folds, np.random.default_rng([seed, 8]))
        self.tests = [np.flatnonzero(self.fold == fold) for fold in range(folds)]
        self.trains = [np.flatnonzero(self.fold != fold) for fold in range(folds)]
        returns = on_policy(log, values)  # decided once, for all folds
        self.criteria = [
            criterion_of(log[steps], discount=discount, values=values, returns=returns, seed=seed)
            for steps in self.tests
        ]

    @cached_property
    def digest(self) -> str:
        """A hash of the columns and the folds: instruments depend on observations and actions."""
        digest = hashlib.sha256(f"{self.values} {self.discount!r} {self.seed}".encode())
        for column in (*(getattr(self.log, name) for name in SCORED_COLUMNS), self.fold):
            if column is not None:
                digest.update(f"{column.dtype} {column.shape}".encode())
                digest.update(np.ascontiguousarray(column).data)
        return digest.hexdigest()


class SharedRows:
    """Candidates with the same features on one sample: rows are computed once, moments once for each trace."""

    def __init__(self, sample: Sample, settings: Candidate) -> None:
        self.sample = sample
        share = sample.log.effective_share if sample.values == "state" else 1.0
        actions = actions_with_weights(sample.log, sample.policy, sample.values)
        fitted, _ = make(settings["features"], sample.log, actions=actions, effective_share=share)
        self.problem = make_problem(sample.log, fitted, sample.policy, sample.values, sample.discount, 0.0, 0.0)
        self.parts: tuple[float, list[Problem]] | None = None  # of the last trace, one for each fold
        self.starts: list[Array | None] = [None] * len(sample.tests)  # weights of the last candidate

    def key(self, settings: Candidate) -> str:
        """The key of a score in the file: a hash of log, folds, sums of the rows (up to rounding) and settings.

        The rows of next steps contain the policy, for state-action values.
        """
        problem = self.problem
        products = problem.phi.dot(np.cos(1 + np.arange(problem.d) ** 1.5))
        rows = products[problem.now] + 2 * problem.discount * products[problem.next]
        starts = np.unique(np.linspace(0, problem.n, FINGERPRINT_SUMS, endpoint=False).astype(int))
        sums = np.add.reduceat(rows * np.cos(1 + np.arange(problem.n) ** 1.5), starts)
        text = json.dumps([
            self.sample.digest, problem.d, [f"{value:.6g}" for value in sums],
            {name: float(settings[name]) for name in NUMBERS},
        ])  # fmt: skip
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def scored(self, settings: Candidate) -> Scored:
        """Fit without each fold and score on it."""
        started, problem, sample = time.perf_counter(), self.problem, self.sample
        scores = []
        for fold, part in enumerate(self._parts(float(settings["trace"]))):
            part.ridge = float(settings["ridge"])  # the moments that a solver has formed for another one are kept
            result = solve(part, "auto", tol=SOLVER_GAP, seed=sample.seed, init=self.starts[fold])
            if result.status == "interrupted":
                raise KeyboardInterrupt
            if not np.isfinite(result.theta).all():
                return Scored(Score(np.inf, np.zeros(0)), problem.d, time.perf_counter() - started)
            self.starts[fold] = result.theta
            scores.append(sample.criteria[fold].score(problem.td_errors(result.theta)[sample.tests[fold]]))
        return Scored(mean_score(scores), problem.d, time.perf_counter() - started)

    def _parts(self, trace: float) -> list[Problem]:
        """The problems without each fold."""
        if self.parts is None or self.parts[0] != trace:
            self.parts = trace, [_part(self.problem, steps, trace) for steps in self.sample.trains]
        return self.parts[1]


def _part(problem: Problem, steps: Array, trace: float) -> Problem:
    """The problem of some steps, over the same rows."""
    begins = problem.begins[steps]
    begins[1:] |= np.diff(steps) != 1
    begins[0] = True
    return Problem.from_rows(
        problem.phi.matrix, problem.now[steps], problem.next[steps], problem.reward[steps], problem.discount[steps],
        problem.ratio[steps], np.cumsum(begins), trace=trace,
    )  # fmt: skip


# ---- all candidates ------------------------------------------------------------------------------------------


class Store:
    """Scores by key, kept in a JSON file if there is a path. Each score is written as soon as it is known."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.lock = path, Lock()
        self.scores: dict[str, Any] = {}
        if path is not None:
            check_target(path, force=True)
            if path.exists():
                self.scores = _read_scores(path)

    def scored(self, shared: SharedRows, candidate: Candidate) -> Scored:
        """The stored score of a candidate, or a new one, which is stored."""
        key = shared.key(candidate)
        if key in self.scores:
            kept: _Kept = from_plain(_Kept, self.scores[key])
            return Scored(Score(kept.criterion, np.array(kept.parts)), kept.weights, 0.0)
        scored = shared.scored(candidate)
        if np.isfinite(scored.score.value):
            self._add(key, scored)
        return scored

    def _add(self, key: str, scored: Scored) -> None:
        with self.lock:
            self.scores[key] = as_plain(_Kept(scored.score.value, scored.score.parts.tolist(), scored.weights))
            if self.path is not None:
                text = json.dumps({"format": FORMAT, "scores": self.scores}, allow_nan=False)
                write_bytes(self.path, text.encode())


@dataclass(frozen=True)
class _Kept:
    """A score in the file."""

    criterion: float
    parts: list[float]
    weights: int


def _read_scores(path: Path) -> dict[str, Any]:
    try:
        facts = from_plain(dict[str, Any], json.loads(path.read_bytes()))
        from_plain(dict[str, _Kept], facts.get("scores"), name="scores")
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not a file of scores of `select`, or it is damaged: {said(error)}. Delete it, or choose "
            "another."
        ) from error
    check_version(path, "scores", facts.get("format"), FORMAT, "Delete it, or choose another.")
    return dict(facts["scores"])


def score_all(
    samples: list[Sample], candidates: list[Candidate], *, jobs: int, store: Store,
    report: Callable[[int, Scored], Any],
) -> list[list[Scored]]:  # fmt: skip
    """The scores of every candidate on every sample. report: called with the position of a candidate and its score.

    jobs: threads, each with the candidates of one kind of features; products with rows release the interpreter lock.
    """
    scores: list[list[Scored | None]] = [[None] * len(candidates) for _ in samples]
    stop, reporting = Event(), Lock()

    def work(number: int, places: list[int]) -> None:
        with _naming(candidates[places[0]]):
            shared = SharedRows(samples[number], candidates[places[0]])
        for place in places:
            if stop.is_set():
                return
            with _naming(candidates[place]):
                scored = store.scored(shared, candidates[place])
            with reporting:
                scores[number][place] = scored
                report(place, scored)

    groups = [(number, places) for number in range(len(samples)) for places in by_features(candidates)]
    if jobs == 1:
        for group in groups:
            work(*group)
    else:
        with limit_threads(1), ThreadPoolExecutor(jobs, thread_name_prefix="select") as pool:
            futures = [pool.submit(partial(copy_context().run, work, number, places)) for number, places in groups]
            try:
                for future in futures:
                    future.result()
            finally:  # after an error or Ctrl-C, the rest is not begun
                stop.set()
                for future in futures:
                    future.cancel()
    return [[scored for scored in row if scored is not None] for row in scores]


@contextmanager
def _naming(settings: Candidate) -> Iterator[None]:
    """Add the candidate to the message of a refusal."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"The candidate {shown(described(settings))} cannot be fitted: {error}") from error
