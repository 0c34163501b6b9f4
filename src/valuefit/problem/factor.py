"""Moments of few mixed rows, and a triangular factor of C: coordinates in which C is nearly the identity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg as linalg
from scipy.linalg import blas

from valuefit.linalg import sparse_cholesky as dissection
from valuefit.linalg.cholesky import CLEAR_PIVOT, pivoted_cholesky
from valuefit.linalg.gauss_seidel import Relaxation, relax
from valuefit.linalg.moments import sparse_second_moment
from valuefit.linalg.sparse_cholesky import SparseFactor
from valuefit.memory import memory_limit
from valuefit.problem.problem import Problem
from valuefit.problem.sketched_moments import BLOCK_ROWS, rows_per_sum, sketched_blocks, sketched_moments
from valuefit.typing import Array

FEWEST, MOST = 6.0, 64.0  # rows a column of a sketch of A
FEWEST_OF_C = 3.0  # and of C alone, below which iterations multiply
SLOWER = 1.45  # products of tall matrices, against the rate of square ones
ZERO_PIVOT = 2e-15  # a column of unit length with a smaller pivot depends on the others but for rounding
SINGLE = 4.0  # passes that C of the sums must cost for float32, which takes half of them, to be tried
CHECKS, CHECKED = 3, 0.1  # looks at what float32 has done to C, and the part of C that it may be
RANGE = 1e15  # column lengths within which nothing that matters leaves float32
SPARSE_FACTOR = 300.0  # passes that a sparse factor of C may cost


class Sketch(NamedTuple):
    """Moments of mixed rows: C (k, k), A (k, d) where asked for, and what is certain of them."""

    C: Array
    A: Array | None
    excess: float  # the sketched C is at most this times C, for certain
    likely: float  # and at most this times C, to all appearances
    passes: float
    rows: Array | None = None  # the sums themselves, columns of length 1, where C was multiplied in float32


@dataclass(frozen=True)
class Whitening:
    """L with L L' near C on the dual features `kept`, so that |L^-1 r|^2 is near r' C^+ r.

    factor: lower triangular, sparse for many sparse features, or, where that costs too much, sweeps over C or the
    square roots of its diagonal.
    kept: as many columns as C has rank; the others depend on them. excess: L L' <= excess * C for certain, hence
    r' C^+ r <= excess * |L^-1 r|^2 for r in the range of C; 1 where C itself was factorised, infinite for a
    diagonal. likely: the same to all appearances, and never below a fifth of it. clear: whether the rank is beyond
    doubt. passes: what it cost. matrix: C of the features kept, where it was formed as a sparse matrix.
    """

    factor: Array | SparseFactor | Relaxation
    kept: Array
    size: int
    excess: float
    likely: float
    clear: bool
    passes: float
    matrix: Any = None

    def half(self, r: Array) -> Array:
        """L^-1 r."""
        inside = r[self.kept]
        if isinstance(self.factor, SparseFactor | Relaxation):
            return self.factor.half(inside)
        if self.factor.ndim == 1:
            return inside / self.factor
        return np.asarray(linalg.solve_triangular(self.factor, inside, lower=True, check_finite=False))

    def back(self, y: Array) -> Array:
        """L^-T y, zero on the features that are not kept."""
        if isinstance(self.factor, SparseFactor | Relaxation):
            inside = self.factor.back(y)
        elif self.factor.ndim == 1:
            inside = y / self.factor
        else:
            inside = linalg.solve_triangular(self.factor, y, lower=True, trans=1, check_finite=False)
        out = np.zeros(self.size)
        out[self.kept] = inside
        return out

    def solve(self, r: Array) -> Array:
        """(L L')^-1 r."""
        return self.back(self.half(r))


def plan(problem: Problem, *, growth: float = 1.0) -> tuple[int, bool]:
    """Rows to sketch, and whether A is worth sketching too: as many as save more passes than they cost.

    With c rows a column, minimal residuals take some 72 / c iterations more than with A itself, or 12 + 28 / sqrt(c)
    more where only C is sketched, which costs a third (measured on Fourier features of 200 and 1000 columns).
    """
    k, d = problem.k, problem.d
    one, both = problem.cost.flops(k**3), problem.cost.flops(k**3 + 2 * k**2 * d)  # passes for one row more a column
    of_C = plan_of_C(problem) / k
    of_both = float(np.clip(np.sqrt(72 / (SLOWER * both)), FEWEST, MOST))
    cross = problem.ridge > 0 or problem.psi is not problem.phi
    cross = cross or of_both * both + 72 / of_both <= of_C * one + 28 / np.sqrt(of_C) + 12
    return int(growth * (of_both if cross else of_C) * k) + 1, cross


def plan_of_C(problem: Problem) -> int:
    """Rows to sketch for C alone."""
    return int(problem.k * np.clip((14 / problem.cost.flops(problem.k**3)) ** (2 / 3), FEWEST_OF_C, MOST)) + 1


def sketch(problem: Problem, *, size: int, cross: bool, allow_single: bool = True) -> Sketch:
    """C, and A if `cross`, from `size` sums of rows with random signs, each row in one of them.

    A sum of q signed rows has an outer product of at most q times the sum of theirs, so the sketched C is at most
    q C; and no row, however rare or long, is missed, as it would be by sampling. The sketched A is shrunk towards
    C, for its noise falls mostly where A is small; it leaves out traces, whose sketch would be noise. Where `size`
    reaches the number of rows that steps start from, the moments are those of all rows. Where C alone is wanted and
    dear, it is multiplied in float32, if allowed.
    """
    k, d = problem.k, problem.d
    if size >= int((problem.visits > 0).sum()):
        passes = problem.cost.A + problem.cost.C if cross else 1 + problem.cost.C
        return Sketch(problem.second_moment, problem.A if cross else None, 1.0, 1.0, passes)
    if not cross and allow_single and problem.cost.flops(size * k**2) >= SINGLE:
        found = _single(problem, size)
        if found is not None:
            return found
    C, A = sketched_moments(problem, size, np.random.default_rng(0), cross=cross)
    share = rows_per_sum(problem, size, cross=cross)
    passes = 1 + problem.cost.flops(size * (k**2 + (2 * k * d if cross else 0)))
    if A is not None and problem.psi is problem.phi:
        shrink = 0.75 * np.sqrt(k / size)
        A = (1 - shrink) * A + shrink * C
    return Sketch(C, A, float(share), likely_excess(k, size, share), passes)


def _single(problem: Problem, size: int) -> Sketch | None:
    """C alone from sums in float32, or None where their numbers would leave its range."""
    k = problem.k
    X = next(
        sketched_blocks(problem, size, np.random.default_rng(0), cross=False, dtype=np.float32, block_rows=2 * size)
    ).psi
    lengths = np.sqrt(np.einsum("ij,ij->j", X, X, dtype=np.float64))
    if not (lengths.min() >= 1 / RANGE and lengths.max() <= RANGE):
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


def likely_excess(k: int, size: int, share: int) -> float:
    """The largest eigenvalue of the sketched C relative to C: that of random rows and a half, or a fifth of `share`."""
    return min(float(share), max(1.5 * (1 + np.sqrt(k / size)) ** 2, share / 5))


def factorise(problem: Problem, moments: Sketch) -> Whitening:
    """The Cholesky factor of C, with pivots where columns depend on one another.

    C that was multiplied in float32 is looked at again, and multiplied anew where columns are too near to dependent.
    """
    lengths = np.sqrt(np.diag(moments.C))
    kept = np.flatnonzero(lengths)
    if not len(kept):
        return Whitening(np.ones(0), kept, problem.k, 1.0, 1.0, True, moments.passes)
    scale = lengths[kept]
    unit = moments.C[np.ix_(kept, kept)]
    unit /= scale
    unit /= scale[:, None]
    factor, order, rank, pivoted = pivoted_cholesky(unit.T, zero=ZERO_PIVOT)  # in the order that LAPACK works in
    passes = moments.passes + problem.cost.flops((2 if pivoted else 1) * problem.k**3 / 3)
    excess, likely = moments.excess, moments.likely
    if moments.rows is not None:
        off = np.inf if pivoted else rounding(factor, moments.rows)
        passes += problem.cost.reads(CHECKS * (moments.rows.size + factor.size))
        if not off <= CHECKED:
            again = sketch(problem, size=len(moments.rows), cross=False, allow_single=False)
            return factorise(problem, again._replace(passes=passes + again.passes))
        excess, likely = excess * (1 + 3 * off), likely * (1 + 3 * off)  # a third of it is found at least
    factor, kept, scale = factor[:rank, :rank], kept[order[:rank]], scale[order[:rank]]
    pivot = np.diag(factor) ** 2
    clear = bool(pivot.min() > CLEAR_PIVOT and (pivot * scale**2).min() > CLEAR_PIVOT * (lengths**2).max())
    factor = np.asfortranarray(factor * scale[:, None])
    return Whitening(factor, kept, problem.k, excess, likely, clear, passes)


def rounding(factor: Array, X: Array) -> float:
    """How far L^-1 X'X L^-T is from the identity, about, by power iterations from a random vector.

    Rounding hits the smallest eigenvalues of X'X the hardest by far, so few iterations find the largest part.
    """
    z, off = np.random.default_rng(2).standard_normal(len(factor)), 0.0
    for _ in range(CHECKS):
        z /= np.linalg.norm(z)
        inside = linalg.solve_triangular(factor, z, lower=True, trans=1, check_finite=False)
        image = np.zeros(len(factor))
        for start in range(0, len(X), BLOCK_ROWS):
            part = X[start : start + BLOCK_ROWS].astype(np.float64)
            image += part.T @ (part @ inside)
        z = linalg.solve_triangular(factor, image, lower=True, check_finite=False) - z
        off = float(np.linalg.norm(z))
        if not 0 < off < np.inf:
            break
    return off


class SparseMoment(NamedTuple):
    """C of the dual features `kept`, which have data, as a sparse matrix, how to factorise it, and what it costs.

    plan: None where a factor would cost too much.
    """

    C: Any
    kept: Array
    plan: dissection.Plan | None
    passes: float


def sparse_moment(problem: Problem, *, limit: float) -> SparseMoment | None:
    """C as a sparse matrix, or None where that would not fit into memory or `limit` passes.

    Features of which few meet in a row, such as tiles of two dimensions, have one that holds little more than C.
    """
    forming = 1 + problem.cost.C if problem.psi.sparse else np.inf
    most = min(limit, SPARSE_FACTOR + forming)
    entries = min(float(problem.k) ** 2, problem.n * (problem.psi.stored / problem.psi.shape[0]) ** 2)
    if problem.identity or forming > most or 24 * entries > memory_limit():
        return None
    C = sparse_second_moment(problem.psi, problem.visits / problem.n)
    kept = np.flatnonzero(C.diagonal())
    C = C[kept][:, kept]
    plan = dissection.plan(C, flops=(most - forming) / problem.cost.flops(1.0), numbers=memory_limit() / 16)
    return SparseMoment(C, kept, plan, forming + (0.0 if plan is None else problem.cost.flops(plan.flops)))


def sparse_whitening(problem: Problem, moment: SparseMoment) -> Whitening:
    """The sparse factor of C itself, or sweeps over it."""
    if moment.plan is None:
        sweeps = relax(moment.C)
        return Whitening(sweeps, moment.kept, problem.k, np.inf, np.inf, True, moment.passes, moment.C)
    factor = dissection.factorise(moment.C, moment.plan)
    excess = 1.0 if factor.clear else np.inf  # a direction may have been taken for zero that is not
    return Whitening(factor, moment.kept, problem.k, excess, excess, factor.clear, moment.passes, moment.C)


def diagonal_whitening(problem: Problem) -> Whitening:
    """The diagonal of C alone, in one pass."""
    diagonal = problem.psi.column_squares(problem.visits) / problem.n
    kept = np.flatnonzero(diagonal)  # a dual feature without data takes no part
    return Whitening(np.sqrt(diagonal[kept]), kept, problem.k, np.inf, np.inf, True, 1.0)


def identity_whitening(problem: Problem, passes: float = 0.0) -> Whitening:
    """For the metric C = I."""
    return Whitening(np.ones(problem.k), np.arange(problem.k), problem.k, 1.0, 1.0, True, passes)


def affordable(problem: Problem, *, size: int, cross: bool, limit: float) -> bool:
    """Whether a sketch (all of the moments, for sparse rows) and its factors fit into memory and `limit` passes."""
    k, d = problem.k, problem.d
    wide = k + d if cross else k
    if 8 * (3 * k * wide + (0 if problem.psi.sparse else size * wide)) > memory_limit():
        return False
    work = k**3 + (2 * k * d * (k + d) if cross else 0)
    if problem.psi.sparse:
        return (problem.cost.A + problem.cost.C if cross else 1 + problem.cost.C) + problem.cost.flops(work) <= limit
    rows = min(size, int((problem.visits > 0).sum()))
    return 1 + problem.cost.flops(rows * (k**2 + (2 * k * d if cross else 0)) + work) <= limit


def whiten(problem: Problem, *, limit: float) -> Whitening:
    """The factor of a sketched C, of C itself for sparse rows, or of its diagonal past `limit` passes."""
    size = problem.n if problem.psi.sparse else plan_of_C(problem)
    if affordable(problem, size=size, cross=False, limit=limit):
        return factorise(problem, sketch(problem, size=size, cross=False))
    moment = sparse_moment(problem, limit=limit)
    return diagonal_whitening(problem) if moment is None else sparse_whitening(problem, moment)


def energy_below(problem: Problem, whitening: Whitening, r: Array) -> tuple[float, float]:
    """r' C^+ r from below, and the passes it cost: the value itself, or (r'z)^2 / z'Cz with z = (L L')^-1 r."""
    if problem.identity or not r.any():
        return float(r @ r), 0.0
    white = whitening.half(r)
    energy = float(white @ white)
    if whitening.excess == 1.0 or energy == 0.0:
        return energy, 0.0
    values = problem.psi.dot(whitening.back(white))
    return energy * (energy / float(problem.visits @ values**2 / problem.n)), 0.5
