"""SAGA, Algorithm 3: single-row steps, corrected by a table of the last gradient of every row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from valuefit.problem.problem import Problem
from valuefit.problem.shuffled import Blocks, first_dots, shuffled
from valuefit.problem.theory import Theory
from valuefit.rows.kernels import axpy2, axpy2v, compiled, dot, dot2, dot2v, dotv, fetch, settle, times
from valuefit.solvers.adaptive_steps import Course, begin, on_course
from valuefit.solvers.solver import Info, State, Steps, check_block, check_inner
from valuefit.typing import Array, Gradient

STRETCH = 32  # steps after which sums in the type of the rows are added to iterates and means


@dataclass(frozen=True)
class SAGA(Steps):
    """SAGA for the saddle point (Algorithm 3).

    x -= step * (B + h_t - g_t), with h_t = B_t(x) the new gradient of the drawn row, g_t its last one and B the
    mean of the g. A gradient is a multiple of its rows, so the table keeps scalars: v't theta and psi't w, and
    u't w besides with traces. ridge * theta (and w, when C = I) are exact, outside the table. Linear convergence
    (Theorem 3). By default it steps by mini-batches and adapts its steps: on dense rows times a metric of mixed
    rows, on sparse ones in balanced coordinates. Prefer it for a fixed log that fits in memory.

    inner: updates in an epoch; n if None.
    block: more than 1 takes single-row steps in runs of so many neighbours of a shuffled copy of the rows (16 to 32 is
    enough): about twice as fast on dense rows that do not fit in cache, for twice the memory and a pass.
    """

    name: ClassVar[str] = "saga"
    summary: ClassVar[str] = "single-row steps corrected by a table of two or three scalars a step"
    order: ClassVar[int] = 3

    inner: int | None = None
    block: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_inner(self.inner)
        check_block(self.block)

    def theorem_steps(self, theory: Theory) -> tuple[float, float]:
        plan = theory.saga()
        return plan.step_theta, plan.step_w

    def init(self, problem: Problem, theta: Array, w: Array) -> tuple[State, Info]:
        table, table_mean, gradient, passes = _fresh_table(problem, theta, w)
        if self.block > 1:
            blocks = shuffled(problem, self.block)
            shuffled_table = (table[blocks.order], *table_mean, blocks)
            return State(theta, w, self.choose_steps(problem), gradient, shuffled_table), Info(passes + 1)
        if self.guarded:
            course = begin(problem, gradient, lagging=True)
            memory = Steered(table, *table_mean, theta, w, course)
            return memory.state(theta, w, gradient, passes + course.metric.cost)
        return State(theta, w, self.choose_steps(problem), gradient, (table, *table_mean)), Info(passes)

    def epoch(self, problem: Problem, state: State, rng: np.random.Generator) -> tuple[State, Info]:
        if isinstance(state.memory, Steered):
            return self._steered_epoch(problem, state, state.memory, rng)
        count = self.inner or problem.n
        theta, w = state.theta.copy(), state.w.copy()
        table, B_theta, B_w = (part.copy() for part in state.memory[:3])
        settings = (table, B_theta, B_w, theta, w, *state.steps, problem.ridge, problem.identity)
        if isinstance(state.memory[-1], Blocks):
            blocks = state.memory[-1]
            places = blocks.draw(rng, count)
            if blocks.fused:
                fused_updates(blocks.phi, places, blocks.discount, blocks.u_factor, blocks.scratch(8), *settings)
            else:
                rows = blocks.phi, blocks.psi, blocks.u
                updates(*rows, places, *blocks.steps(places), problem.trace > 0, *settings)
        else:
            draws = rng.integers(0, problem.n, count)
            rows = problem.phi.kernel, problem.psi.kernel, problem.u.kernel
            updates(*rows, draws, *problem.steps(draws), problem.trace > 0, *settings)
        gradient = (B_theta + problem.ridge * theta, B_w + w if problem.identity else B_w)
        memory = (table, B_theta, B_w, *state.memory[3:])
        return replace(state, theta=theta, w=w, gradient=gradient, memory=memory), Info(count / problem.n)

    def _steered_epoch(
        self, problem: Problem, state: State, memory: Steered, rng: np.random.Generator
    ) -> tuple[State, Info]:
        assert state.gradient is not None
        course = memory.course
        draws = course.metric.draw(rng, self.inner or problem.n)
        table, B_theta, B_w, last_theta, last_w = (part.copy() for part in memory[:5])
        theta, w = np.zeros(problem.d), np.zeros(problem.k)
        batches(
            problem.phi.kernel, problem.psi.kernel, problem.u.kernel, draws, *problem.steps(draws),
            course.metric.weight[draws], problem.trace > 0, table, B_theta, B_w, course.metric.theta, course.metric.w,
            last_theta, last_w, theta, w, course.batch(problem.d), *course.steps, problem.ridge, problem.identity,
        )  # fmt: skip
        gradient = (B_theta + problem.ridge * theta, B_w + w if problem.identity else B_w)
        cost = len(draws) / problem.n + course.products(len(draws), problem.d)
        course, kept, more = course.judge(problem, state.gradient, gradient, cost)
        if not kept:
            # that mean may have been small by chance, next to which every epoch looks bad: fill the table anew
            table, table_mean, gradient, again = _fresh_table(problem, state.theta, state.w)
            course = replace(course, merit=course.metric.merit(gradient))
            memory = Steered(table, *table_mean, state.theta, state.w, course)
            return memory.state(state.theta, state.w, gradient, cost + more + again)
        memory = Steered(table, B_theta, B_w, last_theta, last_w, course)
        return memory.state(theta, w, gradient, cost + more)


class Steered(NamedTuple):
    """What goes on: the table, its mean, and the last iterate.

    The state shows the mean iterate of the epoch: its gradient is about the table's mean, and it lies ten times
    nearer to the minimum than the last one where the noise of the steps is what is left.
    """

    table: Array
    B_theta: Array
    B_w: Array
    theta: Array
    w: Array
    course: Course

    def state(self, theta: Array, w: Array, gradient: Gradient, passes: float) -> tuple[State, Info]:
        return on_course(theta, w, gradient, self.course, passes, self)


def _fresh_table(
    problem: Problem, theta: Array, w: Array
) -> tuple[Array, tuple[Array, Array], tuple[Array, Array], float]:
    """The table with every row's gradient taken here, its mean, the full gradient, and the passes that this cost."""
    table = np.zeros((problem.n, 3 if problem.trace else 2))
    g_theta, g_w = problem.B(theta, w)
    table_mean = g_theta - problem.ridge * theta, g_w - w if problem.identity else g_w
    if not (theta.any() or w.any()):
        return table, table_mean, (g_theta, g_w), 1.0
    p, q = problem.phi.dot(theta), problem.psi.dot(w)
    table[:, 0] = p[problem.now] - problem.discount * p[problem.next]
    table[:, 1] = q[problem.now]
    if problem.trace:
        table[:, 2] = problem.u.dot(w)
    return table, table_mean, (g_theta, g_w), 2.0


