"""SVRG, Algorithm 2: single-row steps, corrected by a full gradient at a snapshot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from valuefit.precondition.stochastic_preconditioner import BatchPlan
from valuefit.problem.problem import Problem
from valuefit.problem.saddle_point import SaddlePoint
from valuefit.problem.theory import Theory
from valuefit.rows.draws import at
from valuefit.rows.kernels import axpy, axpyv, compiled, dot, dot2, dot2v, dotv, materialise, prefetch_row, times
from valuefit.solvers.adaptive_steps import StepController, adaptive_cost, adaptive_state, start_controller
from valuefit.solvers.blocks import shuffled, svrg_fused
from valuefit.solvers.solver import SINGLE_ROWS, Estimate, Info, State, Steps, StepSizes, check_choice, check_count
from valuefit.typing import Array, Gradient

MAX_DRAWS = 1 << 21  # random steps whose data are held in memory at a time


@dataclass(frozen=True)
class SVRG(Steps):
    """Stochastic variance-reduced gradient for the saddle point (Algorithm 2).

    x -= step * (B_t(x) - B_t(snapshot) + B(snapshot)), N times, then a new snapshot. B_t is affine, so
    B_t(x) - B_t(snapshot) needs only the deviation from the snapshot: one gradient a step, and nothing stored for
    each row. Linear convergence (Theorem 2), O(n) extra memory. By default it takes preconditioned mini-batch steps
    and adapts their size and N: dense rows get a preconditioner from sketched rows (d^2 numbers), sparse rows a
    diagonal one, replaced by the other where it is slow and that is affordable. Prefer it for any-time answers.

    inner: N, the steps between snapshots; if None n, or what the adapted steps need (the paper's experiments: 2n).
    block: more than 1 takes single-row steps in runs of this many neighbours of a shuffled copy of the rows (16 to 32
    is enough): about twice as fast on dense rows that do not fit in cache, for twice the memory and a pass.
    rate: which of appendix C's plans `steps="theorem"` takes.
    """

    name: ClassVar[str] = "svrg"
    summary: ClassVar[str] = "single-row steps corrected by a full gradient at a snapshot"
    order: ClassVar[int] = 2
    refusals: ClassVar[dict[str, str]] = {"shards": SINGLE_ROWS["shards"]}

    inner: int | None = None
    block: int = 1
    rate: Literal["4/5", "3/4"] = "4/5"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self, "inner")
        check_count(self, "block", " (rows drawn one by one)")
        check_choice(self, "rate", "4/5", "3/4")

    def theorem_steps(self, theory: Theory) -> tuple[float, float]:
        plan = theory.svrg(self.rate)
        return plan.step_theta, plan.step_w

    def cost(self, problem: SaddlePoint, gap: float) -> Estimate | None:
        if problem.storage:  # its small products keep a device idle
            return None
        return adaptive_cost(problem, gap, full_passes=12.0, update_passes=12.0)

    def init(self, problem: Any, theta: Array, w: Array) -> tuple[State, Info]:
        if self.block == 1 and self.guarded:
            gradient = problem.B(theta, w)
            controller = start_controller(problem, gradient)
            return adaptive_state(theta, w, gradient, controller, 1.0 + controller.preconditioner.cost)
        if problem.storage:
            raise ValueError(
                "svrg takes steps of given sizes and blocks through single rows, which must be in memory. Leave out "
                "step_theta, step_w, steps and block, or give the rows as a NumPy array."
            )
        inner = self.inner
        if inner is None and self.steps == "theorem":
            inner = int(Theory(problem).svrg(self.rate).inner)
            if inner > 1e9:
                raise ValueError(
                    f"Theorem 2 asks for {inner:.1e} inner steps on this problem. Give inner=, or use steps='auto'."
                )
        blocks, passes = (shuffled(problem, self.block), 2.0) if self.block > 1 else (None, 1.0)
        state = State(theta, w, self.choose_steps(problem), problem.B(theta, w), memory=(inner or problem.n, blocks))
        return state, Info(passes)

    def epoch(self, problem: Any, state: State, rng: np.random.Generator) -> tuple[State, Info]:
        if isinstance(state.memory, StepController):
            return self._adaptive_epoch(problem, state, state.memory, rng)
        length, blocks = state.memory
        deviation = np.zeros(problem.d), np.zeros(problem.k)
        step = StepSizes.of(problem, state.steps)
        for start in range(0, length, MAX_DRAWS):
            count = min(MAX_DRAWS, length - start)
            if blocks is None:
                draws = problem.steps(rng.integers(0, problem.n, count))
                single_rows(problem.row_sets, draws, state.gradient, deviation, step)
                continue
            places = blocks.draw(rng, count)
            if blocks.fused:
                svrg_fused(*blocks.fused_arguments(places, 6), state.gradient, deviation, step)
            else:
                single_rows(blocks.rows, blocks.steps(places), state.gradient, deviation, step)
        theta, w = state.theta + deviation[0], state.w + deviation[1]
        return replace(state, theta=theta, w=w, gradient=problem.B(theta, w)), Info(1 + length / problem.n)

    def _adaptive_epoch(
        self, problem: Any, state: State, controller: StepController, rng: np.random.Generator
    ) -> tuple[State, Info]:
        assert state.gradient is not None
        count, chosen = self.inner or controller.epoch_length, controller.preconditioner
        plan = BatchPlan(chosen, state.gradient, count, controller.batch(problem.d), *controller.steps)
        deviation = problem.batch_steps(plan, rng) if problem.storage else batch_steps(problem, plan, rng)
        theta, w = state.theta + deviation[0], state.w + deviation[1]
        gradient = problem.B(theta, w)
        passes = 1 + count / problem.n + controller.product_passes(count, problem.d)
        # the single-row steps of an epoch add up to eight Barzilai-Borwein steps
        level = controller.secant_level(state.gradient, gradient, deviation, count / 8.0)
        controller, accepted, more = controller.after_epoch(problem, state.gradient, gradient, passes, level)
        if not accepted:
            theta, w, gradient = state.theta, state.w, state.gradient
        return adaptive_state(theta, w, gradient, controller, passes + more)


def batch_steps(problem: Problem, plan: BatchPlan, rng: np.random.Generator) -> Gradient:
    """The steps over random mini-batches: the deviations of theta and w from the snapshot after them."""
    deviation = np.zeros(problem.d), np.zeros(problem.k)
    sampling, sizes = plan.sampling, StepSizes.of(problem, (plan.step_theta, plan.step_w))
    drawn = sampling.draw(rng, plan.draws)
    batches(
        problem.row_sets, problem.steps(drawn), sampling.weight[drawn], plan.gradient, (sampling.theta, sampling.w),
        deviation, plan.batch, sizes,
    )  # fmt: skip
    return deviation


@compiled
def single_rows(rows, draws, gradient, deviation, step):
    """Steps of the deviation x from the snapshot, whose full gradient is G.

    Each step maps x to shrink * x - step * G + (multiple of the row). Kept as x = scale * y + along * G, the first
    two parts cost O(1) and the last O(nonzeros of the row); y is the array passed in, x is written back at the end.
    """
    phi, psi, u = rows
    (G_theta, G_w), (theta, w) = gradient, deviation
    count = draws.now.shape[0]
    shrink_theta = 1.0 - step.theta * step.ridge
    shrink_w = 1.0 - step.w if step.identity else 1.0
    scale_theta, along_theta, scale_w, along_w = 1.0, 0.0, 1.0, 0.0
    for j in range(count):
        prefetch_row(phi, draws.now[min(j + 4, count - 1)])
        prefetch_row(phi, draws.next[min(j + 4, count - 1)])
        now, next, discount, u_row, u_factor = at(draws, j)
        y_dot, G_dot = dot2v(phi, now, next, discount, theta, G_theta)
        v_theta = scale_theta * y_dot + along_theta * G_dot
        y_dot, G_dot = dot2(u, u_row, w, G_w)
        u_w = u_factor * (scale_w * y_dot + along_w * G_dot)
        psi_w = 0.0
        if not step.identity:
            if step.traced:
                y_dot, G_dot = dot2(psi, now, w, G_w)
            psi_w = scale_w * y_dot + along_w * G_dot
        scale_theta *= shrink_theta
        along_theta = shrink_theta * along_theta - step.theta
        scale_w *= shrink_w
        along_w = shrink_w * along_w - step.w
        if abs(scale_theta) < 1e-100:
            materialise(theta, G_theta, scale_theta, along_theta)
            scale_theta, along_theta = 1.0, 0.0
        if abs(scale_w) < 1e-100:
            materialise(w, G_w, scale_w, along_w)
            scale_w, along_w = 1.0, 0.0
        axpyv(phi, now, next, discount, step.theta * u_w / scale_theta, theta)
        if step.traced:
            axpy(psi, now, -step.w * psi_w / scale_w, w)
            psi_w = 0.0
        axpy(u, u_row, -step.w * (v_theta * u_factor + psi_w) / scale_w, w)
    materialise(theta, G_theta, scale_theta, along_theta)
    materialise(w, G_w, scale_w, along_w)


@compiled
def batches(rows, draws, weight, gradient, preconditioner, deviation, batch, step):
    """Make the steps of `single_rows` with `batch` weighted rows together, times the preconditioner."""
    phi, psi, u = rows
    (G_theta, G_w), (theta, w) = gradient, deviation
    P_theta, P_w = preconditioner
    g_theta, g_w = np.empty_like(theta), np.empty_like(w)
    total = weight.shape[0]
    start = 0
    while start < total:
        stop = min(start + batch, total)
        g_theta[:] = 0.0
        g_w[:] = 0.0
        for j in range(start, stop):
            prefetch_row(phi, draws.now[min(j + 4, total - 1)])
            prefetch_row(phi, draws.next[min(j + 4, total - 1)])
            now, next, discount, u_row, u_factor = at(draws, j)
            v_theta = dotv(phi, now, next, discount, theta)
            u_w = dot(u, u_row, w)
            psi_w = 0.0
            if not step.identity:
                psi_w = dot(psi, now, w) if step.traced else u_w
            axpyv(phi, now, next, discount, -weight[j] * u_factor * u_w, g_theta)
            if step.traced:
                axpy(psi, now, weight[j] * psi_w, g_w)
                psi_w = 0.0
            axpy(u, u_row, weight[j] * (v_theta * u_factor + psi_w), g_w)
        count = stop - start
        for c in range(theta.shape[0]):
            g_theta[c] += count * (G_theta[c] + step.ridge * theta[c])
        for c in range(w.shape[0]):
            g_w[c] += count * (G_w[c] + (w[c] if step.identity else 0.0))
        theta -= step.theta * times(P_theta, g_theta)
        w -= step.w * times(P_w, g_w)
        start = stop
