"""Preconditioners for stochastic steps: approximate inverses from sketched rows, with sampling weights and steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from valuefit.linalg.cholesky import FIRST_JITTER, MIN_DIAGONAL
from valuefit.memory import fits
from valuefit.precondition.diagonal_preconditioner import COST, DiagonalPlusRankTwo, balance, squared_row_norms
from valuefit.precondition.factor import DenseFactor, Sketch, factorise, likely_excess, rows_per_sum, with_normal_matrix
from valuefit.problem.problem import Problem
from valuefit.problem.saddle_point import SaddlePoint
from valuefit.typing import Array, Gradient

FIRST_SKETCH_PASSES = 5.0  # maximum cost of the first sketch
MIN_SKETCH_ROWS = 6  # sketched rows for each feature, whatever they cost
GROWTH = 4  # factor of the sketched rows where convergence is slow
PROJECTIONS = 16  # random directions by which the norms of preconditioned rows are estimated, to a third
SHIFT = 1e-10  # multiple of its diagonal that is added to C, so that a factor exists


@dataclass(frozen=True, eq=False)
class StochasticPreconditioner:
    """Symmetric positive matrices that multiply gradients, and the sampling of steps that goes with them.

    theta ~ (A'C^-1A + ridge I)^-1 and w ~ C^-1, from `count` sketched rows (all steps: from the moments). The
    preconditioned saddle point is as well conditioned as the sketch allows, whatever the means, scales and
    correlations of the features. With `count` 0 the matrices are `DiagonalPlusRankTwo`: a diagonal and a rank-two term.
    `draw` samples steps half uniformly and half by their norm; multiplying by `weight` removes the bias.
    """

    theta: Array | DiagonalPlusRankTwo
    w: Array | DiagonalPlusRankTwo
    count: int
    cost: float  # passes to make it
    weight: Array
    steps: tuple[float, float]  # step sizes for single rows; times the number of rows for a batch
    spread: float = 1.0  # bound of the largest preconditioned second moment
    fewest: int = 1  # rows in a batch, so that products with the matrices do not cost more than the rows
    each: float = 0.0  # passes of one such product, where a row costs less than a row of the matrices
    exact: bool = False  # whether it was made from the moments of all steps
    factor: DenseFactor | None = None  # of C, for a certificate, where it is accurate

    @cached_property
    def _cumulative(self) -> Array:
        return np.cumsum(1 / self.weight)

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Steps with probability 1 / (n weight), stratified: one from each of `count` equal parts, in random order.

        Stratification leaves few steps undrawn, whose entries in the table of SAGA would become old.
        """
        place = (np.arange(count) + rng.random(count)) / count * self._cumulative[-1]
        steps = np.minimum(np.searchsorted(self._cumulative, place, side="right"), len(self.weight) - 1)
        return rng.permutation(steps)

    def merit(self, gradient: tuple[Array, Array]) -> float:
        """The squared preconditioned gradient g' theta g + h' w h: about 2 (F - F*), and the same of the dual."""
        of_theta, of_w = gradient
        value = float(of_theta @ (self.theta @ of_theta)) + float(of_w @ (self.w @ of_w))
        return value if np.isfinite(value) else np.inf


class BatchPlan(NamedTuple):
    """An epoch of SVRG: so many draws, in batches of `batch`, from a snapshot with this gradient.

    step_theta, step_w: the step sizes of one row; a batch of m rows takes m times as much.
    """

    sampling: StochasticPreconditioner
    gradient: Gradient
    draws: int
    batch: int
    step_theta: float
    step_w: float


def sketch_passes(problem: SaddlePoint, count: int) -> float:
    """Passes to make the preconditioner from this many sketched rows."""
    k, d = problem.k, problem.d
    if count >= problem.n:
        moments = problem.cost.moments
    else:
        moments = count / problem.n + problem.cost.flops(count * (2 * k * d + (0 if problem.identity else k**2)))
    factors = problem.cost.flops(k**3 / 3 + k**2 * d + k * d**2 + d**3 + k**3)
    projections = k * min(PROJECTIONS, k) + d * min(PROJECTIONS, d)
    return moments + factors + 1 + problem.cost.flops(2 * problem.distinct_rows * projections)


def matrices_fit(problem: SaddlePoint) -> bool:
    """Whether the matrices fit into memory, and steps are many enough to estimate them."""
    in_memory = fits(8 * (problem.k + problem.d) ** 2 + (2 * problem.n * problem.k if problem.trace else 0))
    return in_memory and problem.n >= 2 * problem.k


def first_sketch_size(problem: SaddlePoint) -> int:
    """The first number of sketched rows: FIRST_SKETCH_PASSES worth, or all steps where the moments cost no more."""
    if problem.cost.moments <= FIRST_SKETCH_PASSES:
        return problem.n
    each = problem.cost.flops(2 * problem.k * problem.d + (0 if problem.identity else problem.k**2))
    return min(problem.n, max(MIN_SKETCH_ROWS * problem.k, int(FIRST_SKETCH_PASSES / each)))


def sketched_preconditioner(problem: Any, count: int, *, drawn: bool = True) -> StochasticPreconditioner:
    """The preconditioner from `count` sketched rows; the same problem and count give the same bits.

    drawn: whether single rows will be drawn, which takes their norms.
    """
    rng = np.random.default_rng(count)
    factor, accurate = _factor(problem, count, rng)
    inverse_L, inverse_R = factor.inverse_L, factor.inverse_root
    weight, steps = np.ones(0), (1.0, 1.0)
    if drawn:
        lengths = problem.squared_lengths(*_projections(problem, inverse_L, inverse_R, rng))
        weight, steps = _draws_and_steps(problem, *lengths)
    cost = sketch_passes(problem, count)
    each = problem.cost.flops(2 * (problem.k**2 + problem.d**2)) if problem.sparse else 0.0
    return StochasticPreconditioner(
        inverse_R.T @ inverse_R, inverse_L.T @ inverse_L, count, cost, weight, steps,
        fewest=max(1, int(np.ceil(each * problem.n))), each=each, exact=count >= problem.n,
        factor=factor if accurate else None,
    )  # fmt: skip


def scaling_preconditioner(problem: Problem, *, drawn: bool = True) -> StochasticPreconditioner:
    """The diagonal preconditioner with a rank-two term, in the memory and time of a few vectors and passes.

    drawn: whether single rows will be drawn; otherwise rows of traces are not formed to know their norms.
    """
    theta, w = balance(problem)
    weight, steps = np.ones(0), (1.0, 1.0)
    if drawn:
        weight, steps = _draws_and_steps(problem, *squared_row_norms(problem, theta, w))
    # (psi'x)^2 is at most the number of nonzeros times sum psi_c^2 x_c^2, whose mean is |x|^2 after scaling
    stored = max(1.0, problem.cost.row)
    width = problem.k + problem.d
    return StochasticPreconditioner(
        theta, w, 0, COST, weight, steps, spread=stored, fewest=int(np.ceil(0.5 * width / stored)),
        each=problem.cost.flops(10 * width) if problem.sparse else 0.0,
    )  # fmt: skip


def _draws_and_steps(problem: Any, of_psi: Array, of_u: Array, of_v: Array) -> tuple[Array, tuple[float, float]]:
    """Weights for rows drawn half uniformly and half by their norm, and step sizes for such draws."""
    score = np.sqrt((0.0 if problem.identity else of_psi**2) + of_u * of_v)
    weight = 1 / (0.5 + 0.5 * score / score.mean()) if score.any() else np.ones(problem.n)
    dual = max(float((weight * of_psi).max()), 1.0 if problem.identity else 1e-300)
    strength = np.maximum(problem.ratio**2, weight * of_u / dual)
    primal = float((weight * of_v * strength).max())
    if problem.identity:
        primal = max(primal, dual)  # or steps of theta would be too long for those of w
    return weight, (0.25 / max(primal, 1e-300), 0.25 / dual)


def _factor(problem: SaddlePoint, count: int, rng: np.random.Generator) -> tuple[DenseFactor, bool]:
    """Return the factors of C and A'C^-1A + ridge I over all steps, or from `count` sketched rows.

    The second value says whether columns are so independent that the shift of C does not matter. A sample of as many
    steps would miss rare rows; a sketch misses none, with as much error on the others.
    """
    k, d = problem.k, problem.d
    if count >= problem.n:
        A, C = problem.A, problem.C.copy()
    else:
        C, cross = problem.sketched_moments(count, rng, cross=True, traces=True)
        assert cross is not None
        A = cross
    # the standard error of an entry of the sketched L^-1 A is about 1 / sqrt(count)
    noise = max(0.16 * d / count * max(0.0, 1 - count / problem.n), FIRST_JITTER)
    if problem.identity:
        factor = DenseFactor(None, np.arange(k), k, 1.0, 1.0, True, 0.0)
        return with_normal_matrix(problem, factor, A, noise=noise), False
    size = np.diag(C)
    size = np.maximum(size, MIN_DIAGONAL * size.max()) if size.any() else np.ones(k)
    C[np.diag_indices(k)] += SHIFT * size
    share = 1 if count >= problem.n else rows_per_sum(problem, count, cross=True)
    factor = factorise(problem, Sketch(C, A, 1.1 * share, 1.1 * likely_excess(k, count, share), 0.0))
    assert factor.L is not None
    accurate = bool((np.diag(factor.L) ** 2 > 1e4 * SHIFT * size.max()).all())
    return with_normal_matrix(problem, factor, A, C=C if k == d else None, noise=noise), accurate


def _projections(
    problem: SaddlePoint, inverse_L: Array, inverse_R: Array, rng: np.random.Generator
) -> tuple[Array, Array | None, Array]:
    """Arguments of `squared_lengths`: by them |psi_t|^2, |u_t|^2 and |v_t|^2 after preconditioning are estimated."""
    dual = _projection(inverse_L, rng)
    traced = _projection(inverse_L, rng) if problem.trace else None
    return dual, traced, _projection(inverse_R, rng)


def _projection(inverse: Array, rng: np.random.Generator) -> Array:
    """X with |X'row|^2 about |inverse row|^2: the transpose, or a few random combinations of its columns."""
    width = inverse.shape[1]
    if width <= PROJECTIONS:
        return inverse.T
    return inverse.T @ (rng.standard_normal((width, PROJECTIONS)) / np.sqrt(PROJECTIONS))
