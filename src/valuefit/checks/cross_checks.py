"""Cross-checks: other estimates of the same policy value, each with a standard error, paired with the estimate.

Each is c'theta-like: a mean over episodes of e_g(theta), linear in theta, whose influence is that of the episodes' own
sums at fixed theta plus D'(influence of theta), D being the derivative of the mean. With w_t = discount^t ratio_0 ...
ratio_t and TD errors delta_t, of an episode of T steps that was cut before it terminated:

- mean return, and per-decision importance sampling: e_g = sum_t w_t reward_t + w_{T-1} discount V(s_T);
- doubly robust: e_g = V(s_0) + sum_t w_t delta_t, with delta_t = reward_t + discount V(s_{t+1}) - V(s_t) for state
  values, which need right ratios, and Q(s_t, a_t) in place of V(s_t) for state-action values, which need right ratios
  or right values (Jiang and Li 2016). Where episodes are cut it rests on V(s_T) besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from valuefit.checks.check import Check, without_probabilities
from valuefit.data.transitions import Transitions
from valuefit.engine.loop import solve
from valuefit.features.registry import Fitted, for_actions, for_states, name_of
from valuefit.inference.adjoints import Equations
from valuefit.inference.error_estimate import LinearFunction
from valuefit.inference.errors import Errors
from valuefit.inference.fit import Fit
from valuefit.inference.policy_value import starts_of
from valuefit.inference.shards import Shard
from valuefit.policies.episode_weights import EpisodeWeights
from valuefit.policies.importance import is_continuous
from valuefit.policies.state_action import logged_actions, state_action_problem
from valuefit.problem.problem import Problem
from valuefit.solvers.lstd import LSTD
from valuefit.typing import Array

MIN_EFFECTIVE_EPISODES = 20  # below it importance sampling covered 54 to 60% instead of 95%, even with 2,000 episodes
DISAGREEMENT_LEVEL = 0.01  # chance that any of the cross-checks of an evaluation disagrees although all are right
ROUNDING = 1e-9  # relative difference from the estimate that is not a disagreement
MAX_COST_SHARE = 0.15  # of the predicted time of the answer, that the other route takes; all cross-checks take a fifth
ROUTE_PASSES = 60  # over state features, besides the solve: kernel values of them and errors (benchmarks/floors.py)
ALWAYS_AFFORDABLE_SECONDS = 0.22  # predicted, of the other route on all episodes, also where the answer takes less

ROUTES = {"state": "importance ratios", "state-action": "state-action values"}  # names of cross-checks by `values`


@dataclass(frozen=True)
class CrossCheck:
    """Another estimate of the policy value.

    standard_error: clustered by episode; None where it is unknown. effective_episodes: that it rests on; with fewer
    than 20 it is not `reliable`, and nothing is concluded from it. agrees: whether it differs from the estimate by no
    more than the error of the difference, paired by episode; None where nothing is concluded. note: what to know.
    """

    name: str
    estimate: float
    standard_error: float | None
    effective_episodes: float
    reliable: bool
    agrees: bool | None
    note: str


class _Candidate(NamedTuple):
    """An estimate with the part of each unit in its error at fixed theta, (units,), and its derivative in theta.

    skewed: whether its errors are too far from normal for a comparison with the policy value.
    """

    name: str
    estimate: float
    parts: Array
    derivative: Array
    effective: float
    notes: list[str]
    skewed: bool = False


def cross_checks(fit: Fit) -> tuple[tuple[CrossCheck, ...], str]:
    """The cross-checks that this log allows, and a note if the other route was left out.

    There are none for given starts, for a log of one episode, and for one that is larger than its sample in memory.
    """
    if fit.sampled:
        return (), ""
    fit = fit.of_sample
    units = _Units(fit)
    if fit.starts.first is None or fit.errors.whole.clusters.blocks or units.count < 2:
        return (), ""
    if fit.problem.ridge and fit.without_ridge.equations.iterative:
        return (
            (),
            "Cross-checks were left out: they need the weights without the ridge, which would take another solve.",
        )
    candidates, note = [], ""
    ratio = fit.ratios
    if ratio is not None:
        weights = EpisodeWeights(fit.log, fit.starts.first, ratio, fit.discount)
        candidates += _EpisodeEstimates(fit, weights, units).candidates(on_policy=bool((ratio == 1).all()))
    values = _other_values(fit, ratio)
    share = 1.0 if values is None else _affordable_share(fit, _other_width(fit, values))
    if values is not None and share * units.count < min(MIN_EFFECTIVE_EPISODES, units.count):
        note = (
            f"The cross-check by {ROUTES[values]} was left out, because it would take too long for this log. "
            f'Evaluate with `values="{values}"` to see its estimate.'
        )
    elif values is not None:
        candidates += _other_route(fit, values, ratio, units, share)
    if fit.problem.ridge:
        candidates = [
            entry._replace(notes=[*entry.notes, "It was computed without the ridge."]) for entry in candidates
        ]
    return _judged(candidates, fit, units), note


def agreement(others: Sequence[CrossCheck], values: str) -> Check:
    """Whether the reliable cross-checks agree with the estimate; statistic: how many do not. values: of the fit."""
    compared = [entry for entry in others if entry.agrees is not None]
    different = [entry for entry in compared if not entry.agrees]
    if not compared:
        message = "No other estimate of the policy value is precise enough to compare with."
        return Check("cross-checks", "skip", message)
    if not different:
        names = ", ".join(entry.name for entry in compared)
        return Check("cross-checks", "pass", f"Other estimates agree with the policy value ({names}).", 0.0)
    listed = " and ".join(f"{entry.name} ({entry.estimate:.5g})" for entry in different)
    return Check(
        "cross-checks", "warn",
        f"The policy value differs from other estimates beyond their joint errors: {listed}. The features, the "
        "probabilities of the log, or the Markov assumption are wrong. Use richer features, and check behaviour_prob."
        f"{without_probabilities(values)}",
        len(different),
    )  # fmt: skip


class _Units:
    """Independent units, over which errors are summed: the clusters, or episodes where these were cut into blocks."""

    def __init__(self, fit: Fit) -> None:
        clusters = fit.errors.whole.clusters
        labels, episode = np.unique(fit.log.episode, return_inverse=True)
        self._of_cluster = np.arange(clusters.count)
        if clusters.count > len(labels):
            self._of_cluster[clusters.of_step] = episode
        self.count = int(self._of_cluster.max()) + 1
        self._of_step = self._of_cluster[clusters.of_step]

    def of_episodes(self, sums: Array, first: Array) -> Array:
        """Parts of the units in the error of a sum over episodes with these influences, (episodes,)."""
        total = np.bincount(self._of_step[first], sums, self.count)
        return np.asarray(np.sqrt(self.count / (self.count - 1)) * total)

    def steps_of(self, units: Array) -> Array:
        """The steps of these units, in the order of the log."""
        return np.flatnonzero(np.isin(self._of_step, units))

    def of_clusters(self, parts: Array) -> Array:
        """Parts of the clusters, summed over the units."""
        return np.bincount(self._of_cluster, parts, self.count)


class _EpisodeEstimates:
    """Estimates from sums over episodes."""

    def __init__(self, fit: Fit, weights: EpisodeWeights, units: _Units) -> None:
        self.fit, self.weights, self.units = fit, weights, units
        problem = fit.problem
        self.value = fit.without_ridge.whole.influences.values
        self.now, self.next = problem.now[weights.steps], problem.next[weights.steps]
        self.discount, self.reward = problem.discount[weights.steps], problem.reward[weights.steps]
        last = weights.last
        self.final_discount, self.final_rows = self.discount[last], self.next[last]
        self.effective = weights.effective_episodes * units.count / weights.count
        self.notes = []
        if weights.has_gaps:
            self.notes.append("Episodes with gaps are used up to the first gap.")
        cut = int((self.final_discount > 0).sum())
        if cut:
            self.notes.append(
                f"{cut} of {weights.count} episodes were cut: it rests on the estimated value of their last state."
            )

    def candidates(self, *, on_policy: bool) -> list[_Candidate]:
        if on_policy:
            return [self._per_decision("mean return")]
        weighted = [self._per_decision("importance sampling"), self._self_normalised()]
        return [*(one._replace(skewed=True) for one in weighted), self._doubly_robust()]

    def _candidate(self, name: str, estimate: float, influence: Array, derivative: Array) -> _Candidate:
        first = self.fit.starts.first
        assert first is not None
        parts = self.units.of_episodes(influence, first)
        return _Candidate(name, estimate, parts, derivative, self.effective, self.notes)

    def _final_sum(self, weight: Array) -> Array:
        """The sum of the weighted feature rows at the ends of the episodes, (d,)."""
        return np.asarray(self.fit.problem.phi.take(self.final_rows).T @ weight)

    def _per_decision(self, name: str) -> _Candidate:
        weights, count = self.weights, self.weights.count
        final = weights.weights[weights.last] * self.final_discount
        each = weights.sums(weights.weights * self.reward) + final * self.value[self.final_rows]
        derivative = self._final_sum(final / count)
        return self._candidate(name, float(each.mean()), (each - each.mean()) / count, derivative)

    def _self_normalised(self) -> _Candidate:
        cut = self.final_discount > 0
        final = np.where(cut, self.value[self.final_rows], 0.0)
        estimate, influence, weight = self.weights.self_normalised(self.reward, final)
        derivative = self._final_sum(np.where(cut, weight, 0.0))
        return self._candidate("weighted importance sampling", estimate, influence, derivative)

    def _doubly_robust(self) -> _Candidate:
        weights, count, value = self.weights, self.weights.count, self.value
        delta = self.reward + self.discount * value[self.next] - value[self.now]
        starts = np.asarray(self.fit.starts.rows @ self.fit.without_ridge.equations.theta).ravel()
        each = starts + weights.sums(weights.weights * delta)
        after = np.bincount(self.next, weights.weights * self.discount, len(value))
        rows = (after - np.bincount(self.now, weights.weights, len(value))) / count
        derivative = self.fit.starts.c + self.fit.problem.phi.tdot(rows)
        return self._candidate("doubly robust", float(each.mean()), (each - each.mean()) / count, derivative)


# ---- the other route: importance ratios against state-action values -------------------------------------------------


def _other_values(fit: Fit, ratio: Array | None) -> str | None:
    """The `values` of the other route; None where the log or the policy does not allow it."""
    log, policy = fit.log, fit.policy
    if fit.values == "state-action":
        return None if ratio is None else "state"
    if policy is None or (policy.function is None and policy.table is None) or log.action is None:
        return None
    return None if is_continuous(log.action) else "state-action"


def _actions(fit: Fit) -> int:
    """The number of actions of state-action values."""
    assert fit.policy is not None
    return logged_actions(fit.log) if fit.policy.table is None else int(fit.policy.table.shape[1])


def _other_width(fit: Fit, values: str) -> int:
    """The largest number of weights that the other route needs; kernel features can have fewer landmarks."""
    columns = fit.features.columns
    return columns if values == "state" or name_of(fit.features.transformer) == "kernel" else _actions(fit) * columns


def _affordable_share(fit: Fit, width: int) -> float:
    """The share of the log with which the other route costs what it may, with so many weights."""
    cost, shared = fit.problem.cost, fit.problem.d // fit.features.columns  # by so many actions
    answer = _seconds(fit.problem) + ROUTE_PASSES * cost.pass_seconds / (1 if cost.ranges else shared)
    if cost.sparse:
        other = answer
    else:
        rows = replace(cost, d=width, k=width, row=float(width), row_bytes=8.0 * width * cost.n, ranges=False)
        other = rows.seconds("gram_flop") * rows.A_flops + ROUTE_PASSES * rows.pass_seconds
    return min(max(MAX_COST_SHARE * answer, ALWAYS_AFFORDABLE_SECONDS) / other, 1.0)


def _other_route(fit: Fit, values: str, ratio: Array | None, units: _Units, share: float) -> list[_Candidate]:
    """The estimate of the other route by lstd, from this share of the units; none where the log or its cost forbids it.

    Its features are the same, but for kernel features, of which it has as many as these units can pay for. Units that
    it leaves out have no part in its error, so the error of its difference from the estimate is that of both.
    """
    log, mine = fit.log if ratio is None else replace(fit.log, ratio=ratio), fit.errors.whole.clusters
    steps, notes = np.arange(len(log)), []
    if share < 1:
        count = int(share * units.count)
        steps = units.steps_of(np.random.default_rng(fit.seed).choice(units.count, count, replace=False))
        log = log[steps].compact()
        notes = [f"It was computed from {count} of {units.count} episodes, which takes less time."]
    other = _ratio_problem(fit, log) if values == "state" else _state_action_problem(fit, log)
    if other is None:
        return []
    problem, features = other
    if _seconds(problem) > max(MAX_COST_SHARE * _seconds(fit.problem), ALWAYS_AFFORDABLE_SECONDS):
        return []
    starts = starts_of(log, problem, features, fit.policy, values, None)
    equations = Equations.of(problem, solve(problem, "lstd").theta)
    if equations.iterative:
        return []
    kind = "cr1" if problem.large else fit.errors.kind  # the jackknife costs several solves
    present, of_step = np.unique(mine.of_step[steps], return_inverse=True)
    errors = Errors.in_memory(
        equations, Shard(problem, log.episode, replace(mine, of_step=of_step, count=len(present))), kind
    )
    (influence,) = errors.parts([starts])
    if influence is None:
        return []
    parts = np.zeros(mine.count)
    parts[present] = influence
    estimate, effective = float(starts.c @ equations.theta), errors.whole.effective_clusters(starts)
    derivative = np.zeros(fit.problem.d)
    return [_Candidate(ROUTES[values], estimate, units.of_clusters(parts), derivative, effective, notes)]


def _seconds(problem: Problem) -> float:
    return LSTD().cost(problem, 0.0).seconds


def _ratio_problem(fit: Fit, log: Transitions) -> tuple[Problem, Fitted]:
    """The problem of state values with the ratios of the log, and its features.

    Kernel features have landmarks for the weights of all actions where these cost little, and no others elsewhere.
    """
    own = fit.problem
    more = own.d // fit.features.columns if _affordable_share(fit, own.d) == 1 else 1
    features = for_states(fit.features, more, log)
    return Problem(log, features, discount=fit.discount, trace=own.trace), features


def _state_action_problem(fit: Fit, log: Transitions) -> tuple[Problem, Fitted] | None:
    """The problem of state-action values and its state features; None where `evaluate` would refuse it.

    It does so, for example, for actions that the log never takes.
    """
    features = for_actions(fit.features, _actions(fit), len(log))
    try:
        problem = state_action_problem(
            log, features, policy=fit.policy, discount=fit.discount, trace=fit.problem.trace
        )  # fmt: skip
    except ValueError:
        return None
    return problem, features


# ---- errors -----------------------------------------------------------------------------------------------------


def _judged(candidates: list[_Candidate], fit: Fit, units: _Units) -> tuple[CrossCheck, ...]:
    """With standard errors, and compared with the estimate."""
    starts = np.asarray(fit.starts.rows @ fit.result.theta).ravel()
    assert fit.starts.first is not None
    own = units.of_episodes((starts - starts.mean()) / len(starts), fit.starts.first)
    estimate = _Candidate("", fit.value.estimate, own, fit.starts.c, fit.error.effective_clusters, [])
    if fit.problem.ridge:
        every = [*_error_parts([estimate], fit.errors, units), *_error_parts(candidates, fit.without_ridge, units)]
    else:
        every = _error_parts([estimate, *candidates], fit.errors, units)
    compared = [entry.effective >= MIN_EFFECTIVE_EPISODES and not entry.skewed for entry in candidates]
    level = DISAGREEMENT_LEVEL / max(sum(compared), 1)
    return tuple(
        _compared(entry, parts, estimate, every[0], level, fit.error.solver_error or 0.0)
        for entry, parts in zip(candidates, every[1:], strict=True)
    )


def _error_parts(candidates: list[_Candidate], errors: Errors, units: _Units) -> list[Array | None]:
    """The part of each unit in the error of each, (units,); None where the error of theta is unknown."""
    functions = [LinearFunction(entry.derivative) for entry in candidates]
    if errors.equations.iterative:  # each derivative would take an iterative solution
        return [
            None if function.c.any() else entry.parts for entry, function in zip(candidates, functions, strict=True)
        ]
    return [
        None if parts is None else entry.parts + units.of_clusters(parts)
        for entry, parts in zip(candidates, errors.parts(functions), strict=True)
    ]


def _compared(
    entry: _Candidate, parts: Array | None, estimate: _Candidate, own: Array | None, level: float, solver_error: float
) -> CrossCheck:
    """level: of the test that the two estimates are equal."""
    reliable, agrees, notes = entry.effective >= MIN_EFFECTIVE_EPISODES, None, list(entry.notes)
    if not reliable:
        notes.append(
            f"It rests on {entry.effective:.2g} effective episodes; below {MIN_EFFECTIVE_EPISODES} nothing is "
            "concluded from it."
        )
    elif entry.skewed:
        notes.append("Its errors are skewed, so nothing is concluded from it.")
    elif parts is None or own is None:
        notes.append("Its standard error is unknown.")
    else:
        error = float(np.linalg.norm(parts - own))
        freedom = max(min(entry.effective, estimate.effective) - 1, 1.0)
        difference = entry.estimate - estimate.estimate
        rounding = ROUNDING * max(abs(entry.estimate), abs(estimate.estimate))
        agrees = bool(abs(difference) <= stdtrit(freedom, 1 - level / 2) * error + solver_error + rounding)
        if not agrees:
            notes.append(
                f"It differs from the estimate by {difference:.3g}, while the standard error of the difference is "
                f"{error:.2g}."
            )
    size = None if parts is None else float(np.linalg.norm(parts))
    return CrossCheck(entry.name, entry.estimate, size, entry.effective, reliable, agrees, " ".join(notes))
