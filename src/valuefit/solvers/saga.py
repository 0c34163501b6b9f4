"""SAGA, Algorithm 3: single-row steps, corrected by a table of the last gradient of every row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from valuefit.problem.problem import Problem
from valuefit.problem.theory import Theory
from valuefit.rows.draws import at
from valuefit.rows.kernels import axpy2, axpy2v, compiled, dot, dot2, dot2v, dotv, materialise, prefetch_row, times
from valuefit.solvers.adaptive_steps import StepController, adaptive_cost, adaptive_state, start_controller
from valuefit.solvers.blocks import Blocks, saga_fused, shuffled
from valuefit.solvers.solver import SINGLE_ROWS, Estimate, Info, State, Steps, StepSizes, check_count
from valuefit.typing import Array, Gradient


@dataclass(frozen=True)
class SAGA(Steps):
    """SAGA for the saddle point (Algorithm 3).

    x -= step * (B + h_t - g_t), with h_t = B_t(x) the new gradient of the drawn row, g_t its last one and B the
    mean of the g. A gradient is a multiple of its rows, so the table keeps scalars: v't theta and psi't w, and
    u't w with traces. ridge * theta (and w, when C = I) are exact, outside the table. Linear convergence
    (Theorem 3). By default it takes preconditioned mini-batch steps and adapts their size: dense rows get a
    preconditioner from sketched rows, sparse rows a diagonal one. Prefer it for a fixed log that fits in memory.

    inner: updates in an epoch; n if None.
    block: more than 1 takes single-row steps in runs of this many neighbours of a shuffled copy of the rows (16 to 32
    is enough): about twice as fast on dense rows that do not fit in cache, for twice the memory and a pass.
    """

    name: ClassVar[str] = "saga"
    summary: ClassVar[str] = "single-row steps corrected by a table of two or three scalars a step"
    order: ClassVar[int] = 3
    refusals: ClassVar[dict[str, str]] = SINGLE_ROWS

    inner: int | None = None
    block: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self, "inner")
        check_count(self, "block", " (rows drawn one by one)")

    def theorem_steps(self, theory: Theory) -> tuple[float, float]:
        plan = theory.saga()
        return plan.step_theta, plan.step_w

    def cost(self, problem: Problem, gap: float) -> Estimate:
        estimate = adaptive_cost(problem, gap, full_passes=0.0, update_passes=28.0)
        return estimate._replace(bytes=estimate.bytes + 8.0 * 3 * problem.n)  # the table

    def init(self, problem: Problem, theta: Array, w: Array) -> tuple[State, Info]:
        table, gradient, passes = _fill_table(problem, theta, w)
        if self.block > 1:
            blocks = shuffled(problem, self.block)
            table = table._replace(entries=table.entries[blocks.order])
            return State(theta, w, self.choose_steps(problem), gradient, (table, blocks)), Info(passes + 1)
        if not self.guarded:
            return State(theta, w, self.choose_steps(problem), gradient, (table, None)), Info(passes)
        # the mean of the table lags behind the iterate, so it may grow by chance
        controller = start_controller(problem, gradient, max_growth=4.0)
        passes += controller.preconditioner.cost
        return adaptive_state(theta, w, gradient, controller, passes, Adaptive(table, theta, w, controller))

    def epoch(self, problem: Problem, state: State, rng: np.random.Generator) -> tuple[State, Info]:
        if isinstance(state.memory, Adaptive):
            return self._adaptive_epoch(problem, state, state.memory, rng)
        table: GradientTable = state.memory[0].copy()
        blocks: Blocks | None = state.memory[1]
        iterate, count = (state.theta.copy(), state.w.copy()), self.inner or problem.n
        step = StepSizes.of(problem, state.steps)
        if blocks is None:
            draws = rng.integers(0, problem.n, count)
            single_rows(problem.row_sets, draws, problem.steps(draws), *table, iterate, step)
        else:
            places = blocks.draw(rng, count)
            if blocks.fused:
                saga_fused(*blocks.fused_arguments(places, 8), *table, iterate, step)
            else:
                single_rows(blocks.rows, places, blocks.steps(places), *table, iterate, step)
        gradient = table.gradient(problem, *iterate)
        state = replace(state, theta=iterate[0], w=iterate[1], gradient=gradient, memory=(table, blocks))
        return state, Info(count / problem.n)

    def _adaptive_epoch(
        self, problem: Problem, state: State, memory: Adaptive, rng: np.random.Generator
    ) -> tuple[State, Info]:
        assert state.gradient is not None
        controller = memory.controller
        chosen = controller.preconditioner
        draws = chosen.draw(rng, self.inner or problem.n)
        table, last = memory.table.copy(), (memory.theta.copy(), memory.w.copy())
        theta, w = np.zeros(problem.d), np.zeros(problem.k)
        batches(
            problem.row_sets, draws, problem.steps(draws), chosen.weight[draws], *table,
            (chosen.theta, chosen.w), last, (theta, w), controller.batch(problem.d),
            StepSizes.of(problem, controller.steps),
        )  # fmt: skip
        gradient = table.gradient(problem, theta, w)
        passes = len(draws) / problem.n + controller.product_passes(len(draws), problem.d)
        moved = theta - state.theta, w - state.w
        # the single-row steps of an epoch add up to three Barzilai-Borwein steps
        level = controller.secant_level(state.gradient, gradient, moved, len(draws) / 3.0)
        controller, accepted, more = controller.after_epoch(problem, state.gradient, gradient, passes, level)
        if not accepted:
            # the table's mean may have been small by chance, so that every epoch is rejected: fill the table again
            table, gradient, again = _fill_table(problem, state.theta, state.w)
            theta, w, last, more = state.theta, state.w, (state.theta, state.w), more + again
            controller = replace(controller, merit=controller.preconditioner.merit(gradient))
        memory = Adaptive(table, *last, controller)
        return adaptive_state(theta, w, gradient, controller, passes + more, memory)


class GradientTable(NamedTuple):
    """The scalars of the last gradient of every row, (n, 2) or with traces (n, 3), and the mean of the gradients."""

    entries: Array
    mean: Gradient

    def copy(self) -> GradientTable:
        return GradientTable(self.entries.copy(), (self.mean[0].copy(), self.mean[1].copy()))

    def gradient(self, problem: Problem, theta: Array, w: Array) -> Gradient:
        """The mean and the exact parts."""
        return self.mean[0] + problem.ridge * theta, self.mean[1] + w if problem.identity else self.mean[1]


class Adaptive(NamedTuple):
    """The table and the last iterate.

    The state shows the mean iterate of the epoch: its gradient is about the table's mean, and it lies ten times
    nearer to the minimum than the last one where the variance of the steps dominates.
    """

    table: GradientTable
    theta: Array
    w: Array
    controller: StepController


def _fill_table(problem: Problem, theta: Array, w: Array) -> tuple[GradientTable, Gradient, float]:
    """The table with every row's gradient at this point, the full gradient, and the passes that this cost."""
    entries = np.zeros((problem.n, 3 if problem.trace else 2))
    g_theta, g_w = problem.B(theta, w)
    table = GradientTable(entries, (g_theta - problem.ridge * theta, g_w - w if problem.identity else g_w))
    if not (theta.any() or w.any()):
        return table, (g_theta, g_w), 1.0
    entries[:, 0] = problem.differences(theta)
    entries[:, 1] = problem.psi.dot(w)[problem.now]
    if problem.trace:
        entries[:, 2] = problem.u.dot(w)
    return table, (g_theta, g_w), 2.0


