"""How far digits of the answer are worth finding: the noise of the log, in the units of the gap."""

from __future__ import annotations

import numpy as np
import scipy.linalg as linalg

from valuefit.problem.problem import Problem
from valuefit.rows.storage import Rows
from valuefit.typing import Array

DIRECTIONS = 3  # in which noise is measured
ENOUGH = 32  # clusters from which the smallest noise among them is one, and not chance
ENOUGH_STEPS = 25  # of a single episode, to cut it into blocks
PART = 0.1  # of a standard error: what a solver may leave
LOOSEST = 0.01  # the gap asked for at least, however little the log can tell
PASSES = 1.0  # that a measurement is worth: rows are read twice, for two vectors each time


def clusters(episode: Array) -> tuple[Array, int, bool]:
    """Which independent part of the log every step belongs to, how many there are, and whether they are blocks.

    Parts are episodes; a single one is cut into about sqrt(n) consecutive blocks (batch means).
    """
    _, cluster = np.unique(episode, return_inverse=True)
    count, n = int(cluster.max()) + 1, len(cluster)
    blocks = count == 1 and n >= ENOUGH_STEPS
    if blocks:
        count = int(np.sqrt(n))
        cluster = np.arange(n) * count // n
    return cluster, count, blocks


def supported_gap(problem: Problem, theta: Array) -> float:
    """The gap below which digits are noise: any c'theta is then off by at most a tenth of its standard error.

    With g the adjoint of c (A'g = c), |c'(theta - theta*)|^2 <= 2 (F(theta) - F*) g'Cg, and the squared standard
    error is g'Sg / n, S being the covariance of sum u_t delta_t, by episode. So an excess of F of 0.01 s / (2 n) will
    do, where s is the smallest g'Sg / g'Cg: the mean squared TD error on-policy, more with ratios and traces. It is
    measured over a random subspace of g. F(0) - F* <= 1/2 mean z^2 turns it into a gap, z being the rewards summed
    along the traces. A ridge leaves c'theta less room and less noise; it is treated as none here.
    """
    bound = _most_to_gain(problem)
    if bound == 0:
        return 0.0
    return min(PART**2 * _noise(problem, theta) / (problem.n * bound), LOOSEST)


def hoped_gap(problem: Problem) -> float:
    """A gap that `supported_gap` is hardly above, whatever theta, from the rewards alone; costs no pass."""
    bound = _most_to_gain(problem)
    if bound == 0:
        return 0.0
    hang_together = 2 / (1 - problem.trace * min(float(problem.discount.max()), 0.999))
    generous = hang_together * float(np.mean((problem.ratio * problem.reward) ** 2))
    return min(PART**2 * generous / (problem.n * bound), LOOSEST)


def _most_to_gain(problem: Problem) -> float:
    """2 (F(0) - F*), from above."""
    return float(np.mean(problem.backward(problem.reward) ** 2))


def _noise(problem: Problem, theta: Array) -> float:
    """The smallest g'Sg / g'Cg over a random subspace; over few clusters, the mean of its directions."""
    rng = np.random.default_rng(0)
    g = rng.standard_normal((problem.k, DIRECTIONS))
    if problem.psi is problem.phi:
        value, *seen = _products(problem.phi, [theta, *g.T])
    else:
        value, seen = problem.phi.dot(theta), _products(problem.psi, [*g.T])
    along = np.column_stack(seen)
    td = problem.reward + problem.discount * value[problem.next] - value[problem.now]
    cluster, count, _ = clusters(np.cumsum(problem.begins))
    sums = np.empty((count, DIRECTIONS))
    for column in range(DIRECTIONS):
        u = problem.forward(seen[column][problem.now])
        sums[:, column] = np.bincount(cluster, weights=u * td, minlength=count)
    S = sums.T @ sums / problem.n
    C = g.T @ g if problem.identity else along.T @ (problem.visits[:, None] * along) / problem.n
    values, vectors = linalg.eigh(C)
    kept = values > 1e-10 * values[-1]
    if not kept.any():
        return 0.0
    white = vectors[:, kept] / np.sqrt(values[kept])
    found = linalg.eigvalsh(white.T @ S @ white)
    return float(max(found[0] if count >= ENOUGH else found.mean(), 0.0))


def _products(rows: Rows, vectors: list[Array]) -> list[Array]:
    """Rows times each of these, by twos: a product of BLAS with few columns takes longer."""
    found: list[Array] = []
    for x, y in zip(vectors[::2], vectors[1::2], strict=False):
        found += rows.dot2(np.ascontiguousarray(x), np.ascontiguousarray(y))
    return found + [rows.dot(np.ascontiguousarray(x)) for x in vectors[len(found) :]]
