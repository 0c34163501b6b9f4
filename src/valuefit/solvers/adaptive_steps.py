"""Step sizes that are adapted while running, and the growth of the preconditioner's sample."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from valuefit.machine import seconds
from valuefit.precondition.stochastic_preconditioner import (
    GROWTH,
    StochasticPreconditioner,
    first_sketch_size,
    matrices_fit,
    scaling_preconditioner,
    sketch_passes,
    sketched_preconditioner,
)
from valuefit.problem.problem import Problem
from valuefit.problem.saddle_point import SaddlePoint
from valuefit.solvers.solver import Estimate, Info, State, relative_work, wide_factor
from valuefit.typing import Array, Gradient

LEVEL_RATIO = 1.6  # between the step sizes of neighbouring levels
MAX_LEVEL_CHANGE = 2  # levels that one epoch may raise or lower the step by
MIN_DECADES_PER_PASS = 1 / 6  # of the merit; below, a larger sample is taken once the passes reach its cost


@dataclass(frozen=True, eq=False)
class StepController:
    """The preconditioner in use, the step size, and the progress made with them.

    Step sizes are base_steps * LEVEL_RATIO ** level. After each epoch the squared gradient in the preconditioner's
    norm (`merit`) is compared with that before. An epoch that increased it more than `max_growth` times, or to more
    than so many times the first, is rejected: the iterate goes back and the step is shortened. Otherwise the next
    level is that of the Barzilai-Borwein step (`secant_level`), but below the present one if a longer step was slower.
    A stage that is slow and has cost as many passes as a larger sample would is ended by taking that sample.
    """

    preconditioner: StochasticPreconditioner
    base_steps: tuple[float, float]  # for one row
    unit_steps: tuple[float, float] | None  # given for second moments of 1; None: those of the preconditioner
    merit: float
    first_merit: float  # with this preconditioner
    max_growth: float
    passes: float = 0.0  # with this preconditioner
    level: int = 0
    max_level: int = 20
    last: tuple[int, float] | None = None  # level and rate, in decades of merit per pass, of the last accepted epoch
    epoch_length: int = 1  # single-row steps, for methods that choose it

    @property
    def steps(self) -> tuple[float, float]:
        factor = LEVEL_RATIO**self.level
        return factor * self.base_steps[0], factor * self.base_steps[1]

    def batch(self, width: int) -> int:
        """Rows in a batch: as many as make products with the preconditioner cheap, without changing the steps much."""
        chosen = self.preconditioner
        # the single-row steps of a batch may add up to 0.3 of a full step
        return int(np.clip(max(0.3 / (chosen.spread * max(*self.steps, 1e-300)), chosen.fewest), 1, 2 * width))

    def product_passes(self, draws: int, width: int) -> float:
        """Passes that an epoch's products with the preconditioner cost, beyond those of the rows."""
        return self.preconditioner.each * math.ceil(draws / self.batch(width))

    def secant_level(self, before: Gradient, after: Gradient, moved: Gradient, rows_per_step: float) -> int:
        """The level of the Barzilai-Borwein step <moved, change> / <change, P change>, within MAX_LEVEL_CHANGE.

        It needs gradients at both ends of the move: full ones, or for SAGA the means of its table, which belong to
        the mean iterates of two epochs. rows_per_step: single-row steps that should add up to one such step.
        """
        change = after[0] - before[0], after[1] - before[1]
        along = float(moved[0] @ change[0] + moved[1] @ change[1])
        curvature = self.preconditioner.merit(change)
        if not (along > 0 and 0 < curvature < math.inf):
            return self.level
        wanted = math.log(along / curvature / (rows_per_step * self.base_steps[0])) / math.log(LEVEL_RATIO)
        return int(np.clip(round(wanted), self.level - MAX_LEVEL_CHANGE, self.level + MAX_LEVEL_CHANGE))

    def after_epoch(
        self, problem: SaddlePoint, before: Gradient, after: Gradient, passes: float, level: int
    ) -> tuple[StepController, bool, float]:
        """The controller after an epoch, whether the epoch is accepted, and the passes of a larger sample.

        level: the one proposed for the next epoch.
        """
        merit = self.preconditioner.merit(after)
        bound = self.max_growth * min(self.merit, self.first_merit)
        # so small a part of the first merit may be rounding error
        accepted = merit <= max(bound, 1e-26 * self.first_merit)
        new = replace(self, passes=self.passes + passes)
        if accepted:
            rate = decades(self.merit, merit) / passes
            # rounding must not decide which of two equal rates is larger
            if self.last and self.level > self.last[0] and self.last[1] - rate > 1e-6 * abs(rate):
                level = min(level, self.level - 1)
            length = min(problem.n, 2 * self.epoch_length) if rate * passes < 1 else self.epoch_length
            level = min(level, self.max_level)
            new = replace(new, merit=merit, level=level, last=(self.level, rate), epoch_length=length)
        else:
            down = 2 if merit <= 100 * self.merit else 5
            new = replace(new, level=self.level - down, max_level=self.level - 1, last=None)
        count = new._larger_sample(problem)
        if not count:
            return new, accepted, 0.0
        gradient = after if accepted else before
        new = start_controller(
            problem, gradient, count=count, unit_steps=self.unit_steps, max_growth=self.max_growth
        )  # fmt: skip
        return new, accepted, new.preconditioner.cost

    def _larger_sample(self, problem: SaddlePoint) -> int:
        """The size of the sample to take now, or 0."""
        count = self.preconditioner.count
        if count >= problem.n or (count == 0 and not matrices_fit(problem)):
            return 0
        larger = min(problem.n, GROWTH * count) or problem.n
        due = self.passes >= max(6.0, sketch_passes(problem, larger))
        slow = decades(self.first_merit, self.merit) <= MIN_DECADES_PER_PASS * self.passes
        return larger if due and slow else 0


