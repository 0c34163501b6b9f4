"""`select`: choose features, trace and ridge by held-out episodes, and evaluate the choice on other ones.

A choice that looked at rewards makes the interval and the checks of the same episodes invalid. So the episodes are
divided into two halves: candidates are compared on one half, by cross-validation, and the chosen one is fitted, with
interval and checks, to the other half; then the halves change places, and the two values are averaged.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from valuefit.checks.numerics import SMALL_SAMPLE_BIAS, STABLE_FIXED_POINT
from valuefit.checks.verdict import LEVELS, Verdict
from valuefit.data.serialise import as_plain
from valuefit.data.shards import ShardedLog
from valuefit.data.transitions import Transitions
from valuefit.data.validation import boolean, one_of, whole_number
from valuefit.evaluation.candidates import Candidate, candidates_of, described
from valuefit.evaluation.criterion import clusters_of
from valuefit.evaluation.evaluate import VALUES, evaluate
from valuefit.evaluation.evaluation import Evaluation
from valuefit.evaluation.scoring import Sample, Scored, Store, groups_of, restricted, score_all
from valuefit.evaluation.text import selection_summary
from valuefit.inference.error_estimate import ErrorEstimate
from valuefit.inference.inputs import load_log
from valuefit.inference.policy_value import INTERVAL_LEVEL, PolicyValue, check_level, with_errors
from valuefit.messages import shown
from valuefit.policies.importance import action_numbers, policy_for, target_probabilities, with_ratios
from valuefit.policies.policy import Policy, find_policy
from valuefit.problem.arguments import fraction

FOLDS = 5  # of the cross-validation on each half
MIN_GROUPS_PER_FOLD = 2  # episodes, of which the criterion multiplies pairs
Rule = Literal["best", "one-standard-error"]
RULES = ("best", "one-standard-error")
REJECTED = "do not use"  # the verdict that rules a candidate out
MAX_ERROR_RATIO = 10.0  # of a standard error over the size of the criterion of another candidate, with its error
SAME_EPISODES = (
    "The settings were chosen on the episodes that they are evaluated on, so the interval does not contain the error "
    "of the choice, and the checks were part of it. Use cross_fit=True."
)
ALL_REJECTED = (
    "The checks rejected every candidate on the episodes on which they were compared. Try other candidates, or a "
    "larger log."
)


class SelectionProgress(NamedTuple):
    """done of total candidates (on each half) have been scored; the last one, and its criterion."""

    done: int
    total: int
    candidate: str
    criterion: float


@dataclass(frozen=True, eq=False, repr=False)
class Selection:
    """The chosen settings, the value of the policy, and what was tried. Returned by `valuefit.select`.

    best: the settings that were chosen on each half of the episodes, or on all of them. evaluations: of these settings,
    each on the other half. policy_value: the mean of their values; the interval covers the mean of two fixed points
    (what the two estimators would give with infinite data), each with the features that were learned on the other half.
    verdict: the worse one of the two, with the reasons of both. table: one dict for each candidate and half: its
    settings, criterion (lower is better) and standard error, number of weights, verdict if its checks were made on that
    half, whether its equations are far from singular on the other half if that was looked at, seconds, and whether it
    was chosen. criterion: what was compared, in words.
    """

    best: tuple[Candidate, ...]
    evaluations: tuple[Evaluation, ...]
    policy_value: PolicyValue
    verdict: Verdict
    table: list[dict[str, Any]]
    criterion: str
    cross_fitted: bool

    def __repr__(self) -> str:
        chosen = " and ".join(dict.fromkeys(map(described, self.best)))
        return f"Selection({self.verdict.level}: {self.policy_value!r}, chosen {chosen})"

    def to_dict(self) -> dict[str, Any]:
        """The selection as plain data for JSON; candidates in words."""
        facts = {
            "verdict": self.verdict,
            "policy_value": self.policy_value,
            "chosen": [described(settings) for settings in self.best],
            "cross_fitted": self.cross_fitted,
            "criterion": self.criterion,
            "halves": [evaluation.policy_value for evaluation in self.evaluations],
            "table": [{**row, "settings": described(row["settings"])} for row in self.table],
        }
        plain: dict[str, Any] = as_plain(facts)
        return plain

    def summary(self) -> str:
        """A page of text: the verdict, the value, the choice, and the table of what was tried."""
        return selection_summary(self.to_dict())

    def plot(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Draw the criterion of every candidate as .png, .svg or .pdf (extra `plot`); see `force` in `report`."""
        # valuefit.report imports this module
        return importlib.import_module("valuefit.report.selection").write_figure(self, path, force=force)


