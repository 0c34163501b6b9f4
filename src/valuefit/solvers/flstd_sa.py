"""fLSTD-SA: TD(0) steps on rows drawn at random from the log, the paper's "TD"."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from valuefit.problem.problem import Problem
from valuefit.rows.kernels import axpy2, compiled, dotv
from valuefit.solvers.solver import FIXED_POINT, FixedPoint, Info, State, check_choice, check_count, check_decay
from valuefit.typing import Array


@dataclass(frozen=True)
class FLSTDSA(FixedPoint):
    """Stochastic approximation of LSTD: theta += step_j u (r - v'theta), t drawn uniformly from the log.

    It converges to A theta = b, sublinearly because of the noise of single rows. Off-policy, A may have eigenvalues
    in the left half plane, where it diverges (Baird's star). Prefer it as a baseline.

    step, decay: step_j = step / (1 + j / (decay n)). averaging: return the mean of all iterates
    (Polyak-Ruppert), which is optimal for slow decays. inner: updates in an epoch; n if None.

    Prashanth, Korda and Munos 2014.
    """

    name: ClassVar[str] = "flstd-sa"
    summary: ClassVar[str] = "TD steps on rows drawn from the log (the paper's TD); sublinear"
    order: ClassVar[int] = 6
    refusals: ClassVar[dict[str, str]] = FIXED_POINT

    decay: float = 10.0
    averaging: bool = False
    inner: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay(self)
        check_count(self, "inner")
        check_choice(self, "averaging", False, True)

    def init(self, problem: Problem, theta: Array, w: Array) -> tuple[State, Info]:
        memory = (theta, np.zeros(problem.d), 0)
        return State(theta, np.zeros(problem.k), self.choose_step(problem), memory=memory), Info(0.0)

    def epoch(self, problem: Problem, state: State, rng: np.random.Generator) -> tuple[State, Info]:
        draws = rng.integers(0, problem.n, self.inner or problem.n)
        theta, weighted, before = state.memory[0].copy(), state.memory[1].copy(), state.memory[2]
        updates(
            problem.row_sets, problem.steps(draws), problem.reward[draws], theta, weighted, state.steps[0], before,
            self.decay * problem.n,
        )  # fmt: skip
        count = before + len(draws)
        answer = theta - weighted / count if self.averaging else theta
        return replace(state, theta=answer, memory=(theta, weighted, count)), Info(len(draws) / problem.n)


@compiled
def updates(rows, draws, reward, theta, weighted, step, count, half_life):
    """TD steps; `weighted` sums j * (change j), so that the mean of the iterates is theta - weighted / count."""
    for j in range(reward.shape[0]):
        delta = reward[j] - dotv(rows.phi, draws.now[j], draws.next[j], draws.discount[j], theta)
        change = step / (1.0 + (count + j) / half_life) * delta * draws.u_factor[j]
        axpy2(rows.u, draws.u_row[j], change, theta, change * (count + j), weighted)
