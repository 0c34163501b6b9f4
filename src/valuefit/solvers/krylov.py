"""Krylov: minimal residuals on A theta = b, or on the saddle point, in the norm of a preconditioner."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from valuefit.linalg.moments import CACHED_MATRIX_BYTES
from valuefit.memory import memory_limit
from valuefit.messages import said, shown
from valuefit.precondition.equations import Equations, equations_at
from valuefit.precondition.factor import plan
from valuefit.precondition.preconditioner import SaddlePreconditioner, precondition
from valuefit.problem.saddle_point import SaddlePoint
from valuefit.solvers.solver import ROUNDING_GAP, Estimate, Info, Solver, State, check_count, relative_work, wide_factor
from valuefit.threads import one_blas_thread
from valuefit.typing import Array

STALL_WINDOWS = 15  # so many of these must suffice for eight decades, or twice the passes of a direct solve


@dataclass(frozen=True)
class Krylov(Solver):
    """Generalised conjugate residuals (GCR), preconditioned by a factor of C made from sketched rows.

    At ridge 0 the iterates minimise r' C~^-1 r with r = b - A theta, which is 2 F up to a known factor, over a
    growing subspace; with a ridge or dual features of their own, the same is done on the saddle point, preconditioned
    by the sketched saddle point. An iteration costs a pass. Where a larger sketch does not help either, the solve
    ends, and `solve` goes on with 'lstd'. Prefer it for a thousand or more dense features, or
    very many sparse ones.

    depth: directions kept to be orthogonal to; beyond, the oldest are dropped. preconditioner: a function of the
    problem that returns a `SaddlePreconditioner`, used as it is; None for the best that fits into memory
    (`precondition`), which is enlarged when progress stalls.

    Eisenstat, Elman and Schultz 1983; Rokhlin and Tygert 2008; Clarkson and Woodruff 2013.
    """

    name: ClassVar[str] = "krylov"
    summary: ClassVar[str] = "minimal residuals, preconditioned by C of sketched rows"
    order: ClassVar[int] = 1
    fallback: ClassVar[str | None] = "lstd"

    depth: int = 60
    preconditioner: Callable[[SaddlePoint], SaddlePreconditioner] | None = None

    def __post_init__(self) -> None:
        check_count(self, "depth")
        if self.preconditioner is not None and not callable(self.preconditioner):
            raise ValueError(
                f"preconditioner is {shown(self.preconditioner)}; it must be a function of a problem, or None."
            )

    def cost(self, problem: SaddlePoint, gap: float) -> Estimate:
        cost, n, d, k, work = problem.cost, problem.n, problem.d, problem.k, relative_work(gap)
        pass_seconds = cost.pass_seconds
        if problem.sparse:
            # C is a sparse matrix unless it fits in cache; triangular solves or sweeps cost about another pass
            row, in_cache = cost.row, 8 * k * d <= CACHED_MATRIX_BYTES
            forming = cost.seconds("sparse_square") * n * row**2 * (0.06 if in_cache else 0.3)
            iterations = 48 * work * (cost.seconds("iteration") + (0.6 if in_cache else 2.0) * pass_seconds)
            entries = min(float(k) * k, n * row**2)
            total = cost.fixed_seconds + wide_factor(k) * (forming + iterations)
            return Estimate(total, 8.0 * 60 * 3 * (k + d) + 24 * entries)
        size, cross = plan(problem)
        starts = n if problem.trace else cost.starts
        rows, iterations = min(size, starts), 2.0
        if size < starts:
            iterations = work * (6 + 72 * k / size if cross else 26 + 28 * math.sqrt(k / size))
            iterations *= max(1.0, math.log(1 / max(1 - problem.max_discount, 1e-3)) / 3.5)  # 3 at 0.95
        setup = 1.6 * cost.seconds("pass_byte", threads=1) * cost.row_bytes  # sketching gains little from threads
        setup += cost.seconds("gram_flop") * rows * (k**2 + (2 * k * d if cross else 0))
        setup += cost.seconds("factor_flop") * (k**3 / 3 + (cost.solve_flops if cross else 0.0))
        iteration = (
            cost.seconds("iteration") + pass_seconds + cost.seconds("pass_byte") * 8 * (k * k + (d * d if cross else 0))
        )
        memory = 8.0 * (3 * k * (k + d) + rows * (k + d if cross else k))
        return Estimate(cost.fixed_seconds + setup + (2 + iterations) * iteration, memory)

    def init(self, problem: SaddlePoint, theta: Array, w: Array) -> tuple[State, Info]:
        preconditioner = precondition(problem) if self.preconditioner is None else self._user_preconditioner(problem)
        equations, cost = equations_at(problem, preconditioner, theta)
        return _restart(equations, equations.join(theta, w), preconditioner.passes + cost)

    def _user_preconditioner(self, problem: SaddlePoint) -> SaddlePreconditioner:
        """What the user's function returns."""
        assert self.preconditioner is not None
        try:
            made = self.preconditioner(problem)
        except TypeError as error:
            raise ValueError(f"preconditioner could not be called with a problem ({said(error)}).") from error
        if not isinstance(made, SaddlePreconditioner):
            raise ValueError(f"preconditioner returned {shown(made)}; it must return a SaddlePreconditioner.")
        return made

    def verify(self, problem: SaddlePoint, state: State) -> tuple[State, Info]:
        """A restart, because rounding makes the residual of the recurrence smaller than the true one."""
        memory: Memory = state.memory
        return _at_rounding(memory, memory.x, memory.trail[-1], 0.0)

    def epoch(self, problem: SaddlePoint, state: State, rng: np.random.Generator) -> tuple[State, Info]:
        memory: Memory = state.memory
        if memory.stalled:
            return _after_stall(problem, state, enlarge=self.preconditioner is None)
        with one_blas_thread():  # it has only vectors to multiply, and idle threads would take cores from the sweeps
            return self._iterate(problem, state)

    def _iterate(self, problem: SaddlePoint, state: State) -> tuple[State, Info]:
        """One more direction."""
        memory: Memory = state.memory
        equations, basis = memory.equations, memory.basis
        seed, dual = memory.residual, memory.dual
        if basis and not memory.moved:
            seed, dual = basis[-1].image, basis[-1].dual
        size = np.sqrt(float(seed @ dual))
        z = equations.direction(seed / size, dual / size)
        image = equations.apply(z)
        dual = equations.dual(image)
        before, sweeps = 0.0, 0
        while (size := _norm(image, dual)) < 0.7 * before or sweeps == 0:  # again where much was subtracted
            before, sweeps = size, sweeps + 1
            for old in basis:
                part = float(old.dual @ image)
                z, image, dual = z - part * old.direction, image - part * old.image, dual - part * old.dual
        each = 1 + equations.preconditioner.apply_passes
        cost = each + problem.cost.reads(6 * sweeps * len(basis) * len(z))
        if not size > 0:
            return replace(state, memory=memory._replace(stalled=True)), Info(cost)
        vector = _Vector(z / size, image / size, dual / size)
        step = float(vector.dual @ memory.residual)
        residual, dual = memory.residual - step * vector.image, memory.dual - step * vector.dual
        left = _norm(residual, dual) ** 2
        # so small a part of the first squared residual is rounding error
        if left <= 1e-24 * memory.trail[0]:
            return _at_rounding(memory, memory.x + step * vector.direction, left, cost)
        # what a quarter of the memory holds and half an iteration reads, if that is less than `depth`
        room = min(memory_limit() / (4 * 24 * len(z)), 0.5 * each / problem.cost.reads(6 * len(z)))
        memory = memory._replace(
            x=memory.x + step * vector.direction,
            residual=residual,
            dual=dual,
            basis=(*basis, vector)[-int(np.clip(room, 5, self.depth)) :],
            moved=abs(step) > 0.1 * np.sqrt(memory.trail[-1]),
            trail=(*memory.trail, left),
        )
        return _state(memory._replace(stalled=_stalled(problem, memory)), cost)


