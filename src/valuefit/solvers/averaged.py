"""Stochastic steps without variance reduction that return the mean of the iterates, shared by GTD2 and TDC."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from valuefit.problem.problem import Problem
from valuefit.rows.draws import at
from valuefit.rows.kernels import axpy, axpyv, compiled, dot, dotv
from valuefit.solvers.solver import SINGLE_ROWS, Info, State, Steps, StepSizes, check_count, check_decay
from valuefit.typing import Array


@dataclass(frozen=True)
class AveragedSteps(Steps):
    """Single-row steps along B_t(x), t drawn at random.

    By default steps are constant, 0.25 / max |v|^2 and 0.5 / max |psi|^2 (`solve` shortens them if they diverge),
    and the answer is the mean of the iterates, those of the k-th epoch with weight k (Lacoste-Julien, Schmidt and
    Bach 2012). With given steps or `decay`, the answer is the last iterate.

    decay: step_j = step / (1 + j / (decay n)), so steps halve after `decay` passes; math.inf keeps them constant, as
    in the paper's experiments. None means 10 for given steps. inner: updates in an epoch; n if None.
    """

    refusals: ClassVar[dict[str, str]] = SINGLE_ROWS
    td_weight: ClassVar[float]  # of the TD step u delta - psi (psi'w), which TDC adds to the step of theta

    decay: float | None = None
    inner: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay(self)
        check_count(self, "inner")

    def init(self, problem: Problem, theta: Array, w: Array) -> tuple[State, Info]:
        return State(theta, w, self.choose_steps(problem), memory=Iterate(theta, w)), Info(0.0)

    def epoch(self, problem: Problem, state: State, rng: np.random.Generator) -> tuple[State, Info]:
        memory: Iterate = state.memory
        averaged = self.guarded and self.decay is None
        # given steps have halved after 10 passes
        decay = np.inf if averaged else 10.0 if self.decay is None else self.decay
        draws = rng.integers(0, problem.n, self.inner or problem.n)
        theta, w, mean = memory.theta.copy(), memory.w.copy(), (np.zeros(problem.d), np.zeros(problem.k))
        # for dense rows, adding an iterate to the mean costs as much as half an update
        interval = int(np.ceil(8 * problem.d * problem.phi.shape[0] / max(problem.phi.stored, 1)))
        single_rows(
            problem.row_sets, problem.steps(draws), problem.reward[draws], (theta, w), mean,
            min(interval, len(draws)) if averaged else len(draws) + 1, memory.updates, decay * problem.n,
            StepSizes.of(problem, state.steps), self.td_weight,
        )  # fmt: skip
        memory = Iterate(theta, w, memory.updates + len(draws), memory.epochs + 1)
        if averaged:
            weight = 2 / (memory.epochs + 1)  # of epoch k among epochs 1 to k with weights 1 to k
            theta, w = state.theta + weight * (mean[0] - state.theta), state.w + weight * (mean[1] - state.w)
        return replace(state, theta=theta, w=w, memory=memory), Info(len(draws) / problem.n)


class Iterate(NamedTuple):
    """The last iterate, kept because the state holds the mean, and the updates and epochs done."""

    theta: Array
    w: Array
    updates: int = 0
    epochs: int = 0


@compiled
def single_rows(rows, draws, reward, iterate, mean, interval, count, half_life, step, td_weight):
    """Updates in the order of `draws`; the means are those of every interval-th iterate.

    theta += step_theta (v (u'w) - ridge theta + td_weight g) and w += step_w g, with g = u delta - psi (psi'w).
    """
    phi, psi, u = rows
    (theta, w), (mean_theta, mean_w) = iterate, mean
    scale = 1.0  # theta is kept as scale * y, so that shrinking it by the ridge costs nothing
    total = reward.shape[0] // interval
    for j in range(reward.shape[0]):
        now, next, discount, u_row, u_factor = at(draws, j)
        slower = 1.0 + (count + j) / half_life
        step_theta, step_w = step.theta / slower, step.w / slower
        delta = u_factor * (reward[j] - scale * dotv(phi, now, next, discount, theta))
        u_w = u_factor * dot(u, u_row, w)
        psi_w = 0.0 if step.identity else dot(psi, now, w)
        scale *= 1.0 - step_theta * step.ridge
        if abs(scale) < 1e-100:
            theta *= scale
            scale = 1.0
        axpyv(phi, now, next, discount, step_theta * u_w / scale, theta)
        if td_weight != 0.0:
            td_step = step_theta * td_weight / scale
            axpy(u, u_row, td_step * delta, theta)
            if step.identity:
                theta -= td_step * w
            else:
                axpy(psi, now, -td_step * psi_w, theta)
        if step.identity:
            w *= 1.0 - step_w
        else:
            axpy(psi, now, -step_w * psi_w, w)
        axpy(u, u_row, step_w * delta, w)
        if (j + 1) % interval == 0:
            mean_theta += scale / total * theta
            mean_w += w / total
    theta *= scale
