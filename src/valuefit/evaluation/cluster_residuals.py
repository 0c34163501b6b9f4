"""Independent linear systems, one for each cluster of steps, solved together by generalised conjugate residuals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from valuefit.typing import Array


def solve_by_cluster(
    operator: Callable[[Array, Array], Array], right: Array, cluster: Array, count: int, *, tol: float, iterations: int
) -> tuple[Array, Array, Array]:
    """y with y - operator(y) = right, (rows, n), where every cluster of columns is a system of its own.

    Each iteration minimises the residual of every cluster over all directions so far, as GMRES does. A cluster has
    converged when its residual is at most `tol` times its right-hand side; the others go on.
    operator: of columns (rows, n), and the clusters that are wanted, (m,); it is zero in others. cluster: of each
    column, (n,). Returns y, of which combination of the vectors that the operator was applied to y consists in each
    cluster, (iterations, count), and which clusters have converged.
    """

    def dot(a: Array, b: Array) -> Array:
        return np.bincount(cluster, weights=np.einsum("ij,ij->j", a, b), minlength=count)

    y, residual, limit = np.zeros_like(right), right.copy(), tol**2 * dot(right, right)
    directions: list[tuple[Array, Array, Array]] = []  # with their images and combinations
    combination = np.zeros((0, count))
    converged = dot(residual, residual) <= limit
    for iteration in range(iterations):
        if converged.all():
            break
        direction, own = residual.copy(), np.vstack([np.zeros((iteration, count)), np.ones(count)])
        image = direction - operator(direction, np.flatnonzero(~converged))
        for before, before_image, before_own in directions:
            share = dot(before_image, image)
            own[: len(before_own)] -= share * before_own
            direction -= share[cluster] * before
            image -= share[cluster] * before_image
        length = np.sqrt(dot(image, image))
        scale = np.divide(1.0, length, out=np.zeros(count), where=length > 0)
        directions.append((scale[cluster] * direction, scale[cluster] * image, scale * own))
        direction, image, own = directions[-1]
        step = dot(image, residual)
        y += step[cluster] * direction
        combination = np.vstack([combination, np.zeros(count)]) + step * own
        residual -= step[cluster] * image
        converged |= dot(residual, residual) <= limit
        residual[:, converged[cluster]] = 0.0
    return y, combination, converged
