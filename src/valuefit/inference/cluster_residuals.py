"""Independent linear systems, one for each cluster of steps, solved together by generalised conjugate residuals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from valuefit.inference.clusters import Clusters
from valuefit.typing import Array

MIN_IMAGE = 1e-8  # relative length of y - operator(y), below which it is a rounding error of a singular system


def solve_by_cluster(
    operator: Callable[[Array, Array], Array], right: Array, every: Clusters, *, tol: float, iterations: int
) -> tuple[Array, Array, Array]:
    """y with y - operator(y) = right, (rows, n), where every cluster of columns is a system of its own.

    Each iteration minimises the residual of every cluster over all directions so far, as GMRES does. A cluster has
    converged when its residual is at most `tol` times its right-hand side; the others go on.
    operator: of columns (rows, n), and the clusters that are wanted, (m,); it is zero in others. every: the clusters
    of the n columns. Returns the solution y; `combination[i, g]`, the weight in cluster g of the i-th vector that the
    operator was applied to; and which clusters have converged.
    """

    def dot(a: Array, b: Array) -> Array:
        return clusters.sums(np.einsum("ij,ij->j", a, b))

    cluster, count, clusters = every.of_step, every.count, every
    y, residual, columns = np.zeros_like(right), right, np.arange(len(cluster))
    directions: list[tuple[Array, Array, Array, Array]] = []  # with their images, squared lengths and combinations
    combination, limit = np.zeros((0, count)), tol**2 * dot(right, right)
    converged = limit == 0
    for iteration in range(iterations):
        left = np.flatnonzero(~converged)
        if not len(left):
            break
        inside = clusters.spread(~converged)
        residual = residual * inside
        if 2 * np.count_nonzero(inside) < len(columns):  # columns of clusters that have converged are dropped
            columns, residual = columns[inside], residual[:, inside]
            directions = [(x[:, inside], image[:, inside], square, part) for x, image, square, part in directions]
            clusters = Clusters(cluster[columns], count)
        complete = len(columns) == len(cluster)
        full = residual if complete else np.zeros_like(right)
        if not complete:
            full[:, columns] = residual
        image = operator(full, left)
        direction, image = residual, residual - (image if complete else image[:, columns])
        part = np.vstack([np.zeros((iteration, count)), np.ones(count)])
        for before, before_image, square, before_part in directions:
            share = _ratio(dot(before_image, image), square)
            direction = direction - clusters.spread(share) * before
            image -= clusters.spread(share) * before_image
            part[: len(before_part)] -= share * before_part
        square = dot(image, image)
        square[square <= MIN_IMAGE**2 * dot(direction, direction)] = 0.0
        directions.append((direction, image, square, part))
        step = np.where(converged, 0.0, _ratio(dot(image, residual), square))
        of_column = clusters.spread(step)
        y[:, slice(None) if complete else columns] += of_column * direction
        combination = np.vstack([combination, np.zeros(count)]) + step * part
        residual = residual - of_column * image
        converged |= dot(residual, residual) <= limit
    return y, combination, converged


def _ratio(above: Array, below: Array) -> Array:
    """above / below, 0 where below is 0."""
    return np.divide(above, below, out=np.zeros(len(above)), where=below > 0)
