"""Preconditioners of the saddle point: approximate inverses of C and of [[ridge I, -A'], [A, C]]."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sparse

from valuefit.linalg import sparse_cholesky
from valuefit.linalg.gauss_seidel import GaussSeidel, symmetric_gauss_seidel
from valuefit.linalg.moments import sparse_second_moment
from valuefit.linalg.rare_columns import RareColumns, eliminate_rare_columns
from valuefit.linalg.sparse_cholesky import SparseFactor
from valuefit.memory import memory_limit
from valuefit.precondition.factor import dense_preconditioner, is_fixed_point, plan, plan_of_C, sketch
from valuefit.problem.saddle_point import SaddlePoint
from valuefit.typing import Array

MAX_DENSE_PASSES = 40.0  # passes for a dense factor where rows are sparse, and a pass costs little
MAX_SPARSE_PASSES = 300.0  # passes for a sparse factor of C


class SparseC(NamedTuple):
    """C (k, k): the sum over rows eliminated with `rare` columns and a sparse matrix `inside` of the features `kept`.

    Dual features that are neither kept nor eliminated have no data, or depend on those that were eliminated.
    """

    inside: Any
    kept: Array
    size: int
    rare: RareColumns | None = None

    @property
    def stored(self) -> int:
        """Numbers read in a product."""
        return int(self.inside.nnz) + (0 if self.rare is None else 2 * self.rare.size)

    def __matmul__(self, x: Array) -> Array:
        product = self._on_kept(lambda part: self.inside @ part, x)
        return product if self.rare is None else product + self.rare @ x

    def solve(self, inverse: Callable[[Array], Array], r: Array) -> Array:
        """C^+ r, given a function that solves with `inside`; approximately where that does."""
        if self.rare is None:
            return self._on_kept(inverse, r)
        products, left = self.rare.forward(r)
        return self.rare.backward(products, self._on_kept(inverse, left))

    def _on_kept(self, function: Callable[[Array], Array], x: Array) -> Array:
        """A function of the features kept, zero elsewhere."""
        out = np.zeros(self.size)
        out[self.kept] = function(x[self.kept])
        return out


class Preconditioner(Protocol):
    """Approximate inverses, symmetric and positive, with C~ near C and H~ near A'C^-1A + ridge I.

    excess: C~ <= excess * C for certain, hence r' C^+ r <= excess * r' C~^+ r for r in the range of C; infinite where
    nothing is known. likely: the same, very likely. clear: whether the rank of C is beyond doubt. matrix: C
    itself, where it was formed as a sparse matrix.
    """

    @property
    def excess(self) -> float: ...
    @property
    def likely(self) -> float: ...
    @property
    def clear(self) -> bool: ...
    @property
    def matrix(self) -> SparseC | None: ...

    def dual(self, r: Array) -> Array:
        """C~^+ r."""

    def primal(self, g: Array) -> Array:
        """H~^-1 g."""


@runtime_checkable
class SaddlePreconditioner(Preconditioner, Protocol):
    """One that also solves the sketched equations. A method need not be linear, for flexible iterations.

    passes: cost to make it. apply_passes: cost to use it in one iteration. patience: factor of the iterations over
    which progress is judged, larger for a preconditioner that takes many.
    """

    patience: ClassVar[int]

    @property
    def passes(self) -> float: ...
    @property
    def apply_passes(self) -> float: ...

    def fixed_point(self, r: Array, dual: Array) -> Array:
        """theta ~ A^-1 r, given dual = C~^+ r."""

    def saddle(self, g: Array, r: Array, dual: Array) -> tuple[Array, Array]:
        """theta ~ H^-1 (g + A' C^+ r) and w ~ C^+ (r - A theta), given dual = C~^+ r."""


@dataclass(frozen=True)
class SparseCholesky:
    """Sparse factors of C and of C + ridge I, which is A'C^+A + ridge I with C in place of A."""

    factor: SparseFactor
    shifted: SparseFactor
    matrix: SparseC
    passes: float
    apply_passes: float

    patience: ClassVar[int] = 1

    @property
    def clear(self) -> bool:
        return self.factor.clear

    @property
    def excess(self) -> float:
        return 1.0 if self.factor.clear else np.inf  # a direction may have been taken for zero that is not

    likely = excess

    def dual(self, r: Array) -> Array:
        return self.matrix.solve(self.factor.solve, r)

    def primal(self, g: Array) -> Array:
        return self.matrix.solve(self.shifted.solve, g)

    def fixed_point(self, r: Array, dual: Array) -> Array:
        return dual

    def saddle(self, g: Array, r: Array, dual: Array) -> tuple[Array, Array]:
        """With A = C, A' C^+ r is r, and A theta is C theta."""
        theta = self.primal(g + r)
        return theta, dual - self.dual(self.matrix @ theta)


@dataclass(frozen=True)
class GaussSeidelSweeps:
    """Symmetric Gauss-Seidel sweeps over a sparse C, and conjugate gradients with them; C is in place of A."""

    sweeps: GaussSeidel
    shifted: GaussSeidel  # of C + ridge I
    matrix: SparseC
    inner: int  # steps of conjugate gradients
    passes: float
    apply_passes: float

    excess: ClassVar[float] = np.inf
    likely: ClassVar[float] = np.inf
    clear: ClassVar[bool] = True
    patience: ClassVar[int] = 5

    def dual(self, r: Array) -> Array:
        return self.matrix.solve(self.sweeps.solve, r)

    def primal(self, g: Array) -> Array:
        return self.matrix.solve(self.shifted.solve, g)

    def fixed_point(self, r: Array, dual: Array) -> Array:
        return self.matrix.solve(lambda part: self.sweeps.conjugate_gradients(part, self.inner), r)

    def saddle(self, g: Array, r: Array, dual: Array) -> tuple[Array, Array]:
        """With A = C, A' C^+ r is r, and A theta is C theta."""
        theta = self.matrix.solve(lambda part: self.shifted.conjugate_gradients(part, self.inner), g + r)
        return theta, self.fixed_point(r - self.matrix @ theta, dual)


@dataclass(frozen=True)
class Diagonal:
    """Diagonals in place of C and A: C~^+ = diag(inverse_C), A~ = diag(a), or A~ = 0 where A is rectangular.

    With inverse_C = 1 it is the identity, for the metric C = I.
    """

    inverse_C: Array
    a: Array
    ridge: float
    excess: float
    passes: float

    apply_passes: ClassVar[float] = 0.0
    clear: ClassVar[bool] = True
    matrix: ClassVar[Any] = None
    patience: ClassVar[int] = 5

    @property
    def likely(self) -> float:
        return self.excess

    def dual(self, r: Array) -> Array:
        return self.inverse_C * r

    def primal(self, g: Array) -> Array:
        H = np.full(len(self.a), self.ridge)
        if self.a.any():
            H += self.a**2 * self.inverse_C
        return g / np.where(H > 0, H, 1.0)

    def fixed_point(self, r: Array, dual: Array) -> Array:
        return self.primal(self.a * dual)

    def saddle(self, g: Array, r: Array, dual: Array) -> tuple[Array, Array]:
        if not self.a.any():
            return self.primal(g), dual
        theta = self.primal(g + self.a * dual)
        return theta, dual - self.dual(self.a * theta)


def precondition(
    problem: SaddlePoint, *, limit: float = np.inf, growth: float = 1.0, with_A: bool = True
) -> SaddlePreconditioner:
    """The best preconditioner that fits into memory and `limit` passes.

    Dense rows get a factor of sketched rows; sparse ones a dense factor of C while
    that is cheap, then a sparse factor, then Gauss-Seidel sweeps over a sparse C; what fits nowhere else gets the
    diagonal.
    growth: factor of the number of sketched rows. with_A: whether it must solve for theta, or only give `dual`.
    """
    if problem.identity and not with_A:
        return Diagonal(np.ones(problem.k), np.zeros(problem.d), problem.ridge, 1.0, 0.0)
    made = _best(problem, limit=limit, growth=growth, with_A=with_A)
    if with_A:
        _last[problem] = made
    return made


# the last one of each problem while that exists: standard errors need the one of the solver again
_last: WeakKeyDictionary[SaddlePoint, SaddlePreconditioner] = WeakKeyDictionary()


def last_preconditioner(problem: SaddlePoint) -> SaddlePreconditioner:
    """The preconditioner that a solver of this problem made last, or a new one."""
    return _last.get(problem) or precondition(problem)


def _best(problem: SaddlePoint, *, limit: float, growth: float, with_A: bool) -> SaddlePreconditioner:
    """`precondition`, but for C = I without A."""
    size, cross = plan(problem, growth=growth) if with_A else (plan_of_C(problem), False)
    dense_limit = limit
    if problem.sparse:
        size, cross = problem.n, with_A and not is_fixed_point(problem)
        dense_limit = min(limit, MAX_DENSE_PASSES)
    if problem.cost.affords_factor(size, cross=cross, limit=dense_limit):
        factor: SaddlePreconditioner | None = problem.dense_factor(size, cross=cross)
        return factor or dense_preconditioner(problem, sketch(problem, size=size, cross=cross))
    ridge = problem.ridge if with_A else 0.0
    moment = sparse_moment(problem, limit=limit, ridge=ridge) if problem.shared or not with_A else None
    if moment is None:
        return diagonal_preconditioner(problem)
    return sparse_preconditioner(problem, moment, ridge=ridge)


class SparseMoment(NamedTuple):
    """C as a sparse matrix, and the plan of its factor, None where that would cost too much; passes for both."""

    C: SparseC
    plan: sparse_cholesky.SymbolicFactor | None
    passes: float


def sparse_moment(problem: Any, *, limit: float, ridge: float) -> SparseMoment | None:
    """C as a sparse matrix, or None where that would not fit into memory or `limit` passes, or rows are elsewhere.

    Features of which few are active in one row, such as tiles of two dimensions, have a factor with little more
    entries than C. Rare columns are eliminated, but not where C + ridge I is needed too, which has none.
    """
    forming = 2 + problem.cost.C if problem.sparse else np.inf
    most = min(limit, MAX_SPARSE_PASSES + forming)
    if problem.identity or problem.storage or forming > most:
        return None
    psi, visits = problem.psi, problem.visits
    entries = min(float(problem.k) ** 2, problem.n * (psi.stored / psi.shape[0]) ** 2)
    if 24 * entries > memory_limit():
        return None
    rows, weights, rare = psi.matrix, visits / problem.n, None
    if not ridge:
        rare = eliminate_rare_columns(psi, weights)
        rows, weights = rare.rest, rare.rest_weights
    kept = np.flatnonzero((rows**2).T @ weights)
    C = sparse_second_moment(rows[:, kept], weights)
    flops = (most - forming) / problem.cost.host_flops(1.0)
    plan = sparse_cholesky.symbolic_factor(C, flops=flops, numbers=memory_limit() / 16)
    factor_passes = 0.0 if plan is None else problem.cost.host_flops(plan.flops)
    return SparseMoment(SparseC(C, kept, problem.k, rare), plan, forming + factor_passes)


def sparse_preconditioner(
    problem: SaddlePoint, moment: SparseMoment, *, ridge: float
) -> SparseCholesky | GaussSeidelSweeps:
    """The sparse factors of C and C + ridge I, or sweeps over these."""
    matrix, plan, passes = moment
    C, cost = matrix.inside, problem.cost
    rare_passes = cost.sparse_product(matrix.stored - C.nnz)
    shift = C + ridge * sparse.eye_array(C.shape[0], format="csr") if ridge else C
    if plan is not None:
        factor = sparse_cholesky.numeric_factor(C, plan)
        shifted = sparse_cholesky.numeric_factor(shift, plan) if ridge else factor
        apply_passes = cost.reads(2 * factor.size) + rare_passes
        if ridge:
            passes += cost.host_flops(plan.flops)
            apply_passes = cost.reads(6 * factor.size) + cost.sparse_product(C.nnz)
        return SparseCholesky(factor, shifted, matrix, passes, apply_passes)
    sweeps = symmetric_gauss_seidel(C)
    shifted_sweeps = symmetric_gauss_seidel(shift) if ridge else sweeps
    solves = 2 if ridge else 1
    # an iteration may take as long as four passes
    inner = int(np.clip(4.0 / (solves * cost.sparse_product(C.nnz)), 4, 40))
    apply_passes = cost.sparse_product((solves * (inner + 1)) * C.nnz) + cost.reads(10 * solves * inner * C.shape[0])
    return GaussSeidelSweeps(sweeps, shifted_sweeps, matrix, inner, passes, apply_passes + 2 * rare_passes)


def diagonal_preconditioner(problem: SaddlePoint) -> Diagonal:
    """The diagonal of C, in one pass."""
    diagonal = problem.dual_squares
    inverse = np.divide(1.0, diagonal, out=np.zeros(problem.k), where=diagonal > 0)  # zero without data
    a = diagonal if problem.shared else np.zeros(problem.d)
    if problem.identity:
        return Diagonal(np.ones(problem.k), a, problem.ridge, 1.0, 1.0)
    return Diagonal(inverse, a, problem.ridge, np.inf, 1.0)
