"""Krylov: minimal residuals on A theta = b, or on the saddle point, in coordinates where C is nearly the identity."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import scipy.linalg as linalg
import scipy.sparse as sparse

from valuefit.linalg import sparse_cholesky as dissection
from valuefit.linalg.cholesky import jittered_cholesky
from valuefit.linalg.gauss_seidel import Relaxation
from valuefit.linalg.sparse_cholesky import SparseFactor
from valuefit.memory import memory_limit
from valuefit.problem.factor import (
    Sketch,
    SparseMoment,
    affordable,
    diagonal_whitening,
    energy_below,
    factorise,
    identity_whitening,
    plan,
    sketch,
    sparse_moment,
    sparse_whitening,
)
from valuefit.problem.problem import Problem
from valuefit.solvers.lstd import LSTD
from valuefit.solvers.solver import Info, Solver, State
from valuefit.typing import Array

SPARSE_LIMIT = 40.0  # passes that a triangular factor may cost on sparse rows, where a pass is cheap
WINDOW = 20  # iterations over which progress is judged, five times as many without a triangle
HOPELESS = 15  # windows in which eight decades must be in sight, unless a direct solve would cost more than half that
GROW = 4.0  # by this much the sketch grows, then
INNER = 4.0  # passes that inner conjugate gradients may cost in an iteration
EXACT = 1e-14  # a gap that rounding leaves
ROUNDING = 1e-24  # part of the first squared residual that is left by rounding


@dataclass(frozen=True)
class Krylov(Solver):
    """Generalised minimal residuals (GCR), preconditioned by a factor of C made from few rows.

    Every row enters one of about c d sums with random signs, and L L' = C of those sums. At ridge 0 the iterates
    minimise |L^-1 (b - A theta)|^2, which is 2 F up to a known factor, over a growing subspace; with a ridge or dual
    features of their own, the same is done on the saddle point, preconditioned by the sketched saddle point. An
    iteration costs a pass. Sparse rows with many features get a sparse factor of C, or its diagonal where that would be
    dear. The sketch grows when
    progress stalls; if that does not help, the moments are formed and solved directly, and the message says so.
    Prefer it for a thousand or more dense features, or very many sparse ones.

    depth: directions kept to be orthogonal to; beyond, the oldest are dropped.

    Eisenstat, Elman and Schultz 1983; Rokhlin and Tygert 2008; Clarkson and Woodruff 2013.
    """

    name: ClassVar[str] = "krylov"
    summary: ClassVar[str] = "minimal residuals, preconditioned by C of few mixed rows"
    order: ClassVar[int] = 1

    depth: int = 60

    def __post_init__(self) -> None:
        if self.depth < 1 or self.depth != int(self.depth):
            raise ValueError(f"depth is {self.depth}; it must be at least 1, and a whole number.")

    def init(self, problem: Problem, theta: Array, w: Array) -> tuple[State, Info]:
        system = _system(problem, growth=1.0)
        below, cost = energy_below(problem, system.whitening, problem.b)
        memory, more = _restart(problem, system, system.join(theta, w), below)
        if below == 0.0:  # F(0) = F*: the start is the unit of the gap
            below, extra = energy_below(problem, system.whitening, problem.residual(theta))
            memory = memory._replace(below=0.0, unit=below + problem.ridge * float(theta @ theta))
            more += extra + 1
        return _state(problem, memory, system.passes + cost + more)

    def epoch(self, problem: Problem, state: State, rng: np.random.Generator) -> tuple[State, Info]:
        memory: Memory = state.memory
        if memory.stalled:
            return self._other_way(problem, state, rng)
        system = memory.system
        seed, measured = memory.residual, memory.measured
        if memory.basis and not memory.moved:
            seed, measured = memory.basis[-1].image, memory.basis[-1].measured
        size = float(np.linalg.norm(measured))
        z = system.direction(seed / size, measured / size)
        image = system.apply(z)
        q = system.measure(image)
        before, sweeps = 0.0, 0
        while (size := float(np.linalg.norm(q))) < 0.7 * before or sweeps == 0:  # again after much was taken away
            before, sweeps = size, sweeps + 1
            for old in memory.basis:
                part = float(old.measured @ q)
                q, image, z = q - part * old.measured, image - part * old.image, z - part * old.direction
        cost = 1 + system.each + problem.cost.reads(6 * sweeps * len(memory.basis) * len(q))
        if not size > 0:
            return replace(state, memory=memory._replace(stalled=True)), Info(cost)
        vector = _Vector(z / size, image / size, q / size)
        step = float(vector.measured @ memory.measured)
        measured = memory.measured - step * vector.measured
        left = float(measured @ measured)
        trail = (*memory.trail, left)
        memory = memory._replace(
            x=memory.x + step * vector.direction,
            residual=memory.residual - step * vector.image,
            measured=measured,
            basis=(*memory.basis, vector)[-self._room(problem, system, len(q)) :],
            moved=abs(step) > 0.1 * np.sqrt(memory.trail[-1]),
            trail=trail,
            stalled=_stalled(problem, trail, system.window),
        )
        if left > ROUNDING * trail[0]:
            return _state(problem, memory, cost)
        memory, extra = _restart(problem, system, memory.x, memory.below, memory.unit)
        state, info = _state(problem, memory, cost + extra)
        exact = info.gap is not None and info.gap <= EXACT
        # rounding has hidden a residual, as it does where A is singular: no further iteration would see it either
        hidden = memory.trail[0] > 1e6 * left and not exact
        return replace(state, memory=memory._replace(stalled=hidden)), info._replace(finished=exact)

    def _room(self, problem: Problem, system: _FixedPoint | _Saddle, size: int) -> int:
        """Directions that are kept: what a quarter of the memory holds and half an iteration reads, if that is less."""
        half = 0.5 * (1 + system.each) / problem.cost.reads(6 * size)
        most = min(memory_limit() / (4 * 24 * (problem.k + problem.d)), half)
        return int(np.clip(most, 5, self.depth))

    def _other_way(self, problem: Problem, state: State, rng: np.random.Generator) -> tuple[State, Info]:
        """After a stall: a larger sketch, the moments themselves, or patience where neither can be had."""
        memory: Memory = state.memory
        direct = _direct_passes(problem)
        growth = GROW * memory.system.growth
        if memory.system.trusted and 4.0 < memory.system.whitening.excess < np.inf:
            system = _system(problem, growth)
            if system.passes <= direct:
                memory, cost = _restart(problem, system, memory.x, memory.below, memory.unit)
                return _state(problem, memory, system.passes + cost)
        if 8 * 4 * problem.k * (problem.k + problem.d) <= memory_limit():
            answer, info = LSTD().epoch(problem, state, rng)
            how = f"Krylov iterations stalled at {memory.trail[-1] / memory.trail[0]:.0e} of the first squared residual"
            if not memory.system.trusted:
                how = "The rank of C is in doubt"
            return answer, info._replace(note=f"{how}; this was solved directly, as by 'lstd'. {info.note}".strip())
        memory, cost = _restart(problem, memory.system, memory.x, memory.below, memory.unit)
        return _state(problem, memory._replace(stalled=False), cost)


def _direct_passes(problem: Problem) -> float:
    return problem.cost.moments + problem.cost.flops(2 * problem.d**3)


def _stalled(problem: Problem, trail: tuple[float, ...], window: int) -> bool:
    """Whether squared residuals fall too slowly to get anywhere."""
    windows = max(HOPELESS, 2 * _direct_passes(problem) / window)
    return len(trail) > window and trail[-1] > 10 ** (-8 / windows) * trail[-1 - window]


class _Vector(NamedTuple):
    """A direction, what the system makes of it, and that measured; the measured ones are orthonormal."""

    direction: Array
    image: Array
    measured: Array


class Memory(NamedTuple):
    """Where the iteration stands."""

    system: _FixedPoint | _Saddle
    x: Array
    residual: Array
    measured: Array
    below: float  # b' C^+ b, from below
    unit: float = 0.0  # instead of it, where b = 0
    basis: tuple[_Vector, ...] = ()
    moved: bool = True  # whether the last direction brought anything
    trail: tuple[float, ...] = ()  # squared measured residuals since the start or restart
    stalled: bool = False


def _restart(
    problem: Problem, system: _FixedPoint | _Saddle, x: Array, below: float, unit: float = 0.0
) -> tuple[Memory, float]:
    """From x with its true residual."""
    residual = system.residual(x) if x.any() else system.right
    measured = system.measure(residual)
    cost = 1.0 if x.any() else 0.5  # b alone is a sum over rows
    trail = (float(measured @ measured),)
    return Memory(system, x, residual, measured, below, unit, trail=trail, stalled=not system.trusted), cost


def _state(problem: Problem, memory: Memory, passes: float) -> tuple[State, Info]:
    """The iterate, with its gap where the whitening vouches for it.

    F(0) - F* is at least F(0) - F(theta), and sqrt(2 (F(0) - F*)) = |theta*|_H at least sqrt(ridge) |theta| less
    |theta - theta*|_H: the larger of the two is what the excess is divided by.
    """
    system = memory.system
    theta, w = system.split(memory.x)
    state = State(theta, w, gradient=system.gradient(memory.residual), memory=memory)
    info = Info(passes, whitening=system.whitening)
    if not memory.measured.any() and system.trusted:
        return state, info._replace(gap=0.0, finished=True)
    twice, objective = system.excess(memory)
    if not np.isfinite(twice):
        return state, info
    norm = np.sqrt(problem.ridge * float(theta @ theta))
    scale = memory.unit or max(memory.below - 2 * objective, max(norm - np.sqrt(twice), 0.0) ** 2)
    return state, info._replace(gap=float(twice / scale) if scale > 0 else np.inf, objective=objective)


class _FixedPoint:
    """A theta = b, for ridge 0 and psi = phi, preconditioned by the sketched A, or C."""

    def __init__(self, problem: Problem, moments: Sketch | SparseMoment | None, growth: float) -> None:
        self.problem, self.growth = problem, growth
        self.window, self.trusted = WINDOW, True
        self.lu: tuple[Array, Array] | None = None
        if isinstance(moments, SparseMoment):
            self.whitening = sparse_whitening(problem, moments)
            self.each = problem.cost.reads(2 * self.whitening.factor.size)
            if moments.plan is None:
                self.window = 5 * WINDOW
                self.inner = int(np.clip(INNER / problem.cost.sparse_product(moments.C.nnz), 4, 40))
                self.each = problem.cost.sparse_product((self.inner + 1) * moments.C.nnz) + problem.cost.reads(
                    10 * self.inner * problem.d
                )
        elif moments is None:
            self.whitening = diagonal_whitening(problem)
            self.window, self.each = 5 * WINDOW, 0.0
        else:
            self.whitening = factorise(problem, moments)
            self.each = problem.cost.reads(self.whitening.factor.size)
        self.passes = self.whitening.passes
        if isinstance(moments, Sketch) and moments.A is not None and len(self.whitening.kept):
            self.scale = np.sqrt(np.diag(moments.C))[self.whitening.kept]
            self._factorise_A(moments.A)

    def _factorise_A(self, A: Array) -> None:
        """LU of the sketched A, columns and rows brought to the scale of the features."""
        kept = self.whitening.kept
        lu, pivots, info = linalg.lapack.dgetrf(A[np.ix_(kept, kept)] / np.outer(self.scale, self.scale))
        self.passes += self.problem.cost.flops(2 / 3 * len(kept) ** 3)
        if info == 0:
            self.lu = lu, pivots
            self.each = self.problem.cost.reads(lu.size + self.whitening.factor.size / 2)

    def join(self, theta: Array, w: Array) -> Array:
        return theta

    def split(self, x: Array) -> tuple[Array, Array]:
        return x, np.zeros(self.problem.k)

    def gradient(self, residual: Array) -> tuple[Array, Array]:
        return np.zeros(self.problem.d), -residual

    @property
    def right(self) -> Array:
        """The residual at zero."""
        return self.problem.b

    def residual(self, x: Array) -> Array:
        return self.problem.residual(x)

    def apply(self, x: Array) -> Array:
        return self.problem.A_dot(x)

    def direction(self, residual: Array, measured: Array) -> Array:
        if isinstance(self.whitening.factor, Relaxation):
            theta = np.zeros(self.problem.d)
            theta[self.whitening.kept] = self.whitening.factor.solve(measured, self.inner)
            return theta
        if self.lu is None:
            return self.whitening.solve(residual) if self.problem.identity else self.whitening.back(measured)
        theta = np.zeros(self.problem.d)
        inside = residual[self.whitening.kept] / self.scale
        theta[self.whitening.kept] = linalg.lu_solve(self.lu, inside, check_finite=False) / self.scale
        return theta

    def measure(self, residual: Array) -> Array:
        return residual if self.problem.identity else self.whitening.half(residual)

    def excess(self, memory: Memory) -> tuple[float, float]:
        """2 (F - F*) from above, and F: F* is 0."""
        twice = float(memory.measured @ memory.measured)
        twice *= 1.0 if self.problem.identity else self.whitening.likely
        return twice, 0.5 * twice


class _Saddle:
    """ridge theta - A' w = 0 and A theta + C w = b, preconditioned by the same equations with sketched A and C."""

    def __init__(self, problem: Problem, moments: Sketch | SparseMoment | None, growth: float) -> None:
        self.problem, self.growth = problem, growth
        k, d = problem.k, problem.d
        self.window = 5 * WINDOW if moments is None else WINDOW
        self.shifted: SparseFactor | None = None
        if isinstance(moments, SparseMoment):
            self._take_C_for_A(moments)
            return
        if moments is None:
            self.whitening = identity_whitening(problem) if problem.identity else diagonal_whitening(problem)
            self.M = np.zeros(d)
            factor = self.whitening.factor
            if problem.psi is problem.phi and not problem.identity and isinstance(factor, np.ndarray):
                self.M[self.whitening.kept] = factor
            self.R = np.sqrt(self.M**2 + problem.ridge)
            self.R[self.R == 0] = 1.0
            self.passes, self.each, self.trusted = self.whitening.passes, 0.0, True
            return
        assert moments.A is not None
        self.whitening = (
            identity_whitening(problem, moments.passes) if problem.identity else factorise(problem, moments)
        )
        self.trusted = self.whitening.clear  # otherwise the cut between zero and small eigenvalues of C decides F
        A = moments.A[self.whitening.kept]
        factor = self.whitening.factor
        if isinstance(factor, np.ndarray) and factor.ndim == 2:
            A = linalg.solve_triangular(factor, A, lower=True, check_finite=False)
        self.M = np.asarray(A)
        H = self.M.T @ self.M
        H[np.diag_indices_from(H)] += problem.ridge
        self.R = jittered_cholesky(H)
        self.passes = self.whitening.passes + problem.cost.flops(k**2 * d + k * d**2 + d**3 / 3)
        self.each = problem.cost.reads(self.whitening.factor.size + 2 * self.M.size + d**2)

    def _take_C_for_A(self, moments: SparseMoment) -> None:
        """Sparse factors of C and of C + ridge I, which is A' C^+ A + ridge I with C for A: A has none."""
        assert moments.plan is not None
        problem = self.problem
        self.whitening = sparse_whitening(problem, moments)
        self.trusted = self.whitening.clear
        self.C = moments.C
        shift = problem.ridge * sparse.eye_array(self.C.shape[0], format="csr")
        self.shifted = dissection.factorise(self.C + shift, moments.plan)
        self.passes = self.whitening.passes + problem.cost.flops(moments.plan.flops)
        self.each = problem.cost.reads(5 * self.shifted.size) + problem.cost.sparse_product(2 * self.C.nnz)

    def join(self, theta: Array, w: Array) -> Array:
        return np.concatenate([theta, w])

    def split(self, x: Array) -> tuple[Array, Array]:
        return x[: self.problem.d], x[self.problem.d :]

    def gradient(self, residual: Array) -> tuple[Array, Array]:
        return self.split(-residual)

    @property
    def right(self) -> Array:
        """The residual at zero."""
        return np.concatenate([np.zeros(self.problem.d), self.problem.b])

    def residual(self, x: Array) -> Array:
        return -np.concatenate(self.problem.B(*self.split(x)))

    def apply(self, x: Array) -> Array:
        of_theta, of_w = self.problem.B(*self.split(x))
        return np.concatenate([of_theta, of_w + self.problem.b])

    def direction(self, residual: Array, measured: Array) -> Array:
        of_theta, white = residual[: self.problem.d], measured[self.problem.d :]
        if self.shifted is not None:
            kept, factor = self.whitening.kept, self.shifted
            theta = of_theta / self.problem.ridge
            theta[kept] = factor.back(factor.half(of_theta[kept] + self.C @ self.whitening.back(white)[kept]))
            image = np.zeros(self.problem.k)
            image[kept] = self.C @ theta[kept]
            return np.concatenate([theta, self.whitening.back(white - self.whitening.half(image))])
        if self.M.ndim == 1:
            spread = np.zeros(self.problem.d)
            coupled = self.M.any()
            if coupled:
                spread[self.whitening.kept] = white
            theta = (of_theta + self.M * spread) / self.R**2
            return np.concatenate(
                [theta, self.whitening.back(white - (self.M * theta)[self.whitening.kept] if coupled else white)]
            )
        theta = linalg.cho_solve((self.R, True), of_theta + self.M.T @ white, check_finite=False)
        return np.concatenate([theta, self.whitening.back(white - self.M @ theta)])

    def measure(self, residual: Array) -> Array:
        of_theta, of_w = self.split(residual)
        if self.problem.ridge > 0:
            of_theta = of_theta / np.sqrt(self.problem.ridge)
        elif self.M.ndim == 1:
            of_theta = of_theta / self.R
        else:
            of_theta = linalg.solve_triangular(self.R, of_theta, lower=True, check_finite=False)
        return np.concatenate([of_theta, self.whitening.half(of_w)])

    def excess(self, memory: Memory) -> tuple[float, float]:
        """2 (F - F*) <= |ridge theta - A' w|^2 / ridge + e' C^+ e, and F = (b'w + e'w + g'theta + e' C^+ e) / 2."""
        problem = self.problem
        if problem.ridge == 0 or not self.trusted:
            return np.inf, np.inf
        theta, w = self.split(memory.x)
        minus_g, e = self.split(memory.residual)
        white = memory.measured[problem.d :]
        energy = self.whitening.likely * float(white @ white)
        twice = float(minus_g @ minus_g) / problem.ridge + energy
        return twice, 0.5 * (float(problem.b @ w) + float(e @ w) - float(minus_g @ theta) + energy)


def _system(problem: Problem, growth: float) -> _FixedPoint | _Saddle:
    size, cross = plan(problem, growth=growth)
    if problem.psi.sparse:
        size, cross = problem.n, problem.ridge > 0 or problem.psi is not problem.phi
    fits = affordable(problem, size=size, cross=cross, limit=SPARSE_LIMIT if problem.psi.sparse else np.inf)
    moments = sketch(problem, size=size, cross=cross) if fits else None
    if problem.ridge == 0 and problem.psi is problem.phi:
        return _FixedPoint(problem, moments or sparse_moment(problem, limit=np.inf), growth)
    sparse_C = None
    if moments is None and problem.psi is problem.phi:
        sparse_C = sparse_moment(problem, limit=np.inf)
    return _Saddle(problem, sparse_C if sparse_C is not None and sparse_C.plan is not None else moments, growth)
