"""Auto: the solver that a cost model expects to be the fastest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NoReturn

import numpy as np

from valuefit.problem.problem import Problem
from valuefit.solvers.solver import Solver, State
from valuefit.typing import Array


@dataclass(frozen=True)
class Auto(Solver):
    """Whichever solver should be the fastest here, and the next one should it fail.

    The choice depends on nothing but the problem (steps, features, nonzeros, distinct rows, ridge, dtype), the gap
    asked for and the memory at hand, so it is the same every time; `valuefit.engine.choice.rank` makes it, and the
    result's message says it in a sentence.

    memory: bytes that may be used; half of the machine's if None.
    """

    name: ClassVar[str] = "auto"
    summary: ClassVar[str] = "whichever of these should be the fastest here"
    order: ClassVar[int] = -1

    memory: int | None = None

    def init(self, problem: Problem, theta: Array, w: Array) -> NoReturn:
        raise TypeError("'auto' stands for another solver: solve with it, or ask engine.choice.rank which one.")

    def epoch(self, problem: Problem, state: State, rng: np.random.Generator) -> NoReturn:
        raise TypeError("'auto' stands for another solver: solve with it, or ask engine.choice.rank which one.")
