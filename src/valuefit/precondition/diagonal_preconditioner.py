"""A diagonal preconditioner with a rank-two term, where d x d matrices would cost too much: centring and scaling.

It is P = T'T for the change of basis T phi = (D (phi - m a'phi), kappa a'phi), with m the mean row, D a diagonal and
a'phi the constant component of a row. The basis is never changed: iterates stay in the user's coordinates and
gradients, which include the ridge, ratios, traces and terminated steps, are multiplied by P.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sparse

from valuefit.problem.problem import Problem, pieces
from valuefit.rows.storage import Rows
from valuefit.typing import Array

COST = 3.0  # passes to make it: two for the columns, one for the rows
CONSTANT = 1e-9  # standard deviation over norm below which a column or a sum of columns is constant


class DiagonalPlusRankTwo(NamedTuple):
    """P = diag(scale) + sides core sides', symmetric and positive."""

    scale: Array
    sides: Array  # (d, 2), or (d, 0) without a constant
    core: Array

    def __matmul__(self, x: Array) -> Array:
        """P x."""
        return self.scale * x + self.sides @ (self.core @ (self.sides.T @ x))


def balance(problem: Problem) -> tuple[DiagonalPlusRankTwo, DiagonalPlusRankTwo]:
    """P for theta and for w.

    w is scaled by the second moments of the centred psi, theta by those of the centred v, which bound the diagonal of
    A'C^-1A, plus the ridge. The constant gets the weight that makes its own curvature 1: without it, discounts near
    1 make it the slowest direction.
    """
    n, visits = problem.n, problem.visits
    if problem.identity:
        of_w = _packed(np.ones(problem.k), None, np.zeros(problem.k), 0.0)
        bound = float(problem.psi_squared.mean())  # A'A is about mean |psi|^2 times A'C^-1A, at most
    else:
        square, mean = problem.psi.column_squares(visits) / n, problem.psi.tdot(visits) / n
        a = _constant(problem.psi, problem, square, mean)
        spread = square if a is None else square - mean**2
        of_w = _packed(_inverse(spread, square, 0.0), a, mean, 1.0)
        bound = 1.0
    square, mean = problem.phi.column_squares(visits) / n, problem.phi.tdot(visits) / n
    a = _constant(problem.phi, problem, square, mean)
    along = np.zeros(n)
    if a is not None:
        h = problem.phi.dot(a)
        along = h[problem.now] - problem.discount * h[problem.next]
    spread, cross = np.zeros(problem.d), np.zeros(problem.d)
    for t, V in _v_pieces(problem):
        spread += _squares(V).T @ problem.ratio[t] / n
        cross += V.T @ (problem.ratio[t] * along[t]) / n
    curvature = float(np.mean(problem.ratio * along**2))
    spread += mean * (mean * curvature - 2 * cross)
    scale = _inverse(bound * spread, bound * square, problem.ridge)
    weight = 0.0
    if a is not None:
        weight = 1 / max(bound * curvature + problem.ridge * float(a @ a), CONSTANT * bound)
    return _packed(scale, a, mean, weight), of_w


def squared_row_norms(
    problem: Problem, theta: DiagonalPlusRankTwo, w: DiagonalPlusRankTwo
) -> tuple[Array, Array, Array]:
    """|psi_t|^2, |u_t|^2 and |v_t|^2 after preconditioning."""
    of_psi = _sizes(problem.psi.matrix, problem.psi.matrix @ w.sides, w)[problem.now]
    if problem.trace:
        of_u = _sizes(problem.u.matrix, problem.u.matrix @ w.sides, w)
    else:
        of_u = problem.ratio**2 * of_psi
    products = problem.phi.matrix @ theta.sides
    of_v = np.empty(problem.n)
    for t, V in _v_pieces(problem):
        along = products[problem.now[t]] - problem.discount[t, None] * products[problem.next[t]]
        of_v[t] = _sizes(V, along, theta)
    return of_psi, of_u, of_v


def _constant(rows: Rows, problem: Problem, square: Array, mean: Array) -> Array | None:
    """a, with a'phi = 1 for every row that a step starts from: a column, or the sum of all columns with data.

    Tiles and one-hot columns sum to a constant. A column without data is left out of the sum: its weight must stay
    0, to which a ridge alone would return it only slowly.
    """
    constant = (square > 0) & (square - mean**2 <= CONSTANT**2 * square)
    if constant.any():
        first = int(np.flatnonzero(constant)[0])
        a = np.zeros(len(mean))
        a[first] = 1 / mean[first]
        return a
    total = rows.dot(np.ones(len(mean)))[problem.now]
    if total[0] != 0 and np.ptp(total) <= CONSTANT * abs(total[0]):
        return (square > 0) / total[0]
    return None


def _inverse(spread: Array, square: Array, ridge: float) -> Array:
    """1 / (spread + ridge), 0 for a column without data; a column that is constant but for rounding is not centred."""
    spread = np.where(spread > CONSTANT * square, spread, square) + ridge
    inverse = np.zeros_like(spread)
    np.divide(1.0, np.maximum(spread, 1e-24 * square.max(initial=0.0)), out=inverse, where=square > 0)
    return inverse


def _packed(scale: Array, a: Array | None, mean: Array, weight: float) -> DiagonalPlusRankTwo:
    """(I - a m') diag(scale) (I - m a') + weight a a', as a diagonal and a rank-two term."""
    if a is None:
        return DiagonalPlusRankTwo(scale, np.zeros((len(scale), 0)), np.zeros((0, 0)))
    scaled = scale * mean
    core = np.array([[float(mean @ scaled) + weight, -1.0], [-1.0, 0.0]])
    return DiagonalPlusRankTwo(scale, np.column_stack([a, scaled]), core)


def _v_pieces(problem: Problem) -> Iterator[tuple[Array, Any]]:
    """Steps and their rows v, as many at a time as fit into cache; all at once where rows are sparse."""
    for t in pieces(np.arange(problem.n), 2 * problem.d if not problem.phi.sparse else 1):
        now, after = problem.phi.take(problem.now[t]), problem.phi.take(problem.next[t])
        if problem.phi.sparse:
            yield t, now - sparse.diags_array(problem.discount[t]) @ after
        else:
            yield t, now - problem.discount[t, None] * after


def _squares(V: Any) -> Any:
    """Squared entries, sparse or dense, in float64."""
    return V.astype(np.float64).power(2) if sparse.issparse(V) else np.asarray(V, np.float64) ** 2


def _sizes(matrix: Any, products: Array, of: DiagonalPlusRankTwo) -> Array:
    """row'P row for every row, given the products of the rows with the sides."""
    diagonal = np.asarray(_squares(matrix) @ of.scale).ravel()
    return np.maximum(diagonal + np.einsum("ij,jk,ik->i", products, of.core, products), 0.0)
