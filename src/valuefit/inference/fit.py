"""A solved problem with its estimate: what checks, cross-checks and comparisons look at."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from valuefit.data.transitions import Transitions, effective_sample_size, rounded_ratios
from valuefit.engine.result import Result
from valuefit.features.registry import Fitted
from valuefit.inference.adjoints import Adjoint, Equations
from valuefit.inference.error_estimate import ErrorEstimate, Kind, LinearFunction
from valuefit.inference.errors import Errors, over_suitable_clusters
from valuefit.inference.occupancy import OccupancySums
from valuefit.inference.policy_value import INTERVAL_LEVEL, PolicyValue, with_errors
from valuefit.inference.reach import Reach, RewardRange, reward_extremes
from valuefit.inference.shards import Shard
from valuefit.inference.unseen import Unseen, UnseenPairs, unseen_pairs, what_changes
from valuefit.linalg.cholesky import ScaledFactor, scaled_cholesky
from valuefit.policies.importance import target_probabilities
from valuefit.policies.policy import Policy
from valuefit.problem.problem import Problem
from valuefit.problem.saddle_point import whitening
from valuefit.typing import Array

Values = Literal["state", "state-action"]
SKETCHED_SUMS = 2  # for each feature, in an estimate of C


@dataclass(frozen=True, eq=False)
class Sums:
    """What is known of all episodes of a log that is read in parts, from sums over its shards.

    size: steps and episodes. error: of the policy value. weights: the errors of the listed weights, none where there
    are many. rewards: the smallest and the largest. terminates: whether a step does. enough_for_checks: the limit in
    bytes with which a sample has enough steps for the features; 0 if none has.
    """

    size: tuple[int, int]
    errors: Errors
    error: ErrorEstimate
    value: PolicyValue
    unseen: Unseen
    weights: tuple[ErrorEstimate, ...]
    occupancy: OccupancySums | None
    rewards: tuple[float, float]
    terminates: bool
    enough_for_checks: int


@dataclass(frozen=True, eq=False, repr=False)
class Fit:
    """The evaluated log and the solved problem; errors and the policy value are computed from them when asked for.

    log: with the ratios of the policy for state values. discount: of one step (`problem.discount` is 0 at the end of
    an episode). starts: the mean value over the starts. equations: at the weights of `result`. shard: the steps, by
    episode (or cluster). interval: how standard errors are computed, where that is possible. level: of the interval of
    `value`. reward_range: declared. sums: of a log that is read in parts; its episodes at hand, whose steps the other
    fields hold, are then all of them or a sample. sample: the fit to these episodes alone.
    """

    log: Transitions
    problem: Problem
    result: Result
    features: Fitted
    policy: Policy | None
    values: Values
    discount: float
    seed: int
    starts: LinearFunction
    equations: Equations
    shard: Shard
    interval: Kind = "cr3"
    level: float = INTERVAL_LEVEL
    reward_range: RewardRange | None = None
    sums: Sums | None = None
    sample: Fit | None = None

    def of_whole_log(self, result: Result, sums: Sums) -> Fit:
        """The fit of a log in parts, of which this one fits the episodes at hand."""
        equations = self.equations.at(result.theta)
        return replace(self, result=result, equations=equations, interval=sums.errors.kind, sums=sums, sample=self)

    @property
    def of_sample(self) -> Fit:
        """The fit to the episodes at hand alone, for what needs rows of single steps."""
        return self if self.sample is None else self.sample

    @property
    def size(self) -> tuple[int, int]:
        """The number of steps and episodes of the log."""
        return (len(self.log), len(self.log.episodes)) if self.sums is None else self.sums.size

    @property
    def sampled(self) -> bool:
        """Whether `log` is a sample of a log that is read in parts."""
        return self.size[0] > len(self.log)

    @property
    def whole_errors(self) -> Errors:
        """The errors that the interval of the policy value is computed from."""
        return self.errors if self.sums is None else self.sums.errors

    @property
    def reach(self) -> Reach | None:
        """What the declared rewards, or those of the log, can add up to; None with discount 1."""
        if self.sums is not None:
            rewards, ends = self.sums.rewards, self.sums.terminates
        else:
            rewards, ends = reward_extremes(self.log.reward), bool(self.log.terminated.any())
        return Reach.of(self.reward_range, rewards, self.discount, ends=ends)

    @cached_property
    def uncut_errors(self) -> Errors:
        """Errors with the clusters of `shard`, before long ones are cut."""
        return Errors.in_memory(self.equations, self.shard, self.interval)

    @cached_property
    def errors(self) -> Errors:
        """Errors with clusters that suit the mean value over the starts."""
        return over_suitable_clusters([self.uncut_errors], [self.starts])[0]

    @cached_property
    def log_errors(self) -> Errors:
        """Errors with clusters that suit the mean value over the log, and so the values of single observations."""
        mean = self.problem.phi.tdot(self.problem.visits) / self.problem.n
        return over_suitable_clusters([self.uncut_errors], [LinearFunction(mean)])[0]

    @cached_property
    def error(self) -> ErrorEstimate:
        """The errors of `value.estimate`; starts of the log add their own sampling error."""
        return self.errors.error(self.starts) if self.sums is None else self.sums.error

    @cached_property
    def unseen_pairs(self) -> UnseenPairs | None:
        """The pairs of states and actions without data; None if there are none, and for state values."""
        if self.values == "state":
            return None
        return unseen_pairs(self.log, self.features, self.policy, self.problem, self.result.theta)

    @cached_property
    def unseen(self) -> Unseen:
        """What the pairs of states and actions without data could change in the policy value."""
        if self.sums is not None:
            return self.sums.unseen
        return what_changes(self.unseen_pairs, self.equations, self.starts)

    @cached_property
    def value(self) -> PolicyValue:
        """The mean value over the starts; its interval is not cut at what the declared rewards can add up to."""
        if self.sums is not None:
            return self.sums.value
        weighted = self.values == "state" and bool((self.log.ratio != 1).any())
        size = effective_sample_size(self.log.ratio) if weighted else None
        estimate = float(self.starts.c @ self.result.theta)
        value = with_errors(estimate, self.starts.starts, self.error, self.level, size, self.errors.kind)
        return value.allowing_for(self.unseen.changes)

    @cached_property
    def without_ridge(self) -> Errors:
        """The errors at the minimiser without the ridge, which tests and cross-checks examine; `errors` without one.

        At the reported weights where equations are solved by iteration (`Equations.iterative`).
        """
        if not self.problem.ridge:
            return self.errors
        equations = self.equations.without_ridge()
        if not equations.iterative:
            equations = equations.at(equations.theta + equations.to_minimiser)
        return Errors.in_memory(equations, self.errors.whole.shard, self.errors.kind)

    @cached_property
    def occupancy(self) -> Array | None:
        """The weight of each step in the estimate, (n,); None where the adjoint of the value is unknown."""
        adjoint = self.equations.solver.adjoint(self.starts.c)
        return self.errors.whole.influences.occupancy(adjoint) if isinstance(adjoint, Adjoint) else None

    @property
    def occupancy_sums(self) -> OccupancySums | None:
        """The sums of these weights over all steps."""
        if self.sums is not None:
            return self.sums.occupancy
        return None if self.occupancy is None else OccupancySums.of(self.occupancy)

    @cached_property
    def ratios(self) -> Array | None:
        """Importance ratios of the policy, (n,); None where they are unknown."""
        if self.values == "state":
            return self.log.ratio
        if self.policy is None or self.log.behaviour_prob is None:
            return None
        with np.errstate(over="ignore"):
            ratio = target_probabilities(self.policy, self.log) / self.log.behaviour_prob
        return rounded_ratios(ratio) if np.isfinite(ratio).all() and ratio.any() else None

    @cached_property
    def estimated_C(self) -> Array:
        """C, or where it is not known and has many rows, that of sums of rows with random signs.

        The sketch has 2 sums for each feature, so x'Cx changes by factors of about 0.1 to 3. C would take half of the
        time of all checks with 200 features, and more with more features.
        """
        problem, size = self.problem, SKETCHED_SUMS * self.problem.k
        if "C" in vars(problem) or not problem.large or problem.sparse or 4 * size > problem.cost.starts:
            return problem.C
        return problem.sketched_moments(size, np.random.default_rng(0), cross=False)[0]

    @cached_property
    def _factor_of_C(self) -> ScaledFactor | None:
        return scaled_cholesky(self.estimated_C)

    @property
    def _whitening_of_C(self) -> tuple[Array, float]:
        """Where C has no factor."""
        known = self.estimated_C is vars(self.problem).get("C")
        return self.problem.C_whitening if known else whitening(self.estimated_C)

    @property
    def rank_and_condition(self) -> tuple[int, float]:
        """The rank of C and its condition number, scaled to a unit diagonal so that units do not matter."""
        if self._factor_of_C is not None:
            return len(self._factor_of_C.lengths), self._factor_of_C.condition
        root, condition = self._whitening_of_C
        return root.shape[1], condition

    def leverages(self, rows: Array) -> Array:
        """x'C^+x of feature rows x, (m,)."""
        if self._factor_of_C is not None:
            return self._factor_of_C.inverse_forms(rows)
        return np.asarray(((rows @ self._whitening_of_C[0]) ** 2).sum(axis=1))