def select(
    log: Any,
    candidates: Any,
    *,
    discount: float = 0.99,
    policy: Any = None,
    values: str = "state",
    folds: int = FOLDS,
    rule: Rule = "best",
    cross_fit: bool = True,
    starts: Any = None,
    columns: Any = None,
    missing: str = "refuse",
    cluster: Any = None,
    level: float = INTERVAL_LEVEL,
    seed: int = 0,
    jobs: int = 1,
    save: str | os.PathLike[str] | None = None,
    callback: Callable[[SelectionProgress], Any] | None = None,
    progress: bool = False,
) -> Selection:
    """Choose among candidates by held-out episodes, and evaluate the choice on episodes that it did not see.

    candidates: a list of settings of `evaluate` (features, trace, ridge), or a dict with a list of values for
    each setting, all combinations of which are tried. Each is fitted without one of `folds` groups of episodes and
    scored on it: by an estimate of the squared mean difference of value and return given the observation where the log
    is on-policy, else of the squared mean TD error. The best one whose checks do not end in "do not use" is chosen
    (rule="best"), or the one with the fewest weights that is no worse than it by one standard error of the difference.

    This happens on one half of the episodes; the choice is evaluated on the other half, the halves change places, and
    the values are averaged. A candidate whose equations are nearly singular on the other half is passed over; this
    uses no rewards, so the interval stays valid. With cross_fit=False all of it happens on the whole log, and the
    verdict is at most "caution". log, discount, policy, values, starts, columns, cluster, level, seed: as in
    `evaluate`.

    jobs: candidates with different features are scored at the same time by this many threads. save: a JSON file that
    keeps the scores; the same call reads it and goes on where it was interrupted. callback: called with a
    `SelectionProgress` after each candidate. progress: show a bar on the terminal.
    """
    given, level, discount = candidates_of(candidates), check_level(level), fraction("discount", discount)
    one_of("values", values, VALUES)
    one_of("rule", rule, RULES)
    cross_fit, progress = boolean("cross_fit", cross_fit), boolean("progress", progress)
    if callback is not None and not callable(callback):
        raise ValueError(f"callback is {shown(callback)}; it must be a function of a SelectionProgress.")
    folds = whole_number("folds", folds, low=2)
    jobs = whole_number("jobs", jobs, low=1)
    seed = whole_number("seed", seed, low=0)
    log = load_log(log, columns, cluster, missing=missing)
    if isinstance(log, ShardedLog):
        raise ValueError("select compares candidates on a log in memory, but this one is read in parts. Load a sample.")
    if values == "state-action":
        action_numbers(log)  # refuses a log without them
    target = None if policy is None else policy_for(find_policy(policy, allow_code=True), log)
    if target is not None and target.by_step is not None:
        target_probabilities(target, log)  # refuses another number of steps
    halves = _halves(log, target, values, folds=folds, seed=seed, cross_fit=cross_fit)
    samples = [
        Sample(half.compared, half.policy, values=values, discount=discount, folds=folds, seed=seed) for half in halves
    ]
    store = Store(None if save is None else Path(save))
    with _reporting(given, len(samples), callback, progress) as report:
        scores = score_all(samples, given, jobs=jobs, store=store, report=report)
    settings = {"discount": discount, "values": values, "starts": starts, "level": level, "seed": seed}
    choices = [
        _choose(half, other, given, scored, rule, settings)
        for half, other, scored in zip(halves, reversed(halves), scores, strict=True)
    ]
    evaluations = [choice.evaluation for choice in choices]
    return Selection(
        best=tuple(given[choice.place] for choice in choices),
        evaluations=tuple(evaluations),
        policy_value=_mean_value(evaluations),
        verdict=_verdict(evaluations, choices, cross_fit),
        table=_table(given, scores, choices),
        criterion=samples[0].criteria[0].description,
        cross_fitted=cross_fit,
    )


