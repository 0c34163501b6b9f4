"""Independent linear systems, one for each cluster of steps, solved together by generalised conjugate residuals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
        return np.bincount(own, weights=np.einsum("ij,ij->j", a, b), minlength=count)

    y, own, residual = np.zeros_like(right), cluster, right.copy()
    columns: Any = slice(None)  # of the clusters that go on, and of a few others
    directions: list[tuple[Array, Array, Array]] = []  # with their images and combinations
    combination, limit = np.zeros((0, count)), tol**2 * dot(right, right)
    converged = limit == 0
    for iteration in range(iterations):
        left = np.flatnonzero(~converged)
        if not len(left):
            break
        inside = ~converged[own]
        if 2 * np.count_nonzero(inside) < len(own):  # columns of clusters that have converged are dropped
            columns = np.arange(len(cluster))[columns][inside]
            own, residual = own[inside], residual[:, inside]
            directions = [(x[:, inside], image[:, inside], part) for x, image, part in directions]
        full = np.zeros_like(right)
        full[:, columns] = residual
        direction, image = residual, residual - operator(full, left)[:, columns]
        part = np.vstack([np.zeros((iteration, count)), np.ones(count)])
        for before, before_image, before_part in directions:
            share = dot(before_image, image)
            direction = direction - share[own] * before
            image -= share[own] * before_image
            part[: len(before_part)] -= share * before_part
        length = np.sqrt(dot(image, image))
        scale = np.divide(1.0, length, out=np.zeros(count), where=length > 0)
        direction, image, part = scale[own] * direction, scale[own] * image, scale * part
        directions.append((direction, image, part))
        step = np.where(converged, 0.0, dot(image, residual))
        y[:, columns] += step[own] * direction
        combination = np.vstack([combination, np.zeros(count)]) + step * part
        residual = residual - step[own] * image
        converged |= dot(residual, residual) <= limit
        residual[:, converged[own]] = 0.0
    return y, combination, converged
