"""GTD2: stochastic gradient on the saddle point, without variance reduction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from valuefit.kernels import axpy, axpyv, compiled, dot, dotv
from valuefit.problem import Problem
from valuefit.solver import State, Steps, check_decay, check_inner
from valuefit.transitions import Array


@dataclass(frozen=True)
class GTD2(Steps):
    """GTD2 on a fixed log: x -= step_j * B_t(x) with t drawn uniformly, over and over.

    theta += step_theta (v (u'w) - ridge theta), w += step_w (u delta - psi (psi'w)). Sublinear: the noise of
    single rows never dies, so steps must decay and digits get ever dearer. Prefer it for comparison with SVRG
    and SAGA, which make it linear at the same cost a step.

    decay: step_j = step / (1 + j / (decay n)), so it halves after `decay` passes; math.inf keeps it constant,
    as in the paper's experiments. inner: updates in an epoch; n if None.

    Sutton et al. 2009; Du et al. 2017, section 5.
    """

    name: ClassVar[str] = "gtd2"
    summary: ClassVar[str] = "stochastic gradient on the saddle point; sublinear"
    order: ClassVar[int] = 4

    decay: float = 10.0
    inner: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay(self.decay)
        check_inner(self.inner)

    def init(self, problem: Problem, theta: Array, w: Array) -> tuple[State, float]:
        return State(theta, w, self.choose_steps(problem)), 0.0

    def epoch(self, problem: Problem, state: State, rng: np.random.Generator) -> tuple[State, float]:
        draws = rng.integers(0, problem.n, self.inner or problem.n)
        theta, w = state.theta.copy(), state.w.copy()
        updates(
            problem.phi.kernel, problem.psi.kernel, problem.u.kernel, *problem.steps(draws), problem.reward[draws],
            theta, w, *state.steps, state.count, self.decay * problem.n, problem.ridge, problem.identity,
        )  # fmt: skip
        return replace(state, theta=theta, w=w, count=state.count + len(draws)), len(draws) / problem.n


@compiled
def updates(
    phi, psi, u, now, next, discount, u_row, u_factor, reward,
    theta, w, step_theta, step_w, count, half_life, ridge, identity,
):  # fmt: skip
    for j in range(now.shape[0]):
        slower = 1.0 + (count + j) / half_life
        delta = reward[j] - dotv(phi, now[j], next[j], discount[j], theta)
        u_w = u_factor[j] * dot(u, u_row[j], w)
        psi_w = 0.0 if identity else dot(psi, now[j], w)
        if ridge > 0.0:
            theta *= 1.0 - step_theta / slower * ridge
        if identity:
            w *= 1.0 - step_w / slower
        axpyv(phi, now[j], next[j], discount[j], step_theta / slower * u_w, theta)
        axpy(u, u_row[j], step_w / slower * delta * u_factor[j], w)
        if not identity:
            axpy(psi, now[j], -step_w / slower * psi_w, w)