# ---- halves ------------------------------------------------------------------------------------------------------


class _Half(NamedTuple):
    """Episodes with their policy. compared: with the ratios of the policy, if values are those of states."""

    log: Transitions
    compared: Transitions
    policy: Policy | None


def _halves(
    log: Transitions, policy: Policy | None, values: str, *, folds: int, seed: int, cross_fit: bool
) -> list[_Half]:  # fmt: skip
    """The two halves, or the whole log if the choice is evaluated on the same episodes."""
    count = 2 if cross_fit else 1
    groups = len(np.unique(clusters_of(log)))
    needed = count * folds * MIN_GROUPS_PER_FOLD
    if groups < needed:
        raise ValueError(
            f"{folds} folds need {needed} episodes (or clusters of them), and the log has {groups}. Use fewer folds, "
            "or evaluate with settings that you choose without the log."
        )
    compared = log if policy is None or values != "state" else with_ratios(log, policy)
    half = groups_of(log, count, np.random.default_rng([seed, 9]))
    steps = [np.flatnonzero(half == number) for number in range(count)]
    return [_Half(log[part], compared[part], restricted(policy, part)) for part in steps]


# ---- the choice --------------------------------------------------------------------------------------------------


class _Choice(NamedTuple):
    """place: of the chosen candidate. evaluation: of it, on the other half.

    verdicts: on this half, of the candidates whose checks were made. stable: whether those that passed them are far
    from singular on the other half.
    """

    place: int
    evaluation: Evaluation
    verdicts: dict[int, str]
    stable: dict[int, bool]

    @property
    def rejected(self) -> bool:
        return self.verdicts[self.place] == REJECTED


def _choose(
    half: _Half, other: _Half, candidates: list[Candidate], scores: list[Scored], rule: Rule, settings: dict[str, Any]
) -> _Choice:
    """The first candidate in the order of preference that its checks do not reject on this half.

    It must also be stable on the other half, where it is estimated. Only this check of the other half may decide: it
    uses no rewards, so the interval and the other checks remain valid. If no candidate is stable, it is the first that
    is not rejected; if all are rejected, the first.
    """

    def evaluated(on: _Half, place: int) -> Evaluation:
        return evaluate(on.log, policy=on.policy, **candidates[place], **settings)

    verdicts: dict[int, str] = {}
    stable: dict[int, bool] = {}
    order = preference(scores, rule)
    for place in order:
        evaluation = evaluated(half, place)
        verdicts[place] = evaluation.verdict.level
        if verdicts[place] == REJECTED:
            continue
        if other is not half:
            evaluation = evaluated(other, place)
        stable[place] = all(check.outcome == "pass" for check in evaluation.checks if check.name == STABLE_FIXED_POINT)
        if stable[place]:
            return _Choice(place, evaluation, verdicts, stable)
    place = next((place for place in order if place in stable), order[0])
    return _Choice(place, evaluated(other, place), verdicts, stable)


def preference(scores: Sequence[Scored], rule: Rule) -> list[int]:
    """Positions of the candidates by criterion; with the one-standard-error rule, those near the best by weights.

    The criterion estimates a square, which is not negative. Overfitted candidates can have such a standard error that
    theirs is far below 0 by chance; they come last.
    """
    errors = [one.score.standard_error for one in scores]
    known = min(abs(one.score.value) + error for one, error in zip(scores, errors, strict=True))
    vague = [error > MAX_ERROR_RATIO * known and math.isfinite(known) for error in errors]
    order = sorted(range(len(scores)), key=lambda place: (vague[place], scores[place].score.value))
    if rule == "best":
        return order
    best = scores[order[0]].score
    differences = {place: scores[place].score.minus(best) for place in order if len(scores[place].score.parts)}
    near = [place for place, score in differences.items() if score.value <= score.standard_error]
    return [*sorted(near, key=lambda place: scores[place].weights), *(place for place in order if place not in near)]


# ---- the result --------------------------------------------------------------------------------------------------


