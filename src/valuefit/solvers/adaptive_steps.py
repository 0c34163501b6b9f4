"""Steps adapted while running: longer where that pays, shorter after a setback, a larger sample when both are slow."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from valuefit.problem.preconditioner import (
    GROWTH,
    Metric,
    balanced_metric,
    first_count,
    metric_cost,
    metric_fits,
    mixed_metric,
)
from valuefit.problem.problem import Problem
from valuefit.solvers.solver import Info, State
from valuefit.typing import Array, Gradient

TOGETHER = 0.3  # of a full step: how far a batch of single-row steps may add up
STRIDE = 1.6  # between neighbouring sizes of a step
SLOW = 1 / 6  # decades of the squared gradient a pass
CREEP = 1 / 20  # decades a pass; below, a short step looks better than a long one only because it is quieter
WAIT = 5.0  # passes before which a lagging gradient falls whatever the steps
REACH = 2  # sizes that one epoch may change a step by, on Barzilai and Borwein's advice
REGROW = 8  # epochs without a setback after which a longer step may be tried again while creeping
SAME = 1e-6  # relative difference of rates below which they count as equal: rounding must not decide
ROUNDING = 1e-26  # part of the first squared gradient that may be noise of the arithmetic
TINY = 1e-300


@dataclass(frozen=True, eq=False)
class Course:
    """The metric in use, how far its steps are stretched, and what came of them.

    Every epoch ends with a gradient that the method has anyway; its size in the metric says what the epoch was
    worth. One that made it larger is undone and the steps are halved. Else, where the gradients are full ones, how
    much they changed along the way tells the size of the next steps; where they are not, the best of the neighbouring
    sizes tried so far goes on, a longer one being tried first and then a shorter one. Where a stage has cost as many
    passes as the next, larger sample would, and is still slow, that sample is taken.
    """

    metric: Metric
    single: tuple[float, float]  # steps for one row, before they are stretched
    given: tuple[float, float] | None  # what they are made from where they are not the metric's own
    merit: float
    first: float  # merit when this metric came in
    spent: float = 0.0  # passes since then
    size: int = 0  # steps are those of the metric times STRIDE ** size
    longest: int = 20  # sizes above this one failed
    rates: tuple[tuple[int, float], ...] = ()  # decades of merit a pass, by size
    length: int = 1  # steps in the next epoch, for methods that choose it
    lagging: bool = False  # whether the gradient is an older one, which cannot tell a step that is a little too long
    calm: int = 0  # epochs since the last setback
    rises: int = 0  # of them at the end, those in which the gradient did not fall

    @property
    def steps(self) -> tuple[float, float]:
        stretch = STRIDE**self.size
        return stretch * self.single[0], stretch * self.single[1]

    def batch(self, width: int) -> int:
        """Rows to take together: enough to pay for the products with the metric, few enough to act as one by one."""
        together = max(TOGETHER / (self.metric.spread * max(*self.steps, TINY)), self.metric.fewest)
        return int(np.clip(together, 1, 2 * width))

    def products(self, draws: int, width: int) -> float:
        """Passes that an epoch's products with the metric cost, where they are counted."""
        return self.metric.each * math.ceil(draws / self.batch(width))

    def judge(
        self,
        problem: Problem,
        before: tuple[Array, Array],
        after: tuple[Array, Array],
        passes: float,
        *,
        moved: tuple[Array, Array] | None = None,
        per_step: float = 1.0,
    ) -> tuple[Course, bool, float]:
        """The course after an epoch from one gradient to another, whether to keep that, and passes it added.

        moved: how far it went, where both gradients are full ones. per_step: how many single-row steps there should
        be to one of Barzilai and Borwein's.
        """
        merit = self.metric.merit(after)
        slack = 4.0 if self.lagging else 2.0  # a squared gradient may get so much larger by chance
        kept = merit <= max(slack * self.merit, ROUNDING * self.first)
        course = replace(self, spent=self.spent + passes)
        if kept:
            rate = math.log10(max(self.merit, TINY) / max(merit, TINY)) / passes
            course = replace(
                course, merit=merit, rates=((self.size, rate), *(pair for pair in self.rates if pair[0] != self.size)),
                length=min(problem.n, 2 * self.length) if rate * passes < 1 else self.length, calm=self.calm + 1,
            )  # fmt: skip
            creeping = self.metric.count == 0 and max(found for _, found in course.rates) < CREEP
            if creeping:
                course = course._longer(rate)
            elif moved is not None:
                course = course._advised(self.rates, self._secant(before, after, moved, per_step))
            elif not self.lagging or course.spent > WAIT:
                course = replace(course, size=course._next_size())
        else:
            back = 2 if merit <= 100 * self.merit else 5
            course = replace(course, size=self.size - back, longest=self.size - 1, rates=(), calm=0, rises=0)
        count, cost = course._due(problem)
        if count:
            gradient = after if kept else before
            return begin(problem, gradient, count=count, given=self.given, lagging=self.lagging), kept, cost
        return course, kept, 0.0

    def _next_size(self) -> int:
        rates = dict(self.rates)
        best = max(rates, key=lambda size: rates[size])
        shy = self.lagging and self.metric.count == 0
        for near in () if shy else (best + 1, best - 1):
            if near not in rates and near <= self.longest:
                return near
        return best

    def _secant(
        self, before: tuple[Array, Array], after: tuple[Array, Array], moved: tuple[Array, Array], per_step: float
    ) -> int:
        """The size that suits the change of the gradient along the way, as Barzilai and Borwein have it.

        In the metric P, <moved, change> / <change, P change> is the step that this change asks for. The operator is
        not symmetric and the steps are noisy, so the advice is followed for a few sizes only.
        """
        change = after[0] - before[0], after[1] - before[1]
        along = float(moved[0] @ change[0] + moved[1] @ change[1])
        bent = self.metric.merit(change)
        if not (along > 0 and 0 < bent < math.inf):
            return self.size
        wanted = math.log(along / bent / (per_step * self.single[0])) / math.log(STRIDE)
        return int(np.clip(round(wanted), self.size - REACH, self.size + REACH))

    def _advised(self, before: tuple[tuple[int, float], ...], size: int) -> Course:
        """On with steps of this size, unless the last ones were longer than those before and brought less."""
        (here, rate), longest = self.rates[0], self.longest
        if before and here > before[0][0] and before[0][1] - rate > SAME * abs(rate):
            size = min(size, here - 1)
            longest = min(longest, here - 1) if rate < 0.3 * before[0][1] else longest
        if rate < SLOW:  # what was too long while the gradient fell fast may be what is wanted now
            longest = min(20, longest + 1)
        return replace(self, size=min(size, longest), longest=longest, rates=self.rates[:2])

    def _longer(self, rate: float) -> Course:
        """After a slow epoch: on to longer steps while the gradient falls, back when it failed to twice.

        In bad coordinates the gradient is mostly noise of the directions that are done, in proportion to the step,
        and says little of the slow ones that are left: the longest step that is stable is the best one.
        """
        longest = min(20, self.longest + (self.calm % REGROW == 0))
        if rate > 0:
            return replace(self, size=min(self.size + 1, longest), longest=longest, rises=0, rates=())
        if self.rises == 0:
            return replace(self, longest=longest, rises=1)
        return replace(self, size=self.size - 1, longest=self.size - 1, rises=0, rates=())

    def _due(self, problem: Problem) -> tuple[int, float]:
        """The size of a larger sample and its cost, or (0, 0) while this one does."""
        if self.metric.count >= problem.n or (self.metric.count == 0 and not metric_fits(problem)):
            return 0, 0.0
        count = min(problem.n, GROWTH * self.metric.count) or problem.n
        cost = metric_cost(problem, count)
        fallen = math.log10(max(self.first, TINY) / max(self.merit, TINY))
        return (count, cost) if self.spent >= max(6.0, cost) and fallen <= SLOW * self.spent else (0, 0.0)


