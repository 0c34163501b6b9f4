"""Stochastic steps without variance reduction that return the mean of the iterates, shared by GTD2 and TDC."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from valuefit.problem.problem import Problem
from valuefit.solvers.solver import Info, State, Steps, StepSizes, check_decay, check_inner
from valuefit.typing import Array

DEFAULT_DECAY = 10.0  # passes after which given steps have halved
MEAN_INTERVAL = 8  # updates between averaged iterates, for dense rows: adding one costs as much as half an update


@dataclass(frozen=True)
class AveragedSteps(Steps):
    """Single-row steps along B_t(x), t drawn at random.

    By default steps are constant, 0.25 / max |v|^2 and 0.5 / max |psi|^2 (`solve` shortens them if they diverge),
    and the answer is the mean of the iterates, those of the k-th epoch with weight k (Lacoste-Julien, Schmidt and
    Bach 2012). With given steps or `decay`, the answer is the last iterate.

    decay: step_j = step / (1 + j / (decay n)), so steps halve after `decay` passes; math.inf keeps them constant, as
    in the paper's experiments. None means 10 for given steps. inner: updates in an epoch; n if None.
    """

    decay: float | None = None
    inner: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decay is not None:
            check_decay(self.decay)
        check_inner(self.inner)

    def init(self, problem: Problem, theta: Array, w: Array) -> tuple[State, Info]:
        return State(theta, w, self.choose_steps(problem), memory=Iterate(theta, w)), Info(0.0)

    def epoch(self, problem: Problem, state: State, rng: np.random.Generator) -> tuple[State, Info]:
        memory: Iterate = state.memory
        averaged = self.guarded and self.decay is None
        decay = np.inf if averaged else DEFAULT_DECAY if self.decay is None else self.decay
        draws = rng.integers(0, problem.n, self.inner or problem.n)
        theta, w, mean_theta, mean_w = memory.theta.copy(), memory.w.copy(), np.zeros(problem.d), np.zeros(problem.k)
        interval = int(np.ceil(MEAN_INTERVAL * problem.d * problem.phi.shape[0] / max(problem.phi.stored, 1)))
        self.run(
            problem.row_sets, problem.steps(draws), problem.reward[draws], theta, w, mean_theta, mean_w,
            min(interval, len(draws)) if averaged else len(draws) + 1, memory.updates, decay * problem.n,
            StepSizes(*state.steps, problem.ridge, problem.identity),
        )  # fmt: skip
        memory = Iterate(theta, w, memory.updates + len(draws), memory.epochs + 1)
        if averaged:
            weight = 2 / (memory.epochs + 1)  # of epoch k among epochs 1 to k with weights 1 to k
            theta, w = state.theta + weight * (mean_theta - state.theta), state.w + weight * (mean_w - state.w)
        return replace(state, theta=theta, w=w, memory=memory), Info(len(draws) / problem.n)

    @abstractmethod
    def run(self, *arguments: Any) -> None:
        """Call the kernel, which updates theta and w in place and averages every `interval`-th iterate."""


class Iterate(NamedTuple):
    """The last iterate, kept because the state holds the mean, and the updates and epochs done."""

    theta: Array
    w: Array
    updates: int = 0
    epochs: int = 0
