"""Steps adapted while running: longer while that pays, shorter after a setback, a larger sample when both are slow."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from valuefit.metric import GROWTH, Metric, first_count, metric_cost, sampled_metric
from valuefit.problem import Problem
from valuefit.transitions import Array

TOGETHER = 0.3  # of a full step: how far a batch of single-row steps may add up
STRIDE = 1.5  # by which steps are lengthened on trial
SLOW = 1 / 6  # decades of the squared gradient a pass


@dataclass(frozen=True, eq=False)
class Course:
    """The metric in use, how far its steps are stretched, and what came of them.

    Every epoch ends with a gradient that the method has anyway; its size in the metric says whether the epoch is
    kept. One that made it larger is undone and the steps are halved. While lengthening them pays they grow. Where
    a stage has cost as much as the next, larger sample would, and is still slow, that sample is taken.
    """

    metric: Metric
    merit: float
    first: float  # merit when this metric came in
    spent: float = 0.0  # passes since then
    factor: float = 1.0
    stride: float = STRIDE
    rate: float = 0.0  # decades of merit a pass in the last epoch
    length: int = 1  # steps in the next epoch, for methods that choose it

    @property
    def steps(self) -> tuple[float, float]:
        return self.factor * self.metric.steps[0], self.factor * self.metric.steps[1]

    def batch(self, width: int) -> int:
        """Rows to take together: enough to pay for the products with the metric, few enough to act as one by one."""
        return max(1, min(2 * width, int(TOGETHER / max(self.steps))))

    def judge(
        self,
        problem: Problem,
        before: tuple[Array, Array],
        gradient: tuple[Array, Array],
        passes: float,
        *,
        slack: float = 1.0,
    ) -> tuple[Course, bool, float]:
        """The course after an epoch of so many passes, from one gradient to another; whether to keep it; added passes."""
        merit = self.metric.merit(gradient)
        spent = self.spent + passes
        kept = merit <= slack * self.merit
        if kept:
            rate = math.log10(max(self.merit, 1e-300) / max(merit, 1e-300)) / passes
            pays = rate >= self.rate or self.stride == 1.0
            factor = self.factor * self.stride if pays else self.factor / self.stride
            length = min(problem.n, 2 * self.length) if rate * passes < 1 else self.length
            course = replace(
                self, merit=merit, spent=spent, factor=factor, stride=self.stride if pays else 1.0, rate=rate,
                length=length,
            )  # fmt: skip
        else:
            shorter = self.factor / (2 if merit <= 100 * self.merit else 8)
            course = replace(self, spent=spent, factor=shorter, stride=1.0)
        return (*course._larger(problem, gradient if kept else before, kept),)

    def _larger(self, problem: Problem, gradient: tuple[Array, Array], kept: bool) -> tuple[Course, bool, float]:
        """The same, with a larger sample where that is due; `gradient` is that of the point stood at."""
        if self.metric.count >= problem.n:
            return self, kept, 0.0
        count = min(problem.n, GROWTH * self.metric.count)
        cost = metric_cost(problem, count)
        fallen = math.log10(max(self.first, 1e-300) / max(self.merit, 1e-300))
        if self.spent < max(6.0, cost) or fallen > SLOW * self.spent:
            return self, kept, 0.0
        return begin(problem, gradient, count), kept, cost


def begin(problem: Problem, gradient: tuple[Array, Array], count: int | None = None) -> Course:
    """The course at a point with this gradient, its metric from `count` sampled steps."""
    metric = sampled_metric(problem, first_count(problem) if count is None else count)
    merit = metric.merit(gradient)
    length = min(problem.n, max(1, int(4 / min(metric.steps))))
    return Course(metric, merit, merit, length=length)
