"""Stochastic steps without variance reduction: in a metric, adapted while running, and answered with a mean."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from valuefit.problem.diagonal_preconditioner import Balanced
from valuefit.problem.preconditioner import Metric
from valuefit.problem.problem import Problem
from valuefit.rows.kernels import axpy, axpyv, compiled, dot, dotv, fetch, times
from valuefit.rows.storage import Rows
from valuefit.solvers.adaptive_steps import STRIDE, Course, begin
from valuefit.solvers.solver import State, Steps, check_decay, check_inner
from valuefit.typing import Array

DECAY = 10.0  # passes after which given steps have halved
SETBACK = 8.0  # times the usual squared gradient of half an epoch: more is no chance
FAR = 60.0  # times the least one seen: more is no chance either, however slowly it came
CALM = 2.0  # times the usual one: an epoch up to there is one to return to
CLEAR = 0.5  # part of the squared gradient of an epoch that both halves agree on, where steps could be longer
SETTLED = 4  # epochs with mostly noise in the mean after which a clear one is chance
CONSTANT = 50  # epochs in the mean up to which steps stay as they are
FEWEST = 32  # draws in an epoch
LOOKED_AT = 32  # rows that tell how long u is beside v


@dataclass(frozen=True)
class PlainSteps(Steps):
    """Stochastic steps without variance reduction, shared by GTD2 and TDC.

    Where nothing is given, they go by mini-batches in the metric that SVRG uses too: of mixed rows, or balanced
    coordinates where those have no room or rows are sparse. Rows are drawn half uniformly, half by size. The noise
    of rows never dies, but the mean of iterates is far nearer than the last: the answer is that mean, the k-th epoch
    weighing k; past 50 epochs steps shrink as 1 / sqrt(k). They grow while both halves of an epoch have one gradient;
    an epoch whose gradients grew is undone, and they are shortened.

    decay: where given, steps go along raw rows and step_j = step / (1 + j / (decay n)), so they halve after `decay`
    passes; math.inf keeps them constant, as in the paper's experiments. None is 10 for steps that are given.
    inner: updates in an epoch; n if None, and n and 32 at least where steps are adapted, for fewer tell little.
    """

    decay: float | None = None
    inner: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decay is not None:
            check_decay(self.decay)
        check_inner(self.inner)

    def init(self, problem: Problem, theta: Array, w: Array) -> tuple[State, float]:
        if not (self.guarded and self.decay is None):
            return State(theta, w, self.choose_steps(problem)), 0.0
        gradient = problem.B(theta, w)
        course = begin(problem, gradient)
        walk = Walk(
            theta, w, theta, w, course, self.correction(problem, course.metric), course.merit, course.merit, fresh=True
        )
        return replace(walk.state(theta, w), gradient=gradient), 1.0 + course.metric.cost

    def epoch(self, problem: Problem, state: State, rng: np.random.Generator) -> tuple[State, float]:
        if isinstance(state.memory, Walk):
            return self._steered_epoch(problem, state, state.memory, rng)
        draws = rng.integers(0, problem.n, self.inner or problem.n)
        theta, w = state.theta.copy(), state.w.copy()
        half_life = (DECAY if self.decay is None else self.decay) * problem.n
        self.run(
            problem.phi.kernel, problem.psi.kernel, problem.u.kernel, *problem.steps(draws), problem.reward[draws],
            theta, w, *state.steps, state.count, half_life, problem.ridge, problem.identity,
        )  # fmt: skip
        return replace(state, theta=theta, w=w, count=state.count + len(draws)), len(draws) / problem.n

    def _steered_epoch(
        self, problem: Problem, state: State, walk: Walk, rng: np.random.Generator
    ) -> tuple[State, float]:
        course = walk.course
        draws = course.metric.draw(rng, max(self.inner or 0, problem.n, FEWEST))
        theta, w = walk.theta.copy(), walk.w.copy()
        halves = [
            _half(problem, part, walk, theta, w) for part in np.array_split(draws, 2)
        ]  # theta and w go on from one to the other
        cost = float(len(draws) / problem.n + course.products(len(draws), problem.d))
        return walk.judge(state, theta, w, *halves), cost

    def correction(self, problem: Problem, metric: Metric) -> float:
        """How much of the gradient of w goes into the step of theta besides: TDC's share of TD."""
        return 0.0

    @abstractmethod
    def run(self, *arguments: Any) -> None:
        """The method's kernel for steps along raw rows, which changes theta and w in place."""


class Half(NamedTuple):
    """The mean iterate of half an epoch, and the mean of its gradients: that of the mean iterate, and noise."""

    theta: Array
    w: Array
    of_theta: Array
    of_w: Array

    def with_other(self, other: Half, sign: float) -> Half:
        """Half the sum or half the difference."""
        return Half(*(0.5 * (one + sign * two) for one, two in zip(self, other, strict=True)))

    def size(self, metric: Metric) -> float:
        return metric.merit((self.of_theta, self.of_w))


