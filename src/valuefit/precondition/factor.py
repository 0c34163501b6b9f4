"""The dense Cholesky factor of a sketched C, and with it an approximate inverse of the saddle-point matrix."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.linalg as linalg
from scipy.linalg import blas

from valuefit.linalg.cholesky import (
    CLEAR_PIVOT,
    FIRST_JITTER,
    MIN_DIAGONAL,
    OUT_OF_RANGE,
    jittered_cholesky,
    pivoted_cholesky,
)
from valuefit.linalg.scaled_lu import lu_solve
from valuefit.problem.saddle_point import SKETCH_BLOCK_ROWS, SaddlePoint
from valuefit.typing import Array

MIN_ROWS, MAX_ROWS = 6.0, 64.0  # sketched rows for each column of A
MIN_FLOAT32_PASSES = 4.0  # passes for C from which on it is multiplied in float32, which takes half of them
ROUNDING_CHECKS = 3  # power iterations that estimate the rounding error of float32


class Sketch(NamedTuple):
    """Moments of sketched rows: C (k, k), A (k, d) where asked for, and what is certain of them."""

    C: Array
    A: Array | None
    excess: float  # the sketched C is certainly at most this times C
    likely: float  # and very likely at most this times C
    passes: float
    rows: Array | None = None  # the sketched rows, columns of unit norm, where C was multiplied in float32


@dataclass(frozen=True)
class DenseFactor:
    """L L' = C~ on the dual features `kept`, from sketched rows, and where A~ is sketched too, a factor of A~ or of H~.

    L: lower triangular; None for C = I. kept: as many columns as C has rank; the others depend on them.
    excess: L L' <= excess * C for certain, hence r' C^+ r <= excess * r' C~^+ r for r in the range of C; 1 where C
    itself was factorised. likely: the same very likely, and never below a fifth of it. clear: whether the rank is
    beyond doubt. lu: of A~ between the features kept, each scaled to unit norm by `scale`. root: R R' = H~ =
    A~' C~^+ A~ + ridge I. passes: cost to make it. apply_passes: cost to use it once in an iteration.
    """

    L: Array | None
    kept: Array
    size: int
    excess: float
    likely: float
    clear: bool
    passes: float
    apply_passes: float = 0.0
    scale: Array | None = None
    lu: tuple[Array, Array] | None = None
    A: Array | None = None
    root: Array | None = None

    matrix: ClassVar[Any] = None
    patience: ClassVar[int] = 1

    def dual(self, r: Array) -> Array:
        """C~^+ r, zero on the features that are not kept."""
        if self.L is None:
            return r
        out = np.zeros(self.size)
        out[self.kept] = linalg.cho_solve((self.L, True), r[self.kept], check_finite=False)
        return out

    def primal(self, g: Array) -> Array:
        """H~^-1 g."""
        return np.asarray(linalg.cho_solve((self.root, True), g, check_finite=False))

    @property
    def inverse_L(self) -> Array:
        """L^-1 as a matrix (rank, k), zero on the features that are not kept."""
        if self.L is None:
            return np.eye(self.size)
        inverse = np.zeros((len(self.kept), self.size))
        inverse[:, self.kept] = _inverse(self.L)
        return inverse

    @property
    def inverse_root(self) -> Array:
        """R^-1 as a matrix (d, d)."""
        return _inverse(self.root)

    def fixed_point(self, r: Array, dual: Array) -> Array:
        """A~^-1 r, or C~^+ r where A is not sketched."""
        if self.lu is None:
            return dual
        theta = np.zeros(self.size)
        theta[self.kept] = lu_solve(self.lu, r[self.kept] / self.scale) / self.scale
        return theta

    def saddle(self, g: Array, r: Array, dual: Array) -> tuple[Array, Array]:
        """theta = H~^-1 (g + A~' C~^+ r), w = C~^+ (r - A~ theta)."""
        assert self.A is not None
        theta = self.primal(g + self.A.T @ dual)
        return theta, dual - self.dual(self.A @ theta)


def _inverse(lower: Array | None) -> Array:
    inverse, info = linalg.lapack.dtrtri(lower, lower=True)
    if info != 0 or not np.isfinite(inverse).all():
        raise ValueError(OUT_OF_RANGE)
    return np.asarray(inverse)


def is_fixed_point(problem: SaddlePoint) -> bool:
    """Whether A theta = b at the minimiser, unless A is singular: at ridge 0 and without dual features."""
    return problem.ridge == 0 and problem.shared


def plan(problem: SaddlePoint, *, growth: float = 1.0) -> tuple[int, bool]:
    """The number of sketched rows that minimises the passes of `krylov`, and whether A is sketched too.

    With c rows a column, minimal residuals take about 72 / c iterations more than with A itself, or
    12 + 28 / sqrt(c) more where only C is sketched, which costs a third (measured on Fourier features of 200 and
    1000 columns).
    """
    k, d = problem.k, problem.d
    one, both = problem.cost.flops(k**3), problem.cost.flops(k**3 + 2 * k**2 * d)  # passes for one row more a column
    of_C = plan_of_C(problem) / k
    # a product of tall matrices takes 1.45 times as long as one of square ones with as many operations
    of_both = float(np.clip(np.sqrt(72 / (1.45 * both)), MIN_ROWS, MAX_ROWS))
    cross = not is_fixed_point(problem) or problem.identity
    cross = cross or of_both * both + 72 / of_both <= of_C * one + 28 / np.sqrt(of_C) + 12
    return int(growth * (of_both if cross else of_C) * k) + 1, cross


def plan_of_C(problem: SaddlePoint) -> int:
    """The number of sketched rows for C alone."""
    # with fewer than 3 rows a column, iterations multiply
    return int(problem.k * np.clip((14 / problem.cost.flops(problem.k**3)) ** (2 / 3), 3.0, MAX_ROWS)) + 1


def sketch(problem: SaddlePoint, *, size: int, cross: bool, allow_float32: bool = True) -> Sketch:
    """C, and A if `cross`, from `size` sketched rows; the exact moments where `size` reaches the number of rows.

    A sum of q signed rows has an outer product of at most q times the sum of theirs, so the sketched C is at most
    q C; no row is missed, however rare, as it would be by sampling. The sketched A is shrunk towards C, because its
    noise is largest where A is small; traces are left out of it, because their sketch would be mostly noise. Where
    C alone is wanted and expensive, it is multiplied in float32, if allowed.
    """
    k, d = problem.k, problem.d
    if size >= problem.cost.starts:
        passes = problem.cost.A + problem.cost.C if cross else 1 + problem.cost.C
        return Sketch(problem.second_moment, problem.A if cross else None, 1.0, 1.0, passes)
    if not cross and allow_float32 and problem.cost.flops(size * k**2) >= MIN_FLOAT32_PASSES:
        single = _float32(problem, size)
        if single is not None:
            return single
    C, A = problem.sketched_moments(size, np.random.default_rng(0), cross=cross)
    share = rows_per_sum(problem, size, cross=cross)
    passes = 1 + problem.cost.flops(size * (k**2 + (2 * k * d if cross else 0)))
    if A is not None and problem.shared:
        A = shrunk(A, C, size)
    return Sketch(C, A, float(share), likely_excess(k, size, share), passes)


def shrunk(A: Any, C: Any, size: int) -> Any:
    """The sketched A, an array or a tensor, shrunk towards the sketched C."""
    shrink = 0.75 * float(np.sqrt(len(C) / size))
    return (1 - shrink) * A + shrink * C


def _float32(problem: SaddlePoint, size: int) -> Sketch | None:
    """C alone from sketched rows in float32, or None where column norms leave its range."""
    k = problem.k
    X = next(
        problem.sketched_rows(
            size, np.random.default_rng(0), cross=False, traces=False, dtype=np.float32, block_rows=2 * size
        )
    ).psi
    lengths = np.sqrt(np.einsum("ij,ij->j", X, X, dtype=np.float64))
    if not (lengths.min() >= 1e-15 and lengths.max() <= 1e15):  # others lose too much in float32
        return None
    X /= lengths.astype(np.float32)
    C = np.zeros((k, k), np.float32, order="F")
    C = blas.ssyrk(1.0, X.T, c=C, lower=True, overwrite_c=True).astype(np.float64)
    C += np.tril(C, -1).T
    C *= lengths
    C *= lengths[:, None]
    share = rows_per_sum(problem, size, cross=False)
    likely, passes = likely_excess(k, size, share), 1 + problem.cost.flops(size * k**2 / 2)
    return Sketch(C, None, float(share), likely, passes, X)


def rows_per_sum(problem: SaddlePoint, size: int, *, cross: bool) -> int:
    """The maximum number of rows in one of `size` sums: the sketched C is at most this times C."""
    return -(-(problem.n if cross else problem.cost.starts) // size) + problem.sketch_parts - 1


def likely_excess(k: int, size: int, share: int) -> float:
    """The largest eigenvalue of C^-1 C~, estimated: 1.5 times that of Gaussian rows, at least a fifth of `share`."""
    return min(float(share), max(1.5 * (1 + np.sqrt(k / size)) ** 2, share / 5))


def factorise(problem: SaddlePoint, moments: Sketch) -> DenseFactor:
    """The Cholesky factor of C, with pivots where columns depend on one another.

    Where C was multiplied in float32 its rounding error is estimated, and C is multiplied again in float64 where that
    is too large because columns are nearly dependent.
    """
    lengths = np.sqrt(np.diag(moments.C))
    kept = np.flatnonzero(lengths)
    if not len(kept):
        return DenseFactor(np.ones((0, 0)), kept, problem.k, 1.0, 1.0, True, moments.passes)
    scale = lengths[kept]
    unit = moments.C[np.ix_(kept, kept)]
    unit /= scale
    unit /= scale[:, None]
    factor, order, rank, pivoted = pivoted_cholesky(unit.T, zero=2e-15)  # but for rounding; column-major
    passes = moments.passes + problem.cost.flops((2 if pivoted else 1) * problem.k**3 / 3)
    excess, likely = moments.excess, moments.likely
    if moments.rows is not None:
        off = np.inf if pivoted else rounding(factor, moments.rows)
        passes += problem.cost.reads(ROUNDING_CHECKS * (moments.rows.size + factor.size))
        if not off <= 0.1:  # relative to C
            again = sketch(problem, size=len(moments.rows), cross=False, allow_float32=False)
            return factorise(problem, again._replace(passes=passes + again.passes))
        excess, likely = excess * (1 + 3 * off), likely * (1 + 3 * off)  # the estimate is at least a third of the error
    factor, kept, scale = factor[:rank, :rank], kept[order[:rank]], scale[order[:rank]]
    pivot = np.diag(factor) ** 2
    clear = bool(pivot.min() > CLEAR_PIVOT and (pivot * scale**2).min() > CLEAR_PIVOT * (lengths**2).max())
    L = np.asfortranarray(factor * scale[:, None])
    return DenseFactor(L, kept, problem.k, excess, likely, clear, passes, problem.cost.reads(L.size))


def dense_preconditioner(problem: SaddlePoint, moments: Sketch) -> DenseFactor:
    """The factor of C~, and of A~ (for A theta = b) or H~ (for the saddle point) where A was sketched."""
    factor = factorise(problem, moments)
    if problem.identity:
        factor = replace(factor, L=None, excess=1.0, likely=1.0, clear=True, apply_passes=0.0)
    if moments.A is None:
        return factor
    if is_fixed_point(problem):
        return _with_A(problem, factor, moments)
    return with_normal_matrix(problem, factor, moments.A)


def with_normal_matrix(
    problem: SaddlePoint, factor: DenseFactor, A: Array, *, C: Array | None = None, noise: float = 0.0
) -> DenseFactor:
    """Return the factor with A and that of H~ = A'C~^+A + ridge I.

    noise: the expected part of H~ that is noise of a sketched A: so much of `C`, or of the diagonal of H~ where A is
    not square, is added.
    """
    M, (k, d) = A, A.shape
    if factor.L is not None:
        M = np.asarray(linalg.solve_triangular(factor.L, A[factor.kept], lower=True, check_finite=False))
    H = M.T @ M
    H[np.diag_indices(d)] += problem.ridge
    if noise:
        if C is not None:
            H += noise * C
        diagonal = np.diag(H)
        diagonal = np.maximum(diagonal, MIN_DIAGONAL * diagonal.max()) if diagonal.any() else np.ones(d)
        H[np.diag_indices(d)] += (noise if k != d else FIRST_JITTER) * diagonal
    return replace(
        factor,
        A=A,
        root=jittered_cholesky(H),
        passes=factor.passes + problem.cost.flops(k**2 * d + k * d**2 + d**3 / 3),
        apply_passes=2 * factor.apply_passes + problem.cost.reads(2 * A.size + d**2),
    )


def _with_A(problem: SaddlePoint, factor: DenseFactor, moments: Sketch) -> DenseFactor:
    """With the LU factors of the sketched A, rows and columns scaled like the features."""
    assert moments.A is not None
    kept = factor.kept
    scale = np.sqrt(np.diag(moments.C))[kept]
    passes = factor.passes + problem.cost.flops(2 / 3 * len(kept) ** 3)
    if not len(kept):
        return factor
    lu, pivots, info = linalg.lapack.dgetrf(moments.A[np.ix_(kept, kept)] / np.outer(scale, scale))
    if info != 0:
        return replace(factor, passes=passes)
    apply_passes = factor.apply_passes + problem.cost.reads(lu.size)
    return replace(factor, scale=scale, lu=(lu, pivots), passes=passes, apply_passes=apply_passes)


def rounding(factor: Array, X: Array) -> float:
    """The norm of L^-1 X'X L^-T - I, estimated by power iterations from a random vector.

    Rounding changes the smallest eigenvalues of X'X by far the most, relatively, so few iterations are enough.
    """
    z, off = np.random.default_rng(2).standard_normal(len(factor)), 0.0
    for _ in range(ROUNDING_CHECKS):
        z /= np.linalg.norm(z)
        inside = linalg.solve_triangular(factor, z, lower=True, trans=1, check_finite=False)
        image = np.zeros(len(factor))
        for start in range(0, len(X), SKETCH_BLOCK_ROWS):
            part = X[start : start + SKETCH_BLOCK_ROWS].astype(np.float64)
            image += part.T @ (part @ inside)
        z = linalg.solve_triangular(factor, image, lower=True, check_finite=False) - z
        off = float(np.linalg.norm(z))
        if not 0 < off < np.inf:
            break
    return off
