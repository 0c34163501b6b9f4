"""Iterative solutions of the adjoint systems of a problem, over products with the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse.linalg as iterative

from valuefit.precondition.preconditioner import last_preconditioner
from valuefit.problem.saddle_point import SaddlePoint
from valuefit.typing import Array

ITERATIVE_RESIDUAL_TOL = 1e-2  # relative residual: standard errors were within 1% of exact ones in all comparisons
MAX_ITERATIONS = 600  # each a product with the log


def _operator(size: int, product: Callable[[Array], Array]) -> Any:
    return iterative.LinearOperator((size, size), matvec=lambda x: product(np.ravel(x)), dtype=np.float64)


def gmres(problem: SaddlePoint, c: Array, start: Array | None = None) -> Array:
    """A'^-1 c by GMRES over products with the log, preconditioned by the solver's C~. start: an approximation."""
    restart = 60
    solution, _ = iterative.gmres(
        _operator(problem.k, problem.At_dot), c, start, rtol=ITERATIVE_RESIDUAL_TOL / 100, restart=restart,
        maxiter=max(1, MAX_ITERATIONS // restart), M=_operator(problem.k, last_preconditioner(problem).dual),
    )  # fmt: skip
    return np.asarray(solution)


def minres(problem: SaddlePoint, right: Array) -> Array:
    """The symmetric saddle system [ridge, A'; A, -C] x = right by MINRES, preconditioned by the solver's H~ and C~."""
    d, preconditioner = problem.d, last_preconditioner(problem)

    def product(x: Array) -> Array:
        above = problem.ridge * x[:d] + problem.At_dot(x[d:])
        return np.concatenate([above, problem.A_dot(x[:d]) - problem.C_dot(x[d:])])

    solution, _ = iterative.minres(
        _operator(len(right), product), right, rtol=ITERATIVE_RESIDUAL_TOL / 1e5, maxiter=MAX_ITERATIONS,
        M=_operator(
            len(right), lambda x: np.concatenate([preconditioner.primal(x[:d]), preconditioner.dual(x[d:])])
        ),
    )  # fmt: skip
    return np.asarray(solution)
