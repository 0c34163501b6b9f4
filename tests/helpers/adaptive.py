"""Runs of solvers with adaptive step sizes, epoch by epoch."""

from __future__ import annotations

import numpy as np

import valuefit as vf
from valuefit.precondition.diagonal_preconditioner import DiagonalPlusRankTwo
from valuefit.solvers.adaptive_steps import StepController
from valuefit.solvers.solver import State

ADAPTIVE = ["pdbg", "svrg", "saga"]
SOLVERS = {name: vf.solvers.find(name) for name in ADAPTIVE}


def controller_of(state: State) -> StepController:
    """The step controller in the memory of a solver."""
    controller = state.memory[-1] if isinstance(state.memory, tuple) else state.memory
    assert isinstance(controller, StepController)
    return controller


def zeros(problem: vf.Problem) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(problem.d), np.zeros(problem.k)


def run(name: str, problem: vf.Problem, state: State, epochs: int) -> tuple[State, list[float]]:
    """The state after so many epochs, and the passes of each epoch."""
    rng, costs = np.random.default_rng(0), []
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(epochs):
            state, info = SOLVERS[name].epoch(problem, state, rng)
            costs.append(info.passes)
    return state, costs


def matrix_of(balanced: DiagonalPlusRankTwo) -> np.ndarray:
    """The preconditioner as a dense matrix."""
    return np.diag(balanced.scale) + balanced.sides @ balanced.core @ balanced.sides.T
