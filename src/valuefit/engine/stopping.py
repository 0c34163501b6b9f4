"""When to stop: rules that say which gap is small enough, and the test that certifies the gap when it is worth it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from valuefit.engine.budget import Budget
from valuefit.engine.certificate import FREE_PASSES, Certificate
from valuefit.engine.history import History
from valuefit.engine.statistical_tolerance import LOOSEST_GAP, optimistic_gap
from valuefit.problem.saddle_point import SaddlePoint
from valuefit.solvers.solver import Info, State
from valuefit.typing import Array

FINEST_GAP = 1e-6  # the smallest gap that tol="statistical" requires
MAX_CHECKS = 3  # checks of the statistical rule that may fail before it requires FINEST_GAP


class StoppingRule(Protocol):
    """Which gap is small enough. `gap`: the one required now. `final`: the smallest that it may require later."""

    gap: float
    final: float

    def satisfied(self, gap: float, theta: Array, budget: Budget) -> bool:
        """Whether to stop at theta, whose gap is certified to be at most this."""

    def early(self, predicted_gap: float, budget: Budget) -> bool:
        """Whether an early certificate may be worth its cost, at a gap that the residual predicts."""

    def __str__(self) -> str:
        """The requirement, for messages."""


class Gap:
    """Stop when the gap is certified to be at most `tol`."""

    def __init__(self, tol: float) -> None:
        self.gap = self.final = tol

    def satisfied(self, gap: float, theta: Array, budget: Budget) -> bool:
        # about the square of the rounding unit: a smaller gap is noise, and no tol below it is certified
        return max(gap, 1e-28) <= self.gap

    def early(self, predicted_gap: float, budget: Budget) -> bool:
        return False

    def __str__(self) -> str:
        return f"tol = {self.gap:.3g}"


class Statistical:
    """Stop when the remaining error is small next to the statistical error, or at a gap of FINEST_GAP.

    The first required gap is optimistic and costs nothing to compute. Once it is certified, `check` measures the
    largest error of a reported number over its allowance (a tenth of a standard error), and the passes that this
    cost. Errors fall like the square root of the gap, from which the next requirement follows.
    """

    def __init__(self, problem: SaddlePoint, check: Callable[[Array], tuple[float, float]]) -> None:
        self.check = check
        self.final = FINEST_GAP
        # a gap small enough for any one number is, times their count, small enough for numbers on average
        self._require(min(float(problem.d - len(problem.dead)) * optimistic_gap(problem), LOOSEST_GAP))
        self.confirmed = False
        # passes of the first check are not known; it fails more often than later ones
        self._checks, self._check_passes = 0, 3.0

    def satisfied(self, gap: float, theta: Array, budget: Budget) -> bool:
        if not gap <= self.gap:
            return False
        if gap <= FINEST_GAP:
            return True
        if self._checks == MAX_CHECKS or not self._saves(gap, self._check_passes, budget):
            self._require(FINEST_GAP)
            return False
        error, passes = self.check(theta)
        budget.passes += passes
        self._checks += passes > 0
        self._check_passes = max(passes, 0.5 * self._check_passes)
        self.confirmed = error <= 1
        if not self.confirmed:
            self._require(gap * min(0.5, 0.5 / (error * error)))
        return self.confirmed

    def early(self, predicted_gap: float, budget: Budget) -> bool:
        return FINEST_GAP < predicted_gap <= 0.3 * self.gap and self._saves(predicted_gap, FREE_PASSES, budget)

    def _require(self, gap: float) -> None:
        # a gap that is hardly larger than FINEST_GAP would save too little
        self.gap = gap if gap > 4.0 * FINEST_GAP else FINEST_GAP

    def _saves(self, gap: float, passes: float, budget: Budget) -> bool:
        """Whether going on from this gap to FINEST_GAP would cost more than `passes`, at the rate so far."""
        return bool(budget.epoch_passes * np.log(gap / FINEST_GAP) >= -np.log(min(gap, 0.1)) * passes)

    def __str__(self) -> str:
        return f'tol = "statistical", here {self.gap:.3g},'


class ConvergenceTest:
    """Certifies the gap when that is worth its passes, and applies the rule to it.

    A certificate that costs next to nothing is evaluated after every epoch. Others are evaluated when the squared
    residual, which falls like the gap, predicts that the gap is reached, and after long intervals.
    """

    def __init__(
        self, problem: SaddlePoint, start: Array, rule: StoppingRule, budget: Budget, history: History
    ) -> None:
        self.problem, self.rule, self.budget, self.history = problem, rule, budget, history
        self.certificate = Certificate(problem, start)
        self.gap: float | None = None
        self.objective: float | None = None
        self._gap_of: State | None = None  # the iterate that gap and objective belong to
        self._threshold = 10 * rule.final  # squared residual below which the certificate is evaluated
        self._evaluated_at, self._evaluation_passes = 0.0, 10.0
        self._early = 0
        self._gap_per_residual = 1.0  # gap over squared residual, at the last evaluation

    def passed(self, state: State, info: Info, *, started: bool) -> bool:
        """Whether the rule is satisfied at this iterate."""
        if not started:
            self._evaluated_at = self.budget.passes
        if info.gap is not None:
            self.gap, self.objective, self._gap_of = info.gap, info.objective, state
        elif self.rule.final == 0:
            return False
        elif not started and self.rule.final < 1 and not state.theta.any() and self.problem.b.any():
            return False  # the gap of theta = 0 is 1
        elif self._due():
            self._evaluate(state)
        else:
            return False
        return self.gap is not None and self.rule.satisfied(self.gap, state.theta, self.budget)

    def confirmed(self, state: State, info: Info) -> bool:
        """Whether the gap that satisfied the rule is still small enough now that the solver has verified it."""
        self.gap, self.objective, self._gap_of = info.gap, info.objective, state
        return self.gap is not None and self.gap <= self.rule.gap

    def known(self, state: State) -> tuple[float | None, float | None]:
        """Gap and objective of this iterate, where they are known or cheap."""
        if self._gap_of is not state:
            if not (self.certificate.cheap and self.rule.final > 0):
                return None, None
            self.gap = self.certificate.gap(state.theta, state.w, tol=self.rule.gap, allowance=FREE_PASSES)
            self.objective, self._gap_of = self.certificate.objective, state
        gap = self.gap if self.gap is not None and np.isfinite(self.gap) else None
        return gap, self.objective

    def standing(self, state: State) -> str:
        """How far the iterate is, for the message of a solve that did not converge."""
        known = f"the residual is {self.history.residual:.1e}"
        if self.gap is not None and np.isfinite(self.gap) and self._gap_of is state:
            known += f" and the gap at most {self.gap:.1e}"
        hint = " 'lstd' is cheap here." if self.certificate.exact_cost < 0.2 * self.budget.max_passes else ""
        return f"A gap below tol = {self.rule.gap:.3g} is not shown yet: {known}.{hint}"

    def _due(self) -> bool:
        if self.certificate.cheap:
            return True
        squared = self.history.squared_residual
        if self.history.current and squared <= self._threshold:
            return True
        waited = self.budget.passes - self._evaluated_at
        if waited >= 10.0 * max(self._evaluation_passes, 10.0):
            return True
        early = self.history.current and self._early < 2
        if early and self.rule.early(self._gap_per_residual * squared, self.budget):
            self._early += 1
            return True
        return False

    def _evaluate(self, state: State) -> None:
        spent = self.certificate.passes
        self.gap = self.certificate.gap(state.theta, state.w, tol=self.rule.gap, allowance=self._allowance)
        self.objective, self._gap_of = self.certificate.objective, state
        self._evaluation_passes = self.certificate.passes - spent
        self.budget.passes += self._evaluation_passes
        self._evaluated_at = self.budget.passes
        squared, left = self.history.squared_residual, 0.1
        if self.gap is not None and np.isfinite(self.gap):
            left = self.rule.final / max(self.gap, self.rule.final)
            if squared:
                self._gap_per_residual = self.gap / squared
        # an expensive evaluation waits for a margin, so that it does not fail
        expensive = self._evaluation_passes > 10 and self.rule.gap <= self.rule.final
        self._threshold = squared * (0.3 * left if expensive else left)

    @property
    def _allowance(self) -> float:
        """Passes that the certificate may take: a quarter of the budget, and what is left of it."""
        budget = self.budget
        allowance = min(0.25 * budget.max_passes, budget.max_passes - budget.passes)
        # an epoch that cannot be cut short may end past the budget; its answer still gets a cheap certificate
        over = self.certificate.cheap and budget.passes > budget.max_passes
        return max(allowance, FREE_PASSES) if over else allowance
