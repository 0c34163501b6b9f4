"""PDBG, Algorithm 1: gradient steps on the whole log, primal and dual at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from valuefit.problem.problem import Problem
from valuefit.problem.saddle_point import MomentArrays, SaddlePoint
from valuefit.problem.theory import Theory
from valuefit.solvers.adaptive_steps import StepController, adaptive_state, start_controller
from valuefit.solvers.solver import Info, State, Steps, check_choice, inverse
from valuefit.typing import Array


@dataclass(frozen=True)
class PDBG(Steps):
    """Primal-dual batch gradient: (theta, w) -= (step_theta, step_w) * B(theta, w).

    Linear convergence, kappa(C) * kappa(A'C^-1A) iterations a digit (Theorem 1). By default gradients are
    preconditioned, by sketched rows or, for sparse rows, a diagonal, and steps adapted. Prefer it for teaching and
    comparison. `precompute=True` is PDBG-(II), which forms A, b, C once and then iterates in O(d^2), which is faster
    where d is far below n. `steps="theorem"` takes Theorem 1's steps; `fastest=True` with it the step
    2 / (lambda_max(G) + lambda_min(G)) of appendix B.

    Du et al. 2017, Algorithm 1 and Table 1.
    """

    name: ClassVar[str] = "pdbg"
    summary: ClassVar[str] = "batch gradient on the saddle point (I), or on precomputed moments (II)"
    order: ClassVar[int] = 1

    precompute: bool = False
    fastest: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "precompute", False, True)
        check_choice(self, "fastest", False, True)

    def auto_steps(self, problem: SaddlePoint) -> tuple[float, float]:
        if not isinstance(problem, Problem):
            raise ValueError(
                "pdbg with precompute=True chooses its steps by the norms of single rows, which need them in memory. "
                "Give step_theta and step_w, or use precompute=False."
            )
        # lambda_max(C) <= mean |psi|^2, and A'C^+A <= mean z z' with z the trace of v run backwards.
        norms = np.sqrt(problem.v_squared)
        z = problem.backward(norms)
        coupling = float(np.mean(z**2)) * (float(problem.psi_squared.mean()) if problem.identity else 1.0)
        dual = 1.0 if problem.identity else float(problem.psi_squared.mean())
        return inverse(2 * coupling + problem.ridge), inverse(dual)

    def theorem_steps(self, theory: Theory) -> tuple[float, float]:
        plan = theory.pdbg_fastest() if self.fastest else theory.pdbg()
        return plan.step_theta, plan.step_w

    def init(self, problem: SaddlePoint, theta: Array, w: Array) -> tuple[State, Info]:
        if self.guarded and not self.precompute:
            gradient = problem.B(theta, w)
            # they halve the error in each pass where the preconditioner is exact
            controller = start_controller(problem, gradient, unit_steps=(0.25, 1.0))
            return adaptive_state(theta, w, gradient, controller, 1.0 + controller.preconditioner.cost)
        steps = self.choose_steps(problem)
        if self.precompute:
            moments = problem.moments()
            state = State(theta, w, steps, _gradient(moments, problem.ridge, theta, w), memory=moments)
            return state, Info(problem.cost.moments)
        return State(theta, w, steps, problem.B(theta, w)), Info(1.0)

    def epoch(self, problem: SaddlePoint, state: State, rng: np.random.Generator) -> tuple[State, Info]:
        assert state.gradient is not None
        theta, w, (g_theta, g_w) = state.theta, state.w, state.gradient
        step_theta, step_w = state.steps
        if isinstance(state.memory, StepController):
            return self._adaptive_epoch(problem, state, state.memory)
        if not self.precompute:
            theta, w = theta - step_theta * g_theta, w - step_w * g_w
            return replace(state, theta=theta, w=w, gradient=problem.B(theta, w)), Info(1.0)
        # one iteration reads 2 k d + k^2 numbers, a pass every row twice: gather as many as make up a pass
        row = max(1.0, problem.cost.row)
        cost = (2 * problem.k * problem.d + problem.k**2) / (2 * problem.n * row)
        iterations = int(np.clip(1 / cost, 1, 1000))
        for _ in range(iterations):
            theta, w = theta - step_theta * g_theta, w - step_w * g_w
            g_theta, g_w = _gradient(state.memory, problem.ridge, theta, w)
        return replace(state, theta=theta, w=w, gradient=(g_theta, g_w)), Info(iterations * cost)

    def _adaptive_epoch(self, problem: SaddlePoint, state: State, controller: StepController) -> tuple[State, Info]:
        assert state.gradient is not None
        chosen, (step_theta, step_w) = controller.preconditioner, controller.steps
        moved = -step_theta * (chosen.theta @ state.gradient[0]), -step_w * (chosen.w @ state.gradient[1])
        theta, w = state.theta + moved[0], state.w + moved[1]
        gradient = problem.B(theta, w)
        # theta takes half a Barzilai-Borwein step and w two, so that w stays ahead of theta
        level = controller.secant_level(state.gradient, gradient, moved, 2.0)
        controller, accepted, more = controller.after_epoch(problem, state.gradient, gradient, 1.0, level)
        if not accepted:
            theta, w, gradient = state.theta, state.w, state.gradient
        return adaptive_state(theta, w, gradient, controller, 1.0 + more)


def _gradient(moments: MomentArrays, ridge: float, theta: Array, w: Array) -> tuple[Array, Array]:
    A, b, C = moments
    return ridge * theta - A.T @ w, A @ theta - b + C @ w
