"""The guard against divergence: detects a gradient that blew up, and goes back to the best iterate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from valuefit.problem.saddle_point import SaddlePoint
from valuefit.solvers.solver import FixedPoint, Solver, State, Steps
from valuefit.typing import Gradient


class DivergenceGuard:
    """Keeps the best iterate, and retries from there with shorter steps where the steps are automatic.

    Gradients are compared by step_theta |g_theta|^2 + step_w |g_w|^2 with the first steps, so that both parts have
    one unit. Values below a thousandth of the first are noise around the minimum and count as equal.
    """

    def __init__(self, problem: SaddlePoint, solver: Solver, start: State) -> None:
        self.problem, self.solver = problem, solver
        self.best, self.retries = start, 0
        self._steps = start.steps
        self._best_merit = np.inf
        self._noise: float | None = None

    def accepts(self, state: State, gradient: Gradient | None) -> bool:
        """Whether the iterate is finite and its gradient, where known, has not blown up."""
        if not (np.isfinite(state.theta).all() and np.isfinite(state.w).all()):
            return False
        if gradient is None:
            return True
        merit = self._merit(gradient)
        if self._noise is None:
            self._noise = 1e-3 * max(merit, self._merit((np.zeros(0), self.problem.b)))
        if merit == np.inf or not merit <= 1e6 * max(self._best_merit, self._noise):
            return False
        if merit <= self._best_merit:
            self.best, self._best_merit = state, merit
        return True

    def retry(self, steps: tuple[float, float]) -> State | None:
        """The best iterate with shorter steps; None where the user gave the steps, or after many retries."""
        if not self.solver.guarded or self.retries == 12:  # steps are then 2e7 times shorter
            return None
        self.retries += 1
        return replace(self.best, steps=(steps[0] / 4, steps[1] / 4))

    def message(self, steps: tuple[float, float]) -> str:
        """What happened, at which steps, and what to do."""
        used = " and ".join(f"{step:.1e}" for step in steps if step > 0)
        remedy = "Give smaller steps, or none."
        if isinstance(self.solver, FixedPoint) and self.solver.guarded:
            remedy = "This method can diverge off-policy; use 'svrg' or 'saga'."
        elif self.solver.guarded or not isinstance(self.solver, FixedPoint | Steps):
            remedy = "Numbers grew out of range: rescale rewards and features."
        return f"{self.solver.name} diverged at steps {used}; this is the best iterate before. {remedy}"

    def better(self, state: State) -> State:
        """This iterate, or the best one where this is far worse, as an interrupted epoch may leave it."""
        if state.gradient is not None and self._merit(state.gradient) > 100 * self._best_merit:
            return self.best
        return state

    def _merit(self, gradient: Gradient) -> float:
        of_theta, of_w = (float(part @ part) for part in gradient)
        value = self._steps[0] * of_theta + (self._steps[1] or self._steps[0]) * of_w
        return value if np.isfinite(value) else np.inf