class Walk(NamedTuple):
    """The last iterate, an answer to return to, the steps in use, and how large gradients usually are."""

    theta: Array
    w: Array
    kept_theta: Array
    kept_w: Array
    course: Course
    correction: float
    usual: float  # mean squared gradient of half an epoch, the last ones counting most
    least: float
    epochs: int = 0  # in the mean that is shown
    fresh: bool = False  # before the first epoch

    @property
    def slower(self) -> float:
        """By how much steps have shrunk since the mean began: drawn without replacement, rows bias it by a step."""
        return math.sqrt(min(1.0, CONSTANT / max(self.epochs, 1)))

    def state(self, theta: Array, w: Array) -> State:
        found = self.course.metric
        return State(theta, w, self.course.steps, memory=self, moments=found.exact, whitening=found.whitening)

    def judge(self, state: State, theta: Array, w: Array, first: Half, second: Half) -> State:
        """The state after an epoch that ended at theta and w, or the last calm one with shorter steps."""
        metric, course = self.course.metric, self.course
        both = first.with_other(second, 1.0)
        common, noise = both.size(metric), first.with_other(second, -1.0).size(metric)
        power = (common + noise) * self.slower  # the mean over both halves; its noise is as the inverse of the step
        usual, least, early = self.usual, self.least, first.size(metric)
        if self.fresh and early < math.inf:  # a start next to the answer is far below the noise of an epoch
            usual, least = max(usual, early), max(least, early)
        if not (power < math.inf and power <= min(SETBACK * usual, FAR * least)):
            return self._back(2 if power <= 100 * usual else 5, usual, least)
        clear = self.epochs < SETTLED and common - noise > CLEAR * common
        epochs = 1 if clear else self.epochs + 1  # what came before is far away still
        share = 2 / (epochs + 1)
        shown = state.theta + share * (both.theta - state.theta), state.w + share * (both.w - state.w)
        kept_theta, kept_w = shown if power <= CALM * self.usual else (self.kept_theta, self.kept_w)
        if clear and course.size < course.longest:
            course = replace(course, size=course.size + 1)
        usual = 0.5 * (usual + power)
        walk = Walk(theta, w, kept_theta, kept_w, course, self.correction, usual, min(least, usual), epochs)
        return walk.state(*shown)

    def _back(self, sizes: int, usual: float, least: float) -> State:
        """Noise of the mean gradient of an epoch is as the inverse of the step: that much more is usual then."""
        shorter = STRIDE**sizes
        course = replace(self.course, size=self.course.size - sizes, longest=self.course.size - 1)
        theta, w = self.kept_theta, self.kept_w
        walk = Walk(
            theta, w, theta, w, course, self.correction / shorter, shorter * usual, shorter * least, self.epochs
        )
        return walk.state(theta, w)


def _half(problem: Problem, draws: Array, walk: Walk, theta: Array, w: Array) -> Half:
    """Take these draws from theta and w, which are changed in place."""
    half = Half(np.zeros(problem.d), np.zeros(problem.k), np.zeros(problem.d), np.zeros(problem.k))
    course = walk.course
    batches(
        problem.phi.kernel, problem.psi.kernel, problem.u.kernel, *problem.steps(draws), problem.reward[draws],
        course.metric.weight[draws], course.metric.theta, course.metric.w, theta, w, *half, course.batch(problem.d),
        walk.slower * course.steps[0], walk.slower * course.steps[1], walk.correction, problem.ridge, problem.identity,
    )  # fmt: skip
    return half


def td_share(problem: Problem, metric: Metric) -> float:
    """How long v is beside u in the coordinates of theta, 1 at most: with that weight TD's steps are as long as GTD2's.

    A metric in which A'C^-1A is the identity makes u long where A is small, as the constant's is at discounts near 1.
    """
    steps = np.unique(np.linspace(0, problem.n - 1, LOOKED_AT).astype(np.int64))
    of_u = of_v = 0.0
    for now, next, discount, row, factor in zip(*problem.steps(steps), strict=True):
        of_v += _size(metric.theta, _row(problem.phi, now) - discount * _row(problem.phi, next))
        of_u += _size(metric.theta, factor * _row(problem.u, row))
    return min(1.0, math.sqrt(of_v / of_u)) if of_u > 0 else 1.0


def _size(matrix: Array | Balanced, x: Array) -> float:
    return max(float(x @ (matrix @ x)), 0.0)


def _row(rows: Rows, i: int) -> Array:
    found = rows.take(np.array([i]))
    return np.asarray(found.toarray() if rows.sparse else found)[0]


@compiled
def batches(
    phi, psi, u, now, next, discount, u_row, u_factor, reward, weight, metric_theta, metric_w,
    theta, w, mean_theta, mean_w, of_theta, of_w, batch, step_theta, step_w, correction, ridge, identity,
):  # fmt: skip
    """x -= step * metric * (the weighted gradients of `batch` rows, at x); the ridge is in each of them.

    mean += the mean of the iterates at which rows were looked at, of += that of the gradients found there.
    """
    g_theta, g_w = np.empty_like(theta), np.empty_like(w)
    draws = now.shape[0]
    start = 0
    while start < draws:
        stop = min(start + batch, draws)
        count = stop - start
        for c in range(theta.shape[0]):
            g_theta[c] = count * ridge * theta[c]
            mean_theta[c] += count / draws * theta[c]
        for c in range(w.shape[0]):
            g_w[c] = count * w[c] if identity else 0.0
            mean_w[c] += count / draws * w[c]
        for j in range(start, stop):
            ahead = min(j + 4, draws - 1)
            fetch(phi, now[ahead])
            fetch(phi, next[ahead])
            delta = reward[j] - dotv(phi, now[j], next[j], discount[j], theta)
            u_w = u_factor[j] * dot(u, u_row[j], w)
            psi_w = 0.0 if identity else dot(psi, now[j], w)
            axpyv(phi, now[j], next[j], discount[j], -weight[j] * u_w, g_theta)
            axpy(u, u_row[j], -weight[j] * delta * u_factor[j], g_w)
            if not identity:
                axpy(psi, now[j], weight[j] * psi_w, g_w)
        of_theta += g_theta / draws
        of_w += g_w / draws
        if correction != 0.0:
            for c in range(theta.shape[0]):
                g_theta[c] += correction * g_w[c]
        theta -= step_theta * times(metric_theta, g_theta)
        w -= step_w * times(metric_w, g_w)
        start = stop
