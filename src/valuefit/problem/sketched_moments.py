"""A and C of sketched rows: estimates from a few sums of rows with random signs (CountSketch)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import blas

from valuefit.linalg.sketch import count_sketch, sketch_rows, sketch_steps
from valuefit.problem.problem import Problem
from valuefit.typing import Array

BLOCK_ROWS = 512  # sums that are multiplied at a time, at least


class Block(NamedTuple):
    """Some of the sums, over sqrt(n): of psi (rows, k), of u (the same array at trace 0) and of v (rows, d)."""

    psi: Array
    u: Array
    v: Array | None


def sketched_blocks(
    problem: Problem,
    size: int,
    rng: np.random.Generator,
    *,
    cross: bool,
    traces: bool = False,
    dtype: Any = np.float64,
    block_rows: int = BLOCK_ROWS,
) -> Iterator[Block]:
    """Blocks of `size` sums of rows with random signs; every row is added to one sum.

    So mean psi psi' is estimated by the sum of psi' psi over the blocks, and A by that of u' v. cross: whether v is
    sketched too; otherwise the distinct rows are sketched, weighted by their visits. traces: whether u has traces.
    A block has about `block_rows` sums and is valid until the next one is asked for.
    """
    n, k, d = problem.n, problem.k, problem.d
    traces = traces and problem.trace > 0
    members = np.arange(n) if cross else np.flatnonzero(problem.visits)
    weight = np.full(n, 1 / np.sqrt(n)) if cross else np.sqrt(problem.visits[members] / n)
    ratio = np.ones(n) if traces else problem.ratio  # rows of traces include the ratio
    row_bytes = problem.psi.dtype.itemsize * problem.psi.stored / problem.psi.shape[0]
    sketch = count_sketch(len(members), size, rng, row_bytes=row_bytes, sum_bytes=8 * (k + d if cross else k))
    groups = max(1, block_rows // sketch.together)
    most = min(groups * sketch.together, size)
    X, V = np.empty((most, k), dtype), np.empty((most, d) if cross else (0, 0), dtype)
    U = np.empty((most, k), dtype) if traces else X
    for group in range(0, sketch.groups, groups):
        stop = min(group + groups, sketch.groups)
        rows = sketch.sums(group, stop)
        X[:rows] = 0.0
        if not cross:
            sketch_rows(problem.psi.kernel, members, weight, sketch, group, stop, X[:rows])
            yield Block(X[:rows], X[:rows], None)
            continue
        V[:rows] = 0.0
        sketch_steps(
            problem.phi.kernel, problem.psi.kernel, problem.psi is problem.phi, problem.now, problem.next,
            problem.discount, ratio, 1 / np.sqrt(n), sketch, group, stop, X[:rows], V[:rows],
        )  # fmt: skip
        if traces:
            U[:rows] = 0.0
            sketch_rows(problem.u.kernel, members, weight, sketch, group, stop, U[:rows])
        yield Block(X[:rows], U[:rows], V[:rows])


def sketched_moments(
    problem: Problem, size: int, rng: np.random.Generator, *, cross: bool, traces: bool = False
) -> tuple[Array, Array | None]:
    """mean psi psi' and, if `cross`, A, estimated from `size` sums of rows."""
    k, d = problem.k, problem.d
    C, A = np.zeros((k, k), order="F"), np.zeros((k, d) if cross else (0, 0), order="F")
    for block in sketched_blocks(problem, size, rng, cross=cross, traces=traces, block_rows=max(BLOCK_ROWS, k // 4)):
        C = blas.dsyrk(1.0, block.psi.T, beta=1.0, c=C, lower=True, overwrite_c=True)
        if block.v is not None:
            A = blas.dgemm(1.0, block.u.T, block.v.T, beta=1.0, c=A, trans_b=True, overwrite_c=True)
    C += np.tril(C, -1).T
    return C, A if cross else None


def rows_per_sum(problem: Problem, size: int, *, cross: bool) -> int:
    """The maximum number of rows in one of `size` sums: the sketched C is at most this times C."""
    return -(-(problem.n if cross else int((problem.visits > 0).sum())) // size)