@compiled
def updates(
    phi, psi, u, draws, now, next, discount, u_row, u_factor, traced,
    table, B_theta, B_w, theta, w, step_theta, step_w, ridge, identity,
):  # fmt: skip
    """Updates in the order of `draws`; table, means and iterates are changed in place.

    A step maps x to shrink * x - step * (B + change) and B to B + change / n, where `change` is a multiple of the
    row. Kept as x = scale * y + along * B, both cost O(nonzeros of the row); x is written back at the end.
    """
    n = table.shape[0]
    shrink_theta = 1.0 - step_theta * ridge
    shrink_w = 1.0 - step_w if identity else 1.0
    scale_theta, along_theta, scale_w, along_w = 1.0, 0.0, 1.0, 0.0
    for j in range(draws.shape[0]):
        ahead = min(j + 4, draws.shape[0] - 1)
        fetch(phi, now[ahead])
        fetch(phi, next[ahead])
        fetch(table, draws[ahead])
        t = draws[j]
        y_dot, B_dot = dot2v(phi, now[j], next[j], discount[j], theta, B_theta)
        v_theta = scale_theta * y_dot + along_theta * B_dot
        y_dot, B_dot = dot2(psi, now[j], w, B_w)
        psi_w = scale_w * y_dot + along_w * B_dot
        change_v, change_psi = v_theta - table[t, 0], psi_w - table[t, 1]
        table[t, 0], table[t, 1] = v_theta, psi_w
        if traced:
            y_dot, B_dot = dot2(u, u_row[j], w, B_w)
            u_w = scale_w * y_dot + along_w * B_dot
            change_u = u_w - table[t, 2]
            table[t, 2] = u_w
        else:
            change_u = u_factor[j] * change_psi
        if identity:
            change_psi = 0.0
        scale_theta *= shrink_theta
        along_theta = shrink_theta * along_theta - step_theta
        scale_w *= shrink_w
        along_w = shrink_w * along_w - step_w
        if abs(scale_theta) < 1e-100:
            settle(theta, B_theta, scale_theta, along_theta)
            scale_theta, along_theta = 1.0, 0.0
        if abs(scale_w) < 1e-100:
            settle(w, B_w, scale_w, along_w)
            scale_w, along_w = 1.0, 0.0
        by_theta = -(along_theta / n + step_theta) / scale_theta
        by_w = -(along_w / n + step_w) / scale_w
        axpy2v(phi, now[j], next[j], discount[j], -change_u * by_theta, theta, -change_u / n, B_theta)
        if traced:
            axpy2(psi, now[j], change_psi * by_w, w, change_psi / n, B_w)
            change_psi = 0.0
        change = u_factor[j] * change_v + change_psi
        axpy2(u, u_row[j], change * by_w, w, change / n, B_w)
    settle(theta, B_theta, scale_theta, along_theta)
    settle(w, B_w, scale_w, along_w)


