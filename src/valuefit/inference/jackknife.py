"""The delete-one-episode jackknife: the minimiser without each episode, by low-rank updates of one factorisation.

In sums over the log, (theta, w) solves S x = (0, b) with S = [n ridge I, -A'; A, C]. Without episode g it is
(S - S_g) x_g = (0, b - b_g), so x_g = x + (S - S_g)^-1 rho_g, where rho_g = S_g x - (0, b_g) is the part of the episode
in the equations. S_g has at most three times the rank m_g of its steps, but for the ridge, of which n - m_g parts of n
remain. Where w = 0 and there is no ridge, theta_g = theta - A^-1 U' (I - V A^-1 U')^-1 delta, with the rows u_t', v_t'
and the TD errors of the episode: the influence function, with TD errors divided by one minus their joint leverage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg as linalg
import scipy.sparse as sparse

from valuefit.inference.adjoints import Equations
from valuefit.inference.cluster_products import cluster_dots, cluster_sums
from valuefit.inference.cluster_residuals import solve_by_cluster
from valuefit.inference.clusters import Clusters
from valuefit.inference.jackknife_basis import MIN_SINGULAR_VALUE, Basis, InverseBasis
from valuefit.linalg.moments import step_pairs
from valuefit.memory import memory_limit
from valuefit.problem.problem import Problem
from valuefit.rows.traces import keep_forward, recurrence
from valuefit.threads import parts_of, thread_count
from valuefit.typing import Array

CHUNK_NUMBERS = 1 << 21  # of clusters of equal length, held at a time
# Operations of the direct updates of a log without compiled passes, about 0.15 s; beyond it compiled iterations take
# less time, also if numba is imported for them: 0.02 s and the import, not 0.2 s, for 400 states and 50,000 steps in
# episodes of 100.
MAX_SMALL_FLOPS = 4e9
# Relative residual at which the equations of a cluster count as solved. It bounds the relative error of the cluster's
# part, up to 1 minus its leverage; on the logs of benchmarks/checks.py standard errors are exact to 8e-6.
MAX_RESIDUAL = 1e-4
SUSPICIOUS_CONDITION = 1e8  # of an update; beyond it singular values decide what remains determined


@dataclass
class Replicates:
    """`theta`, (clusters, d): the minimiser without each cluster, minus the minimiser.

    undetermined: where removing a cluster leaves directions of theta undetermined, its number and a basis, (d, count).
    left_out: the TD errors of the steps without their cluster, (n,). first_order: `theta` to first order in the part of
    the cluster, where it was computed on the way.
    """

    theta: Array
    left_out: Array
    undetermined: dict[int, Array] = field(default_factory=dict)
    first_order: Array | None = None


class _Steps(NamedTuple):
    """Steps of clusters of equal length: rows in the coordinates of a basis, (clusters, length, columns)."""

    u: Array
    v: Array
    psi: Array
    error: Array  # TD errors, (clusters, length), as the next two
    u_w: Array  # u_t'w
    psi_w: Array


@dataclass
class _Log:
    """The steps of a log, or of one of its shards, in the coordinates of a basis. plain: w = 0, and no ridge."""

    equations: Equations
    problem: Problem
    clusters: Clusters
    basis: Basis | InverseBasis
    error: Array  # TD errors, (n,)

    def __post_init__(self) -> None:
        self.theta, self.w = self.equations.theta, self.equations.w
        self.n, self.ridge = self.equations.problem.n, self.equations.problem.ridge
        self.cluster, self.count = self.clusters.of_step, self.clusters.count
        self.plain = not self.w.any() and not self.ridge

    @property
    def shrunk(self) -> Array:
        """n ridge theta, in coordinates."""
        return np.asarray(self.n * self.ridge * self.basis.coordinates(self.theta[None])[0])

    @cached_property
    def psi_w(self) -> Array:
        return self.problem.psi.dot(self.w)[self.problem.now]

    @cached_property
    def u_w(self) -> Array:
        return self.problem.forward(self.psi_w)

    @property
    def whole_episodes(self) -> bool:
        """Whether traces, if any, stay within clusters."""
        ends = self.cluster[1:] != self.cluster[:-1]
        return not self.problem.trace or bool(self.problem.begins[1:][ends].all())

    def steps(self, steps: Array, *, in_coordinates: bool = True) -> _Steps:
        """The rows of these steps, (clusters, length); in_coordinates: False for rows v of the features themselves."""
        problem, flat = self.problem, steps.ravel()

        def shaped(rows: Any) -> Array:
            return np.asarray(rows.toarray() if sparse.issparse(rows) else rows).reshape(*steps.shape, -1)

        def dual(rows: Any) -> Array:
            return shaped(rows if self.basis.dual is None else rows @ self.basis.dual)

        columns = problem.now[flat], problem.next[flat], problem.discount[flat]
        psi, v = step_pairs(problem.psi, problem.phi, *columns, compiled=problem.large)
        psi = dual(psi)
        u = dual(self._traces(flat)) if problem.trace else problem.ratio[steps][..., None] * psi
        v = shaped(self.basis.coordinates(v) if in_coordinates else v)
        if self.plain:  # no product with w is needed
            return _Steps(u, v, psi, self.error[steps], *np.zeros((2, len(steps), 0)))
        return _Steps(u, v, psi, self.error[steps], self.u_w[steps], self.psi_w[steps])

    def _traces(self, steps: Array) -> Any:
        """The rows u_t of these steps, with traces."""
        return self.problem.u.take(steps) if self.problem.large else self._small_traces[steps]

    @cached_property
    def _small_traces(self) -> Array:
        problem = self.problem
        rows = problem.psi.take(problem.now)
        rows = rows.toarray() if sparse.issparse(rows) else rows
        keep = keep_forward(problem.discount, problem.ratio, problem.begins, problem.trace)
        return recurrence(problem.ratio[:, None] * rows, keep)

    @cached_property
    def shares(self) -> Array:
        """The share of the steps in each cluster."""
        return np.bincount(self.cluster, minlength=self.count) / self.n

    def diagonal(self, clusters: Array) -> tuple[Array, Array]:
        """The parts of these clusters in the equations that are diagonal in S_g, of the ridge and of C = I."""
        problem, share = self.problem, self.shares[clusters, None]
        assert self.basis.dual is not None
        return share * self.shrunk, share * (problem.identity * self.n) * (self.basis.dual.T @ self.w)

    def sums(self, z: Array, chosen: Array) -> tuple[Array, Array]:
        """S_g x_g of the chosen clusters, in coordinates, but for what is diagonal in S_g.

        z: v_t'theta_g and, unless w = 0, psi_t'w_g, (1 or 2, n).
        """
        problem, p = self.problem, z[0]
        weights = problem.backward(p)
        if not self.plain and not problem.identity:
            weights += z[1]
        a = None if self.plain else -problem.forward(z[1])
        parts = self._parts_of(chosen)
        of_theta, of_w = cluster_sums(problem, self.cluster, self.count, parts, a, weights)
        here = self.all_or(chosen)
        below = of_w[here] if self.basis.dual is None else of_w[here] @ self.basis.dual
        return np.zeros((0, 0)) if self.plain else self.basis.coordinates(of_theta[here]), below

    def respond(self, above: Array, below: Array, chosen: Array) -> tuple[Array, Array]:
        """The weights S^-1 (above, below), (chosen, d) and (chosen, k); the second has no rows where w = 0.

        What is diagonal in S is taken as it is without the cluster.
        """
        if self.plain:
            return self.basis.weights(below), np.zeros((0, self.problem.k))
        assert isinstance(self.basis, Basis)
        assert self.basis.dual is not None
        left, p = 1 - self.shares[chosen, None], self.basis.size
        C = left if self.problem.identity else 1.0
        x = _solve_diagonal(self.ridge * left, self.basis.sigma, C, above, below)
        return self.basis.weights(x[:, :p]), x[:, p:] @ self.basis.dual.T

    def dots(self, theta: Array, w: Array, chosen: Array) -> Array:
        """v_t'theta_g and, unless w = 0, psi_t'w_g, (1 or 2, n), of the steps of the chosen clusters, 0 of others."""
        place = np.zeros(self.count, np.int64)
        place[chosen] = np.arange(len(chosen))
        products = cluster_dots(self.problem, place[self.cluster], self._parts_of(chosen), theta, w)
        return np.stack(products[:1] if self.plain else products)

    def all_or(self, chosen: Array) -> Any:
        """An index of these clusters, which copies nothing if they are all."""
        return slice(None) if len(chosen) == self.count else chosen

    def _parts_of(self, chosen: Array) -> list[Array]:
        """`_parts` of these clusters."""
        if len(chosen) == self.count:
            return self._parts
        inside = np.zeros(self.count, bool)
        inside[chosen] = True
        return [part[inside[self.cluster[part]]] for part in self._parts]

    @cached_property
    def _parts(self) -> list[Array]:
        """Steps of whole clusters, in order, for each task; one task on one thread, as sums stay within a cluster."""
        order = np.argsort(self.cluster, kind="stable")
        if thread_count() == 1:
            return [order]
        phi = self.problem.phi
        parts = min(parts_of(len(order) * phi.stored / phi.shape[0] * 8), self.count)
        borders = np.searchsorted(self.cluster[order], np.arange(1, parts) * self.count // parts)
        return np.split(order, borders)


class _Change(NamedTuple):
    """x without a cluster minus x, (clusters, columns), and directions of x that are then undetermined, by cluster."""

    x: Array
    undetermined: dict[int, Array]


def replicates(equations: Equations, problem: Problem, clusters: Clusters, error: Array) -> Replicates:
    """The minimiser without each cluster of the steps of `problem`, which are those of the log or of a shard of it.

    equations: of the log, at the minimiser. error: the TD errors of the steps, (n,). On large logs the equations of all
    clusters are iterated together, at two passes and 2 clusters d^2 operations an iteration. Clusters of high leverage,
    for which that would cost more than direct updates, and small logs are solved directly, in O(m d^2 + m^2 d + m^3)
    for a cluster of m steps, or O(m d^2 + d^3) where that is less.
    """
    log = _Log(equations, problem, clusters, equations.basis, error)
    basis, cluster, count, plain = log.basis, log.cluster, log.count, log.plain
    without, left = Replicates(np.zeros((count, problem.d)), error.copy()), np.ones(count, bool)
    if not basis.size:  # all features are zero, and so is theta
        return without
    size = min(len(cluster) / count, problem.d)
    flops = 2 * len(cluster) * (size * (problem.d + size) + problem.cost.row * problem.d)
    if log.whole_episodes and (problem.large or flops > MAX_SMALL_FLOPS):
        without, converged = _iterated(log, _max_iterations(log, flops))
        left = ~converged
        if plain:
            left[_alone_with_a_feature(log)] = True
    x, undetermined = np.zeros((count, basis.size)), dict[int, Array]()  # weights are solved for once, for all clusters
    for chosen, steps in _equal_lengths(cluster, left, problem.d + problem.k):
        raw = plain and steps.shape[1] >= basis.size and not problem.phi.sparse
        rows = log.steps(steps, in_coordinates=not raw)
        change = _plain_change(rows, basis.coordinates if raw else None) if plain else _change(log, rows, chosen)
        x[chosen] = change.x
        without.left_out[steps] = rows.error - _product(rows.v, basis.weights(change.x) if raw else change.x)
        undetermined.update((int(chosen[index]), directions) for index, directions in change.undetermined.items())
    without.theta[left] = basis.weights(x[left])
    if undetermined:
        weights = basis.weights(np.hstack(list(undetermined.values())).T).T
        ends = np.cumsum([directions.shape[1] for directions in undetermined.values()])
        without.undetermined.update(zip(undetermined, np.split(weights, ends[:-1], axis=1), strict=True))
    return without


def _equal_lengths(cluster: Array, chosen: Array, width: int) -> Iterator[tuple[Array, Array]]:
    """Chosen clusters of equal length, (g,), and their steps, (g, length)."""
    order = np.argsort(cluster, kind="stable")
    lengths = np.bincount(cluster, minlength=len(chosen))
    starts = np.cumsum(lengths) - lengths
    for length in np.unique(lengths[chosen & (lengths > 0)]).tolist():
        members = np.flatnonzero(chosen & (lengths == length))
        size = max(1, CHUNK_NUMBERS // (length * (width + length)))
        for first in range(0, len(members), size):
            clusters = members[first : first + size]
            yield clusters, order[starts[clusters, None] + np.arange(length)]


def _alone_with_a_feature(log: _Log) -> Array:
    """Clusters without which a feature has no data: iterations converge there too, but not to what is determined."""
    problem = log.problem
    counted = problem.ratio != 0
    rows, m = problem.now[counted], problem.psi.shape[0]
    ends = np.full(m, log.count), np.full(m, -1)  # the first and the last cluster with each row
    np.minimum.at(ends[0], rows, log.cluster[counted])
    np.maximum.at(ends[1], rows, log.cluster[counted])
    low, high, left = np.full(problem.k, log.count), np.full(problem.k, -1), np.arange(problem.k)
    size = max(1, CHUNK_NUMBERS * m // max(1, problem.psi.stored))
    for start in range(0, m, size):
        row, column = problem.psi.matrix[start : start + size][:, left].nonzero()
        np.minimum.at(low, left[column], ends[0][start + row])
        np.maximum.at(high, left[column], ends[1][start + row])
        left = left[low[left] >= high[left]]  # few, after the first rows of dense features
    return np.unique(low[low == high])


def _max_iterations(log: _Log, flops: float) -> int:
    """As many as cost what direct updates of all clusters do, with so many operations, and memory has room for."""
    problem, numbers = log.problem, float(log.count * log.problem.d)
    each = 2 + problem.cost.flops(2 * numbers * problem.d)
    return 1 + int(min(problem.cost.flops(flops) / each, memory_limit() / (16 * numbers)))


def _iterated(log: _Log, iterations: int) -> tuple[Replicates, Array]:
    """By iterations for all clusters together, and for which of them they converged.

    x_g = x + S^-1 (S_g y + diagonal parts), where S_g y depends on y through the products of the rows of the cluster
    alone: v_t'theta_g - reward_t, which is minus the TD error without the cluster, and psi_t'w_g. These are solved for.
    They are the products with x plus those with the change, so y - D S^-1 S_g y = (-delta_t, psi_t'w) + D S^-1 diagonal
    with D = (v_t', psi_t'). The system has as many large singular values as directions in which the cluster has a high
    leverage.
    """
    every = np.arange(log.count)
    right, theta = (
        np.stack([-log.error] if log.plain else [-log.error, log.psi_w]),
        np.zeros((log.count, log.problem.d)),
    )
    diagonal = not log.plain and bool(log.ridge or log.problem.identity)
    if diagonal:
        theta, w = log.respond(*log.diagonal(every), every)
        right += log.dots(theta, w, every)
    responses: list[tuple[Array, Array]] = []  # of theta, to what the operator is applied to

    def operator(y: Array, chosen: Array) -> Array:
        response, w = log.respond(*log.sums(y, chosen), chosen)
        responses.append((chosen, response))
        return log.dots(response, w, chosen)

    y, combination, converged = solve_by_cluster(operator, right, log.clusters, tol=MAX_RESIDUAL, iterations=iterations)
    first_order = None if diagonal else np.zeros_like(theta)
    if first_order is not None and responses:
        first_order[log.all_or(responses[0][0])] = responses[0][1]
    for share, (chosen, response) in zip(combination, responses, strict=True):
        here = log.all_or(chosen)
        theta[here] += share[here, None] * response
    return Replicates(theta, -y[0], first_order=first_order), converged


def _plain_change(rows: _Steps, coordinates: Callable[[Array], Array] | None) -> _Change:
    """-(I - U'V)^-1 U' errors, in the smaller of the two spaces: U'(I - V U')^-1 = (I - U'V)^-1 U'.

    coordinates: of rows v, if they are those of features: U'V has fewer rows than V.
    """
    length, columns = rows.u.shape[1:]
    transposed = rows.u.transpose(0, 2, 1)
    if coordinates is None and length < columns:
        y, undetermined = _solve(np.eye(length) - rows.v @ transposed, rows.error)
        return _Change(-_product(transposed, y), {i: transposed[i] @ basis for i, basis in undetermined.items()})
    product = transposed @ rows.v
    if coordinates is not None:
        product = coordinates(product.reshape(-1, product.shape[-1])).reshape(len(product), columns, -1)
    x, undetermined = _solve(np.eye(columns) - product, _product(transposed, rows.error))
    return _Change(-x, undetermined)


def _change(log: _Log, rows: _Steps, clusters: Array) -> _Change:
    """(S - S_g)^-1 rho_g, with S_g = P'Q of the rows, and what is diagonal in S, its ridge included, held apart."""
    problem, basis = log.problem, log.basis
    assert isinstance(basis, Basis)
    assert basis.dual is not None
    count, length = rows.error.shape
    p, q, share = basis.size, basis.dual.shape[1], length / log.n
    of_theta, of_w = np.zeros((count, length, p)), np.zeros((count, length, q))
    P = [np.dstack([of_theta, rows.u]), np.dstack([rows.v, of_w])]
    Q = [np.dstack([rows.v, of_w]), np.dstack([of_theta, -rows.u])]
    above = -_product(rows.v.transpose(0, 2, 1), rows.u_w)
    below = -_product(rows.u.transpose(0, 2, 1), rows.error)
    of_ridge, of_identity = log.diagonal(clusters)
    above, below = above + of_ridge, below + of_identity
    if not problem.identity:
        P, Q = [*P, np.dstack([of_theta, rows.psi])], [*Q, np.dstack([of_theta, rows.psi])]
        below += _product(rows.psi.transpose(0, 2, 1), rows.psi_w)
    right, left = np.concatenate(P, axis=1), np.concatenate(Q, axis=1)
    ridge, C = log.ridge * (1 - share), 1 - share if problem.identity else 1.0
    if right.shape[1] < p + q:
        spread = _solve_diagonal(ridge, basis.sigma, C, right[..., :p], right[..., p:]).transpose(0, 2, 1)
        first = _solve_diagonal(ridge, basis.sigma, C, above, below)
        y, undetermined = _solve(np.eye(right.shape[1]) - left @ spread, _product(left, first))
        x = first + _product(spread, y)
        undetermined = {i: spread[i] @ directions for i, directions in undetermined.items()}
    else:
        Sigma = np.zeros((q, p))
        np.fill_diagonal(Sigma, basis.sigma)
        diagonal = np.block([[ridge * np.eye(p), -Sigma.T], [Sigma, C * np.eye(q)]])
        scale = float(np.abs(diagonal).max())
        x, undetermined = _solve(diagonal - right.transpose(0, 2, 1) @ left, np.hstack([above, below]), scale)
    return _Change(x[:, :p], {i: directions[:p] for i, directions in undetermined.items()})


def _solve_diagonal(ridge: Any, sigma: Array, C: Any, above: Array, below: Array) -> Array:
    """[ridge I, -Sigma'; Sigma, C I]^-1 (above, below), Sigma = diag(sigma), along the last axis."""
    r, p = len(sigma), above.shape[-1]
    theta = above / ridge if np.any(ridge) else np.zeros_like(above)
    solution = np.concatenate([theta, below / C], axis=-1)
    determinant = ridge * C + sigma**2
    solution[..., :r] = (C * above[..., :r] + sigma * below[..., :r]) / determinant
    solution[..., p : p + r] = (ridge * below[..., :r] - sigma * above[..., :r]) / determinant
    return solution


def _product(matrices: Array, vectors: Array) -> Array:
    return (matrices @ vectors[..., None])[..., 0]


def _solve(M: Array, right: Array, scale: float = 1.0) -> tuple[Array, dict[int, Array]]:
    """Solutions of M[i] x = right[i]; of least norm where M[i] is singular, with a basis of its null space.

    scale: of the matrix from which M[i] is a difference. M[i] is zero where a cluster alone determines all its rows.
    """
    try:
        inverse = np.linalg.inv(M)
    except np.linalg.LinAlgError:
        inverse = np.full_like(M, np.inf)
    with np.errstate(invalid="ignore"):
        solution = _product(inverse, right)
        solution = solution + _product(inverse, right - _product(M, solution))
        size = np.maximum(np.abs(M).sum(axis=1).max(axis=-1), scale)
        condition = size * np.abs(inverse).sum(axis=1).max(axis=-1)
    undetermined = {}
    for i in np.flatnonzero(~(condition <= SUSPICIOUS_CONDITION)).tolist():
        left, values, basis = linalg.svd(M[i])
        kept = values > MIN_SINGULAR_VALUE * max(values[0], scale)
        solution[i] = basis[kept].T @ (left[:, kept].T @ right[i] / values[kept])
        if not kept.all():
            undetermined[i] = basis[~kept].T
    return solution, undetermined