def begin(
    problem: Problem,
    gradient: tuple[Array, Array],
    *,
    count: int | None = None,
    given: tuple[float, float] | None = None,
    lagging: bool = False,
) -> Course:
    """The course at a point with this gradient, with a metric from `count` sums of steps, and its steps.

    Where `count` is None: as many as pay; balanced coordinates where rows are sparse, for which matrices seldom do, or
    where these do not fit. given: steps for a metric in which second moments are 1 at most; they are that much shorter
    where those may be larger.
    """
    if count is None and (problem.phi.sparse or not metric_fits(problem)):
        metric = balanced_metric(problem, drawn=given is None)
    else:
        metric = mixed_metric(problem, first_count(problem) if count is None else count)
    steps = metric.steps if given is None else (given[0] / metric.spread, given[1] / metric.spread)
    merit = metric.merit(gradient)
    return Course(metric, steps, given, merit, merit, length=int(np.clip(4 / steps[0], 1, problem.n)), lagging=lagging)


def on_course(
    theta: Array, w: Array, gradient: Gradient, course: Course, passes: float, memory: Any = None
) -> tuple[State, Info]:
    """The state of a method whose steps are adapted, and what it has to offer to the certificate."""
    found = course.metric
    state = State(theta, w, course.steps, gradient, memory or course)
    return state, Info(passes, moments=found.exact, whitening=found.whitening)