def decades(before: float, after: float) -> float:
    """Powers of ten by which a merit fell."""
    return math.log10(max(before, 1e-300) / max(after, 1e-300))


def start_controller(
    problem: SaddlePoint,
    gradient: Gradient,
    *,
    count: int | None = None,
    unit_steps: tuple[float, float] | None = None,
    max_growth: float = 2.0,
) -> StepController:
    """The controller at a point with this gradient, with a preconditioner from `count` sketched rows.

    count None: as many as are worth their cost; the diagonal preconditioner where rows are sparse, for which matrices
    rarely are, or where the matrices do not fit into memory.
    """
    in_memory = isinstance(problem, Problem)
    if count is None and ((problem.sparse and in_memory) or not matrices_fit(problem)):
        if not isinstance(problem, Problem):
            raise ValueError(
                f"The preconditioner of {problem.d} features would not fit into memory, or there are too few steps for "
                "it. Use fewer features, or load the log into memory."
            )
        chosen = scaling_preconditioner(problem, drawn=unit_steps is None)
    else:
        size = first_sketch_size(problem) if count is None else count
        chosen = sketched_preconditioner(problem, size, drawn=unit_steps is None)
    steps = chosen.steps if unit_steps is None else (unit_steps[0] / chosen.spread, unit_steps[1] / chosen.spread)
    merit = chosen.merit(gradient)
    length = int(np.clip(4 / steps[0], 1, problem.n))
    return StepController(chosen, steps, unit_steps, merit, merit, max_growth, epoch_length=length)


def adaptive_state(
    theta: Array, w: Array, gradient: Gradient, controller: StepController, passes: float, memory: Any = None
) -> tuple[State, Info]:
    """The state of a method with adapted steps, and what its preconditioner offers to the certificate."""
    chosen = controller.preconditioner
    state = State(theta, w, controller.steps, gradient, memory or controller)
    return state, Info(passes, moments=chosen.exact, preconditioner=chosen.factor)


def adaptive_cost(problem: SaddlePoint, gap: float, *, full_passes: float, update_passes: float) -> Estimate:
    """The estimate for a method with adapted steps that takes so many passes of each kind to a gap of 1e-6.

    With d dense features it takes 1 + d / 400 times as many (about 22 at 200 features, 50 to 80 at 1,000 and 300 at
    4,000 in benchmarks/results.md). On sparse rows, where the diagonal preconditioner needs about 20 times as many, a
    pass of single-row updates takes as long as three full ones.
    """
    n, d, k, pass_seconds, work = problem.n, problem.d, problem.k, problem.cost.pass_seconds, relative_work(gap)
    fixed = problem.cost.fixed_seconds + seconds("fixed")
    if problem.sparse:
        passes = 20 * work * (full_passes + 3 * update_passes)
        return Estimate(fixed + wide_factor(k) * passes * pass_seconds, 8.0 * 4 * (k + d))
    update = 2 * (4 if "float32" in problem.traits else 8) * d * seconds("svrg_byte") + seconds("svrg_update")
    setup = seconds("gram_flop") * first_sketch_size(problem) * 3 * k * d + seconds("factor_flop") * 4 * d**3
    matrices = 16.0 * (k + d) ** 2 if matrices_fit(problem) else 8.0 * 16 * (k + d)
    work *= 1 + d / 400
    return Estimate(fixed + setup + work * (full_passes * pass_seconds + update_passes * n * update), matrices)
