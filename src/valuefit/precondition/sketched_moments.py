"""A and C of sketched rows: estimates from a few sums of rows with random signs (CountSketch)."""

from __future__ import annotations

from importlib import import_module

import numpy as np
from scipy.linalg import blas

from valuefit.linalg.moments import fill_upper
from valuefit.problem.saddle_point import SaddlePoint
from valuefit.typing import Array

BLOCK_ROWS = 512  # sums that are multiplied at a time, at least


def sketched_moments(
    problem: SaddlePoint, size: int, rng: np.random.Generator, *, cross: bool, traces: bool = False
) -> tuple[Array, Array | None]:
    """mean psi psi' and, if `cross`, A, estimated from `size` sums of rows; multiplied on the device of the rows."""
    if "device" in problem.traits:
        device = import_module("valuefit.gpu.device_problem")
        found: tuple[Array, Array | None] = device.sketched_moments(problem, size, rng, cross=cross, traces=traces)
        return found
    k, d = problem.k, problem.d
    C, A = np.zeros((k, k), order="F"), np.zeros((k, d) if cross else (0, 0), order="F")
    size_of_block = max(BLOCK_ROWS, k // 4)
    for block in problem.sketched_rows(
        size, rng, cross=cross, traces=traces, dtype=np.float64, block_rows=size_of_block
    ):
        C = blas.dsyrk(1.0, block.psi.T, beta=1.0, c=C, lower=True, overwrite_c=True)
        if block.v is not None:
            A = blas.dgemm(1.0, block.u.T, block.v.T, beta=1.0, c=A, trans_b=True, overwrite_c=True)
    fill_upper(C)
    return C, A if cross else None


def rows_per_sum(problem: SaddlePoint, size: int, *, cross: bool) -> int:
    """The maximum number of rows in one of `size` sums: the sketched C is at most this times C."""
    return -(-(problem.n if cross else problem.cost.starts) // size) + problem.sketch_parts - 1