class _Vector(NamedTuple):
    """A direction z, its image K z, and the dual of that; image_i' dual_j is 1 for i = j, else 0."""

    direction: Array
    image: Array
    dual: Array


class Memory(NamedTuple):
    """The iterate x with its residual, and the directions so far. trail: squared residuals since the last restart."""

    equations: Equations
    x: Array
    residual: Array
    dual: Array
    trail: tuple[float, ...]
    basis: tuple[_Vector, ...] = ()
    moved: bool = True  # whether the last direction reduced the residual
    stalled: bool = False
    growth: float = 1.0  # of the sketch


def _norm(residual: Array, dual: Array) -> float:
    return float(np.sqrt(max(float(residual @ dual), 0.0)))


def _restart(equations: Equations, x: Array, passes: float, growth: float = 1.0) -> tuple[State, Info]:
    """From x with its true residual."""
    residual = equations.residual(x) if x.any() else equations.right
    dual = equations.dual(residual)
    trail = (_norm(residual, dual) ** 2,)
    memory = Memory(equations, x, residual, dual, trail, stalled=not equations.trusted, growth=growth)
    return _state(memory, passes + (1.0 if x.any() else 0.5))  # b alone is a sum over rows


def _state(memory: Memory, passes: float) -> tuple[State, Info]:
    """The iterate, with its gap where the preconditioner bounds it."""
    equations = memory.equations
    state = State(*equations.split(memory.x), gradient=equations.gradient(memory.residual), memory=memory)
    info = Info(passes, provisional=bool(memory.basis), preconditioner=equations.preconditioner)
    if memory.trail[-1] == 0 and equations.trusted:
        return state, info._replace(gap=0.0, finished=True)
    gap, objective = equations.gap(memory.x, memory.residual, memory.dual)
    return state, info._replace(gap=gap, objective=objective)