@compiled
def fused_updates(
    rows, places, discount, u_factor, scratch, table, B_theta, B_w, theta, w, step_theta, step_w, ridge, identity
):  # fmt: skip
    """`updates` for psi = phi without traces, with both rows of a step side by side.

    One loop over the columns ends a step and takes the products of the next. Its sums are of the type of the rows,
    over a stretch of steps, from where x and B stood at its beginning: float32 then rounds what they have moved.
    """
    n = table.shape[0]
    d, width = theta.shape[0], rows.shape[1]
    number = rows.dtype.type
    shrink_theta, shrink_w = number(1.0 - step_theta * ridge), number(1.0 - step_w if identity else 1.0)
    # where the stretch began, how far it has come, by what each step moves besides the row, and step * change of B
    from_theta, by_theta, add_theta, mean_theta = scratch[0], scratch[1], scratch[2], scratch[3]
    from_w, by_w, add_w, mean_w = scratch[4], scratch[5], scratch[6], scratch[7]
    start = 0
    while start < places.shape[0]:
        stop = min(start + STRETCH, places.shape[0])
        for c in range(d):
            from_theta[c] = theta[c]
            add_theta[c] = step_theta * (B_theta[c] + ridge * theta[c])
            by_theta[c] = 0.0
            mean_theta[c] = 0.0
            from_w[c] = w[c]
            add_w[c] = step_w * (B_w[c] + (w[c] if identity else 0.0))
            by_w[c] = 0.0
            mean_w[c] = 0.0
        i = places[start]
        v_theta, psi_w = first_dots(rows[2 * i], rows[2 * i + 1], number(discount[i]), from_theta, from_w)
        for j in range(start, stop):
            ahead = places[min(j + 5, places.shape[0] - 1)]
            fetch(rows, 2 * ahead)
            fetch(rows, 2 * ahead + 1)
            i = places[j]
            now, next, gamma = rows[2 * i], rows[2 * i + 1], number(discount[i])
            change_v, change_psi = v_theta - table[i, 0], psi_w - table[i, 1]
            table[i, 0], table[i, 1] = v_theta, psi_w
            change_u = u_factor[i] * change_psi
            change = u_factor[i] * change_v + (0.0 if identity else change_psi)
            a, a_mean = number(step_theta * change_u), number(-step_theta * change_u / n)
            b, b_mean = number(-step_w * change), number(step_w * change / n)
            i = places[min(j + 1, places.shape[0] - 1)]
            now_after, next_after, gamma_after = rows[2 * i], rows[2 * i + 1], number(discount[i])
            v_theta, psi_w = number(0.0), number(0.0)
            for c in range(width):
                v = now[c] - gamma * next[c]
                moved = shrink_theta * by_theta[c] + a * v - mean_theta[c] - add_theta[c]
                by_theta[c] = moved
                mean_theta[c] += a_mean * v
                v_theta += (now_after[c] - gamma_after * next_after[c]) * (from_theta[c] + moved)
                moved = shrink_w * by_w[c] + b * now[c] - mean_w[c] - add_w[c]
                by_w[c] = moved
                mean_w[c] += b_mean * now[c]
                psi_w += now_after[c] * (from_w[c] + moved)
        for c in range(d):
            theta[c] += by_theta[c]
            B_theta[c] += mean_theta[c] / step_theta
            w[c] += by_w[c]
            B_w[c] += mean_w[c] / step_w
        start = stop


