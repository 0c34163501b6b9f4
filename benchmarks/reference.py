"""True gaps, by code that is independent of the solvers: moments by NumPy products, factorised once.

Dense rows: with L the Cholesky factor of C and M = L^-1 A, F(theta) - F* = 1/2 |M (theta - theta*)|^2 +
ridge/2 |theta - theta*|^2, without cancellation near the minimum. Sparse rows, whose moments do not fit into memory:
F(theta) / F(0), which is never below the gap (F* >= 0) and equals it where A theta = b has a solution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg as linalg

import valuefit as vf
from valuefit.problem.exact import Exact
from valuefit.rows.kernels import compiled

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Reference:
    """`gap(theta)`, how it is computed, the condition number of C, and lambda_min of the symmetric part of A."""

    gap: Callable[[Array], float]
    about: str
    condition: float | None = None
    lambda_A: float | None = None
    mspbe: Callable[[Array], float] | None = None  # F without the ridge term, for held-out logs


@compiled
def trace_rows(rows, ratio, discount, begins, trace, u, out):
    """out[t] = u_t = ratio_t (row_t + trace discount[t] u_{t-1}); discount[t] is that of step t - 1, `u` is u_{t-1}."""
    for t in range(rows.shape[0]):
        keep = 0.0 if begins[t] else trace * discount[t]
        for c in range(rows.shape[1]):
            u[c] = ratio[t] * (rows[t, c] + keep * u[c])
            out[t, c] = u[c]


def moments(problem: vf.Problem) -> tuple[Array, Array, Array]:
    """A, b, C by products of materialised blocks of rows."""
    d = problem.d
    A, b, C, last_u = np.zeros((d, d)), np.zeros(d), np.zeros((d, d)), np.zeros(d)
    rows = problem.phi.matrix
    before = np.concatenate([[0.0], problem.discount[:-1]])
    size = max(1, (64 << 20) // (8 * d))
    for start in range(0, problem.n, size):
        steps = slice(start, start + size)
        now = np.asarray(rows[problem.now[steps]], np.float64)
        v = now - problem.discount[steps, None] * rows[problem.next[steps]]
        u = now
        if problem.trace or (problem.ratio[steps] != 1).any():
            u = np.empty_like(now)
            trace_rows(
                now, problem.ratio[steps], before[steps], problem.begins[steps], problem.trace, last_u, u
            )  # fmt: skip
        A += u.T @ v
        b += u.T @ problem.reward[steps]
        C += now.T @ now
    return A / problem.n, b / problem.n, C / problem.n


def dense_reference(problem: vf.Problem, cache: Path | None = None) -> Reference:
    """The exact solution from moments, stored in the file `cache` because wide problems take long."""
    if cache is not None and cache.exists():
        kept = np.load(cache, allow_pickle=False)
        return _from_factor(problem.ridge, *(kept[name] for name in ("M", "y", "theta", "spectrum")))
    A, b, C = moments(problem)
    try:
        L = np.linalg.cholesky(C)
    except np.linalg.LinAlgError:
        exact = Exact(problem)
        return Reference(exact.gap, "exact solution from moments, eigenvalues of C below 1e-13 of the largest dropped")
    M, y = (linalg.solve_triangular(L, part, lower=True, check_finite=False) for part in (A, b))
    if problem.ridge:
        factor = linalg.cho_factor(M.T @ M + problem.ridge * np.eye(problem.d))
    else:
        lu = linalg.lu_factor(A)
    theta = np.zeros(problem.d)
    for _ in range(3):  # two steps of refinement
        if problem.ridge:
            theta = theta + linalg.cho_solve(factor, M.T @ (y - M @ theta) - problem.ridge * theta)
        else:
            theta = theta + linalg.lu_solve(lu, b - A @ theta)
    lowest = [linalg.eigvalsh(part, subset_by_index=[0, 0])[0] for part in (C, (A + A.T) / 2)]
    spectrum = np.array([_largest(C) / lowest[0], lowest[1]])
    if cache is not None:
        cache.parent.mkdir(parents=True, exist_ok=True)
        partial = cache.with_suffix(".partial.npz")
        np.savez(partial, M=M, y=y, theta=theta, spectrum=spectrum)
        partial.rename(cache)
    return _from_factor(problem.ridge, M, y, theta, spectrum)


def _largest(C: Array) -> float:
    """The largest eigenvalue of C, by a hundred power iterations."""
    x = np.ones(len(C))
    for _ in range(100):
        x = C @ x
        x /= np.linalg.norm(x)
    return float(x @ C @ x)


def _from_factor(ridge: float, M: Array, y: Array, best: Array, spectrum: Array) -> Reference:
    def excess(error: Array) -> float:
        image = M @ error
        return 0.5 * float(image @ image) + 0.5 * ridge * float(error @ error)

    def mspbe(theta: Array) -> float:
        image = M @ theta - y
        return 0.5 * float(image @ image)

    scale = excess(best)
    return Reference(
        lambda theta: excess(theta - best) / scale,
        "exact solution from moments",
        float(spectrum[0]),
        float(spectrum[1]),
        mspbe,
    )


def sparse_reference(problem: vf.Problem) -> Reference:
    """F(theta) / F(0), with r' C^+ r by conjugate gradients on C with its diagonal as preconditioner."""
    if problem.trace or problem.ridge:
        raise ValueError("The gap of a sparse problem with traces or ridge is not implemented here.")
    rows, n = problem.phi.matrix, problem.n
    columns = rows.T.tocsr()
    diagonal = np.asarray(columns.power(2) @ problem.visits) / n
    inverse = np.where(diagonal > 0, 1 / np.where(diagonal > 0, diagonal, 1.0), 0.0)

    def objective(theta: Array) -> float:
        p = rows @ theta
        delta = problem.reward + problem.discount * p[problem.next] - p[problem.now]
        r = columns @ np.bincount(problem.now, problem.ratio * delta, minlength=rows.shape[0]) / n
        return 0.5 * _energy(lambda x: columns @ (problem.visits * (rows @ x)) / n, r, inverse)

    start = objective(np.zeros(problem.d))
    about = "F(theta) / F(0), an upper bound, to 10%"
    return Reference(lambda theta: objective(theta) / start, about, None, None, objective)


def _energy(product: Callable[[Array], Array], r: Array, inverse: Array, iterations: int = 300) -> float:
    """r' C^+ r by conjugate gradients, until five iterations add less than 0.1% (on tiles, at most 10% is missing).

    They end in the null space of C, where r has only rounding errors.
    """
    diagonal = np.divide(1.0, inverse, out=np.zeros_like(inverse), where=inverse > 0)
    z = inverse * r
    p, left, energy = z, float(r @ z), 0.0
    added: list[float] = []
    for _ in range(iterations):
        if left <= 0:
            break
        Cp = product(p)
        curvature = float(p @ Cp)
        if curvature <= 1e-12 * float(p @ (diagonal * p)):
            break
        alpha = left / curvature
        added.append(left * alpha)
        energy += added[-1]
        if len(added) >= 10 and sum(added[-5:]) < 1e-3 * energy:
            break
        r = r - alpha * Cp
        z = inverse * r
        before, left = left, float(r @ z)
        p = z + left / before * p
    return energy


def reference(problem: vf.Problem, cache: Path | None = None) -> Reference:
    """The true gap of this problem."""
    return sparse_reference(problem) if problem.phi.sparse else dense_reference(problem, cache)
