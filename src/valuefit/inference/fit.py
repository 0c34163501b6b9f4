"""A solved problem with its estimate: what checks, cross-checks and comparisons look at."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from valuefit.data.transitions import Transitions, rounded_ratios
from valuefit.engine.result import Result
from valuefit.features.registry import Fitted
from valuefit.inference.errors import ErrorEstimate, LinearFunction
from valuefit.inference.occupancy import occupancy_weights
from valuefit.inference.policy_value import PolicyValue
from valuefit.inference.reach import RewardRange
from valuefit.inference.sandwich import AdjointMethod
from valuefit.inference.uncertainty import Uncertainty
from valuefit.inference.unseen import Unseen
from valuefit.linalg.cholesky import ScaledFactor, scaled_cholesky
from valuefit.policies.importance import target_probabilities
from valuefit.policies.policy import Policy
from valuefit.problem.problem import Problem
from valuefit.problem.saddle_point import whitening
from valuefit.typing import Array

SKETCHED_SUMS = 2  # for each feature, in an estimate of C


@dataclass(frozen=True, eq=False)
class Fit:
    """The evaluated log, the solved problem, and the policy value with its errors.

    log: with the ratios of the policy for state values. discount: of one step (`problem.discount` is 0 at the end of
    an episode). starts: the mean value over the starts. errors: over the clusters that suit it.
    error: of `value.estimate`. unseen: pairs of states and actions without data, for state-action values.
    reward_range: declared.
    """

    log: Transitions
    problem: Problem
    result: Result
    features: Fitted
    policy: Policy | None
    values: str
    discount: float
    seed: int
    starts: LinearFunction
    errors: Uncertainty
    value: PolicyValue
    error: ErrorEstimate
    unseen: Unseen
    reward_range: RewardRange | None = None

    @cached_property
    def without_ridge(self) -> Uncertainty:
        """The errors at the minimiser without the ridge, which tests and cross-checks examine; `errors` without one.

        At the reported weights where equations are solved by iteration (`Sandwich.method` is ITERATIVE).
        """
        if not self.problem.ridge:
            return self.errors
        sandwich = self.errors.sandwich.without_ridge()
        if sandwich.method is not AdjointMethod.ITERATIVE:
            sandwich = sandwich.at(sandwich.theta + sandwich.to_minimiser)
        return Uncertainty(sandwich, self.errors.kind)

    @cached_property
    def occupancy(self) -> Array | None:
        """The weight of each step in the estimate, (n,); None where the adjoint of the value is unknown."""
        return occupancy_weights(self.errors.sandwich, self.starts.c)

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
