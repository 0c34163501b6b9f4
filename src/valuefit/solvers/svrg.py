"""SVRG, Algorithm 2: single-row steps, corrected by a full gradient at a snapshot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from valuefit.problem.problem import Problem
from valuefit.problem.shuffled import Blocks, first_dots, shuffled
from valuefit.problem.theory import Theory
from valuefit.rows.kernels import axpy, axpyv, compiled, dot, dot2, dot2v, dotv, fetch, settle, times
from valuefit.solvers.adaptive_steps import Course, begin, on_course
from valuefit.solvers.solver import Info, State, Steps, check_block, check_inner
from valuefit.typing import Array

EPOCH = 8.0  # steps of Barzilai and Borwein that the adapted steps of an epoch add up to
PIECE = 1 << 21  # draws held in memory at a time
STRETCH = 32  # steps after which sums in the type of the rows are added to the iterates


@dataclass(frozen=True)
class SVRG(Steps):
    """Stochastic variance-reduced gradient for the saddle point (Algorithm 2).

    x -= step * (B_t(x) - B_t(snapshot) + B(snapshot)), N times, then a new snapshot. B_t is linear but for a
    constant, so B_t(x) - B_t(snapshot) needs only the deviation from the snapshot: one gradient a step, and
    nothing kept for each row. Linear convergence (Theorem 2), O(n) extra memory. By default it steps by mini-batches
    and adapts steps and N: on dense rows times a metric of mixed rows, d^2 numbers, on sparse ones in balanced
    coordinates, which are followed by that metric where they are slow and it is affordable. Prefer it for any-time
    answers.

    inner: N, the steps between snapshots; if None n, or what the adapted steps need (the paper's experiments: 2n).
    block: more than 1 takes single-row steps in runs of so many neighbours of a shuffled copy of the rows (16 to 32 is
    enough): about twice as fast on dense rows that do not fit in cache, for twice the memory and a pass.
    rate: which of appendix C's plans `steps="theorem"` takes.
    """

    name: ClassVar[str] = "svrg"
    summary: ClassVar[str] = "single-row steps corrected by a full gradient at a snapshot"
    order: ClassVar[int] = 2

    inner: int | None = None
    block: int = 1
    rate: Literal["4/5", "3/4"] = "4/5"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_inner(self.inner)
        check_block(self.block)
        if self.rate not in ("4/5", "3/4"):
            raise ValueError(f'rate is {self.rate!r}; it must be "4/5" or "3/4".')

    def theorem_steps(self, theory: Theory) -> tuple[float, float]:
        plan = theory.svrg(self.rate)
        return plan.step_theta, plan.step_w

    def init(self, problem: Problem, theta: Array, w: Array) -> tuple[State, Info]:
        inner = self.inner
        if inner is None and self.steps == "theorem":
            inner = int(Theory(problem).svrg(self.rate).inner)
            if inner > 1e9:
                raise ValueError(
                    f"Theorem 2 asks for {inner:.1e} inner steps on this problem. Give inner=, or use steps='auto'."
                )
        gradient = problem.B(theta, w)
        if self.block == 1 and self.guarded:
            course = begin(problem, gradient)
            return on_course(theta, w, gradient, course, 1.0 + course.metric.cost)
        blocks = shuffled(problem, self.block) if self.block > 1 else None
        state = State(theta, w, self.choose_steps(problem), gradient, memory=(inner or problem.n, blocks))
        return state, Info(1.0 if blocks is None else 2.0)

    def epoch(self, problem: Problem, state: State, rng: np.random.Generator) -> tuple[State, Info]:
        assert state.gradient is not None
        if isinstance(state.memory, Course):
            return self._steered_epoch(problem, state, state.memory, rng)
        length, blocks = state.memory
        d_theta, d_w = np.zeros(problem.d), np.zeros(problem.k)
        settings = (*state.gradient, d_theta, d_w, *state.steps, problem.ridge, problem.identity)
        for start in range(0, length, PIECE):
            count = min(PIECE, length - start)
            if blocks is None:
                draws = rng.integers(0, problem.n, count)
                rows = problem.phi.kernel, problem.psi.kernel, problem.u.kernel
                inner_loop(*rows, *problem.steps(draws), problem.trace > 0, *settings)
            else:
                _block_loop(blocks, blocks.draw(rng, count), problem.trace > 0, settings)
        theta, w = state.theta + d_theta, state.w + d_w
        return replace(state, theta=theta, w=w, gradient=problem.B(theta, w)), Info(1 + length / problem.n)

    def _steered_epoch(
        self, problem: Problem, state: State, course: Course, rng: np.random.Generator
    ) -> tuple[State, Info]:
        assert state.gradient is not None
        draws = course.metric.draw(rng, self.inner or course.length)
        d_theta, d_w = np.zeros(problem.d), np.zeros(problem.k)
        batches(
            problem.phi.kernel, problem.psi.kernel, problem.u.kernel, *problem.steps(draws),
            course.metric.weight[draws], problem.trace > 0, *state.gradient, course.metric.theta, course.metric.w,
            d_theta, d_w, course.batch(problem.d), *course.steps, problem.ridge, problem.identity,
        )  # fmt: skip
        theta, w = state.theta + d_theta, state.w + d_w
        gradient = problem.B(theta, w)
        cost = 1 + len(draws) / problem.n + course.products(len(draws), problem.d)
        course, kept, more = course.judge(
            problem, state.gradient, gradient, cost, moved=(d_theta, d_w), per_step=len(draws) / EPOCH
        )
        if not kept:
            theta, w, gradient = state.theta, state.w, state.gradient
        return on_course(theta, w, gradient, course, cost + more)


def _block_loop(blocks: Blocks, places: Array, traced: bool, settings: tuple[Any, ...]) -> None:
    """Steps at these places of the copy, by the kernel that can."""
    if blocks.fused:
        fused_loop(blocks.phi, places, blocks.discount, blocks.u_factor, blocks.scratch(6), *settings)
    else:
        inner_loop(blocks.phi, blocks.psi, blocks.u, *blocks.steps(places), traced, *settings)


@compiled
def inner_loop(
    phi, psi, u, now, next, discount, u_row, u_factor, traced,
    G_theta, G_w, theta, w, step_theta, step_w, ridge, identity,
):  # fmt: skip
    """N steps of the deviations (theta, w) from the snapshot, whose full gradient is (G_theta, G_w).

    Each step maps x to shrink * x - step * G + (multiple of the row). Kept as x = scale * y + along * G, the first
    two parts cost O(1) and the last O(nonzeros of the row); y is the array passed in, x is written back at the end.
    """
    shrink_theta = 1.0 - step_theta * ridge
    shrink_w = 1.0 - step_w if identity else 1.0
    scale_theta, along_theta, scale_w, along_w = 1.0, 0.0, 1.0, 0.0
    for j in range(now.shape[0]):
        ahead = min(j + 4, now.shape[0] - 1)
        fetch(phi, now[ahead])
        fetch(phi, next[ahead])
        y_dot, G_dot = dot2v(phi, now[j], next[j], discount[j], theta, G_theta)
        v_theta = scale_theta * y_dot + along_theta * G_dot
        y_dot, G_dot = dot2(u, u_row[j], w, G_w)
        u_w = u_factor[j] * (scale_w * y_dot + along_w * G_dot)
        psi_w = 0.0
        if not identity:
            if traced:
                y_dot, G_dot = dot2(psi, now[j], w, G_w)
            psi_w = scale_w * y_dot + along_w * G_dot
        scale_theta *= shrink_theta
        along_theta = shrink_theta * along_theta - step_theta
        scale_w *= shrink_w
        along_w = shrink_w * along_w - step_w
        if abs(scale_theta) < 1e-100:
            settle(theta, G_theta, scale_theta, along_theta)
            scale_theta, along_theta = 1.0, 0.0
        if abs(scale_w) < 1e-100:
            settle(w, G_w, scale_w, along_w)
            scale_w, along_w = 1.0, 0.0
        axpyv(phi, now[j], next[j], discount[j], step_theta * u_w / scale_theta, theta)
        if traced:
            axpy(psi, now[j], -step_w * psi_w / scale_w, w)
            psi_w = 0.0
        axpy(u, u_row[j], -step_w * (v_theta * u_factor[j] + psi_w) / scale_w, w)
    settle(theta, G_theta, scale_theta, along_theta)
    settle(w, G_w, scale_w, along_w)


@compiled
def fused_loop(
    rows, places, discount, u_factor, scratch, G_theta, G_w, theta, w, step_theta, step_w, ridge, identity
):  # fmt: skip
    """`inner_loop` for psi = phi without traces, with both rows of a step side by side.

    One loop over the columns ends a step and takes the products of the next. Its sums are of the type of the rows,
    over a stretch of steps, from where x stood at its beginning: float32 then rounds what x has moved, not x.
    """
    d, width = theta.shape[0], rows.shape[1]
    number = rows.dtype.type
    shrink_theta, shrink_w = number(1.0 - step_theta * ridge), number(1.0 - step_w if identity else 1.0)
    # where the stretch began, how far it has come, and by what each step moves besides the row
    from_theta, by_theta, add_theta = scratch[0], scratch[1], scratch[2]
    from_w, by_w, add_w = scratch[3], scratch[4], scratch[5]
    start = 0
    while start < places.shape[0]:
        stop = min(start + STRETCH, places.shape[0])
        for c in range(d):
            from_theta[c] = theta[c]
            add_theta[c] = step_theta * (G_theta[c] + ridge * theta[c])
            by_theta[c] = 0.0
            from_w[c] = w[c]
            add_w[c] = step_w * (G_w[c] + (w[c] if identity else 0.0))
            by_w[c] = 0.0
        i = places[start]
        v_theta, psi_w = first_dots(rows[2 * i], rows[2 * i + 1], number(discount[i]), from_theta, from_w)
        for j in range(start, stop):
            ahead = places[min(j + 5, places.shape[0] - 1)]
            fetch(rows, 2 * ahead)
            fetch(rows, 2 * ahead + 1)
            i = places[j]
            now, next, gamma = rows[2 * i], rows[2 * i + 1], number(discount[i])
            a = number(step_theta * u_factor[i] * psi_w)
            b = number(-step_w * (u_factor[i] * v_theta + (0.0 if identity else psi_w)))
            i = places[min(j + 1, places.shape[0] - 1)]
            now_after, next_after, gamma_after = rows[2 * i], rows[2 * i + 1], number(discount[i])
            v_theta, psi_w = number(0.0), number(0.0)
            for c in range(width):
                moved = shrink_theta * by_theta[c] + a * (now[c] - gamma * next[c]) - add_theta[c]
                by_theta[c] = moved
                v_theta += (now_after[c] - gamma_after * next_after[c]) * (from_theta[c] + moved)
                moved = shrink_w * by_w[c] + b * now[c] - add_w[c]
                by_w[c] = moved
                psi_w += now_after[c] * (from_w[c] + moved)
        for c in range(d):
            theta[c] += by_theta[c]
            w[c] += by_w[c]
        start = stop


@compiled
def batches(
    phi, psi, u, now, next, discount, u_row, u_factor, weight, traced, G_theta, G_w, metric_theta, metric_w,
    theta, w, batch, step_theta, step_w, ridge, identity,
):  # fmt: skip
    """The same steps for the deviations (theta, w), `batch` rows together, times the metric."""
    g_theta, g_w = np.empty_like(theta), np.empty_like(w)
    start = 0
    while start < now.shape[0]:
        stop = min(start + batch, now.shape[0])
        g_theta[:] = 0.0
        g_w[:] = 0.0
        for j in range(start, stop):
            ahead = min(j + 4, now.shape[0] - 1)
            fetch(phi, now[ahead])
            fetch(phi, next[ahead])
            v_theta = dotv(phi, now[j], next[j], discount[j], theta)
            u_w = dot(u, u_row[j], w)
            psi_w = 0.0
            if not identity:
                psi_w = dot(psi, now[j], w) if traced else u_w
            axpyv(phi, now[j], next[j], discount[j], -weight[j] * u_factor[j] * u_w, g_theta)
            if traced:
                axpy(psi, now[j], weight[j] * psi_w, g_w)
                psi_w = 0.0
            axpy(u, u_row[j], weight[j] * (v_theta * u_factor[j] + psi_w), g_w)
        count = stop - start
        for c in range(theta.shape[0]):
            g_theta[c] += count * (G_theta[c] + ridge * theta[c])
        for c in range(w.shape[0]):
            g_w[c] += count * (G_w[c] + (w[c] if identity else 0.0))
        theta -= step_theta * times(metric_theta, g_theta)
        w -= step_w * times(metric_w, g_w)
        start = stop