@compiled
def batches(
    phi, psi, u, draws, now, next, discount, u_row, u_factor, weight, traced, table, B_theta, B_w,
    metric_theta, metric_w, theta, w, mean_theta, mean_w, batch, step_theta, step_w, ridge, identity,
):  # fmt: skip
    """The same with `batch` rows together, times the metric; a row drawn twice in a batch counts once.

    (mean_theta, mean_w) += the mean of the iterates at which the rows were looked at.
    """
    n = table.shape[0]
    g_theta, g_w = np.empty_like(theta), np.empty_like(w)  # weighted changes, which move the iterate
    c_theta, c_w = np.empty_like(theta), np.empty_like(w)  # changes, which move the table's mean
    start = 0
    while start < draws.shape[0]:
        stop = min(start + batch, draws.shape[0])
        g_theta[:] = 0.0
        g_w[:] = 0.0
        c_theta[:] = 0.0
        c_w[:] = 0.0
        for j in range(start, stop):
            ahead = min(j + 4, draws.shape[0] - 1)
            fetch(phi, now[ahead])
            fetch(phi, next[ahead])
            fetch(table, draws[ahead])
            t = draws[j]
            v_theta = dotv(phi, now[j], next[j], discount[j], theta)
            psi_w = dot(psi, now[j], w)
            change_v, change_psi = v_theta - table[t, 0], psi_w - table[t, 1]
            table[t, 0], table[t, 1] = v_theta, psi_w
            if traced:
                u_w = dot(u, u_row[j], w)
                change_u = u_w - table[t, 2]
                table[t, 2] = u_w
            else:
                change_u = u_factor[j] * change_psi
            if identity:
                change_psi = 0.0
            axpy2v(phi, now[j], next[j], discount[j], -weight[j] * change_u, g_theta, -change_u, c_theta)
            if traced:
                axpy2(psi, now[j], weight[j] * change_psi, g_w, change_psi, c_w)
                change_psi = 0.0
            change = u_factor[j] * change_v + change_psi
            axpy2(u, u_row[j], weight[j] * change, g_w, change, c_w)
        count = stop - start
        for c in range(theta.shape[0]):
            mean_theta[c] += theta[c] * count / draws.shape[0]
            g_theta[c] += count * (B_theta[c] + ridge * theta[c])
            B_theta[c] += c_theta[c] / n
        for c in range(w.shape[0]):
            mean_w[c] += w[c] * count / draws.shape[0]
            g_w[c] += count * (B_w[c] + (w[c] if identity else 0.0))
            B_w[c] += c_w[c] / n
        theta -= step_theta * times(metric_theta, g_theta)
        w -= step_w * times(metric_w, g_w)
        start = stop