def _mean_value(evaluations: list[Evaluation]) -> PolicyValue:
    """The mean of values from independent episodes; degrees of freedom by Satterthwaite."""
    values = [evaluation.policy_value for evaluation in evaluations]
    if len(values) == 1:
        return values[0]
    sizes = [value.effective_sample_size for value in values if value.effective_sample_size is not None]
    unseen = np.mean([value.unseen for value in values], axis=0)
    return with_errors(
        estimate=float(np.mean([value.estimate for value in values])),
        starts=sum(value.starts for value in values),
        error=replace(_mean_error(values), bias=float(np.mean([_bias(evaluation) for evaluation in evaluations]))),
        level=values[0].level,
        sample_size=sum(sizes) if len(sizes) == len(values) else None,
        method="cr1" if any(value.method == "cr1" for value in values) else values[0].method,
    ).allowing_for((float(unseen[0]), float(unseen[1])))


def _bias(evaluation: Evaluation) -> float:
    """The bias by the jackknife; `policy_value.bias` is 0 where it is small against the standard error of one half."""
    statistics = [check.statistic for check in evaluation.checks if check.name == SMALL_SAMPLE_BIAS]
    return statistics[0] or 0.0 if statistics else 0.0


def _mean_error(values: list[PolicyValue]) -> ErrorEstimate:
    known = [value.solver_error for value in values if value.solver_error is not None]
    solver_error = sum(known) / len(values) if len(known) == len(values) else None
    if any(value.standard_error is None for value in values):
        return ErrorEstimate(None, solver_error=solver_error)
    variances = np.array([(value.standard_error or 0.0) ** 2 for value in values])
    freedom = np.array([max((value.effective_episodes or 0.0) - 1, 1.0) for value in values])
    total = float(variances.sum())
    degrees = total**2 / float((variances**2 / freedom).sum()) if total else float(freedom.sum())
    return ErrorEstimate(math.sqrt(total) / len(values), degrees + 1, solver_error=solver_error)


def _verdict(evaluations: list[Evaluation], choices: list[_Choice], cross_fit: bool) -> Verdict:
    """The worst one, with all reasons; at most "caution" if the choice was made on the same episodes."""
    levels = [evaluation.verdict.level for evaluation in evaluations]
    reasons = [reason for evaluation in evaluations for reason in evaluation.verdict.reasons]
    if not cross_fit:
        levels.append("caution")
        reasons.append(SAME_EPISODES)
    if any(choice.rejected for choice in choices):
        levels.append("do not use")
        reasons.insert(0, ALL_REJECTED)
    return Verdict(max(levels, key=LEVELS.index), tuple(dict.fromkeys(reasons)))


def _table(candidates: list[Candidate], scores: list[list[Scored]], choices: list[_Choice]) -> list[dict[str, Any]]:
    return [
        {
            "half": half + 1,
            "settings": settings,
            "criterion": scored.score.value,
            "standard_error": scored.score.standard_error,
            "weights": scored.weights,
            "verdict": choice.verdicts.get(place),
            "stable": choice.stable.get(place),
            "seconds": scored.seconds,
            "chosen": place == choice.place,
        }
        for half, (row, choice) in enumerate(zip(scores, choices, strict=True))
        for place, (settings, scored) in enumerate(zip(candidates, row, strict=True))
    ]


# ---- progress ----------------------------------------------------------------------------------------------------


@contextmanager
def _reporting(
    candidates: list[Candidate], samples: int, callback: Callable[[SelectionProgress], Any] | None, bar: bool
) -> Iterator[Callable[[int, Scored], None]]:
    """The function that `score_all` calls after each candidate."""
    done, total = 0, samples * len(candidates)
    listeners = [] if callback is None else [callback]

    def report(place: int, scored: Scored) -> None:
        nonlocal done
        done += 1
        for listener in listeners:
            listener(SelectionProgress(done, total, described(candidates[place]), scored.score.value))

    if not bar:
        yield report
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = BarColumn(), TextColumn("{task.completed} of {task.total} fits"), TimeElapsedColumn()
    with Progress(*columns, transient=True) as bars:
        task = bars.add_task("", total=total)
        listeners.append(lambda made: bars.update(task, completed=made.done))
        yield report
