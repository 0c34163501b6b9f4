"""The interface of solvers: frozen settings, `init` and `epoch`. `solve` owns the clock, the budget and stopping."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from valuefit.data.validation import MAX_INT32, number, whole_number
from valuefit.messages import shown
from valuefit.precondition.preconditioner import Preconditioner
from valuefit.problem.problem import Problem
from valuefit.problem.saddle_point import SaddlePoint
from valuefit.problem.theory import Theory
from valuefit.typing import Array, Gradient

ROUNDING_GAP = 1e-14  # a finished method with a gap below this is exact but for rounding
# `refusals` of several methods
SINGLE_ROWS = dict.fromkeys(
    ("shards", "device"), "it steps through single rows, which must be in the memory of the processor."
)
SQUARE_A = {"more dual features": "it needs as many dual features as features, because it adds rows of u to theta."}
FIXED_POINT = {**SQUARE_A, "ridge": "its fixed point A theta = b is not the minimiser when ridge > 0.", **SINGLE_ROWS}


@dataclass(frozen=True)
class State:
    """The start of the next epoch. Arrays are never changed in place, so `solve` can return to an earlier state."""

    theta: Array
    w: Array
    steps: tuple[float, float] = (1.0, 1.0)
    gradient: Gradient | None = None  # B(theta, w), if the method computes it
    memory: Any = None  # other data of the method


class Info(NamedTuple):
    """What `init` or `epoch` reports to `solve`."""

    passes: float  # cost
    gap: float | None = None  # an upper bound, if the method certifies one
    objective: float | None = None  # F(theta), if the method computes it
    finished: bool = False  # whether another epoch would change nothing
    moments: bool = False  # whether A and C were formed, and counted in `passes`
    preconditioner: Preconditioner | None = None  # of C, if one was computed and counted in `passes`
    note: str = ""  # for the message of the result
    provisional: bool = False  # whether `verify` must confirm `gap` before "converged"
    loose: bool = False  # whether `verify` finds a smaller `gap`, where this one is too large to stop


class Estimate(NamedTuple):
    """Predicted seconds of a solve, and bytes of memory beyond the rows. moments: of the seconds, those for A or C."""

    seconds: float
    bytes: float
    moments: float = 0.0


class StepSizes(NamedTuple):
    """Settings of kernels: the two step sizes, the ridge, whether C is the identity, and whether there are traces."""

    theta: float
    w: float
    ridge: float
    identity: bool
    traced: bool

    @classmethod
    def of(cls, problem: SaddlePoint, steps: tuple[float, float]) -> StepSizes:
        return cls(*steps, problem.ridge, problem.identity, problem.trace > 0)


@dataclass(frozen=True)
class Solver(ABC):
    """Base of all solvers: subclasses are frozen dataclasses of hyper-parameters.

    A problem is a `SaddlePoint`; methods that step through single rows refuse shards or devices, and get a `Problem`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    order: ClassVar[int] = 9  # position in lists of solvers
    # trait of a problem (see Problem.traits) -> why this method does not support it
    refusals: ClassVar[dict[str, str]] = {}
    fallback: ClassVar[str | None] = None  # the solver that `solve` goes on with where this one gives up

    @abstractmethod
    def init(self, problem: Any, theta: Array, w: Array) -> tuple[State, Info]:
        """The state at the starting point."""

    @abstractmethod
    def epoch(self, problem: Any, state: State, rng: np.random.Generator) -> tuple[State, Info]:
        """The state after one epoch."""

    def verify(self, problem: Any, state: State) -> tuple[State, Info]:
        """The state with a gap that is neither provisional nor loose; only for methods that report such ones."""
        raise NotImplementedError

    def cost(self, problem: Any, gap: float) -> Estimate | None:
        """The estimate by which `solver="auto"` chooses; None for methods that it does not consider."""
        return None

    @property
    def guarded(self) -> bool:
        """Whether `solve` may shorten the steps when they diverge; False where the user gave them."""
        return False


def settings(solver: Solver) -> dict[str, Any]:
    """The hyper-parameters as plain data, with "inf" for infinity, which JSON lacks, and functions by name."""
    values = {}
    for field in fields(solver):
        value = getattr(solver, field.name)
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, Solver):
            value = {"name": value.name, **settings(value)}
        elif callable(value):
            value = getattr(value, "__name__", type(value).__name__)
        values[field.name] = "inf" if value == math.inf else value
    return values


