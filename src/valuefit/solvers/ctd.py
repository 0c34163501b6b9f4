"""CTD: TD with variance reduction by a snapshot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from valuefit.problem.problem import Problem
from valuefit.rows.draws import at
from valuefit.rows.kernels import axpy2, compiled, dot2v
from valuefit.solvers.solver import FIXED_POINT, FixedPoint, Info, State, check_choice, check_count
from valuefit.typing import Array


@dataclass(frozen=True)
class CTD(FixedPoint):
    """Centred TD: variance reduction as in SVRG, applied to the TD equation A theta = b instead of the saddle point.

    theta += step (f_t(theta) - f_t(snapshot) + mean f(snapshot)) with f_t(theta) = u (r - v'theta), N times; the
    next snapshot is the mean of these iterates. Convergence is linear where the eigenvalues of A lie in the right
    half plane, at a rate that depends on kappa(A) only; off-policy it can diverge. Prefer it on-policy when only
    theta is needed.

    inner: N; n if None. averaging: False takes the last iterate as the next snapshot.

    Korda and Prashanth 2015.
    """

    name: ClassVar[str] = "ctd"
    summary: ClassVar[str] = "TD with variance reduction by a snapshot; linear on-policy"
    order: ClassVar[int] = 7
    refusals: ClassVar[dict[str, str]] = FIXED_POINT

    inner: int | None = None
    averaging: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self, "inner")
        check_choice(self, "averaging", False, True)

    def init(self, problem: Problem, theta: Array, w: Array) -> tuple[State, Info]:
        gradient = (np.zeros(problem.d), -problem.residual(theta))
        return State(theta, np.zeros(problem.k), self.choose_step(problem), gradient), Info(1.0)

    def epoch(self, problem: Problem, state: State, rng: np.random.Generator) -> tuple[State, Info]:
        assert state.gradient is not None
        draws = rng.integers(0, problem.n, self.inner or problem.n)
        deviation, weighted = np.zeros(problem.d), np.zeros(problem.d)
        residual = -state.gradient[1]
        step, count = state.steps[0], len(draws)
        inner_loop(problem.row_sets, problem.steps(draws), residual, deviation, weighted, step)
        # x_j = y_j + j step residual, so the mean over j = 1..N is y_N - weighted / N + (N + 1)/2 step residual
        if self.averaging:
            deviation = deviation - weighted / count + 0.5 * (count + 1) * step * residual
        else:
            deviation = deviation + count * step * residual
        theta = state.theta + deviation
        gradient = (np.zeros(problem.d), -problem.residual(theta))
        return replace(state, theta=theta, gradient=gradient), Info(1 + count / problem.n)


@compiled
def inner_loop(rows, draws, residual, y, weighted, step):
    """Deviations from the snapshot as y + j * step * residual; `weighted` sums j * (change j) for their mean."""
    for j in range(draws.now.shape[0]):
        now, next, discount, u_row, u_factor = at(draws, j)
        y_dot, r_dot = dot2v(rows.phi, now, next, discount, y, residual)
        change = -step * u_factor * (y_dot + j * step * r_dot)
        axpy2(rows.u, u_row, change, y, change * j, weighted)
