"""Independent linear systems, one for each cluster of steps, solved together by generalised conjugate residuals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from valuefit.typing import Array


def solve_by_cluster(
    operator: Callable[[Array, Array], Array], right: Array, cluster: Array, count: int, *, tol: float, iterations: int
) -> tuple[Array, Array]:
    """y with y - operator(y) = right, (rows, n), where every cluster of columns is a system of its own.

    Each iteration minimises the residual of every cluster over all directions so far, as GMRES does. A cluster has
    converged when its residual is at most `tol` times its right-hand side; the others go on.
    operator: of columns (rows, n), and the clusters that are wanted, (m,); it is zero in others. cluster: of each
    column, (n,). Returns y, and which clusters have converged.
    """

    def dot(a: Array, b: Array) -> Array:
        return np.bincount(cluster, weights=np.einsum("ij,ij->j", a, b), minlength=count)

    y, residual = np.zeros_like(right), right.copy()
    limit = tol**2 * dot(right, right)
    directions: list[tuple[Array, Array]] = []
    converged = dot(residual, residual) <= limit
    left = np.flatnonzero(~converged)
    for _ in range(iterations):
        if not len(left):
            break
        direction = residual.copy()
        image = direction - operator(direction, left)
        for before, before_image in directions:
            share = dot(before_image, image)[cluster]
            direction -= share * before
            image -= share * before_image
        length = np.sqrt(dot(image, image))
        scale = np.divide(1.0, length, out=np.zeros(count), where=length > 0)[cluster]
        direction *= scale
        image *= scale
        directions.append((direction, image))
        step = dot(image, residual)[cluster]
        y += step * direction
        residual -= step * image
        square = dot(residual, residual)
        converged |= square <= limit
        residual[:, converged[cluster]] = 0.0
        left = np.flatnonzero(~converged)
    return y, converged
