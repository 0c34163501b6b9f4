"""What a solver is: frozen settings, `init` and `epoch`. Clock, budget and tolerance belong to `solve`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from valuefit.problem.problem import Problem
from valuefit.problem.saddle_preconditioner import Preconditioner
from valuefit.problem.theory import Theory
from valuefit.typing import Array, Gradient


@dataclass(frozen=True)
class State:
    """What the next epoch starts from. Arrays are never changed in place, so any state can be returned to."""

    theta: Array
    w: Array
    steps: tuple[float, float] = (1.0, 1.0)
    gradient: Gradient | None = None  # B(theta, w), where the method computes it anyway
    memory: Any = None  # what else the method keeps


class Info(NamedTuple):
    """What `init` or an epoch reports to the loop."""

    passes: float  # what it cost
    gap: float | None = None  # an upper bound, where the method itself certifies one
    objective: float | None = None  # F(theta), likewise
    finished: bool = False  # another epoch would change nothing
    moments: bool = False  # whether A and C were formed on the way, and counted
    whitening: Preconditioner | None = None  # of C, likewise
    note: str = ""  # for the message of the result


class StepSizes(NamedTuple):
    """What kernels need to know of a step: the two sizes, the ridge, and whether C is the identity."""

    theta: float
    w: float
    ridge: float
    identity: bool


class Solver(ABC):
    """Base of all solvers: subclasses are frozen dataclasses of hyper-parameters."""

    name: ClassVar[str]
    summary: ClassVar[str]
    order: ClassVar[int] = 9  # where it stands in lists
    # trait of the problem -> why this method cannot have it (see Problem.traits)
    refusals: ClassVar[dict[str, str]] = {}
    fallback: ClassVar[str | None] = None  # the solver that `solve` goes on with where this one gives up

    @abstractmethod
    def init(self, problem: Problem, theta: Array, w: Array) -> tuple[State, Info]:
        """The state at the starting point."""

    @abstractmethod
    def epoch(self, problem: Problem, state: State, rng: np.random.Generator) -> tuple[State, Info]:
        """The state one epoch later."""

    @property
    def guarded(self) -> bool:
        """Whether `solve` may shorten the steps when they diverge: not those that a user gave."""
        return False


def settings(solver: Solver) -> dict[str, Any]:
    """The hyper-parameters as plain data; infinity, which JSON lacks, as a word."""
    plain = {}
    for field in fields(solver):  # type: ignore[arg-type]
        value = getattr(solver, field.name)
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, Solver):
            value = {"name": value.name, **settings(value)}
        plain[field.name] = "inf" if value == math.inf else value
    return plain


@dataclass(frozen=True)
class Steps(Solver):
    """Two step sizes, shared by the primal-dual methods.

    step_theta, step_w: used as given, on single raw rows. Where both are None, `steps="auto"` adapts them while
    running: on dense rows in a metric of mixed rows (`metric.py`, `steering.py`), on sparse ones in balanced
    coordinates (`balance.py`), and so where steps are fewer than twice the features. `steps="theorem"`: those of the
    theorem.
    """

    step_theta: float | None = None
    step_w: float | None = None
    steps: Literal["auto", "theorem"] = "auto"

    def __post_init__(self) -> None:
        for name in ("step_theta", "step_w"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} is {value}; a step size must be a positive number.")
        if self.steps not in ("auto", "theorem"):
            raise ValueError(f'steps is {self.steps!r}; it must be "auto" or "theorem".')

    @property
    def guarded(self) -> bool:
        return self.steps == "auto" and self.step_theta is None and self.step_w is None

    def choose_steps(self, problem: Problem) -> tuple[float, float]:
        theta, w = self.step_theta, self.step_w
        if theta is None or w is None:
            found = self.auto_steps(problem) if self.steps == "auto" else self.theorem_steps(Theory(problem))
            theta, w = found[0] if theta is None else theta, found[1] if w is None else w
        return theta, w

    def auto_steps(self, problem: Problem) -> tuple[float, float]:
        return row_steps(problem)

    def theorem_steps(self, theory: Theory) -> tuple[float, float]:
        raise ValueError(f'{self.name} has no theorem with step sizes in the paper; use steps="auto" or give them.')


def row_steps(problem: Problem) -> tuple[float, float]:
    """0.25 / max |v|^2 and 0.5 / max |psi|^2, for methods that move by single rows; ratios and traces weigh in."""
    psi = float(problem.psi_squared.max())
    dual = 1.0 if problem.identity else psi
    if problem.identity or psi == 0:
        strength = problem.u_squared
    else:
        strength = np.maximum(problem.ratio**2, problem.u_squared / psi)
    primal = float((problem.v_squared * strength).max())
    return inverse(4 * primal + problem.ridge), inverse(2 * dual)


def inverse(value: float) -> float:
    """1 / value, or 1 where there is nothing to scale by."""
    return 1 / value if value > 0 else 1.0


SQUARE = "it needs as many dual features as features, for it adds rows of u to theta."
FIXED_POINT = "its fixed point A theta = b is not the minimiser when ridge > 0."


@dataclass(frozen=True)
class FixedPoint(Solver):
    """One step size, shared by the methods that seek A theta = b without dual weights.

    step: used as given; where None, 0.5 / max |u||v|, shortened by `solve` should it diverge.
    """

    step: float | None = None

    def __post_init__(self) -> None:
        if self.step is not None and not (math.isfinite(self.step) and self.step > 0):
            raise ValueError(f"step is {self.step}; a step size must be a positive number.")

    @property
    def guarded(self) -> bool:
        return self.step is None

    def choose_step(self, problem: Problem) -> tuple[float, float]:
        if self.step is not None:
            return self.step, 0.0
        return inverse(2 * math.sqrt(float((problem.u_squared * problem.v_squared).max()))), 0.0


def check_inner(inner: int | None) -> None:
    """The number of updates in an epoch."""
    if inner is not None and (inner < 1 or inner != int(inner)):
        raise ValueError(f"inner is {inner}; it must be at least 1, and a whole number.")


def check_block(block: int) -> None:
    """The number of neighbouring rows that one draw brings."""
    if block < 1 or block != int(block):
        raise ValueError(f"block is {block}; it must be at least 1 (rows drawn one by one), and a whole number.")


def check_decay(decay: float) -> None:
    """Passes after which a step has halved."""
    if not decay > 0:
        raise ValueError(f"decay is {decay}; it is a number of passes, more than 0 (math.inf for constant steps).")