@compiled
def single_rows(rows, order, draws, table, mean, iterate, step):
    """Updates in the order of `draws`; table, mean B and iterate x are changed in place.

    A step maps x to shrink * x - step * (B + change) and B to B + change / n, where `change` is a multiple of the
    row. Kept as x = scale * y + along * B, both cost O(nonzeros of the row); x is written back at the end.
    """
    phi, psi, u = rows
    (B_theta, B_w), (theta, w) = mean, iterate
    n, count = table.shape[0], order.shape[0]
    shrink_theta = 1.0 - step.theta * step.ridge
    shrink_w = 1.0 - step.w if step.identity else 1.0
    scale_theta, along_theta, scale_w, along_w = 1.0, 0.0, 1.0, 0.0
    for j in range(count):
        ahead = min(j + 4, count - 1)
        prefetch_row(phi, draws.now[ahead])
        prefetch_row(phi, draws.next[ahead])
        prefetch_row(table, order[ahead])
        t = order[j]
        now, next, discount, u_row, u_factor = at(draws, j)
        y_dot, B_dot = dot2v(phi, now, next, discount, theta, B_theta)
        v_theta = scale_theta * y_dot + along_theta * B_dot
        y_dot, B_dot = dot2(psi, now, w, B_w)
        psi_w = scale_w * y_dot + along_w * B_dot
        change_v, change_psi = v_theta - table[t, 0], psi_w - table[t, 1]
        table[t, 0], table[t, 1] = v_theta, psi_w
        if step.traced:
            y_dot, B_dot = dot2(u, u_row, w, B_w)
            u_w = scale_w * y_dot + along_w * B_dot
            change_u = u_w - table[t, 2]
            table[t, 2] = u_w
        else:
            change_u = u_factor * change_psi
        if step.identity:
            change_psi = 0.0
        scale_theta *= shrink_theta
        along_theta = shrink_theta * along_theta - step.theta
        scale_w *= shrink_w
        along_w = shrink_w * along_w - step.w
        if abs(scale_theta) < 1e-100:
            materialise(theta, B_theta, scale_theta, along_theta)
            scale_theta, along_theta = 1.0, 0.0
        if abs(scale_w) < 1e-100:
            materialise(w, B_w, scale_w, along_w)
            scale_w, along_w = 1.0, 0.0
        by_theta = -(along_theta / n + step.theta) / scale_theta
        by_w = -(along_w / n + step.w) / scale_w
        axpy2v(phi, now, next, discount, -change_u * by_theta, theta, -change_u / n, B_theta)
        if step.traced:
            axpy2(psi, now, change_psi * by_w, w, change_psi / n, B_w)
            change_psi = 0.0
        change = u_factor * change_v + change_psi
        axpy2(u, u_row, change * by_w, w, change / n, B_w)
    materialise(theta, B_theta, scale_theta, along_theta)
    materialise(w, B_w, scale_w, along_w)


