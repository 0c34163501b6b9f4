"""The choice of `solver="auto"`: a cost model in seconds for each solver."""

from __future__ import annotations

import math
from dataclasses import dataclass

from valuefit.linalg.moments import CACHED_MATRIX_BYTES
from valuefit.machine import COSTS
from valuefit.memory import memory_limit
from valuefit.problem.factor import plan
from valuefit.problem.preconditioner import first_count
from valuefit.problem.problem import Problem


@dataclass(frozen=True)
class Estimate:
    """Predicted time and memory of a solver."""

    solver: str
    seconds: float
    bytes: float


def rank(problem: Problem, gap: float, memory: int | None = None) -> tuple[list[str], str]:
    """Solvers that fit into `memory` bytes (by default `memory_limit()`), fastest first, and the reason in a sentence.

    It depends only on the shape of the problem, the requested gap and the memory. Where no solver fits, the one that
    needs the least memory is returned.
    """
    limit = memory_limit() if memory is None else memory
    estimates = _estimates(problem, gap)
    feasible = sorted((one for one in estimates if one.bytes <= limit), key=lambda one: one.seconds)
    if not feasible:
        feasible = [min(estimates, key=lambda one: one.bytes)]
    best = feasible[0]
    reason = f"'auto' chose {best.solver}: it should take {_time(best.seconds)}"
    others = [f"{one.solver} {_time(one.seconds)}" for one in feasible[1:3]]
    if others:
        reason += f", {' and '.join(others)}"
    too_large = [one.solver for one in estimates if one.bytes > limit]
    if too_large:
        reason += f"; {' and '.join(too_large)} would not fit into memory"
    return [one.solver for one in feasible], reason + "."


def _estimates(problem: Problem, gap: float) -> list[Estimate]:
    decades = max(1.0, -math.log10(max(gap, 1e-16)))
    return (_sparse if problem.phi.sparse else _dense)(problem, decades / 6)


def _dense(problem: Problem, work: float) -> list[Estimate]:
    """Estimates for dense rows. work: iterations relative to those for a gap of 1e-6, by linear convergence."""
    n, d, k = problem.n, problem.d, problem.k
    starts = n if problem.trace else min(n, int((problem.visits > 0).sum()))
    row_bytes = problem.phi.dtype.itemsize * d
    one_pass = COSTS["pass_byte"] * row_bytes * problem.phi.shape[0] + COSTS["pass_step"] * n
    if problem.trace or problem.psi is not problem.phi:
        one_pass *= 1.3  # these passes read the rows twice
    square = problem.ridge == 0 and k == d
    flops = 2.0 * starts * k * d + (0.0 if square or problem.identity else 1.0 * starts * k**2)
    factor = COSTS["factor_flop"] * (2 / 3 * d**3 if square else k**3 / 3 + k**2 * d + k * d**2 + d**3 / 3)
    direct = COSTS["fixed"] + COSTS["gram_flop"] * flops + factor + 6 * one_pass
    size, cross = plan(problem)
    rows = size / k
    iterations = 2.0
    if size < starts:
        iterations = work * (6 + 72 / rows if cross else 26 + 28 / math.sqrt(rows))
        iterations *= max(1.0, math.log(1 / max(1 - float(problem.discount.max()), 1e-3)) / 3.5)  # 3 at 0.95
    sketch = 1.6 * one_pass + COSTS["gram_flop"] * min(size, starts) * (k**2 + (2 * k * d if cross else 0))
    factors = COSTS["factor_flop"] * k**3 / 3 + (factor if cross else 0.0)
    iteration = one_pass + COSTS["pass_byte"] * 8 * (k * k + (d * d if cross else 0))
    krylov = 2 * COSTS["fixed"] + sketch + factors + (2 + iterations) * iteration
    updates = n * (2 * row_bytes * COSTS["svrg_byte"] + COSTS["svrg_update"])
    preconditioner = COSTS["gram_flop"] * first_count(problem) * 3 * k * d + COSTS["factor_flop"] * 4 * d**3
    svrg = 2 * COSTS["fixed"] + preconditioner + work * 12 * (updates + one_pass)
    saga = 2 * COSTS["fixed"] + preconditioner + work * 22 * 1.3 * updates
    matrices = 16.0 * (k + d) ** 2
    if matrices > memory_limit():  # SVRG and SAGA then use the diagonal preconditioner
        matrices = 8.0 * 16 * (k + d)
    return [
        Estimate("lstd", direct, 8.0 * (k * d + k * k + 2 * d * d)),
        Estimate("krylov", krylov, 8.0 * (3 * k * (k + d) + min(size, starts) * (k + d if cross else k))),
        Estimate("saga", saga, matrices + 8.0 * 3 * n),
        Estimate("svrg", svrg, matrices),
    ]


def _sparse(problem: Problem, work: float) -> list[Estimate]:
    """Estimates for CSR rows, whose columns are usually linearly dependent (the columns of a tiling sum to one).

    `lstd` then needs eigenvalues and an SVD, about 15 d^3 operations. `krylov` forms C, as a sparse matrix unless it
    fits in cache, and takes about 48 iterations to 1e-6. An iteration costs a pass, and another one for triangular
    solves or Gauss-Seidel sweeps.
    """
    n, d, k = problem.n, problem.d, problem.k
    row_nonzeros = problem.phi.stored / problem.phi.shape[0]
    one_pass = COSTS["pass_nonzero"] * problem.phi.stored + COSTS["sparse_step"] * n
    C_entries = min(float(k) * k, n * row_nonzeros**2)
    in_cache = 8 * k * d <= CACHED_MATRIX_BYTES
    forming_A = COSTS["sparse_square"] * n * row_nonzeros**2
    trace_product = COSTS["gram_flop"] * 2 * n * k * d if problem.trace else 0.0
    direct = forming_A * (0.2 if in_cache else 1.0) + trace_product + COSTS["factor_flop"] * 15 * float(max(d, k)) ** 3
    iterative = forming_A * (0.06 if in_cache else 0.3)
    iterative += 48 * work * (COSTS["iteration"] + (0.6 if in_cache else 2.0) * one_pass)
    passes = 360 * work  # of single-row updates; one such pass takes about as long as three full-batch passes
    return [
        Estimate("lstd", COSTS["fixed"] + direct, 8.0 * (k * d + k * k + 2 * d * d)),
        Estimate("krylov", 2 * COSTS["fixed"] + iterative, 8.0 * 60 * 3 * (k + d) + 24 * C_entries),
        Estimate("saga", 2 * COSTS["fixed"] + 3 * passes * one_pass, 8.0 * (3 * n + 4 * (k + d))),
        Estimate("svrg", 2 * COSTS["fixed"] + 3.5 * passes * one_pass, 8.0 * 4 * (k + d)),
    ]


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
