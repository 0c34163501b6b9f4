"""iLSTD: coordinate steps on the LSTD system, which grows with each step of the log."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from valuefit.memory import require_memory
from valuefit.problem.problem import Problem
from valuefit.rows.kernels import compiled, dotv
from valuefit.solvers.in_order import LogInOrder, read_step
from valuefit.solvers.solver import FIXED_POINT, FixedPoint, Info, State, check_count, inverse
from valuefit.typing import Array


@dataclass(frozen=True)
class ILSTD(FixedPoint):
    """Incremental LSTD: after each step of the log, change the few weights whose residual is largest.

    It keeps the sums A and mu = b - A theta over the steps read so far. After each step, `dimensions` times:
    j = argmax |mu_j|, theta_j += step/t mu_j, mu -= step/t mu_j A_.j. The first epoch reads the log in order, later
    epochs only change weights. O(nonzeros + dimensions d) a step. Prefer it for streams of sparse features.

    step: None takes 1 / (an upper bound of max_j mean |u_j v_j|). dimensions: weights changed after each step.

    Geramifard, Bowling and Sutton 2006; with traces, Geramifard et al. 2007.
    """

    name: ClassVar[str] = "ilstd"
    summary: ClassVar[str] = "changes the weight with the largest residual after each step of the log"
    order: ClassVar[int] = 9
    refusals: ClassVar[dict[str, str]] = FIXED_POINT

    dimensions: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self, "dimensions")

    def choose_step(self, problem: Problem) -> tuple[float, float]:
        if self.step is not None:
            return self.step, 0.0
        _, _, _, row, factor = problem.steps(np.arange(problem.n))
        u_weights = np.bincount(row, factor**2, problem.u.shape[0])
        v_weights = problem.visits + np.bincount(problem.next, problem.discount**2, problem.phi.shape[0])
        mean_u_squares = problem.u.column_squares(u_weights) / problem.n
        mean_v_squares = 2 * problem.phi.column_squares(v_weights) / problem.n  # an upper bound
        return inverse(float(np.sqrt(mean_u_squares * mean_v_squares).max())), 0.0

    def init(self, problem: Problem, theta: Array, w: Array) -> tuple[State, Info]:
        require_memory(problem.d**2, f"The {problem.d} x {problem.d} matrix of iLSTD", "Use 'svrg' or 'saga'.")
        return State(theta, np.zeros(problem.k), self.choose_step(problem)), Info(1.0)

    def epoch(self, problem: Problem, state: State, rng: np.random.Generator) -> tuple[State, Info]:
        theta = state.theta.copy()
        if state.memory is None:
            A, mu = np.zeros((problem.d, problem.d)), np.zeros(problem.d)
            read_log(LogInOrder.of(problem), problem.reward, A, mu, theta, state.steps[0], self.dimensions)
        else:
            A, mu = state.memory[0], state.memory[1].copy()
            for _ in range(problem.n):
                coordinate_steps(A, mu, theta, state.steps[0] / problem.n, self.dimensions)
        gradient = (np.zeros(problem.d), -mu / problem.n)  # mu is n (b - A theta)
        row_numbers = max(1.0, problem.phi.stored / problem.phi.shape[0])
        step_passes = max(1.0, self.dimensions * problem.d / (2 * row_numbers))
        read_passes = problem.cost.flops(4 * problem.n * row_numbers * problem.d) if state.memory is None else 0.0
        return replace(state, theta=theta, memory=(A, mu), gradient=gradient), Info(step_passes + read_passes)


@compiled
def coordinate_steps(A, mu, theta, step, dimensions):
    """`dimensions` times, change the weight with the largest |mu_j|; A holds the transpose of sum u v'."""
    for _ in range(dimensions):
        j = 0
        for c in range(mu.shape[0]):
            if abs(mu[c]) > abs(mu[j]):
                j = c
        change = step * mu[j]
        theta[j] += change
        for c in range(mu.shape[0]):
            mu[c] -= change * A[j, c]


@compiled
def read_log(log, reward, A, mu, theta, step, dimensions):
    """One pass over the log in order; A holds the transpose of sum u v', so that columns of the sum are contiguous."""
    u, v = np.zeros(mu.shape[0]), np.zeros(theta.shape[0])
    for t in range(reward.shape[0]):
        read_step(log, t, u, v)
        delta = reward[t] - dotv(log.phi, log.now[t], log.next[t], log.discount[t], theta)
        for i in range(v.shape[0]):
            if v[i] != 0.0:
                for c in range(u.shape[0]):
                    A[i, c] += v[i] * u[c]
        for c in range(u.shape[0]):
            mu[c] += delta * u[c]
        coordinate_steps(A, mu, theta, step / (t + 1), dimensions)
