"""Products of the rows of steps by cluster: with the weights of their cluster, and summed over it."""

from __future__ import annotations

from typing import Any

import numpy as np

from valuefit.problem.problem import Problem
from valuefit.rows.kernels import dots_by_cluster, squares_by_cluster, sums_by_cluster
from valuefit.threads import share_out
from valuefit.typing import Array


def cluster_dots(problem: Problem, cluster: Array, parts: list[Array], X: Array, Y: Array) -> tuple[Array, Array]:
    """v_t'X[cluster_t] and psi_t'Y[cluster_t], (n,), of the steps in `parts`, and 0 of the others.

    The second is 0 if Y has no rows. Rows with a copy on a device are multiplied there.
    """
    p, q = np.zeros(problem.n), np.zeros(problem.n)
    if problem.phi.on_device is None or problem.psi.on_device is None:
        rows = (*_kernel_rows(problem), cluster)
        share_out(lambda part: dots_by_cluster(*rows, parts[part], X, Y, p, q), len(parts))
        return p, q
    steps = np.concatenate(parts)
    now, next, own = problem.now[steps], problem.next[steps], cluster[steps]
    later = problem.phi.on_device.group_dots(next, own, X)
    p[steps] = problem.phi.on_device.group_dots(now, own, X) - problem.discount[steps] * later
    if len(Y):
        q[steps] = problem.psi.on_device.group_dots(now, own, Y)
    return p, q


def cluster_sums(
    problem: Problem, cluster: Array, count: int, parts: list[Array], a: Array | None, c: Array
) -> tuple[Array, Array]:
    """The sums of a_t v_t, (count, d), and of c_t psi_t, (count, k), over the steps of each cluster in `parts`.

    Without a the first has no rows. Rows with a copy on a device are multiplied there.
    """
    of_v, of_psi = np.zeros((0 if a is None else count, problem.d)), np.zeros((count, problem.k))
    if problem.phi.on_device is None or problem.psi.on_device is None:
        rows, weights, short = (*_kernel_rows(problem), cluster), c if a is None else a, problem.psi.short
        share_out(lambda part: sums_by_cluster(*rows, parts[part], weights, c, of_v, of_psi, short), len(parts))
        return of_v, of_psi
    steps = np.concatenate(parts)
    now, next, own = problem.now[steps], problem.next[steps], cluster[steps]
    if a is not None:
        of_v = problem.phi.on_device.group_sums(now, a[steps], own, count)
        of_v -= problem.phi.on_device.group_sums(next, (problem.discount * a)[steps], own, count)
    return of_v, problem.psi.on_device.group_sums(now, c[steps], own, count)


def u_squares(problem: Problem, cluster: Array, count: int, G: Array) -> Array:
    """The sums of (u_t'g)^2 over each cluster, (columns, count), for each column g of G (k, columns)."""
    squares = np.zeros((count, G.shape[1]))
    columns = problem.now, problem.discount, problem.ratio, problem.begins, problem.trace, cluster
    squares_by_cluster(problem.psi.kernel, *columns, np.ascontiguousarray(G.T), squares)
    return squares.T


def _kernel_rows(problem: Problem) -> tuple[Any, ...]:
    """The rows of the steps, as arguments of kernels."""
    return problem.phi.kernel, problem.psi.kernel, problem.now, problem.next, problem.discount