@compiled
def batches(rows, order, draws, weight, table, mean, preconditioner, iterate, average, batch, step):
    """Make the steps of `single_rows` with `batch` weighted rows at once, preconditioned; a row counts once in a batch.

    average += the mean of the iterates at which gradients were taken.
    """
    phi, psi, u = rows
    (B_theta, B_w), (theta, w), (mean_theta, mean_w) = mean, iterate, average
    P_theta, P_w = preconditioner
    n, total = table.shape[0], order.shape[0]
    g_theta, g_w = np.empty_like(theta), np.empty_like(w)  # weighted changes, which move the iterate
    c_theta, c_w = np.empty_like(theta), np.empty_like(w)  # changes, which move the table's mean
    start = 0
    while start < total:
        stop = min(start + batch, total)
        g_theta[:] = 0.0
        g_w[:] = 0.0
        c_theta[:] = 0.0
        c_w[:] = 0.0
        for j in range(start, stop):
            ahead = min(j + 4, total - 1)
            prefetch_row(phi, draws.now[ahead])
            prefetch_row(phi, draws.next[ahead])
            prefetch_row(table, order[ahead])
            t = order[j]
            now, next, discount, u_row, u_factor = at(draws, j)
            v_theta = dotv(phi, now, next, discount, theta)
            psi_w = dot(psi, now, w)
            change_v, change_psi = v_theta - table[t, 0], psi_w - table[t, 1]
            table[t, 0], table[t, 1] = v_theta, psi_w
            if step.traced:
                u_w = dot(u, u_row, w)
                change_u = u_w - table[t, 2]
                table[t, 2] = u_w
            else:
                change_u = u_factor * change_psi
            if step.identity:
                change_psi = 0.0
            axpy2v(phi, now, next, discount, -weight[j] * change_u, g_theta, -change_u, c_theta)
            if step.traced:
                axpy2(psi, now, weight[j] * change_psi, g_w, change_psi, c_w)
                change_psi = 0.0
            change = u_factor * change_v + change_psi
            axpy2(u, u_row, weight[j] * change, g_w, change, c_w)
        count = stop - start
        for c in range(theta.shape[0]):
            mean_theta[c] += theta[c] * count / total
            g_theta[c] += count * (B_theta[c] + step.ridge * theta[c])
            B_theta[c] += c_theta[c] / n
        for c in range(w.shape[0]):
            mean_w[c] += w[c] * count / total
            g_w[c] += count * (B_w[c] + (w[c] if step.identity else 0.0))
            B_w[c] += c_w[c] / n
        theta -= step.theta * times(P_theta, g_theta)
        w -= step.w * times(P_w, g_w)
        start = stop
