"""The history of a solve: the residual after each epoch, the true gap where a reference is given, and callbacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from valuefit.engine.budget import Budget
from valuefit.engine.result import HISTORY_COLUMNS
from valuefit.problem.saddle_point import SaddlePoint
from valuefit.solvers.solver import Info, State
from valuefit.typing import Array, Gradient


@dataclass(frozen=True)
class Progress:
    """What a callback receives after each epoch; `gap` is known only with a reference."""

    passes: float
    seconds: float
    residual: float
    gap: float | None
    theta: Array


class StoppedByCallback(Exception):
    """A callback returned True."""


class History:
    """Records |B(theta, w)| / |b| (|B| at the start where b = 0), and reports it to the callback.

    true_gap: theta -> its gap, where a reference is given. `residual` is the last one recorded and `current` says
    whether it belongs to the present iterate.
    """

    def __init__(
        self,
        problem: SaddlePoint,
        budget: Budget,
        true_gap: Callable[[Array], float] | None,
        callback: Callable[[Progress], Any] | None,
    ) -> None:
        self.problem, self.budget, self.true_gap, self.callback = problem, budget, true_gap, callback
        self.residual, self.current = 1.0, False
        self._scale: float | None = None  # known once b is, which LSTD forms together with A
        self._next_gradient = 1.0  # passes at which the gradient is computed for a method that has none
        self._rows: list[tuple[float, ...]] = []

    def gradient(self, state: State, info: Info) -> Gradient | None:
        """B(theta, w): the solver's own, or computed: after every epoch with a reference, else now and then."""
        if state.gradient is not None:
            return state.gradient
        if self.true_gap is not None:
            with self.budget.paused():
                return self.problem.B(state.theta, state.w)
        if self.budget.passes < self._next_gradient and not info.finished:
            self.current = False
            return None
        self.budget.passes += 1
        # a method that has no gradients pays at most a fifth of its passes for them
        self._next_gradient = 1.25 * self.budget.passes + 1
        return self.problem.B(state.theta, state.w)

    def record(self, theta: Array, gradient: Gradient) -> None:
        """Append a row, and call the callback."""
        norm = float(np.linalg.norm(np.concatenate(gradient)))
        if self._scale is None:
            self._scale = float(np.linalg.norm(self.problem.b)) or norm
        self.residual, self.current = norm / self._scale if norm else 0.0, True
        row, gap = (self.budget.passes, self.budget.seconds, self.residual), None
        if self.true_gap is not None:
            with self.budget.paused():
                gap = self.true_gap(theta)
        self._rows.append(row if gap is None else (*row, gap))
        if self.callback is not None and self.callback(Progress(*row, gap, theta)):
            raise StoppedByCallback

    @property
    def squared_residual(self) -> float:
        """residual^2, infinite where that overflows: ** would raise OverflowError."""
        return self.residual * self.residual

    def table(self) -> Array:
        """A structured array with the columns passes, seconds, residual and, with a reference, gap."""
        columns = HISTORY_COLUMNS[: 3 if self.true_gap is None else 4]
        return np.array(self._rows, dtype=[(name, "f8") for name in columns])