def _at_rounding(memory: Memory, x: Array, left: float, passes: float) -> tuple[State, Info]:
    """A restart where the squared residual `left` may be rounding error: the end, if the true one is as small."""
    state, info = _restart(memory.equations, x, passes, memory.growth)
    exact = info.gap is not None and info.gap <= ROUNDING_GAP
    # a far larger true residual is hidden by rounding, as where A is singular: no iteration will reduce it
    hidden = state.memory.trail[0] > 1e6 * left and not exact
    return replace(state, memory=state.memory._replace(stalled=hidden)), info._replace(finished=exact)


def _direct_passes(problem: SaddlePoint) -> float:
    return problem.cost.moments + problem.cost.flops(2 * problem.d**3)


def _stalled(problem: SaddlePoint, memory: Memory) -> bool:
    """Whether squared residuals fall too slowly for a direct solve not to be cheaper."""
    # progress is judged over 20 iterations, more for preconditioners that take many
    window, trail = 20 * memory.equations.preconditioner.patience, memory.trail
    windows = max(STALL_WINDOWS, 2 * _direct_passes(problem) / window)
    return len(trail) > window and trail[-1] > 10 ** (-8 / windows) * trail[-1 - window]


def _after_stall(problem: SaddlePoint, state: State, *, enlarge: bool) -> tuple[State, Info]:
    """A larger sketch, the end where the moments fit into memory and can be solved directly, or else a restart."""
    memory: Memory = state.memory
    equations, growth = memory.equations, 4.0 * memory.growth
    # a sketch that bounds C more closely than 4 is not enlarged
    if enlarge and equations.trusted and 4.0 < equations.preconditioner.excess < np.inf:
        size, cross = plan(problem, growth=growth)
        if problem.cost.affords_factor(size, cross=cross, limit=_direct_passes(problem)):
            larger = precondition(problem, growth=growth)
            return _restart(replace(equations, preconditioner=larger), memory.x, larger.passes, growth)
    if 8 * 4 * problem.k * (problem.k + problem.d) > memory_limit():
        state, info = _restart(equations, memory.x, 0.0, memory.growth)
        return replace(state, memory=state.memory._replace(stalled=False)), info
    reason = (
        f"Krylov iterations stalled at {memory.trail[-1] / (memory.trail[0] or 1.0):.0e} of the first squared residual"
    )
    if not equations.trusted:
        reason = "The rank of C is in doubt"
    return state, Info(0.0, finished=True, note=reason)