@dataclass(frozen=True)
class Steps(Solver):
    """Two step sizes, shared by the primal-dual methods.

    step_theta, step_w: used as given, without preconditioner. Where both are None, `steps="auto"` chooses them.
    PDBG, SVRG and SAGA then adapt them while running, with a preconditioner from sketched rows, or a diagonal
    preconditioner where rows are sparse, steps are fewer than twice the features, or d x d matrices do not fit into
    memory. GTD2 and TDC use constant steps. `steps="theorem"`: the step sizes of the paper's theorem.
    """

    step_theta: float | None = None
    step_w: float | None = None
    steps: Literal["auto", "theorem"] = "auto"

    def __post_init__(self) -> None:
        check_step(self, "step_theta")
        check_step(self, "step_w")
        check_choice(self, "steps", "auto", "theorem")

    @property
    def guarded(self) -> bool:
        return self.steps == "auto" and self.step_theta is None and self.step_w is None

    def choose_steps(self, problem: Any) -> tuple[float, float]:
        theta, w = self.step_theta, self.step_w
        if theta is None or w is None:
            chosen = self.auto_steps(problem) if self.steps == "auto" else self._theorem_steps(problem)
            theta, w = chosen[0] if theta is None else theta, chosen[1] if w is None else w
        return theta, w

    def _theorem_steps(self, problem: Any) -> tuple[float, float]:
        try:
            return self.theorem_steps(Theory(problem))
        except (OverflowError, ZeroDivisionError):
            raise ValueError(
                'The step sizes of the theorem leave the range of float64. Rescale the features, or use steps="auto".'
            ) from None

    def auto_steps(self, problem: Any) -> tuple[float, float]:
        return row_steps(problem)

    def theorem_steps(self, theory: Theory) -> tuple[float, float]:
        raise ValueError(
            f'{self.name} has no theorem with step sizes in the paper; use steps="auto", or give step_theta and step_w.'
        )


def relative_work(gap: float) -> float:
    """Iterations of a linearly convergent method to this gap, relative to those to a gap of 1e-6."""
    return max(1.0, -math.log10(max(gap, 1e-16))) / 6


def wide_factor(columns: int) -> float:
    """Seconds with so many sparse columns, relative to those that passes predict, which were measured with few.

    With more than 10,000 columns, weights leave the cache and factors of C, or the conjugate gradients in their place,
    take longer than passes. Predicted and measured seconds of krylov (benchmarks/why.md, benchmarks/notes.md): tiles
    (1e6, 1e5) 12 and 14, hashed tiles (1e5, 1e5) 2.4 and 2.5, (1e6, 1e6) 51 and 54.
    """
    return float(max(1.0, columns / 10_000) ** 0.4)


def row_steps(problem: SaddlePoint) -> tuple[float, float]:
    """Steps for single-row methods: 0.25 / max |v|^2, less with large ratios and traces, and 0.5 / max |psi|^2."""
    if not isinstance(problem, Problem):
        raise ValueError(
            "The steps of single rows are chosen by the norms of all rows, which need them in memory. Give step_theta "
            "and step_w, or neither, or load the log into memory."
        )
    psi = float(problem.psi_squared.max())
    dual = 1.0 if problem.identity else psi
    if problem.identity or psi == 0:
        u_scale = problem.u_squared
    else:
        u_scale = np.maximum(problem.ratio**2, problem.u_squared / psi)
    primal = float((problem.v_squared * u_scale).max())
    return inverse(4 * primal + problem.ridge), inverse(2 * dual)


def inverse(value: float) -> float:
    """1 / value, or 1 for value 0 (all features are zero)."""
    return 1 / value if value > 0 else 1.0


@dataclass(frozen=True)
class FixedPoint(Solver):
    """One step size, shared by the methods that solve A theta = b without dual weights.

    step: used as given; where None, 0.5 / max |u||v|, and `solve` shortens it if it diverges.
    """

    step: float | None = None

    def __post_init__(self) -> None:
        check_step(self, "step")

    @property
    def guarded(self) -> bool:
        return self.step is None

    def choose_step(self, problem: Problem) -> tuple[float, float]:
        if self.step is not None:
            return self.step, 0.0
        return inverse(2 * math.sqrt(float((problem.u_squared * problem.v_squared).max()))), 0.0


def check_number(solver: Solver, name: str, requirement: str, accepts: Callable[[float], bool]) -> None:
    """Store a numeric setting as a float; raise ValueError if it is not a number that `accepts` accepts."""
    if not _is_default_none(solver, name):
        object.__setattr__(solver, name, number(name, getattr(solver, name), requirement, accepts))


def check_step(solver: Solver, name: str) -> None:
    """Store a step size; raise ValueError if it is not a positive number."""
    check_number(solver, name, "a step size must be a positive number", lambda x: 0 < x < math.inf)


def check_decay(solver: Solver) -> None:
    """Store the number of passes after which a step has halved; raise ValueError if it is not positive."""
    check_number(
        solver, "decay", "it is a number of passes, more than 0 (math.inf for constant steps)", lambda x: x > 0
    )


def check_count(solver: Solver, name: str, meaning: str = "") -> None:
    """Store a count as an int; raise ValueError if it is not a whole number of at least 1 with 31 bits."""
    if not _is_default_none(solver, name):
        requirement = f"it must be at least 1{meaning}, and a whole number"
        count = whole_number(name, getattr(solver, name), requirement, low=1)
        if count > MAX_INT32:
            raise ValueError(f"{name} is {shown(count)}; it must be at most {MAX_INT32:,}.")
        object.__setattr__(solver, name, count)


def check_choice(solver: Solver, name: str, first: Any, second: Any) -> None:
    """Raise ValueError if a setting is not one of two values."""
    value = getattr(solver, name)
    if not any(type(value) is type(one) and value == one for one in (first, second)):
        quoted = [f'"{one}"' if isinstance(one, str) else str(one) for one in (first, second)]
        raise ValueError(f"{name} is {shown(value)}; it must be {quoted[0]} or {quoted[1]}.")


def _is_default_none(solver: Solver, name: str) -> bool:
    return getattr(solver, name) is None and type(solver).__dataclass_fields__[name].default is None
