"""Auto: the solver that the cost model predicts to be fastest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from valuefit.solvers.solver import Solver, check_count


@dataclass(frozen=True)
class Auto(Solver):
    """The solver that is predicted to be fastest; if it fails, the next one.

    The choice depends only on the problem (steps, features, nonzeros, distinct rows, ridge, dtype), the requested
    gap and the available memory, so it is reproducible. `valuefit.engine.choice.rank` makes it, and the result's
    message explains it in a sentence.

    memory: bytes that may be used; half of the machine's memory if None.
    """

    name: ClassVar[str] = "auto"
    summary: ClassVar[str] = "the solver that is predicted to be fastest for the problem"
    order: ClassVar[int] = -1

    memory: int | None = None

    def __post_init__(self) -> None:
        check_count(self, "memory")

    def init(self, *_: Any) -> NoReturn:
        raise TypeError("'auto' only selects a solver: pass it to solve, or call engine.choice.rank for the selection.")

    def epoch(self, *_: Any) -> NoReturn:
        self.init()
