"""PDBG, Algorithm 1: gradient steps on the whole log, primal and dual at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from valuefit.problem.problem import Moments, Problem
from valuefit.problem.theory import Theory
from valuefit.solvers.adaptive_steps import Course, begin
from valuefit.solvers.solver import State, Steps, inverse, on_course
from valuefit.typing import Array

FULL = 0.25, 1.0  # steps that halve the error at each pass where the metric is exact
PER_STEP = 2.0  # so theta goes by half a step of Barzilai and Borwein, w by two, which keeps w ahead


@dataclass(frozen=True)
class PDBG(Steps):
    """Primal-dual batch gradient: (theta, w) -= (step_theta, step_w) * B(theta, w).

    Linear convergence, kappa(C) * kappa(A'C^-1A) iterations a digit (Theorem 1). Prefer it for teaching and as
    a yardstick; by default gradients are multiplied by a metric of mixed rows, or balanced coordinates' where rows are
    sparse or that has no room, and steps adapted.
    `precompute=True` is PDBG-(II), which forms A, b, C once and then iterates in O(d^2), and pays where d is far
    below n. `steps="theorem"` takes Theorem 1's steps; `fastest=True` with it the step
    2 / (lambda_max(G) + lambda_min(G)) of appendix B.

    Du et al. 2017, Algorithm 1 and Table 1.
    """

    name: ClassVar[str] = "pdbg"
    summary: ClassVar[str] = "batch gradient on the saddle point (I), or on precomputed moments (II)"
    order: ClassVar[int] = 1

    precompute: bool = False
    fastest: bool = False

    def auto_steps(self, problem: Problem) -> tuple[float, float]:
        # lambda_max(C) <= mean |psi|^2, and A'C^+A <= mean z z' with z the trace of v run backwards.
        norms = np.sqrt(problem.v_squared)
        z = problem.backward(norms)
        coupling = float(np.mean(z**2)) * (float(problem.psi_squared.mean()) if problem.identity else 1.0)
        dual = 1.0 if problem.identity else float(problem.psi_squared.mean())
        return inverse(2 * coupling + problem.ridge), inverse(dual)

    def theorem_steps(self, theory: Theory) -> tuple[float, float]:
        plan = theory.pdbg_fastest() if self.fastest else theory.pdbg()
        return plan.step_theta, plan.step_w

    def init(self, problem: Problem, theta: Array, w: Array) -> tuple[State, float]:
        if self.guarded and not self.precompute:
            gradient = problem.B(theta, w)
            course = begin(problem, gradient, given=FULL)
            state = on_course(theta, w, gradient, course)
            return state, 1.0 + course.metric.cost
        steps = self.choose_steps(problem)
        if self.precompute:
            moments = problem.moments()
            state = State(theta, w, steps, _gradient(moments, problem.ridge, theta, w), memory=moments)
            return state, problem.cost.moments
        return State(theta, w, steps, problem.B(theta, w)), 1.0

    def epoch(self, problem: Problem, state: State, rng: np.random.Generator) -> tuple[State, float]:
        assert state.gradient is not None
        theta, w, (g_theta, g_w) = state.theta, state.w, state.gradient
        step_theta, step_w = state.steps
        if isinstance(state.memory, Course):
            return self._steered_epoch(problem, state, state.memory)
        if not self.precompute:
            theta, w = theta - step_theta * g_theta, w - step_w * g_w
            return replace(state, theta=theta, w=w, gradient=problem.B(theta, w)), 1.0
        # one iteration reads 2 k d + k^2 numbers, a pass every row twice: gather as many as make up a pass
        row = max(1.0, problem.phi.stored / problem.phi.shape[0])
        cost = (2 * problem.k * problem.d + problem.k**2) / (2 * problem.n * row)
        iterations = int(np.clip(1 / cost, 1, 1000))
        for _ in range(iterations):
            theta, w = theta - step_theta * g_theta, w - step_w * g_w
            g_theta, g_w = _gradient(state.memory, problem.ridge, theta, w)
        return replace(state, theta=theta, w=w, gradient=(g_theta, g_w)), iterations * cost

    def _steered_epoch(self, problem: Problem, state: State, course: Course) -> tuple[State, float]:
        assert state.gradient is not None
        step_theta, step_w = course.steps
        d_theta = -step_theta * (course.metric.theta @ state.gradient[0])
        d_w = -step_w * (course.metric.w @ state.gradient[1])
        theta, w = state.theta + d_theta, state.w + d_w
        gradient = problem.B(theta, w)
        course, kept, more = course.judge(
            problem, state.gradient, gradient, 1.0, moved=(d_theta, d_w), per_step=PER_STEP
        )
        if not kept:
            theta, w, gradient = state.theta, state.w, state.gradient
        state = on_course(theta, w, gradient, course)
        return state, 1.0 + more


def _gradient(moments: Moments, ridge: float, theta: Array, w: Array) -> tuple[Array, Array]:
    A, b, C = moments
    return ridge * theta - A.T @ w, A @ theta - b + C @ w
