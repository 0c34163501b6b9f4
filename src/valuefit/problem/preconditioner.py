"""Coordinates in which single steps go far: what a few passes' worth of mixed rows tells of A and C."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import scipy.linalg as linalg

from valuefit.linalg.cholesky import OUT_OF_RANGE, jittered_cholesky
from valuefit.memory import fits
from valuefit.problem.diagonal_preconditioner import COST, Balanced, balance, balanced_sizes
from valuefit.problem.factor import likely_excess
from valuefit.problem.problem import Problem
from valuefit.problem.saddle_preconditioner import Preconditioner
from valuefit.problem.sketched_moments import sketched_moments
from valuefit.rows.storage import Rows
from valuefit.typing import Array

FIRST = 5.0  # passes that the first sample may cost
FEWEST = 6  # but so many rows for each feature at least
GROWTH = 4  # and by how much more, should that be too few
SKETCH = 16  # random directions that tell the length of a row in the new coordinates, to a third
SHIFT = 1e-10  # of the diagonal of C, just enough for a factor to exist


@dataclass(frozen=True, eq=False)
class Metric:
    """Symmetric positive matrices that gradients are multiplied by, and the rows' sizes seen through them.

    theta ~ (A'C^-1A + ridge I)^-1 and w ~ C^-1, from `count` sums of steps (all steps: from the moments). In these
    coordinates the saddle point is as round as the sample can make it, whatever the features: centring, scaling
    and correlations are all taken out. With `count` 0 the matrices are `Balanced`: only centred and scaled.
    `draw` picks steps half uniformly, half by their size, and `weight` undoes that in the mean.
    """

    theta: Array | Balanced
    w: Array | Balanced
    count: int
    cost: float  # passes that it took
    weight: Array
    steps: tuple[float, float]  # for single rows; times the number of rows for a batch of them
    spread: float = 1.0  # how much larger than 1 a second moment may still be in these coordinates
    fewest: int = 1  # rows in a batch, for products with the metric not to outweigh them
    excess: float = np.inf  # w^-1 <= excess * C for certain
    likely: float = np.inf  # and very likely
    each: float = 0.0  # passes that such products cost, beyond what rows as long as the metric is wide do

    clear: ClassVar[bool] = True
    matrix: ClassVar[Any] = None

    @property
    def kept(self) -> Array:
        """All dual features: `w` has full rank."""
        return np.arange(len(self.w.scale) if isinstance(self.w, Balanced) else len(self.w))

    @property
    def whitening(self) -> Preconditioner | None:
        """This preconditioner of C for a certificate, where its accuracy is known."""
        return self if np.isfinite(self.excess) else None

    def dual(self, r: Array) -> Array:
        """C~^-1 r."""
        return self.w @ r

    def primal(self, g: Array) -> Array:
        """H~^-1 g."""
        return self.theta @ g

    @property
    def exact(self) -> bool:
        """Whether it is made from the moments of all steps."""
        return self.count >= len(self.weight)

    @cached_property
    def _cumulative(self) -> Array:
        return np.cumsum(1 / self.weight)

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Steps with probability 1 / (n weight): one from each of `count` equal parts of it, in random order.

        Each draw is as by chance, but few steps are left out, which SAGA would wait for.
        """
        place = (np.arange(count) + rng.random(count)) / count * self._cumulative[-1]
        steps = np.minimum(np.searchsorted(self._cumulative, place, side="right"), len(self.weight) - 1)
        return rng.permutation(steps)

    def merit(self, gradient: tuple[Array, Array]) -> float:
        """The squared gradient in these coordinates: about twice what F has left to lose, and the dual likewise."""
        of_theta, of_w = gradient
        value = _energy(self.theta, of_theta) + _energy(self.w, of_w)
        return value if np.isfinite(value) else np.inf


def _energy(matrix: Array | Balanced, x: Array) -> float:
    return matrix.energy(x) if isinstance(matrix, Balanced) else float(x @ (matrix @ x))


def metric_cost(problem: Problem, count: int) -> float:
    """Passes that a metric from this many sums of steps is worth."""
    k, d = problem.k, problem.d
    if count >= problem.n:
        moments = problem.cost.moments
    else:
        moments = count / problem.n + problem.cost.flops(count * (2 * k * d + (0 if problem.identity else k**2)))
    factors = problem.cost.flops(k**3 / 3 + k**2 * d + k * d**2 + d**3 + k**3)
    return (
        moments + factors + 1 + problem.cost.flops(2 * problem.phi.shape[0] * (k * min(SKETCH, k) + d * min(SKETCH, d)))
    )


def metric_fits(problem: Problem) -> bool:
    """Whether the matrices find room, and steps are many enough to tell them."""
    room = fits(8 * (problem.k + problem.d) ** 2 + (2 * problem.n * problem.k if problem.trace else 0))
    return room and problem.n >= 2 * problem.k


def first_count(problem: Problem) -> int:
    """Steps to sample at first: as many as a few passes pay for, all of them where moments are as cheap as that."""
    if problem.cost.moments <= FIRST:
        return problem.n
    each = problem.cost.flops(2 * problem.k * problem.d + (0 if problem.identity else problem.k**2))
    return min(problem.n, max(FEWEST * problem.k, int(FIRST / each)))


def mixed_metric(problem: Problem, count: int) -> Metric:
    """The metric from this many steps; the same problem and count give the same bits."""
    rng = np.random.default_rng(count)
    A, C = _moments(problem, count, rng)
    L, inverse_L, inverse_R = _factors(problem, A, C, count)
    excess, likely = _excess(problem, C, L, count)
    sizes = _sizes(problem, inverse_L, inverse_R, rng)
    weight, steps = _draws_and_steps(problem, *sizes)
    each = problem.cost.flops(2 * (problem.k**2 + problem.d**2)) if problem.phi.sparse else 0.0
    return Metric(
        inverse_R.T @ inverse_R, inverse_L.T @ inverse_L, count, metric_cost(problem, count), weight, steps,
        fewest=max(1, int(np.ceil(each * problem.n))), each=each, excess=excess, likely=likely,
    )  # fmt: skip


def balanced_metric(problem: Problem, *, drawn: bool = True) -> Metric:
    """The metric that only centres and scales, which takes memory and time of the order of the rows alone.

    drawn: whether single rows will be; if not, rows of traces are not made to know their sizes.
    """
    theta, w = balance(problem)
    weight, steps = np.ones(problem.n), (1.0, 1.0)
    if drawn:
        weight, steps = _draws_and_steps(problem, *balanced_sizes(problem, theta, w))
    # (psi'x)^2 is at most the number of nonzeros times sum psi_c^2 x_c^2, whose mean scaling makes |x|^2
    stored = max(1.0, problem.phi.stored / problem.phi.shape[0])
    width = problem.k + problem.d
    return Metric(
        theta, w, 0, COST, weight, steps, spread=stored, fewest=int(np.ceil(0.5 * width / stored)),
        each=problem.cost.flops(10 * width) if problem.phi.sparse else 0.0,
    )  # fmt: skip


def _draws_and_steps(problem: Problem, of_psi: Array, of_u: Array, of_v: Array) -> tuple[Array, tuple[float, float]]:
    """Weights that undo drawing half uniformly and half by size, and steps for rows drawn so."""
    score = np.sqrt((0.0 if problem.identity else of_psi**2) + of_u * of_v)
    weight = 1 / (0.5 + 0.5 * score / score.mean()) if score.any() else np.ones(problem.n)
    dual = max(float((weight * of_psi).max()), 1.0 if problem.identity else 1e-300)
    strength = np.maximum(problem.ratio**2, weight * of_u / dual)
    primal = float((weight * of_v * strength).max())
    if problem.identity:
        primal = max(primal, dual)  # w must keep up with theta, which A'A alone would let run ahead
    return weight, (0.25 / max(primal, 1e-300), 0.25 / dual)


def _moments(problem: Problem, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """A and C over all steps, or estimated from `count` sums of steps with random signs, each step in one of them.

    A sample of as many steps would miss rare rows; sums miss none, and are as wrong about the others.
    """
    if count >= problem.n:
        return problem.A, problem.C
    C, A = sketched_moments(problem, count, rng, cross=True, traces=True)
    assert A is not None
    return A, np.eye(problem.k) if problem.identity else C


def _excess(problem: Problem, C: Array, L: Array, count: int) -> tuple[float, float]:
    """`excess` and `likely`; infinite where columns are so nearly dependent that the shift of C decides."""
    size, pivot = np.diag(C), np.diag(L) ** 2
    if problem.identity or not (pivot > 1e4 * SHIFT * size.max()).all():
        return np.inf, np.inf
    share = -(-problem.n // count)
    return 1.1 * share, 1.1 * likely_excess(problem.k, count, share)


def _factors(problem: Problem, A: Array, C: Array, count: int) -> tuple[Array, Array, Array]:
    """L, L^-1 and R^-1 with C ~ L L', A'C^-1A + ridge I ~ R R', lifted where the sample cannot tell them from noise."""
    C = C.copy()
    size = np.diag(C).copy()
    size = np.maximum(size, 1e-12 * size.max()) if size.any() else np.ones(problem.k)
    C[np.diag_indices_from(C)] += SHIFT * size
    L = jittered_cholesky(C)
    inverse_L = _inverse(L)
    M = inverse_L @ A
    H = M.T @ M
    H[np.diag_indices_from(H)] += problem.ridge
    # entries of the sampled L^-1 A are off by about 1 / sqrt(count)
    noise = problem.d / count * max(0.0, 1 - count / problem.n)
    if problem.k == problem.d and not problem.identity:
        H += max(0.16 * noise, 1e-12) * C
    size = np.diag(H).copy()
    size = np.maximum(size, 1e-12 * size.max()) if size.any() else np.ones(problem.d)
    H[np.diag_indices_from(H)] += (1e-12 + (0.16 * noise if problem.k != problem.d else 0.0)) * size
    return L, inverse_L, _inverse(jittered_cholesky(H))


def _inverse(L: Array) -> Array:
    """L^-1 of a lower triangular L."""
    inverse, info = linalg.lapack.dtrtri(L, lower=True)
    if info != 0 or not np.isfinite(inverse).all():
        raise ValueError(OUT_OF_RANGE)
    return np.asarray(inverse)


def _sizes(
    problem: Problem, inverse_L: Array, inverse_R: Array, rng: np.random.Generator
) -> tuple[Array, Array, Array]:
    """|psi_t|^2, |u_t|^2 and |v_t|^2 in the new coordinates, through a few random directions."""
    of_psi = _lengths(problem.psi, inverse_L, rng)[0][problem.now]
    of_u = _lengths(problem.u, inverse_L, rng)[0] if problem.trace else problem.ratio**2 * of_psi
    _, P = _lengths(problem.phi, inverse_R, rng)
    V = P[problem.now] - problem.discount[:, None] * P[problem.next]
    return of_psi, of_u, np.einsum("ij,ij->i", V, V)


def _lengths(rows: Rows, inverse: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """|inverse row|^2 of every row, and its products with a few random directions that this was read off."""
    width = inverse.shape[1]
    directions = inverse.T
    if width > SKETCH:
        directions = directions @ (rng.standard_normal((width, SKETCH)) / np.sqrt(SKETCH))
    out = np.empty((rows.shape[0], directions.shape[1]))
    for start, block in rows.blocks():
        out[start : start + block.shape[0]] = block @ directions
    return np.einsum("ij,ij->i", out, out), out
